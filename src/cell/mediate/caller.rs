//! The thread that waits while init answers its call.

use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::sys::resource::Resource;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};

use super::paths::TargetThread;
use sys::notify::{self, Notification};
use sys::{Result, process};

/// State of the umasks in a cell: all processes inherit the supervisor's, until one calls umask(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Umasks {
    Inherited,
    Various,
}

/// A call that init serves.
pub struct TargetCall<'c> {
    pub target: TargetThread<'c>,
    pub listener: BorrowedFd<'c>,
    pub notification: Notification,
    pub umasks: Umasks,
}

impl TargetCall<'_> {
    /// Checks that the caller still waits. Called after each lookup by pid: until then the pid may
    /// have been reused.
    pub(crate) fn still_waits(&self) -> Result<()> {
        if notify::is_waiting(self.listener, self.notification) {
            Ok(())
        } else {
            Err(Errno::ESRCH)
        }
    }

    /// Sets init's umask to the caller's. The kernel then applies it as for the caller, and ignores
    /// it in a directory with a default ACL (acl(5)).
    pub(crate) fn lend_umask(&self) -> Result<()> {
        match self.umasks {
            Umasks::Inherited => {}
            Umasks::Various => {
                umask(Mode::from_bits_truncate(self.target.status()?.umask));
            }
        }
        Ok(())
    }

    /// Enforces the caller's RLIMIT_FSIZE on a file that is extended, as the kernel does: beyond
    /// the limit the thread gets SIGXFSZ, and the call returns EFBIG.
    pub(crate) fn may_grow_to(&self, length: i64) -> Result<()> {
        let limit = process::limit_of(self.target.pid, Resource::RLIMIT_FSIZE)?;
        if u64::try_from(length).is_ok_and(|length| length <= limit) {
            return Ok(());
        }
        let process = self.target.status()?.process;
        self.still_waits()?;
        process::signal_thread(process, self.target.pid, Signal::SIGXFSZ)?;
        Err(Errno::EFBIG)
    }
}
