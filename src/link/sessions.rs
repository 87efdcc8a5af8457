//! Sessions over the link: ending one, its shell or the whole of it, and hearing of its end.

use super::{Link, Outgoing};
use model::job::SessionId;
use model::wire::{self, Request};

impl Link {
    /// The session's shell ends; its next job gets a new one on the same `/workspace`.
    pub fn restart(&self, session: SessionId) {
        self.tell(&Request::Restart { session });
    }

    /// The session ends, its shell and its `/workspace` with it.
    pub fn forget(&self, session: SessionId) {
        self.tell(&Request::Forget { session });
    }

    /// Sessions that the supervisor has ended since this was last asked.
    pub fn forgotten(&self) -> Vec<SessionId> {
        std::mem::take(&mut self.shared.state().forgotten)
    }

    fn tell(&self, request: &Request) {
        // A frame of a number always encodes.
        if let Ok(frame) = wire::encode(request) {
            self.shared.push(Outgoing::order(frame));
        }
    }
}
