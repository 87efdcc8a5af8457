//! Starts the server, accepts connections, and ends it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Extension, Request};
use axum::http::StatusCode;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http_body_util::BodyExt;
use rmcp::ServerHandler;
use tokio::net::{TcpListener, UnixListener};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::access::{AccessRules, Peer};
use crate::connections::{self, ConnectionSetup, Connections};
use crate::door::{Door, MakeHandler};
use crate::guard::{Guard, guard};
use crate::limits::{LastAccept, ListenerLimits};
use crate::respond::Refusal;
use crate::throttle::LogThrottle;
use mcp::lines::Ends;

/// Time for killed calls to be answered, and for the answers to leave.
const KILL_GRACE: Duration = Duration::from_secs(3);
/// Pause after a failed accept(2): descriptors may be short for a while.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time between looks for clients whose access tokens have expired.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(30);

/// A socket that listens, made before the process is confined.
#[derive(Debug)]
pub enum Listener {
    Tcp(std::net::TcpListener),
    /// A socket at a path, for the user who started the server and for root.
    Unix {
        socket: std::os::unix::net::UnixListener,
        /// Uid of that user. It is read with the socket: the filter of the front end allows no geteuid(2).
        owner: u32,
    },
}

/// Parameters of a server.
#[derive(Debug)]
pub struct Front<M> {
    pub handlers: M,
    pub access: AccessRules,
    pub listener: Listener,
    pub limits: ListenerLimits,
}

/// Serves until `ends` is tripped. Then new requests are refused, those in flight have time to end, and are killed
/// after it.
///
/// # Errors
/// A socket that cannot be listened to.
pub async fn serve<M: MakeHandler>(front: Front<M>, ends: Ends) -> io::Result<()> {
    let Front { handlers, access, listener, limits } = front;
    let end = CancellationToken::new();
    let handlers = Arc::new(handlers);
    let (leaving, ends, _later) = after_pre_stop(ends, limits.pre_stop);
    let until = match limits.last_accept {
        LastAccept::AfterPreStop => ends.stop.clone(),
        LastAccept::AtSignal => leaving.clone(),
    };
    let guarded = Arc::new(Guard::new(&handlers, access, &limits, ends.clone(), leaving, &end));
    let router = Router::new()
        .route("/mcp", any(mcp::<M::Handler>))
        .merge(handlers.more(&limits))
        .method_not_allowed_fallback(async || {
            let message = "this path has other methods";
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
        })
        .fallback(async || {
            Refusal::new(StatusCode::NOT_FOUND, "not_found", "there is nothing of this name")
        })
        // `body` has bounded their size.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(Arc::clone(&guarded), guard::<M::Handler>));
    let all = TaskTracker::new();
    let acceptor = Acceptor {
        setup: ConnectionSetup { router, tls: None, limits, stop: ends.stop.clone() },
        connections: Arc::new(Connections::new(limits.connections)),
        all: all.clone(),
        throttle: LogThrottle::default(),
        until,
        lost: ends.lost.clone(),
    };
    let _following = AbortOnDropHandle::new(tokio::spawn(follow(Arc::clone(&guarded))));
    match listener {
        Listener::Tcp(listener) => acceptor.tcp(listener, &guarded).await?,
        Listener::Unix { socket, owner } => acceptor.unix(socket, owner, &guarded).await?,
    }
    ends.ending().await;
    guarded.busy.close();
    if timeout(limits.drain, guarded.busy.wait()).await.is_err() {
        tracing::warn!("requests in flight are ended: their time is over");
    }
    ends.kill.cancel();
    let answered = timeout(KILL_GRACE, guarded.busy.wait()).await;
    end.cancel();
    all.close();
    if answered.is_err() || timeout(KILL_GRACE, all.wait()).await.is_err() {
        tracing::warn!("connections are closed: a client did not take its answer");
    }
    Ok(())
}

/// Adapts the doors each time that the credentials are replaced, and when access tokens expire.
async fn follow<H: ServerHandler + Clone + Send + Sync + 'static>(guard: Arc<Guard<H>>) {
    let mut changes = guard.access.changes();
    loop {
        match timeout(EXPIRY_INTERVAL, changes.changed()).await {
            Ok(Ok(())) => guard.follow(),
            Ok(Err(_)) => return,
            Err(_) => {}
        }
        guard.close_expired();
    }
}

