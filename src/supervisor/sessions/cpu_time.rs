//! CpuTime time of a session's shell, added up from what reaped its processes.

use std::os::fd::OwnedFd;
use std::time::Duration;

use cell::measure;
use cell::report::InitCounters;

/// A clock tick of procfs: USER_HZ is 100 on every architecture that this is built for.
const TICK: Duration = Duration::from_millis(10);

/// CpuTime time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CpuTime {
    pub user: Duration,
    pub system: Duration,
}

impl CpuTime {
    /// Of the processes that init reaped.
    pub(crate) fn of(counts: &InitCounters) -> Self {
        Self {
            user: Duration::from_micros(counts.user_us),
            system: Duration::from_micros(counts.system_us),
        }
    }

    /// Of a process and of all that it has waited for (proc_pid_stat(5)), in whole ticks.
    pub(crate) fn of_tree(process: &OwnedFd) -> Self {
        let stat = measure::read_lossy(process, "stat").unwrap_or_default();
        // The name in field 2 may hold anything: count from its last bracket.
        let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
        let ticks = |number: usize| {
            let field = fields.split_ascii_whitespace().nth(number - 3);
            field.and_then(|field| field.parse::<u32>().ok()).unwrap_or(0)
        };
        let time = |own, waited| TICK * ticks(own).saturating_add(ticks(waited));
        Self { user: time(14, 16), system: time(15, 17) }
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
