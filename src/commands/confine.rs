//! Confinement of the front end itself, before its runtime exists.
//!
//! The front end parses all hostile input, so it keeps only rights that a client may use through it anyway: no
//! capability, no file to open, no exec, no namespace. Threads made later inherit the confinement.

use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use syscalls::Sysno;

use crate::commands::error::CliError;
use cell::confine::{BASE, Filter, enclose, int, one_of, unsigned};
use cell::landlock;
use cell::seccomp::FSTATAT;
use model::profile::condition::{Op, Test, Verdict};
use sys::bpf::Instruction;

/// System calls of a front end in addition to [`BASE`]: for streams, the link, its runtime. `execve`,
/// `mount`, `ptrace`, `unshare`, `socket` and `open_by_handle_at` are absent on purpose.
const ALLOWED: [Sysno; 43] = [
    Sysno::read,
    Sysno::write,
    Sysno::readv,
    Sysno::writev,
    Sysno::pread64,
    Sysno::pwrite64,
    Sysno::lseek,
    Sysno::close_range,
    Sysno::dup,
    Sysno::dup3,
    Sysno::pipe2,
    Sysno::splice,
    Sysno::recvmsg,
    Sysno::recvfrom,
    Sysno::shutdown,
    Sysno::getsockopt,
    Sysno::epoll_create1,
    Sysno::epoll_ctl,
    Sysno::epoll_pwait,
    Sysno::epoll_pwait2,
    Sysno::eventfd2,
    Sysno::timerfd_create,
    Sysno::timerfd_settime,
    Sysno::ppoll,
    Sysno::memfd_create,
    Sysno::ftruncate,
    // Landlock leaves nothing to open but already open files, by /proc/self/fd.
    Sysno::openat,
    Sysno::fstat,
    FSTATAT,
    Sysno::statx,
    Sysno::mprotect,
    Sysno::membarrier,
    Sysno::set_robust_list,
    Sysno::rseq,
    Sysno::sched_getaffinity,
    Sysno::sched_yield,
    Sysno::clock_nanosleep,
    Sysno::nanosleep,
    Sysno::gettid,
    Sysno::getuid,
    Sysno::uname,
    Sysno::exit,
    Sysno::set_tid_address,
];

/// Older names of the same calls.
#[cfg(target_arch = "x86_64")]
const OLDER: [Sysno; 5] =
    [Sysno::epoll_wait, Sysno::poll, Sysno::open, Sysno::readlink, Sysno::dup2];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: [Sysno; 0] = [];

/// Further calls for a log in a held directory: its lock, and its rotation.
const LOG: [Sysno; 5] =
    [Sysno::flock, Sysno::fdatasync, Sysno::renameat, Sysno::renameat2, Sysno::unlinkat];

/// Further call for a listener of `serve --http`. It was bound before; `socket`, `bind`, `listen` and `connect` stay
/// absent.
const LISTENER: [Sysno; 1] = [Sysno::accept4];

/// Requests of `ioctl` on a descriptor: is it a terminal, bytes to read, O_NONBLOCK, FD_CLOEXEC.
/// TIOCSTI is absent on purpose: it types commands into the operator's terminal.
const IOCTLS: [u64; 6] =
    [libc::TCGETS, libc::TIOCGWINSZ, libc::FIONREAD, libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX];
