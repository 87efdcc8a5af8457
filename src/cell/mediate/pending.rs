//! Pending calls: callers that wait for the other end of a FIFO or of a connection, while init
//! itself never blocks.
//!
//! A writer that waits in open(2) already counts as a writer (fifo(7)): a new reader sees it, and
//! gets no end of file before the writer was served. So init holds the end that such a caller will
//! get, and hands it over once there is a reader. Init misses a reader that leaves between two
//! rounds if it read nothing, or only data of a writer that had opened the FIFO before. The caller
//! then keeps waiting, while the kernel would have let it continue and get EPIPE.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::open::{NAME_FLAGS, blocked, hand_over, settle, unblocked};
use super::paths::TargetThread;
use super::response::Retry;
use sys::Result;
use sys::notify::{self, Notification};

/// Maximum number of calls that wait for a file or a socket of the cell; further callers get an
/// errno.
const MAX_LOCAL: usize = 128;
/// Maximum number of calls that wait for a network connection, which take as long as the network
/// does.
const MAX_CONNECTIONS: usize = 512;
/// Time between two rounds for calls without a descriptor to poll.
const ROUND_INTERVAL: Duration = Duration::from_millis(3);
/// Time between two checks whether the callers of connections still wait.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum time of one round: a caller that makes init wait costs a millisecond.
const MAX_ROUND: Duration = Duration::from_millis(4);

/// A waiting call, and how to retry it.
#[derive(Debug)]
struct PendingCall {
    call: Notification,
    retry: Retry,
    /// Not polled before this time: a program may have a descriptor that is always ready.
    rests: Instant,
    /// True once the descriptor was ready.
    is_ready: bool,
}

/// All pending calls of a cell.
#[derive(Debug)]
pub struct PendingCalls {
    calls: Vec<PendingCall>,
    /// Time of the next round. Many calls together wait for one round.
    next: Instant,
    /// Time of the next check whether callers still wait.
    sweep: Instant,
}

impl Default for PendingCalls {
    fn default() -> Self {
        let now = Instant::now();
        Self { calls: Vec::new(), next: now, sweep: now }
    }
}

impl PendingCalls {
    /// Stores a call for later rounds.
    ///
    /// # Errors
    /// Too many calls wait: the errno that a non-blocking caller gets.
    pub(crate) fn park(&mut self, call: Notification, retry: Retry) -> Result<()> {
        let is_waited = retry.waited().is_some();
        let max = if is_waited { MAX_CONNECTIONS } else { MAX_LOCAL };
        let like = self.calls.iter().filter(|parked| parked.retry.waited().is_some() == is_waited);
        match (like.count() < max, &retry) {
            (true, _) => {
                let rests = Instant::now();
                self.calls.push(PendingCall { call, retry, rests, is_ready: false });
            }
            (false, Retry::Open { .. } | Retry::FifoWriter { .. }) => return Err(Errno::ENXIO),
            (false, Retry::Connection(_)) => return Err(Errno::EAGAIN),
        }
        Ok(())
    }

