//! The front end's own walls, put up before its runtime exists.
//!
//! It parses everything hostile, so it gets what any caller could ask for and no more: no
//! capability, no file to open, no exec, no namespace. Threads made later inherit all of it.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use syscalls::Sysno;

use super::error::CliError;
use crate::cell::{caps, landlock};
use crate::sys::process;

/// What a front end calls: streams, the link, its runtime, memory, time. `execve`, `mount`,
/// `ptrace`, `unshare`, `socket` and `open_by_handle_at` are absent on purpose.
const ALLOWED: [Sysno; 61] = [
    Sysno::read,
    Sysno::write,
    Sysno::readv,
    Sysno::writev,
    Sysno::pread64,
    Sysno::pwrite64,
    Sysno::lseek,
    Sysno::close,
    Sysno::close_range,
    Sysno::dup,
    Sysno::dup3,
    Sysno::pipe2,
    Sysno::splice,
    Sysno::recvmsg,
    Sysno::recvfrom,
    // To whom is behind a pointer; of the sockets that can be had, none sends to an address.
    Sysno::sendmsg,
    Sysno::shutdown,
    Sysno::getsockopt,
    Sysno::setsockopt,
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
    // Landlock leaves nothing to open but what is open already, by /proc/self/fd.
    Sysno::openat,
    Sysno::fstat,
    Sysno::newfstatat,
    Sysno::statx,
    Sysno::futex,
    Sysno::mmap,
    Sysno::munmap,
    Sysno::mremap,
    Sysno::mprotect,
    Sysno::madvise,
    Sysno::brk,
    Sysno::membarrier,
    Sysno::rt_sigaction,
    Sysno::rt_sigprocmask,
    Sysno::rt_sigreturn,
    Sysno::sigaltstack,
    Sysno::set_robust_list,
    Sysno::rseq,
    Sysno::sched_getaffinity,
    Sysno::sched_yield,
    Sysno::getrandom,
    Sysno::clock_gettime,
    Sysno::clock_nanosleep,
    Sysno::nanosleep,
    Sysno::getpid,
    Sysno::gettid,
    Sysno::getuid,
    Sysno::uname,
    Sysno::restart_syscall,
    Sysno::exit,
    Sysno::exit_group,
    Sysno::set_tid_address,
];

/// The same under their older names.
#[cfg(target_arch = "x86_64")]
const OLDER: [Sysno; 5] =
    [Sysno::epoll_wait, Sysno::poll, Sysno::open, Sysno::readlink, Sysno::dup2];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: [Sysno; 0] = [];

/// What a log in a held directory needs besides: its lock, and its rotation.
const LOG: [Sysno; 5] =
    [Sysno::flock, Sysno::fdatasync, Sysno::renameat, Sysno::renameat2, Sysno::unlinkat];

/// What `ioctl` may ask of a descriptor: whether it is a terminal, how much it holds, two flags of its
/// own. TIOCSTI is absent on purpose: it types commands into the operator's terminal.
const IOCTLS: [u64; 6] =
    [libc::TCGETS, libc::TIOCGWINSZ, libc::FIONREAD, libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX];
/// What `fcntl` may do: copy, flags, seals. F_SETOWN and leases are absent: they signal others.
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

/// One test of one argument of a call.
struct Condition(u8, SeccompCmpArgLen, SeccompCmpOp, u64);

