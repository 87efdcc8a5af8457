//! One connection: TLS if there is any, HTTP/1.1, and the clocks that a slow or silent client runs against.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::access::Peer;
use crate::limits::{HEAD_BYTES, HEADERS, ListenerLimits};

/// Connections of a server: as many as there may be, and when each was last used.
#[derive(Debug)]
pub(crate) struct Connections {
    most: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    all: BTreeMap<u64, Use>,
}

/// Use of one connection.
#[derive(Debug)]
struct Use {
    /// Requests that it serves now.
    serving: usize,
    /// Time of its beginning, or of its last answer.
    since: Instant,
    close: CancellationToken,
}

/// Place of a connection, until this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    connections: Arc<Connections>,
    id: u64,
    close: CancellationToken,
}

impl Connections {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, open: Mutex::default() }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place. The connection that has been idle for longest makes room, so that nobody keeps others out by
    /// connections alone; there is none only if all of them are being served.
    pub(crate) fn place(self: &Arc<Self>) -> Option<Place> {
        let mut open = self.open();
        if open.all.len() >= self.most {
            let idle = open.all.iter().filter(|(_, one)| one.serving == 0);
            let longest = idle.min_by_key(|(_, one)| one.since).map(|(id, _)| *id)?;
            open.all.remove(&longest)?.close.cancel();
        }
        let (id, close) = (open.next, CancellationToken::new());
        open.next += 1;
        let now = Use { serving: 0, since: Instant::now(), close: close.clone() };
        open.all.insert(id, now);
        Some(Place { connections: Arc::clone(self), id, close })
    }

    /// Notes the beginning of a request, or its end.
    fn note(&self, id: u64, serves: bool) {
        if let Some(one) = self.open().all.get_mut(&id) {
            one.serving = if serves { one.serving + 1 } else { one.serving.saturating_sub(1) };
            one.since = Instant::now();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.open().all.remove(&self.id);
    }
}

/// A request that a connection serves, until this is dropped.
struct Serving(Arc<Connections>, u64);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.note(self.1, false);
    }
}

/// Serves a connection until its client or the server ends it.
pub(crate) async fn connection<S>(
    stream: S,
    tls: Option<TlsAcceptor>,
    peer: Peer,
    router: Router,
    place: Place,
    (limits, stop): (ListenerLimits, CancellationToken),
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_time));
    let stream = Box::pin(stream);
    let Some(tls) = tls else {
        return requests(stream, peer, router, place, limits, stop).await;
    };
    match tokio::time::timeout(limits.head_time, tls.accept(stream)).await {
        Ok(Ok(stream)) => requests(stream, peer, router, place, limits, stop).await,
        Ok(Err(error)) => tracing::debug!(?peer, %error, "no TLS with a client"),
        Err(_) => tracing::debug!(?peer, "a client was too slow for TLS"),
    }
}

async fn requests<S>(
    stream: S,
    peer: Peer,
    router: Router,
    place: Place,
    limits: ListenerLimits,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (connections, id) = (Arc::clone(&place.connections), place.id);
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let router = router.clone();
        let serving = Serving(Arc::clone(&connections), id);
        connections.note(id, true);
        async move {
            let answer = router.oneshot(request.map(Body::new)).await;
            let answer: Response = answer.unwrap_or_else(|never| match never {});
            // A stream is being served for as long as it lasts.
            let answer = answer.map(|body| Body::new(Tied { body, _serving: serving }));
            Ok::<_, Infallible>(answer)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_headers(HEADERS)
        .max_buf_size(HEAD_BYTES);
    let mut served = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = place.close.cancelled() => return,
        () = stop.cancelled() => {
            // The answer that is being made is the last one.
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(?peer, %error, "a connection ended");
    }
}

/// The body of an answer, which keeps its connection from counting as idle.
struct Tied {
    body: Body,
    _serving: Serving,
}

impl axum::body::HttpBody for Tied {
    type Data = axum::body::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Self::Data>, Self::Error>>> {
        std::pin::Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_connection_makes_room_and_one_that_is_served_does_not() {
        let connections = Arc::new(Connections::new(2));
        let (first, second) = (connections.place(), connections.place());
        let (first, second) = (first.expect("room"), second.expect("room"));
        connections.note(first.id, true);
        let third = connections.place().expect("the second makes room");
        assert!(second.close.is_cancelled() && !first.close.is_cancelled());
        connections.note(third.id, true);
        assert!(connections.place().is_none(), "both are served");
        drop(second);
        assert!(connections.place().is_none(), "its place was given away already");
        drop(first);
        assert!(connections.place().is_some());
    }
}