    /// Returns the descriptors that become writable when a call should be retried.
    pub(crate) fn waited(&self) -> Vec<BorrowedFd<'_>> {
        if self.calls.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let resting = |parked: &&PendingCall| parked.rests > now;
        self.calls
            .iter()
            .filter(|parked| !resting(parked))
            .filter_map(|parked| parked.retry.waited())
            .collect()
    }

    /// Returns the maximum time until [`Self::retry`] must run even if no descriptor is ready.
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

    /// Retries every call that is due, and removes those that were answered or whose caller has
    /// ended. A call that exceeds its time is answered with EINTR and removed; the others are then
    /// served in the next round. `is_woken`: one of the descriptors of [`Self::waited`] is ready.
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
        let round = now >= self.next;
        let sweep = now >= self.sweep;
        if round {
            self.next = now + ROUND_INTERVAL;
            // Check for all readers first: a reader may leave as soon as the first writer is
            // served.
            self.notice_readers();
        }
        if sweep {
            self.sweep = now + SWEEP_INTERVAL;
        }
        if is_woken {
            self.look_for_ready(now);
        }
        let mut index = 0;
        while let Some(parked) = self.calls.get_mut(index) {
            let is_due = match parked.retry.waited() {
                Some(_) => sweep || parked.is_ready || parked.retry.is_late(now),
                None => round,
            };
            let stays = !is_due
                || notify::is_waiting(listener, parked.call)
                    && !parked.is_answered(proc.as_fd(), listener, now)?;
            if stays {
                index += 1;
            } else {
                self.calls.swap_remove(index);
            }
            if now.elapsed() > MAX_ROUND {
                break;
            }
        }
        Ok(())
    }

    /// Records which FIFOs of waiting writers have a reader now. Must be called before any caller
    /// gets a file: a reader may leave after the first line that is written.
    pub(crate) fn notice_readers(&mut self) {
        // Check again after each new reader: writers that were checked before it came have missed
        // it.
        while self.look_for_readers() {}
    }

    /// Checks each FIFO with a waiting writer. Returns true if one has a new reader.
    fn look_for_readers(&mut self) -> bool {
        let is_new = self.calls.iter_mut().map(PendingCall::check_reader);
        is_new.fold(false, |any, is_new| any | is_new)
    }

    /// Marks the calls whose descriptor is ready.
    fn look_for_ready(&mut self, now: Instant) {
        let mut waited = Vec::new();
        for (index, parked) in
            self.calls.iter().enumerate().filter(|(_, parked)| parked.rests <= now)
        {
            let fd = parked.retry.waited();
            waited.extend(fd.map(|fd| (index, PollFd::new(fd, PollFlags::POLLOUT))));
        }
        let (indices, mut events): (Vec<_>, Vec<_>) = waited.into_iter().unzip();
        // If poll(2) fails, the next turn polls again.
        let polled = poll(&mut events, PollTimeout::ZERO).is_ok();
        let ready = events.iter().map(|event| polled && event.any().unwrap_or(true));
        let ready: Vec<_> = indices.into_iter().zip(ready).collect();
        for (index, is_ready) in ready {
            if let Some(parked) = self.calls.get_mut(index) {
                parked.is_ready = is_ready;
            }
        }
    }
}

impl PendingCall {
    /// Records that the FIFO has a reader; this stays recorded. Returns true if the reader is new.
    fn check_reader(&mut self) -> bool {
        let Retry::FifoWriter { end, is_read: is_read @ false, .. } = &mut self.retry else {
            return false;
        };
        let mut events = [PollFd::new(end.as_fd(), PollFlags::POLLOUT)];
        // If poll(2) fails, the next round polls again.
        let polled = poll(&mut events, PollTimeout::ZERO);
        let [event] = events;
        let met = event.revents().unwrap_or(PollFlags::POLLERR);
        *is_read = polled.is_ok() && !met.contains(PollFlags::POLLERR);
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
                // A sweep only checks that the caller still waits.
                if connecting.waited().is_some() && !self.is_ready && !is_late {
                    return Ok(false);
                }
                self.is_ready = false;
                self.rests = now + ROUND_INTERVAL;
                match connecting.try_connect() {
                    Ok(true) => notify::succeed(listener, self.call)?,
                    Ok(false) if is_late => {
                        notify::refuse(listener, self.call, connecting.late_errno())?;
                    }
                    Ok(false) => return Ok(false),
                    Err(errno) => notify::refuse(listener, self.call, errno)?,
                }
                return Ok(true);
            }
        };
        let init = TargetThread { proc, pid: 1 };
        let wanted = OFlag::from_bits_retain(unblocked(flags & !NAME_FLAGS));
        let number = u32::try_from(held.as_raw_fd()).map_err(|_| Errno::EBADF)?;
        match init.descriptor(number, wanted) {
            // An error of one file must not end the cell.
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
