//! Calls that a filter passes to init: with a grant those that make names, and sockets with paths;
//! always instances of epoll and watches of inotify.

use std::collections::BTreeSet;
use std::path::Path;

use cell::mediate::calls::{self, CallGroup};
use cell::mediate::{Belongings, GuardedNames, Mediation, sockets};
use cell::seccomp::{Recording, payload_filter, payload_verdicts};
use config::profile::{Profiles, shipped};
use model::profile::Family;
use model::receipt::MemoryHold;

use super::machine::{Call, run};
use super::plain::{Answer, Plain, low};
use super::{IS_X86, NUMBERS, OURS, name_of, number_of};

/// Calls that make a name whatever their arguments are, or are about to.
const MAKING: &str = "creat mkdir mkdirat mknod mknodat symlink symlinkat link linkat rename renameat renameat2 \
    truncate umask";
const O_CREAT: u32 = 0o100;
/// To write, to read and write, to empty.
const O_WRITES: u32 = 0o1 | 0o2 | 0o1000;
const O_DIRECTORY: u32 = if IS_X86 { 0o200_000 } else { 0o40_000 };
/// Both of its bits.
const O_TMPFILE: u32 = 0o20_000_000 | O_DIRECTORY;
const O_PATH: u32 = 0o10_000_000;

/// Kind of grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grant {
    None,
    ReadOnly,
    Writable,
    /// Read-only, where no init can look.
    Blind,
}

/// Returns the answer that the filter must give with a grant.
fn answer(plain: &Plain, grant: Grant, name: &str, arguments: &[u64; 6]) -> Answer {
    let word = |place| low(arguments, place);
    let request = match plain.answer(name, arguments) {
        Answer::Allow => match name {
            // In every cell; refused where no init can look.
            "epoll_create" | "epoll_create1" | "inotify_add_watch" => true,
            // Sizes of buffers, in a cell that can have route netlink.
            "setsockopt" if word(1) == 1 && matches!(word(2), 7 | 8) => {
                grant != Grant::Blind && plain.is_made_by_init(&[16, 3, 0, 0, 0, 0])
            }
            _ if grant == Grant::None => false,
            "connect" => grant != Grant::Blind && plain.families.contains(&Family::Unix),
            "bind" => grant == Grant::Writable && plain.families.contains(&Family::Unix),
            // Datagrams by path, and without an init that looks all that has a path.
            "socket" => word(0) == 1 && (grant == Grant::Blind || word(1) & 0xf == 2),
            "socketpair" => word(1) & 0xf == 2,
            "open" | "openat" if grant == Grant::Writable => {
                let flags = word(if name == "open" { 1 } else { 2 });
                let nameless = flags & O_CREAT == 0
                    && (flags & O_WRITES == 0 || flags & O_TMPFILE == O_TMPFILE);
                !nameless && flags & O_PATH == 0
            }
            _ => grant == Grant::Writable && MAKING.split_whitespace().any(|making| making == name),
        },
        Answer::Errno(_)
            if name == "socket" && grant != Grant::Blind && plain.is_made_by_init(arguments) =>
        {
            return Answer::Listener;
        }
        refused @ (Answer::Errno(_) | Answer::Listener) => return refused,
    };
    if request { Answer::Listener } else { Answer::Allow }
}

pub fn a_grant_makes_the_filter_ask_about_names_and_sockets_and_nothing_else() {
    let profiles = Profiles::parse(&shipped(), &[]).expect("shipped profiles");
    for profile in profiles.iter() {
        for grant in [Grant::None, Grant::ReadOnly, Grant::Writable, Grant::Blind] {
            let mut verdicts = payload_verdicts(profile, MemoryHold::CgroupV2);
            if grant == Grant::Writable {
                calls::take(&mut verdicts, CallGroup::Names)
                    .expect("verdicts that the guard knows");
            }
            match grant {
                Grant::None => {}
                Grant::ReadOnly | Grant::Writable => {
                    let names = grant == Grant::Writable;
                    sockets::take(&mut verdicts, names).expect("verdicts that the guard knows");
                }
                Grant::Blind => sockets::close(&mut verdicts),
            }
            let in_every_cell = [
                CallGroup::Epoll,
                CallGroup::Inotify,
                CallGroup::Interfaces,
                CallGroup::BufferSizes,
            ];
            for group in in_every_cell {
                match grant {
                    Grant::Blind => calls::refuse(&mut verdicts, group),
                    Grant::None | Grant::ReadOnly | Grant::Writable => {
                        calls::take(&mut verdicts, group).expect("verdicts that the guard knows");
                    }
                }
            }
            let program = payload_filter(&verdicts, &[]).expect("it compiles");
            let mut plain = Plain::read(profile.name.as_str());
            plain.memory_is_held = true;
            let check = |number: u32, arguments: [u64; 6]| {
                let name = name_of(number);
                let found = run(&program, &Call { arch: OURS, number, arguments });
                let wanted = answer(&plain, grant, name, &arguments);
                let output = format!("{} {grant:?}: {name} {arguments:x?}", profile.name);
                assert!(found == wanted.value(), "{output}: {found:#x}, not {wanted:?}");
            };
            let check_named = |name: &str, arguments: [u64; 6]| {
                number_of(name).into_iter().for_each(|number| check(number, arguments));
            };
            for number in 0..NUMBERS {
                for arguments in [[0; 6], [1; 6], [u64::MAX; 6], [1 << 32; 6]] {
                    check(number, arguments);
                }
            }
            for (family, kind) in (0..48).flat_map(|family| (0..16).map(move |kind| (family, kind)))
            {
                for flags in [0, 0o2_000_000, 0o4_000, 0xdead_0000_0000_0000] {
                    check_named("socket", [family, kind | flags, 0, 0, 0, 0]);
                    check_named("socketpair", [family, kind | flags, 0, 0, 0, 0]);
                }
            }
            for (level, option) in (0..48).flat_map(|level| (0..48).map(move |one| (level, one))) {
                check_named("setsockopt", [3, level, option, 0, 4, 0]);
            }
            // Flags of open and openat, two bits at a time.
            for flags in (0..24).flat_map(|one| (0..24).map(move |other| 1 << one | 1 << other)) {
                check_named("open", [0, flags, 0o644, 0, 0, 0]);
                check_named("openat", [0, 0, flags, 0o644, 0, 0]);
                check_named("openat", [0, 0, flags | u64::from(O_TMPFILE), 0o644, 0, 0]);
            }
        }
    }
}

