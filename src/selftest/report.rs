//! Reports the results: a table by topic for people, JSON and JUnit for programs.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::conduct::AttackResult;
use super::judge::AttackVerdict;

/// Number of attacks per verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    pub held: usize,
    /// Held attacks whose control proved nothing on this machine.
    pub unshown: usize,
    pub breaches: usize,
    /// Breaches that SECURITY.md documents.
    pub known: usize,
    pub no_verdict: usize,
    pub not_applicable: usize,
}

impl Count {
    pub fn of_results<'a>(results: impl IntoIterator<Item = &'a AttackResult>) -> Self {
        let mut count = Self::default();
        for one in results {
            match &one.verdict {
                AttackVerdict::Held { unshown } => {
                    count.held += 1;
                    count.unshown += usize::from(unshown.is_some());
                }
                AttackVerdict::Breach { .. } => count.breaches += 1,
                AttackVerdict::Known { .. } => count.known += 1,
                AttackVerdict::NoVerdict { .. } => count.no_verdict += 1,
                AttackVerdict::NotApplicable { .. } => count.not_applicable += 1,
            }
        }
        count
    }

    /// Returns the exit code: 0 if all are held, 1 for a breach, 2 for a missing verdict.
    pub fn exit_code(self) -> u8 {
        match (self.breaches, self.no_verdict) {
            (0, 0) => 0,
            (0, _) => 2,
            (_, _) => 1,
        }
    }

    fn row(self, name: &str) -> String {
        let Self { held, unshown, breaches, known, no_verdict, not_applicable } = self;
        format!(
            "{name:<12} {held:>5} {unshown:>8} {breaches:>7} {known:>6} {no_verdict:>11} {not_applicable:>15}"
        )
    }
}

/// Highlighted verdict of an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    Breach,
    Known,
    NoVerdict,
}

impl Mark {
    /// Returns the verdict's word, padded to the longest.
    pub fn word(self) -> &'static str {
        match self {
            Self::Breach => "BREACH    ",
            Self::Known => "known     ",
            Self::NoVerdict => "NO VERDICT",
        }
    }
}

/// One line for people. The text may contain any bytes that an attack has printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportLine {
    /// Shown before the text.
    pub mark: Option<Mark>,
    pub text: String,
}

impl ReportLine {
    fn plain(text: impl Into<String>) -> Self {
        Self { mark: None, text: text.into() }
    }
}

/// Returns the report for people: attacks that were not held, then the table, then the reasons for
/// unproven controls.
pub fn lines(results: &[AttackResult]) -> Vec<ReportLine> {
    let mut lines = Vec::new();
    for one in results {
        let (mark, seen) = match &one.verdict {
            AttackVerdict::Held { .. } | AttackVerdict::NotApplicable { .. } => continue,
            AttackVerdict::Breach { seen } => (Mark::Breach, seen.clone()),
            AttackVerdict::Known { seen, why } => (Mark::Known, format!("{seen}: {why}")),
            AttackVerdict::NoVerdict { seen } => (Mark::NoVerdict, seen.clone()),
        };
        lines.push(ReportLine { mark: Some(mark), text: format!(" {}  {}", one.id, one.title) });
        lines.extend(seen.lines().map(|line| ReportLine::plain(format!("           {line}"))));
    }
    if !lines.is_empty() {
        lines.push(ReportLine::plain(""));
    }
    let head = "topic         held  unshown  breach  known  no verdict  not applicable";
    lines.push(ReportLine::plain(head));
    let mut topics: Vec<&str> = results.iter().map(|one| one.topic).collect();
    topics.dedup();
    for topic in topics {
        let count = Count::of_results(results.iter().filter(|one| one.topic == topic));
        lines.push(ReportLine::plain(count.row(topic)));
    }
    lines.push(ReportLine::plain(Count::of_results(results).row("all")));
    lines.extend(unshown(results));
    lines
}

/// Maximum number of ids listed for one reason; the others are only counted.
const MAX_LISTED: usize = 8;

/// Explains `unshown`, and lists the reasons with their attacks, the most frequent reason first.
fn unshown(results: &[AttackResult]) -> Vec<ReportLine> {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for one in results {
        if let AttackVerdict::Held { unshown: Some(why) } = &one.verdict {
            // The reason is followed by the attack's output, which differs from kernel to kernel.
            let why = why.split_once(": ").map_or(why.as_str(), |(why, _)| why);
            reasons.entry(why).or_default().push(&one.id);
        }
    }
    if reasons.is_empty() {
        return Vec::new();
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, ids)| std::cmp::Reverse(ids.len()));
    let head = [
        "",
        "unshown: held, but this machine or user cannot make the attack work without a sandbox either, so",
        "that it was held shows less. --json has what was seen for each.",
    ];
    let mut lines: Vec<ReportLine> = head.map(ReportLine::plain).into();
    for (why, ids) in reasons {
        let named = ids.iter().take(MAX_LISTED).copied().collect::<Vec<_>>().join(" ");
        let more = match ids.len().saturating_sub(MAX_LISTED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        lines.push(ReportLine::plain(format!("{:>4}  {why}", ids.len())));
        lines.push(ReportLine::plain(format!("      {named}{more}")));
    }
    lines
}

