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
const ALLOWED: [Sysno; 67] = [
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
    Sysno::fcntl,
    Sysno::ioctl,
    Sysno::pipe2,
    Sysno::splice,
    Sysno::recvmsg,
    Sysno::recvfrom,
    Sysno::sendmsg,
    Sysno::sendto,
    Sysno::shutdown,
    Sysno::socketpair,
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
    Sysno::tgkill,
    Sysno::getuid,
    Sysno::uname,
    Sysno::prlimit64,
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
    for program in [no_clone3(), allow_list(held.is_some())] {
        let program = program.map_err(|_| wall("system call filter", Errno::EINVAL))?;
        seccompiler::apply_filter(&program)
            .map_err(|_| wall("system call filter", Errno::last()))?;
    }
    Ok(())
}

type Compiled = Result<BpfProgram, Box<dyn std::error::Error>>;

fn architecture() -> Result<TargetArch, seccompiler::BackendError> {
    TargetArch::try_from(std::env::consts::ARCH)
}

fn allow_list(logs: bool) -> Compiled {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.into_iter().chain(OLDER).map(|call| (number(call), Vec::new())).collect();
    if logs {
        rules.extend(LOG.into_iter().map(|call| (number(call), Vec::new())));
    }
    // Threads, and nothing that would be a process of its own.
    let thread = u64::from(libc::CLONE_THREAD.unsigned_abs());
    let only_threads =
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(thread), thread)?;
    rules.insert(number(Sysno::clone), vec![SeccompRule::new(vec![only_threads])?]);
    // Let through here, refused by the other filter.
    rules.insert(number(Sysno::clone3), Vec::new());
    // Naming a thread is all a front end asks of prctl.
    let name = u64::from(libc::PR_SET_NAME.unsigned_abs());
    let only_name = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, name)?;
    rules.insert(number(Sysno::prctl), vec![SeccompRule::new(vec![only_name])?]);
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
