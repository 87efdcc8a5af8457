//! Serves one connection: TLS if it is configured, HTTP/1.1, and time limits for slow or silent clients.
//!
//! A connection counts as served once a request has arrived whole and passed every check. Until then, also within the
//! handshake of TLS, it makes room for another when there are too many, so a client that sends nothing, or slowly,
//! keeps no other client out.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt;

use crate::access::Peer;
use crate::access::certificates::PresentedCertificate;
use crate::limits::{ListenerLimits, MAX_HEAD_BYTES, MAX_HEADERS};
use crate::respond::Refusal;

/// Time after the end of a server in which the first request of a connection is answered: it may be on its way.
const FIRST_REQUEST_TIME: Duration = Duration::from_millis(200);

/// Connections of a server: their maximum number, and when each was last used.
#[derive(Debug)]
pub(crate) struct Connections {
    max: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    all: BTreeMap<u64, ConnectionUse>,
}

/// Reason to keep a connection that serves no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeepReason {
    Nothing,
    /// Its client would lose state with it: others are closed before it.
    State,
    /// It is not closed.
    Work,
}

/// Returns the reason to keep a connection when another needs its slot.
type KeepProbe = Box<dyn Fn() -> KeepReason + Send + Sync>;

/// Use of one connection.
struct ConnectionUse {
    /// Address of the client; absent for a Unix socket.
    sender: Option<IpAddr>,
    /// Requests that it serves now.
    serving: usize,
    /// True if it has served one before.
    is_used: bool,
    /// Time when it was opened, or of its last answer.
    since: Instant,
    close: CancellationToken,
    /// Reason to keep it between requests. HTTP has no such reason: only requests end with a connection.
    kept: Option<KeepProbe>,
}

impl std::fmt::Debug for ConnectionUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionUse").field("serving", &self.serving).finish_non_exhaustive()
    }
}

/// Slot of a connection; dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    connections: Arc<Connections>,
    id: u64,
    close: CancellationToken,
}

impl Connections {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, open: Mutex::default() }
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot. Where all are taken, a connection that is not being served makes room: of the address that has
    /// most of those, first one that never had a request, then the one idle for longest. Returns `None` only if each
    /// connection is being served, or has a reason to be kept without a request.
    pub(crate) fn take_slot(self: &Arc<Self>, peer: Peer) -> Option<ConnectionSlot> {
        let mut open = self.open();
        if open.all.len() >= self.max {
            let closing = open.eviction_candidate()?;
            open.all.remove(&closing)?.close.cancel();
        }
        let id = open.next;
        let close = CancellationToken::new();
        open.next += 1;
        let sender = peer.sender();
        let since = Instant::now();
        let close_it = close.clone();
        let now = ConnectionUse {
            sender,
            serving: 0,
            is_used: false,
            since,
            close: close_it,
            kept: None,
        };
        open.all.insert(id, now);
        Some(ConnectionSlot { connections: Arc::clone(self), id, close })
    }

    /// Notes the beginning of a request, or its end.
    fn note(&self, id: u64, serves: bool) {
        if let Some(one) = self.open().all.get_mut(&id) {
            one.serving = if serves { one.serving + 1 } else { one.serving.saturating_sub(1) };
            (one.is_used, one.since) = (true, Instant::now());
        }
    }
}

impl OpenConnections {
    fn eviction_candidate(&self) -> Option<u64> {
        let keep =
            |one: &ConnectionUse| one.kept.as_ref().map_or(KeepReason::Nothing, |kept| kept());
        let idle = self.all.iter().filter(|(_, one)| one.serving == 0);
        let idle = idle.map(|(id, one)| (*id, one, keep(one)));
        let idle: Vec<_> = idle.filter(|(.., keep)| *keep < KeepReason::Work).collect();
        let mut counts: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
        for (_, one, _) in &idle {
            *counts.entry(one.sender).or_default() += 1;
        }
        let order = |(_, one, keep): &(u64, &ConnectionUse, KeepReason)| {
            (Reverse(counts.get(&one.sender).copied()), *keep, one.is_used, one.since)
        };
        idle.iter().min_by_key(|one| order(one)).map(|(id, ..)| *id)
    }
}

