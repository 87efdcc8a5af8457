//! The supervisor's end of the link: frames out, in order, without ever waiting for the reader.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFlags, PollTimeout, poll};

use crate::cells::streams::FarEnds;
use cell::report::raw;
use model::log;
use model::outcome::{Ended, Failure};
use model::wire::{self, CallId, Event, WireError};
use sys::socket;

/// With this many frames waiting no request is read: a front end that asks and never listens
/// fills its own queue, not this process.
const MAX_WAITING: usize = 1024;

/// With this many frames waiting, those that are only for the record are left out: a cell can cause
/// more of them than any front end writes down.
const MAX_BEFORE_RECORDS: usize = 256;

/// An error for which no call, cell or session is to blame: the process ends, and with it every cell.
#[derive(Debug)]
pub(super) struct Fatal {
    pub what: &'static str,
    pub errno: Errno,
}

/// Failures of the link in a row that are waited out: one may be of a moment without memory.
pub(super) const MAX_FAILURES: u8 = 8;

/// Time until a failed call of the kernel is made again.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The result of sending the frames that waited.
#[derive(Debug)]
pub(crate) enum Flushed {
    /// They are sent, or wait on.
    Fine,
    /// The start of this call cannot be sent, for this reason; its frame is dropped.
    Undeliverable(CallId, Failure),
}

/// Frames on their way out.
#[derive(Debug)]
pub(crate) struct Outbox {
    pub link: OwnedFd,
    waiting: VecDeque<Outgoing>,
    /// Calls whose start could not be sent.
    undeliverable: VecDeque<(CallId, Failure)>,
    /// The next attempt, where the link had room and took nothing.
    retry: Option<Instant>,
    /// How often it did so in a row for no want of memory, and what it said last.
    failures: (u8, Errno),
}

/// A frame, and the pipes of the call it starts.
type Outgoing = (Vec<u8>, Option<(CallId, FarEnds)>);

impl Outbox {
    pub(crate) fn new(link: OwnedFd) -> Self {
        Self {
            link,
            waiting: VecDeque::new(),
            undeliverable: VecDeque::new(),
            retry: None,
            failures: (0, Errno::UnknownErrno),
        }
    }

    /// Reports an event, with the pipes of the call it starts. It is sent now, or when the link has room for it.
    pub(crate) fn send(&mut self, event: &Event, ends: Option<(CallId, FarEnds)>) {
        if let Err(error) = self.push(event, ends) {
            tracing::warn!(%error, "an event is left out");
            self.replace(event);
        }
        // Answers do not wait for the rest of this turn; failures are handled at its end.
        self.send_early();
    }

    /// Handles an event that no frame can hold: ends its call, and no other.
    fn replace(&mut self, event: &Event) {
        let failed = |step: &str| setup(step, Errno::EMSGSIZE);
        let instead = match event {
            // The operator can have more groups than a frame has bytes for.
            Event::Started { call, .. } => {
                let failure = failed("telling what the cell has");
                return self.undeliverable.push_back((*call, failure));
            }
            // Too many profiles with long reasons; each call under them is answered with its reason.
            Event::Ready(ready) => {
                Event::Ready(wire::Ready { unusable: Vec::new(), ..ready.clone() })
            }
            Event::Ended { call, .. } => {
                let ended = Ended::failed(failed("telling how the call ended"));
                Event::Ended { call: *call, ended }
            }
            // Their length is bounded far below a frame's.
            Event::Unable(_)
            | Event::Forgotten { .. }
            | Event::Room { .. }
            | Event::Input { .. }
            | Event::Connection { .. }
            | Event::Logged { .. } => return,
        };
        if let Err(error) = self.push(&instead, None) {
            tracing::error!(%error, "an event is lost");
        }
    }

