//! Frames on their way to the supervisor, in order, without waiting for it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use tokio::time::sleep;

use super::{Shared, State};
use model::outcome::Failure;
use model::wire::CallId;
use sys::{raw, socket};

/// Until the next attempt, where the socket has room and takes nothing.
pub(super) const PAUSE: Duration = Duration::from_millis(10);
/// Failures in a row that are waited out: one may be of a moment without memory.
pub(super) const MOST_FAILURES: u8 = 8;

/// A frame that waits.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// The call that it starts; none of any other frame, which no caller waits for.
    job: Option<CallId>,
    frame: Vec<u8>,
    fds: Vec<OwnedFd>,
    failures: u8,
}

impl Outgoing {
    pub(crate) fn job(call: CallId, frame: Vec<u8>, fds: Vec<OwnedFd>) -> Self {
        Self { job: Some(call), frame, fds, failures: 0 }
    }

    /// A request about a call, or about a session.
    pub(crate) fn order(frame: Vec<u8>) -> Self {
        Self { job: None, frame, fds: Vec::new(), failures: 0 }
    }
}

/// The result of sending the frames that waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    All,
    /// The socket has no room.
    Full,
    /// It has, and takes nothing now.
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

    /// Sends what waits, in order, as far as the socket takes it.
    fn flush(&self, state: &mut State) -> Sent {
        while let Some(Outgoing { job, frame, fds, failures }) = state.outgoing.front_mut() {
            let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            match (socket::send_now(self.socket.get_ref(), frame, &borrowed), *job) {
                (Err(Errno::EAGAIN), _) => return Sent::Full,
                (Err(Errno::ENOBUFS | Errno::ENOMEM), _) => return Sent::Later,
                // Gone: the reader sees the end of the link and tells everybody.
                (Ok(()) | Err(Errno::EPIPE | Errno::ECONNRESET), _) => {}
                // ETOOMANYREFS, say, while a cell of our uid has too many descriptors on their
                // way (unix(7)): nobody will answer a job that was not sent, so it ends here.
                (Err(errno), Some(call)) => state.unsent(call, errno),
                (Err(_), None) if *failures < MOST_FAILURES => {
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
            // The receiver has gone.
            started.send(Err(failure)).unwrap_or_default();
        }
    }
}
