//! Sessions over the link: ending one, its shell or the whole of it, and hearing of its end.

use tokio::sync::{oneshot, watch};

use super::{Link, Outgoing};
use model::job::{ProfileName, SessionId, Workspace};
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

    /// Returns what changes whenever a session has ended.
    pub fn ends(&self) -> watch::Receiver<()> {
        self.shared.session_ends.subscribe()
    }

    /// Makes room for one more session: where there is none, the first of `from` ends in which nothing runs.
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
        self.tell(&Request::MakeRoom { number, profile, workspace, from });
        // An error: the link has ended.
        answer.await.unwrap_or_default()
    }

    fn tell(&self, request: &Request) {
        // A frame of some numbers always encodes.
        if let Ok(frame) = wire::encode(request) {
            self.shared.push(Outgoing::order(frame));
        }
    }
}
