//! MCP over raw TCP, one message a line, for clients of an older server. Each connection is one session.
//!
//! This form has no place for a token, so it is served on loopback only, and only while cells have no grants.
//! A web page can make a browser send requests to ports of its machine: their first byte is a letter, where a message
//! begins with a brace. At any other byte the connection is closed, before anything is taken.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Peer;
use crate::connections::{ConnectionHandle, ConnectionSlot, Connections, KeepReason, Serving};
use crate::throttle::LogThrottle;
use config::policy::Principal;
use mcp::lines::{Ends, QUIET, SharedBounds};
use mcp::serve::{self, Offer};
use mcp::server::{Continuity, Server};
use service::Executor;
use service::fair::FairShare;
use service::session::SessionActivity;

/// Maximum connections at once. One more closes a connection for which nothing runs.
const MAX_CONNECTIONS: usize = 16;
/// Time after its last command for which a shell keeps its connection, as for an unused session over HTTP.
const SHELL_KEEP_TIME: Duration = Duration::from_secs(300);
/// Bytes of all lines that are being read or served, with what reading takes.
const LINE_MEMORY: usize = 64 << 20;
/// Time for the first byte, and then for the first request.
const FIRST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without progress in which a client may leave an answer unread.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept(2): descriptors may be short for a while.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Name of the clients in policies and in the audit log.
pub const CLIENT: &str = "tcp";

/// A socket that listens, and the addresses that may connect; an empty list allows all.
#[derive(Debug)]
pub struct LineListener {
    pub socket: std::net::TcpListener,
    pub allowed: Vec<IpNet>,
}

/// Returns true if a message can begin with this byte.
pub fn begins_a_message(first: u8) -> bool {
    matches!(first, b'{' | b'[')
}

/// State that all connections share.
struct LineServer {
    executor: Arc<Executor>,
    offer: Offer,
    ends: Ends,
    connections: Arc<Connections>,
    room: Arc<FairShare>,
    throttle: LogThrottle,
}

/// Serves connections until `ends` is tripped. Calls in flight have the same time to end as over standard input.
///
/// # Errors
/// A socket that cannot be listened to.
pub async fn serve(
    listener: LineListener,
    executor: Arc<Executor>,
    offer: Offer,
    ends: Ends,
) -> io::Result<()> {
    let LineListener { socket, allowed } = listener;
    socket.set_nonblocking(true)?;
    let socket = TcpListener::from_std(socket)?;
    let server = Arc::new(LineServer {
        executor,
        offer,
        ends: ends.clone(),
        connections: Arc::new(Connections::new(MAX_CONNECTIONS)),
        room: SharedBounds::room(LINE_MEMORY),
        throttle: LogThrottle::default(),
    });
    let all = TaskTracker::new();
    let mut number = 0_u64;
    loop {
        let taken = tokio::select! {
            taken = socket.accept() => taken,
            () = ends.ending() => break,
        };
        let (stream, from) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                server.warn(&format!("a connection could not be taken: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if !admits(&allowed, from) {
            server.warn(&format!("an address that is not allowed: {}", from.ip()));
            continue;
        }
        let Some(slot) = server.connections.take_slot(Peer::Address(from)) else {
            server.warn("a connection was refused: all that there may be have something that runs, or a shell in use");
            continue;
        };
        number += 1;
        let principal = Principal::named(format!("{CLIENT}-{number}"));
        all.spawn(Arc::clone(&server).connection(stream, slot, principal));
    }
    all.close();
    all.wait().await;
    Ok(())
}

fn admits(allowed: &[IpNet], from: SocketAddr) -> bool {
    let ip = from.ip().to_canonical();
    allowed.is_empty() || allowed.iter().any(|net| net.contains(&ip))
}

/// Counts a request without an answer; the first one stops the clock for the first request.
fn count_request(connection: &ConnectionHandle, begun: &CancellationToken) -> Serving {
    begun.cancel();
    connection.serves()
}

/// Returns the reason to keep a connection that waits for no answer: jobs, and shells with their state.
fn keep_reason(sessions: SessionActivity) -> KeepReason {
    match sessions {
        SessionActivity::Running => KeepReason::Work,
        SessionActivity::Idle(time) if time < SHELL_KEEP_TIME => KeepReason::Work,
        SessionActivity::Idle(_) => KeepReason::State,
        SessionActivity::None => KeepReason::Nothing,
    }
}

impl LineServer {
    /// Logs a refused connection, a limited number of times each minute: any process can cause it.
    fn warn(&self, what: &str) {
        if let Some(left_out) = self.throttle.passes() {
            tracing::warn!(left_out, "{what}");
        }
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        slot: ConnectionSlot,
        principal: Principal,
    ) {
        let mut first = [0; 1];
        let peeked = tokio::select! {
            peeked = timeout(FIRST_TIMEOUT, stream.peek(&mut first)) => peeked,
            () = slot.evicted() => return,
            () = self.ends.ending() => return,
        };
        match (peeked, first) {
            (Ok(Ok(1)), [first]) if begins_a_message(first) => {}
            (Ok(Ok(1)), _) => return self.warn("a connection that begins with no message"),
            _ => return,
        }
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "small answers may be slow");
        }
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(WRITE_TIMEOUT));
        let (reader, writer) = tokio::io::split(Box::pin(stream));
        let scope = self.executor.scope(Principal::named(CLIENT));
        let session_use = scope.session_use();
        slot.set_keep_probe(move || keep_reason(session_use()));
        let ends = self.ends.of_a_connection(QUIET);
        let at = slot.handle();
        let begun = CancellationToken::new();
        let begun_here = begun.clone();
        let serves =
            move || -> mcp::lines::UntilAnswered { Box::new(count_request(&at, &begun_here)) };
        let bounds = SharedBounds::new(Arc::clone(&self.room), principal, serves);
        let kill = ends.kill.clone();
        let server = Server::offering(scope, kill, self.offer.clone(), Continuity::Connection);
        let served = serve::connection(server, reader, writer, ends.clone(), Some(bounds));
        let watched = async {
            let in_time = timeout(FIRST_TIMEOUT, begun.cancelled()).await.is_ok();
            if in_time {
                slot.evicted().await;
            }
            // Nothing more is read; requests before are answered.
            ends.stop.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = served => if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended");
            },
            () = watched => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_keeps_a_connection_and_a_shell_does_for_a_time() {
        let idle = |seconds| keep_reason(SessionActivity::Idle(Duration::from_secs(seconds)));
        assert_eq!(keep_reason(SessionActivity::Running), KeepReason::Work);
        assert_eq!(
            (idle(0), idle(299), idle(300)),
            (KeepReason::Work, KeepReason::Work, KeepReason::State)
        );
        assert_eq!(keep_reason(SessionActivity::None), KeepReason::Nothing);
    }

    #[test]
    fn an_address_is_admitted_by_the_list_and_by_an_empty_one() {
        let from = |text: &str| text.parse().expect("an address");
        let nets = ["127.0.0.0/8".parse().expect("a net")];
        assert!(admits(&[], from("127.0.0.1:5")) && admits(&nets, from("127.0.0.1:5")));
        assert!(admits(&nets, from("[::ffff:127.0.0.1]:5")));
        assert!(!admits(&nets, from("[::1]:5")) && !admits(&nets, from("10.0.0.1:5")));
    }
}
