//! Tests that every system call is classified, and that the floor holds whatever a profile says.

use std::collections::BTreeSet;

use crate::document::Document;
use crate::profile::Profiles;
use model::job::ProfileName;
use model::profile::calls::{self, name, number};
use model::profile::condition::Verdict;
use model::profile::floor::*;
use model::profile::never::*;
use model::profile::{Exec, Family, Profile};
use model::receipt::{MemoryHold, Tier};

fn shipped(name: &str) -> Profile {
    let profiles =
        Profiles::parse(&crate::profile::shipped(), &[]).unwrap_or_else(|e| panic!("{e}"));
    let profile = ProfileName::new(name).and_then(|name| profiles.get(&name).cloned());
    profile.unwrap_or_else(|| panic!("no profile `{name}`"))
}

fn verdict(name: &str, profile: &Profile, memory: MemoryHold) -> Option<Verdict> {
    number(name).and_then(|number| verdicts(profile, memory).remove(&number))
}

/// Makes a profile that lists every number, which no file can.
fn greedy() -> Profile {
    Profile { calls: (0..600).collect(), quiet: BTreeSet::new(), ..shipped("bash") }
}

#[test]
fn every_call_of_the_table_is_classified_exactly_once() {
    let bash = shipped("bash");
    let listed: BTreeSet<&str> = classified().collect();
    assert_eq!(listed.len(), classified().count(), "a name stands in two groups");
    for number in 0..=470 {
        let name = name(number);
        if name.starts_with("syscall ") {
            assert!(!bash.calls.contains(&number), "{number} has no name");
            continue;
        }
        let granted = bash.calls.contains(&number);
        // `sysinfo` and `get_mempolicy` are refused without being counted, and can be granted.
        let quiet = bash.quiet.contains(&number) && reason(&name).is_none();
        let classes = [granted, listed.contains(name.as_str()), quiet];
        assert_eq!(classes.iter().filter(|class| **class).count(), 1, "{name}: {classes:?}");
    }
}

#[test]
fn every_name_of_the_floor_is_a_system_call() {
    let other = NEEDS_MEMORY_CGROUP.iter().chain(FORKS).copied();
    for name in classified().chain(other) {
        assert!(calls::lookup(name).is_some(), "{name}");
    }
}

#[test]
fn ungrantable_calls_are_denied_to_a_profile_that_lists_everything() {
    let verdicts = verdicts(&greedy(), MemoryHold::CgroupV2);
    for name in NEVER.iter().flat_map(|group| group.names) {
        let verdict = number(name).and_then(|number| verdicts.get(&number));
        assert_eq!(verdict, None, "{name}");
    }
}

#[test]
fn clone3_and_openat2_are_absent_in_every_profile() {
    for profile in [greedy(), shipped("bash"), shipped("bc")] {
        for name in ["clone3", "openat2"] {
            let answer = verdict(name, &profile, MemoryHold::CgroupV2);
            assert_eq!(answer, Some(Verdict::Errno(libc::ENOSYS)), "{name}");
        }
    }
}

#[test]
fn what_only_namespaces_make_harmless_stays_refused_without_them() {
    let full = shipped("bash");
    let bare = shipped("bash").in_tier(Tier::Bare);
    let owner = [0, 8, 3, 0, 0, 0];
    let allows = |profile: &Profile| {
        let verdict = verdict("fcntl", profile, MemoryHold::BestEffort);
        verdict.is_some_and(|verdict| verdict.allows(&owner))
    };
    assert_eq!((allows(&full), allows(&bare)), (true, false), "F_SETOWN");
    let shmget = number("shmget");
    let asked = |profile: &Profile, memory| asked_for_segments(profile, memory);
    assert_eq!(asked(&full, MemoryHold::BestEffort), shmget);
    assert_eq!(asked(&full, MemoryHold::CgroupV2), None, "the group counts its pages");
    assert_eq!(asked(&bare, MemoryHold::BestEffort), None, "no IPC namespace");
    assert_eq!(asked(&shipped("bc"), MemoryHold::BestEffort), None, "not listed");
    assert_eq!(verdict("shmget", &bare, MemoryHold::BestEffort), None);
    let existing = verdict("shmget", &full, MemoryHold::BestEffort);
    let existing =
        existing.map(|verdict| (verdict.allows(&[0; 6]), verdict.allows(&[0, 1, 0, 0, 0, 0])));
    assert_eq!(existing, Some((true, false)), "an existing segment; a new one");
}

