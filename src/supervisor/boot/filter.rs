//! The supervisor's own filter: the system calls for cloning, measuring and reaping cells.
//!
//! Cells inherit it. It refuses by user notification without a listener: for
//! the supervisor that is ENOSYS, and in a payload, whose own filter says the same with a
//! listener, the newer filter's word counts and the denial is counted (seccomp(2), "the most
//! recently installed filter" among equal verdicts).

use std::collections::BTreeMap;

use nix::errno::Errno;
use syscalls::Sysno;

use crate::cells::key::Key;
use cell::seccomp::{self, Action, Recording, number};
use model::core_dumps;
use model::profile::condition::Verdict;
use sys::bpf;

/// The loop: waiting, the link, pipes and memfds, clocks.
const LOOP: [Sysno; 31] = [
    Sysno::ppoll,
    Sysno::recvmsg,
    Sysno::sendmsg,
    Sysno::read,
    Sysno::write,
    Sysno::pread64,
    Sysno::lseek,
    Sysno::close,
    Sysno::fcntl,
    Sysno::dup3,
    Sysno::pipe2,
    Sysno::socketpair,
    Sysno::setsockopt,
    Sysno::eventfd2,
    Sysno::memfd_create,
    Sysno::openat,
    Sysno::readlinkat,
    Sysno::fstat,
    seccomp::FSTATAT,
    Sysno::statx,
    Sysno::mkdirat,
    Sysno::unlinkat,
    Sysno::clock_gettime,
    Sysno::brk,
    Sysno::mmap,
    Sysno::munmap,
    Sysno::mremap,
    // The guard below the stack of payloads: also where no profile can be used, which is then told.
    Sysno::mprotect,
    Sysno::rt_sigreturn,
    Sysno::exit_group,
    Sysno::getrandom,
];

/// Making and ending cells.
const CELLS: [Sysno; 9] = [
    Sysno::clone3,
    Sysno::setns,
    // For containers in which the outer /proc must do, whose pids a pidfd tells (container that masks /proc).
    Sysno::pidfd_open,
    Sysno::pidfd_send_signal,
    Sysno::waitid,
    Sysno::prctl,
    Sysno::getpid,
    Sysno::futex,
    // Output that a program can open anew.
    Sysno::fchmod,
];

/// The mailboxes and workspaces of sessions, which also take mount(2) and unshare(2) of the list below.
const SESSIONS: [Sysno; 6] = [
    Sysno::mknodat,
    Sysno::symlinkat,
    Sysno::fchmodat,
    Sysno::renameat,
    // A workspace is shown in the mounts of cells beside the shell.
    Sysno::open_tree,
    Sysno::move_mount,
];

/// Calls of a cell between the clone and its own filters (`cell::enter`, in that order).
const ENTER: [Sysno; 43] = [
    // Of the payload; clone3 is there anyway.
    Sysno::clone,
    Sysno::setsid,
    Sysno::setgroups,
    Sysno::setresuid,
    Sysno::setresgid,
    Sysno::fsopen,
    Sysno::fsconfig,
    Sysno::fsmount,
    Sysno::mount,
    Sysno::socket,
    Sysno::ioctl,
    Sysno::prlimit64,
    Sysno::getrlimit,
    Sysno::setrlimit,
    Sysno::close_range,
    Sysno::capget,
    Sysno::capset,
    Sysno::getpriority,
    Sysno::setpriority,
    Sysno::seccomp,
    Sysno::landlock_create_ruleset,
    Sysno::landlock_add_rule,
    Sysno::landlock_restrict_self,
    Sysno::unshare,
    Sysno::rt_sigprocmask,
    Sysno::rt_sigaction,
    Sysno::sigaltstack,
    Sysno::signalfd4,
    Sysno::wait4,
    Sysno::kill,
    Sysno::getdents64,
    Sysno::statfs,
    Sysno::chdir,
    Sysno::execve,
    Sysno::execveat,
    Sysno::restart_syscall,
    Sysno::gettid,
    Sysno::getuid,
    Sysno::sched_yield,
    Sysno::exit,
    // Init alone: no payload has these, and init's own filter keeps them.
    Sysno::process_vm_writev,
    Sysno::openat2,
    Sysno::kcmp,
];

/// The same calls under their older names.
#[cfg(target_arch = "x86_64")]
const OLDER: [Sysno; 5] = [Sysno::poll, Sysno::dup2, Sysno::mkdir, Sysno::open, Sysno::access];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: [Sysno; 0] = [];

/// Loads the filter: the lists above, and whatever a profile in use lets its cells do.
pub fn load(keys: &[Key], recording: Recording) -> Result<(), Errno> {
    let cells = keys.iter().filter_map(|key| key.design.as_ref().ok());
    bpf::load(&program(cells.flat_map(|design| &design.allowed).copied(), recording)?)
}

/// Returns the calls of the supervisor, and of cells before they have filters of their own.
pub(super) fn own() -> impl Iterator<Item = Sysno> {
    LOOP.into_iter().chain(CELLS).chain(SESSIONS).chain(ENTER).chain(OLDER)
}

/// The filter, where cells and their inits make these calls.
///
/// # Errors
/// E2BIG: it would be longer than the kernel takes.
pub fn program(
    cells: impl Iterator<Item = u32>,
    recording: Recording,
) -> Result<Vec<bpf::Instruction>, Errno> {
    let own = own().map(number);
    // Of inits alone: no profile lets a payload read another process.
    let recorded: &[Sysno] = match recording {
        Recording::On => &seccomp::RECORDING,
        Recording::Off => &[],
    };
    let recorded = recorded.iter().copied().map(number);
    let mut verdicts: BTreeMap<u32, Verdict> =
        own.chain(cells).chain(recorded).map(|number| (number, Verdict::Allow)).collect();
    // Whoever takes this process over cannot have the kernel start a program for its crash.
    verdicts.insert(number(Sysno::prlimit64), Verdict::AllowIf(core_dumps::prlimit64_but_cores()));
    verdicts.insert(number(Sysno::setrlimit), Verdict::AllowIf(core_dumps::setrlimit_but_cores()));
    seccomp::compile(&verdicts, Action::Notify)
}
