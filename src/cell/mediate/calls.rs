//! The table of mediated calls: the handler of each call, and the cells whose filters notify init
//! of it.
//!
//! Two ways to make a file are missing: openat2 returns ENOSYS, as on a kernel without it, and a
//! file of O_TMPFILE has no name until linkat(2).

use std::collections::BTreeMap;

use nix::errno::Errno;
use syscalls::Sysno;

use super::address::SocketArguments;
use super::caller::TargetCall;
use super::handlers::Handlers;
use super::refusals::GuardedName;
use super::registers::{in_cwd, in_directory, int, low};
use super::response::{CallError, Response};
use super::{connect, counted, datagrams, epoll, inotify, interfaces, set_group};
use model::profile::calls::number;
use model::profile::condition::{Op, Test, Verdict};
use sys::Result;

/// Answers a call, given its registers.
type Handler = for<'g, 'c> fn(
    &Handlers<'g>,
    &TargetCall<'c>,
    &[u64; 6],
) -> std::result::Result<Response, CallError>;

/// A row of the table: a call, its group, which decides in which cells it is mediated, and its
/// handler.
#[derive(Debug)]
pub struct Row {
    pub call: &'static str,
    pub group: CallGroup,
    pub handler: Handler,
}

/// Reason why a call is mediated, which decides in which cells that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallGroup {
    /// Makes a name, or opens a file for writing: in cells with a guarded grant.
    Names,
    /// Binds a socket to a name: in cells with sockets and a guarded grant.
    Bind,
    /// Connects to a socket by name: in cells with sockets and a directory of the host.
    Connect,
    /// Makes a datagram socket of unix, which could send to a socket of the host by its path: in
    /// cells with sockets and a directory of the host.
    Datagram,
    /// Makes an epoll instance, whose number per cell is limited.
    Epoll,
    /// Watches a file, which must be private to the cell or granted.
    Inotify,
    /// Sets the set-group-id bit, which only directories get.
    SetGroup,
    /// Makes a socket of route netlink, whose number per cell is limited: in cells with sockets of
    /// the internet.
    Interfaces,
    /// Sets how much a socket holds, which those of route netlink must not: in cells that can have
    /// such sockets, if a control group holds the memory.
    BufferSizes,
}

impl CallGroup {
    /// Returns the system calls that init needs to answer calls of this group, in addition to those
    /// of every init.
    #[must_use]
    pub fn calls(self) -> &'static [Sysno] {
        match self {
            Self::Names => &MAKING,
            Self::Bind => &connect::BINDING,
            Self::Connect => &connect::CONNECTING,
            Self::Datagram => &datagrams::CALLS,
            Self::Epoll => &counted::CALLS,
            Self::Inotify => &inotify::CALLS,
            Self::SetGroup => &set_group::CALLS,
            Self::Interfaces => &interfaces::CALLS,
            Self::BufferSizes => &interfaces::SIZE_CALLS,
        }
    }
}

/// The system calls that init needs to make names.
const MAKING: [Sysno; 22] = [
    Sysno::process_vm_readv,
    // Returns the mount of a directory.
    Sysno::statx,
    Sysno::openat2,
    Sysno::openat,
    Sysno::readlinkat,
    Sysno::fstatfs,
    Sysno::fchdir,
    Sysno::umask,
    Sysno::ftruncate,
    Sysno::lseek,
    Sysno::mkdirat,
    Sysno::mknodat,
    Sysno::symlinkat,
    Sysno::linkat,
    // renameat2(2) without flags, as the C library calls it.
    Sysno::renameat,
    Sysno::renameat2,
    // Removes the temporary second name of a renamed file.
    Sysno::unlinkat,
    // Copies the index of a repository, with its mode and times.
    Sysno::write,
    Sysno::fchmod,
    Sysno::utimensat,
    // Read the caller's file size limit, and signal the caller.
    Sysno::prlimit64,
    Sysno::tgkill,
];

const fn row(call: &'static str, group: CallGroup, handler: Handler) -> Row {
    Row { call, group, handler }
}

