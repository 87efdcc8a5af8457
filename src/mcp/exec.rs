//! Commands and scripts in fresh cells, for every tool that runs one.
//!
//! Only one directory persists between their calls: the one in which the next call starts.

pub mod steps;

use super::calls::ClientCalls;
use super::context::Context;
use super::reply;
use super::tool_entry::CallResult;
use model::call::{Cwd, seconds};
use model::outcome::Outcome;
use model::shells::ShellKind;
use service::capture::tap::Tap;
use service::refused::Refused;
use service::report::{Clamped, CommandReport};
use service::request::ExecRequest;
use service::shell::{self, ScriptArgs};

/// Runs a command as a call of `tool`, passes its output to `tap`, and makes the reply with the fields of the
/// reference implementation.
pub(crate) async fn call(
    calls: &ClientCalls,
    tool: &'static str,
    request: ExecRequest,
    tap: Tap,
    context: &Context,
) -> CallResult {
    let command = request.args.command.clone();
    let stderr = request.stderr;
    let report = run_command(calls, tool, request, tap, context).await?;
    Ok(reply::exec::executed(&report, &command, stderr))
}

/// Runs a command as a call of `tool`, passes its output to `tap`, and adds it to the history.
pub(crate) async fn run_command(
    calls: &ClientCalls,
    tool: &'static str,
    request: ExecRequest,
    tap: Tap,
    context: &Context,
) -> Result<CommandReport, Refused> {
    let client = &calls.client;
    let options = client.exec_options();
    let ExecRequest { args, shell, .. } = request.clone();
    let asked = args.timeout.map(|asked| seconds("timeout", asked)).transpose()?;
    let wall = asked.unwrap_or(options.default_timeout).min(options.max_timeout);
    let cwd = match &args.cwd {
        Some(path) => Cwd::new("working_dir", &client.in_workspace(path.clone()))?,
        None => client.state().working_dir.get(),
    };
    let cwd = Some(cwd.as_str().to_owned());
    let timeout = Some(wall.as_secs_f64());
    let args = ScriptArgs { cwd, timeout, ..args };
    let is_bash = shell == ShellKind::Bash;
    let args = if is_bash { args } else { shell::read_by(shell.name(), args) };
    let run = |turn| client.script(tool, args, turn);
    let mut report = calls.tapped_turn(context, tap, run).await?;
    if asked.is_some_and(|asked| asked > wall) {
        report.clamped = Clamped::Yes;
    }
    client.state().history.add(&report, request);
    Ok(report)
}

/// Runs a script in a fresh cell, as a call of `tool`.
pub(crate) async fn run_script(
    calls: &ClientCalls,
    tool: &'static str,
    args: ScriptArgs,
    context: &Context,
) -> Result<CommandReport, Refused> {
    calls.turn(context, |turn| calls.client.script(tool, args, turn)).await
}

/// Parses the output of a script that ended with 0.
pub(crate) fn parse_output<T>(
    report: &CommandReport,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, Refused> {
    check_exit(report)?;
    let failure = || Refused::failed("the cell's answer was not understood");
    parse(&report.stdout.text).ok_or_else(|| failure().protected_by(report.receipt.clone()))
}

/// Refuses a script that did not end with 0.
pub(crate) fn check_exit(report: &CommandReport) -> Result<(), Refused> {
    let succeeded = report.ended.outcome == (Outcome::Exited { code: 0 });
    if succeeded { Ok(()) } else { Err(failure(report)) }
}

/// Makes the failure of a script that gave no answer: its own message, else its outcome.
pub(crate) fn failure(report: &CommandReport) -> Refused {
    let message = report.stderr.text.trim_end();
    let has_message = matches!(report.ended.outcome, Outcome::Exited { .. }) && !message.is_empty();
    let message = if has_message { message.to_owned() } else { reply::status(report) };
    Refused::failed(message).protected_by(report.receipt.clone())
}
