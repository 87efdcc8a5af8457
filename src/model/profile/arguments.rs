//! Conditions on arguments that hold in every profile, call by call, each with its reason.
//!
//! Allow-lists throughout: a command or an option that a newer kernel adds is refused until it is
//! listed. Calls on hot paths (read, write, poll, …) are unconditional.

use std::collections::BTreeSet;

use super::condition::{All, Op, Probe, Test, Verdict, within};
use super::{Exec, Family, options};
use crate::core_dumps;
use crate::egress::NetworkClass;
use crate::receipt::MemoryHold;

/// The descriptor by which a program is executed under `exec = { program = PATH }`: above
/// RLIMIT_NOFILE, so that nothing in the cell can put another file there.
pub const HELD_DESCRIPTOR: u32 = 1000;

/// Every flag of clone(2) that makes a namespace; the low byte is the exit signal.
const CLONE_NAMESPACES: u32 = 0x7e02_0000;
/// `CLONE_PARENT`: would make the new process a child of init instead of its creator.
const CLONE_PARENT: u32 = 0x8000;
/// Flags of unshare(2) that are allowed: file-system attributes, descriptors, semaphore undo lists.
const UNSHARE: u64 = 0x200 | 0x400 | 0x4_0000;

/// Set-user-id and set-group-id bits of a mode.
const SET_ID: u32 = 0o6000;
/// `O_CREAT`, and the bit that only `O_TMPFILE` has: without them open(2) reads no mode.
const CREATES: u32 = 0o100 | 0o20_000_000;
/// The bits of a mode that state the file type.
const FILE_KIND: u32 = 0o170_000;

/// `SOCK_CLOEXEC | SOCK_NONBLOCK`, which may be combined with a socket type.
const SOCKET_FLAGS: u32 = 0x8_0800;
pub(super) const STREAM: u32 = 1;
const DATAGRAM: u32 = 2;
pub(super) const SEQPACKET: u32 = 5;
const TCP: u32 = 6;
const UDP: u32 = 17;

const MSG_OOB: u32 = 1;
const MSG_ZEROCOPY: u32 = 0x400_0000;

/// `SCHED_RESET_ON_FORK`, which may be combined with a policy.
const RESET_ON_FORK: u32 = 0x4000_0000;

/// Families as the kernel numbers them and as profiles name them.
pub(super) const FAMILIES: [(Family, &str, u32); 3] =
    [(Family::Unix, "unix", 1), (Family::Inet, "inet", 2), (Family::Inet6, "inet6", 10)];

/// Allowed ioctl(2) requests. Left out: TIOCSTI (0x5412), TIOCLINUX (0x541c) and TIOCCONS (0x541d),
/// which push input into or redirect terminals; TIOCSETD (0x5423), for which the kernel loads
/// modules of line disciplines; TIOCGSERIAL and TIOCSSERIAL; TIOCVHANGUP and TIOCSIG, which no
/// program needs; those of consoles (0x4bXX, 0x56XX); FS_IOC_SETFLAGS; every device,
/// namespace and block request; socket requests that change an interface; FIOSETOWN and SIOCSPGRP,
/// which name the process that gets a signal by a pointer (see [`signal_owners`]).
const IOCTLS: &[(u32, u32)] = &[
    (0x5401, 0x5411),           // terminal attributes, foreground group, pending output
    (0x5413, 0x541b),           // window size, modem lines, FIONREAD
    (0x5420, 0x5422),           // TIOCPKT, FIONBIO, TIOCNOTTY
    (0x5424, 0x5429),           // TIOCGETD, breaks, session id
    (0x5450, 0x5451),           // FIONCLEX, FIOCLEX
    (0x5452, 0x5452),           // FIOASYNC
    (0x5460, 0x5460),           // FIOQSIZE
    (0x802c_542a, 0x802c_542a), // TCGETS2
    (0x402c_542b, 0x402c_542d), // TCSETS2 and its two variants
    (0x8004_5430, 0x8004_5430), // TIOCGPTN
    (0x4004_5431, 0x4004_5431), // TIOCSPTLCK
    (0x5441, 0x5441),           // TIOCGPTPEER
    (0x8903, 0x8907),           // who is signalled, out-of-band mark, time stamps: all reads
    (0x8910, 0x8913),           // interface names, list, flags: reads
    (0x8915, 0x8915),           // SIOCGIFADDR
    (0x8917, 0x8917),           // SIOCGIFDSTADDR
    (0x8919, 0x8919),           // SIOCGIFBRDADDR
    (0x891b, 0x891b),           // SIOCGIFNETMASK
    (0x8921, 0x8921),           // SIOCGIFMTU
    (0x8927, 0x8927),           // SIOCGIFHWADDR
    (0x8933, 0x8933),           // SIOCGIFINDEX
    (0x8942, 0x8942),           // SIOCGIFTXQLEN
    (0x4004_9409, 0x4004_9409), // FICLONE: cp --reflink
    (0x4020_940d, 0x4020_940d), // FICLONERANGE
    (0xc020_660b, 0xc020_660b), // FIEMAP: cp and tar look for holes
    (0x8008_6601, 0x8008_6601), // FS_IOC_GETFLAGS
    (0x801c_581f, 0x801c_581f), // FS_IOC_FSGETXATTR
    (0x8004_5200, 0x8004_5200), // RNDGETENTCNT
];

