//! Processor time of a session's shell, from the counts of its init.

use std::time::Duration;

use cell::report::InitCounters;

/// Processor time of processes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CpuTime {
    pub user: Duration,
    pub system: Duration,
}

impl CpuTime {
    /// Returns the time of the processes that init has counted.
    pub(crate) fn counted(counts: &InitCounters) -> Self {
        Self {
            user: Duration::from_micros(counts.user_us),
            system: Duration::from_micros(counts.system_us),
        }
    }

    /// Adds the time of other processes.
    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { user: self.user + other.user, system: self.system + other.system }
    }

    /// Returns the time that was used after `before` was counted.
    #[must_use]
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
        }
    }
}
