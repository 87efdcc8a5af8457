//! Sentences about a command that its other fields do not say, for every front door.

use super::{
    Clamped, CommandReport, Cut, Renewed, RunningReport, SessionAction, SessionReport, ShellState,
    fields::signal_name, network, time_text,
};
use crate::denied::DenialReport;
use crate::session::{ShellLoss, UnusedSession};
use model::outcome::{Outcome, Waits};
use model::receipt::Receipt;

impl CommandReport {
    /// Returns the reason why the command did not end by itself. An exit and a signal are data.
    pub fn error(&self) -> Option<String> {
        match &self.ended.outcome {
            Outcome::Exited { .. } | Outcome::Signaled { .. } => None,
            Outcome::Failed(failure) => Some(failure.to_string()),
            Outcome::Timeout | Outcome::Limit(_) | Outcome::Cancelled => {
                let killed =
                    self.session.as_ref().map_or("the cell was killed", SessionReport::killed);
                Some(format!("{}; {killed}", self.end()))
            }
        }
    }

    /// Returns the way out of a failure.
    pub fn hint(&self) -> Option<&str> {
        let Outcome::Failed(failure) = &self.ended.outcome else { return None };
        failure.hint()
    }

    /// Describes how the command ended, and after how long.
    pub fn end(&self) -> String {
        let took = time_text(self.ended.usage.wall);
        match &self.ended.outcome {
            Outcome::Exited { code } => format!("exit {code} in {took}"),
            Outcome::Signaled { signal } => {
                format!("ended by {} after {took}", signal_name(*signal))
            }
            Outcome::Timeout => format!("timed out after {}", time_text(self.timeout)),
            Outcome::Limit(kind) => {
                format!("limit reached: {} after {took}", kind.name().replace('_', " "))
            }
            Outcome::Cancelled => format!("cancelled after {took}"),
            Outcome::Failed(failure) => format!("failed: {failure}"),
        }
    }

    /// Returns remarks about the limits, the output, the shell and the workspace.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.clamped == Clamped::Yes {
            let limit = time_text(self.timeout);
            notes.push(format!("time limit {limit}, which is less than was asked for"));
        }
        let is_cut = [&self.stdout, &self.stderr].iter().any(|one| one.cut == Cut::HeadAndTail);
        if let (true, Some(id)) = (is_cut, &self.output_id) {
            notes.push(format!("bash_output with output_id {id} reads the rest of the output"));
        }
        let session = self.session.iter().flat_map(|session| session.notes(&self.ended.outcome));
        notes.extend(session);
        notes.extend(self.remarks.iter().cloned());
        notes.extend(self.unguarded());
        notes
    }

    /// Returns the reasons of denials, which the lines of a text have too.
    pub fn denial_notes(&self) -> impl Iterator<Item = String> {
        self.denials.iter().filter_map(DenialReport::note)
    }

    /// Returns what was denied, with the grants, and all remarks: for a reply without other fields for them.
    pub fn reasons(&self) -> Vec<String> {
        let calls = self.denials.iter().map(DenialReport::line);
        let hosts = self.ended.network.iter().flat_map(network::denials);
        calls.chain(hosts).map(without_brackets).chain(self.notes()).collect()
    }

    /// Returns the remark that the workspace is not guarded in full.
    pub fn unguarded(&self) -> Option<String> {
        let places = self.receipt.as_ref().and_then(Receipt::unguarded)?;
        Some(format!(
            "the workspace is not guarded in full: {places}; `cofferdam doctor` in it has the remedy"
        ))
    }
}

/// Returns a line of a reply's text without its brackets.
pub fn without_brackets(line: String) -> String {
    let inner = line.strip_prefix('[').and_then(|line| line.strip_suffix(']'));
    inner.map_or_else(|| line.clone(), str::to_owned)
}

impl RunningReport {
    /// Returns remarks about the job, its input and its session.
    pub fn notes(&self) -> Vec<String> {
        let SessionReport { name, output_id, .. } = &self.session;
        let mut notes = Vec::new();
        if self.input == Waits::Yes {
            notes.push("it waits for input".to_owned());
        }
        if self.terminal == Waits::Yes {
            notes.push(
                "it waits for a terminal and has none; `tty: true` gives a command one".to_owned(),
            );
        }
        notes.push(match self.session.shell {
            ShellState::Beside => format!(
                "the session `{name}` is free, and in the same cell: it reaches the job's ports and \
                 files"
            ),
            ShellState::Kept | ShellState::Ended | ShellState::None => format!(
                "the session `{name}` is busy until it ends; `restart` ends it; another session is \
                 free"
            ),
        });
        if !self.tools.is_empty() {
            notes.push(format!("with job {output_id}: {}", self.tools.join(", ")));
        }
        notes.extend(self.session.notes(&Outcome::Timeout));
        notes
    }
}

impl SessionReport {
    /// Returns remarks about the shell.
    pub fn notes(&self, outcome: &Outcome) -> Vec<String> {
        let renewed = self.renewed.shell.as_ref().map(|why| format!("a new shell: {why}"));
        let has_ended = self.shell == ShellState::Ended && !matches!(outcome, Outcome::Failed(_));
        let ended = "the shell has ended; the next call starts a new one".to_owned();
        let made_room = self.renewed.made_room.iter().cloned();
        renewed.into_iter().chain(made_room).chain(has_ended.then_some(ended)).collect()
    }
}

impl SessionAction {
    /// Describes what it did.
    pub fn note(self, session: &str) -> String {
        match self {
            Self::Restart => format!(
                "session `{session}`: the shell and all that ran in it has ended; the next call \
                 starts a new one, in the same /workspace"
            ),
            Self::End => format!(
                "session `{session}` has ended with all that ran in it; a /workspace of its own is gone, \
                 a granted one stays; the next call with this name begins a new session"
            ),
        }
    }
}

impl Renewed {
    /// Describes the end of the previous shell, and of sessions that were ended to make room.
    pub(crate) fn of(lost: Option<&ShellLoss>, made_room: &[UnusedSession]) -> Self {
        Self { shell: lost.map(why_new), made_room: made_room.iter().map(why_ended).collect() }
    }
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
fn why_new(lost: &ShellLoss) -> String {
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
