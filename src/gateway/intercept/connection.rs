//! One intercepted connection: its two ends, and the requests that pass between them.
//!
//! A connection of the cell has one connection to the server, in the version of HTTP that both speak, so that there
//! is no pool in which requests of different origin could meet.

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
use super::grants::Refusal;
use super::request::{CellSeed, Destination, end_to_end, misplaced};
use super::traces::Traces;

/// Bytes of the heads of a request and of an answer.
const HEAD_BYTES: usize = 64 * 1024;
/// Headers of a request or an answer.
const HEADERS: usize = 128;
/// Bytes of the body of a refused request that are read before its answer, and the time for it.
const DRAINED: usize = 16 * 1024 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// Time for a request's head to be whole.
const HEAD_TIME: Duration = Duration::from_secs(60);
/// Requests that one connection of HTTP/2 may have open.
const STREAMS: u32 = 64;
/// Bytes that one stream of HTTP/2 may have on its way, and that a connection may.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Both directions of a connection.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> ByteStream for S {}

/// The way to the server.
enum Sender {
    /// One request after the other.
    Http1(Mutex<http1::SendRequest<SearchedBody>>),
    Http2(http2::SendRequest<SearchedBody>),
}

/// The connection to the server: the way to send, and the task that moves its bytes.
pub(super) struct Upstream {
    /// The reason for which no request is sent, where there is one.
    sender: Result<Sender, String>,
    /// Ends with the connection; aborted when dropped.
    task: JoinSet<()>,
}

impl Upstream {
    /// Begins HTTP in `version` on a connection to the server.
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
            builder.max_header_list_size(u32::try_from(HEAD_BYTES).unwrap_or(u32::MAX));
            let (sender, connection) =
                builder.handshake(io).await.map_err(InterceptError::Server)?;
            task.spawn(over(connection));
            Sender::Http2(sender)
        } else {
            let mut builder = http1::Builder::new();
            builder.max_buf_size(HEAD_BYTES).max_headers(HEADERS);
            let (sender, connection) =
                builder.handshake(io).await.map_err(InterceptError::Server)?;
            task.spawn(over(connection));
            Sender::Http1(Mutex::new(sender))
        };
        Ok(Self { sender: Ok(sender), task })
    }

    /// Stands for a server that no request may be sent to.
    pub(super) fn broken(why: String) -> Self {
        Self { sender: Err(why), task: JoinSet::new() }
    }
}

/// Waits until a connection to the server is over. Its errors come to the requests that meet them.
async fn over(connection: impl Future<Output = Result<(), hyper::Error>>) {
    drop(connection.await);
}

/// One connection of the cell, and all that its requests need.
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
        builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS);
        builder.initial_stream_window_size(STREAM_WINDOW);
        builder.initial_connection_window_size(CONNECTION_WINDOW);
        builder.max_send_buf_size(128 * 1024);
        builder.max_header_list_size(u32::try_from(HEAD_BYTES).unwrap_or(u32::MAX));
        let connection = pin!(builder.serve_connection(io, service));
        until_either_ends(connection, |it| it.graceful_shutdown(), &mut task).await
    } else {
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME);
        builder.max_buf_size(HEAD_BYTES).max_headers(HEADERS).half_close(true);
        let connection = pin!(builder.serve_connection(io, service));
        until_either_ends(connection, |it| it.graceful_shutdown(), &mut task).await
    };
    ended.map_err(InterceptError::Cell)
}

/// Serves the cell's side; once the server's is over, lets it finish what it is at and closes it, so that the
/// client does not send on a connection that leads nowhere.
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
    /// Judges a request, and returns the server's answer to it or the gateway's own.
    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<AnswerBody>, hyper::Error> {
        let (parts, body) = request.into_parts();
        let told = self.destination.told(&parts);
        // Such a client sends no body before it is told to go on.
        let waits = parts.headers.contains_key(header::EXPECT);
        let sender = match &self.sender {
            Ok(sender) => sender,
            Err(why) => return Ok(self.failed(&told, why)),
        };
        let outgoing = match self.destination.judge(parts, &self.cell, sender.version()) {
            Ok(outgoing) => outgoing,
            Err(refusal) => {
                if !waits {
                    drain(body).await;
                }
                return Ok(self.denied(&told, refusal));
            }
        };
        let found = Arc::new(AtomicBool::new(false));
        let body = SearchedBody::new(body, self.cell.clone(), Arc::clone(&found));
        let method = outgoing.method.clone();
        let request = outgoing.with(body);
        match sender.send(request).await {
            Ok(answer) => Ok(self.passed(&told, &method, answer)),
            Err(_) if found.load(Ordering::Relaxed) => {
                Ok(self.denied(&told, misplaced("the body")))
            }
            // Before anything of the answer: the client sees a connection that ended, and may try again.
            Err(error) => Err(error),
        }
    }

    /// Makes the answer for the cell out of the server's.
    fn passed(
        &self,
        told: &str,
        method: &Method,
        answer: Response<Incoming>,
    ) -> Response<AnswerBody> {
        let (parts, body) = answer.into_parts();
        let is_encoded =
            parts.headers.get_all(header::CONTENT_ENCODING).iter().any(|it| it != "identity");
        if is_encoded && self.destination.has_secrets() {
            return self.failed(
                told,
                "the server compressed an answer that has to be searched for secrets",
            );
        }
        let mut headers = scrubbed_fields(end_to_end(parts.headers), &self.secrets);
        // It would lead clients to other ports and hosts.
        headers.remove(header::ALT_SVC);
        if *method != Method::HEAD && parts.status != StatusCode::NOT_MODIFIED {
            // Written anew from the body.
            headers.remove(header::CONTENT_LENGTH);
        }
        self.events.answered(told, parts.status.as_u16());
        let mut response = Response::new(ScrubbedBody::new(body, &self.secrets).boxed_unsync());
        *response.status_mut() = parts.status;
        *response.headers_mut() = headers;
        response
    }

    /// Answers a request that no rule grants.
    fn denied(&self, told: &str, refusal: Refusal) -> Response<AnswerBody> {
        let mut said = format!("cofferdam: denied: {told}; {}\n", refusal.why);
        if let Some(grant) = &refusal.grant {
            said.push_str(&format!("hint: the operator can grant it: {grant}\n"));
        }
        self.events.denied(told, &refusal.why, refusal.grant.as_deref());
        own(StatusCode::FORBIDDEN, said)
    }

    /// Answers a request whose server cannot be asked, or whose answer cannot be passed on.
    fn failed(&self, told: &str, why: &str) -> Response<AnswerBody> {
        self.events.answered(told, StatusCode::BAD_GATEWAY.as_u16());
        own(StatusCode::BAD_GATEWAY, format!("cofferdam: {told}: {why}\n"))
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

/// Reads the rest of a short body whose request was refused: a client that is still sending when the connection ends
/// may never see the answer.
async fn drain(body: Incoming) {
    let mut body = Limited::new(body, DRAINED);
    let ends = async { while let Some(Ok(_)) = body.frame().await {} };
    // A longer or slower one is cut off by the end of the connection.
    drop(tokio::time::timeout(DRAIN_TIME, ends).await);
}

/// Makes an answer of the gateway's own.
fn own(status: StatusCode, said: String) -> Response<AnswerBody> {
    let mut response = Response::new(text(said));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