/// F_SETOWN: names the process or group that gets a descriptor's SIGIO and SIGURG.
const F_SETOWN: u32 = 8;

/// Allowed fcntl(2) commands. Left out: F_SETSIG and F_SETOWN_EX, whose signal or process is chosen
/// freely or behind a pointer, and F_SETOWN, except by [`signal_owners`]: they have evaded Landlock's
/// signal scope. F_SETLEASE, F_NOTIFY and F_SETDELEG block or watch other users of a file, including
/// those on the host.
const FCNTLS: &[(u32, u32)] = &[
    (0, 7),       // duplicate, flags, locks
    (9, 9),       // F_GETOWN
    (11, 11),     // F_GETSIG
    (16, 16),     // F_GETOWN_EX
    (36, 38),     // open file description locks
    (1025, 1025), // F_GETLEASE
    (1030, 1038), // F_DUPFD_CLOEXEC, pipe sizes, seals, write hints
];

/// PR_SET_CHILD_SUBREAPER: orphans become the children of the process that sets it, and not of init.
pub(super) const SUBREAPER: u32 = 36;

/// PR_SET_DUMPABLE, and the value with which a process asks to be untraceable.
const SET_DUMPABLE: u32 = 4;
const NOT_DUMPABLE: u64 = 0;

/// Allowed prctl(2) options. Left out: seccomp, changes of capabilities, PR_SET_MM, system call
/// dispatch, core scheduling, and weaker speculation control. `process_options` adds
/// [`SET_DUMPABLE`].
const PRCTLS: &[(u32, u32)] = &[
    (1, 3),   // death signal; PR_GET_DUMPABLE
    (7, 8),   // capabilities kept over setuid: cells have no capability
    (15, 16), // thread names
    (21, 21), // PR_GET_SECCOMP
    (23, 23), // PR_CAPBSET_READ
    (27, 27), // PR_GET_SECUREBITS
    (29, 30), // timer slack
    (SUBREAPER, SUBREAPER),
    (37, 39),                   // PR_GET_CHILD_SUBREAPER, no_new_privs
    (41, 42),                   // transparent huge pages, for this process
    (47, 47),                   // PR_CAP_AMBIENT: cells have no capability
    (50, 52),                   // vector length; PR_GET_SPECULATION_CTRL
    (54, 56),                   // pointer authentication and tagged addresses (aarch64)
    (61, 61),                   // PR_PAC_GET_ENABLED_KEYS
    (65, 66),                   // memory-deny-write-execute
    (0x5356_4d41, 0x5356_4d41), // PR_SET_VMA: names for anonymous memory
];

/// Clocks for timers and sleeps: CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_TAI. Left
/// out: clocks of processor time, by which the kernel inspects another process's threads.
const CLOCKS: &[u32] = &[0, 1, 7, 11];