/// Returns the report for programs: one JSON object.
///
/// # Errors
/// A value cannot be represented in JSON.
pub fn json(results: &[AttackResult], target: &[String]) -> serde_json::Result<String> {
    let count = Count::of_results(results);
    let object = json!({
        "target": if target.is_empty() { json!("cofferdam run") } else { json!(target) },
        "held": count.held, "unshown": count.unshown, "breaches": count.breaches,
        "known": count.known,
        "no_verdict": count.no_verdict, "not_applicable": count.not_applicable,
        "probes": results.iter().map(serde_json::to_value).collect::<Result<Vec<Value>, _>>()?,
    });
    Ok(serde_json::to_string_pretty(&object)? + "\n")
}

/// Returns the report for CI: one suite with a case per attack.
pub fn junit(results: &[AttackResult]) -> String {
    let count = Count::of_results(results);
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"cofferdam selftest\" \
         tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\">\n",
        results.len(),
        count.breaches,
        count.no_verdict,
        count.not_applicable + count.known
    );
    for one in results {
        let inner = match &one.verdict {
            AttackVerdict::Held { .. } => String::new(),
            AttackVerdict::Breach { seen } => format!("<failure message=\"{}\"/>", escaped(seen)),
            AttackVerdict::NoVerdict { seen } => format!("<error message=\"{}\"/>", escaped(seen)),
            AttackVerdict::Known { why, .. } => {
                format!("<skipped message=\"known: {}\"/>", escaped(why))
            }
            AttackVerdict::NotApplicable { why } => {
                format!("<skipped message=\"{}\"/>", escaped(why))
            }
        };
        let name = escaped(&format!("{} {}", one.id, one.title));
        let written = writeln!(
            text,
            "  <testcase classname=\"{}\" name=\"{name}\" time=\"{}.{:03}\">{inner}</testcase>",
            one.class.name(),
            one.took_ms / 1000,
            one.took_ms % 1000
        );
        debug_assert!(written.is_ok(), "a String takes everything");
    }
    text + "</testsuite>\n"
}

/// Escapes text for an XML attribute. Characters that XML cannot represent become dots.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            control if control.is_control() => escaped.push('.'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::Class;

    fn one(id: &str, verdict: AttackVerdict) -> AttackResult {
        AttackResult {
            id: id.to_owned(),
            topic: "files",
            class: Class::Escape,
            title: format!("title of {id}"),
            source: "a source".to_owned(),
            verdict,
            took_ms: 1234,
        }
    }

    fn four() -> Vec<AttackResult> {
        let seen = || "`<a&b>\"\u{7}`".to_owned();
        vec![
            one("F1", AttackVerdict::Held { unshown: None }),
            one("F2", AttackVerdict::Held { unshown: Some("no device".to_owned()) }),
            one("F3", AttackVerdict::Breach { seen: seen() }),
            one("F4", AttackVerdict::NoVerdict { seen: seen() }),
            one("F6", AttackVerdict::Known { seen: seen(), why: "documented".to_owned() }),
            one("F5", AttackVerdict::NotApplicable { why: "ours".to_owned() }),
        ]
    }

    #[test]
    fn a_breach_is_1_and_no_verdict_is_2_and_neither_is_a_pass() {
        let mut results = four();
        assert_eq!(Count::of_results(&results).exit_code(), 1);
        results.remove(2);
        assert_eq!(Count::of_results(&results).exit_code(), 2);
        results.remove(2);
        assert_eq!(Count::of_results(&results).exit_code(), 0);
    }

    #[test]
    fn attacks_that_are_not_held_are_listed_before_the_table() {
        let lines = lines(&four());
        let plain = ReportLine::plain;
        let marked = |mark, text: &str| ReportLine { mark: Some(mark), text: text.to_owned() };
        let expected = [
            marked(Mark::Breach, " F3  title of F3"),
            plain("           `<a&b>\"\u{7}`"),
            marked(Mark::NoVerdict, " F4  title of F4"),
            plain("           `<a&b>\"\u{7}`"),
            marked(Mark::Known, " F6  title of F6"),
            plain("           `<a&b>\"\u{7}`: documented"),
            plain(""),
            plain("topic         held  unshown  breach  known  no verdict  not applicable"),
            plain("files            2        1       1      1           1               1"),
            plain("all              2        1       1      1           1               1"),
        ];
        assert_eq!(lines.get(..10), Some(expected.as_slice()));
    }

    #[test]
    fn each_reason_for_unproven_controls_is_listed_once_with_its_attacks() {
        let held = |at: usize, why: &str| {
            one(&format!("F{at:02}"), AttackVerdict::Held { unshown: Some(why.to_owned()) })
        };
        let mut results: Vec<_> = (1..=9).map(|at| held(at, "no device: ENOENT")).collect();
        results.push(held(10, "only root can"));
        results.push(one("F11", AttackVerdict::Held { unshown: None }));
        let text: Vec<String> =
            unshown(&results).into_iter().skip(3).map(|line| line.text).collect();
        let expected = [
            "   9  no device",
            "      F01 F02 F03 F04 F05 F06 F07 F08 and 1 more",
            "   1  only root can",
            "      F10",
        ];
        assert_eq!(text, expected);
        assert_eq!(unshown(&results.split_off(10)), []);
    }

    #[test]
    fn junit_output_is_escaped_for_xml() {
        let text = junit(&four());
        assert!(text.contains("tests=\"6\" failures=\"1\" errors=\"1\" skipped=\"2\""));
        assert!(text.contains("<failure message=\"`&lt;a&amp;b&gt;&quot;.`\"/>"));
        assert!(text.contains("time=\"1.234\""));
    }
}