/// Returns a token that is cancelled at a signal to end, and the ends of a server that continues for `pre_stop` after
/// it: load balancers read from `/health` that they should send no more. A second signal, or the loss of the
/// supervisor, ends the server at once.
fn after_pre_stop(
    ends: Ends,
    pre_stop: Duration,
) -> (CancellationToken, Ends, Option<AbortOnDropHandle<()>>) {
    let leaving = ends.stop.clone();
    if pre_stop.is_zero() {
        return (leaving, ends, None);
    }
    let ends = Ends { stop: CancellationToken::new(), ..ends };
    let signal = leaving.clone();
    let after = ends.clone();
    let later = tokio::spawn(async move {
        signal.cancelled().await;
        tracing::info!(
            seconds = pre_stop.as_secs(),
            "the server ends: requests are taken until then"
        );
        tokio::select! {
            () = sleep(pre_stop) => {}
            () = after.kill.cancelled() => {}
            () = after.lost.cancelled() => {}
        }
        after.stop.cancel();
    });
    (leaving, ends, Some(AbortOnDropHandle::new(later)))
}

/// Serves a request of MCP at the door of its client.
async fn mcp<H: ServerHandler + Clone + Send + Sync + 'static>(
    Extension(door): Extension<Arc<Door<H>>>,
    request: Request,
) -> Response {
    let (mut parts, body) = request.into_parts();
    // A task has the head of its request for as long as it runs, and must not keep the door open.
    parts.extensions.remove::<Arc<Door<H>>>();
    // The body has been read whole, so this cannot fail.
    let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let request = Request::from_parts(parts, bytes);
    door.mcp(request).await.unwrap_or_else(IntoResponse::into_response)
}

/// Takes connections, and serves them.
struct Acceptor {
    setup: ConnectionSetup,
    connections: Arc<Connections>,
    all: TaskTracker,
    throttle: LogThrottle,
    /// Tripped when no more connections are accepted.
    until: CancellationToken,
    /// The same, because no call can run any more.
    lost: CancellationToken,
}

impl Acceptor {
    async fn tcp<H>(&self, listener: std::net::TcpListener, guard: &Guard<H>) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        loop {
            let taken = tokio::select! {
                taken = listener.accept() => taken,
                () = self.ending() => return Ok(()),
            };
            match taken {
                Ok((stream, from)) => {
                    if !guard.access.admits(from) {
                        continue;
                    }
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "small answers may be slow");
                    }
                    self.begin(stream, Peer::Address(from), guard);
                }
                Err(error) => pause(&error).await,
            }
        }
    }

    async fn unix<H>(
        &self,
        listener: std::os::unix::net::UnixListener,
        owner: u32,
        guard: &Guard<H>,
    ) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        loop {
            let taken = tokio::select! {
                taken = listener.accept() => taken,
                () = self.ending() => return Ok(()),
            };
            match taken {
                // The socket's mode says the same; a descriptor may have been handed on.
                Ok((stream, _)) => match stream.peer_cred() {
                    Ok(peer) if peer.uid() == owner || peer.uid() == 0 => {
                        self.begin(stream, Peer::Owner, guard);
                    }
                    Ok(peer) => tracing::warn!(uid = peer.uid(), "a user who is not allowed"),
                    Err(error) => tracing::warn!(%error, "the user of a client is unknown"),
                },
                Err(error) => pause(&error).await,
            }
        }
    }

    /// Resolves when no more connections are accepted.
    async fn ending(&self) {
        tokio::select! {
            () = self.until.cancelled() => {}
            () = self.lost.cancelled() => {}
        }
    }

    fn begin<S, H>(&self, stream: S, peer: Peer, guard: &Guard<H>)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let Some(slot) = self.connections.take_slot(peer) else {
            if let Some(left_out) = self.throttle.passes() {
                tracing::warn!(left_out, "a connection was refused: all of them are being served");
            }
            return;
        };
        let tls = guard.access.credentials().tls.clone().map(TlsAcceptor::from);
        let setup = ConnectionSetup { tls, ..self.setup.clone() };
        self.all.spawn(connections::connection(stream, peer, slot, setup));
    }
}

async fn pause(error: &io::Error) {
    tracing::warn!(%error, "a connection could not be taken");
    sleep(ACCEPT_PAUSE).await;
}
