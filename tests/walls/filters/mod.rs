//! Every filter that a shipped profile compiles to, against a plain reading of the profile: all numbers,
//! all tables, and the corners of every argument.

mod guarded;
mod machine;
mod plain;
mod processes;

use std::collections::BTreeSet;

use cell::seccomp::{Recording, init_filter, payload_filter, payload_verdicts};
use config::profile::{Profiles, shipped};
use machine::{Call, run};
use model::egress::{Egress, NetworkClass};
use model::profile::condition::Verdict;
use model::profile::{Family, Profile};
use model::receipt::MemoryHold;
use plain::{Answer, Plain};
use sys::bpf::Instruction;

use crate::support::{Check, PlainTest};

/// The tests by their names. No test needs a caller or a cell: the filters are read here.
pub const TESTS: &[PlainTest] = &[
    ("every_number_of_every_table_is_answered_as_the_profile_reads", || {
        passes(every_number_of_every_table_is_answered_as_the_profile_reads)
    }),
    ("the_corners_of_every_argument_are_answered_as_the_profile_reads", || {
        passes(the_corners_of_every_argument_are_answered_as_the_profile_reads)
    }),
    ("arguments_that_decide_together_are_answered_as_the_profile_reads", || {
        passes(arguments_that_decide_together_are_answered_as_the_profile_reads)
    }),
    ("an_init_has_no_call_that_starts_opens_for_others_or_asks_a_listener", || {
        passes(an_init_has_no_call_that_starts_opens_for_others_or_asks_a_listener)
    }),
    ("a_recorded_call_asks_the_listener_where_it_would_be_allowed_and_nowhere_else", || {
        passes(a_recorded_call_asks_the_listener_where_it_would_be_allowed_and_nowhere_else)
    }),
    ("guarded::a_grant_makes_the_filter_ask_about_names_and_sockets_and_nothing_else", || {
        passes(guarded::a_grant_makes_the_filter_ask_about_names_and_sockets_and_nothing_else)
    }),
    ("guarded::an_init_can_do_what_its_cells_ask_about_and_executes_nothing", || {
        passes(guarded::an_init_can_do_what_its_cells_ask_about_and_executes_nothing)
    }),
    ("processes::a_front_end_is_answered_as_its_list_reads", || {
        passes(processes::a_front_end_is_answered_as_its_list_reads)
    }),
    ("processes::a_watcher_of_a_project_is_answered_as_its_list_reads", || {
        passes(processes::a_watcher_of_a_project_is_answered_as_its_list_reads)
    }),
    ("processes::a_supervisor_is_answered_as_its_list_and_its_profiles_read", || {
        passes(processes::a_supervisor_is_answered_as_its_list_and_its_profiles_read)
    }),
];

/// Runs a test that fails by a panic, which the harness reports.
fn passes(test: fn()) -> Check {
    test();
    Ok(())
}

/// True where this is built for x86_64; else it is built for aarch64.
const IS_X86: bool = cfg!(target_arch = "x86_64");
const X86_64: u32 = 0xc000_003e;
const AARCH64: u32 = 0xc000_00b7;
/// The architecture whose calls are allowed.
const OURS: u32 = if IS_X86 { X86_64 } else { AARCH64 };
/// The other one, i386, arm, and what is no architecture.
const OTHERS: [u32; 5] =
    [if IS_X86 { AARCH64 } else { X86_64 }, 0x4000_0003, 0x4000_0028, 0, u32::MAX];
/// Bit of the numbers of x32, which only x86_64 has.
const X32: u32 = 0x4000_0000;
/// Beyond every number that a kernel has.
const NUMBERS: u32 = 1024;
/// Held by either version of cgroups, and not held.
const HOLDS: [MemoryHold; 2] = [MemoryHold::CgroupV2, MemoryHold::BestEffort];

/// Returns the kernel's name of a call on this architecture.
fn name_of(number: u32) -> &'static str {
    let call = usize::try_from(number).ok().and_then(syscalls::Sysno::new);
    match call.map(|call| call.name()).unwrap_or_default() {
        // The table of aarch64, by the C library's names.
        "fstatat" => "newfstatat",
        name => name,
    }
}

