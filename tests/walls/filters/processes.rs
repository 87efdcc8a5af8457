//! The filters of the front end and of the supervisor, against lists of words and sentences of Rust.

use std::collections::BTreeSet;

use cell::seccomp::{Recording, allowed, payload_verdicts};
use cofferdam::commands::confine::{self, Duties};
use config::profile::{Profiles, shipped};
use model::receipt::MemoryHold;
use supervisor::filter;

use super::machine::{Call, run};
use super::plain::{Answer, low};
use super::{IS_X86, NUMBERS, OTHERS, OURS, X32, corners, name_of, number_of};

/// System calls of a front end: the list that `tests/sessions/hostile` sweeps with real calls.
const FRONT: &str = include_str!("../../sessions/hostile/allowed.txt");
/// System calls of a supervisor, and of its cells before their own filters. A call that is added to
/// the product's list is added here as well.
const SUPERVISOR: &str = include_str!("supervisor.txt");
/// Further calls for keeping a log.
const LOG: [&str; 5] = ["flock", "fdatasync", "renameat", "renameat2", "unlinkat"];

/// Requests of a front end at the operator's terminal: attributes, discarded input, the size.
const TERMINAL: [u64; 9] =
    [0x5402, 0x5403, 0x5404, 0x540b, 0x5414, 0x802c_542a, 0x402c_542b, 0x402c_542c, 0x402c_542d];

/// Returns the answer that a front end must get.
fn front(name: &str, arguments: &[u64; 6], duties: Duties) -> Answer {
    let word = |place| low(arguments, place);
    let holds = match name {
        "clone3" => return Answer::Errno(libc::ENOSYS),
        // Threads alone.
        "clone" => word(0) & 0x1_0000 != 0,
        // Only their names.
        "prctl" => word(0) == 15,
        // Signals to itself.
        "tgkill" => word(0) == std::process::id(),
        // To look at its limits.
        "prlimit64" => word(0) == 0 && arguments[2] == 0,
        // Streams of the family unix, however they are opened.
        "socketpair" => word(0) == 1 && word(1) & !0o2_004_000 == 1,
        // Only to the connected peer.
        "sendto" => arguments[4] == 0,
        // A TCP socket that is connected no more would connect to an address (MSG_FASTOPEN).
        "sendmsg" => word(2) & 0x2000_0000 == 0,
        // TCP_NODELAY alone.
        "setsockopt" => word(1) == 6 && word(2) == 1,
        "accept4" => duties.listens,
        "ioctl" => {
            [0x5401, 0x5413, 0x541b, 0x5421, 0x5450, 0x5451].contains(&word(1))
                || (duties.terminal && TERMINAL.contains(&u64::from(word(1))))
        }
        "fcntl" => matches!(word(1), 0..=4 | 1030 | 1033 | 1034),
        _ if duties.logs && LOG.contains(&name) => true,
        _ => FRONT.split_whitespace().any(|allowed| allowed == name),
    };
    if holds { Answer::Allow } else { Answer::Errno(libc::EPERM) }
}

/// Arguments that a call is tried with: some for every call, and more where its arguments are looked at.
fn tried(corners: &[u64]) -> Vec<[u64; 6]> {
    let mut tried = vec![[0; 6], [1; 6], [u64::MAX; 6]];
    tried.extend(corners.iter().map(|value| [*value; 6]));
    for value in corners {
        for place in 0..6 {
            for rest in [0, 1, u64::MAX] {
                let mut arguments = [rest; 6];
                if let Some(argument) = arguments.get_mut(place) {
                    *argument = *value;
                }
                tried.push(arguments);
            }
        }
        tried.extend((0..16).map(|kind| [*value, kind | 0o2_004_000, 0, 0, 0, 0]));
        tried.extend((0..16).map(|kind| [1, kind | value, 0, 0, 0, 0]));
    }
    tried
}

pub fn a_front_end_is_answered_as_its_list_reads() {
    const CONDITIONAL: [&str; 10] = [
        "clone",
        "prctl",
        "tgkill",
        "prlimit64",
        "socketpair",
        "sendto",
        "sendmsg",
        "setsockopt",
        "ioctl",
        "fcntl",
    ];
    let none = Duties::default();
    let all = Duties { logs: true, terminal: true, listens: true };
    let some = [Duties { logs: true, ..none }, Duties { listens: true, ..none }];
    for duties in [none, all].into_iter().chain(some) {
        let program = confine::program(duties).expect("it compiles");
        let corners = corners(&program);
        assert!(corners.len() > 50, "{corners:?}");
        let mut allowed = BTreeSet::new();
        for number in 0..NUMBERS {
            let name = name_of(number);
            let looked_at = CONDITIONAL.contains(&name);
            let corners = if looked_at { corners.as_slice() } else { &[] };
            for arguments in tried(corners) {
                let call = Call { arch: OURS, number, arguments };
                let found = run(&program, &call);
                let wanted = front(name, &arguments, duties);
                let output =
                    format!("{name} ({number}) {arguments:x?}: {found:#x}, not {wanted:?}");
                assert!(found == wanted.value(), "{output}");
                if wanted == Answer::Allow {
                    allowed.insert(name);
                }
                if IS_X86 {
                    let x32 = Call { number: number | X32, ..call };
                    let refused = Answer::Errno(libc::EPERM).value();
                    assert_eq!(run(&program, &x32), refused, "x32 {number}");
                }
                for arch in OTHERS {
                    // Killed: it is no program of ours.
                    assert_eq!(run(&program, &Call { arch, ..call }), 0x8000_0000, "{arch:#x}");
                }
            }
        }
        // The control: whatever the list names was let through with some arguments, and nothing else.
        let listed = FRONT.split_whitespace().filter(|name| number_of(name).is_some());
        let more = LOG.into_iter().filter(|_| duties.logs);
        let more = more.chain(duties.listens.then_some("accept4"));
        let expected: BTreeSet<&str> = listed.chain(more).collect();
        assert_eq!(allowed, expected);
    }
}

