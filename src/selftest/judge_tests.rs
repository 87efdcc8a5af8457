//! Tests of [`super`]: results that count as held, as a breach, and as neither.

use std::time::Duration;

use regex::Regex;

use super::*;
use crate::corpus::{Class, Harm, KnownBreach, StartMode, Unshown};
use crate::run_result::RunEnd;

fn probe() -> Attack {
    Attack {
        id: "F1".to_owned(),
        topic: "files",
        class: Class::Escape,
        title: "a title".to_owned(),
        source: "a source".to_owned(),
        run: "true".to_owned(),
        held: vec!["EPERM".to_owned(), "exit 123".to_owned()],
        elsewhere: vec!["ENOSYS".to_owned()],
        breach: Regex::new("^(?:[0-9]+|ENOSYS)$").unwrap_or_else(|error| panic!("{error}")),
        control: ControlMode::Outside,
        control_run: None,
        no_control: None,
        unshown: Some(Unshown { says: vec!["EACCES".to_owned()], why: "an old kernel".to_owned() }),
        needs: Vec::new(),
        known: Some(KnownBreach {
            when: When::BestEffortMemory,
            why: "no control group".to_owned(),
        }),
        lower: crate::corpus::Lower::default(),
        whom: Whom::Both,
        options: Vec::new(),
        ours: None,
        start: StartMode::Plain,
        harm: Harm::None,
        alone: false,
        within: 20,
        most_bytes: None,
        first: None,
        network: crate::corpus::Network::Host,
        unreached: Vec::new(),
    }
}

fn seen(said: &str, code: i32) -> Observed {
    let ran = Ran {
        stdout: format!("{said}\n"),
        stderr: String::new(),
        code: Some(code),
        took: Duration::ZERO,
        bytes: 0,
        end: RunEnd::Own,
        group: 0,
    };
    Observed { ran, hits: Vec::new() }
}

fn other() -> Target {
    Target::Other(Box::new(Sandbox::named_or_typed("box --all").expect("well-formed")))
}

#[test]
fn observed_effects_take_precedence_over_output() {
    let mut seen = seen("EPERM", 0);
    seen.hits.push("a process of the host was hurt".to_owned());
    let verdict = verdict(&probe(), &Target::Own, ControlResult::Yes, &seen);
    assert_eq!(
        verdict,
        AttackVerdict::Breach { seen: "a process of the host was hurt".to_owned() }
    );
}

#[test]
fn the_exact_answer_is_held_and_any_other_is_not() {
    let judge = |said: &str, code, target: &Target| {
        verdict(&probe(), target, ControlResult::Yes, &seen(said, code))
    };
    let held = AttackVerdict::Held { unshown: None };
    assert_eq!(judge("EPERM", 0, &Target::Own), held);
    assert_eq!(judge("whatever", 123, &Target::Own), held);
    // Another sandbox may refuse in a different way; cofferdam may not.
    assert_eq!(judge("ENOSYS", 0, &other()), held);
    assert_eq!(
        judge("ENOSYS", 0, &Target::Own),
        AttackVerdict::Breach { seen: "`ENOSYS`, exit 0".to_owned() }
    );
    assert_eq!(judge("4", 0, &other()), AttackVerdict::Breach { seen: "`4`, exit 0".to_owned() });
    assert_eq!(
        judge("", 1, &Target::Own),
        AttackVerdict::NoVerdict { seen: "``, exit 1".to_owned() }
    );
}

#[test]
fn a_control_that_fails_leaves_no_verdict() {
    let failed = shown(&probe(), &seen("EPERM", 0), OuterFilter::None);
    assert_eq!(failed, ControlResult::Failed("without a sandbox: `EPERM`, exit 0".to_owned()));
    let verdict = verdict(&probe(), &Target::Own, failed, &seen("EPERM", 0));
    assert!(matches!(verdict, AttackVerdict::NoVerdict { .. }), "{verdict:?}");
}