/// Every mediated call. The kernel reads an `int` from the low half of its register, and so do the
/// handlers.
pub static TABLE: [Row; 29] = [
    row("open", CallGroup::Names, |handlers, caller, &[a, b, c, ..]| {
        handlers.open(caller, in_cwd(a), int(b), low(c))
    }),
    row("openat", CallGroup::Names, |handlers, caller, &[a, b, c, d, ..]| {
        handlers.open(caller, in_directory(a, b), int(c), low(d))
    }),
    row("creat", CallGroup::Names, |handlers, caller, &[a, b, ..]| {
        handlers.open(caller, in_cwd(a), libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, low(b))
    }),
    row("mkdir", CallGroup::Names, |handlers, caller, &[a, b, ..]| {
        handlers.directory(caller, in_cwd(a), low(b))
    }),
    row("mkdirat", CallGroup::Names, |handlers, caller, &[a, b, c, ..]| {
        handlers.directory(caller, in_directory(a, b), low(c))
    }),
    row("mknod", CallGroup::Names, |handlers, caller, &[a, b, c, ..]| {
        handlers.node(caller, in_cwd(a), low(b), c)
    }),
    row("mknodat", CallGroup::Names, |handlers, caller, &[a, b, c, d, ..]| {
        handlers.node(caller, in_directory(a, b), low(c), d)
    }),
    row("symlink", CallGroup::Names, |handlers, caller, &[a, b, ..]| {
        handlers.symlink(caller, a, in_cwd(b))
    }),
    row("symlinkat", CallGroup::Names, |handlers, caller, &[a, b, c, ..]| {
        handlers.symlink(caller, a, in_directory(b, c))
    }),
    row("link", CallGroup::Names, |handlers, caller, &[a, b, ..]| {
        handlers.link(caller, in_cwd(a), in_cwd(b), 0)
    }),
    row("linkat", CallGroup::Names, |handlers, caller, &[a, b, c, d, e, _]| {
        handlers.link(caller, in_directory(a, b), in_directory(c, d), int(e))
    }),
    row("rename", CallGroup::Names, |handlers, caller, &[a, b, ..]| {
        handlers.rename(caller, in_cwd(a), in_cwd(b), 0)
    }),
    row("renameat", CallGroup::Names, |handlers, caller, &[a, b, c, d, ..]| {
        handlers.rename(caller, in_directory(a, b), in_directory(c, d), 0)
    }),
    row("renameat2", CallGroup::Names, |handlers, caller, &[a, b, c, d, e, _]| {
        handlers.rename(caller, in_directory(a, b), in_directory(c, d), low(e))
    }),
    row("truncate", CallGroup::Names, |handlers, caller, &[a, b, ..]| {
        handlers.truncate(caller, in_cwd(a), b.cast_signed())
    }),
    row("umask", CallGroup::Names, |handlers, _, _| Ok(handlers.umask_differs())),
    row("bind", CallGroup::Bind, |handlers, caller, arguments| {
        connect::bound(caller, &handlers.name_guard, SocketArguments::from_registers(arguments))
    }),
    row("connect", CallGroup::Connect, |handlers, caller, arguments| {
        connect::connected(caller, &handlers.name_guard, SocketArguments::from_registers(arguments))
    }),
    row("socketpair", CallGroup::Datagram, |_, caller, &[_, kind, _, array, ..]| {
        datagrams::pair(caller, int(kind), array)
    }),
    row("socket", CallGroup::Datagram, |_, _, _| Err(CallError::Guarded(GuardedName::Other))),
    row("epoll_create", CallGroup::Epoll, |handlers, _, &[size, ..]| {
        epoll::create_sized(&handlers.instances, &handlers.name_guard, int(size))
    }),
    row("epoll_create1", CallGroup::Epoll, |handlers, _, &[flags, ..]| {
        epoll::create(&handlers.instances, &handlers.name_guard, int(flags))
    }),
    row("inotify_add_watch", CallGroup::Inotify, |handlers, caller, &[a, b, c, ..]| {
        inotify::add_watch(handlers, caller, int(a), in_cwd(b), low(c))
    }),
    row("chmod", CallGroup::SetGroup, |handlers, caller, &[a, b, ..]| {
        set_group::by_path(handlers, caller, in_cwd(a), low(b), 0)
    }),
    row("fchmod", CallGroup::SetGroup, |handlers, caller, &[a, b, ..]| {
        set_group::by_descriptor(handlers, caller, int(a), low(b))
    }),
    row("fchmodat", CallGroup::SetGroup, |handlers, caller, &[a, b, c, ..]| {
        set_group::by_path(handlers, caller, in_directory(a, b), low(c), 0)
    }),
    row("fchmodat2", CallGroup::SetGroup, |handlers, caller, &[a, b, c, d, ..]| {
        set_group::by_path(handlers, caller, in_directory(a, b), low(c), int(d))
    }),
    row("socket", CallGroup::Interfaces, |handlers, _, &[_, kind, ..]| {
        interfaces::open(handlers, int(kind))
    }),
    row(
        "setsockopt",
        CallGroup::BufferSizes,
        |_, caller, &[socket, _, option, value, length, _]| {
            let value = SocketArguments::from_registers(&[socket, value, length, 0, 0, 0]);
            interfaces::set_size(caller, int(option), value)
        },
    ),
];

