//! Reports the results: a table by topic for people, JSON, JUnit, SARIF and Markdown for programs.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use serde_json::{Value, json};

use super::conduct::AttackResult;
use super::corpus::Severity;
use super::judge::{AttackVerdict, NOT_TRIED};

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
    let mut lines: Vec<ReportLine> = results.iter().flat_map(observed).collect();
    if !lines.is_empty() {
        lines.push(ReportLine::plain(""));
    }
    let head = "topic         held  unshown  breach  known  no verdict  not applicable";
    lines.push(ReportLine::plain(head));
    for topic in topics_of(results) {
        lines.push(ReportLine::plain(count_of(results, topic).row(topic)));
    }
    lines.push(ReportLine::plain(Count::of_results(results).row("all")));
    lines.extend(unshown(results));
    lines.extend(not_tried(results));
    lines
}

/// Returns what was seen of an attack that was not held, below its title; no line for the others.
fn observed(result: &AttackResult) -> Vec<ReportLine> {
    let (mark, seen) = match &result.verdict {
        AttackVerdict::Held { .. } | AttackVerdict::NotApplicable { .. } => return Vec::new(),
        AttackVerdict::Breach { seen } => (Mark::Breach, seen.clone()),
        AttackVerdict::Known { seen, why } => (Mark::Known, format!("{seen}: {why}")),
        AttackVerdict::NoVerdict { seen } => (Mark::NoVerdict, seen.clone()),
    };
    let title = ReportLine { mark: Some(mark), text: format!(" {}  {}", result.id, result.title) };
    let seen = seen.lines().map(|line| ReportLine::plain(format!("           {line}")));
    std::iter::once(title).chain(seen).collect()
}

/// Returns the report for a log: the attacks because of which the exit code is not 0, and their number of `tried`;
/// no line if every one held.
pub fn failures<'a>(
    results: impl IntoIterator<Item = &'a AttackResult>,
    tried: usize,
) -> Vec<ReportLine> {
    let is_failure = |result: &&AttackResult| {
        matches!(result.verdict, AttackVerdict::Breach { .. } | AttackVerdict::NoVerdict { .. })
    };
    let failed: Vec<_> = results.into_iter().filter(is_failure).collect();
    if failed.is_empty() {
        return Vec::new();
    }
    let count = Count::of_results(failed.iter().copied());
    let mut lines: Vec<_> = failed.into_iter().flat_map(observed).collect();
    lines.push(ReportLine::plain(format!(
        "selftest: of {tried} attacks, {} got through, and {} showed nothing either way",
        count.breaches, count.no_verdict
    )));
    lines
}

/// Maximum number of ids listed for one reason; the others are only counted.
const MAX_LISTED: usize = 8;

/// Explains `unshown`, and lists the reasons with their attacks, the most frequent reason first.
fn unshown(results: &[AttackResult]) -> Vec<ReportLine> {
    let reasons = results.iter().filter_map(|one| {
        let AttackVerdict::Held { unshown: Some(why) } = &one.verdict else { return None };
        // The reason is followed by the attack's output, which differs from kernel to kernel.
        Some((why.split_once(": ").map_or(why.as_str(), |(why, _)| why), one.id.as_str()))
    });
    let head = [
        "",
        "unshown: held, but this machine or user cannot make the attack work without a sandbox either, so",
        "that it was held shows less. --json has what was seen for each.",
    ];
    listed(&head, reasons)
}

/// Lists the attacks that need something which is absent.
fn not_tried(results: &[AttackResult]) -> Vec<ReportLine> {
    let reasons = results.iter().filter_map(|one| {
        let AttackVerdict::NotApplicable { why } = &one.verdict else { return None };
        Some((why.strip_prefix(NOT_TRIED)?, one.id.as_str()))
    });
    listed(&["", "not tried, and counted as not applicable:"], reasons)
}

/// Returns the reasons below a head, the most frequent first, each with its attacks; no line without a reason.
fn listed<'a>(head: &[&str], found: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<ReportLine> {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (why, id) in found {
        reasons.entry(why).or_default().push(id);
    }
    if reasons.is_empty() {
        return Vec::new();
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, ids)| std::cmp::Reverse(ids.len()));
    let mut lines: Vec<ReportLine> = head.iter().copied().map(ReportLine::plain).collect();
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