#[test]
fn a_control_succeeds_by_output_or_effect_or_gives_a_reason() {
    assert_eq!(shown(&probe(), &seen("7", 0), OuterFilter::None), ControlResult::Yes);
    let mut hit = seen("", 0);
    hit.hits.push("files of the host were changed".to_owned());
    assert_eq!(shown(&probe(), &hit, OuterFilter::None), ControlResult::Yes);
    let not_here = shown(&probe(), &seen("EACCES", 0), OuterFilter::None);
    assert_eq!(not_here, ControlResult::NotHere("an old kernel: EACCES".to_owned()));
    let root_only = Attack { control: ControlMode::Root, ..probe() };
    assert_eq!(without_control(&root_only, true, OuterFilter::None), None);
    let not_tried = without_control(&root_only, false, OuterFilter::None);
    assert!(matches!(not_tried, Some(ControlResult::NotHere(_))), "{not_tried:?}");
}

#[test]
fn an_answer_of_an_outer_filter_is_held_only_where_there_is_one() {
    let unshown = Some(Unshown { says: vec!["ENOSYS".to_owned()], why: "old".to_owned() });
    let probe = Attack { unshown, ..probe() };
    let judge = |outer, inside: &str| {
        let shown = shown(&probe, &seen("ENOSYS", 0), outer);
        verdict(&probe, &Target::Own, shown, &seen(inside, 0))
    };
    let breach = AttackVerdict::Breach { seen: "`ENOSYS`, exit 0".to_owned() };
    assert_eq!(
        judge(OuterFilter::None, "ENOSYS"),
        breach,
        "the kernel lacks the call, and our filter allowed it"
    );
    let why = "a filter around this process refuses it to everybody here: ENOSYS".to_owned();
    assert_eq!(judge(OuterFilter::Some, "ENOSYS"), AttackVerdict::Held { unshown: Some(why) });
    let breach = AttackVerdict::Breach { seen: "`7`, exit 0".to_owned() };
    assert_eq!(judge(OuterFilter::Some, "7"), breach);
}

#[test]
fn under_an_outer_filter_a_control_for_root_runs_for_other_users_too() {
    let root_only = Attack { control: ControlMode::Root, ..probe() };
    assert_eq!(without_control(&root_only, false, OuterFilter::Some), None);
    let filtered = ControlResult::FilteredHere { said: "ENOSYS".to_owned() };
    assert_eq!(shown_to(false, &root_only, filtered.clone()), filtered);
    let failed = || ControlResult::Failed("without a sandbox: `EPERM`, exit 0".to_owned());
    let roots = ControlResult::NotHere("only root can do it without a sandbox".to_owned());
    assert_eq!(shown_to(false, &root_only, failed()), roots);
    assert_eq!(shown_to(true, &root_only, failed()), failed());
    assert_eq!(shown_to(false, &probe(), failed()), failed());
    assert_eq!(shown_to(false, &root_only, ControlResult::Yes), ControlResult::Yes);
}

#[test]
fn an_attack_that_does_not_apply_is_neither_held_nor_a_breach() {
    let ours = Attack { ours: Some("an option of ours".to_owned()), ..probe() };
    let separate = Isolation::Own;
    assert_eq!(not_applicable(&ours, &Target::Own, separate, true), None);
    let why = "an option of ours".to_owned();
    assert_eq!(
        not_applicable(&ours, &other(), separate, true),
        Some(AttackVerdict::NotApplicable { why })
    );
    let roots = Attack { whom: Whom::Root, ..probe() };
    let why = "for root only".to_owned();
    let verdict = not_applicable(&roots, &Target::Own, separate, false);
    assert_eq!(verdict, Some(AttackVerdict::NotApplicable { why }));
}

#[test]
fn a_harmful_attack_is_not_run_in_shared_namespaces() {
    let harmful = Attack { harm: Harm::WhereShared, ..probe() };
    let verdict_with = |isolation| not_applicable(&harmful, &other(), isolation, true);
    assert_eq!(verdict_with(Isolation::Own), None);
    assert!(matches!(verdict_with(Isolation::Shared), Some(AttackVerdict::NotApplicable { .. })));
    assert_eq!(not_applicable(&probe(), &other(), Isolation::Shared, true), None);
}

