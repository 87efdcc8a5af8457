//! Who waits for an answer of the guard.

use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::sys::stat::{Mode, umask};

use super::paths::Target;
use crate::sys::Result;
use crate::sys::notify::{self, Notification};

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
}