#[test]
fn sync_has_no_effect_even_where_a_profile_lists_it() {
    let listed = |name: &str| {
        let mut profile = shipped("bash");
        profile.calls.extend(number(name));
        profile
    };
    for name in ["sync", "syncfs"] {
        for profile in [greedy(), shipped("bash"), shipped("bc"), listed(name)] {
            for memory in [MemoryHold::CgroupV2, MemoryHold::BestEffort] {
                assert_eq!(verdict(name, &profile, memory), Some(Verdict::Errno(0)), "{name}");
            }
        }
    }
    for name in ["fsync", "fdatasync", "sync_file_range"] {
        let verdict = verdict(name, &shipped("bash"), MemoryHold::BestEffort);
        assert_eq!(verdict, Some(Verdict::Allow), "{name}");
    }
}

#[test]
fn calls_that_make_unseen_memory_need_a_memory_cgroup() {
    let bash = shipped("bash");
    for name in NEEDS_MEMORY_CGROUP {
        for mechanism in [MemoryHold::CgroupV1, MemoryHold::CgroupV2] {
            assert_eq!(verdict(name, &bash, mechanism), Some(Verdict::Allow), "{name}");
        }
        assert_eq!(verdict(name, &bash, MemoryHold::BestEffort), None, "{name}");
    }
}

#[test]
fn one_program_means_no_fork_and_no_second_program() {
    let only = Profile { exec: Exec::Only("/usr/bin/bc".into()), ..greedy() };
    for name in FORKS.iter().copied().chain(["execve"]) {
        assert_eq!(verdict(name, &only, MemoryHold::CgroupV2), None, "{name}");
    }
    let held_descriptor = [1000, 0, 0, 0, 0x1000, 0];
    let execveat = verdict("execveat", &only, MemoryHold::CgroupV2);
    assert_eq!(execveat.as_ref().map(|verdict| verdict.allows(&held_descriptor)), Some(true));
    assert_eq!(execveat.map(|verdict| verdict.allows(&[0; 6])), Some(false));
}

#[test]
fn hot_calls_have_no_condition() {
    let hot = [
        "read",
        "write",
        "close",
        "mmap",
        "munmap",
        "mprotect",
        "brk",
        "newfstatat",
        "statx",
        "lseek",
        "poll",
        "epoll_wait",
        "rt_sigprocmask",
        "rt_sigreturn",
        "exit_group",
        "getrandom",
        "rseq",
        "clock_gettime",
        "wait4",
        "execve",
        "recvfrom",
        "sched_yield",
    ];
    let bash = shipped("bash");
    for name in hot.iter().filter(|name| number(name).is_some()) {
        assert_eq!(verdict(name, &bash, MemoryHold::CgroupV2), Some(Verdict::Allow), "{name}");
        let best_effort = verdict(name, &bash, MemoryHold::BestEffort);
        assert!(*name == SHARES || best_effort == Some(Verdict::Allow), "{name}");
    }
}

#[test]
fn shared_memory_without_a_file_is_mediated_if_no_group_limits_memory() {
    let mmap = verdict(SHARES, &shipped("bash"), MemoryHold::BestEffort);
    let shared = 1;
    let private = 2;
    let anonymous = 0x20;
    let allows = |flags| mmap.as_ref().is_some_and(|mmap| mmap.allows(&[0, 1, 3, flags, 0, 0]));
    assert!(allows(private | anonymous) && allows(shared) && allows(private));
    assert!(!allows(shared | anonymous) && !allows(shared | anonymous | 0x4000));
    // MAP_SHARED_VALIDATE, which the kernel refuses without a file.
    assert!(!allows(3 | anonymous));
}

