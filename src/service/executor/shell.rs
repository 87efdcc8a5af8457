//! `bash`, carried out: in sessions, through the workbench and the link.

use std::sync::Arc;

use super::Scope;
use crate::Caller;
use crate::capture::Captured;
use crate::capture::deceptive::plain;
use crate::capture::lines::only;
use crate::capture::text::render;
use crate::refused::Refused;
use crate::report::{
    BashAnswer, CommandReport, Cut, Renewed, RunningReport, SessionAction, SessionReport,
    ShellState, StreamReport, are_cut,
};
use crate::request::{BashRequest, Shown};
use crate::session::Command;
use model::job::JobMode;
use model::outcome::{Ended, ShellAfter, Waits};

impl Scope {
    /// Runs a command in the shell of its session.
    pub async fn bash(&self, request: BashRequest, caller: Caller) -> Result<BashAnswer, Refused> {
        match request {
            BashRequest::Run { mut command, shown } => {
                let asked = &mut command.call.asked;
                asked.wall = asked.wall.or(self.workbench.terms.default_timeout);
                let (command, renewed) = self.workbench.in_session(*command, &caller).await?;
                let streams = printed(&command, shown);
                Ok(match command.finished() {
                    Some(ended) => self.ended(&command, ended, renewed, streams).into(),
                    None => self.running(&command, renewed, streams).into(),
                })
            }
            BashRequest::End { session } => {
                self.workbench.end_session(&session, &caller).await?;
                Ok(BashAnswer::Done { session, what: SessionAction::Ended })
            }
            BashRequest::Restart { session } => {
                self.workbench.restart(&session, &caller).await?;
                Ok(BashAnswer::Done { session, what: SessionAction::Restarted })
            }
        }
    }

    pub(super) fn ended(
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
            absent_program: self.workbench.shared.host_programs.remark(&ended.outcome, &stderr),
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

    pub(super) fn running(
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

/// Returns the output of a command before its end, as a reply shows it.
fn printed(command: &Command, show: Shown) -> (StreamReport, StreamReport) {
    let (stdout, stderr) = command.output();
    shown(&stdout, &stderr, show)
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