impl Condition {
    fn equal(argument: u8, value: u64) -> Self {
        Self(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
    }

    fn compiled(self) -> Result<SeccompCondition, seccompiler::BackendError> {
        SeccompCondition::new(self.0, self.1, self.2, self.3)
    }
}

/// Calls of which one of the alternatives must hold, and of that each condition.
fn conditions() -> Vec<(Sysno, Vec<Vec<Condition>>)> {
    use SeccompCmpArgLen::{Dword, Qword};
    let unsigned = |value: i32| u64::from(value.unsigned_abs());
    let (thread, flags) =
        (unsigned(libc::CLONE_THREAD), unsigned(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK));
    let only = |argument, value| vec![vec![Condition::equal(argument, value)]];
    let one_of = |values: &[u64]| {
        values.iter().map(|value| vec![Condition::equal(1, *value)]).collect::<Vec<_>>()
    };
    vec![
        // Threads, and nothing that would be a process of its own.
        (Sysno::clone, vec![vec![Condition(0, Dword, SeccompCmpOp::MaskedEq(thread), thread)]]),
        // Naming a thread is all a front end asks of prctl.
        (Sysno::prctl, only(0, unsigned(libc::PR_SET_NAME))),
        // Its own signals (abort) and limits: other processes of the operator have the same uid.
        (Sysno::tgkill, only(0, u64::from(std::process::id()))),
        (Sysno::prlimit64, only(0, 0)),
        // Pairs of its own for the runtime. Not datagrams: from such a socket a packet goes to any
        // other that the uid may write to, whatever it was paired with (unix(7)).
        (
            Sysno::socketpair,
            vec![vec![
                Condition::equal(0, unsigned(libc::AF_UNIX)),
                Condition(
                    1,
                    Dword,
                    SeccompCmpOp::MaskedEq(u64::from(u32::MAX) & !flags),
                    unsigned(libc::SOCK_STREAM),
                ),
            ]],
        ),
        (Sysno::sendto, vec![vec![Condition(4, Qword, SeccompCmpOp::Eq, 0)]]),
        (Sysno::ioctl, one_of(&IOCTLS)),
        (Sysno::fcntl, one_of(&FCNTLS.map(unsigned))),
    ]
}

/// Confines the calling process, which must have one thread.
///
/// # Errors
/// The wall that could not be put up; the process must not go on then.
pub fn confine(held: Option<BorrowedFd<'_>>) -> Result<(), CliError> {
    let wall = |what: &str, errno: Errno| {
        CliError::new(format!("the front end could not be confined: {what}: {errno}"))
    };
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, std::iter::Iterator::count);
    if threads != 1 {
        return Err(wall("it has more than one thread", Errno::EBUSY));
    }
    // Only who has capabilities may empty the bounding set; no_new_privs makes it moot for others.
    if nix::unistd::geteuid().is_root() {
        caps::drop_bounding(&[]).map_err(|errno| wall("bounding capabilities", errno))?;
    }
    caps::clear_current().map_err(|errno| wall("capabilities", errno))?;
    process::set_no_new_privs().map_err(|errno| wall("no_new_privs", errno))?;
    let abi = landlock::kernel_abi();
    // Without Landlock no profile can be used, so there is nothing to guard but the refusals.
    if abi > 0 {
        landlock::only(abi, held)
            .and_then(|ruleset| ruleset.restrict())
            .map_err(|errno| wall("Landlock", errno))?;
    }
    // In this order: the second forbids loading a third.
    let programs = programs(held.is_some());
    for program in programs.map_err(|_| wall("system call filter", Errno::EINVAL))? {
        seccompiler::apply_filter(&program)
            .map_err(|_| wall("system call filter", Errno::last()))?;
    }
    Ok(())
}

type Compiled = Result<BpfProgram, Box<dyn std::error::Error>>;

/// The filters of a front end, which may keep a log, in the order in which they are loaded.
///
/// # Errors
/// They do not compile: a mistake of ours.
pub fn programs(logs: bool) -> Result<[BpfProgram; 2], Box<dyn std::error::Error>> {
    Ok([no_clone3()?, allow_list(logs)?])
}

fn architecture() -> Result<TargetArch, seccompiler::BackendError> {
    TargetArch::try_from(std::env::consts::ARCH)
}

fn allow_list(logs: bool) -> Compiled {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.into_iter().chain(OLDER).map(|call| (number(call), Vec::new())).collect();
    if logs {
        rules.extend(LOG.into_iter().map(|call| (number(call), Vec::new())));
    }
    for (call, alternatives) in conditions() {
        let all = alternatives.into_iter().map(|conditions| {
            let conditions = conditions.into_iter().map(Condition::compiled);
            SeccompRule::new(conditions.collect::<Result<_, _>>()?)
        });
        rules.insert(number(call), all.collect::<Result<_, _>>()?);
    }
    // Let through here, refused by the other filter.
    rules.insert(number(Sysno::clone3), Vec::new());
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let filter = SeccompFilter::new(rules, refuse, SeccompAction::Allow, architecture()?)?;
    Ok(filter.try_into()?)
}

/// clone3's flags are behind a pointer, where no filter sees them: ENOSYS makes the C library use
/// clone. A filter of its own, as `seccompiler` has one errno for each; the stricter of two counts.
fn no_clone3() -> Compiled {
    let rules = BTreeMap::from([(number(Sysno::clone3), Vec::new())]);
    let refuse = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture()?)?;
    Ok(filter.try_into()?)
}

fn number(call: Sysno) -> i64 {
    i64::from(call.id())
}