#[test]
fn no_verdict_is_an_empty_condition() {
    for profile in [greedy(), shipped("bash"), shipped("bc")] {
        for (number, verdict) in verdicts(&profile, MemoryHold::CgroupV2) {
            let empty = match &verdict {
                Verdict::AllowIf(any) | Verdict::AllowOrProbe(any, _) => {
                    any.is_empty() || any.iter().any(Vec::is_empty)
                }
                Verdict::Allow | Verdict::Errno(_) | Verdict::Answered => false,
            };
            assert!(!empty, "{}", name(number));
        }
    }
}

#[test]
fn bc_reaches_no_socket_process_or_file_change() {
    let bc = verdicts(&shipped("bc"), MemoryHold::BestEffort);
    let refused = [
        "socket",
        "socketpair",
        "connect",
        "bind",
        "clone",
        "fork",
        "vfork",
        "execve",
        "unlink",
        "mkdir",
        "ptrace",
        "memfd_create",
        "shmget",
        "unshare",
        "inotify_init1",
        "setsid",
    ];
    for name in refused {
        assert_eq!(number(name).and_then(|number| bc.get(&number)), None, "{name}");
    }
}

fn grant(name: &str, profile: &Profile) -> Option<Grantable> {
    number(name).map(|number| grant_for(number, profile))
}

#[test]
fn a_denied_call_names_the_key_that_would_allow_it() {
    let bc = shipped("bc");
    let key = |line: &str| Some(Grantable::Key(line.to_owned()));
    assert_eq!(grant("io_setup", &bc), key("[[syscalls]] names = [\"io_setup\"]"));
    assert_eq!(grant("sysinfo", &bc), key("[[syscalls]] names = [\"sysinfo\"]"));
    assert_eq!(
        grant("socket", &bc),
        key("sockets = { families = [\"unix\", \"inet\", \"inet6\"] }")
    );
    assert_eq!(grant("execve", &bc), key("exec = { program = \"any\" }"));
    let fork = "exec = { program = \"any\" } and [[syscalls]] names = [\"vfork\"]";
    let words = |name| grant(name, &bc).and_then(|grantable| grantable.grant()).unwrap_or_default();
    assert_eq!(words("vfork"), fork);
    // The same call starts threads: a library setting that avoids them is suggested before
    // processes.
    let (threads, processes) = words("clone")
        .split_once("; ")
        .map(|(threads, processes)| (threads.to_owned(), processes.to_owned()))
        .unwrap_or_default();
    assert!(threads.contains("[env] set = { OPENBLAS_NUM_THREADS = \"1\""), "{threads}");
    assert!(processes.ends_with(&fork.replace("vfork", "clone")), "{processes}");
    let unix = Profile { families: BTreeSet::from([Family::Unix]), ..bc };
    assert_eq!(grant("socket", &unix), key("sockets = { families = [\"inet\", \"inet6\"] }"));
}

#[test]
fn a_denied_call_without_a_grant_has_a_reason() {
    let bash = shipped("bash");
    assert_eq!(
        grant("mount", &bash),
        Some(Grantable::Never("it changes or reads the mount tree, which is the wall of the cell"))
    );
    assert_eq!(grant("clone", &bash), Some(Grantable::Arguments("cells make no namespaces")));
    assert_eq!(grant("openat", &bash), Some(Grantable::Arguments("cells make no set-id files")));
    assert_eq!(grant("memfd_create", &bash), Some(Grantable::MemoryCgroup(None)));
    assert_eq!(grant_for(100_000, &bash), Grantable::Never("this version does not know the call"));
}

/// Returns true if a call is allowed with some arguments.
fn can_be_called(call: u32, profile: &Profile, memory: MemoryHold) -> bool {
    match verdicts(profile, memory).get(&call) {
        Some(Verdict::Errno(_)) | None => false,
        Some(_) => true,
    }
}

