//! Callers that open a FIFO and wait for its other end: init must not wait with them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::opening::{hand_over, settle};
use super::paths::Target;
use crate::sys::Result;
use crate::sys::notify::{self, Notification};

/// Callers that may wait at once.
const MOST: usize = 128;
/// How long until the next try.
pub const AGAIN: Duration = Duration::from_millis(3);

/// One that waits, and what it waits to open.
#[derive(Debug)]
struct Parked {
    call: Notification,
    held: OwnedFd,
    flags: i32,
}

/// All that wait.
#[derive(Debug)]
pub struct Waiting {
    places: [Option<Parked>; MOST],
    /// When they are tried again: not with each call of a program that makes many.
    next: Instant,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { places: [const { None }; MOST], next: Instant::now() }
    }
}

impl Waiting {
    pub fn is_empty(&self) -> bool {
        self.places.iter().all(Option::is_none)
    }

    /// Keeps one for later; says whether there was a place.
    pub fn park(&mut self, call: Notification, held: OwnedFd, flags: i32) -> bool {
        match self.places.iter_mut().find(|place| place.is_none()) {
            Some(place) => {
                *place = Some(Parked { call, held, flags });
                true
            }
            None => false,
        }
    }

    /// Tries each again, and lets those go that were answered or have ended.
    pub fn retry(&mut self, proc: &OwnedFd, listener: BorrowedFd<'_>) -> Result<()> {
        let now = Instant::now();
        if self.is_empty() || now < self.next {
            return Ok(());
        }
        self.next = now + AGAIN;
        for place in &mut self.places {
            let Some(parked) = place else { continue };
            let stays = notify::is_waiting(listener, parked.call)
                && !parked.is_answered(proc.as_fd(), listener)?;
            if !stays {
                *place = None;
            }
        }
        Ok(())
    }
}

impl Parked {
    fn is_answered(&self, proc: BorrowedFd<'_>, listener: BorrowedFd<'_>) -> Result<bool> {
        let own = Target { proc, pid: 1 };
        let made = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let flags = OFlag::from_bits_retain(unblocked(self.flags & !made));
        let number = u32::try_from(self.held.as_raw_fd()).map_err(|_| Errno::EBADF)?;
        match own.descriptor(number, flags) {
            // Whatever one file says must not end the cell.
            Ok(file) => match settle(&file, self.flags) {
                Ok(()) => hand_over(listener, self.call, &file, self.flags)?,
                Err(errno) => notify::refuse(listener, self.call, errno)?,
            },
            Err(errno) if blocked(errno, self.flags) => return Ok(false),
            Err(errno) => notify::refuse(listener, self.call, errno)?,
        }
        Ok(true)
    }
}

/// The flags of an open that never waits and takes no terminal.
pub fn unblocked(flags: i32) -> i32 {
    flags | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC
}

/// Whether the caller would wait where init, which does not, met this.
pub fn blocked(errno: Errno, flags: i32) -> bool {
    flags & libc::O_NONBLOCK == 0 && matches!(errno, Errno::ENXIO | Errno::EWOULDBLOCK)
}