/// arch_prctl(2): the thread pointer, CPUID's state, and permission for large vector registers.
const ARCH_PRCTLS: &[(u32, u32)] = &[(0x1001, 0x1004), (0x1011, 0x1011), (0x1021, 0x1023)];

/// Returns the condition on a call that a profile lists, if the floor has one.
pub(super) fn condition(call: &str, memory: MemoryHold) -> Option<Verdict> {
    let when = |all: All| Some(Verdict::AllowIf(vec![all]));
    match call {
        "clone" => when(vec![Test::none_of(0, CLONE_NAMESPACES | CLONE_PARENT)]),
        "unshare" => when(vec![Test::full(0, Op::MaskedEq(!UNSHARE), 0)]),
        "ioctl" => Some(Verdict::in_ranges(1, IOCTLS)),
        "fcntl" => Some(Verdict::in_ranges(1, FCNTLS)),
        "prctl" => Some(process_options(memory)),
        "arch_prctl" => Some(Verdict::in_ranges(0, ARCH_PRCTLS)),
        // 0 sets the default personality, all ones queries it.
        "personality" => Some(Verdict::one_of(0, &[0, u32::MAX])),
        // Limits of other processes may be neither read nor set.
        "prlimit64" => Some(core_dumps::prlimit64()),
        "setrlimit" => Some(core_dumps::setrlimit()),
        "setpriority" => Some(Verdict::in_ranges(0, &[(0, 1)])),
        "ioprio_set" => Some(Verdict::in_ranges(0, &[(1, 2)])),
        "sched_setscheduler" => Some(ordinary_schedulers()),
        "setsockopt" => Some(options::verdict(memory)),
        "sendto" | "sendmmsg" => when(vec![sent(3, memory)]),
        "sendmsg" => when(vec![sent(2, memory)]),
        "futex" => Some(futex()),
        "madvise" => Some(advice(memory)),
        "mmap" if memory == MemoryHold::BestEffort => Some(private_or_file_mappings()),
        "shmget" if memory == MemoryHold::BestEffort => Some(existing_segments()),
        "timer_create" | "clock_nanosleep" => Some(Verdict::one_of(0, CLOCKS)),
        "fallocate" => Some(room_within_limits()),
        "preadv2" | "pwritev2" => Some(ordinary_reads_and_writes()),
        "fadvise64" => Some(advice_on_files()),
        _ => file_mode(call),
    }
}

/// Allows the listed options of prctl(2). Init is asked about [`SUBREAPER`] where its watch learns from
/// parents which process made which.
///
/// A request to become untraceable returns 0 without effect: init reads the arguments of the calls
/// that it answers in the caller's memory, and would have to refuse them to an untraceable process.
/// No wall depends on the flag: processes of one cell are not protected from each other in any case,
/// no process outside of the cell but the operator's can trace them, and the limit of core files
/// does not depend on it. PR_GET_DUMPABLE returns the true value; programs that set the flag check
/// only whether that succeeded.
fn process_options(memory: MemoryHold) -> Verdict {
    let is_asked = |option| memory == MemoryHold::BestEffort && option == SUBREAPER;
    let listed = PRCTLS.iter().copied().filter(|(option, _)| !is_asked(*option));
    let mut allowed: Vec<All> = listed.map(|range| within(0, range)).collect();
    let sets_dumpable = Test::low(0, Op::Eq, SET_DUMPABLE);
    allowed.push(vec![sets_dumpable, Test::full(1, Op::Ne, NOT_DUMPABLE)]);
    let untraceable = vec![sets_dumpable, Test::full(1, Op::Eq, NOT_DUMPABLE)];
    Verdict::AllowOrProbe(allowed, Probe { when: vec![untraceable], errno: 0 })
}

/// Allows fcntl(2) with F_SETOWN too, in cells with a pid namespace: no number in it names a process
/// or group outside. Init (1) and its group (-1) are left out. The signal is SIGIO or SIGURG, which
/// these processes may send to each other by kill(2).
pub(super) fn signal_owners() -> Verdict {
    const INIT: u32 = 1;
    const GROUP_OF_INIT: u32 = u32::MAX;
    let mut allowed: Vec<All> = FCNTLS.iter().map(|range| within(1, *range)).collect();
    // The kernel takes an int, the low half of the register.
    allowed.push(vec![
        Test::low(1, Op::Eq, F_SETOWN),
        Test::low(2, Op::Ne, INIT),
        Test::low(2, Op::Ne, GROUP_OF_INIT),
    ]);
    Verdict::AllowIf(allowed)
}