impl ConnectionSlot {
    /// Resolves when another connection needs the slot.
    pub(crate) fn evicted(&self) -> WaitForCancellationFuture<'_> {
        self.close.cancelled()
    }

    /// Makes the connection ask `kept` before it makes room. `kept` must not use the table of connections.
    pub(crate) fn set_keep_probe(&self, kept: impl Fn() -> KeepReason + Send + Sync + 'static) {
        if let Some(one) = self.connections.open().all.get_mut(&self.id) {
            one.kept = Some(Box::new(kept));
        }
    }

    /// Returns the handle by which requests of this connection are counted.
    pub(crate) fn handle(&self) -> ConnectionHandle {
        ConnectionHandle { connections: Arc::clone(&self.connections), id: self.id }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connections.open().all.remove(&self.id);
    }
}

/// The connection that a request came by.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionHandle {
    connections: Arc<Connections>,
    id: u64,
}

impl ConnectionHandle {
    /// Notes that a request is being served, until the result is dropped.
    pub(crate) fn serves(&self) -> Serving {
        self.connections.note(self.id, true);
        Serving(Arc::clone(&self.connections), self.id)
    }
}

/// Counts a request as served until it is dropped.
#[derive(Debug)]
pub(crate) struct Serving(Arc<Connections>, u64);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.note(self.1, false);
    }
}

/// Parts of a server that each of its connections needs.
#[derive(Clone)]
pub(crate) struct ConnectionSetup {
    pub(crate) router: Router,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) limits: ListenerLimits,
    pub(crate) stop: CancellationToken,
}

/// Serves a connection until its client or the server ends it.
pub(crate) async fn connection<S>(
    stream: S,
    peer: Peer,
    slot: ConnectionSlot,
    setup: ConnectionSetup,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(setup.limits.write_time));
    let stream = Box::pin(stream);
    let Some(tls) = setup.tls.clone() else {
        return requests(stream, peer, None, slot, setup).await;
    };
    // Counts as a connection without a request: it makes room for others, and has its time.
    let handshake = tokio::select! {
        handshake = tokio::time::timeout(setup.limits.head_time, tls.accept(stream)) => handshake,
        () = slot.evicted() => return,
        () = over(&setup.stop) => return,
    };
    match handshake {
        Ok(Ok(stream)) => {
            let certificate = PresentedCertificate::new(stream.get_ref().1.peer_certificates());
            requests(stream, peer, certificate, slot, setup).await;
        }
        Ok(Err(error)) => tracing::debug!(?peer, %error, "no TLS with a client"),
        Err(_) => tracing::debug!(?peer, "a client was too slow for TLS"),
    }
}

/// Resolves when a connection without a request is closed, because the server ends.
async fn over(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(FIRST_REQUEST_TIME).await;
}

async fn requests<S>(
    stream: S,
    peer: Peer,
    certificate: Option<PresentedCertificate>,
    slot: ConnectionSlot,
    setup: ConnectionSetup,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let certificate = certificate.map(Arc::new);
    let ConnectionSetup { router, limits, stop, .. } = setup;
    let handle = slot.handle();
    let begun = CancellationToken::new();
    let begins = begun.clone();
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        begins.cancel();
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(handle.clone());
        certificate.clone().map(|certificate| request.extensions_mut().insert(certificate));
        let router = router.clone();
        async move { Ok::<_, Infallible>(answered(router, request.map(Body::new)).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES);
    let mut served = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = slot.evicted() => return,
        () = stop.cancelled() => tokio::select! {
            ended = served.as_mut() => ended,
            // `Elapsed` is no failure: no request is on its way.
            _ = tokio::time::timeout(FIRST_REQUEST_TIME, begun.cancelled()) => {
                // The answer in progress is the last one.
                served.as_mut().graceful_shutdown();
                served.await
            }
        },
    };
    if let Err(error) = ended {
        tracing::debug!(?peer, %error, "a connection ended");
    }
}