/// Returns the number of a call, or `None` if this architecture lacks it.
fn number_of(name: &str) -> Option<u32> {
    (0..NUMBERS).find(|number| name_of(*number) == name)
}

/// A filter as the supervisor makes it, and the profile as it reads.
struct Case {
    name: String,
    program: Vec<Instruction>,
    plain: Plain,
    /// Numbers of the calls whose arguments are looked at.
    conditional: Vec<u32>,
}

fn compiled(profile: &Profile, hold: MemoryHold) -> Vec<Instruction> {
    payload_filter(&payload_verdicts(profile, hold), &[]).expect("it compiles")
}

/// Each shipped profile, with each way memory is held, each network, and each set of socket families.
fn cases() -> Vec<Case> {
    let profiles = Profiles::parse(&shipped(), &[]).expect("shipped profiles");
    let mut cases = Vec::new();
    for profile in profiles.iter() {
        let versions =
            [MemoryHold::CgroupV1, MemoryHold::CgroupV2].map(|hold| compiled(profile, hold));
        assert!(versions[0] == versions[1], "{}: a cgroup is a cgroup", profile.name);
        for hold in HOLDS {
            for families in families(profile) {
                let profile = Profile { families: families.clone(), ..profile.clone() };
                let program = compiled(&profile, hold);
                for network in [NetworkClass::None, NetworkClass::Loopback] {
                    // The network namespace decides about a loopback, not the filter.
                    let other = compiled(
                        &Profile {
                            egress: Egress { class: network, ..Egress::default() },
                            ..profile.clone()
                        },
                        hold,
                    );
                    // The sockets of ping(8) have a meaning behind a gateway alone.
                    let pings = profile.egress.class.has_egress()
                        && families.iter().any(|family| *family != Family::Unix);
                    assert!((other == program) != pings, "{} with {network:?}", profile.name);
                }
                let name = format!("{} {hold:?} {families:?}", profile.name);
                let memory_is_held = hold != MemoryHold::BestEffort;
                let mut plain = Plain::read(profile.name.as_str());
                (plain.families, plain.memory_is_held) = (families, memory_is_held);
                let verdicts = payload_verdicts(&profile, hold);
                let looked_at = |verdict: &Verdict| {
                    matches!(verdict, Verdict::AllowIf(_) | Verdict::AllowOrProbe(..))
                };
                let conditional = verdicts.iter().filter(|(_, verdict)| looked_at(verdict));
                let conditional = conditional.map(|(number, _)| *number).collect();
                cases.push(Case { name, program, plain, conditional });
            }
        }
    }
    assert!(cases.len() > 20, "only {} cases", cases.len());
    cases
}

/// The profile's own, and where it has sockets every set of them.
fn families(profile: &Profile) -> Vec<BTreeSet<Family>> {
    if profile.families.is_empty() {
        return vec![BTreeSet::new()];
    }
    let all = [Family::Unix, Family::Inet, Family::Inet6];
    let chosen = |bits: u32| {
        let picked = (0..).zip(all).filter(|(bit, _)| bits & 1 << bit != 0);
        picked.map(|(_, family)| family).collect()
    };
    (0..8).map(chosen).collect()
}

impl Case {
    /// Checks a call by its name, where this architecture has it.
    fn check_named(&self, name: &str, arguments: [u64; 6]) {
        if let Some(number) = number_of(name) {
            self.check(number, arguments);
        }
    }

    fn check(&self, number: u32, arguments: [u64; 6]) {
        let name = name_of(number);
        let found = run(&self.program, &Call { arch: OURS, number, arguments });
        let wanted = self.plain.answer(name, &arguments);
        assert!(
            found == wanted.value(),
            "{}: {name} ({number}) with {arguments:x?}: {found:#x} where {wanted:?} belongs",
            self.name
        );
    }
}