/// Uid and gid of every program in a cell that has a user namespace.
const CELL_ID: u32 = 1000;

/// Returns the condition on a call that sets ids in a cell with a user namespace: only the cell's
/// id, or -1, which leaves an id unchanged. Other ids are refused with EPERM and not counted, as
/// for a program without the privilege, which programs handle. The kernel would return EINVAL, as
/// the namespace has no such id.
pub(super) fn cell_ids(call: &str) -> Option<Verdict> {
    const UNCHANGED: u32 = u32::MAX;
    let cell = |argument| Test::low(argument, Op::Eq, CELL_ID);
    let unchanged = |argument| Test::low(argument, Op::Eq, UNCHANGED);
    let allowed: Vec<All> = match call {
        "setuid" | "setgid" => vec![vec![cell(0)]],
        "setreuid" | "setregid" => each_cell_or_unchanged(&[0, 1], cell, unchanged),
        "setresuid" | "setresgid" => each_cell_or_unchanged(&[0, 1, 2], cell, unchanged),
        "chown" | "lchown" | "fchown" => each_cell_or_unchanged(&[1, 2], cell, unchanged),
        "fchownat" => each_cell_or_unchanged(&[2, 3], cell, unchanged),
        _ => return None,
    };
    Some(Verdict::AllowOrProbe(allowed, Probe { when: vec![Vec::new()], errno: libc::EPERM }))
}

/// Returns every combination in which each of these arguments is the cell's id or unchanged.
fn each_cell_or_unchanged(
    arguments: &[u8],
    cell: impl Fn(u8) -> Test,
    unchanged: impl Fn(u8) -> Test,
) -> Vec<All> {
    arguments.iter().fold(vec![Vec::new()], |ways, argument| {
        let with =
            |test: Test| ways.iter().map(move |way: &All| [way.as_slice(), &[test]].concat());
        with(cell(*argument)).chain(with(unchanged(*argument))).collect()
    })
}

/// Explains a denial by [`condition`] for a reply.
pub(super) fn refused(call: &str) -> Option<&'static str> {
    Some(match call {
        "clone" | "unshare" => "cells make no namespaces",
        "ioctl" | "fcntl" | "prctl" | "arch_prctl" => "only harmless requests are allowed",
        "personality" => "a cell has the ordinary personality",
        "prlimit64" | "setrlimit" => {
            "a process may see and lower its own limits only; that of core files stays as it is"
        }
        "setpriority" | "ioprio_set" => "a process may lower its own priority only",
        "sched_setscheduler" => "only the ordinary schedulers are allowed",
        "setsockopt" => "only ordinary options of sockets are allowed",
        "sendto" | "sendmsg" | "sendmmsg" => {
            "data out of band is not allowed, nor pages that a socket borrows"
        }
        "futex" => "futexes that lend their priority are absent",
        "madvise" => "pages are not merged, reclaimed or made huge on demand",
        "timer_create" | "clock_nanosleep" => "timers count real time, not a processor's",
        "fallocate" => "no file takes room that its size does not show",
        "preadv2" | "pwritev2" => "what the host has in memory is not shown",
        "fadvise64" => "no file is dropped from memory, which the host shares",
        "setuid" | "setgid" | "setreuid" | "setregid" | "setresuid" | "setresgid" | "chown"
        | "fchown" | "lchown" | "fchownat" => {
            "a cell with ids has one user and one group, 1000: any other is EPERM"
        }
        "mknod" | "mknodat" => "cells have no device nodes and no set-id files",
        _ if file_mode(call).is_some() => "cells make no set-id files",
        _ => return None,
    })
}

