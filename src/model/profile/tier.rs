//! Restrictions of the tier `landlock+seccomp`: calls that only namespaces make harmless are
//! refused.
//!
//! Without a mount namespace every path of the host can be named. Landlock restricts opening, making and
//! removing files, but not changes of modes, owners, times and attributes. Without a network namespace it
//! restricts TCP and abstract names, but neither datagrams nor sockets that have a path. The calls that it does
//! not restrict are refused here by number.

use std::collections::BTreeMap;

use super::arguments;
use super::condition::{Op, Test, Verdict};
use super::never::RefusedGroup;
use super::{Family, ProcView, Profile};
use crate::egress::Egress;
use crate::receipt::{MemoryHold, Tier};

/// Minimum Landlock ABI of [`Tier::Bare`]. From 6 on (Linux 6.12) signals are confined: otherwise a
/// cell could kill any process of its user, and its processes could not be distinguished from others.
pub const LANDLOCK_ABI: u32 = 6;

/// Calls that read extended attributes by path; open files were opened under Landlock.
const ATTRIBUTES: &[&str] =
    &["getxattr", "lgetxattr", "getxattrat", "listxattr", "llistxattr", "listxattrat"];

/// Calls that [`Tier::Bare`] refuses, whatever a profile lists.
pub const REFUSED: &[RefusedGroup] = &[
    RefusedGroup {
        why: "without a mount namespace it reaches files outside the cell, and Landlock does not hold it",
        names: &[
            "chmod",
            "fchmod",
            "fchmodat",
            "fchmodat2",
            "chown",
            "fchown",
            "lchown",
            "fchownat",
            "utime",
            "utimes",
            "futimesat",
            "setxattr",
            "lsetxattr",
            "fsetxattr",
            "setxattrat",
            "removexattr",
            "lremovexattr",
            "fremovexattr",
            "removexattrat",
            "file_setattr",
        ],
    },
    RefusedGroup {
        why: "without a mount namespace it tells of files outside the cell, and Landlock does not hold it",
        names: ATTRIBUTES,
    },
    RefusedGroup {
        why: "without a mount namespace it tells what happens to files outside the cell",
        names: &["inotify_init", "inotify_init1", "inotify_add_watch"],
    },
    RefusedGroup {
        why: "without a network namespace it reaches sockets outside the cell",
        names: &["socket", "connect", "bind", "listen", "accept", "accept4", "sendmmsg"],
    },
    RefusedGroup {
        why: "without an ipc namespace it reaches objects outside the cell",
        names: &[
            "shmget",
            "shmat",
            "shmctl",
            "semget",
            "semop",
            "semtimedop",
            "semctl",
            "msgget",
            "msgsnd",
            "msgrcv",
            "msgctl",
            "mq_open",
            "mq_unlink",
        ],
    },
];

/// Returns the reason if the tier refuses this call.
pub fn reason(tier: Tier, call: &str) -> Option<&'static str> {
    match tier {
        Tier::Full => None,
        Tier::Bare => {
            REFUSED.iter().find(|group| group.names.contains(&call)).map(|group| group.why)
        }
    }
}

/// Returns the tier's condition on the arguments of a call, if it is stricter than the floor's.
pub(super) fn condition(tier: Tier, call: &str) -> Option<Verdict> {
    match tier {
        Tier::Full if call == "fcntl" => Some(arguments::signal_owners()),
        Tier::Full => arguments::cell_ids(call),
        Tier::Bare => bare_condition(call),
    }
}

/// Returns why [`condition`] denies a call with other arguments.
pub(super) fn narrowed(tier: Tier, call: &str) -> Option<&'static str> {
    if tier == Tier::Full {
        return None;
    }
    condition(tier, call).map(|_| match call {
        "utimensat" => "without a mount namespace only the time of an open file is set, to now",
        "sendto" => "without a network namespace nothing is sent to an address",
        _ => "without a pid namespace a process may change itself only",
    })
}

fn bare_condition(call: &str) -> Option<Verdict> {
    let when = |all| Some(Verdict::AllowIf(vec![all]));
    let caller = |argument| Test::low(argument, Op::Eq, 0);
    match call {
        // Only of an open file and only to now, as touch(1) does.
        "utimensat" => when(vec![Test::full(1, Op::Eq, 0), Test::full(2, Op::Eq, 0)]),
        "sendto" => when(vec![Test::full(4, Op::Eq, 0), arguments::in_band(3)]),
        "setpriority" => when(vec![caller(0), caller(1)]),
        // IOPRIO_WHO_PROCESS
        "ioprio_set" => when(vec![Test::low(0, Op::Eq, 1), caller(1)]),
        "sched_setaffinity" | "sched_setparam" => when(vec![caller(0)]),
        "sched_setscheduler" => {
            let condition = arguments::condition(call, MemoryHold::BestEffort)?;
            let Verdict::AllowIf(mut any) = condition else { return None };
            any.iter_mut().for_each(|all| all.push(caller(0)));
            Some(Verdict::AllowIf(any))
        }
        _ => None,
    }
}

/// Answers queries for attributes like a filesystem without any, which ls and cp do not treat as an
/// error.
pub(super) fn without_attributes(verdicts: &mut BTreeMap<u32, Verdict>) {
    let numbers = ATTRIBUTES.iter().filter_map(|name| super::calls::number(name));
    verdicts.extend(numbers.map(|number| (number, Verdict::Errno(libc::EOPNOTSUPP))));
}

/// Removes all sockets except pairs. Datagram pairs are removed too: they can send to any socket
/// with a path that the uid may write to, whatever they are paired with (unix(7)).
pub(super) fn without_sockets(profile: &Profile, verdicts: &mut BTreeMap<u32, Verdict>) {
    let call = |name| super::calls::number(name).unwrap_or(u32::MAX);
    verdicts.remove(&call("socket"));
    if profile.families.contains(&Family::Unix) {
        let kinds = [arguments::STREAM, arguments::SEQPACKET];
        let pairs = kinds.map(|kind| arguments::socket(1, kind, 0));
        verdicts.insert(call("socketpair"), Verdict::AllowIf(pairs.into()));
    }
}

impl Profile {
    /// Restricts the profile to a tier: it keeps nothing that the tier cannot enforce.
    #[must_use]
    pub fn in_tier(self, tier: Tier) -> Self {
        match tier {
            Tier::Full => Self { tier, ..self },
            // A profile with egress rules is refused later, and not run without them.
            Tier::Bare if self.egress.class.has_egress() => {
                Self { tier, proc: ProcView::None, ..self }
            }
            Tier::Bare => Self { tier, proc: ProcView::None, egress: Egress::default(), ..self },
        }
    }
}
