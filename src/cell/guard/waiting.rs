//! Callers that wait, for the other end of a FIFO or of a connection: init must not wait with them.
//!
//! A writer that waits in open(2) counts as a writer already (fifo(7)): a reader that comes finds it, and
//! meets no end of file before it has been served. So init holds the end that such a caller will get, and
//! hands it over once somebody reads. A reader that opens and closes without reading, between two looks, is
//! not seen: then the caller waits on, where the kernel would have let it go to meet EPIPE.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::opening::{hand_over, settle};
use super::paths::Target;
use super::sockets::Connecting;
use sys::Result;
use sys::notify::{self, Notification};

/// Callers that may wait at once.
const MOST: usize = 128;
/// How long until the next try.
pub const AGAIN: Duration = Duration::from_millis(3);

/// What one round of tries may take: each that is made to wait costs a millisecond.
const ROUND: Duration = Duration::from_millis(4);

/// What is tried again.
#[derive(Debug)]
pub enum Pending {
    /// To open what is held, which another process has a lease on or, for a FIFO that it may not read,
    /// nobody reads.
    Open { held: OwnedFd, flags: i32 },
    /// To be given this end of a FIFO: nobody has read it yet.
    Writer { end: OwnedFd, flags: i32, is_read: bool },
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
            (None, Pending::Open { .. } | Pending::Writer { .. }) => return Err(Errno::ENXIO),
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
        // All of them before the first is served: its reader may leave with what that one writes.
        for parked in self.places.iter_mut().flatten() {
            parked.look_for_reader();
        }
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
    /// Notes that somebody reads the FIFO, which stays true for who waits for that.
    fn look_for_reader(&mut self) {
        if let Pending::Writer { end, is_read, .. } = &mut self.pending
            && !*is_read
        {
            let mut events = [PollFd::new(end.as_fd(), PollFlags::POLLOUT)];
            // Where it cannot be asked now, it is in the next round.
            let asked = poll(&mut events, PollTimeout::ZERO);
            let [event] = events;
            let met = event.revents().unwrap_or(PollFlags::POLLERR);
            *is_read = asked.is_ok() && !met.contains(PollFlags::POLLERR);
        }
    }

    fn is_answered(&self, proc: BorrowedFd<'_>, listener: BorrowedFd<'_>) -> Result<bool> {
        let (held, flags) = match &self.pending {
            Pending::Open { held, flags } => (held, *flags),
            Pending::Writer { is_read: false, .. } => return Ok(false),
            Pending::Writer { end, flags, is_read: true } => {
                match settle(end, *flags) {
                    Ok(()) => hand_over(listener, self.call, end, *flags)?,
                    Err(errno) => notify::refuse(listener, self.call, errno)?,
                }
                return Ok(true);
            }
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
        let wanted = OFlag::from_bits_retain(unblocked(flags & !MADE));
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

/// What an open(2) asks for of the name, which what is held has been found by.
pub const MADE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;

/// The flags of an open that never waits and takes no terminal.
pub fn unblocked(flags: i32) -> i32 {
    flags | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC
}

/// Whether the caller would wait where init, which does not, met this.
pub fn blocked(errno: Errno, flags: i32) -> bool {
    flags & libc::O_NONBLOCK == 0 && matches!(errno, Errno::ENXIO | Errno::EWOULDBLOCK)
}
