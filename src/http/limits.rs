//! Bounds on what clients may hold and how long they may take.

use std::num::NonZeroU32;
use std::time::Duration;

/// Bounds of one server. What a client sends is bounded before it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Connections at once; one more closes the longest idle one.
    pub connections: usize,
    /// MCP sessions of one client.
    pub sessions: usize,
    /// Open streams of one client, which last until the client closes them.
    pub streams: usize,
    /// Calls of one tool by one client in a minute through `POST /tools/NAME/execute`.
    pub rate: NonZeroU32,
    /// Requests of one client that wait for their answer.
    pub requests: usize,
    /// Bytes of one body.
    pub body: usize,
    /// Bytes of all bodies that are being read or served, with the memory that parsing takes; one client gets at most half.
    pub bodies: usize,
    /// Time for the head of a request, and for the handshake of TLS.
    pub head_time: Duration,
    /// Time for a body.
    pub body_time: Duration,
    /// Time without progress in which a client may leave an answer unread.
    pub write_time: Duration,
    /// Time after which an unused MCP session is ended.
    pub session_idle: Duration,
    /// Time after a signal to end in which requests are still taken, while `/health` reports the end.
    pub pre_stop: Duration,
    /// Time for requests in flight when the server ends.
    pub drain: Duration,
    pub last_accept: LastAccept,
}

/// Moment from which a server that ends accepts no more connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastAccept {
    /// The end of `pre_stop`.
    AfterPreStop,
    /// The signal to end: another process accepts connections on the same socket.
    AtSignal,
}

/// Connections that are reserved for requests of operators.
pub(crate) const OPERATOR_CONNECTIONS: usize = 16;

/// Headers of one request.
pub(crate) const MAX_HEADERS: usize = 100;
/// Bytes of the head of one request.
pub(crate) const MAX_HEAD_BYTES: usize = 64 << 10;

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            connections: 512,
            sessions: 64,
            streams: 64,
            rate: const { NonZeroU32::new(10).expect("not zero") },
            requests: 256,
            body: mcp::lines::LINE_BYTES,
            bodies: 64 << 20,
            head_time: Duration::from_secs(10),
            body_time: Duration::from_secs(60),
            write_time: Duration::from_secs(30),
            session_idle: Duration::from_secs(300),
            pre_stop: Duration::ZERO,
            drain: Duration::from_secs(5),
            last_accept: LastAccept::AfterPreStop,
        }
    }
}
