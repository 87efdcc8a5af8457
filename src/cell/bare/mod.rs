//! A cell without namespaces: the tier `landlock+seccomp`, for machines that refuse user namespaces.
//!
//! Such a cell runs on the host's own tree. Landlock limits it to a list of paths, with one private directory
//! to write to; the filter refuses calls that Landlock does not cover, by number (`config::profile::tier`). Its
//! processes share a Landlock domain: a signal from within it reaches only them, so that `kill(-1)` of its init
//! ends the whole cell, even processes that have left their parents.
//!
//! *Invariant:* nothing calls `kill(-1)` in this tier without a [`Domain`], which shows that the
//! kernel holds signals; without that the same call would end every process of the user.

pub mod enter;
pub mod measure;
pub mod store;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::landlock;
use sys::Result;

/// The host's paths that cells of a design run on in this tier.
#[derive(Debug)]
pub struct BareGround {
    pub store: std::rc::Rc<store::Store>,
}

/// Proves that signals of this process stay within its Landlock domain.
#[derive(Debug, Clone, Copy)]
pub struct Domain(());

impl Domain {
    /// Enters a domain that holds signals and nothing else.
    ///
    /// # Errors
    /// The kernel does not have it (Landlock ABI below 6), or as `Domain::prove`.
    pub fn enter(abi: u32, outside: i32) -> Result<Self> {
        // Positive control: without a domain the signal is delivered.
        kill(Pid::from_raw(outside), None)?;
        landlock::signals(abi)?.restrict()?;
        Self::prove(outside)
    }

    /// Checks that a process of the same uid outside the domain cannot be signalled. A process
    /// cannot leave its domain, so one check is enough.
    ///
    /// # Errors
    /// EXDEV: the signal was delivered.
    pub(crate) fn prove(outside: i32) -> Result<Self> {
        match kill(Pid::from_raw(outside), None) {
            Err(Errno::EPERM) => Ok(Self(())),
            Ok(()) => Err(Errno::EXDEV),
            Err(errno) => Err(errno),
        }
    }

    /// Sends a signal to every other process of the domain in one call. No process can escape it by
    /// forking: the kernel restarts a fork while a signal is pending (kill(2)).
    ///
    /// # Errors
    /// The errno of kill(2).
    pub fn signal_all(self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(-1), signal)
    }

    /// Returns true if a process is in the domain.
    pub fn has(self, pid: i32) -> bool {
        pid > 0 && kill(Pid::from_raw(pid), None).is_ok()
    }
}
