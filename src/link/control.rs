//! Requests about a call that runs.

use std::sync::Arc;
use std::time::Duration;

use super::{Link, Outgoing, Shared};
use model::job::JobSignal;
use model::wire::{self, CallId, Request};

/// Ends a running call early. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Control {
    pub(super) call: CallId,
    pub(super) shared: Arc<Shared>,
}

impl Link {
    /// Returns a control of no call: its orders go nowhere.
    pub fn control_of_none(&self) -> Control {
        Control { call: 0, shared: Arc::clone(&self.shared) }
    }
}

impl Control {
    /// The caller takes the call back: TERM, a grace period, then the cell is killed.
    pub fn cancel(&self) {
        self.send(&Request::Cancel { call: self.call });
    }

    /// Sends a signal to the processes of a session's call; what outlasts its grace is killed.
    pub fn signal(&self, signal: JobSignal) {
        self.send(&Request::Signal { call: self.call, signal });
    }

    /// The output limit is reached: the cell is killed at once.
    pub fn output_limit(&self) {
        self.send(&Request::OutputLimit { call: self.call });
    }

    /// Asks whether the call waits for its input; the answers have this number.
    pub fn ask_input(&self, number: u32) {
        self.send(&Request::AskInput { call: self.call, number });
    }

    /// How long its output was read after its end was told: for the metrics.
    pub fn drained(&self, time: Duration) {
        self.shared.state().add_time("drain", time);
    }

    fn send(&self, request: &Request) {
        if !self.shared.state().calls.contains_key(&self.call) {
            return;
        }
        // A frame of two numbers always encodes; a link that is gone has ended the call already.
        if let Ok(frame) = wire::encode(request) {
            self.shared.push(Outgoing::order(frame));
        }
    }
}
