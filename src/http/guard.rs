//! The checks that each request passes before it is served, in their order.
//!
//! 1. Forms that a proxy could read in two ways, and names and origins that are not this server's.
//! 2. A server that ends takes no more.
//! 3. The client, by its token.
//! 4. The body, whole, and the client's share of places.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use rmcp::ServerHandler;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{Instrument, Span};

use crate::access::browser::From;
use crate::access::{AccessRules, Client, ClientRights, Peer, rights};
use crate::body::{Bodies, HeldBody, busy};
use crate::connections::{OwnConnection, Serving};
use crate::door::{Door, MakeHandler};
use crate::health::{self, HealthWord};
use crate::limits::ListenerLimits;
use crate::respond::{Refusal, harden};
use mcp::lines::Ends;
use policy::Principal;
use service::fair::{self, FairShare};

/// Path that anybody who reaches the server may ask: it says whether calls are taken, and nothing else.
const HEALTH: &str = "/health";
/// Path of commands, which takes files as a form too.
const RUN: &str = "/run";
/// Path of MCP.
const MCP: &str = "/mcp";
/// Paths whose answer to GET is a stream, which lasts until the client closes it.
const STREAMS: [&str; 2] = [MCP, "/events"];
/// Header that tells the method of a message of MCP, and the method whose answer is a stream as well.
const METHOD: &str = "mcp-method";
const LISTEN: &str = "subscriptions/listen";
/// Headers by which a client names its request, for logs: the first that it has is in the answer.
const CORRELATION: [&str; 2] = ["x-correlation-id", "x-request-id"];
/// Characters of such a name.
const CORRELATION_BYTES: usize = 128;

/// The checks, and the doors behind them.
pub struct Guard<H> {
    pub(crate) access: AccessRules,
    bodies: Bodies,
    /// Connections that requests are served on.
    serving: Arc<FairShare>,
    doors: BTreeMap<Principal, Arc<Door<H>>>,
    pub(crate) ends: Ends,
    /// Requests that wait for their answer.
    pub(crate) busy: TaskTracker,
    /// State of what is behind the doors.
    health: Box<dyn Fn() -> HealthWord + Send + Sync>,
}

impl<H> std::fmt::Debug for Guard<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("access", &self.access).finish_non_exhaustive()
    }
}

impl<H: ServerHandler + Clone + Send + Sync + 'static> Guard<H> {
    /// Makes a door for each client that `access` knows.
    pub fn new<M: MakeHandler<Handler = H>>(
        handlers: &Arc<M>,
        access: AccessRules,
        limits: &ListenerLimits,
        ends: Ends,
        end: &CancellationToken,
    ) -> Self {
        let bodies = Bodies::new(limits.body, limits.bodies, limits.body_time);
        let serving = FairShare::new(limits.connections);
        let door = |client: Client| {
            bodies.know(&client.principal);
            serving.know(&client.principal);
            let door = Arc::new(Door::new(handlers, &client, limits, end));
            (client.principal, door)
        };
        Self {
            doors: access.clients().into_iter().map(door).collect(),
            busy: TaskTracker::new(),
            health: {
                let handlers = Arc::clone(handlers);
                Box::new(move || handlers.health())
            },
            bodies,
            serving,
            access,
            ends,
        }
    }

    /// Returns the client of a request and its door, with the origin whose page may read the answer.
    fn admit(&self, parts: &Parts) -> Result<(Client, Arc<Door<H>>), Refusal> {
        if self.ends.stop.is_cancelled() || self.ends.lost.is_cancelled() {
            return Err(busy("the server is ending"));
        }
        // A request that came by no connection of ours has no peer; there is none such.
        let peer = parts.extensions.get::<Peer>().copied();
        let unknown = || Refusal::new(StatusCode::FORBIDDEN, "forbidden", "an unknown client");
        let client = self.access.client(peer.ok_or_else(unknown)?, &parts.headers)?;
        let door = self.doors.get(&client.principal).cloned().ok_or_else(unknown)?;
        Ok((client, door))
    }

    /// Says whether calls are taken, to a load balancer that has no token.
    fn liveness(&self) -> Response {
        let is_ending = self.ends.stop.is_cancelled() || self.ends.lost.is_cancelled();
        health::word(if is_ending { HealthWord::Unhealthy } else { (self.health)() })
    }

    async fn served(&self, request: Request, next: Next) -> Result<Response, Refusal> {
        let (mut parts, body) = request.into_parts();
        let (client, door) = self.admit(&parts)?;
        rights::check(client.rights, &parts.method, parts.uri.path())?;
        let is_agent = client.rights == ClientRights::Agent;
        if door.has_secret() && is_agent && is_plain_call(parts.uri.path()) {
            let message = "this project's remote token is shown in `_meta` of requests to /mcp";
            return Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", message));
        }
        // Before it has a place: a body that comes slowly would keep it from others.
        let held = self.bodies.read(&client.principal, &parts.headers, body).await?;
        // The end of a stream is the client's to choose, so a server that ends does not wait for it.
        let is_stream = is_stream(&parts);
        let place = if is_stream { door.stream()? } else { door.place()? };
        let full = || busy("this client has too many connections that are being served");
        let serving = self.serving.take(&client.principal, 1).ok_or_else(full)?;
        let own = parts.extensions.get::<OwnConnection>().map(OwnConnection::serves);
        let correlation = correlation(&parts.headers);
        let span = correlation.as_ref().and_then(|(_, id)| id.to_str().ok()).map(|id| {
            tracing::error_span!("request", client = client.principal.name(), correlation_id = id)
        });
        parts.extensions.insert(client);
        parts.extensions.insert(door);
        let HeldBody { bytes, .. } = &held;
        let request = Request::from_parts(parts, Body::from(bytes.clone()));
        let token = (!is_stream).then(|| self.busy.token());
        let response = next.run(request).instrument(span.unwrap_or_else(Span::none)).await;
        let stop = is_stream.then(|| self.ends.stop.clone());
        let share = Share { _place: place, _held: held, _serving: (serving, own), _busy: token };
        let mut response = response.map(|body| Body::new(Lasting::new(body, share, stop)));
        response.headers_mut().extend(correlation);
        Ok(response)
    }
}

