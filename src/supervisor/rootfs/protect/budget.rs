//! The entries and the time that a scan may take.

use std::time::{Duration, Instant};

/// Maximum number of entries that are read, and maximum time.
const MAX_ENTRIES: usize = 1_000_000;
const MAX_TIME: Duration = Duration::from_millis(200);
/// Entries that are read regardless of time: on a busy machine a small directory must still get its
/// mounts.
const ASSURED_ENTRIES: usize = 5_000;

/// The remaining entries and time.
#[derive(Debug)]
pub(crate) struct Budget {
    spent: usize,
    entries: usize,
    /// Number of entries up to which the time does not count.
    assured: usize,
    start: Instant,
    time: Duration,
}

impl Budget {
    pub(crate) fn new(entries: usize, time: Duration) -> Self {
        Self { spent: 0, entries, assured: ASSURED_ENTRIES, start: Instant::now(), time }
    }

    /// Returns a budget that is never exhausted.
    pub(crate) fn unlimited() -> Self {
        Self { assured: usize::MAX, ..Self::new(usize::MAX, Duration::MAX) }
    }

    /// Consumes `entries` of the budget. Returns false once it is exhausted.
    pub(crate) fn spend(&mut self, entries: usize) -> bool {
        self.spent = self.spent.saturating_add(entries);
        // The clock is read only occasionally.
        let is_time_checked = self.spent > self.assured && self.spent % 64 < entries;
        if self.spent > self.entries || (is_time_checked && self.start.elapsed() > self.time) {
            self.entries = 0;
        }
        !self.is_spent()
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.spent > self.entries
    }

    /// Extends the budget for the last step, the configurations.
    pub(crate) fn extend_for_configurations(&mut self) {
        if self.assured == usize::MAX {
            return;
        }
        self.time = MAX_TIME;
        self.assured = self.spent.saturating_add(ASSURED_ENTRIES);
        self.entries = self.assured.max(MAX_ENTRIES);
    }
}

/// How much of the granted directories a scan looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The part that a start has time for.
    InTime,
    /// Everything, with the links that lead elsewhere.
    Whole,
}

impl Extent {
    pub(crate) fn budget(self, time: Duration) -> Budget {
        match self {
            Self::InTime => Budget::new(MAX_ENTRIES, time),
            Self::Whole => Budget::unlimited(),
        }
    }

    /// Returns a limit of a number that holds for a scan in time.
    pub(crate) fn limit(self, number: usize) -> usize {
        match self {
            Self::InTime => number,
            Self::Whole => usize::MAX,
        }
    }
}