/// A mediated call of a cell: its number, its row, and the profile's conditions on its arguments.
#[derive(Debug, Clone)]
pub struct MediatedCall {
    pub number: u32,
    pub row: &'static Row,
    pub verdict: Verdict,
}

const O_CREAT: u32 = libc::O_CREAT.cast_unsigned();
/// Includes O_TRUNC, which empties even a file that is opened for reading.
const O_WRITE: u32 = (libc::O_WRONLY | libc::O_RDWR | libc::O_TRUNC).cast_unsigned();
const O_TMPFILE: u32 = libc::O_TMPFILE.cast_unsigned();
const O_PATH: u32 = libc::O_PATH.cast_unsigned();

/// Removes the calls of a group from `verdicts`, so that the filter notifies the listener of each.
/// An open that neither makes a file nor writes to one keeps a verdict, and so do all sockets but
/// those of route netlink, and all options but the sizes of buffers.
///
/// # Errors
/// ENOTSUP: mediation does not support one of these verdicts.
pub fn take(verdicts: &mut BTreeMap<u32, Verdict>, group: CallGroup) -> Result<Vec<MediatedCall>> {
    let mut taken = Vec::new();
    for row in TABLE.iter().filter(|row| row.group == group) {
        let Some(number) = number(row.call) else { continue };
        // The filter keeps its verdict on all other sockets and options.
        let take_part: Option<fn(&mut Verdict) -> Option<Verdict>> = match group {
            CallGroup::Interfaces => Some(interfaces::take),
            CallGroup::BufferSizes => Some(interfaces::take_sizes),
            CallGroup::Names
            | CallGroup::Bind
            | CallGroup::Connect
            | CallGroup::Datagram
            | CallGroup::Epoll
            | CallGroup::Inotify
            | CallGroup::SetGroup => None,
        };
        if let Some(take_part) = take_part {
            let has_internet = interfaces::are_answered(verdicts);
            let verdict = verdicts.get_mut(&number).filter(|_| has_internet).and_then(take_part);
            taken.extend(verdict.map(|verdict| MediatedCall { number, row, verdict }));
            continue;
        }
        let verdict = match verdicts.get(&number) {
            Some(verdict @ (Verdict::Allow | Verdict::AllowIf(_))) => verdict.clone(),
            // Refused by the profile.
            Some(Verdict::Errno(_)) | None => continue,
            // No profile has these verdicts today; refuse them so that a new profile cannot bypass
            // mediation.
            Some(Verdict::AllowOrProbe(..) | Verdict::Answered) => return Err(Errno::ENOTSUP),
        };
        verdicts.remove(&number);
        let flags = match row.call {
            "open" => Some(1),
            "openat" => Some(2),
            _ => None,
        };
        if let Some(flags) = flags {
            verdicts.insert(number, unless_it_writes(&verdict, flags));
        }
        taken.push(MediatedCall { number, row, verdict });
    }
    Ok(taken)
}

