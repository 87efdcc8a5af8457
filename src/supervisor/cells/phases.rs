//! The timings of a call: the moments of its life, as the supervisor sees them.

use std::time::{Duration, Instant};

use model::outcome::Timings;

/// Moments of a call that has its cell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phases {
    arrived: Instant,
    /// When the cell had measured up: before the job came, where it is from the pool.
    measured: Instant,
    pub started: Instant,
    execed: Option<Instant>,
    reported: Option<Instant>,
}

impl Phases {
    /// Those of a call whose job was handed over just now.
    pub(crate) fn new(arrived: Instant, measured: Instant) -> Self {
        Self { arrived, measured, started: Instant::now(), execed: None, reported: None }
    }

    /// The payload's socket closed: it has become the program.
    pub(crate) fn execed(&mut self) {
        self.execed.get_or_insert_with(Instant::now);
    }

    /// The payload had become the program before its job came.
    pub(crate) fn execed_before(&mut self) {
        self.execed = Some(self.started);
    }

    /// The cell's init has told the end.
    pub(crate) fn reported(&mut self) {
        self.reported.get_or_insert_with(Instant::now);
    }

    /// The phases so far; the last of them ends now.
    pub(crate) fn timings(&self) -> Timings {
        let since = |later: Instant, earlier| later.saturating_duration_since(earlier);
        let now = Instant::now();
        let reported = self.reported.unwrap_or(now);
        // A program that ended at once may have told both in one round.
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
