//! Reports the results: a table by topic for people, JSON and JUnit for programs.

use std::fmt::Write;

use serde_json::{Value, json};

use super::conduct::AttackResult;
use super::judge::AttackVerdict;

/// How many of each verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    pub held: usize,
    /// Of those held: the control could not be shown on this machine.
    pub unshown: usize,
    pub breaches: usize,
    /// Breaches that SECURITY.md tells of.
    pub known: usize,
    pub no_verdict: usize,
    pub not_applicable: usize,
}

impl Count {
    pub fn of<'a>(found: impl IntoIterator<Item = &'a AttackResult>) -> Self {
        let mut count = Self::default();
        for one in found {
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

    /// Returns the exit code: 0 all held, 1 a breach, 2 no verdict.
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
            "{name:<12} {held:>5} {unshown:>8} {breaches:>7} {known:>6} {no_verdict:>11} {not_applicable:>15}\n"
        )
    }
}

/// Reports to people: attacks that were not held first, then the table.
pub fn text(found: &[AttackResult]) -> String {
    let mut text = String::new();
    for one in found {
        let line = match &one.verdict {
            AttackVerdict::Held { .. } | AttackVerdict::NotApplicable { .. } => continue,
            AttackVerdict::Breach { seen } => ("BREACH", seen.clone()),
            AttackVerdict::Known { seen, why } => ("known", format!("{seen}: {why}")),
            AttackVerdict::NoVerdict { seen } => ("NO VERDICT", seen.clone()),
        };
        let seen = line.1;
        let written = writeln!(text, "{:<10} {}  {}\n           {seen}", line.0, one.id, one.title);
        debug_assert!(written.is_ok(), "a String takes everything");
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str("topic         held  unshown  breach  known  no verdict  not applicable\n");
    let mut topics: Vec<&str> = found.iter().map(|one| one.topic).collect();
    topics.dedup();
    for topic in topics {
        let count = Count::of(found.iter().filter(|one| one.topic == topic));
        text.push_str(&count.row(topic));
    }
    let all = Count::of(found);
    text.push_str(&all.row("all"));
    if all.unshown > 0 {
        text.push_str(
            "\nunshown: held, though this machine or user cannot show that the attack works without a\n\
             sandbox; --json says why for each\n",
        );
    }
    text
}

/// Reports to programs: one object.
///
/// # Errors
/// A value that JSON cannot hold.
pub fn json(found: &[AttackResult], target: &[String]) -> serde_json::Result<String> {
    let count = Count::of(found);
    let object = json!({
        "target": if target.is_empty() { json!("cofferdam run") } else { json!(target) },
        "held": count.held, "unshown": count.unshown, "breaches": count.breaches,
        "known": count.known,
        "no_verdict": count.no_verdict, "not_applicable": count.not_applicable,
        "probes": found.iter().map(serde_json::to_value).collect::<Result<Vec<Value>, _>>()?,
    });
    Ok(serde_json::to_string_pretty(&object)? + "\n")
}

/// Reports to CI: one suite, a case for each attack.
pub fn junit(found: &[AttackResult]) -> String {
    let count = Count::of(found);
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"cofferdam selftest\" \
         tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\">\n",
        found.len(),
        count.breaches,
        count.no_verdict,
        count.not_applicable + count.known
    );
    for one in found {
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

/// Escapes text for an attribute of XML. Characters that XML cannot hold become a dot.
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
            one("F6", AttackVerdict::Known { seen: seen(), why: "told".to_owned() }),
            one("F5", AttackVerdict::NotApplicable { why: "ours".to_owned() }),
        ]
    }

    #[test]
    fn a_breach_is_1_and_no_verdict_is_2_and_neither_is_a_pass() {
        let mut found = four();
        assert_eq!(Count::of(&found).exit_code(), 1);
        found.remove(2);
        assert_eq!(Count::of(&found).exit_code(), 2);
        found.remove(2);
        assert_eq!(Count::of(&found).exit_code(), 0);
    }

    #[test]
    fn the_table_counts_and_what_is_not_held_is_named_first() {
        let text = text(&four());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines.get(..8),
            Some(
                [
                    "BREACH     F3  title of F3",
                    "           `<a&b>\"\u{7}`",
                    "NO VERDICT F4  title of F4",
                    "           `<a&b>\"\u{7}`",
                    "known      F6  title of F6",
                    "           `<a&b>\"\u{7}`: told",
                    "",
                    "topic         held  unshown  breach  known  no verdict  not applicable",
                ]
                .as_slice()
            )
        );
        assert_eq!(
            lines.get(8).copied(),
            Some("files            2        1       1      1           1               1")
        );
    }

    #[test]
    fn junit_holds_what_xml_can_hold() {
        let text = junit(&four());
        assert!(text.contains("tests=\"6\" failures=\"1\" errors=\"1\" skipped=\"2\""));
        assert!(text.contains("<failure message=\"`&lt;a&amp;b&gt;&quot;.`\"/>"));
        assert!(text.contains("time=\"1.234\""));
    }
}
