//! Commands that have run, with the kept part of their output, for later calls.
//!
//! The output is kept in this process's memory: bounded, and lost when the process ends.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::command::Command;

/// Bytes of output that are kept over all commands.
const MAX_BYTES: u64 = 64 << 20;
const KEPT_MIB: u64 = MAX_BYTES >> 20;
/// Number of commands that are kept.
const MAX_COMMANDS: usize = 256;

/// Reason why there is no job to inspect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoJob {
    #[error("there is no job `{0}`")]
    Unknown(String),
    #[error("the output of `{0}` is forgotten")]
    Forgotten(String),
}

impl NoJob {
    /// Returns the way to a job that exists.
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::Unknown(_) => "bash_jobs lists them".to_owned(),
            Self::Forgotten(_) => format!(
                "that of the last {MAX_COMMANDS} commands is kept, and at most {KEPT_MIB} MiB"
            ),
        }
    }
}

/// Commands by their handle, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Spool(Mutex<KeptCommands>);

#[derive(Debug, Default)]
struct KeptCommands {
    last: u64,
    commands: VecDeque<Arc<Command>>,
    /// Bytes that the commands hold, or more: those of each are added up only where it passes [`MAX_BYTES`].
    bound: u64,
}

impl Spool {
    fn kept(&self) -> MutexGuard<'_, KeptCommands> {
        // No code panics while it holds the lock; if one did, the list is still whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a handle that no command has had.
    pub(crate) fn name(&self) -> String {
        let mut kept = self.kept();
        kept.last += 1;
        format!("c{}", kept.last)
    }

    /// Returns the command of this handle.
    ///
    /// # Errors
    /// An unknown handle, or one that is no longer kept.
    pub(crate) fn find(&self, id: &str) -> Result<Arc<Command>, NoJob> {
        let kept = self.kept();
        if let Some(command) = kept.commands.iter().find(|command| command.id == id) {
            return Ok(Arc::clone(command));
        }
        let number = id.strip_prefix('c').and_then(|number| number.parse::<u64>().ok());
        let shown: String = id.chars().take(40).flat_map(char::escape_default).collect();
        Err(match number {
            Some(number) if (1..=kept.last).contains(&number) => NoJob::Forgotten(shown),
            Some(_) | None => NoJob::Unknown(shown),
        })
    }

    /// Returns the commands that became jobs, the newest first.
    pub(crate) fn jobs(&self) -> Vec<Arc<Command>> {
        let kept = self.kept();
        kept.commands.iter().rev().filter(|command| command.is_job()).cloned().collect()
    }

    /// Keeps a command, and drops the oldest ended ones beyond the limits.
    pub(crate) fn keep(&self, command: Arc<Command>) {
        let mut kept = self.kept();
        kept.bound = kept.bound.saturating_add(max_bytes(&command));
        kept.commands.push_back(command);
        while kept.commands.len() > MAX_COMMANDS || kept.is_beyond_bytes() {
            let ended = |command: &Arc<Command>| command.is_over();
            let Some(oldest) = kept.commands.iter().position(ended) else { return };
            if let Some(dropped) = kept.commands.remove(oldest) {
                kept.bound = kept.bound.saturating_sub(max_bytes(&dropped));
            }
        }
    }
}

impl KeptCommands {
    fn is_beyond_bytes(&mut self) -> bool {
        if self.bound <= MAX_BYTES {
            return false;
        }
        self.bound = self.commands.iter().map(|command| max_bytes(command)).sum();
        let held =
            |command: &Arc<Command>| command.stdout.kept_bytes() + command.stderr.kept_bytes();
        self.commands.iter().map(held).sum::<u64>() > MAX_BYTES
    }
}

/// Returns the bytes that a command may come to hold.
fn max_bytes(command: &Command) -> u64 {
    command.stdout.max_bytes() + command.stderr.max_bytes()
}
