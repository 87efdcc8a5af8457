//! Pending calls: callers that wait for the other end of a FIFO or of a connection. Init itself never waits.
//!
//! A writer that waits in open(2) counts as a writer already (fifo(7)): a new reader finds it, and gets no
//! end of file before the writer has been served. So init holds the end that such a caller will get, and
//! hands it over once there is a reader. A reader that opens and closes without reading, between two rounds, is
//! not noticed: the caller then waits on, while the kernel would have let it continue and get EPIPE.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::open::{hand_over, settle};
use super::paths::TargetThread;
use super::sockets::Connecting;
use sys::Result;
use sys::notify::{self, Notification};

/// Most calls that may be pending at once; a caller beyond that gets an errno.
const MOST: usize = 128;
/// Time between two rounds.
pub const AGAIN: Duration = Duration::from_millis(3);

/// Longest time of one round: a caller that makes init wait costs it one millisecond.
const ROUND: Duration = Duration::from_millis(4);

/// How a pending call is tried again.
#[derive(Debug)]
pub enum Retry {
    /// Open a held file: one with a lease of another process, or a FIFO without a reader that the caller may
    /// not read itself.
    Open { held: OwnedFd, flags: i32 },
    /// Hand over this writing end of a FIFO once a reader has it open.
    FifoWriter { end: OwnedFd, flags: i32, is_read: bool },
    /// Connect: the backlog of the listening socket is full.
    Connection(Connecting),
}

/// A call that waits, and how it is tried again.
#[derive(Debug)]
struct PendingCall {
    call: Notification,
    retry: Retry,
}

/// All pending calls of a cell.
#[derive(Debug)]
pub struct PendingCalls {
    places: [Option<PendingCall>; MOST],
    /// Time of the next round: a program that makes many calls does not cause one for each.
    next: Instant,
}

impl Default for PendingCalls {
    fn default() -> Self {
        Self { places: [const { None }; MOST], next: Instant::now() }
    }
}

impl PendingCalls {
    pub fn is_empty(&self) -> bool {
        self.places.iter().all(Option::is_none)
    }

    /// Keeps a call for later rounds.
    ///
    /// # Errors
    /// No place is free: the errno that a caller gets who does not wait.
    pub(crate) fn park(&mut self, call: Notification, retry: Retry) -> Result<()> {
        match (self.places.iter_mut().find(|place| place.is_none()), &retry) {
            (Some(place), _) => *place = Some(PendingCall { call, retry }),
            (None, Retry::Open { .. } | Retry::FifoWriter { .. }) => return Err(Errno::ENXIO),
            (None, Retry::Connection(_)) => return Err(Errno::EAGAIN),
        }
        Ok(())
    }

    /// Tries each call again, and removes those that were answered or whose caller has ended. A call that
    /// exceeded its time was answered with EINTR and removed, so the others get their turn in the next round.
    pub fn retry(&mut self, proc: &OwnedFd, listener: BorrowedFd<'_>) -> Result<()> {
        let now = Instant::now();
        if self.is_empty() || now < self.next {
            return Ok(());
        }
        self.next = now + AGAIN;
        // Look for all readers first: a reader may leave as soon as the first writer is served.
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

impl PendingCall {
    /// Records that the FIFO has a reader; once true, it stays true for this call.
    fn look_for_reader(&mut self) {
        if let Retry::FifoWriter { end, is_read, .. } = &mut self.retry
            && !*is_read
        {
            let mut events = [PollFd::new(end.as_fd(), PollFlags::POLLOUT)];
            // If poll(2) fails, the next round asks again.
            let asked = poll(&mut events, PollTimeout::ZERO);
            let [event] = events;
            let met = event.revents().unwrap_or(PollFlags::POLLERR);
            *is_read = asked.is_ok() && !met.contains(PollFlags::POLLERR);
        }
    }

    fn is_answered(&self, proc: BorrowedFd<'_>, listener: BorrowedFd<'_>) -> Result<bool> {
        let (held, flags) = match &self.retry {
            Retry::Open { held, flags } => (held, *flags),
            Retry::FifoWriter { is_read: false, .. } => return Ok(false),
            Retry::FifoWriter { end, flags, is_read: true } => {
                match settle(end, *flags) {
                    Ok(()) => hand_over(listener, self.call, end, *flags)?,
                    Err(errno) => notify::refuse(listener, self.call, errno)?,
                }
                return Ok(true);
            }
            Retry::Connection(connecting) => {
                match connecting.tried() {
                    Ok(true) => notify::succeed(listener, self.call)?,
                    Ok(false) => return Ok(false),
                    Err(errno) => notify::refuse(listener, self.call, errno)?,
                }
                return Ok(true);
            }
        };
        let own = TargetThread { proc, pid: 1 };
        let wanted = OFlag::from_bits_retain(unblocked(flags & !MADE));
        let number = u32::try_from(held.as_raw_fd()).map_err(|_| Errno::EBADF)?;
        match own.descriptor(number, wanted) {
            // The error of one file must not end the cell.
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

/// Flags of open(2) about the name, which do not apply to a file that is held already.
pub const MADE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;

/// Returns the flags of an open that never waits and takes no controlling terminal.
pub(crate) fn unblocked(flags: i32) -> i32 {
    flags | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC
}

/// Returns true if the caller would have waited where init got `errno`, because init never waits.
pub fn blocked(errno: Errno, flags: i32) -> bool {
    flags & libc::O_NONBLOCK == 0 && matches!(errno, Errno::ENXIO | Errno::EWOULDBLOCK)
}