/// Returns true for a path of plain requests that call tools.
fn is_plain_call(path: &str) -> bool {
    path == RUN || path.split('/').nth(1) == Some("tools")
}

/// Returns true for a request whose answer is a stream.
fn is_stream(parts: &Parts) -> bool {
    let path = parts.uri.path();
    let listens = || parts.headers.get(METHOD).is_some_and(|method| method == LISTEN);
    match parts.method {
        Method::GET => STREAMS.contains(&path),
        Method::POST => path == MCP && listens(),
        _ => false,
    }
}

/// Returns the name that a client gave its request, with its header: one word of visible characters.
fn correlation(headers: &HeaderMap) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = CORRELATION.iter().find_map(|name| Some((*name, headers.get(*name)?)))?;
    let is_word = (1..=CORRELATION_BYTES).contains(&value.len())
        && value.as_bytes().iter().all(u8::is_ascii_graphic);
    is_word.then(|| (HeaderName::from_static(name), value.clone()))
}

/// Serves a request that passes the checks.
pub(crate) async fn guard<H: ServerHandler + Clone + Send + Sync + 'static>(
    State(guard): State<Arc<Guard<H>>>,
    request: Request,
    next: Next,
) -> Response {
    let from = unambiguous(request.headers())
        .and_then(|()| guard.access.names.check(request.uri(), request.headers()));
    let from = match from {
        Ok(from) => from,
        Err(refusal) => return hardened(refusal.into_response()),
    };
    let response = match (request.method(), request.uri().path(), &from) {
        (&Method::OPTIONS, _, From::Listed(_)) => preflight(),
        // Every check to a client that is known, and the word alone to others: a probe has no token.
        (&Method::GET, HEALTH, _) => {
            guard.served(request, next).await.unwrap_or_else(|_| guard.liveness())
        }
        _ => guard.served(request, next).await.unwrap_or_else(IntoResponse::into_response),
    };
    let mut response = hardened(response);
    if let From::Listed(origin) = from {
        readable_by(&origin, response.headers_mut());
    }
    response
}

/// Refuses what two readers could take for two different requests: a length beside another way to end a body.
fn unambiguous(headers: &HeaderMap) -> Result<(), Refusal> {
    let count = |name| headers.get_all(name).iter().count();
    let lengths = count(header::CONTENT_LENGTH);
    let codings = count(header::TRANSFER_ENCODING);
    match (lengths, codings) {
        (0, 0) | (1, 0) => Ok(()),
        (0, 1) if headers.get(header::TRANSFER_ENCODING).is_some_and(|it| it == "chunked") => {
            Ok(())
        }
        _ => {
            let message = "the length of the body is not clear";
            Err(Refusal::new(StatusCode::BAD_REQUEST, "bad_request", message))
        }
    }
}

fn hardened(mut response: Response) -> Response {
    harden(response.headers_mut());
    response
}

/// Answers the question of a browser before a request of a listed origin.
fn preflight() -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let fixed = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE"),
        (
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            "authorization, content-type, accept, last-event-id, mcp-session-id, mcp-protocol-version, mcp-method, mcp-name",
        ),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ];
    for (name, value) in fixed {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn readable_by(origin: &str, headers: &mut HeaderMap) {
    if let Ok(origin) = HeaderValue::from_str(origin) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    let exposed = HeaderValue::from_static("mcp-session-id");
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    let cross = HeaderValue::from_static("cross-origin");
    headers.insert("cross-origin-resource-policy", cross);
}

/// Things that a request has until its answer is sent.
struct Share {
    _place: OwnedSemaphorePermit,
    _held: HeldBody,
    /// Its part of all connections, and its own.
    _serving: (fair::Share, Option<Serving>),
    _busy: Option<TaskTrackerToken>,
}

/// The body of an answer, with what the request has until it is sent. A stream ends when the server does.
struct Lasting {
    body: Body,
    share: Option<Share>,
    stop: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Lasting {
    fn new(body: Body, share: Share, stop: Option<CancellationToken>) -> Self {
        let stop = stop.map(|stop| Box::pin(stop.cancelled_owned()));
        Self { body, share: Some(share), stop }
    }
}

impl HttpBody for Lasting {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        let stopped = polled.is_pending()
            && this.stop.as_mut().is_some_and(|it| it.as_mut().poll(cx).is_ready());
        if stopped || matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            this.share = None;
        }
        if stopped { Poll::Ready(None) } else { polled }
    }

    fn is_end_stream(&self) -> bool {
        // hyper drops a body that says so before its bytes are sent, and with it what the request holds.
        self.share.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
