//! Counters of calls by tool, decision and outcome, kept even without a log. They hold no text of a
//! caller but the tool's name.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use model::outcome::Ended;

/// Upper bounds of the duration classes in seconds; one more class has longer calls.
pub const DURATION_BOUNDS: [f64; 13] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0];

/// Maximum number of tools that are counted by name.
const MAX_TOOLS: usize = 512;
/// Name under which further tools are counted together.
const OTHERS: &str = "other";

/// Counters of the calls of one tool since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CallCounts {
    /// Granted calls that have ended, by outcome; `refused`, `cached` and `dry_run` had no cell.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Calls that policy refused.
    pub denied: u64,
    /// Calls with invalid arguments.
    pub invalid: u64,
    /// System calls that were denied to programs.
    pub denied_system_calls: u64,
    /// Granted calls by duration class.
    pub durations: [u64; DURATION_BOUNDS.len() + 1],
    /// Sum of their durations in seconds.
    pub seconds: f64,
    /// Largest memory use of a cell, in bytes.
    pub peak_memory: u64,
    /// Connections to the network.
    pub connections: u64,
    /// Payload bytes that were sent.
    pub bytes_sent: u64,
    /// Payload bytes that were received.
    pub bytes_received: u64,
    /// Connections that were denied.
    pub denied_destinations: u64,
}

/// Counters of all tools, by name.
#[derive(Debug, Default)]
pub(crate) struct Figures(Mutex<BTreeMap<String, CallCounts>>);

impl Figures {
    pub(crate) fn all(&self) -> BTreeMap<String, CallCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn denied(&self, tool: &str) {
        self.count(tool, |counts| counts.denied += 1);
    }

    pub(crate) fn invalid(&self, tool: &str) {
        self.count(tool, |counts| counts.invalid += 1);
    }

    pub(crate) fn ended(&self, tool: &str, took: Duration, ended: &Ended) {
        self.closed(tool, took, ended.outcome.name());
        self.count(tool, |counts| {
            let refused = ended.denials.iter().map(|denied| u64::from(denied.count)).sum::<u64>();
            counts.denied_system_calls = counts.denied_system_calls.saturating_add(refused);
            counts.peak_memory = counts.peak_memory.max(ended.usage.peak_memory);
            let Some(network) = &ended.network else { return };
            let denied = network.denied.iter().map(|denied| denied.count).sum::<u64>();
            // Includes bytes of connections that earlier calls left open, as no other call counts
            // them.
            let session = network.session.unwrap_or_default();
            for (sum, more) in [
                (&mut counts.connections, network.connections),
                (&mut counts.bytes_sent, network.sent.saturating_add(session.earlier_sent)),
                (
                    &mut counts.bytes_received,
                    network.received.saturating_add(session.earlier_received),
                ),
                (&mut counts.denied_destinations, denied),
            ] {
                *sum = sum.saturating_add(more);
            }
        });
    }

    pub(crate) fn closed(&self, tool: &str, took: Duration, outcome: &'static str) {
        let seconds = took.as_secs_f64();
        let class = DURATION_BOUNDS.partition_point(|bound| *bound < seconds);
        self.count(tool, |counts| {
            *counts.outcomes.entry(outcome).or_default() += 1;
            counts.seconds += seconds;
            if let Some(class) = counts.durations.get_mut(class) {
                *class += 1;
            }
        });
    }

    fn count(&self, tool: &str, add: impl FnOnce(&mut CallCounts)) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = match all.contains_key(tool) || all.len() < MAX_TOOLS {
            true => tool,
            false => OTHERS,
        };
        // Does not allocate for a known tool.
        match all.get_mut(name) {
            Some(counts) => add(counts),
            None => add(all.entry(name.to_owned()).or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_in_one_class_including_its_upper_bound() {
        let figures = Figures::default();
        for millis in [0, 5, 6, 1000, 700_000] {
            figures.closed("bash", Duration::from_millis(millis), "exited");
        }
        let all = figures.all();
        let counts = all.get("bash").expect("it was counted");
        let mut expected = [0; DURATION_BOUNDS.len() + 1];
        (expected[0], expected[1], expected[7], expected[13]) = (2, 1, 1, 1);
        assert_eq!(counts.durations, expected);
        assert_eq!(counts.outcomes, BTreeMap::from([("exited", 5)]));
    }

    #[test]
    fn names_beyond_a_bound_are_counted_together() {
        let figures = Figures::default();
        (0..MAX_TOOLS + 3).for_each(|number| figures.invalid(&format!("tool-{number}")));
        let all = figures.all();
        assert_eq!(
            (all.len(), all.get(OTHERS).map(|other| other.invalid)),
            (MAX_TOOLS + 1, Some(3))
        );
    }
}
