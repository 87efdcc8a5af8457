//! Commands that have run, with what is kept of their output, for whoever asks for it later.
//!
//! It is memory of this process and nothing else: bounded, and gone with it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::command::Command;

/// Bytes of output that are kept over all commands.
const MOST_BYTES: u64 = 64 << 20;
/// Commands that are kept.
const MOST_COMMANDS: usize = 256;

/// Commands by their handle, the oldest first.
#[derive(Debug, Default)]
pub struct Spool(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    last: u64,
    commands: VecDeque<Arc<Command>>,
}

impl Spool {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        // No code panics while it holds the lock; if one did, the list is still whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle that no command has had.
    pub fn name(&self) -> String {
        let mut kept = self.kept();
        kept.last += 1;
        format!("c{}", kept.last)
    }

    /// Keeps a command; the oldest that have ended go when there is too much.
    pub fn keep(&self, command: Arc<Command>) {
        let mut kept = self.kept();
        kept.commands.push_back(command);
        while kept.commands.len() > MOST_COMMANDS || bytes(&kept.commands) > MOST_BYTES {
            let ended = |command: &Arc<Command>| command.finished().is_some();
            let Some(oldest) = kept.commands.iter().position(ended) else { return };
            drop(kept.commands.remove(oldest));
        }
    }
}

fn bytes(commands: &VecDeque<Arc<Command>>) -> u64 {
    commands.iter().map(|command| command.stdout.kept_bytes() + command.stderr.kept_bytes()).sum()
}