/// Allows modes of fallocate(2) that respect RLIMIT_FSIZE or take no space: allocating, punching a
/// hole, collapsing a range, zeroing one. With FALLOC_FL_KEEP_SIZE, or by an inserted range, a file
/// could exceed the limit. The other modes are answered as by a filesystem without them.
fn room_within_limits() -> Verdict {
    let modes = [0, 0x3, 0x8, 0x10];
    let any = modes.map(|mode| vec![Test::low(1, Op::Eq, mode)]).into();
    Verdict::AllowOrProbe(any, Probe { when: vec![Vec::new()], errno: libc::EOPNOTSUPP })
}

/// Allows preadv2(2) and pwritev2(2) with the flags of Linux 6.13 except RWF_NOWAIT, which reveals
/// whether a page of a file is in memory: the page cache is shared with the host, so a cell would
/// see when the host runs or reads a file. RWF_DONTCACHE (6.14) drops what it has read. These and
/// unknown flags are answered as by a filesystem without them.
fn ordinary_reads_and_writes() -> Verdict {
    // RWF_HIPRI, RWF_DSYNC, RWF_SYNC, RWF_APPEND, RWF_NOAPPEND, RWF_ATOMIC.
    const FLAGS: u32 = 0x1 | 0x2 | 0x4 | 0x10 | 0x20 | 0x40;
    let other = Probe { when: vec![Vec::new()], errno: libc::EOPNOTSUPP };
    Verdict::AllowOrProbe(vec![vec![Test::none_of(5, !FLAGS)]], other)
}

/// Allows all advice of posix_fadvise(2) except POSIX_FADV_DONTNEED, which returns 0 without
/// effect: it drops a file from the page cache shared with the host, and the time of the next read
/// would show whether the file was read meanwhile. The kernel does not promise to drop anything.
fn advice_on_files() -> Verdict {
    const DONTNEED: u32 = libc::POSIX_FADV_DONTNEED.cast_unsigned();
    let dropped = Probe { when: vec![vec![Test::low(3, Op::Eq, DONTNEED)]], errno: 0 };
    Verdict::AllowOrProbe(vec![vec![Test::low(3, Op::Ne, DONTNEED)]], dropped)
}

/// Allows SCHED_OTHER and SCHED_BATCH. Real-time policies starve the machine, and a SCHED_IDLE process
/// that holds a lock of the kernel (rtnl_lock, tty_mutex) may keep the host waiting for seconds.
fn ordinary_schedulers() -> Verdict {
    let policies = [0, 3];
    Verdict::AllowIf(policies.map(|policy| vec![Test::besides(1, RESET_ON_FORK, policy)]).into())
}

/// Allows no set-id bit on files that a cell creates. nosuid mounts disable such bits within the
/// cell, but a file in a writable host directory outlives the cell and carries its owner's rights.
fn file_mode(call: &str) -> Option<Verdict> {
    let plain = |argument| Verdict::AllowIf(vec![vec![Test::none_of(argument, SET_ID)]]);
    // open(2) has a mode only if the flags say that a file may be created.
    let opened = |flags, mode| {
        Verdict::AllowIf(vec![
            vec![Test::none_of(flags, CREATES)],
            vec![Test::none_of(mode, SET_ID)],
        ])
    };
    Some(match call {
        "chmod" | "fchmod" | "creat" => plain(1),
        "fchmodat" | "fchmodat2" => plain(2),
        "open" => opened(1, 2),
        "openat" => opened(2, 3),
        "mknod" => nodes(1),
        "mknodat" => nodes(2),
        _ => return None,
    })
}

/// Allows mknod(2) of regular files (including kind 0), FIFOs and sockets, but not of devices.
fn nodes(mode: u8) -> Verdict {
    let kinds = [0, libc::S_IFREG, libc::S_IFIFO, libc::S_IFSOCK];
    let bits = u64::from(FILE_KIND | SET_ID);
    Verdict::AllowIf(kinds.map(|kind| vec![Test::low(mode, Op::MaskedEq(bits), kind)]).into())
}

/// Tests the flags of sendto(2) or sendmsg(2) for the absence of MSG_OOB: urgent TCP data, and an
/// out-of-band byte of Unix sockets that no shell uses.
pub(super) const fn in_band(flags: u8) -> Test {
    Test::none_of(flags, MSG_OOB)
}

