//! Timings of a call: when each phase of its life began, as the supervisor observed it.

use std::time::{Duration, Instant};

use model::outcome::Timings;

/// Points in time of a call that has a cell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phases {
    arrived: Instant,
    /// When the cell passed its measurement: before the job arrived if it came from the pool.
    measured: Instant,
    pub started: Instant,
    execed: Option<Instant>,
    reported: Option<Instant>,
}

impl Phases {
    /// Starts with a call whose job was just handed over.
    pub(crate) fn new(arrived: Instant, measured: Instant) -> Self {
        Self { arrived, measured, started: Instant::now(), execed: None, reported: None }
    }

    /// Records that the payload's socket closed because it became the program.
    pub(crate) fn execed(&mut self) {
        self.execed.get_or_insert_with(Instant::now);
    }

    /// Records that the payload became the program before its job arrived.
    pub(crate) fn execed_before(&mut self) {
        self.execed = Some(self.started);
    }

    /// Records that init has reported the end.
    pub(crate) fn reported(&mut self) {
        self.reported.get_or_insert_with(Instant::now);
    }

    /// Returns the time from the start to init's report, or until now.
    pub(crate) fn wall(&self) -> Duration {
        let end = self.reported.unwrap_or_else(Instant::now);
        end.saturating_duration_since(self.started)
    }

    /// Returns the phases so far; the last one ends now.
    pub(crate) fn timings(&self) -> Timings {
        let since = |later: Instant, earlier| later.saturating_duration_since(earlier);
        let now = Instant::now();
        let reported = self.reported.unwrap_or(now);
        // For a program that ended at once, both events may be handled in one round.
        let execed = self.execed.unwrap_or(self.started).min(reported);
        Timings {
            built: since(self.measured, self.arrived),
            handed_over: since(self.started, self.measured.max(self.arrived)),
            exec: since(execed, self.started),
            run: since(reported, execed),
            drain: Duration::ZERO,
            teardown: since(now, reported),
        }
    }
}
