//! `bash`, carried out: in sessions, through the workbench and the link.

use std::time::Duration;

use super::{Scope, clamped};
use crate::Caller;
use crate::refused::Refused;
use crate::report::{
    BashAnswer, CommandReport, Cut, Renewed, RunningReport, SessionAction, SessionReport,
    ShellState, StreamReport, are_cut, time_text,
};
use crate::request::{BashRequest, CommandInput, SessionCommand, Shown, Wait};
use crate::session::{
    Command, CommandState, Finished, Patience, Reply, Retention, SessionRequest, ShellLoss,
    UnusedSession,
};
use crate::shell::{self, BashArgs};
use capture::deceptive::plain;
use capture::lines::only;
use capture::text::render;
use capture::{Captured, KEPT_BYTES};
use model::job::JobMode;
use model::outcome::{Ended, Outcome, ShellAfter, Waits};

/// Time that a call waits for a command that is to run in the background anyway: long enough to
/// report one that fails at once.
const BACKGROUND: Duration = Duration::from_millis(200);

impl Scope {
    /// Runs a command in the shell of its session.
    pub async fn bash(&self, request: BashRequest, caller: Caller) -> Result<BashAnswer, Refused> {
        let command = match request {
            BashRequest::Run(command) => *command,
            BashRequest::End { session } => {
                self.workbench.end_session(&session, &caller).await?;
                return Ok(BashAnswer::Done { session, what: SessionAction::Ended });
            }
            BashRequest::Restart { session } => {
                self.workbench.restart(&session, &caller).await?;
                return Ok(BashAnswer::Done { session, what: SessionAction::Restarted });
            }
        };
        let SessionCommand { session, shell, restart, args, input, wait, shown } = command;
        let timeout = args.timeout.or(self.executor.default_timeout);
        let mut call = shell::bash(BashArgs { timeout, ..args })?;
        call.stdin = match input {
            CommandInput::Terminal => call.stdin.at_terminal(),
            CommandInput::Open => call.stdin.open(),
            CommandInput::Given => call.stdin,
        };
        let (patience, mode) = match wait {
            Wait::Background => (Patience::Until(BACKGROUND), JobMode::Background),
            Wait::Foreground => (Patience::Until(self.executor.yield_after), JobMode::Foreground),
            Wait::Beyond => (Patience::Beyond(self.executor.yield_after), JobMode::Foreground),
        };
        let kept = Retention::Spooled;
        let request = SessionRequest { session, call, restart, patience, kept, mode, shell };
        let reply = self.workbench.in_session(request, &caller).await?;
        Ok(self.answer(reply, shown))
    }

    fn answer(&self, reply: Reply, show: Shown) -> BashAnswer {
        let Reply { state, finished, session, began, lost, made_room, limits, clamped: less } =
            reply;
        let made_room = made_room.iter().map(why_ended).collect();
        let renewed = Renewed { shell: lost.as_ref().map(why_new), made_room };
        let (command, outcome) = match (state, finished) {
            (CommandState::Started(command), Some(finished)) => {
                let streams = printed(&command, show);
                return self.ended(&command, finished, renewed, streams).into();
            }
            (CommandState::Started(command), None) => {
                return self.running(&command, renewed, printed(&command, show)).into();
            }
            (CommandState::Never(outcome), _) => (Captured::new(KEPT_BYTES), outcome),
        };
        let ended = Ended { outcome, ..Ended::failed(model::outcome::Failure::Lost) };
        let session = SessionReport {
            name: session,
            began: harmless(&began),
            output_id: String::new(),
            shell: ShellState::None,
            renewed,
        };
        let (stdout, stderr) = shown(&command, &command, show);
        CommandReport {
            absent_program: None,
            outcome: ended.outcome,
            stdout,
            stderr,
            usage: ended.usage,
            denials: Vec::new(),
            cwd: "/workspace".to_owned(),
            timeout: limits.wall,
            clamped: clamped(less),
            receipt: None,
            timings: ended.timings,
            unrecorded: self.workbench.audit.trouble(),
            output_id: None,
            session: Some(session),
            files_changed: None,
            network: None,
        }
        .into()
    }

    pub(super) fn ended(
        &self,
        command: &Command,
        finished: Finished,
        renewed: Renewed,
        (stdout, stderr): (StreamReport, StreamReport),
    ) -> CommandReport {
        let Finished { ended, .. } = finished;
        let cut = are_cut(&stdout, &stderr);
        let (shell, cwd) = match ended.shell {
            _ if command.session.is_none() => (ShellState::None, command.began.clone()),
            ShellAfter::Kept { cwd } => (ShellState::Kept, harmless(&cwd)),
            ShellAfter::Beside => (ShellState::Beside, harmless(&command.began)),
            ShellAfter::Ended | ShellAfter::None => (ShellState::Ended, "/workspace".to_owned()),
        };
        CommandReport {
            absent_program: self.executor.host_programs.remark(&ended.outcome, &stderr),
            outcome: ended.outcome,
            stdout,
            stderr,
            usage: ended.usage,
            denials: ended.denials.iter().map(|denied| self.denial(denied)).collect(),
            cwd,
            timeout: command.limits.wall,
            clamped: clamped(command.clamped),
            receipt: Some(command.receipt.clone()),
            timings: ended.timings,
            unrecorded: self.workbench.audit.trouble(),
            output_id: (cut && self.lists("bash_output")).then(|| command.id.clone()),
            session: command
                .session
                .is_some()
                .then(|| self.session_report(command, shell, renewed)),
            files_changed: ended.files_changed,
            network: ended.network,
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
            receipt: Some(command.receipt.clone()),
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

/// Describes in a reply a session that was ended for another.
fn why_ended(session: &UnusedSession) -> String {
    format!(
        "the session `{}` was ended to make room, as nothing ran in it for {}; its variables, /tmp and a \
         private /workspace are gone",
        session.name,
        time_text(session.unused)
    )
}

/// Explains in a reply why there is a new shell.
pub(super) fn why_new(lost: &ShellLoss) -> String {
    let kept = "/workspace is as it was, nothing else is";
    match lost {
        ShellLoss::Command(Outcome::Exited { code }) => {
            format!("the last one ended with exit {code}; {kept}")
        }
        ShellLoss::Command(
            Outcome::Signaled { .. }
            | Outcome::Timeout
            | Outcome::Limit(_)
            | Outcome::Cancelled
            | Outcome::Failed(_),
        ) => format!("the last one was killed with its command; {kept}"),
        ShellLoss::Restart => format!("it was asked for; {kept}"),
        ShellLoss::Meanwhile => format!("the last one had ended between two calls; {kept}"),
        ShellLoss::Room => {
            "the session had been ended to make room for another, as it was unused for \
                            longest; its variables, /tmp and a private /workspace are gone"
                .to_owned()
        }
        ShellLoss::Idle => {
            "the session had ended, as nobody used it; a private /workspace is empty".to_owned()
        }
    }
}
