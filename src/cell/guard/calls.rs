//! The table of mediated calls: which cells' filters ask init about a call, and what answers it.
//!
//! Not among them: openat2, which is answered as by a kernel without it; O_TMPFILE, whose file has no
//! name until it is linked.

use std::collections::BTreeMap;

use nix::errno::Errno;
use syscalls::Sysno;

use super::caller::Caller;
use super::gate::{Gate, Made, Unmade};
use super::sockets::Wanted;
use super::{instances, sockets, watches};
use crate::profile::condition::{Op, Test, Verdict};
use crate::profile::floor::number;
use sys::Result;

/// Answers a call from what its registers hold.
type Handler =
    for<'g, 'c> fn(&Gate<'g>, &Caller<'c>, &[u64; 6]) -> std::result::Result<Made, Unmade>;

/// A mediated call: in which cells it is, and its handler.
#[derive(Debug)]
pub struct Row {
    pub call: &'static str,
    pub group: Group,
    pub handler: Handler,
}

/// Why a call is mediated, and so in which cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// It makes a name, or opens a file to write: cells with a guarded grant.
    Names,
    /// It names a socket: cells with sockets and a guarded grant.
    Bind,
    /// It reaches a socket by its name: cells with sockets and a directory of the host.
    Connect,
    /// It makes an instance of epoll, of which a cell has a few.
    Epoll,
    /// It watches a file, which must be the cell's own or granted.
    Inotify,
}

impl Group {
    /// The system calls by which init answers, besides those it always needs.
    #[must_use]
    pub fn calls(self) -> &'static [Sysno] {
        match self {
            Self::Names => &MAKING,
            Self::Bind => &sockets::BINDING,
            Self::Connect => &sockets::CONNECTING,
            Self::Epoll => &instances::CALLS,
            Self::Inotify => &watches::CALLS,
        }
    }
}

/// The system calls by which init makes names.
const MAKING: [Sysno; 17] = [
    Sysno::process_vm_readv,
    Sysno::openat2,
    Sysno::openat,
    Sysno::readlinkat,
    Sysno::fstatfs,
    Sysno::fchdir,
    Sysno::umask,
    Sysno::ftruncate,
    Sysno::mkdirat,
    Sysno::mknodat,
    Sysno::symlinkat,
    Sysno::linkat,
    // The C library's renameat2 makes this of one without flags.
    Sysno::renameat,
    Sysno::renameat2,
    // A file that is renamed by a second name.
    Sysno::unlinkat,
    // A caller's limit on the size of files, and its signal.
    Sysno::prlimit64,
    Sysno::tgkill,
];

const fn row(call: &'static str, group: Group, handler: Handler) -> Row {
    Row { call, group, handler }
}

/// Every mediated call. An `int` is the low half of its register, as for the kernel.
pub static TABLE: [Row; 21] = [
    row("open", Group::Names, |gate, caller, &[a, b, c, ..]| {
        gate.open(caller, here(a), int(b), low(c))
    }),
    row("openat", Group::Names, |gate, caller, &[a, b, c, d, ..]| {
        gate.open(caller, at(a, b), int(c), low(d))
    }),
    row("creat", Group::Names, |gate, caller, &[a, b, ..]| {
        gate.open(caller, here(a), libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, low(b))
    }),
    row("mkdir", Group::Names, |gate, caller, &[a, b, ..]| gate.directory(caller, here(a), low(b))),
    row("mkdirat", Group::Names, |gate, caller, &[a, b, c, ..]| {
        gate.directory(caller, at(a, b), low(c))
    }),
    row("mknod", Group::Names, |gate, caller, &[a, b, c, ..]| {
        gate.node(caller, here(a), low(b), c)
    }),
    row("mknodat", Group::Names, |gate, caller, &[a, b, c, d, ..]| {
        gate.node(caller, at(a, b), low(c), d)
    }),
    row("symlink", Group::Names, |gate, caller, &[a, b, ..]| gate.symlink(caller, a, here(b))),
    row("symlinkat", Group::Names, |gate, caller, &[a, b, c, ..]| {
        gate.symlink(caller, a, at(b, c))
    }),
    row("link", Group::Names, |gate, caller, &[a, b, ..]| gate.link(caller, here(a), here(b), 0)),
    row("linkat", Group::Names, |gate, caller, &[a, b, c, d, e, _]| {
        gate.link(caller, at(a, b), at(c, d), int(e))
    }),
    row("rename", Group::Names, |gate, caller, &[a, b, ..]| {
        gate.rename(caller, here(a), here(b), 0)
    }),
    row("renameat", Group::Names, |gate, caller, &[a, b, c, d, ..]| {
        gate.rename(caller, at(a, b), at(c, d), 0)
    }),
    row("renameat2", Group::Names, |gate, caller, &[a, b, c, d, e, _]| {
        gate.rename(caller, at(a, b), at(c, d), low(e))
    }),
    row("truncate", Group::Names, |gate, caller, &[a, b, ..]| {
        gate.truncate(caller, here(a), b.cast_signed())
    }),
    row("umask", Group::Names, |gate, _, _| Ok(gate.umask_differs())),
    row("bind", Group::Bind, |gate, caller, arguments| {
        sockets::bound(gate, caller, Wanted::of(arguments))
    }),
    row("connect", Group::Connect, |gate, caller, arguments| {
        sockets::connected(caller, &gate.judge, Wanted::of(arguments))
    }),
    row("epoll_create", Group::Epoll, |gate, _, &[size, ..]| {
        instances::made_for_size(gate, int(size))
    }),
    row("epoll_create1", Group::Epoll, |gate, _, &[flags, ..]| instances::made(gate, int(flags))),
    row("inotify_add_watch", Group::Inotify, |gate, caller, &[a, b, c, ..]| {
        watches::added(gate, caller, int(a), here(b), low(c))
    }),
];

