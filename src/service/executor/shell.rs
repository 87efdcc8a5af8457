//! Runs commands, in the shell of a session or in a fresh cell, and makes their reports.

use std::sync::Arc;

use super::Scope;
use crate::apart::{ApartRun, FileOut};
use crate::capture::Captured;
use crate::capture::deceptive::plain;
use crate::capture::lines::{Wanted, only};
use crate::capture::text::render;
use crate::denied::DenialReport;
use crate::met_limits;
use crate::refused::Refused;
use crate::report::{
    CommandReport, CommandState, Cut, Renewed, RunningReport, SessionAction, SessionReport,
    ShellState, StreamReport, are_cut,
};
use crate::request::{SessionCommand, Shown};
use crate::session::Command;
use crate::shell::{self, ScriptArgs};
use crate::workbench::RunOptions;
use crate::{Caller, Report};
use config::policy::tools::{Runs, ToolSpec};
use model::defaults::INLINE_CHARACTERS;
use model::job::{JobMode, Limits, ProfileName, Workspace};
use model::outcome::{DeniedCall, Ended, ShellAfter, Waits};

impl Scope {
    /// Runs a command in the shell of its session, and returns its report with the output that is to be shown.
    ///
    /// # Errors
    /// A denial by policy, or a session that cannot take the command: nothing ran.
    pub async fn bash(
        &self,
        mut command: SessionCommand,
        show: Shown,
        caller: Caller,
    ) -> Result<CommandState, Refused> {
        let asked = &mut command.call.asked;
        asked.wall = asked.wall.or(self.workbench.terms.default_timeout);
        let (command, renewed) = self.workbench.in_session(command, &caller).await?;
        let (stdout, stderr) = command.output();
        Ok(self.state_of(&command, renewed, shown(&stdout, &stderr, show)))
    }

    /// Restarts the shell of a session, or ends the session.
    ///
    /// # Errors
    /// A name that no session has or can have.
    pub async fn change_session(
        &self,
        session: &str,
        action: SessionAction,
        caller: Caller,
    ) -> Result<(), Refused> {
        match action {
            SessionAction::Restart => self.workbench.restart(session, &caller).await?,
            SessionAction::End => self.workbench.end_session(session, &caller).await?,
        }
        Ok(())
    }

    /// Makes the report of a command that has ended, or that runs.
    pub(super) fn state_of(
        &self,
        command: &Command,
        renewed: Renewed,
        streams: (StreamReport, StreamReport),
    ) -> CommandState {
        match command.finished() {
            Some(ended) => self.ended_report(command, ended, renewed, streams).into(),
            None => self.running_report(command, renewed, streams).into(),
        }
    }

    /// Runs a script in a fresh cell, as a call of `tool`.
    pub async fn script(
        &self,
        tool: &'static str,
        args: ScriptArgs,
        caller: Caller,
    ) -> Result<CommandReport, Refused> {
        let call = shell::script(tool, args)?;
        let named = call.profile.clone();
        let context = match ToolSpec::named(tool).map(|tool| tool.runs) {
            Some(Runs::FreshCell(_)) => self.workbench.in_default_workspace(&call),
            Some(Runs::EmptyCell | Runs::Server | Runs::Calculator | Runs::Session) | None => {
                self.workbench.job_context(&call.tool)
            }
        };
        let options = self.workbench.options(context);
        let report = self.workbench.run(call, options, &caller).await?;
        Ok(self.fresh_cell_report(report, named.as_ref()))
    }

    /// Runs a command in a new directory, and returns the files of it that were asked for.
    ///
    /// # Errors
    /// A refusal: nothing ran.
    pub async fn apart(
        &self,
        tool: &'static str,
        asked: ApartRun,
        caller: Caller,
    ) -> Result<(CommandReport, Vec<FileOut>), Refused> {
        let id = fresh_id().ok_or_else(|| Refused::failed("no random bytes"))?;
        let asked = asked.wrapped(&id, self.workbench.shared.workspace == Workspace::Fresh);
        let call = shell::script(tool, asked.args.clone())?;
        let named = call.profile.clone();
        let options = self.workbench.options(self.workbench.job_context(&call.tool));
        let options = RunOptions { keep: asked.kept(), ..options };
        let report = self.workbench.run(call, options, &caller).await?;
        let (stdout, files) = asked.parted(&report.stdout);
        let report = Report { stdout, ..report };
        Ok((self.fresh_cell_report(report, named.as_ref()), files))
    }