/// The run that a report is about.
#[derive(Debug, Clone, Serialize)]
pub struct RunAbout {
    /// Version of cofferdam, whose corpus it is.
    pub cofferdam: String,
    pub target: TargetAbout,
    /// Release of the kernel (uname(2)).
    pub kernel: String,
    /// User id of the run.
    pub uid: u32,
    /// Time of its end (RFC 3339).
    pub time: String,
}

/// The sandbox that was attacked.
#[derive(Debug, Clone, Serialize)]
pub struct TargetAbout {
    pub name: String,
    /// First line that its version command prints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Words of its command line, with placeholders.
    pub command: Vec<String>,
    /// The command of cofferdam to which an attack's id is added to run it again.
    #[serde(skip)]
    pub again: String,
}

/// Share of attacks that were held, of those with a verdict, in per cent.
///
/// A known breach counts as a breach.
fn score(count: Count) -> Option<f64> {
    let failed = count.breaches + count.known;
    let judged = u32::try_from(count.held + failed).ok().filter(|judged| *judged > 0)?;
    let held = u32::try_from(count.held).ok()?;
    Some((f64::from(held) * 1000.0 / f64::from(judged)).round() / 10.0)
}

/// Returns the score of each topic, and their mean: each topic counts the same, however many
/// attacks it has.
fn scores(results: &[AttackResult]) -> (Vec<(&'static str, f64)>, Option<f64>) {
    let by_topic: Vec<(&str, f64)> = topics_of(results)
        .into_iter()
        .filter_map(|topic| Some((topic, score(count_of(results, topic))?)))
        .collect();
    let number = u32::try_from(by_topic.len()).ok().filter(|number| *number > 0);
    let sum: f64 = by_topic.iter().map(|(_, score)| score).sum();
    let mean = number.map(|number| (sum * 10.0 / f64::from(number)).round() / 10.0);
    (by_topic, mean)
}

fn topics_of(results: &[AttackResult]) -> Vec<&'static str> {
    let mut topics: Vec<&str> = results.iter().map(|one| one.topic).collect();
    topics.dedup();
    topics
}

fn count_of(results: &[AttackResult], topic: &str) -> Count {
    Count::of_results(results.iter().filter(|one| one.topic == topic))
}

/// Version of the JSON report's schema, which docs/ci.md describes. It changes when a field is
/// removed or gets another meaning.
pub const SCHEMA: u64 = 1;

/// Returns the report for programs: one JSON object.
///
/// # Errors
/// A value cannot be represented in JSON.
pub fn json(results: &[AttackResult], about: &RunAbout) -> serde_json::Result<String> {
    let count = Count::of_results(results);
    let (topics, all) = scores(results);
    let topics: serde_json::Map<String, Value> =
        topics.into_iter().map(|(topic, score)| (topic.to_owned(), json!(score))).collect();
    let mut object = json!({ "schema": SCHEMA });
    let RunAbout { cofferdam, target, kernel, uid, time } = about;
    let rest = json!({
        "cofferdam": cofferdam, "target": target, "kernel": kernel, "uid": uid, "time": time,
        "held": count.held, "unshown": count.unshown, "breaches": count.breaches,
        "known": count.known,
        "no_verdict": count.no_verdict, "not_applicable": count.not_applicable,
        "score": { "weights": "each topic counts the same", "topics": topics, "all": all },
        "probes": results.iter().map(probe).collect::<Result<Vec<Value>, _>>()?,
    });
    if let (Value::Object(object), Value::Object(rest)) = (&mut object, rest) {
        object.extend(rest);
    }
    Ok(serde_json::to_string_pretty(&object)? + "\n")
}

fn probe(result: &AttackResult) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(result)?;
    if let Value::Object(fields) = &mut value {
        fields.insert("severity".to_owned(), serde_json::to_value(result.class.severity())?);
    }
    Ok(value)
}