pub fn a_watcher_of_a_project_is_answered_as_its_list_reads() {
    const WATCHER: &str = "read write close ppoll poll openat2 getdents64 fstat newfstatat statx lseek fchdir \
        inotify_add_watch inotify_rm_watch geteuid futex mmap munmap mremap mprotect madvise brk rt_sigaction \
        rt_sigprocmask rt_sigreturn sigaltstack getrandom clock_gettime clock_nanosleep sched_yield getpid \
        restart_syscall exit exit_group";
    let program = projects::watcher::program().expect("it compiles");
    let corners = corners(&program);
    for number in 0..NUMBERS {
        let name = name_of(number);
        let looked_at = if name == "fcntl" { corners.as_slice() } else { &[] };
        for arguments in tried(looked_at) {
            let holds = match name {
                // Flags are read and a descriptor is copied, never changed.
                "fcntl" => matches!(low(&arguments, 1), 1 | 3 | 1030),
                _ => WATCHER.split_whitespace().any(|allowed| allowed == name),
            };
            let wanted = if holds { Answer::Allow } else { Answer::Errno(libc::EPERM) };
            let call = Call { arch: OURS, number, arguments };
            let output = format!("{name} ({number}) {arguments:x?}");
            assert_eq!(run(&program, &call), wanted.value(), "{output}");
            if IS_X86 {
                let x32 = Call { number: number | X32, ..call };
                assert_eq!(run(&program, &x32), Answer::Errno(libc::EPERM).value(), "x32 {output}");
            }
            for arch in OTHERS {
                assert_eq!(run(&program, &Call { arch, ..call }), 0x8000_0000, "{arch:#x}");
            }
        }
    }
}

pub fn a_supervisor_is_answered_as_its_list_and_its_profiles_read() {
    let profiles = Profiles::parse(&shipped(), &[]).expect("shipped profiles");
    let cells: BTreeSet<u32> = profiles
        .iter()
        .flat_map(|profile| {
            allowed(&payload_verdicts(profile, MemoryHold::CgroupV2)).collect::<Vec<_>>()
        })
        .collect();
    for recording in [Recording::Off, Recording::On] {
        let program = filter::program(cells.iter().copied(), recording).expect("it compiles");
        for number in 0..NUMBERS {
            let name = name_of(number);
            let records =
                recording == Recording::On && ["process_vm_readv", "write"].contains(&name);
            let own = SUPERVISOR.split_whitespace().any(|listed| listed == name);
            let is_allowed = own || records || cells.contains(&number);
            let wanted = if is_allowed { Answer::Allow } else { Answer::Listener };
            let cores = [[4; 6], [1 << 32 | 4; 6], [0, 4, 0, 1, 0, 0], [0, 4, 1, 0, 0, 0]];
            for arguments in [[0; 6], [u64::MAX; 6], [1 << 32; 6]].into_iter().chain(cores) {
                let sets_cores = match name {
                    "setrlimit" => low(&arguments, 0) == 4,
                    "prlimit64" => low(&arguments, 1) == 4 && arguments[2] != 0,
                    _ => false,
                };
                let wanted = if sets_cores { Answer::Listener } else { wanted };
                let call = Call { arch: OURS, number, arguments };
                assert_eq!(run(&program, &call), wanted.value(), "{name} ({number})");
                let refused = Answer::Errno(libc::ENOSYS).value();
                if IS_X86 {
                    let x32 = Call { number: number | X32, ..call };
                    assert_eq!(run(&program, &x32), refused, "x32 {number}");
                }
                for arch in OTHERS {
                    assert_eq!(run(&program, &Call { arch, ..call }), refused, "{arch:#x}");
                }
            }
        }
    }
    // A supervisor never allows these, for any profiles.
    for never in
        ["ptrace", "bpf", "init_module", "kexec_load", "perf_event_open", "open_by_handle_at"]
    {
        let own = SUPERVISOR.split_whitespace().any(|listed| listed == never);
        let cell = cells.iter().any(|number| name_of(*number) == never);
        assert!(!own && !cell, "{never}");
    }
}