/// Answers a request. A panic is answered with status 500, and the connection stays open.
async fn answered(router: Router, request: hyper::Request<Body>) -> Response {
    // Ends with the connection.
    let task = AbortOnDropHandle::new(tokio::spawn(router.oneshot(request)));
    match task.await {
        Ok(answer) => answer.unwrap_or_else(|never| match never {}),
        Err(_panicked) => {
            tracing::error!("a request ended by a fault in cofferdam");
            let message = "the request ended by a fault in cofferdam";
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::server::{ClientHello, ResolvesServerCert};
    use rustls::sign::CertifiedKey;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    fn from(address: [u8; 4]) -> Peer {
        Peer::Address((address, 80).into())
    }

    #[test]
    fn the_longest_idle_connection_makes_room_and_one_that_is_served_does_not() {
        let connections = Arc::new(Connections::new(2));
        let place = || connections.take_slot(from([192, 0, 2, 1]));
        let first = place().expect("room");
        let second = place().expect("room");
        connections.note(first.id, true);
        let third = place().expect("the second makes room");
        assert!(second.close.is_cancelled() && !first.close.is_cancelled());
        connections.note(third.id, true);
        assert!(place().is_none(), "both are served");
        drop(second);
        assert!(place().is_none(), "its place was given away already");
        drop(first);
        assert!(place().is_some());
    }

    #[test]
    fn a_connection_that_never_had_a_request_makes_room_before_one_that_had() {
        let connections = Arc::new(Connections::new(2));
        let place = || connections.take_slot(from([127, 0, 0, 1])).expect("room");
        let session = place();
        drop(session.handle().serves());
        let silent: Vec<ConnectionSlot> = (0..20).map(|_| place()).collect();
        assert!(!session.close.is_cancelled(), "idle for longest, and in use");
        assert_eq!(silent.iter().filter(|place| !place.close.is_cancelled()).count(), 1);
    }

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

    /// Serves one connection. Returns its client, and the token that ends the server.
    fn served(router: Router) -> (DuplexStream, CancellationToken) {
        let (client, server) = tokio::io::duplex(1 << 10);
        let place = Arc::new(Connections::new(1)).take_slot(from([127, 0, 0, 1])).expect("room");
        let stop = CancellationToken::new();
        let limits = ListenerLimits::default();
        let setup = ConnectionSetup { router, tls: None, limits, stop: stop.clone() };
        tokio::spawn(connection(server, from([127, 0, 0, 1]), place, setup));
        (client, stop)
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_request_that_is_on_its_way_at_the_end_is_answered() {
        let router = || Router::new().route("/", axum::routing::get(|| async { "here" }));
        let half = FIRST_REQUEST_TIME / 2;
        for (before, after, answers, open_for) in [
            (&b""[..], REQUEST, 1, half),
            (b"", b"", 0, FIRST_REQUEST_TIME),
            // A client that had an answer sends its next request by another connection.
            (REQUEST, b"", 1, Duration::ZERO),
        ] {
            let (mut client, stop) = served(router());
            client.write_all(before).await.expect("it reads");
            tokio::time::sleep(half).await;
            stop.cancel();
            let end = tokio::time::Instant::now();
            if !after.is_empty() {
                tokio::time::sleep(half).await;
                client.write_all(after).await.expect("it reads");
            }
            let mut text = String::new();
            client.read_to_string(&mut text).await.expect("it is closed");
            assert_eq!(text.matches("here").count(), answers, "{text}");
            let took = end.elapsed();
            assert!(took.abs_diff(open_for) < Duration::from_millis(20), "{took:?}");
        }
    }

    /// Settings of TLS without a certificate: a handshake ends with the first message of the client.
    fn tls() -> TlsAcceptor {
        #[derive(Debug)]
        struct NoCertificate;

        impl ResolvesServerCert for NoCertificate {
            fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
                None
            }
        }

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(NoCertificate));
        Arc::new(config).into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_has_its_time_and_makes_room_and_ends_with_the_server() {
        let limits = ListenerLimits::default();
        for (is_evicted, is_stopped, open_for) in [
            (false, false, limits.head_time),
            (true, false, Duration::ZERO),
            (false, true, FIRST_REQUEST_TIME),
        ] {
            let (mut client, server) = tokio::io::duplex(1 << 10);
            let connections = Arc::new(Connections::new(1));
            let slot = connections.take_slot(from([127, 0, 0, 1])).expect("room");
            let stop = CancellationToken::new();
            let tls = Some(tls());
            let setup = ConnectionSetup { router: Router::new(), tls, limits, stop: stop.clone() };
            let served = connection(server, from([127, 0, 0, 1]), slot, setup);
            let served = tokio::spawn(served);
            // The head of a record, of which nothing else comes.
            client.write_all(&[0x16, 3, 1, 2, 0]).await.expect("it reads");
            tokio::task::yield_now().await;
            let begun = tokio::time::Instant::now();
            let other = || connections.take_slot(from([127, 0, 0, 2])).expect("it makes room");
            let _next = is_evicted.then(other);
            if is_stopped {
                stop.cancel();
            }
            assert_eq!(client.read(&mut [0]).await.ok(), Some(0), "it is closed");
            served.await.expect("no panic");
            let took = begun.elapsed();
            assert!(took.abs_diff(open_for) < Duration::from_millis(20), "{open_for:?}: {took:?}");
            assert_eq!(connections.open().all.len(), usize::from(is_evicted));
        }
    }

    /// Asks for a large answer and reads only `bytes` of it each 20 s, `times` times. Returns when the connection ended.
    async fn ended_after(bytes: usize, times: usize) -> Duration {
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let router = Router::new().route("/", axum::routing::get(|| async { vec![b'x'; 1 << 20] }));
        let place = Arc::new(Connections::new(1)).take_slot(from([127, 0, 0, 1])).expect("room");
        let setup = ConnectionSetup {
            router,
            tls: None,
            limits: ListenerLimits::default(),
            stop: CancellationToken::new(),
        };
        let begun = tokio::time::Instant::now();
        let served = connection(server, from([127, 0, 0, 1]), place, setup);
        let served = tokio::spawn(served);
        client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("it reads");
        for _ in 0..times {
            tokio::time::sleep(Duration::from_secs(20)).await;
            client.read_exact(&mut vec![0; bytes]).await.expect("it is open");
        }
        let ended = tokio::time::timeout(Duration::from_secs(900), served).await;
        ended.expect("it is given up").expect("no panic");
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn an_unread_answer_is_given_up_in_time_and_one_that_is_read_continues() {
        let time = ListenerLimits::default().write_time;
        let near =
            |took: Duration, wanted: Duration| took.abs_diff(wanted) < Duration::from_secs(2);
        let unread = ended_after(0, 0).await;
        assert!(near(unread, time), "{unread:?}");
        let slow = ended_after(600, 6).await;
        assert!(near(slow, Duration::from_secs(120) + time), "{slow:?}");
    }

    #[test]
    fn work_without_a_request_keeps_its_connection() {
        let connections = Arc::new(Connections::new(3));
        let place = || connections.take_slot(from([127, 0, 0, 1]));
        let all = [place().expect("room"), place().expect("room"), place().expect("room")];
        all.iter().for_each(|one| drop(one.handle().serves()));
        all[0].set_keep_probe(|| KeepReason::Work);
        all[1].set_keep_probe(|| KeepReason::State);
        let went = || all.iter().map(|one| one.close.is_cancelled()).collect::<Vec<_>>();
        let fourth = place().expect("the third makes room");
        assert_eq!(went(), [false, false, true], "it was idle for the shortest time");
        fourth.set_keep_probe(|| KeepReason::Work);
        let fifth = place().expect("the second makes room");
        assert_eq!(went(), [false, true, true]);
        fifth.set_keep_probe(|| KeepReason::Work);
        assert!(place().is_none(), "all go on");
        fifth.set_keep_probe(|| KeepReason::Nothing);
        assert!(place().is_some());
    }

    #[test]
    fn an_address_with_many_connections_makes_room_before_another_with_one() {
        let connections = Arc::new(Connections::new(3));
        let quiet = connections.take_slot(from([192, 0, 2, 1])).expect("room");
        let flood = || connections.take_slot(from([192, 0, 2, 2])).expect("room");
        let many: Vec<ConnectionSlot> = (0..100).map(|_| flood()).collect();
        assert!(!quiet.close.is_cancelled(), "idle for longest, and of another address");
        assert_eq!(many.iter().filter(|place| !place.close.is_cancelled()).count(), 2);
    }
}
