//! Pending calls: callers that wait for the other end of a FIFO or of a connection. Init itself never waits.
//!
//! A writer that waits in open(2) counts as a writer already (fifo(7)): a new reader finds it, and gets no
//! end of file before the writer has been served. So init holds the end that such a caller will get, and
//! hands it over once there is a reader. A reader that leaves between two rounds is not noticed if it read nothing, or
//! only what a writer sent that had the FIFO open before: the caller then waits on, while the kernel would have let it
//! continue and get EPIPE.

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

/// Most calls that may wait for a file or a socket of the cell; a caller beyond that gets an errno.
const MOST: usize = 128;
/// Most that may wait for a connection to a network, which take as long as the network does.
const CONNECTIONS: usize = 512;
/// Time between two rounds, of calls that no descriptor tells of.
const AGAIN: Duration = Duration::from_millis(3);
/// Time between two looks if callers of connections are still there.
const SWEEP: Duration = Duration::from_millis(250);

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
    /// Connect: the backlog of the listening socket is full, or the network takes its time.
    Connection(Connecting),
}

/// A call that waits, and how it is tried again.
#[derive(Debug)]
struct PendingCall {
    call: Notification,
    retry: Retry,
    /// Time before which its descriptor is not looked at: a program can have one that is always ready.
    rests: Instant,
    /// True once its descriptor was ready.
    is_ready: bool,
}

/// All pending calls of a cell.
#[derive(Debug)]
pub struct PendingCalls {
    calls: Vec<PendingCall>,
    /// Time of the next round: a program that makes many calls does not cause one for each.
    next: Instant,
    /// Time of the next look if callers are still there.
    sweep: Instant,
}

impl Default for PendingCalls {
    fn default() -> Self {
        let now = Instant::now();
        Self { calls: Vec::new(), next: now, sweep: now }
    }
}

impl PendingCalls {
    /// Keeps a call for later rounds.
    ///
    /// # Errors
    /// No place is free: the errno that a caller gets who does not wait.
    pub(crate) fn park(&mut self, call: Notification, retry: Retry) -> Result<()> {
        let is_waited = retry.waited().is_some();
        let most = if is_waited { CONNECTIONS } else { MOST };
        let like = self.calls.iter().filter(|parked| parked.retry.waited().is_some() == is_waited);
        match (like.count() < most, &retry) {
            (true, _) => {
                let rests = Instant::now();
                self.calls.push(PendingCall { call, retry, rests, is_ready: false });
            }
            (false, Retry::Open { .. } | Retry::FifoWriter { .. }) => return Err(Errno::ENXIO),
            (false, Retry::Connection(_)) => return Err(Errno::EAGAIN),
        }
        Ok(())
    }

