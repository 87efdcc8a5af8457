//! The one place in a session's shell: who has it runs a command there.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinHandle;

use super::command::Command;
use model::job::SessionId;
use model::outcome::{Ended, Failure, Outcome, ShellAfter};

/// Streams of commands that have ended, which background processes may still hold. Beyond these
/// the oldest are closed, or commands could use up this process's descriptors.
const MOST_LATE: usize = 32;

/// What is known of a session's shell between commands.
#[derive(Debug)]
pub struct Seat {
    pub id: SessionId,
    /// How the last shell ended, until that is told.
    pub lost: Option<Lost>,
    /// Whether a command has run in the shell that is there.
    pub started: bool,
    /// The directory of the shell; `None` for one that has run nothing.
    pub cwd: Option<String>,
    late: Late,
}

/// Why a shell is no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lost {
    /// With a command, which ended like this.
    Command(Outcome),
    /// It was asked for.
    Restart,
    /// Between two commands.
    Meanwhile,
    /// With the whole session, which nobody used.
    Idle,
}

impl Seat {
    pub fn new(id: SessionId, lost: Option<Lost>) -> Self {
        Self { id, lost, started: false, cwd: None, late: Late::default() }
    }

    /// A command has ended.
    pub fn after(&mut self, told: &Ended) {
        match &told.shell {
            ShellAfter::Kept { cwd } => {
                self.started = true;
                self.cwd = Some(cwd.clone());
            }
            ShellAfter::Ended => self.end(Lost::Command(told.outcome.clone())),
            ShellAfter::None => {
                if told.outcome == Outcome::Failed(Failure::Supervisor) {
                    self.end(Lost::Meanwhile);
                }
            }
        }
    }

    /// The shell is gone.
    pub fn end(&mut self, lost: Lost) {
        self.started = false;
        self.cwd = None;
        self.lost = Some(lost);
    }

    /// A command has started as number `turn` of its shell. What became of the shell before.
    pub fn takes(&mut self, turn: u64) -> Option<Lost> {
        if turn == 1 && self.started {
            // It had ended by itself, between two commands.
            self.end(Lost::Meanwhile);
        }
        self.started = true;
        self.lost.take()
    }

    pub fn late(&self) -> Late {
        self.late.clone()
    }
}

/// Readers of what comes after the ends.
#[derive(Debug, Clone, Default)]
pub struct Late(Arc<Mutex<VecDeque<Reader>>>);

/// A command that has ended, and the task that reads on.
type Reader = (Arc<Command>, JoinHandle<()>);

impl Late {
    pub fn keep(&self, command: Arc<Command>, reader: JoinHandle<()>) {
        let mut readers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|(_, reader)| !reader.is_finished());
        readers.push_back((command, reader));
        while readers.len() > MOST_LATE {
            if let Some((command, reader)) = readers.pop_front() {
                reader.abort();
                command.stdout.close();
                command.stderr.close();
            }
        }
    }
}