pub fn an_init_can_do_what_its_cells_ask_about_and_executes_nothing() {
    let profiles = Profiles::parse(&shipped(), &[]).expect("shipped profiles");
    let bash = profiles.iter().find(|profile| profile.name.as_str() == "bash").expect("bash");
    let verdicts = payload_verdicts(bash, MemoryHold::CgroupV2);
    let directory = Path::new("/workspace");
    let mediation = |names: Option<GuardedNames<'_>>, groups: &[CallGroup]| {
        let mut verdicts = verdicts.clone();
        let taken = groups.iter().map(|group| calls::take(&mut verdicts, *group).expect("calls"));
        let watched = taken.flatten().collect();
        Mediation::new(watched, names, Belongings::default(), Recording::Off).expect("a mediation")
    };
    let paired = || {
        let mut verdicts = verdicts.clone();
        let watched = sockets::take(&mut verdicts, false).expect("verdicts that the guard knows");
        Mediation::new(watched, None, Belongings::default(), Recording::Off).expect("a mediation")
    };
    let shared = &BTreeSet::new();
    let names = Some(GuardedNames { directory, named: &[], shared, also: &[], repositories: &[] });
    let making = &[CallGroup::Names][..];
    let both = &[CallGroup::Names, CallGroup::Bind, CallGroup::Connect][..];
    let cells = [
        mediation(None, &[CallGroup::Epoll]),
        mediation(None, &[CallGroup::Inotify]),
        mediation(None, &[CallGroup::Connect]),
        mediation(None, &[CallGroup::Interfaces]),
        mediation(names, making),
        mediation(names, both),
        mediation(None, &[CallGroup::SetGroup]),
        paired(),
    ];
    // The inits that have each call.
    let lists = [
        ("epoll_create1 epoll_ctl", [true, false, false, true, false, false, false, false]),
        ("inotify_add_watch", [false, true, false, false, false, false, false, false]),
        ("connect", [false, false, true, false, false, true, false, true]),
        ("pidfd_getfd", [false, true, true, false, false, true, false, true]),
        ("process_vm_readv", [false, true, true, false, true, true, true, true]),
        ("bind", [false, false, false, false, false, true, false, false]),
        (
            "mkdirat mknodat symlinkat linkat unlinkat renameat2 ftruncate tgkill",
            [false, false, false, false, true, true, false, false],
        ),
        ("prlimit64", [false, false, false, false, true, true, false, true]),
        ("fchmodat", [false, false, false, false, false, false, true, false]),
        ("socketpair", [false, false, false, false, false, false, false, true]),
        (
            "socket execve clone mount ptrace sendto setns unlink inotify_init1 chmod shmget",
            [false; 8],
        ),
        ("openat fstat shmctl", [true; 8]),
    ];
    for (guard, index) in cells.iter().zip(0..) {
        for (calls, allowed) in lists {
            for name in calls.split(' ') {
                // Older names, which aarch64 does not have.
                let Some(number) = number_of(name) else {
                    assert_eq!(std::env::consts::ARCH, "aarch64", "{name}");
                    continue;
                };
                let call = Call { arch: OURS, number, arguments: [0; 6] };
                let is_allowed = run(&guard.init_filter, &call) == Answer::Allow.value();
                assert_eq!(Some(&is_allowed), allowed.get(index), "{name} of {index}");
            }
        }
    }
    an_init_makes_route_netlink_alone(&cells);
}

/// Checks that only the init of a cell with interfaces makes sockets: of route netlink, with options for its filter and
/// the size of its messages alone.
fn an_init_makes_route_netlink_alone(cells: &[Mediation]) {
    let makes = |index: usize, name: &str, arguments: [u64; 3]| {
        let [first, second, third] = arguments;
        let arguments = [first, second, third, 0, 0, 0];
        let call = Call { arch: OURS, number: number_of(name).expect("a call"), arguments };
        let guard = cells.get(index).expect("an init");
        run(&guard.init_filter, &call) == Answer::Allow.value()
    };
    for index in 0..cells.len() {
        for kind in [2, 3, 3 | 0o2_004_000] {
            assert_eq!(makes(index, "socket", [16, kind, 0]), index == 3, "{index}: {kind:#o}");
        }
        for option in [7, 26, 44] {
            let arguments = [5, 1, option];
            assert_eq!(makes(index, "setsockopt", arguments), index == 3, "{index}: {option}");
        }
    }
    let sockets =
        [[16, 3, 9], [16, 2, 15], [16, 1, 0], [17, 3, 0], [40, 1, 0], [2, 1, 0], [1, 1, 0]];
    assert!(sockets.into_iter().all(|arguments| !makes(3, "socket", arguments)));
    let options = [[5, 1, 27], [5, 1, 50], [5, 1, 33], [5, 270, 26], [5, 6, 7]];
    assert!(options.into_iter().all(|arguments| !makes(3, "setsockopt", arguments)));
}
