//! Serves one intercepted connection: its two ends, and the requests that pass between them.
//!
//! Each connection of the cell has one connection to the server, in an HTTP version that both
//! speak. There is no pool in which requests of different origin could mix.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::InterceptError;
use super::RequestEvents;
use super::body::{AnswerBody, ScrubbedBody, SearchedBody, scrubbed_fields, text};
use super::request::{CellSeed, Destination, end_to_end, misplaced};
use super::traces::Traces;
use crate::refusal::NetworkRefusal;

/// Maximum size of the head of a request or answer, in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Maximum number of headers of a request or answer.
const MAX_HEADERS: usize = 128;
/// Maximum number of bytes of a refused request's body that are read before its answer.
const MAX_DRAINED_BYTES: usize = 16 * 1024 * 1024;
/// Time for reading them.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the head of a request to arrive.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of open requests on one HTTP/2 connection.
const MAX_STREAMS: u32 = 64;
/// Flow-control window of one HTTP/2 stream, in bytes.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Flow-control window of one HTTP/2 connection, in bytes.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Both directions of a connection.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> ByteStream for S {}

/// Sends requests to the server.
enum Sender {
    /// One request at a time.
    Http1(Mutex<http1::SendRequest<SearchedBody>>),
    Http2(http2::SendRequest<SearchedBody>),
}

/// The connection to the server: the sender of requests, and the task that drives it.
pub(super) struct Upstream {
    /// The sender, or the reason why no request may be sent.
    sender: Result<Sender, String>,
    /// Ends with the connection; aborted on drop.
    task: JoinSet<()>,
}

impl Upstream {
    /// Starts HTTP of `version` on a connection to the server.
    pub(super) async fn new(
        stream: impl ByteStream,
        version: Version,
    ) -> Result<Self, InterceptError> {
        let mut task = JoinSet::new();
        let io = TokioIo::new(stream);
        let sender = if version == Version::HTTP_2 {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.initial_stream_window_size(STREAM_WINDOW);
            builder.initial_connection_window_size(CONNECTION_WINDOW);
            builder.max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX));
            let (sender, connection) =
                builder.handshake(io).await.map_err(InterceptError::Server)?;
            task.spawn(drive(connection));
            Sender::Http2(sender)
        } else {
            let mut builder = http1::Builder::new();
            builder.max_buf_size(MAX_HEAD_BYTES).max_headers(MAX_HEADERS);
            let (sender, connection) =
                builder.handshake(io).await.map_err(InterceptError::Server)?;
            task.spawn(drive(connection));
            Sender::Http1(Mutex::new(sender))
        };
        Ok(Self { sender: Ok(sender), task })
    }

    /// Makes the upstream of a server that no request may be sent to.
    pub(super) fn broken(reason: String) -> Self {
        Self { sender: Err(reason), task: JoinSet::new() }
    }
}

/// Drives a connection to the server until it ends. The requests that it fails get its errors.
async fn drive(connection: impl Future<Output = Result<(), hyper::Error>>) {
    drop(connection.await);
}

/// One connection of the cell, with all that its requests need.
struct Exchange {
    destination: Destination,
    cell: CellSeed,
    secrets: Traces,
    sender: Result<Sender, String>,
    events: Arc<dyn RequestEvents>,
}

/// Answers the requests of a connection until either side ends it.
pub(super) async fn exchange(
    client: impl ByteStream,
    version: Version,
    upstream: Upstream,
    destination: Destination,
    cell: CellSeed,
    events: Arc<dyn RequestEvents>,
) -> Result<(), InterceptError> {
    let Upstream { sender, mut task } = upstream;
    let secrets = destination.secrets();
    let exchange = Arc::new(Exchange { destination, cell, secrets, sender, events });
    let service = service_fn(move |request| {
        let exchange = Arc::clone(&exchange);
        async move { exchange.answer(request).await }
    });
    let io = TokioIo::new(client);
    let ended = if version == Version::HTTP_2 {
        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS);
        builder.initial_stream_window_size(STREAM_WINDOW);
        builder.initial_connection_window_size(CONNECTION_WINDOW);
        builder.max_send_buf_size(128 * 1024);
        builder.max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX));
        let connection = pin!(builder.serve_connection(io, service));
        until_either_ends(connection, |it| it.graceful_shutdown(), &mut task).await
    } else {
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        builder.max_buf_size(MAX_HEAD_BYTES).max_headers(MAX_HEADERS).half_close(true);
        let connection = pin!(builder.serve_connection(io, service));
        until_either_ends(connection, |it| it.graceful_shutdown(), &mut task).await
    };
    ended.map_err(InterceptError::Cell)
}

