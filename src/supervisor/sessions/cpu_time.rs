//! CpuTime time of a session's shell, added up from what reaped its processes.

use std::time::Duration;

use cell::report::InitCounters;

/// CpuTime time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CpuTime {
    pub user: Duration,
    pub system: Duration,
}

impl CpuTime {
    /// Returns the time of the processes that init has counted.
    pub(crate) fn of(counts: &InitCounters) -> Self {
        Self {
            user: Duration::from_micros(counts.user_us),
            system: Duration::from_micros(counts.system_us),
        }
    }

    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        Self { user: self.user + other.user, system: self.system + other.system }
    }

    #[must_use]
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
        }
    }
}
