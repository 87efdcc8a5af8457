//! Compares the results with those of an earlier run: its JSON report is the baseline.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::conduct::AttackResult;
use super::report::SCHEMA;

/// The part of a report that is compared.
#[derive(Debug, Deserialize)]
struct EarlierReport {
    schema: u64,
    probes: Vec<EarlierResult>,
}

#[derive(Debug, Deserialize)]
struct EarlierResult {
    id: String,
    verdict: String,
}

/// Verdicts of an earlier run, by the ids of attacks.
#[derive(Debug, PartialEq, Eq)]
pub struct Baseline(BTreeMap<String, String>);

/// Differences from the baseline that a person has to look at, as ids of attacks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct VerdictChanges<'r> {
    /// A breach, or no verdict, where the baseline has a better verdict.
    pub worse: Vec<&'r str>,
    /// A breach, or no verdict, of an attack that the baseline does not have.
    pub new: Vec<&'r str>,
}

impl Baseline {
    /// Parses a report.
    ///
    /// # Errors
    /// The text is not a report, or one of another version of the schema.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let report: EarlierReport = serde_json::from_slice(text)
            .map_err(|error| format!("it is not a report of `selftest --json`: {error}"))?;
        if report.schema != SCHEMA {
            let theirs = report.schema;
            return Err(format!("it has version {theirs} of the schema, and this is {SCHEMA}"));
        }
        let verdicts = report.probes.into_iter().map(|result| (result.id, result.verdict));
        Ok(Self(verdicts.collect()))
    }

    /// Compares results with the baseline.
    pub fn changes<'r>(&self, results: &'r [AttackResult]) -> VerdictChanges<'r> {
        let mut changes = VerdictChanges::default();
        for result in results {
            let rank = rank(result.verdict.word());
            match self.0.get(&result.id) {
                _ if rank == 0 => {}
                Some(earlier) if rank > self::rank(earlier) => changes.worse.push(&result.id),
                Some(_) => {}
                None => changes.new.push(&result.id),
            }
        }
        changes
    }
}

/// Orders verdicts: 0 needs no attention, and 2 is worst.
fn rank(verdict: &str) -> u8 {
    match verdict {
        "breach" => 2,
        "no_verdict" => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conduct::AttackResult;
    use crate::corpus::Class;
    use crate::judge::AttackVerdict;

    fn result(id: &str, verdict: AttackVerdict) -> AttackResult {
        AttackResult {
            id: id.to_owned(),
            topic: "files",
            class: Class::Escape,
            title: String::new(),
            source: String::new(),
            verdict,
            took_ms: 0,
        }
    }

    #[test]
    fn only_a_worse_verdict_counts_against_a_baseline() {
        let breach = || AttackVerdict::Breach { seen: String::new() };
        let no_verdict = || AttackVerdict::NoVerdict { seen: String::new() };
        let held = || AttackVerdict::Held { unshown: None };
        let text = format!(
            r#"{{"schema": {SCHEMA}, "probes": [
                {{"id": "F1", "verdict": "held"}}, {{"id": "F2", "verdict": "breach"}},
                {{"id": "F3", "verdict": "no_verdict"}}, {{"id": "F4", "verdict": "known", "why": "w"}},
                {{"id": "F5", "verdict": "breach"}}, {{"id": "F6", "verdict": "breach"}}]}}"#
        );
        let baseline = Baseline::parse(text.as_bytes()).expect("well-formed");
        let results = [
            result("F1", breach()),
            result("F2", breach()),
            result("F3", breach()),
            result("F4", no_verdict()),
            result("F5", no_verdict()),
            result("F6", held()),
            result("F7", breach()),
            result("F8", held()),
        ];
        let expected = VerdictChanges { worse: vec!["F1", "F3", "F4"], new: vec!["F7"] };
        assert_eq!(baseline.changes(&results), expected);
    }

    #[test]
    fn a_file_that_is_no_report_is_refused() {
        assert!(Baseline::parse(b"{}").is_err());
        let other = Baseline::parse(br#"{"schema": 0, "probes": []}"#);
        assert_eq!(other, Err(format!("it has version 0 of the schema, and this is {SCHEMA}")));
    }
}
