//! Sessions over the link: ending a session or its shell, and learning of its end.

use tokio::sync::{oneshot, watch};

use super::{Link, Outgoing};
use model::job::{ProfileName, SessionId, Workspace};
use model::wire::{self, Request};

impl Link {
    /// Ends the session's shell; its next job gets a new one with the same `/workspace`.
    pub fn restart(&self, session: SessionId) {
        self.send(&Request::Restart { session });
    }

    /// Ends the session with its shell and its `/workspace`.
    pub fn forget(&self, session: SessionId) {
        self.send(&Request::Forget { session });
    }

    /// Returns the sessions that have ended since the last call of this method.
    pub fn forgotten(&self) -> Vec<SessionId> {
        std::mem::take(&mut self.shared.state().forgotten)
    }

    /// Returns a receiver that changes whenever a session has ended.
    pub fn ends(&self) -> watch::Receiver<()> {
        self.shared.session_ends.subscribe()
    }

    /// Makes room for one more session: without room, ends the first idle session of `from`.
    /// Returns the session that is about to end.
    pub async fn make_room(
        &self,
        profile: ProfileName,
        workspace: Workspace,
        from: Vec<SessionId>,
    ) -> Option<SessionId> {
        let (sender, answer) = oneshot::channel();
        let number = {
            let mut state = self.shared.state();
            if state.closed.is_some() {
                return None;
            }
            state.questions = state.questions.wrapping_add(1);
            let number = state.questions;
            state.rooms.insert(number, sender);
            number
        };
        self.send(&Request::MakeRoom { number, profile, workspace, from });
        // An error means that the link has ended.
        answer.await.unwrap_or_default()
    }

    fn send(&self, request: &Request) {
        // A frame of some numbers always encodes.
        if let Ok(frame) = wire::encode(request) {
            self.shared.push(Outgoing::order(frame));
        }
    }
}
