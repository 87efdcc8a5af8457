//! Tests of what the lower tier refuses, on the shipped profile with the most calls.

use crate::profile::{Profiles, shipped};
use model::egress::NetworkClass;
use model::profile::calls::number;
use model::profile::tier::REFUSED;
use model::profile::{ProcView, Profile, floor};
use model::receipt::{MemoryHold, Tier};

fn bash(tier: Tier) -> Profile {
    let profiles = Profiles::parse(&shipped(), &[]).unwrap_or_else(|error| panic!("{error}"));
    let profile = profiles.iter().find(|profile| profile.name.as_str() == "bash");
    profile.cloned().map(|profile| profile.in_tier(tier)).unwrap_or_else(Profile::nothing)
}

fn allows(tier: Tier, call: &str, arguments: [u64; 6]) -> bool {
    let verdicts = floor::verdicts(&bash(tier), MemoryHold::CgroupV2);
    let number = number(call).unwrap_or(u32::MAX);
    verdicts.get(&number).is_some_and(|verdict| verdict.allows(&arguments))
}

#[test]
fn calls_that_landlock_does_not_cover_are_refused_without_namespaces() {
    for call in REFUSED.iter().flat_map(|group| group.names) {
        let arguments = match *call {
            "socket" => [1, 1, 0, 0, 0, 0],
            "chown" | "lchown" | "fchown" => [0, 1000, 1000, 0, 0, 0],
            "fchownat" => [0, 0, 1000, 1000, 0, 0],
            _ => [0; 6],
        };
        let listed = bash(Tier::Full).calls.contains(&number(call).unwrap_or(u32::MAX));
        let has = listed || *call == "socket";
        assert_eq!(allows(Tier::Full, call, arguments), has, "{call}");
        assert!(!allows(Tier::Bare, call, arguments), "{call}");
        let number = number(call).unwrap_or(u32::MAX);
        let grant = floor::grant_for(number, &bash(Tier::Bare));
        assert_eq!(grant.grant(), None, "{call}: no key of a profile allows it");
    }
}

#[test]
fn without_a_pid_namespace_a_process_changes_only_itself() {
    for (call, itself, another) in [
        ("setpriority", [0, 0, 5, 0, 0, 0], [0, 77, 5, 0, 0, 0]),
        ("setpriority", [0, 0, 5, 0, 0, 0], [1, 0, 5, 0, 0, 0]),
        ("ioprio_set", [1, 0, 0, 0, 0, 0], [1, 77, 0, 0, 0, 0]),
        ("ioprio_set", [1, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0]),
        ("sched_setaffinity", [0, 8, 0, 0, 0, 0], [77, 8, 0, 0, 0, 0]),
        ("sched_setscheduler", [0, 3, 0, 0, 0, 0], [77, 3, 0, 0, 0, 0]),
        ("sched_setparam", [0; 6], [77, 0, 0, 0, 0, 0]),
    ] {
        assert!(allows(Tier::Bare, call, itself), "{call}");
        assert!(allows(Tier::Full, call, another), "{call}: the control");
        assert!(!allows(Tier::Bare, call, another), "{call}");
    }
    assert!(!allows(Tier::Bare, "sched_setscheduler", [0, 1, 0, 0, 0, 0]), "the floor holds");
}

#[test]
fn socket_pairs_remain_allowed_except_for_datagrams() {
    let pair = |kind| allows(Tier::Bare, "socketpair", [1, kind, 0, 0, 0, 0]);
    assert_eq!([1, 2, 5].map(pair), [true, false, true], "stream, datagram, sequenced packets");
    assert!(allows(Tier::Full, "socketpair", [1, 2, 0, 0, 0, 0]), "the control");
    assert!(allows(Tier::Bare, "sendto", [3, 1, 1, 0, 0, 0]));
    assert!(!allows(Tier::Bare, "sendto", [3, 1, 1, 0, 0x7000, 16]));
}

#[test]
fn the_time_of_an_open_file_is_set_to_now_and_nothing_else() {
    let set = |path, times| allows(Tier::Bare, "utimensat", [3, path, times, 0, 0, 0]);
    assert_eq!([set(0, 0), set(0x7000, 0), set(0, 0x7000)], [true, false, false]);
    assert!(allows(Tier::Full, "utimensat", [3, 0x7000, 0x7000, 0, 0, 0]), "the control");
}

#[test]
fn a_profile_promises_nothing_that_the_tier_has_not() {
    let bare = bash(Tier::Bare);
    assert_eq!((bare.proc, bare.egress.class), (ProcView::None, NetworkClass::None));
    assert_eq!(bash(Tier::Full).egress.class, NetworkClass::Loopback);
}
