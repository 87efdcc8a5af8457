//! Sums over the supervisor's reports of its calls, for the operator only.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::{Link, State};
use model::outcome::{Ended, PoolCounts};

/// Counters since the start of the server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Metrics {
    /// Calls that have ended.
    pub calls: u64,
    /// Calls that are running now.
    pub running: u64,
    /// Cells by what became of them.
    pub cells: PoolCounts,
    /// Sum over all calls in microseconds, by phase of the receipt.
    pub timings_us: BTreeMap<&'static str, u64>,
}

impl Link {
    /// Returns the metrics as of the last call that ended.
    pub fn metrics(&self) -> Metrics {
        let state = self.shared.state();
        let running = u64::try_from(state.calls.len()).unwrap_or(u64::MAX);
        Metrics { running, ..state.totals.clone() }
    }
}

impl State {
    /// Adds a call that has ended.
    pub(super) fn add(&mut self, ended: &Ended) {
        let totals = &mut self.totals;
        totals.calls += 1;
        totals.cells = ended.pool;
        for (phase, time) in ended.timings.named() {
            // Measured here, where the output is read, not by the supervisor.
            if phase != "drain" {
                self.add_time(phase, time);
            }
        }
    }

    /// Adds the time of one call in one phase.
    pub(super) fn add_time(&mut self, phase: &'static str, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let sum = self.totals.timings_us.entry(phase).or_default();
        *sum = sum.saturating_add(micros);
    }
}
