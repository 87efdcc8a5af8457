//! Reports to the front end: frames in order; a call whose frame cannot be sent ends.

use super::outbox::Fatal;
use super::outbox::Flushed;
use super::supervisor::Supervisor;
use crate::cells::streams::FarEnds;
use cell::report::raw;
use model::log;
use model::outcome::{Ended, Failure, Outcome};
use model::wire::{self, CallId, Event};

impl Supervisor {
    /// Reports an event, with the pipes of the call it starts. It is sent in this turn, or when the link has
    /// room for it.
    pub(crate) fn tell(&mut self, event: &Event, ends: Option<(CallId, FarEnds)>) {
        if let Err(error) = self.outbox.push(event, ends) {
            tracing::warn!(%error, "an event is left out");
            self.too_large(event);
        }
        // Answers do not wait for the rest of this turn; failures are handled at its end.
        self.outbox.send_early();
    }

    /// Handles an event that no frame can hold: ends its call, and no other.
    fn too_large(&mut self, event: &Event) {
        let failed = |step: &str| Failure::Setup {
            step: step.to_owned(),
            errno: raw(nix::errno::Errno::EMSGSIZE),
        };
        let instead = match event {
            // The operator can have more groups than a frame has bytes for.
            Event::Started { call, .. } => {
                return self.stop(*call, Outcome::Failed(failed("telling what the cell has")));
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
        if let Err(error) = self.outbox.push(&instead, None) {
            tracing::error!(%error, "an event is lost");
        }
    }

    /// Sends what waits, as far as the link takes it.
    ///
    /// # Errors
    /// The link takes nothing, although there is room: no call could be answered any more.
    pub(super) fn flush(&mut self) -> Result<(), Fatal> {
        loop {
            match self.outbox.flush()? {
                Flushed::Fine => return Ok(()),
                Flushed::Undeliverable(call, errno) => {
                    tracing::warn!(%errno, "a call's streams could not be sent");
                    let step = "sending the program's streams".to_owned();
                    let failure = Failure::Setup { step, errno: raw(errno) };
                    self.stop(call, Outcome::Failed(failure));
                }
            }
        }
    }

    /// Hands log lines to the front end, which has streams.
    pub(super) fn tell_lines(&mut self) {
        let lines = log::take();
        if lines.is_empty() {
            return;
        }
        if let Err(error) = self.outbox.push(&Event::Logged { lines }, None) {
            tracing::debug!(%error, "log lines are lost");
        }
    }

    /// Sends the log lines before the supervisor ends, without waiting for room on the link.
    pub(super) fn last_lines(&mut self) {
        self.tell_lines();
        self.outbox.send_early();
    }
}
