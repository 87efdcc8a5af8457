//! The state of a session's shell between commands: the command that holds its lock runs there.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinHandle;

use crate::capture::stream::Stream;
use model::job::SessionId;
use model::outcome::{Ended, Failure, Outcome, ShellAfter};

/// Streams of ended commands, which background processes may still hold. Beyond this number the
/// oldest are closed, or commands could use up this process's descriptors.
const MAX_DRAINING: usize = 32;

/// State of a session's shell between commands.
#[derive(Debug)]
pub struct SessionState {
    pub id: SessionId,
    /// End of the last shell, until it is reported.
    pub lost: Option<ShellLoss>,
    /// True if a command has run in the present shell.
    pub started: bool,
    /// Directory of the shell; `None` for one that has run nothing.
    pub cwd: Option<String>,
    draining: DrainingCommands,
}

/// Reason why a shell has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShellLoss {
    /// A command ended like this, and the shell with it.
    Command(Outcome),
    /// The client asked for a new shell.
    Restart,
    /// The shell ended between two commands.
    Meanwhile,
    /// The supervisor ended the unused session.
    Idle,
    /// The session was ended to make room for another session, of this client or of another.
    Room,
}

impl SessionState {
    pub fn new(id: SessionId, lost: Option<ShellLoss>) -> Self {
        Self { id, lost, started: false, cwd: None, draining: DrainingCommands::default() }
    }

    /// Records the end of a command.
    pub(crate) fn record_end(&mut self, end: &Ended) {
        match &end.shell {
            ShellAfter::Kept { cwd } => {
                self.started = true;
                self.cwd = Some(cwd.clone());
            }
            // It had no part in the shell.
            ShellAfter::Beside => {}
            ShellAfter::Ended => self.end(ShellLoss::Command(end.outcome.clone())),
            ShellAfter::None => {
                if end.outcome == Outcome::Failed(Failure::Supervisor) {
                    self.end(ShellLoss::Meanwhile);
                }
            }
        }
    }

    /// Records the end of the shell.
    pub fn end(&mut self, lost: ShellLoss) {
        self.started = false;
        self.cwd = None;
        self.lost = Some(lost);
    }

    /// Records the start of command number `turn` of its shell. Returns the end of the previous
    /// shell.
    pub(crate) fn start_command(&mut self, turn: u64) -> Option<ShellLoss> {
        if turn == 1 && self.started {
            // The shell had ended by itself, between two commands.
            self.end(ShellLoss::Meanwhile);
        }
        self.started = true;
        self.lost.take()
    }

    pub(crate) fn draining(&self) -> DrainingCommands {
        self.draining.clone()
    }
}

/// Commands that have ended, whose output is still read for their background processes.
#[derive(Debug, Clone, Default)]
pub struct DrainingCommands(Arc<Mutex<VecDeque<DrainingCommand>>>);

/// Streams of a command that has ended, and the task that reads on.
#[derive(Debug)]
pub struct DrainingCommand {
    pub stdout: Arc<Stream>,
    pub stderr: Arc<Stream>,
    pub task: JoinHandle<()>,
}

impl DrainingCommands {
    /// Keeps a command, and closes the streams of the oldest ones beyond the limit.
    pub fn keep(&self, command: DrainingCommand) {
        let mut commands = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        commands.retain(|command| !command.task.is_finished());
        commands.push_back(command);
        while commands.len() > MAX_DRAINING {
            if let Some(oldest) = commands.pop_front() {
                oldest.task.abort();
                oldest.stdout.close();
                oldest.stderr.close();
            }
        }
    }
}
