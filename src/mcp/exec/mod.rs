//! Commands and scripts in fresh cells, for every tool that runs one.
//!
//! Only one directory persists between their calls: the one in which the next call starts.

pub(super) mod reply;
pub mod steps;

use rmcp::model::CallToolResult;

use super::arguments::Named;
use super::context::Context;
use super::server::Server;
use super::tools::exec::BashExecArguments;
use model::call::{Cwd, seconds};
use model::outcome::Outcome;
use model::shells::ShellKind;
use service::capture::tap::Tap;
use service::refused::Refused;
use service::report::CommandReport;
use service::request::ExecRequest;
use service::shell::{self, ScriptArgs};

impl Server {
    pub(super) async fn bash_exec(
        &self,
        request: ExecRequest,
        context: &Context,
    ) -> Result<CallToolResult, Refused> {
        self.executed(BashExecArguments::TOOL, request, Tap::default(), context).await
    }

    /// Runs a command as a call of `tool`, passes its output to `tap`, and returns the reference
    /// implementation's fields.
    pub(crate) async fn executed(
        &self,
        tool: &'static str,
        request: ExecRequest,
        tap: Tap,
        context: &Context,
    ) -> Result<CallToolResult, Refused> {
        let command = request.args.command.clone();
        let stderr = request.stderr;
        let report = self.ran(tool, request, tap, context).await?;
        Ok(reply::executed(&report, &command, stderr))
    }

    /// Decides, runs and records a command as a call of `tool`; passes its output to `tap`.
    pub(crate) async fn ran(
        &self,
        tool: &'static str,
        request: ExecRequest,
        tap: Tap,
        context: &Context,
    ) -> Result<CommandReport, Refused> {
        let options = self.0.client.exec_options();
        let ExecRequest { args, shell, .. } = request.clone();
        let asked = args.timeout.map(|asked| seconds("timeout", asked)).transpose()?;
        let wall = asked.unwrap_or(options.default_timeout).min(options.max_timeout);
        let cwd = match &args.cwd {
            Some(path) => Cwd::new("working_dir", path)?,
            None => self.0.client.state().working_dir.get(),
        };
        let cwd = Some(cwd.as_str().to_owned());
        let timeout = Some(wall.as_secs_f64());
        let args = ScriptArgs { cwd, timeout, ..args };
        let args = match shell {
            ShellKind::Bash => args,
            ShellKind::Sh | ShellKind::Zsh | ShellKind::Fish => shell::read_by(shell.name(), args),
        };
        let run = |turn| self.0.client.script(tool, args, turn);
        let mut report = self.tapped_turn(context, tap, run).await?;
        if asked.is_some_and(|asked| asked > wall) {
            report.clamped = service::report::Clamped::Yes;
        }
        self.0.client.state().history.add(&report, request);
        Ok(report)
    }

    /// Runs a script in a fresh cell, as a call of `tool`.
    pub(crate) async fn script(
        &self,
        tool: &'static str,
        args: ScriptArgs,
        context: &Context,
    ) -> Result<CommandReport, Refused> {
        let run = |turn| self.0.client.script(tool, args, turn);
        self.tapped_turn(context, Tap::default(), run).await
    }
}

/// Parses the output of a script that ended with 0.
pub(crate) fn read<T>(
    report: &CommandReport,
    of: impl FnOnce(&str) -> Option<T>,
) -> Result<T, Refused> {
    check_exit(report)?;
    let none = || Refused::failed("the cell's answer was not understood");
    of(&report.stdout.text).ok_or_else(|| none().protected_by(report.receipt.clone()))
}

/// Refuses a script that did not end with 0.
pub(crate) fn check_exit(report: &CommandReport) -> Result<(), Refused> {
    match report.ended.outcome {
        Outcome::Exited { code: 0 } => Ok(()),
        Outcome::Exited { .. }
        | Outcome::Signaled { .. }
        | Outcome::Timeout
        | Outcome::Limit(_)
        | Outcome::Cancelled
        | Outcome::Failed(_) => Err(failed(report)),
    }
}

/// Makes the failure of a script that gave no answer: its own message, else its outcome.
pub(crate) fn failed(report: &CommandReport) -> Refused {
    let said = report.stderr.text.trim_end();
    let message = match (&report.ended.outcome, said) {
        (Outcome::Exited { .. }, said) if !said.is_empty() => said.to_owned(),
        _ => super::reply::status(report),
    };
    Refused::failed(message).protected_by(report.receipt.clone())
}
