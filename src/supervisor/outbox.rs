//! The supervisor's end of the link: frames out, in order, without ever waiting for the reader.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use nix::errno::Errno;

use super::handover::FarEnds;
use crate::sys::socket;
use crate::wire::{self, Event};

/// Whether the link must be watched for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    Enough,
    Wanted,
}

/// Frames on their way out. A front end that never reads makes it grow by two frames a call, and
/// it has no more calls than the caps allow.
#[derive(Debug)]
pub struct Outbox {
    pub link: OwnedFd,
    waiting: VecDeque<(Vec<u8>, Option<FarEnds>)>,
}

impl Outbox {
    pub fn new(link: OwnedFd) -> Self {
        Self { link, waiting: VecDeque::new() }
    }

    /// Sends a frame, or keeps it until the link can take it.
    pub fn tell(&mut self, event: &Event, ends: Option<FarEnds>) -> Result<Room, Errno> {
        let frame = wire::encode(event).map_err(|_| Errno::EMSGSIZE)?;
        self.waiting.push_back((frame, ends));
        self.flush()
    }

    /// Sends what waits, as far as the link takes it.
    pub fn flush(&mut self) -> Result<Room, Errno> {
        while let Some((frame, ends)) = self.waiting.front() {
            let fds = ends.as_ref().map(FarEnds::list).unwrap_or_default();
            match socket::send_now(&self.link, frame, &fds) {
                Ok(()) => drop(self.waiting.pop_front()),
                // ETOOMANYREFS: the front end has not yet taken descriptors sent before.
                Err(Errno::EAGAIN | Errno::ETOOMANYREFS) => return Ok(Room::Wanted),
                // The front end is gone; the link's end of file is read next.
                Err(Errno::EPIPE | Errno::ECONNRESET) => self.waiting.clear(),
                Err(errno) => return Err(errno),
            }
        }
        Ok(Room::Enough)
    }
}