/// Serves the cell's side. Once the server's side has ended, lets the current request finish and
/// closes the connection, so that the client does not send more requests on it.
async fn until_either_ends<C: Future<Output = Result<(), hyper::Error>>>(
    mut connection: Pin<&mut C>,
    shut: impl Fn(Pin<&mut C>),
    server: &mut JoinSet<()>,
) -> Result<(), hyper::Error> {
    tokio::select! {
        ended = &mut connection => return ended,
        Some(_) = server.join_next() => {}
    }
    shut(connection.as_mut());
    connection.await
}

impl Exchange {
    /// Judges a request; returns the server's answer or one that the gateway makes.
    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<AnswerBody>, hyper::Error> {
        let (parts, body) = request.into_parts();
        let shown = self.destination.shown(&parts);
        // Such a client sends no body before it gets 100 Continue.
        let waits = parts.headers.contains_key(header::EXPECT);
        let sender = match &self.sender {
            Ok(sender) => sender,
            Err(reason) => return Ok(self.failed(&shown, reason)),
        };
        let outgoing = match self.destination.judge(parts, &self.cell, sender.version()) {
            Ok(outgoing) => outgoing,
            Err(refusal) => {
                if !waits {
                    drain(body).await;
                }
                return Ok(self.denied(&shown, refusal));
            }
        };
        let has_placeholder = Arc::new(AtomicBool::new(false));
        let body = SearchedBody::new(body, self.cell.clone(), Arc::clone(&has_placeholder));
        let method = outgoing.method.clone();
        let request = outgoing.with(body);
        match sender.send(request).await {
            Ok(answer) => Ok(self.filter_answer(&shown, &method, answer)),
            Err(_) if has_placeholder.load(Ordering::Relaxed) => {
                Ok(self.denied(&shown, misplaced("the body")))
            }
            // Nothing has been answered yet: the client sees a closed connection and may retry.
            Err(error) => Err(error),
        }
    }

    /// Makes the cell's answer from the server's.
    fn filter_answer(
        &self,
        shown: &str,
        method: &Method,
        answer: Response<Incoming>,
    ) -> Response<AnswerBody> {
        let (parts, body) = answer.into_parts();
        let is_encoded =
            parts.headers.get_all(header::CONTENT_ENCODING).iter().any(|it| it != "identity");
        if is_encoded && self.destination.has_secrets() {
            return self.failed(
                shown,
                "the server compressed an answer that has to be searched for secrets",
            );
        }
        let mut headers = scrubbed_fields(end_to_end(parts.headers), &self.secrets);
        // Alt-Svc would lead clients to other ports and hosts.
        headers.remove(header::ALT_SVC);
        if *method != Method::HEAD && parts.status != StatusCode::NOT_MODIFIED {
            // Recomputed from the body.
            headers.remove(header::CONTENT_LENGTH);
        }
        self.events.answered(shown, parts.status.as_u16());
        let mut response = Response::new(ScrubbedBody::new(body, &self.secrets).boxed_unsync());
        *response.status_mut() = parts.status;
        *response.headers_mut() = headers;
        response
    }

    /// Answers a request that no rule grants.
    fn denied(&self, shown: &str, refusal: NetworkRefusal) -> Response<AnswerBody> {
        let mut text = format!("cofferdam: denied: {shown}; {}\n", refusal.reason);
        if let Some(grant) = &refusal.grant {
            text.push_str(&format!("hint: the operator can grant it: {grant}\n"));
        }
        self.events.denied(shown, refusal);
        gateway_answer(StatusCode::FORBIDDEN, text)
    }

    /// Answers a request that cannot be sent, or whose answer cannot be passed on.
    fn failed(&self, shown: &str, reason: &str) -> Response<AnswerBody> {
        self.events.answered(shown, StatusCode::BAD_GATEWAY.as_u16());
        gateway_answer(StatusCode::BAD_GATEWAY, format!("cofferdam: {shown}: {reason}\n"))
    }
}

impl Sender {
    fn version(&self) -> Version {
        match self {
            Self::Http1(_) => Version::HTTP_11,
            Self::Http2(_) => Version::HTTP_2,
        }
    }

    async fn send(
        &self,
        request: Request<SearchedBody>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        match self {
            Self::Http1(sender) => {
                let mut sender = sender.lock().await;
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                let mut sender = sender.clone();
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

/// Reads the rest of the body of a refused request: a client that is still sending when the
/// connection ends may never see the answer.
async fn drain(body: Incoming) {
    let mut body = Limited::new(body, MAX_DRAINED_BYTES);
    let ends = async { while let Some(Ok(_)) = body.frame().await {} };
    // A longer or slower body is cut off when the connection ends.
    drop(tokio::time::timeout(DRAIN_TIMEOUT, ends).await);
}

/// Makes a plain-text answer of the gateway.
fn gateway_answer(status: StatusCode, body: String) -> Response<AnswerBody> {
    let mut response = Response::new(text(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
