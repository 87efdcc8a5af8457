//! What the supervisor tells the front end: frames in order, and calls that end when theirs cannot go.

use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::handover::FarEnds;
use super::outbox::{Flushed, Interest};
use super::serve::{Supervisor, Token};
use crate::cell::report::raw;
use crate::outcome::{Failure, Outcome};
use crate::wire::{self, CallId, Event};

impl Supervisor {
    /// Sends a frame as soon as the link takes it; with `ends`, the pipes of the call it starts.
    pub(super) fn tell(
        &mut self,
        event: &Event,
        ends: Option<(CallId, FarEnds)>,
    ) -> Result<(), Errno> {
        if let Err(errno) = self.outbox.push(event, ends) {
            self.too_large(event, errno)?;
        }
        self.flush()
    }

    /// An event that no frame can hold: the call that it is about ends, the others go on.
    fn too_large(&mut self, event: &Event, errno: Errno) -> Result<(), Errno> {
        match event {
            // The operator can have more groups than a frame has bytes for.
            Event::Started { call, .. } => {
                let step = "telling what the cell has".to_owned();
                let failure = Failure::Setup { step, errno: raw(errno) };
                self.stop(*call, Outcome::Failed(failure))
            }
            // As many profiles with as long reasons; calls under them are told on their own.
            Event::Ready(ready) => self
                .outbox
                .push(&Event::Ready(wire::Ready { unusable: Vec::new(), ..ready.clone() }), None),
            Event::Unable(_)
            | Event::Ended { .. }
            | Event::Forgotten { .. }
            | Event::Input { .. } => Err(errno),
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        while let Flushed::Undeliverable(call, errno) = self.outbox.flush()? {
            let step = "sending the program's streams".to_owned();
            let failure = Failure::Setup { step, errno: raw(errno) };
            self.stop(call, Outcome::Failed(failure))?;
        }
        let interest = self.outbox.interest();
        if self.interest == interest {
            return Ok(());
        }
        self.interest = interest;
        let flags = match interest {
            Interest::Requests => EpollFlags::EPOLLIN,
            Interest::Both => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
            Interest::Room => EpollFlags::EPOLLOUT,
        };
        self.epoll.modify(&self.outbox.link, &mut EpollEvent::new(flags, Token::Link.encode()))
    }
}
