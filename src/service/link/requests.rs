//! Requests to the supervisor about running calls and sessions.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::{Link, Outgoing, Shared};
use model::job::{JobSignal, ProfileName, SessionId, Workspace};
use model::wire::{self, CallId, Request};

/// Ends a running call early. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Control {
    pub(super) call: CallId,
    pub(super) shared: Arc<Shared>,
}

impl Link {
    /// Returns a control that refers to no call: what it sends is dropped.
    pub(crate) fn detached_control(&self) -> Control {
        Control { call: 0, shared: Arc::clone(&self.shared) }
    }

    /// Ends the session's shell; its next job gets a new one with the same `/workspace`.
    pub fn restart(&self, session: SessionId) {
        self.shared.order(&Request::Restart { session });
    }

    /// Ends the session with its shell and its `/workspace`.
    pub fn forget(&self, session: SessionId) {
        self.shared.order(&Request::Forget { session });
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
        self.shared.order(&Request::MakeRoom { number, profile, workspace, from });
        // An error means that the link has ended.
        answer.await.unwrap_or_default()
    }
}

impl Control {
    /// Cancels the call: SIGTERM, a grace period, then the cell is killed.
    pub fn cancel(&self) {
        self.send(&Request::Cancel { call: self.call });
    }

    /// Sends a signal to the processes of a session's call; those left after the grace period are
    /// killed.
    pub fn signal(&self, signal: JobSignal) {
        self.send(&Request::Signal { call: self.call, signal });
    }

    /// Reports that the output limit is reached: the cell is killed at once.
    pub fn output_limit(&self) {
        self.send(&Request::OutputLimit { call: self.call });
    }

    /// Asks whether the call waits for input; the answers carry this number.
    pub fn ask_input(&self, number: u32) {
        self.send(&Request::AskInput { call: self.call, number });
    }

    /// Adds to the metrics how long output was read after the call had ended.
    pub fn drained(&self, time: Duration) {
        self.shared.state().add_time("drain", time);
    }

    fn send(&self, request: &Request) {
        // If the link is gone, the call has ended already.
        if self.shared.state().calls.contains_key(&self.call) {
            self.shared.order(request);
        }
    }
}

impl Shared {
    /// Queues a request that starts no call.
    fn order(&self, request: &Request) {
        // A frame of some numbers always encodes.
        if let Ok(frame) = wire::encode(request) {
            self.push(Outgoing::order(frame));
        }
    }
}
