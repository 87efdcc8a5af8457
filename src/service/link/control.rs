//! Requests to the supervisor about a running call.

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
    /// Returns a control that refers to no call: what it sends is dropped.
    pub(crate) fn detached_control(&self) -> Control {
        Control { call: 0, shared: Arc::clone(&self.shared) }
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
        if !self.shared.state().calls.contains_key(&self.call) {
            return;
        }
        // A frame of two numbers always encodes. If the link is gone, the call has ended already.
        if let Ok(frame) = wire::encode(request) {
            self.shared.push(Outgoing::order(frame));
        }
    }
}
