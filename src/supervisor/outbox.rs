//! The supervisor's end of the link: frames out, in order, without ever waiting for the reader.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use nix::errno::Errno;

use super::handover::FarEnds;
use crate::sys::socket;
use crate::wire::{self, CallId, Event};

/// With this many frames waiting no request is read: a front end that asks and never listens
/// fills its own queue, not this process.
const MOST_WAITING: usize = 1024;

/// What the link must be watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Requests alone: nothing waits.
    Requests,
    /// Requests, and room for what waits.
    Both,
    /// Room alone: too much waits.
    Room,
}

/// What became of the frames that waited.
#[derive(Debug)]
pub enum Flushed {
    /// They are sent, or wait on.
    Fine,
    /// This call's pipes cannot be sent, for this reason; its frame is dropped.
    Undeliverable(CallId, Errno),
}

/// Frames on their way out.
#[derive(Debug)]
pub struct Outbox {
    pub link: OwnedFd,
    waiting: VecDeque<Outgoing>,
}

/// A frame, and the pipes of the call it starts.
type Outgoing = (Vec<u8>, Option<(CallId, FarEnds)>);

impl Outbox {
    pub fn new(link: OwnedFd) -> Self {
        Self { link, waiting: VecDeque::new() }
    }

    /// Keeps a frame until [`Outbox::flush`] can send it.
    pub fn push(&mut self, event: &Event, ends: Option<(CallId, FarEnds)>) -> Result<(), Errno> {
        let frame = wire::encode(event).map_err(|_| Errno::EMSGSIZE)?;
        self.waiting.push_back((frame, ends));
        Ok(())
    }

    pub fn interest(&self) -> Interest {
        match self.waiting.len() {
            0 => Interest::Requests,
            MOST_WAITING.. => Interest::Room,
            _ => Interest::Both,
        }
    }

    /// Sends what waits, in order, as far as the link takes it.
    pub fn flush(&mut self) -> Result<Flushed, Errno> {
        while let Some((frame, ends)) = self.waiting.front() {
            let fds = ends.as_ref().map(|(_, ends)| ends.list()).unwrap_or_default();
            match socket::send_now(&self.link, frame, &fds) {
                Ok(()) => drop(self.waiting.pop_front()),
                // Full; or the kernel has no memory for it now, which is no reason to lose it.
                Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM) => break,
                // The front end is gone; the link's end of file is read next.
                Err(Errno::EPIPE | Errno::ECONNRESET) => self.waiting.clear(),
                // ETOOMANYREFS: a cell of our uid has as many descriptors on their way as the
                // user may have (unix(7)). That call ends; the others go on.
                Err(errno) => match self.waiting.pop_front() {
                    Some((_, Some((call, _ends)))) => {
                        return Ok(Flushed::Undeliverable(call, errno));
                    }
                    Some((_, None)) | None => return Err(errno),
                },
            }
        }
        Ok(Flushed::Fine)
    }
}
