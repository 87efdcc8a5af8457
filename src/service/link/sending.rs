//! Queues frames for the supervisor, and sends them in order without blocking.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use tokio::time::sleep;

use super::{Shared, State};
use model::outcome::Failure;
use model::wire::CallId;
use sys::{raw, socket};

/// Time until the next attempt after a temporary failure.
pub(super) const PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of consecutive failures that are retried, such as a lack of memory.
pub(super) const MAX_FAILURES: u8 = 8;

/// A queued frame.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// The call that the frame starts; `None` for other frames, which no caller waits for.
    job: Option<CallId>,
    frame: Vec<u8>,
    fds: Vec<OwnedFd>,
    failures: u8,
}

impl Outgoing {
    pub(crate) fn job(call: CallId, frame: Vec<u8>, fds: Vec<OwnedFd>) -> Self {
        Self { job: Some(call), frame, fds, failures: 0 }
    }

    /// Queues a request about a call or a session.
    pub(crate) fn order(frame: Vec<u8>) -> Self {
        Self { job: None, frame, fds: Vec::new(), failures: 0 }
    }
}

/// Result of sending the queued frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    All,
    /// The socket has no room.
    Full,
    /// The socket has room but takes nothing now.
    Later,
}

impl Shared {
    pub(super) fn push(&self, frame: Outgoing) {
        let mut state = self.state();
        state.outgoing.push_back(frame);
        if self.flush(&mut state) != Sent::All {
            self.blocked.notify_one();
        }
    }

    /// Sends the queued frames in order, until the socket takes no more.
    fn flush(&self, state: &mut State) -> Sent {
        while let Some(Outgoing { job, frame, fds, failures }) = state.outgoing.front_mut() {
            let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            match (socket::send_now(self.socket.get_ref(), frame, &borrowed), *job) {
                (Err(Errno::EAGAIN), _) => return Sent::Full,
                (Err(Errno::ENOBUFS | Errno::ENOMEM), _) => return Sent::Later,
                // If the link is gone, its reader notices and ends all calls.
                (Ok(()) | Err(Errno::EPIPE | Errno::ECONNRESET), _) => {}
                // For example ETOOMANYREFS, if a cell of our uid has too many descriptors in flight
                // (unix(7)). A job that was not sent gets no answer, so its call ends here.
                (Err(errno), Some(call)) => state.unsent(call, errno),
                (Err(_), None) if *failures < MAX_FAILURES => {
                    *failures += 1;
                    return Sent::Later;
                }
                (Err(errno), None) => tracing::error!(%errno, "an order could not be sent"),
            }
            drop(state.outgoing.pop_front());
        }
        Sent::All
    }

    pub(super) async fn write(self: Arc<Self>) {
        loop {
            self.blocked.notified().await;
            loop {
                let Ok(mut ready) = self.socket.writable().await else { return };
                let sent = self.flush(&mut self.state());
                match sent {
                    Sent::All => break,
                    Sent::Full => ready.clear_ready(),
                    Sent::Later => sleep(PAUSE).await,
                }
            }
        }
    }
}

impl State {
    /// Ends a call whose job could not be sent.
    fn unsent(&mut self, call: CallId, errno: Errno) {
        let waiting = self.calls.remove(&call);
        if let Some(started) = waiting.and_then(|waiting| waiting.started) {
            let failure = Failure::Setup { step: "sending the job".to_owned(), errno: raw(errno) };
            // Fails only if the caller is gone.
            started.send(Err(failure)).unwrap_or_default();
        }
    }
}