/// Further requests, for a front end at the operator's terminal: its attributes, discarded input, and the size
/// of the cell's.
const TERMINAL_IOCTLS: [u64; 9] = [
    libc::TCSETS,
    libc::TCSETSW,
    libc::TCSETSF,
    libc::TCFLSH,
    libc::TIOCSWINSZ,
    libc::TCGETS2,
    libc::TCSETS2,
    libc::TCSETSW2,
    libc::TCSETSF2,
];
/// Operations of `fcntl`: copy, flags, seals. F_SETOWN and leases are absent: they signal others.
const FCNTLS: [i32; 8] = [
    libc::F_DUPFD,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_DUPFD_CLOEXEC,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

/// Returns every call of a front end, including those whose arguments are checked.
pub(super) fn calls() -> impl Iterator<Item = Sysno> {
    let checked = conditional(true).map(|(call, _)| call);
    let plain = BASE.into_iter().chain(ALLOWED).chain(OLDER).chain(LOG).chain(LISTENER);
    plain.chain(checked)
}

/// Returns the calls whose arguments are checked.
fn conditional(at_terminal: bool) -> [(Sysno, Verdict); 10] {
    let only = |argument, value| one_of(argument, [value]);
    let more = TERMINAL_IOCTLS.into_iter().filter(|_| at_terminal);
    let thread = unsigned(libc::CLONE_THREAD);
    let flags = u64::from(u32::MAX) & !unsigned(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    [
        // Threads are allowed, and no clone that makes a process.
        (Sysno::clone, Verdict::AllowIf(vec![vec![int(0, Op::MaskedEq(thread), thread)]])),
        // Naming a thread is all that a front end asks of prctl.
        (Sysno::prctl, only(0, unsigned(libc::PR_SET_NAME))),
        // Its own signals (abort): other processes of the operator have the same uid.
        (Sysno::tgkill, only(0, u64::from(std::process::id()))),
        // Reading limits only: the limit of core files keeps the kernel from starting a program for a crash.
        (
            Sysno::prlimit64,
            Verdict::AllowIf(vec![vec![int(0, Op::Eq, 0), Test::full(2, Op::Eq, 0)]]),
        ),
        // Socket pairs for the runtime. Datagram sockets are refused: they can send to any other
        // that the uid may write to, not to their pair only (unix(7)).
        (
            Sysno::socketpair,
            Verdict::AllowIf(vec![vec![
                int(0, Op::Eq, unsigned(libc::AF_UNIX)),
                int(1, Op::MaskedEq(flags), unsigned(libc::SOCK_STREAM)),
            ]]),
        ),
        // The address is behind a pointer, where no filter sees it. Of the sockets that a front end can have, only a
        // disconnected TCP socket sends to an address, with this flag (tcp(7)): it would connect again, past Landlock.
        (
            Sysno::sendmsg,
            Verdict::AllowIf(vec![vec![int(2, Op::MaskedEq(unsigned(libc::MSG_FASTOPEN)), 0)]]),
        ),
        (Sysno::sendto, Verdict::AllowIf(vec![vec![Test::full(4, Op::Eq, 0)]])),
        // The only option that listeners set on a connection. Filters, fast open and owners of descriptors are refused.
        (
            Sysno::setsockopt,
            Verdict::AllowIf(vec![vec![
                int(1, Op::Eq, unsigned(libc::IPPROTO_TCP)),
                int(2, Op::Eq, unsigned(libc::TCP_NODELAY)),
            ]]),
        ),
        (Sysno::ioctl, one_of(1, IOCTLS.into_iter().chain(more))),
        (Sysno::fcntl, one_of(1, FCNTLS.map(unsigned))),
    ]
}

/// Tasks of a front end other than serving streams, which need further system calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Duties {
    /// Writes a log in a directory that is open.
    pub logs: bool,
    /// Uses the operator's terminal.
    pub terminal: bool,
    /// Accepts connections from a listening socket.
    pub listens: bool,
}

/// Confines the calling process, which must have one thread.
///
/// # Errors
/// The part of the confinement that failed; the process must not continue then.
pub fn confine(log_directory: Option<BorrowedFd<'_>>, duties: Duties) -> Result<(), CliError> {
    let wall = |reason: &dyn std::fmt::Display| {
        CliError::new(format!("the front end could not be confined: {reason}"))
    };
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, std::iter::Iterator::count);
    if threads != 1 {
        return Err(wall(&"it has more than one thread"));
    }
    let filter = filter(Duties { logs: log_directory.is_some(), ..duties });
    enclose(|abi| landlock::only(abi, log_directory), &filter).map_err(|failed| wall(&failed))
}

/// Returns the filter of a front end.
fn filter(duties: Duties) -> Filter {
    let log = LOG.into_iter().filter(|_| duties.logs);
    let listener = LISTENER.into_iter().filter(|_| duties.listens);
    let plain = ALLOWED.into_iter().chain(OLDER).chain(log).chain(listener);
    // The flags of clone3 are behind a pointer, where no filter sees them: ENOSYS makes the C
    // library use clone.
    let clone3 = (Sysno::clone3, Verdict::Errno(libc::ENOSYS));
    Filter::of_calls(plain).with(conditional(duties.terminal)).with([clone3])
}

/// Compiles the filter of a front end.
///
/// # Errors
/// E2BIG: the filter itself is wrong.
pub fn program(duties: Duties) -> Result<Vec<Instruction>, Errno> {
    filter(duties).compile()
}