    /// Makes the report of a call that ended, under the profile that it named.
    fn fresh_cell_report(&self, report: Report, named: Option<&ProfileName>) -> CommandReport {
        let named = named.and_then(|name| self.workbench.terms.loaded.profiles.get(name));
        let denial = |denied: &DeniedCall| match named {
            Some(profile) => DenialReport::of(denied, profile),
            None => self.denial(denied),
        };
        let show = Shown { characters: INLINE_CHARACTERS, lines: Wanted::default() };
        let (stdout, stderr) = shown(&report.stdout, &report.stderr, show);
        let readable = are_cut(&stdout, &stderr) && self.lists("bash_output");
        let output_id = readable.then(|| self.workbench.keep(&report)).flatten();
        CommandReport {
            remarks: self.remarks(&report.ended, &stderr, &report.limits),
            stdout,
            stderr,
            denials: report.ended.denials.iter().map(denial).collect(),
            cwd: report.cwd,
            timeout: report.limits.wall,
            clamped: report.clamped,
            receipt: report.receipt,
            unrecorded: self.workbench.audit.trouble(),
            output_id,
            session: None,
            ended: report.ended,
        }
    }

    /// Makes the report of a command that has ended.
    fn ended_report(
        &self,
        command: &Command,
        ended: Arc<Ended>,
        renewed: Renewed,
        (stdout, stderr): (StreamReport, StreamReport),
    ) -> CommandReport {
        let ended = Arc::unwrap_or_clone(ended);
        let cut = are_cut(&stdout, &stderr);
        let new_shell = || "/workspace".to_owned();
        let (shell, cwd) = match &ended.shell {
            _ if command.session.is_none() => (ShellState::None, command.began.clone()),
            _ if command.receipt.is_none() => (ShellState::None, new_shell()),
            ShellAfter::Kept { cwd } => (ShellState::Kept, harmless(cwd)),
            ShellAfter::Beside => (ShellState::Beside, harmless(&command.began)),
            ShellAfter::Ended | ShellAfter::None => (ShellState::Ended, new_shell()),
        };
        let session = command.session.is_some();
        CommandReport {
            remarks: self.remarks(&ended, &stderr, &command.limits),
            stdout,
            stderr,
            denials: ended.denials.iter().map(|denied| self.denial(denied)).collect(),
            cwd,
            timeout: command.limits.wall,
            clamped: command.clamped,
            receipt: command.receipt.clone(),
            unrecorded: self.workbench.audit.trouble(),
            output_id: (cut && self.lists("bash_output")).then(|| command.id.clone()),
            session: session.then(|| self.session_report(command, shell, renewed)),
            ended,
        }
    }

    /// Returns remarks on what the command met.
    fn remarks(&self, ended: &Ended, stderr: &StreamReport, limits: &Limits) -> Vec<String> {
        let mut remarks = met_limits::remarks(ended, &stderr.text, limits);
        remarks.extend(self.workbench.shared.host_programs.remark(&ended.outcome, stderr));
        remarks
    }

    fn session_report(
        &self,
        command: &Command,
        shell: ShellState,
        renewed: Renewed,
    ) -> SessionReport {
        let name = command.session.clone().unwrap_or_default();
        let output_id = command.id.clone();
        let began = harmless(&command.began);
        SessionReport { name, began, output_id, shell, renewed }
    }

    /// Makes the report of a command that runs.
    fn running_report(
        &self,
        command: &Command,
        renewed: Renewed,
        (stdout, stderr): (StreamReport, StreamReport),
    ) -> RunningReport {
        let shell = match command.mode {
            JobMode::Foreground => ShellState::Kept,
            JobMode::Background => ShellState::Beside,
        };
        RunningReport {
            session: self.session_report(command, shell, renewed),
            stdout,
            stderr,
            input: if command.waits_for_input() { Waits::Yes } else { Waits::No },
            terminal: if command.waits_for_terminal() { Waits::Yes } else { Waits::No },
            elapsed: command.started.elapsed(),
            timeout: command.limits.wall,
            receipt: command.receipt.clone(),
            tools: ["bash_output", "bash_input", "bash_kill"]
                .into_iter()
                .filter(|name| *name != "bash_input" || command.input.is_open())
                .filter(|name| self.lists(name))
                .collect(),
        }
    }
}

/// Returns both streams as a reply shows them.
pub(super) fn shown(
    stdout: &Captured,
    stderr: &Captured,
    show: Shown,
) -> (StreamReport, StreamReport) {
    let text = render(stdout, stderr, show.characters);
    let stream = |whole: String, captured: &Captured| {
        let (whole, lines_left) = only(whole, show.lines);
        let cut = if text.truncated || lines_left { Cut::HeadAndTail } else { Cut::Whole };
        StreamReport { text: whole, bytes: captured.total(), cut }
    };
    (stream(text.stdout.clone(), stdout), stream(text.stderr.clone(), stderr))
}

/// Removes control characters from a path that the shell reports.
fn harmless(path: &str) -> String {
    plain(path)
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect()
}

/// Returns a random word.
fn fresh_id() -> Option<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
