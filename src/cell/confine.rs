//! The walls of our own processes that parse what others send: front end, gateway, worker, watcher
//! and the upkeep of caches.
//!
//! A [`Filter`] lists the system calls of such a process; every other call gets EPERM. [`enclose`]
//! takes a process's rights away, and [`narrow`] takes more from a process that was enclosed before.

use std::collections::BTreeMap;

use rlimit::Resource;
use syscalls::Sysno;

use super::landlock::{self, PreparedRules};
use super::seccomp::{Action, compile_for_ours, number};
use super::{At, Step, StepFailed, caps, errno_of, limits};
use model::profile::condition::{Op, Test, Verdict, Width};
use sys::bpf::{self, Instruction};
use sys::{Result, process};

/// System calls of each of these processes: memory, signals, time, and its end. The lists of the
/// processes have what else they need.
pub const BASE: [Sysno; 16] = [
    Sysno::close,
    Sysno::futex,
    Sysno::mmap,
    Sysno::munmap,
    Sysno::mremap,
    Sysno::madvise,
    Sysno::brk,
    Sysno::rt_sigaction,
    Sysno::rt_sigprocmask,
    Sysno::rt_sigreturn,
    Sysno::sigaltstack,
    Sysno::getrandom,
    Sysno::clock_gettime,
    Sysno::getpid,
    Sysno::restart_syscall,
    Sysno::exit_group,
];

/// The system calls that a process may make, and conditions on their arguments.
#[derive(Debug)]
pub struct Filter(BTreeMap<u32, Verdict>);

impl Filter {
    /// Allows [`BASE`] and these calls with any arguments.
    pub fn of_calls(calls: impl IntoIterator<Item = Sysno>) -> Self {
        Self(BASE.into_iter().chain(calls).map(|call| (number(call), Verdict::Allow)).collect())
    }

    /// Decides these calls by their arguments.
    #[must_use]
    pub fn with(mut self, checked: impl IntoIterator<Item = (Sysno, Verdict)>) -> Self {
        self.0.extend(checked.into_iter().map(|(call, verdict)| (number(call), verdict)));
        self
    }

    /// Compiles the filter.
    ///
    /// # Errors
    /// E2BIG: the filter is too long for the kernel.
    pub fn compile(&self) -> Result<Vec<Instruction>> {
        compile_for_ours(&self.0, Action::Errno(libc::EPERM))
    }
}

/// Returns a test of an `int` argument.
pub const fn int(argument: u8, op: Op, value: u64) -> Test {
    Test { argument, width: Width::Low32, op, value }
}

/// Returns a flag or constant of the C library as the value of a test.
pub fn unsigned(value: i32) -> u64 {
    u64::from(value.unsigned_abs())
}

/// Allows a call if an `int` argument has one of these values.
pub fn one_of(argument: u8, values: impl IntoIterator<Item = u64>) -> Verdict {
    let tests = values.into_iter().map(|value| vec![int(argument, Op::Eq, value)]);
    Verdict::AllowIf(tests.collect())
}

/// Confines the calling process, which must have one thread, for the rest of its life: without core
/// dumps, capabilities and new privileges, and within Landlock rules and a filter. `rules` makes the
/// rules for the kernel's Landlock ABI.
///
/// # Errors
/// The step that failed; the process must then exit.
pub fn enclose(
    rules: impl FnOnce(u32) -> Result<PreparedRules>,
    filter: &Filter,
) -> std::result::Result<(), StepFailed> {
    limits::no_core_dumps().at(Step::Limits)?;
    // Emptying the bounding set takes a capability; without one, no_new_privs makes the set
    // irrelevant.
    if nix::unistd::geteuid().is_root() {
        caps::drop_bounding(&[]).at(Step::Capabilities)?;
    }
    caps::clear_current().at(Step::Capabilities)?;
    process::set_no_new_privs().at(Step::NoNewPrivs)?;
    narrow(rules, filter)
}

/// Adds Landlock rules and a filter to those of the calling process.
///
/// # Errors
/// The step that failed; the process must then exit.
pub fn narrow(
    rules: impl FnOnce(u32) -> Result<PreparedRules>,
    filter: &Filter,
) -> std::result::Result<(), StepFailed> {
    let abi = landlock::kernel_abi();
    // Without Landlock no profile can be used, so there is no cell to serve.
    if abi > 0 {
        rules(abi).and_then(|rules| rules.restrict()).at(Step::Landlock)?;
    }
    filter.compile().and_then(|program| bpf::load(&program)).at(Step::Seccomp)
}

/// Limits a resource of the calling process, or keeps a lower limit that the operator has set.
///
/// # Errors
/// The errno of prlimit(2).
pub fn limit(resource: Resource, value: u64) -> Result<()> {
    let (_, hard) = resource.get().map_err(|error| errno_of(&error))?;
    let value = value.min(hard);
    resource.set(value, value).map_err(|error| errno_of(&error))
}
