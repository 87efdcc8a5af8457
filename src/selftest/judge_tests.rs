//! Tests of [`super`]: what counts as held, as a breach, and as neither.

use std::time::Duration;

use regex::Regex;

use super::*;
use crate::corpus::{Class, Company, Harm, KnownBreach, StartMode, Unshown};
use crate::launch::RunEnd;

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
        company: Company::Any,
        within: 20,
        most_bytes: None,
        first: None,
        network: crate::corpus::Network::Host,
        unreached: Vec::new(),
    }
}

fn seen(said: &str, code: i32) -> Seen {
    let ran = Ran {
        stdout: format!("{said}\n"),
        stderr: String::new(),
        code: Some(code),
        took: Duration::ZERO,
        bytes: 0,
        end: RunEnd::Own,
        group: 0,
    };
    Seen { ran, hits: Vec::new() }
}

fn other() -> Target {
    Target::Other(vec!["bwrap".to_owned()])
}

#[test]
fn what_was_hit_counts_before_what_was_said() {
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
    let of = |said: &str, code, target: &Target| {
        verdict(&probe(), target, ControlResult::Yes, &seen(said, code))
    };
    let held = AttackVerdict::Held { unshown: None };
    assert_eq!(of("EPERM", 0, &Target::Own), held);
    assert_eq!(of("whatever", 123, &Target::Own), held);
    // Another sandbox may refuse in its own way; cofferdam may not.
    assert_eq!(of("ENOSYS", 0, &other()), held);
    assert_eq!(
        of("ENOSYS", 0, &Target::Own),
        AttackVerdict::Breach { seen: "`ENOSYS`, exit 0".to_owned() }
    );
    assert_eq!(of("4", 0, &other()), AttackVerdict::Breach { seen: "`4`, exit 0".to_owned() });
    assert_eq!(of("", 1, &Target::Own), AttackVerdict::NoVerdict { seen: "``, exit 1".to_owned() });
}

#[test]
fn a_control_that_fails_leaves_no_verdict() {
    let failed = shown(&probe(), &seen("EPERM", 0), OuterFilter::None);
    assert_eq!(failed, ControlResult::Failed("without a sandbox: `EPERM`, exit 0".to_owned()));
    let verdict = verdict(&probe(), &Target::Own, failed, &seen("EPERM", 0));
    assert!(matches!(verdict, AttackVerdict::NoVerdict { .. }), "{verdict:?}");
}

#[test]
fn a_control_is_shown_by_what_was_said_or_hit_or_told_why_not() {
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
    let of = |outer, inside: &str| {
        let shown = shown(&probe, &seen("ENOSYS", 0), outer);
        verdict(&probe, &Target::Own, shown, &seen(inside, 0))
    };
    let breach = AttackVerdict::Breach { seen: "`ENOSYS`, exit 0".to_owned() };
    assert_eq!(of(OuterFilter::None, "ENOSYS"), breach, "the kernel lacks it, and ours let it by");
    let why = "a filter around this process refuses it to everybody here: ENOSYS".to_owned();
    assert_eq!(of(OuterFilter::Some, "ENOSYS"), AttackVerdict::Held { unshown: Some(why) });
    let breach = AttackVerdict::Breach { seen: "`7`, exit 0".to_owned() };
    assert_eq!(of(OuterFilter::Some, "7"), breach);
}

#[test]
fn under_an_outer_filter_a_control_of_roots_runs_for_others_to_tell_whose_answer_it_is() {
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
fn what_does_not_apply_is_neither_held_nor_a_breach() {
    let ours = Attack { ours: Some("an option of ours".to_owned()), ..probe() };
    let own = Isolation::Own;
    assert_eq!(not_applicable(&ours, &Target::Own, own, true), None);
    let why = "an option of ours".to_owned();
    assert_eq!(
        not_applicable(&ours, &other(), own, true),
        Some(AttackVerdict::NotApplicable { why })
    );
    let roots = Attack { whom: Whom::Root, ..probe() };
    let why = "for root only".to_owned();
    let verdict = not_applicable(&roots, &Target::Own, own, false);
    assert_eq!(verdict, Some(AttackVerdict::NotApplicable { why }));
}

#[test]
fn what_would_harm_the_host_is_not_run_where_its_namespaces_are_shared() {
    let harmful = Attack { harm: Harm::WhereShared, ..probe() };
    let of = |isolation| not_applicable(&harmful, &other(), isolation, true);
    assert_eq!(of(Isolation::Own), None);
    assert!(matches!(of(Isolation::Shared), Some(AttackVerdict::NotApplicable { .. })));
    assert_eq!(not_applicable(&probe(), &other(), Isolation::Shared, true), None);
}

#[test]
fn a_known_breach_is_told_as_such_only_where_it_is_to_be_expected() {
    let breach = || AttackVerdict::Breach { seen: "4".to_owned() };
    let told = |target: &Target, memory| known(&probe(), target, memory, breach());
    let why = "no control group".to_owned();
    let expected = AttackVerdict::Known { seen: "4".to_owned(), why };
    assert_eq!(told(&Target::Own, Memory::BestEffort), expected);
    assert_eq!(told(&Target::Own, Memory::ControlGroup), breach());
    assert_eq!(told(&other(), Memory::BestEffort), breach());
    let held = AttackVerdict::Held { unshown: None };
    assert_eq!(known(&probe(), &Target::Own, Memory::BestEffort, held.clone()), held);
}

#[test]
fn a_call_of_another_architecture_alone_is_not_applicable() {
    let of = |run: &str| {
        let probe = Attack { run: run.to_owned(), ..probe() };
        not_applicable(&probe, &Target::Own, Isolation::Own, true)
    };
    let other = if cfg!(target_arch = "x86_64") { "fstatat" } else { "uselib" };
    let why = format!("processors of this kind have no call `{other}`");
    assert_eq!(
        of(&format!("{{probe}} call @{other} 1")),
        Some(AttackVerdict::NotApplicable { why })
    );
    assert_eq!(of("{probe} call @openat 1"), None);
    // A mistake of ours: the helper makes no attempt, and that is no verdict.
    assert_eq!(of("{probe} call @opennat 1"), None);
}