/// Every value that a program compares an argument with or masks it by, its neighbours, and what the
/// upper half of a register can hide.
fn corners(program: &[Instruction]) -> Vec<u64> {
    const LOAD: u16 = 0x20;
    let mut of_argument = false;
    let constants = program.iter().filter(|step| {
        of_argument = if step.code == LOAD { step.k >= 16 } else { of_argument };
        of_argument && ![LOAD, 0x05, 0x06].contains(&step.code)
    });
    let mut values: BTreeSet<u64> = BTreeSet::from([0, 1, 2, u64::MAX, 1 << 31, 1 << 32, 1 << 63]);
    for constant in constants.map(|step| u64::from(step.k)) {
        let near =
            [constant, constant.wrapping_sub(1), constant + 1, !constant, constant ^ 0xffff_ffff];
        values.extend(near);
    }
    let low: Vec<u64> = values.iter().map(|value| value & 0xffff_ffff).collect();
    values.extend(low.iter().flat_map(|low| [low | 1 << 32, low | 0xffff_ffff << 32]));
    values.into_iter().collect()
}

fn every_number_of_every_table_is_answered_as_the_profile_reads() {
    let mut answers = BTreeSet::new();
    for case in cases() {
        for number in 0..NUMBERS {
            for arguments in [[0; 6], [1; 6], [u64::MAX; 6], [1 << 32; 6]] {
                case.check(number, arguments);
                let call = Call { arch: OURS, number, arguments };
                answers.insert(run(&case.program, &call));
                let refused = Answer::Errno(libc::ENOSYS).value();
                if IS_X86 {
                    let x32 = Call { number: number | X32, ..call };
                    assert_eq!(run(&case.program, &x32), refused, "{}: x32 {number}", case.name);
                }
                for arch in OTHERS {
                    let other = Call { arch, ..call };
                    assert_eq!(run(&case.program, &other), refused, "{}: {arch:#x}", case.name);
                }
            }
        }
        for number in [u32::MAX, X32 - 1, 1 << 31, 1 << 16] {
            let found = run(&case.program, &Call { arch: OURS, number, arguments: [0; 6] });
            assert_ne!(found, Answer::Allow.value(), "{}: {number:#x}", case.name);
        }
    }
    // The control: each kind of answer was met.
    let kinds =
        [Answer::Allow, Answer::Listener, Answer::Errno(libc::EPERM), Answer::Errno(libc::ENOSYS)];
    for kind in kinds {
        assert!(answers.contains(&kind.value()), "{kind:?} was never answered");
    }
}

fn the_corners_of_every_argument_are_answered_as_the_profile_reads() {
    // Families change two calls, which are tested separately: all of them or an empty list suffices here.
    let whole = |case: &Case| [0, 3].contains(&case.plain.families.len());
    for case in cases().into_iter().filter(whole) {
        let corners = corners(&case.program);
        assert!(case.conditional.len() > 3, "{}: {:?}", case.name, case.conditional);
        for number in case.conditional.iter().copied() {
            for value in &corners {
                case.check(number, [*value; 6]);
            }
            for place in 0..6 {
                for value in &corners {
                    for rest in [0, u64::MAX] {
                        let mut arguments = [rest; 6];
                        if let Some(argument) = arguments.get_mut(place) {
                            *argument = *value;
                        }
                        case.check(number, arguments);
                    }
                }
            }
        }
    }
}

