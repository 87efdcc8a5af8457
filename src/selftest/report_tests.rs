//! Tests of [`super`]: what each report says of the verdicts.

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
fn a_log_has_the_failures_and_their_number_and_nothing_of_a_pass() {
    let results = four();
    let text = |lines: Vec<ReportLine>| -> Vec<String> {
        let word = |mark: Option<Mark>| mark.map(Mark::word).unwrap_or_default();
        lines.into_iter().map(|line| format!("{}{}", word(line.mark), line.text)).collect()
    };
    let expected = [
        "BREACH     F3  title of F3",
        "           `<a&b>\"\u{7}`",
        "NO VERDICT F4  title of F4",
        "           `<a&b>\"\u{7}`",
        "selftest: of 6 attacks, 1 got through, and 1 showed nothing either way",
    ];
    assert_eq!(text(failures(&results, results.len())), expected);
    // Held, known and not applicable ones are no failures.
    let passed = results.iter().filter(|one| one.id != "F3" && one.id != "F4");
    assert_eq!(failures(passed, 6), []);
}

#[test]
fn each_reason_for_unproven_controls_is_listed_once_with_its_attacks() {
    let held = |at: usize, why: &str| {
        one(&format!("F{at:02}"), AttackVerdict::Held { unshown: Some(why.to_owned()) })
    };
    let mut results: Vec<_> = (1..=9).map(|at| held(at, "no device: ENOENT")).collect();
    results.push(held(10, "only root can"));
    results.push(one("F11", AttackVerdict::Held { unshown: None }));
    let text: Vec<String> = unshown(&results).into_iter().skip(3).map(|line| line.text).collect();
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
fn an_attack_that_was_not_tried_is_listed_with_its_reason() {
    let other = |why: &str| AttackVerdict::NotApplicable { why: why.to_owned() };
    let absent = other("not tried: it needs `node`, which the sandbox lacks");
    let results = [one("F1", other("for root only")), one("F2", absent.clone()), one("F3", absent)];
    let text: Vec<String> = not_tried(&results).into_iter().map(|line| line.text).collect();
    let expected = [
        "",
        "not tried, and counted as not applicable:",
        "   2  it needs `node`, which the sandbox lacks",
        "      F2 F3",
    ];
    assert_eq!(text, expected);
    assert_eq!(not_tried(&results[..1]), []);
}

fn about(name: &str) -> RunAbout {
    let target = TargetAbout {
        name: name.to_owned(),
        version: Some("1 | 2".to_owned()),
        command: vec![name.to_owned()],
        again: "selftest --target box".to_owned(),
    };
    let [cofferdam, kernel, time] = ["0.1", "6.1", "now"].map(str::to_owned);
    RunAbout { cofferdam, target, kernel, uid: 1000, time }
}

#[test]
fn each_topic_has_the_same_weight_in_the_score() {
    let mut results = four();
    let lone = AttackResult { topic: "kernel", ..one("K1", AttackVerdict::Held { unshown: None }) };
    results.push(lone);
    // Two of files were held, one breached, and one is known: half, and all of kernel.
    assert_eq!(scores(&results), (vec![("files", 50.0), ("kernel", 100.0)], Some(75.0)));
    assert_eq!(scores(&[]), (Vec::new(), None));
    let json: Value = serde_json::from_str(&json(&results, &about("box")).expect("well-formed"))
        .expect("well-formed");
    assert_eq!(json.pointer("/score/all"), Some(&serde_json::json!(75.0)));
    assert_eq!(json.pointer("/probes/2/severity"), Some(&serde_json::json!("high")));
    assert_eq!(json.pointer("/target/name"), Some(&serde_json::json!("box")));
    assert_eq!(json.pointer("/schema"), Some(&serde_json::json!(SCHEMA)));
}

#[test]
fn sarif_has_a_rule_and_a_result_for_each_attack_that_was_not_held() {
    let text = sarif(&four(), &about("box")).expect("well-formed");
    let log: Value = serde_json::from_str(&text).expect("well-formed");
    let run = log.pointer("/runs/0").expect("well-formed");
    let ids = |pointer: &str, key: &str| -> Vec<String> {
        let all = run.pointer(pointer).and_then(Value::as_array).expect("well-formed");
        all.iter()
            .map(|one| format!("{} {}", one[key].as_str().expect("well-formed"), one["level"]))
            .collect()
    };
    assert_eq!(ids("/tool/driver/rules", "id"), ["F3 null", "F4 null", "F6 null"]);
    let found = [r#"F3 "error""#, r#"F4 "warning""#, r#"F6 "note""#];
    assert_eq!(ids("/results", "ruleId"), found);
    let message = run.pointer("/results/0/message/text").and_then(Value::as_str);
    assert_eq!(message, Some("title of F3 against box: `<a&b>\".`"));
}

#[test]
fn markdown_has_the_command_that_plays_a_breach_again() {
    let text = markdown(&four(), &about("box"));
    assert!(
        text.starts_with("### box 1 \\| 2\n\ncofferdam 0.1, Linux 6.1, uid 1000, now\n"),
        "{text}"
    );
    assert!(text.contains("| files | 2 | 1 | 1 | 1 | 1 | 50.0 |\n"), "{text}");
    let again = "| F3 title of F3 | breach | `cofferdam selftest --target box F3` |\n";
    assert!(text.contains(again), "{text}");
}

#[test]
fn junit_output_is_escaped_for_xml() {
    let text = junit(&four());
    assert!(text.contains("tests=\"6\" failures=\"1\" errors=\"1\" skipped=\"2\""));
    assert!(text.contains("<failure message=\"`&lt;a&amp;b&gt;&quot;.`\"/>"));
    assert!(text.contains("time=\"1.234\""));
}