/// Adds a grant to the profile, as an operator would.
fn with(profile: &Profile, call: u32, grantable: &Grantable) -> Profile {
    let mut granted = profile.clone();
    match grantable {
        Grantable::Key(line) if line == EXEC_ANY => granted.exec = Exec::Any,
        Grantable::Key(line) if line.starts_with("sockets = ") => {
            granted.families = BTreeSet::from([Family::Unix, Family::Inet, Family::Inet6]);
        }
        Grantable::Key(_) | Grantable::MemoryCgroup(Some(_)) => drop(granted.calls.insert(call)),
        Grantable::CallAndExec(_) => {
            granted.calls.insert(call);
            granted.exec = Exec::Any;
        }
        Grantable::MemoryCgroup(None) | Grantable::Arguments(_) | Grantable::Never(_) => {}
    }
    granted
}

/// Asserts that the filter agrees with the answer of [`grant_for`].
fn assert_answer_is_true(call: u32, profile: &Profile, memory: MemoryHold) {
    let answer = grant_for(call, profile);
    let context = format!("{call} ({}) under {}: {answer:?}", name(call), profile.name);
    assert_eq!(answer.grant().is_some(), answer.reason_for_none().is_none(), "{context}");
    let granted = with(profile, call, &answer);
    match &answer {
        Grantable::Key(_) | Grantable::CallAndExec(_) => {
            assert!(can_be_called(call, &granted, memory), "{context}");
        }
        Grantable::MemoryCgroup(_) => {
            assert!(can_be_called(call, &granted, MemoryHold::CgroupV2), "{context}");
            assert!(!can_be_called(call, &granted, MemoryHold::BestEffort), "{context}");
        }
        // The call is allowed, but not with these arguments.
        Grantable::Arguments(_) => {
            let verdict = verdicts(profile, memory).remove(&call);
            assert!(
                matches!(verdict, Some(Verdict::AllowIf(_) | Verdict::AllowOrProbe(..))),
                "{context}"
            );
        }
        Grantable::Never(_) => assert!(!can_be_called(call, &greedy(), memory), "{context}"),
    }
}

#[test]
fn the_answer_for_every_number_that_can_be_denied_is_true() {
    let only = |name: &str| Profile { exec: Exec::Only("/usr/bin/bc".into()), ..shipped(name) };
    let mut checked = 0;
    for profile in [shipped("bash"), shipped("bc"), shipped("cli-jq"), only("bash")] {
        for memory in [MemoryHold::BestEffort, MemoryHold::CgroupV1, MemoryHold::CgroupV2] {
            let verdicts = verdicts(&profile, memory);
            // Init counts numbers below 512 separately.
            for call in 0..=512 {
                let denied = match verdicts.get(&call) {
                    Some(Verdict::Allow | Verdict::Errno(_) | Verdict::Answered) => false,
                    Some(Verdict::AllowIf(_) | Verdict::AllowOrProbe(..)) | None => true,
                };
                if denied {
                    assert_answer_is_true(call, &profile, memory);
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 2000, "{checked}");
}

#[test]
fn every_group_has_names_and_a_reason_without_a_full_stop() {
    for group in NEVER.iter().chain(ABSENT).chain(ON_REQUEST) {
        assert!(!group.why.trim().is_empty() && !group.why.ends_with('.'), "{}", group.why);
        assert!(!group.names.is_empty(), "{}", group.why);
    }
}

#[test]
fn a_grant_on_request_can_be_listed() {
    let names: Vec<String> =
        ON_REQUEST.iter().flat_map(|group| group.names).map(|name| format!("\"{name}\"")).collect();
    let text = format!(
        "schema = 1\nname = \"a\"\ndescription = \"d\"\nexec = {{ program = \"any\", why = \"w\" }}\n\
         [[syscalls]]\nwhy = \"w\"\nnames = [{}]\n",
        names.join(", ")
    );
    let parsed = Profiles::parse(&[], &[Document::new("a.toml", &text)]);
    assert!(parsed.is_ok(), "{parsed:?}");
}