fn arguments_that_decide_together_are_answered_as_the_profile_reads() {
    const FLAGS: [u64; 4] = [0, 0o2_000_000, 0o4_000, 0xdead_0000_0000_0000];
    for case in cases() {
        for (family, kind, protocol) in triples(48, 12, &[0, 1, 6, 17, 41, 132, 255, 262]) {
            for flags in FLAGS {
                for name in ["socket", "socketpair"] {
                    case.check_named(name, [family, kind | flags, protocol, 0, 0, 0]);
                }
            }
        }
        // setsockopt: level and option.
        for (level, option, _) in triples(300, 128, &[0]) {
            case.check_named("setsockopt", [3, level, option, 0, 0, 0]);
        }
        // open and openat: flags that read a mode, and the mode.
        for bit in 0..24 {
            for mode in [0, 0o644, 0o1777, 0o2000, 0o4000, 0o6755, 0o4000 | 1 << 40] {
                case.check_named("open", [0, 1 << bit, mode, 0, 0, 0]);
                case.check_named("openat", [0, 0, 1 << bit, mode, 0, 0]);
                case.check_named("mknod", [0, mode | 1 << bit, 0, 0, 0, 0]);
                case.check_named("mknodat", [0, 0, mode | 1 << bit, 0, 0, 0]);
            }
        }
        // execveat: the descriptor and its flag.
        for (descriptor, flags, _) in triples(1100, 2, &[0]) {
            case.check_named("execveat", [descriptor, 0, 0, 0, flags << 12, 0]);
        }
    }
}

fn triples(first: u64, second: u64, third: &[u64]) -> impl Iterator<Item = (u64, u64, u64)> {
    let pairs = (0..first).flat_map(move |a| (0..second).map(move |b| (a, b)));
    pairs.flat_map(move |(a, b)| third.iter().map(move |c| (a, b, *c)))
}

fn an_init_has_no_call_that_starts_opens_for_others_or_asks_a_listener() {
    for recording in [Recording::Off, Recording::On] {
        check_init(recording);
    }
}

fn check_init(recording: Recording) {
    let program = init_filter(recording, &[]).expect("it compiles");
    let answer = |number| run(&program, &Call { arch: OURS, number, arguments: [0; 6] });
    let allowed: Vec<&str> = (0..NUMBERS)
        .filter(|number| answer(*number) == Answer::Allow.value())
        .map(name_of)
        .collect();
    assert!(allowed.contains(&"wait4") && allowed.contains(&"kill"), "{allowed:?}");
    for never in [
        "execve",
        "execveat",
        "clone",
        "clone3",
        "fork",
        "vfork",
        "mount",
        "unshare",
        "setns",
        "ptrace",
        "socket",
        "connect",
        "bpf",
        "seccomp",
        "pidfd_getfd",
        "open_by_handle_at",
    ] {
        assert!(!allowed.contains(&never), "{never}");
    }
    // For the paths that a command names, and only where they are recorded.
    assert_eq!(allowed.contains(&"process_vm_readv"), recording == Recording::On);
    // A listener that waited for itself would wait for ever.
    let refused = Answer::Errno(libc::EPERM).value();
    let others = (0..NUMBERS).map(answer).filter(|answer| *answer != Answer::Allow.value());
    assert_eq!(others.collect::<BTreeSet<_>>(), BTreeSet::from([refused]));
}

fn a_recorded_call_asks_the_listener_where_it_would_be_allowed_and_nowhere_else() {
    let profiles = Profiles::parse(&shipped(), &[]).expect("shipped profiles");
    let bash = profiles.iter().find(|profile| profile.name.as_str() == "bash").expect("bash");
    let verdicts = payload_verdicts(bash, MemoryHold::CgroupV2);
    let openat = number_of("openat").expect("a call of both");
    let stat = number_of(if IS_X86 { "stat" } else { "statx" }).expect("a call");
    let program = payload_filter(&verdicts, &[openat, stat]).expect("it compiles");
    let mut plain = Plain::read("bash");
    plain.memory_is_held = true;
    for number in 0..NUMBERS {
        for mode in [0, 0o644, 0o4000, u64::MAX] {
            let arguments = [0, 0, 0o100, mode, 0, 0];
            let name = name_of(number);
            let wanted = match (plain.answer(name, &arguments), [openat, stat].contains(&number)) {
                (Answer::Allow, true) => Answer::Listener,
                // The listener continues every call of such a number.
                (Answer::Listener, true) => Answer::Errno(libc::EPERM),
                (answer, _) => answer,
            };
            let found = run(&program, &Call { arch: OURS, number, arguments });
            assert_eq!(found, wanted.value(), "{name} {mode:o}");
        }
    }
}
