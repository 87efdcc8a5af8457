//! The supervisor's end of the link to the front end: requests in, and the outbox for frames out.
//!
//! The front end is treated as hostile: a frame that cannot be decoded is dropped, and one that arrives cut off
//! ends no call but its own.

use std::os::fd::OwnedFd;

use nix::errno::Errno;

use super::outbox::{Fatal, MAX_FAILURES, Outbox, pause};
use model::wire::{self, CallId, Request};
use sys::process;
use sys::socket::{self, PacketWait, Received};

/// The link to the front end.
#[derive(Debug)]
pub(crate) struct FrontEnd {
    pub outbox: Outbox,
    /// Failures to read the link in a row.
    read_failures: u8,
}

/// The result of reading the link once.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one lives at a time, and most are requests")]
pub(super) enum Incoming {
    /// There is no frame, or one that names no call.
    Nothing,
    Request(Request, Received),
    /// A job whose descriptors are lost, because this process has no free numbers for them.
    CutOff(CallId),
    /// The front end has closed the link.
    Gone,
}

impl FrontEnd {
    pub(super) fn new(link: OwnedFd) -> Self {
        Self { outbox: Outbox::new(link), read_failures: 0 }
    }

    /// Reads one frame into `buffer`.
    ///
    /// # Errors
    /// The link cannot be read, time and again.
    pub(super) fn read(&mut self, buffer: &mut Vec<u8>) -> Result<Incoming, Fatal> {
        match self.read_frame(buffer) {
            Ok(incoming) => {
                self.read_failures = 0;
                Ok(incoming)
            }
            Err(errno) if self.read_failures >= MAX_FAILURES => {
                Err(Fatal { what: "the link cannot be read", errno })
            }
            Err(errno) => {
                self.read_failures += 1;
                tracing::warn!(%errno, "the link could not be read");
                pause();
                Ok(Incoming::Nothing)
            }
        }
    }

    /// Reads one frame; fails where the link does, for no call is to blame for that.
    fn read_frame(&self, buffer: &mut Vec<u8>) -> Result<Incoming, Errno> {
        let received = match socket::receive_into(&self.outbox.link, buffer, PacketWait::No) {
            Err(Errno::EAGAIN) => return Ok(Incoming::Nothing),
            // A front end that died with frames unread resets the link (unix(7)).
            Err(Errno::ECONNRESET) => return Ok(Incoming::Gone),
            result => result?,
        };
        if received.bytes == 0 {
            // The end, or a frame with nothing in it: recvmsg(2) says the same of both.
            let is_open = process::is_open(&self.outbox.link)?;
            return Ok(if is_open { Incoming::Nothing } else { Incoming::Gone });
        }
        Ok(match wire::decode::<Request>(buffer) {
            // Its caller waits, so it is answered.
            Ok(Request::Start(start)) if received.cut => Incoming::CutOff(start.call),
            Ok(request) if !received.cut => Incoming::Request(request, received),
            // An undecodable frame names no call: drop it.
            Ok(_) | Err(_) => Incoming::Nothing,
        })
    }
}