#[test]
fn an_attack_without_its_program_is_not_tried() {
    let probe = Attack { needs: vec!["python3".to_owned(), "node".to_owned()], ..probe() };
    let line = "export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin${PATH:+:$PATH}; \
        command -v python3 >/dev/null || { echo needs python3; exit; }; \
        command -v node >/dev/null || { echo needs node; exit; }; true";
    assert_eq!(checked_line(&probe, "true"), line);
    let judge = |said: &str| verdict(&probe, &Target::Own, ControlResult::Yes, &seen(said, 0));
    let why = "not tried: it needs `node`, which the sandbox lacks".to_owned();
    assert_eq!(judge("needs node"), AttackVerdict::NotApplicable { why });
    // Not the output of the check.
    let other = AttackVerdict::NoVerdict { seen: "`needs perl`, exit 0".to_owned() };
    assert_eq!(judge("needs perl"), other);
    let mut hurt = seen("needs node", 0);
    hurt.hits.push("a process of the host was hurt".to_owned());
    let verdict = verdict(&probe, &Target::Own, ControlResult::Yes, &hurt);
    assert!(matches!(verdict, AttackVerdict::Breach { .. }), "{verdict:?}");
}

#[test]
fn a_program_that_the_sandbox_only_leaves_out_of_its_search_path_is_tried() {
    let said = |needs: &[&str], path: &str| {
        let needs = needs.iter().map(|program| (*program).to_owned()).collect();
        let line = checked_line(&Attack { needs, ..probe() }, "env true && echo tried");
        let ran =
            std::process::Command::new("/bin/bash").args(["-c", &line]).env("PATH", path).output();
        String::from_utf8(ran.expect("it starts").stdout).expect("text")
    };
    // The control: without `needs` the line has the sandbox's search path.
    assert_eq!(said(&[], "/nowhere"), "");
    for path in ["/nowhere", "", stage::PATH] {
        assert_eq!(said(&["env"], path), "tried\n", "{path}");
        assert_eq!(said(&["env", "no-such-program"], path), "needs no-such-program\n", "{path}");
    }
}

#[test]
fn a_breach_counts_as_known_only_where_it_is_expected() {
    let breach = || AttackVerdict::Breach { seen: "4".to_owned() };
    let judge = |target: &Target, memory| known(&probe(), target, memory, breach());
    let why = "no control group".to_owned();
    let expected = AttackVerdict::Known { seen: "4".to_owned(), why };
    assert_eq!(judge(&Target::Own, Memory::BestEffort), expected);
    assert_eq!(judge(&Target::Own, Memory::ControlGroup), breach());
    assert_eq!(judge(&other(), Memory::BestEffort), breach());
    let held = AttackVerdict::Held { unshown: None };
    assert_eq!(known(&probe(), &Target::Own, Memory::BestEffort, held.clone()), held);
}

#[test]
fn a_call_of_another_architecture_alone_is_not_applicable() {
    let judge = |run: &str| {
        let probe = Attack { run: run.to_owned(), ..probe() };
        not_applicable(&probe, &Target::Own, Isolation::Own, true)
    };
    let other = if cfg!(target_arch = "x86_64") { "fstatat" } else { "uselib" };
    let why = format!("processors of this kind have no call `{other}`");
    assert_eq!(
        judge(&format!("{{probe}} call @{other} 1")),
        Some(AttackVerdict::NotApplicable { why })
    );
    assert_eq!(judge("{probe} call @openat 1"), None);
    // A typing error in the corpus: the helper makes no attempt, and there is no verdict.
    assert_eq!(judge("{probe} call @opennat 1"), None);
}

#[test]
fn only_an_answer_of_other_sandboxes_below_a_filter_may_be_the_filters() {
    let hit = Observed { hits: vec!["a file was read".to_owned()], ..seen("ENOSYS", 0) };
    let cases = [
        (OuterFilter::Some, seen("ENOSYS", 0), true),
        (OuterFilter::None, seen("ENOSYS", 0), false),
        (OuterFilter::Some, seen("0", 0), false),
        (OuterFilter::Some, hit, false),
    ];
    for (outer, seen, expected) in cases {
        assert_eq!(may_be_outer(&probe(), outer, &seen), expected, "{outer:?} {seen:?}");
    }
}
