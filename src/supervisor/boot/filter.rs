//! The supervisor's system call filter: calls for cloning, measuring and reaping cells.
//!
//! Cells inherit it. It refuses calls by user notification without a listener. For the supervisor
//! that means ENOSYS. In a payload, the payload's own filter gives the same verdict with a
//! listener, and among equal verdicts the most recently installed filter decides (seccomp(2)), so
//! that the denial is counted.

use std::collections::BTreeMap;

use nix::errno::Errno;
use syscalls::Sysno;

use crate::cells::key::Key;
use cell::seccomp::{self, Action, Recording, number};
use model::core_dumps;
use model::profile::condition::Verdict;
use sys::bpf;

/// The event loop: waiting, the link, pipes and memfds, clocks.
const LOOP: [Sysno; 32] = [
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
    // Makes the guard page below the payloads' stack. Also needed if no profile is usable, to
    // report that.
    Sysno::mprotect,
    // Unmaps the code of the start.
    Sysno::madvise,
    Sysno::rt_sigreturn,
    Sysno::exit_group,
    Sysno::getrandom,
];

/// Making and ending cells.
const CELLS: [Sysno; 10] = [
    Sysno::clone3,
    Sysno::setns,
    // Decides which children share the note of a network namespace.
    Sysno::madvise,
    // Translates pids through a pidfd in containers that mask parts of /proc.
    Sysno::pidfd_open,
    Sysno::pidfd_send_signal,
    Sysno::waitid,
    Sysno::prctl,
    Sysno::getpid,
    Sysno::futex,
    // Makes output files that a program can reopen, and copies of packages' files readable.
    Sysno::fchmod,
];

/// The mailboxes and workspaces of sessions, which also need mount(2) and unshare(2) from the list
/// below.
const SESSIONS: [Sysno; 6] = [
    Sysno::mknodat,
    Sysno::symlinkat,
    Sysno::fchmodat,
    Sysno::renameat,
    // Shows a workspace in the mounts of one-shot cells that run next to the shell.
    Sysno::open_tree,
    Sysno::move_mount,
];

/// Calls of a cell between the clone and its own filters, in the order of `cell::enter`.
const ENTER: [Sysno; 43] = [
    // Used for the payload; clone3 is in the list above.
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
    // For init only: no payload has these, and init's own filter allows them.
    Sysno::process_vm_writev,
    Sysno::openat2,
    Sysno::kcmp,
];

/// The same calls under older names.
#[cfg(target_arch = "x86_64")]
const OLDER: [Sysno; 5] = [Sysno::poll, Sysno::dup2, Sysno::mkdir, Sysno::open, Sysno::access];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: [Sysno; 0] = [];

/// Loads the filter: the lists above, and the calls that usable profiles allow in their cells.
pub fn load(keys: &[Key], recording: Recording) -> Result<(), Errno> {
    let cells = keys.iter().filter_map(|key| key.design.as_ref().ok());
    bpf::load(&program(cells.flat_map(|design| &design.allowed).copied(), recording)?)
}

/// Returns the calls of the supervisor, and of cells before they load their own filters.
pub(super) fn supervisor_calls() -> impl Iterator<Item = Sysno> {
    LOOP.into_iter().chain(CELLS).chain(SESSIONS).chain(ENTER).chain(OLDER)
}

/// Compiles the filter for a supervisor whose cells and inits make these calls.
///
/// # Errors
/// E2BIG: the program exceeds the kernel's maximum length.
pub fn program(
    cells: impl Iterator<Item = u32>,
    recording: Recording,
) -> Result<Vec<bpf::Instruction>, Errno> {
    let calls = supervisor_calls().map(number);
    // For inits only: no profile lets a payload read another process.
    let recorded: &[Sysno] = match recording {
        Recording::On => &seccomp::RECORDING,
        Recording::Off => &[],
    };
    let recorded = recorded.iter().copied().map(number);
    let mut verdicts: BTreeMap<u32, Verdict> =
        calls.chain(cells).chain(recorded).map(|number| (number, Verdict::Allow)).collect();
    // An attacker who controls this process must not be able to start the host's core dump handler
    // by a crash.
    verdicts.insert(number(Sysno::prlimit64), Verdict::AllowIf(core_dumps::prlimit64_but_cores()));
    verdicts.insert(number(Sysno::setrlimit), Verdict::AllowIf(core_dumps::setrlimit_but_cores()));
    seccomp::compile(&verdicts, Action::Notify)
}