/// Same, and without MSG_ZEROCOPY if socket memory is not accounted: a borrowed page counts only as
/// the bytes that are sent of it.
fn sent(flags: u8, memory: MemoryHold) -> Test {
    match memory {
        MemoryHold::CgroupV1 | MemoryHold::CgroupV2 => in_band(flags),
        MemoryHold::BestEffort => Test::none_of(flags, MSG_OOB | MSG_ZEROCOPY),
    }
}

/// Allows futex(2) without priority inheritance, like a kernel built without CONFIG_FUTEX_PI: libc
/// checks for it, and works without.
fn futex() -> Verdict {
    // FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME, which may be combined with the operation.
    const FLAGS: u32 = 0x180;
    let operation = |pair: u32, number| vec![Test::besides(1, FLAGS | pair, number)];
    let allowed = vec![
        operation(1, 0),  // FUTEX_WAIT, FUTEX_WAKE
        operation(0, 9),  // FUTEX_WAIT_BITSET
        operation(0, 10), // FUTEX_WAKE_BITSET
        operation(1, 4),  // FUTEX_CMP_REQUEUE, FUTEX_WAKE_OP
        operation(0, 3),  // FUTEX_REQUEUE
    ];
    let lent = vec![
        operation(1, 6),  // FUTEX_LOCK_PI, FUTEX_UNLOCK_PI
        operation(0, 8),  // FUTEX_TRYLOCK_PI
        operation(0, 11), // FUTEX_WAIT_REQUEUE_PI
        operation(1, 12), // FUTEX_CMP_REQUEUE_PI, FUTEX_LOCK_PI2
    ];
    Verdict::AllowOrProbe(allowed, Probe { when: lent, errno: libc::ENOSYS })
}

/// Allows all advice of madvise(2) about a program's private pages except merging equal pages with
/// other programs (MADV_MERGEABLE), which reveals one to the other, reclaiming pages (MADV_COLD,
/// MADV_PAGEOUT), which every process that maps the file shares, and collapsing into huge pages
/// (MADV_COLLAPSE). Other advice is answered as unknown.
///
/// Under best-effort memory, paging in now is unknown too (MADV_POPULATE_READ, MADV_POPULATE_WRITE): for as long as it
/// takes, another thread of the program can keep init from reading what the program uses.
fn advice(memory: MemoryHold) -> Verdict {
    let first_of_now = match memory {
        MemoryHold::BestEffort => 24,
        MemoryHold::CgroupV1 | MemoryHold::CgroupV2 => 22,
    };
    let advice = [
        (0, 4),             // normal, random, sequential, will need, does not need
        (8, 11),            // free, remove, fork
        (14, 19),           // huge pages in time, core files, wipe on fork
        (first_of_now, 24), // page in now; does not need, locked pages too
        (102, 103),         // guard pages
    ];
    let other = Probe { when: vec![vec![Test::low(2, Op::Ge, 5)]], errno: libc::EINVAL };
    Verdict::AllowOrProbe(advice.map(|range| within(2, range)).into(), other)
}

/// Allows mmap(2) of private memory and of files. All other mappings are decided by the cell's
/// init: shared memory without a file is not accounted once it is unmapped, and huge pages never
/// are. A mapping that grows down (MAP_GROWSDOWN) is refused: the kernel takes it for a stack, which RLIMIT_DATA does
/// not limit.
fn private_or_file_mappings() -> Verdict {
    const MAP_SHARED: u32 = libc::MAP_SHARED.cast_unsigned();
    const MAP_ANONYMOUS: u32 = libc::MAP_ANONYMOUS.cast_unsigned();
    const MAP_HUGETLB: u32 = libc::MAP_HUGETLB.cast_unsigned();
    const MAP_GROWSDOWN: u32 = libc::MAP_GROWSDOWN.cast_unsigned();
    let grows = Test::low(3, Op::MaskedEq(u64::from(MAP_GROWSDOWN)), MAP_GROWSDOWN);
    let allowed = vec![
        vec![Test::none_of(3, MAP_SHARED | MAP_HUGETLB | MAP_GROWSDOWN)],
        vec![Test::none_of(3, MAP_ANONYMOUS | MAP_HUGETLB | MAP_GROWSDOWN)],
    ];
    Verdict::AllowOrProbe(allowed, Probe { when: vec![vec![grows]], errno: libc::EINVAL })
}

