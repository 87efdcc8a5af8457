//! Shell sessions: commands that share a shell, each seen to its end, or left to run as a job.
//!
//! A session is a name of the caller's and a number of ours. The supervisor keeps its shell; here
//! is who may run what in it, when, and what came of it. Names are those of one principal: a
//! server that has several keeps a [`Sessions`] for each.

mod asking;
mod command;
mod feed;
mod jobs;
mod run;
mod seat;
mod spool;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex;

pub use command::{Command, Finished};
pub use feed::{Eof, Fed, Rest, Shut};
pub use jobs::{NoJob, Offsets, Stop};
use model::call::Call;
use model::job::{Limits, SessionId};
use model::outcome::Outcome;
pub use seat::Lost;
use seat::Seat;
use spool::Spool;

/// The session of a call that names none.
pub const DEFAULT: &str = "default";
/// Longest name of a session.
const NAME_BYTES: usize = 64;
/// Names that are remembered after their sessions have ended.
const MOST_IDLE: usize = 256;
/// Characters of a command that are shown where jobs are listed.
const SHOWN_CHARACTERS: usize = 120;

/// Why a command has no place in its session. Nothing ran.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unseated {
    #[error(
        "`session` must be 1 to {NAME_BYTES} letters, digits, `.`, `_` or `-`\nhint: leave it out \
         for the session `{DEFAULT}`"
    )]
    Name,
    #[error(
        "the session `{session}` runs job {job}\nhint: use another `session`, or end it \
         with `restart`"
    )]
    Runs { session: String, job: String },
    #[error("the call was cancelled while it waited for the session")]
    Cancelled,
}

/// A command as it was asked for.
#[derive(Debug)]
pub struct Ask {
    pub session: String,
    pub call: Call,
    /// Whether the shell ends first.
    pub restart: Restart,
    /// How long the caller waits before the command becomes a job; `None`: to its end.
    pub patience: Option<Duration>,
    pub kept: Kept,
}

/// What becomes of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It can be read later, by its handle.
    Spooled,
    /// So much of it is for the caller alone: it is what a program of ours answers.
    Apart { bytes: usize },
}

/// Whether a session gets a new shell first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Restart {
    #[default]
    No,
    Yes,
}

/// A command that was started or failed to.
#[derive(Debug)]
pub struct Reply {
    pub state: State,
    /// How it ended, unless it goes on as a job.
    pub finished: Option<Finished>,
    pub session: String,
    /// The directory in which it began.
    pub began: String,
    /// What became of the shell before, if this command found a new one.
    pub lost: Option<Lost>,
    pub limits: Limits,
    pub clamped: bool,
}

/// How far a command got.
#[derive(Debug)]
pub enum State {
    /// It has a shell: it runs, or has ended ([`Command::finished`]).
    Started(Arc<Command>),
    /// It never had one: it failed, or was taken back.
    Never(Outcome),
}

/// The sessions of one principal, by name.
#[derive(Debug, Default)]
pub struct Sessions {
    table: Lock<Table>,
    pub(super) spool: Spool,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    /// Names of sessions that ended because nobody used them.
    idle: BTreeSet<String>,
    named: BTreeMap<String, Named>,
}

#[derive(Debug, Clone)]
struct Named {
    id: SessionId,
    seat: Arc<Mutex<Seat>>,
    /// The command that has the seat.
    runs: Option<Arc<Command>>,
    /// Whether a new shell was asked for since the last command.
    restarted: Arc<AtomicBool>,
    /// Whether calls beside the shell use its workspace, so that it is kept without a shell too.
    beside: bool,
}

impl Sessions {
    fn table(&self) -> MutexGuard<'_, Table> {
        // No code panics while it holds the lock; if one did, the table is still whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session of this name, new where there is none.
    fn named(&self, name: &str) -> Named {
        let mut table = self.table();
        if let Some(named) = table.named.get(name) {
            return named.clone();
        }
        table.last += 1;
        let lost = table.idle.remove(name).then_some(Lost::Idle);
        let named = Named::new(SessionId(table.last), lost);
        table.named.insert(name.to_owned(), named.clone());
        named
    }

    /// The session of this name, where there is one.
    fn find(&self, name: &str) -> Option<Named> {
        self.table().named.get(name).cloned()
    }

    /// Lets go of sessions that the supervisor has ended.
    fn forget(&self, ended: &[SessionId]) {
        let mut table = self.table();
        let gone = |named: &Named| ended.contains(&named.id);
        let names: Vec<String> = table
            .named
            .iter()
            .filter(|(_, named)| gone(named))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            table.named.remove(&name);
            // What is told of names that do not come back is not kept for ever.
            if table.idle.len() < MOST_IDLE {
                table.idle.insert(name);
            }
        }
    }

    /// A session that never had a shell leaves no trace.
    fn never_was(&self, name: &str) {
        let mut table = self.table();
        if table.named.get(name).is_some_and(|named| !named.beside) {
            table.named.remove(name);
        }
    }

    fn is_used_beside(&self, name: &str) {
        if let Some(named) = self.table().named.get_mut(name) {
            named.beside = true;
        }
    }

    fn runs(&self, name: &str, command: &Arc<Command>) {
        if let Some(named) = self.table().named.get_mut(name) {
            named.runs = Some(Arc::clone(command));
        }
    }

    /// Every session that has had a command, with the job that runs in it.
    pub fn list(&self) -> Vec<(String, Option<Arc<Command>>)> {
        let table = self.table();
        let running = |named: &Named| {
            named.runs.as_ref().filter(|command| command.finished().is_none()).cloned()
        };
        table.named.iter().map(|(name, named)| (name.clone(), running(named))).collect()
    }
}

impl Named {
    fn new(id: SessionId, lost: Option<Lost>) -> Self {
        Self {
            id,
            seat: Arc::new(Mutex::new(Seat::new(id, lost))),
            runs: None,
            restarted: Arc::default(),
            beside: false,
        }
    }
}

/// Whether a name can be a session's.
pub fn check_name(name: &str) -> Result<(), Unseated> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match (1..=NAME_BYTES).contains(&name.len()) && name.chars().all(fits) {
        true => Ok(()),
        false => Err(Unseated::Name),
    }
}
