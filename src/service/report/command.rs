//! The report of a command, of its streams and of the session in which it ran.

use std::time::Duration;

use serde::Serialize;

use crate::denied::DenialReport;
use crate::session::DEFAULT;
use model::outcome::{Ended, Waits};
use model::receipt::Receipt;

/// Report of one command that got as far as a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandReport {
    /// Its end, as the supervisor reported it.
    pub ended: Ended,
    pub stdout: StreamReport,
    pub stderr: StreamReport,
    pub denials: Vec<DenialReport>,
    /// Directory in which it started, as the cell sees it; for a session, the current directory of
    /// its shell.
    pub cwd: String,
    /// Wall time limit of the call.
    pub timeout: Duration,
    /// `Yes` if the call had asked for more time than this.
    pub clamped: Clamped,
    pub receipt: Option<Receipt>,
    /// Number of lines missing from the audit log, and the reason, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
    /// The handle by which bash_output reads what a reply leaves out.
    pub output_id: Option<String>,
    /// Absent for a fresh cell.
    pub session: Option<SessionReport>,
    /// Limits that the command met, and the place on the host of a program that it did not find.
    pub remarks: Vec<String>,
}

/// Outcome of comparing the asked-for time with the maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clamped {
    No,
    Yes,
}

/// One output stream, made fit for text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamReport {
    /// Head and tail, with a note between them where something is left out.
    pub text: String,
    /// Bytes produced in all.
    pub bytes: u64,
    pub cut: Cut,
}

/// Extent of a stream's text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Cut {
    #[default]
    Whole,
    HeadAndTail,
    /// The rest is read with the next call.
    Part,
}

/// Returns true if a reply has less than both streams.
pub fn are_cut(stdout: &StreamReport, stderr: &StreamReport) -> bool {
    stdout.cut != Cut::Whole || stderr.cut != Cut::Whole
}

/// A command, as a reply reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandState {
    Ended(Box<CommandReport>),
    /// It continues as a job.
    Running(Box<RunningReport>),
}

impl From<CommandReport> for CommandState {
    fn from(report: CommandReport) -> Self {
        Self::Ended(Box::new(report))
    }
}

impl From<RunningReport> for CommandState {
    fn from(running: RunningReport) -> Self {
        Self::Running(Box::new(running))
    }
}

/// What a call without a command does to its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionAction {
    /// Ends its shell; the next command gets a new one.
    Restart,
    /// Ends it with its workspace.
    End,
}

/// The session in which a command ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionReport {
    pub name: String,
    /// Directory in which the command began.
    pub began: String,
    /// Handle of the command's output.
    pub output_id: String,
    pub shell: ShellState,
    pub renewed: Renewed,
}

/// A session or a job that had to end before a command could begin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Renewed {
    /// Reason why the command found a new shell, where there had been another.
    pub shell: Option<String>,
    /// A sentence about each session that was ended to make room for this one.
    pub made_room: Vec<String>,
}

/// State of the shell after a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShellState {
    Kept,
    /// The command runs or ran next to the shell.
    Beside,
    Ended,
    /// The session never had one.
    None,
}

/// A command that continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningReport {
    pub session: SessionReport,
    pub stdout: StreamReport,
    pub stderr: StreamReport,
    pub input: Waits,
    /// `Yes` if it waits for a terminal that it does not have.
    pub terminal: Waits,
    pub elapsed: Duration,
    /// Wall time after which it is interrupted.
    pub timeout: Duration,
    pub receipt: Option<Receipt>,
    /// Names of those among bash_output, bash_input and bash_kill that are of use.
    pub tools: Vec<&'static str>,
}

/// Part of `structuredContent` that describes the session.
#[derive(Debug, Serialize)]
pub struct SessionFields<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    shell: Option<&'static str>,
}

impl SessionFields<'_> {
    /// Returns true if it is not the usual session, or its shell is not the one of before.
    pub(super) fn has_news(&self) -> bool {
        self.id != DEFAULT || self.shell.is_some()
    }
}

impl SessionReport {
    /// Returns its fields, without those that have the usual value.
    pub fn fields(&self) -> SessionFields<'_> {
        let shell = match (self.shell, &self.renewed.shell) {
            (ShellState::Ended, _) => Some("ended"),
            (ShellState::Kept | ShellState::Beside | ShellState::None, Some(_)) => Some("new"),
            (ShellState::Kept | ShellState::Beside | ShellState::None, None) => None,
        };
        SessionFields { id: &self.name, shell }
    }

    /// Describes the effect on the shell of ending a command.
    pub fn killed(&self) -> &'static str {
        match self.shell {
            ShellState::Kept => "it was interrupted and the shell is kept",
            ShellState::Beside => {
                "its process group was ended and the shell is kept; `restart` ends what has left the group"
            }
            ShellState::Ended => "it did not end when it was interrupted, and the shell was killed",
            ShellState::None => "nothing ran",
        }
    }
}
