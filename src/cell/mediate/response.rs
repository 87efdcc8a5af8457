//! The answers to a mediated call: a result, an error, or a later attempt.

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use nix::errno::Errno;

use super::connecting::Connecting;
use super::refusals::GuardedName;

/// How init answers a call that succeeded or must wait.
pub enum Response {
    /// The call returns 0.
    Done,
    /// The call returns this descriptor, installed in the caller with the requested flags.
    Descriptor(OwnedFd, i32),
    /// The call returns this number, as for a connection or a watch.
    Value(i64),
    /// The call must wait for another process and is tried again later.
    Later(Retry),
    /// The kernel executes the call with its original registers (SECCOMP_USER_NOTIF_FLAG_CONTINUE).
    Continue,
}

/// Why a call failed: refused by the name guard (EPERM, counted), without a route to this destination
/// (ENETUNREACH, counted), or with an errno of the kernel.
pub enum CallError {
    Guarded(GuardedName),
    Unreachable(SocketAddr),
    Errno(Errno),
}

impl From<Errno> for CallError {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// How to retry a pending call.
#[derive(Debug)]
pub enum Retry {
    /// Open a held file: one on which another process has a lease, or a FIFO without a reader that
    /// the caller may not read itself.
    Open { held: OwnedFd, flags: i32 },
    /// Hand over this writing end of a FIFO once a reader has opened it.
    FifoWriter { end: OwnedFd, flags: i32, is_read: bool },
    /// Connect: the backlog of the listening socket is full, or the network has not answered.
    Connection(Connecting),
}

impl Retry {
    /// Returns the descriptor that becomes writable when the call should be retried, if there is
    /// one.
    pub(super) fn waited(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Connection(connecting) => connecting.waited(),
            Self::Open { .. } | Self::FifoWriter { .. } => None,
        }
    }

    /// Returns true if the caller's time limit has passed (SO_SNDTIMEO).
    pub(super) fn is_late(&self, now: Instant) -> bool {
        match self {
            Self::Connection(connecting) => {
                connecting.deadline.is_some_and(|deadline| deadline <= now)
            }
            Self::Open { .. } | Self::FifoWriter { .. } => false,
        }
    }
}