/// Allows shmget(2) of existing segments: a new one cannot have 0 bytes. All others are decided by
/// the cell's init, since their pages are not accounted once no process has attached them.
fn existing_segments() -> Verdict {
    Verdict::AllowIf(vec![vec![Test::full(1, Op::Eq, 0)]])
}

/// Allows execve(2) and execveat(2) as set by the profile's `exec` key.
pub(super) fn exec(exec: &Exec) -> Vec<(&'static str, Verdict)> {
    match exec {
        Exec::Any => vec![("execve", Verdict::Allow), ("execveat", Verdict::Allow)],
        // The descriptor closes on exec, so the condition can be met only once. execve has no
        // verdict.
        Exec::Only(_) => vec![(
            "execveat",
            Verdict::AllowIf(vec![vec![
                Test::low(0, Op::Eq, HELD_DESCRIPTOR),
                Test::low(4, Op::Eq, 0x1000), // AT_EMPTY_PATH, and nothing else
            ]]),
        )],
    }
}

/// Allows socket(2) and socketpair(2) of the granted families; without a family there is no
/// verdict.
pub(super) fn sockets(
    families: &BTreeSet<Family>,
    class: NetworkClass,
) -> Vec<(&'static str, Verdict)> {
    let mut any: Vec<All> = Vec::new();
    for (family, _, number) in FAMILIES {
        if families.contains(&family) {
            any.extend(
                kinds(family).iter().map(|(kind, protocol)| socket(number, *kind, *protocol)),
            );
            // Sockets of ping (icmp(7)): their echo requests are judged by the gateway.
            any.extend(
                echo(family)
                    .into_iter()
                    .filter(|_| class.has_egress())
                    .map(|protocol| socket(number, DATAGRAM, protocol)),
            );
        }
    }
    let mut verdicts = Vec::new();
    if families.contains(&Family::Unix) {
        let pairs = kinds(Family::Unix).iter().map(|(kind, protocol)| socket(1, *kind, *protocol));
        verdicts.push(("socketpair", Verdict::AllowIf(pairs.collect())));
    }
    if !any.is_empty() {
        verdicts.push(("socket", Verdict::AllowOrProbe(any, interfaces())));
    }
    verdicts
}

/// Describes a route netlink socket, by which getaddrinfo(3) queries the machine's addresses. A cell's
/// init makes it where the profile has sockets of the internet. Where there is no such init, it is
/// answered as by a kernel without netlink: libc then tries every family. Other netlink sockets are
/// denied and counted, like every family that is not granted.
fn interfaces() -> Probe {
    let netlink = 16;
    let raw = 3;
    let route = 0;
    Probe { when: vec![socket(netlink, raw, route)], errno: libc::EAFNOSUPPORT }
}

/// Returns the protocol of a family's ping sockets.
fn echo(family: Family) -> Option<u32> {
    match family {
        Family::Unix => None,
        Family::Inet => Some(1),
        Family::Inet6 => Some(58),
    }
}

/// Returns the allowed types and protocols of a family: neither raw nor ping sockets, SCTP or
/// MPTCP.
fn kinds(family: Family) -> &'static [(u32, u32)] {
    match family {
        Family::Unix => &[(STREAM, 0), (DATAGRAM, 0), (SEQPACKET, 0)],
        Family::Inet | Family::Inet6 => {
            &[(STREAM, 0), (STREAM, TCP), (DATAGRAM, 0), (DATAGRAM, UDP)]
        }
    }
}

pub(super) fn socket(family: u32, kind: u32, protocol: u32) -> All {
    vec![
        Test::low(0, Op::Eq, family),
        Test::besides(1, SOCKET_FLAGS, kind),
        Test::low(2, Op::Eq, protocol),
    ]
}

#[cfg(test)]
#[path = "arguments_tests.rs"]
mod tests;