/// The calls that set a mode, and the position of that argument.
const MODES: [(&str, u8); 4] = [("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2)];
const SET_ID: u64 = 0o6000;
const SET_GROUP_ID: u32 = 0o2000;

/// Returns the calls with a set-group-id bit that init answers. The filter notifies init of them
/// already, as of every call that its verdict does not allow.
pub fn with_set_group(verdicts: &BTreeMap<u32, Verdict>) -> Vec<MediatedCall> {
    let rows = TABLE.iter().filter(|row| row.group == CallGroup::SetGroup);
    let asked = rows.filter_map(|row| {
        let number = number(row.call)?;
        let (_, mode) = MODES.iter().find(|(call, _)| *call == row.call)?;
        let bit = Test::low(*mode, Op::MaskedEq(SET_ID), SET_GROUP_ID);
        match verdicts.get(&number)? {
            // The floor's, for modes without either bit.
            Verdict::AllowIf(_) => {
                Some(MediatedCall { number, row, verdict: Verdict::AllowIf(vec![vec![bit]]) })
            }
            // Refused by the profile, or decided in a way that leaves no such call.
            Verdict::Allow | Verdict::AllowOrProbe(..) | Verdict::Errno(_) | Verdict::Answered => {
                None
            }
        }
    });
    asked.collect()
}

/// Refuses the calls of a group, in cells whose init cannot answer them. Without an init that makes
/// them, the verdict on sockets refuses those of route netlink, and no size has to be guarded.
pub fn refuse(verdicts: &mut BTreeMap<u32, Verdict>, group: CallGroup) {
    if matches!(group, CallGroup::Interfaces | CallGroup::BufferSizes) {
        return;
    }
    for row in TABLE.iter().filter(|row| row.group == group) {
        number(row.call).and_then(|number| verdicts.remove(&number));
    }
}

/// Adds a condition to the verdict: the flags must neither make a file nor write to one. O_TMPFILE
/// makes no name, and O_PATH opens no file.
fn unless_it_writes(verdict: &Verdict, flags: u8) -> Verdict {
    let has = |bits: u32| Test::low(flags, Op::MaskedEq(u64::from(bits)), bits);
    let harmless = [
        vec![Test::none_of(flags, O_CREAT | O_WRITE)],
        vec![Test::none_of(flags, O_CREAT), has(O_TMPFILE)],
        vec![has(O_PATH)],
    ];
    let alternatives = match verdict {
        Verdict::AllowIf(alternatives) => alternatives.clone(),
        Verdict::Allow => vec![Vec::new()],
        // Refused by `take`.
        Verdict::Errno(_) | Verdict::AllowOrProbe(..) | Verdict::Answered => Vec::new(),
    };
    let all = alternatives.iter().flat_map(|tests| {
        harmless.iter().map(move |more| more.iter().chain(tests).copied().collect())
    });
    Verdict::AllowIf(all.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_for_reading_are_allowed_and_all_others_are_mediated() {
        let numbers = TABLE.iter().filter_map(|row| number(row.call));
        let mut verdicts: BTreeMap<u32, Verdict> =
            numbers.map(|number| (number, Verdict::Allow)).collect();
        let taken = take(&mut verdicts, CallGroup::Names).unwrap_or_default();
        let openat = number("openat").unwrap_or_default();
        let allows = |flags: i32| {
            let flags = u64::from(flags.cast_unsigned());
            verdicts.get(&openat).is_some_and(|verdict| verdict.allows(&[0, 0, flags, 0, 0, 0]))
        };
        assert!(allows(libc::O_RDONLY | libc::O_DIRECTORY) && allows(libc::O_PATH | libc::O_RDWR));
        assert!(allows(libc::O_TMPFILE | libc::O_RDWR) && !allows(libc::O_TMPFILE | libc::O_CREAT));
        assert!(!allows(libc::O_CREAT) && !allows(libc::O_RDWR) && !allows(libc::O_WRONLY));
        assert!(!allows(libc::O_DIRECTORY | libc::O_WRONLY) && !allows(libc::O_ACCMODE));
        assert!(!allows(libc::O_RDONLY | libc::O_TRUNC));
        let mediated: Vec<u32> = taken.iter().map(|call| call.number).collect();
        let only_opens = |number: &u32| !verdicts.contains_key(number);
        assert_eq!(mediated.iter().filter(|number| only_opens(number)).count(), mediated.len() - 2);
    }

    #[test]
    fn a_call_that_the_profile_refuses_stays_refused() {
        let mkdirat = number("mkdirat").unwrap_or_default();
        let mut verdicts = BTreeMap::from([(mkdirat, Verdict::Errno(1))]);
        assert!(take(&mut verdicts, CallGroup::Names).is_ok_and(|taken| taken.is_empty()));
        assert_eq!(verdicts.get(&mkdirat), Some(&Verdict::Errno(1)));
    }

    #[test]
    fn every_row_of_a_group_has_a_different_call_that_exists_on_some_architecture() {
        for row in &TABLE {
            let is_same = |other: &&Row| other.call == row.call && other.group == row.group;
            assert_eq!(TABLE.iter().filter(is_same).count(), 1);
            #[cfg(target_arch = "x86_64")]
            assert!(number(row.call).is_some(), "{}", row.call);
        }
    }
}