    /// Returns the descriptors that become writable when a call is to be tried again.
    pub(crate) fn waited(&self) -> Vec<BorrowedFd<'_>> {
        if self.calls.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let resting = |parked: &&PendingCall| parked.rests > now;
        self.calls.iter().filter(|it| !resting(it)).filter_map(|it| it.retry.waited()).collect()
    }

    /// Returns the longest time until [`Self::retry`] has something to do that no descriptor tells of.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let due = self.calls.iter().map(|parked| match &parked.retry {
            Retry::Connection(connecting) if parked.retry.waited().is_some() => {
                let rests = (parked.rests > now).then_some(parked.rests);
                let sooner = rests.into_iter().chain(connecting.deadline).min();
                sooner.unwrap_or(self.sweep).min(self.sweep)
            }
            Retry::Open { .. } | Retry::FifoWriter { .. } | Retry::Connection(_) => self.next,
        });
        due.min().map(|due| due.saturating_duration_since(now))
    }

    /// Tries each call again whose turn it is, and removes those that were answered or whose caller has ended. A call
    /// that exceeded its time was answered with EINTR and removed, so the others get their turn in the next round.
    /// `is_woken`: one of the descriptors of [`Self::waited`] is ready.
    pub(crate) fn retry(
        &mut self,
        proc: &OwnedFd,
        listener: BorrowedFd<'_>,
        is_woken: bool,
    ) -> Result<()> {
        let now = Instant::now();
        if self.calls.is_empty() || !(is_woken || self.timeout() == Some(Duration::ZERO)) {
            return Ok(());
        }
        let (round, sweep) = (now >= self.next, now >= self.sweep);
        if round {
            self.next = now + AGAIN;
            // Look for all readers first: a reader may leave as soon as the first writer is served.
            self.notice_readers();
        }
        if sweep {
            self.sweep = now + SWEEP;
        }
        if is_woken {
            self.look_for_ready(now);
        }
        let mut place = 0;
        while let Some(parked) = self.calls.get_mut(place) {
            let is_due = match parked.retry.waited() {
                Some(_) => sweep || parked.is_ready || parked.retry.is_late(now),
                None => round,
            };
            let stays = !is_due
                || notify::is_waiting(listener, parked.call)
                    && !parked.is_answered(proc.as_fd(), listener, now)?;
            if stays {
                place += 1;
            } else {
                self.calls.swap_remove(place);
            }
            if now.elapsed() > ROUND {
                break;
            }
        }
        Ok(())
    }

    /// Records which FIFOs of waiting writers have a reader now. Call it before any caller gets a file: with the first
    /// line that is written the reader may leave.
    pub(crate) fn notice_readers(&mut self) {
        // Look again after each find: writers looked at before a reader came have missed it.
        while self.look_for_readers() {}
    }

    /// Looks at each FIFO whose writer waits. Returns true if one has a reader that had none before.
    fn look_for_readers(&mut self) -> bool {
        let found = self.calls.iter_mut().map(PendingCall::finds_reader);
        found.fold(false, |any, is_new| any | is_new)
    }

    /// Marks the calls whose descriptor is ready.
    fn look_for_ready(&mut self, now: Instant) {
        let mut waited = Vec::new();
        for (place, parked) in self.calls.iter().enumerate().filter(|(_, it)| it.rests <= now) {
            let fd = parked.retry.waited();
            waited.extend(fd.map(|fd| (place, PollFd::new(fd, PollFlags::POLLOUT))));
        }
        let (places, mut events): (Vec<_>, Vec<_>) = waited.into_iter().unzip();
        // If poll(2) fails, the next turn asks again.
        let asked = poll(&mut events, PollTimeout::ZERO).is_ok();
        let ready = events.iter().map(|event| asked && event.any().unwrap_or(true));
        let ready: Vec<_> = places.into_iter().zip(ready).collect();
        for (place, is_ready) in ready {
            if let Some(parked) = self.calls.get_mut(place) {
                parked.is_ready = is_ready;
            }
        }
    }
}

impl Retry {
    /// Returns the descriptor that becomes writable when it is to be tried again, where there is one.
    fn waited(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Connection(connecting) => connecting.waited(),
            Self::Open { .. } | Self::FifoWriter { .. } => None,
        }
    }

    /// Returns true if the caller does not wait any longer (SO_SNDTIMEO).
    fn is_late(&self, now: Instant) -> bool {
        match self {
            Self::Connection(connecting) => connecting.deadline.is_some_and(|it| it <= now),
            Self::Open { .. } | Self::FifoWriter { .. } => false,
        }
    }
}

impl PendingCall {
    /// Records that the FIFO has a reader; once true, it stays true for this call. Returns true if it is new.
    fn finds_reader(&mut self) -> bool {
        let Retry::FifoWriter { end, is_read: is_read @ false, .. } = &mut self.retry else {
            return false;
        };
        let mut events = [PollFd::new(end.as_fd(), PollFlags::POLLOUT)];
        // If poll(2) fails, the next round asks again.
        let asked = poll(&mut events, PollTimeout::ZERO);
        let [event] = events;
        let met = event.revents().unwrap_or(PollFlags::POLLERR);
        *is_read = asked.is_ok() && !met.contains(PollFlags::POLLERR);
        *is_read
    }

    fn is_answered(
        &mut self,
        proc: BorrowedFd<'_>,
        listener: BorrowedFd<'_>,
        now: Instant,
    ) -> Result<bool> {
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
                let is_late = self.retry.is_late(now);
                // In a sweep it was only asked whether its caller is there.
                if connecting.waited().is_some() && !self.is_ready && !is_late {
                    return Ok(false);
                }
                (self.is_ready, self.rests) = (false, now + AGAIN);
                match connecting.tried() {
                    Ok(true) => notify::succeed(listener, self.call)?,
                    Ok(false) if is_late => {
                        notify::refuse(listener, self.call, connecting.late())?;
                    }
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
