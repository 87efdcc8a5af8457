//! Records the calculations of a session: counts of all, and the latest in detail.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

/// Maximum number of calculations that are recorded in detail; the oldest is removed first.
pub const REMEMBERED: usize = 200;
/// Maximum number of characters of an expression and of a result that are recorded.
const MAX_CHARACTERS: usize = 300;

/// A recorded calculation, as it is returned to the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LedgerEntry {
    /// Counted in the session.
    #[schemars(range(min = 1))]
    pub number: u64,
    pub tool: &'static str,
    pub expression: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<u32>")]
    pub precision: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Counts of calculations; each expression of a batch is counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Counts {
    #[serde(rename = "averageTimeMs")]
    pub average_ms: u64,
    pub calculations: u64,
    pub errors: u64,
    #[serde(rename = "totalTimeMs")]
    pub total_ms: u64,
}

impl Counts {
    fn add(&mut self, failed: bool, took: Duration) {
        self.calculations += 1;
        self.errors += u64::from(failed);
        self.total_ms += u64::try_from(took.as_millis()).unwrap_or(u64::MAX / 2);
        self.average_ms = self.total_ms / self.calculations;
    }
}

/// Counts of the session, in total and by tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Statistics {
    #[serde(flatten)]
    pub all: Counts,
    pub tools: BTreeMap<&'static str, Counts>,
}

/// The record of one session.
#[derive(Debug, Default)]
pub struct Ledger {
    entries: VecDeque<LedgerEntry>,
    statistics: Statistics,
}

impl Ledger {
    /// Records a calculation; `took` is its share of the call's time.
    pub fn note(
        &mut self,
        tool: &'static str,
        expression: &str,
        precision: Option<u8>,
        done: Result<&str, &str>,
        took: Duration,
    ) {
        self.statistics.all.add(done.is_err(), took);
        self.statistics.tools.entry(tool).or_default().add(done.is_err(), took);
        self.entries.push_back(LedgerEntry {
            number: self.statistics.all.calculations,
            tool,
            expression: beginning(expression),
            precision,
            result: done.ok().map(beginning),
            error: done.err().map(beginning),
        });
        if self.entries.len() > REMEMBERED {
            self.entries.pop_front();
        }
    }

    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Returns the latest calculations, the newest first.
    pub fn latest(&self, limit: usize) -> Vec<LedgerEntry> {
        self.entries.iter().rev().take(limit).cloned().collect()
    }
}

/// Returns the first characters, with `…` if there are more.
fn beginning(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARACTERS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or(text)),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_the_last_are_remembered() {
        let mut ledger = Ledger::default();
        let took = Duration::from_millis(10);
        for number in 0..=REMEMBERED {
            ledger.note("calculate", &number.to_string(), Some(20), Ok("1"), took);
        }
        ledger.note("calculate_plot", &"x".repeat(301), None, Err("no"), 3 * took);
        let [plot, last] =
            <[LedgerEntry; 2]>::try_from(ledger.latest(2)).unwrap_or_else(|_| panic!("two"));
        assert_eq!((plot.number, plot.error.as_deref(), plot.result), (202, Some("no"), None));
        assert_eq!(plot.expression, format!("{}…", "x".repeat(300)));
        assert_eq!((last.number, last.expression.as_str()), (201, "200"));
        let all = ledger.latest(usize::MAX);
        assert_eq!((all.len(), all.last().map(|entry| entry.number)), (REMEMBERED, Some(3)));
        let statistics = ledger.statistics();
        let counts = Counts { calculations: 202, errors: 1, total_ms: 2040, average_ms: 10 };
        assert_eq!(statistics.all, counts);
        let plots = Counts { calculations: 1, errors: 1, total_ms: 30, average_ms: 30 };
        assert_eq!(statistics.tools.get("calculate_plot"), Some(&plots));
    }
}