/// Returns the report for code scanning: SARIF 2.1.0 (OASIS), with a rule for each attack that was
/// not held. There is no file to blame: each result is located at the rules of the corpus.
///
/// # Errors
/// A value cannot be represented in JSON.
pub fn sarif(results: &[AttackResult], about: &RunAbout) -> serde_json::Result<String> {
    let failed = results.iter().filter_map(|one| {
        let (level, seen) = match &one.verdict {
            AttackVerdict::Breach { seen } => ("error", seen.clone()),
            AttackVerdict::NoVerdict { seen } => ("warning", format!("no verdict: {seen}")),
            AttackVerdict::Known { seen, why } => ("note", format!("{seen}: {why}")),
            AttackVerdict::Held { .. } | AttackVerdict::NotApplicable { .. } => return None,
        };
        Some((one, level, seen))
    });
    let failed: Vec<_> = failed.collect();
    let rules: Vec<Value> = failed
        .iter()
        .map(|(one, _, _)| {
            // Scores as CVSS has them, by which GitHub sorts.
            let severity = match one.class.severity() {
                Severity::High => "8.0",
                Severity::Medium => "5.0",
                Severity::Low => "3.0",
            };
            json!({
                "id": one.id,
                "shortDescription": { "text": one.title },
                "fullDescription": { "text": format!("{} ({})", one.title, one.source) },
                "properties": { "tags": ["security", one.topic], "security-severity": severity },
            })
        })
        .collect();
    let target = &about.target.name;
    let found: Vec<Value> = failed
        .iter()
        .map(|(one, level, seen)| {
            json!({
                "ruleId": one.id,
                "level": level,
                "message": { "text": format!("{} against {target}: {}", one.title, visible(seen)) },
                "locations": [{ "physicalLocation": { "artifactLocation": {
                    "uri": format!("tests/escape/{}.toml", one.topic) } } }],
                "partialFingerprints": { "attack/v1": format!("{target}/{}", one.id) },
            })
        })
        .collect();
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "cofferdam selftest", "version": about.cofferdam, "rules": rules } },
            "results": found,
        }],
    });
    Ok(serde_json::to_string_pretty(&log)? + "\n")
}

/// Returns the report for a page or a pull request: a table by topic, and each attack that was not
/// held with the command that plays it again.
pub fn markdown(results: &[AttackResult], about: &RunAbout) -> String {
    let target = &about.target;
    let version = target.version.as_deref().unwrap_or_default();
    let mut lines = vec![
        format!("### {} {}", cell(&target.name), cell(version)).trim_end().to_owned(),
        String::new(),
        format!(
            "cofferdam {}, Linux {}, uid {}, {}",
            about.cofferdam, about.kernel, about.uid, about.time
        ),
        String::new(),
        "| topic | held | breached | known | no verdict | not applicable | score |".to_owned(),
        "|---|---|---|---|---|---|---|".to_owned(),
    ];
    let (scores, mean) = scores(results);
    let percent = |score: Option<f64>| score.map_or("-".to_owned(), |score| format!("{score:.1}"));
    let row = |name: &str, count: Count, score| {
        let Count { held, unshown: _, breaches, known, no_verdict, not_applicable } = count;
        format!(
            "| {name} | {held} | {breaches} | {known} | {no_verdict} | {not_applicable} | {} |",
            percent(score)
        )
    };
    for topic in topics_of(results) {
        let score = scores.iter().find(|(of, _)| *of == topic).map(|(_, score)| *score);
        lines.push(row(topic, count_of(results, topic), score));
    }
    lines.push(row("all", Count::of_results(results), mean));
    let open = results.iter().filter(|one| one.verdict.needs_attention());
    let open: Vec<_> = open.collect();
    if !open.is_empty() {
        lines.extend([
            String::new(),
            "| attack | verdict | again |".to_owned(),
            "|---|---|---|".to_owned(),
        ]);
    }
    for one in open {
        let id = &one.id;
        lines.push(format!(
            "| {id} {} | {} | `cofferdam {} {id}` |",
            cell(&one.title),
            one.verdict.word().replace('_', " "),
            cell(&target.again)
        ));
    }
    lines.join("\n") + "\n"
}

/// Escapes text for a cell of a table in Markdown.
fn cell(text: &str) -> String {
    visible(text).replace('|', "\\|").replace('`', "'")
}

/// Replaces control characters, which an attack may have printed, by dots.
fn visible(text: &str) -> String {
    text.chars().map(|one| if one.is_control() { '.' } else { one }).collect()
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
#[path = "report_tests.rs"]
mod tests;
