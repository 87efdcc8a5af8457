//! Who waits for an answer of the guard.

use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::sys::resource::Resource;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};

use super::paths::Target;
use sys::notify::{self, Notification};
use sys::{Result, process};

/// Whether init's own umask is everybody's: all have it from the supervisor, until one sets another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Umasks {
    Inherited,
    Various,
}

/// A call that is being served.
pub struct Caller<'c> {
    pub target: Target<'c>,
    pub listener: BorrowedFd<'c>,
    pub notification: Notification,
    pub umasks: Umasks,
}

impl Caller<'_> {
    /// After everything that was looked up by the caller's pid: it was the caller's own.
    pub fn still_waits(&self) -> Result<()> {
        if notify::is_waiting(self.listener, self.notification) {
            Ok(())
        } else {
            Err(Errno::ESRCH)
        }
    }

    /// Takes on the caller's umask, which the kernel applies, or not where a directory has default
    /// permissions of its own (acl(5)).
    pub fn lend_umask(&self) -> Result<()> {
        match self.umasks {
            Umasks::Inherited => {}
            Umasks::Various => {
                umask(Mode::from_bits_truncate(self.target.status()?.umask));
            }
        }
        Ok(())
    }
    /// Holds a file that grows to the caller's limit (RLIMIT_FSIZE), as the kernel does for a call of the
    /// caller's own: past it there is a SIGXFSZ for the thread, and EFBIG.
    pub fn may_grow_to(&self, length: i64) -> Result<()> {
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
