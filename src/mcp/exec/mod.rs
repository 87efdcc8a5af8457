//! Commands and scripts in fresh cells, for every tool that runs one.
//!
//! Only one directory persists between their calls: the one in which the next call starts.

pub mod arguments;
pub(super) mod reply;
pub mod steps;

use rmcp::model::CallToolResult;

use self::arguments::BashExecArguments;
use super::arguments::Named;
use super::server::Server;
use super::tools::Context;
use capture::tap::Tap;
use model::call::{Cwd, seconds};
use model::outcome::Outcome;
use service::Backend;
use service::refused::Refused;
use service::report::CommandReport;
use service::request::ExecRequest;
use service::shell::{self, ScriptArgs, Shell};

impl<B: Backend> Server<B> {
    pub(super) async fn bash_exec(
        &self,
        ask: ExecRequest,
        context: &Context,
    ) -> Result<CallToolResult, Refused> {
        self.executed(BashExecArguments::TOOL, ask, Tap::default(), context).await
    }

    /// Runs a command as a call of `tool`, passes its output to `tap`, and returns the reference
    /// implementation's fields.
    pub(crate) async fn executed(
        &self,
        tool: &'static str,
        ask: ExecRequest,
        tap: Tap,
        context: &Context,
    ) -> Result<CallToolResult, Refused> {
        let (command, stderr) = (ask.args.command.clone(), ask.stderr);
        let told = self.ran(tool, ask, tap, context).await?;
        Ok(reply::executed(&told, &command, stderr))
    }

    /// Decides, runs and records a command as a call of `tool`; passes its output to `tap`.
    pub(crate) async fn ran(
        &self,
        tool: &'static str,
        ask: ExecRequest,
        tap: Tap,
        context: &Context,
    ) -> Result<CommandReport, Refused> {
        let options = self.0.backend.exec_options();
        let ExecRequest { args, shell, .. } = ask.clone();
        let asked = args.timeout.map(|asked| seconds("timeout", asked)).transpose()?;
        let wall = asked.unwrap_or(options.default_timeout).min(options.max_timeout);
        let cwd = match &args.cwd {
            Some(path) => Cwd::new("working_dir", path)?,
            None => self.0.backend.client().working_dir.get(),
        };
        let (cwd, timeout) = (Some(cwd.as_str().to_owned()), Some(wall.as_secs_f64()));
        let args = ScriptArgs { cwd, timeout, ..args };
        let args = match shell {
            Shell::Bash => args,
            Shell::Sh | Shell::Zsh | Shell::Fish => shell::read_by(shell.name(), args),
        };
        let run = |turn| self.0.backend.script(tool, args, turn);
        let mut told = self.tapped_turn(context, tap, run).await?;
        if asked.is_some_and(|asked| asked > wall) {
            told.clamped = service::report::Clamped::Yes;
        }
        self.0.backend.client().history.add(&told, ask);
        Ok(told)
    }

    /// Runs a script in a fresh cell, as a call of `tool`.
    pub(crate) async fn script(
        &self,
        tool: &'static str,
        args: ScriptArgs,
        context: &Context,
    ) -> Result<CommandReport, Refused> {
        let run = |turn| self.0.backend.script(tool, args, turn);
        self.tapped_turn(context, Tap::default(), run).await
    }
}

/// Parses the output of a script that ended well.
pub(crate) fn read<T>(
    told: &CommandReport,
    of: impl FnOnce(&str) -> Option<T>,
) -> Result<T, Refused> {
    well(told)?;
    let none = || Refused::failed("the cell's answer was not understood");
    of(&told.stdout.text).ok_or_else(|| none().protected_by(told.receipt.clone()))
}

/// Refuses a script that did not end well.
pub(crate) fn well(told: &CommandReport) -> Result<(), Refused> {
    match told.outcome {
        Outcome::Exited { code: 0 } => Ok(()),
        Outcome::Exited { .. }
        | Outcome::Signaled { .. }
        | Outcome::Timeout
        | Outcome::Limit(_)
        | Outcome::Cancelled
        | Outcome::Failed(_) => Err(failed(told)),
    }
}

/// Makes the failure of a script that gave no answer: its own message, else its outcome.
pub(crate) fn failed(told: &CommandReport) -> Refused {
    let said = told.stderr.text.trim_end();
    let message = match (&told.outcome, said) {
        (Outcome::Exited { .. }, said) if !said.is_empty() => said.to_owned(),
        _ => super::reply::status(told),
    };
    Refused::failed(message).protected_by(told.receipt.clone())
}