    /// Adds the log lines since the last time, for the front end to write: this process has no streams.
    pub(super) fn add_log_lines(&mut self) {
        let lines = log::take();
        if lines.is_empty() {
            return;
        }
        if let Err(error) = self.push(&Event::Logged { lines }, None) {
            tracing::debug!(%error, "log lines are lost");
        }
    }

    /// Keeps a frame until the link takes it.
    ///
    /// # Errors
    /// No frame can hold the event.
    fn push(&mut self, event: &Event, ends: Option<(CallId, FarEnds)>) -> Result<(), WireError> {
        self.waiting.push_back((wire::encode(event)?, ends));
        Ok(())
    }

    /// Returns true if a frame that is only for the record may be added.
    pub(crate) fn has_room_for_records(&self) -> bool {
        self.waiting.len() < MAX_BEFORE_RECORDS
    }

    /// Returns the events of the link to wait for.
    pub(crate) fn interest(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::POLLIN, self.waiting.len() < MAX_WAITING);
        // A postponed attempt failed although there was room, so waiting for room would return at once.
        flags.set(PollFlags::POLLOUT, !self.waiting.is_empty() && self.retry.is_none());
        flags
    }

    /// Returns when to try again, if waiting for room would not help.
    pub(crate) fn retry(&self) -> Option<Instant> {
        self.retry
    }

    /// Sends what waits, in order, as far as the link takes it. [`Outbox::flush`] reports what went wrong.
    pub(crate) fn send_early(&mut self) {
        if self.retry.is_some_and(|retry| retry > Instant::now()) {
            return;
        }
        self.retry = None;
        while let Some((frame, ends)) = self.waiting.front() {
            let fds = ends.as_ref().map(|(_, ends)| ends.list()).unwrap_or_default();
            match socket::send_now(&self.link, frame, &fds) {
                Ok(()) => {
                    self.failures.0 = 0;
                    drop(self.waiting.pop_front());
                }
                Err(Errno::EAGAIN) => return,
                // The front end is gone; the link's end of file is read next.
                Err(Errno::EPIPE | Errno::ECONNRESET) => self.waiting.clear(),
                // The kernel has no memory for it now, which is no reason to lose it.
                Err(Errno::ENOBUFS | Errno::ENOMEM) => {
                    self.retry = Some(Instant::now() + RETRY_INTERVAL);
                    return;
                }
                // ETOOMANYREFS: a cell of our uid has as many descriptors on their way as the
                // user may have (unix(7)). Only that call ends.
                Err(errno) if !fds.is_empty() => {
                    let call = self.waiting.pop_front().and_then(|(_, ends)| ends);
                    tracing::warn!(%errno, "a call's streams could not be sent");
                    let failure = setup("sending the program's streams", errno);
                    self.undeliverable.extend(call.map(|(call, _ends)| (call, failure)));
                }
                Err(errno) => {
                    self.failures = (self.failures.0.saturating_add(1), errno);
                    self.retry = Some(Instant::now() + RETRY_INTERVAL);
                    return;
                }
            }
        }
    }

    /// Sends what waits, then returns one failure.
    ///
    /// # Errors
    /// The link takes nothing, time and again.
    pub(crate) fn flush(&mut self) -> Result<Flushed, Fatal> {
        self.send_early();
        if let Some((call, failure)) = self.undeliverable.pop_front() {
            return Ok(Flushed::Undeliverable(call, failure));
        }
        match self.failures {
            (MAX_FAILURES.., errno) => Err(Fatal { what: "the link takes no frame", errno }),
            _ => Ok(Flushed::Fine),
        }
    }
}

/// Returns the failure of a call at a step of the supervisor's.
fn setup(step: &str, errno: Errno) -> Failure {
    Failure::Setup { step: step.to_owned(), errno: raw(errno) }
}

/// Waits a little.
pub(super) fn pause() {
    let time = PollTimeout::try_from(RETRY_INTERVAL).unwrap_or(PollTimeout::ZERO);
    // Cut short by a signal it is a shorter pause.
    poll(&mut [], time).unwrap_or_default();
}