/// A mediated call of a cell: its number, what answers it, what the floor asks of its arguments.
#[derive(Debug, Clone)]
pub struct Watched {
    pub number: u32,
    pub row: &'static Row,
    pub verdict: Verdict,
}

const O_CREAT: u32 = libc::O_CREAT.cast_unsigned();
/// With O_TRUNC, a file that is opened to read is emptied all the same.
const O_WRITE: u32 = (libc::O_WRONLY | libc::O_RDWR | libc::O_TRUNC).cast_unsigned();
const O_TMPFILE: u32 = libc::O_TMPFILE.cast_unsigned();
const O_PATH: u32 = libc::O_PATH.cast_unsigned();

/// Takes the calls of a group out of `verdicts`, so that the filter asks the listener about each; what
/// opens a file without making one stays.
///
/// # Errors
/// ENOTSUP: a verdict on one of them that the guard does not know.
pub fn take(verdicts: &mut BTreeMap<u32, Verdict>, group: Group) -> Result<Vec<Watched>> {
    let mut taken = Vec::new();
    for row in TABLE.iter().filter(|row| row.group == group) {
        let Some(number) = number(row.call) else { continue };
        let verdict = match verdicts.get(&number) {
            Some(verdict @ (Verdict::Allow | Verdict::AllowIf(_))) => verdict.clone(),
            // Refused anyway.
            Some(Verdict::Errno(_)) | None => continue,
            // The floor has none of these here; one that came must not pass unseen.
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
        taken.push(Watched { number, row, verdict });
    }
    Ok(taken)
}

/// Refuses the calls of a group: where no init can answer them.
pub fn refuse(verdicts: &mut BTreeMap<u32, Verdict>, group: Group) {
    for row in TABLE.iter().filter(|row| row.group == group) {
        number(row.call).and_then(|number| verdicts.remove(&number));
    }
}

/// The verdict with one more condition: the flags ask neither for a file to be made nor for one
/// to be written to. A file without a name is no matter of names, nor is one that is only held.
fn unless_it_writes(verdict: &Verdict, flags: u8) -> Verdict {
    let with = |bits: u32| Test::low(flags, Op::MaskedEq(u64::from(bits)), bits);
    let harmless = [
        vec![Test::none_of(flags, O_CREAT | O_WRITE)],
        vec![Test::none_of(flags, O_CREAT), with(O_TMPFILE)],
        vec![with(O_PATH)],
    ];
    let alternatives = match verdict {
        Verdict::AllowIf(alternatives) => alternatives.clone(),
        Verdict::Allow => vec![Vec::new()],
        // `take` has refused these.
        Verdict::Errno(_) | Verdict::AllowOrProbe(..) | Verdict::Answered => Vec::new(),
    };
    let all = alternatives.iter().flat_map(|tests| {
        harmless.iter().map(move |more| more.iter().chain(tests).copied().collect())
    });
    Verdict::AllowIf(all.collect())
}

/// A path as a call names it: a descriptor to start from, and where the text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    pub from: i32,
    pub text: u64,
}

/// A path from the current directory.
fn here(text: u64) -> Named {
    Named { from: libc::AT_FDCWD, text }
}

/// A path from a descriptor.
fn at(from: u64, text: u64) -> Named {
    Named { from: int(from), text }
}

/// An `int`, the low half of its register.
#[must_use]
pub fn int(value: u64) -> i32 {
    low(value).cast_signed()
}

fn low(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_reads_goes_through_and_what_makes_or_writes_is_asked_about() {
        let numbers = TABLE.iter().filter_map(|row| number(row.call));
        let mut verdicts: BTreeMap<u32, Verdict> =
            numbers.map(|number| (number, Verdict::Allow)).collect();
        let taken = take(&mut verdicts, Group::Names).unwrap_or_default();
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
        let asked: Vec<u32> = taken.iter().map(|watched| watched.number).collect();
        let only_opens = |number: &u32| !verdicts.contains_key(number);
        assert_eq!(asked.iter().filter(|number| only_opens(number)).count(), asked.len() - 2);
    }

    #[test]
    fn a_call_that_the_profile_refuses_stays_refused() {
        let mkdirat = number("mkdirat").unwrap_or_default();
        let mut verdicts = BTreeMap::from([(mkdirat, Verdict::Errno(1))]);
        assert!(take(&mut verdicts, Group::Names).is_ok_and(|taken| taken.is_empty()));
        assert_eq!(verdicts.get(&mkdirat), Some(&Verdict::Errno(1)));
    }

    #[test]
    fn an_int_is_the_low_half_of_its_register() {
        assert_eq!(at(0xffff_ffff_ffff_ff9c, 7), Named { from: libc::AT_FDCWD, text: 7 });
        assert_eq!((int(0xdead_beef_0000_0041), low(0xdead_beef_0000_01a4)), (0o101, 0o644));
    }

    #[test]
    fn a_call_is_in_one_row_and_every_row_is_a_call_of_some_architecture() {
        for row in &TABLE {
            assert_eq!(TABLE.iter().filter(|other| other.call == row.call).count(), 1);
            #[cfg(target_arch = "x86_64")]
            assert!(number(row.call).is_some(), "{}", row.call);
        }
    }
}
