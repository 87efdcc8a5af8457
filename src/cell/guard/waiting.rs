//! Callers that wait, for the other end of a FIFO or of a connection: init must not wait with them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::opening::{hand_over, settle};
use super::paths::Target;
use super::sockets::Connecting;
use crate::sys::Result;
use crate::sys::notify::{self, Notification};

/// Callers that may wait at once.
const MOST: usize = 128;
/// How long until the next try.
pub const AGAIN: Duration = Duration::from_millis(3);

/// What one round of tries may take: each that is made to wait costs a millisecond.
const ROUND: Duration = Duration::from_millis(4);

/// What is tried again.
#[derive(Debug)]
pub enum Pending {
    /// To open what is held: the other end of a FIFO is missing.
    Open { held: OwnedFd, flags: i32 },
    /// To connect: nobody has room for one more.
    Connection(Connecting),
}

/// One that waits, and for what.
#[derive(Debug)]
struct Parked {
    call: Notification,
    pending: Pending,
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

    /// Keeps one for later.
    ///
    /// # Errors
    /// There is no place; what a caller meets then that would not wait.
    pub fn park(&mut self, call: Notification, pending: Pending) -> Result<()> {
        match (self.places.iter_mut().find(|place| place.is_none()), &pending) {
            (Some(place), _) => *place = Some(Parked { call, pending }),
            (None, Pending::Open { .. }) => return Err(Errno::ENXIO),
            (None, Pending::Connection(_)) => return Err(Errno::EAGAIN),
        }
        Ok(())
    }

    /// Tries each again, and lets those go that were answered or have ended. Who made it last too long is
    /// answered (EINTR) and gone, so that the others have their turn in the next round.
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
            if now.elapsed() > ROUND {
                break;
            }
        }
        Ok(())
    }
}

impl Parked {
    fn is_answered(&self, proc: BorrowedFd<'_>, listener: BorrowedFd<'_>) -> Result<bool> {
        let (held, flags) = match &self.pending {
            Pending::Open { held, flags } => (held, *flags),
            Pending::Connection(connecting) => {
                match connecting.tried() {
                    Ok(true) => notify::succeed(listener, self.call)?,
                    Ok(false) => return Ok(false),
                    Err(errno) => notify::refuse(listener, self.call, errno)?,
                }
                return Ok(true);
            }
        };
        let own = Target { proc, pid: 1 };
        let made = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let wanted = OFlag::from_bits_retain(unblocked(flags & !made));
        let number = u32::try_from(held.as_raw_fd()).map_err(|_| Errno::EBADF)?;
        match own.descriptor(number, wanted) {
            // Whatever one file says must not end the cell.
            Ok(file) => match settle(&file, flags) {
                Ok(()) => hand_over(listener, self.call, &file, flags)?,
                Err(errno) => notify::refuse(listener, self.call, errno)?,
            },
            Err(errno) if blocked(errno, flags) => return Ok(false),
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
