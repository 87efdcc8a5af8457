//! Checks each request before it is served, in this order.
//!
//! 1. The request has one reading, and names this server and an origin that it serves.
//! 2. The server is not about to end.
//! 3. A token, or the absence of one, names the client.
//! 4. The body is read whole, and the client has a place left.

use std::any::Any;
use std::collections::BTreeSet;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use rmcp::ServerHandler;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{Instrument, Span};

use crate::access::browser::RequestOrigin;
use crate::access::certificates::PresentedCertificate;
use crate::access::{AccessRules, Client, ClientRights, Credentials, Peer, rights};
use crate::body::{BodyForm, BodyMemory, HeldBody, busy};
use crate::connections::{ConnectionHandle, Serving};
use crate::door::{Door, MakeHandler, is_stateless};
use crate::doors::{Doors, RemovedDoor};
use crate::form::form_type;
use crate::health::{self, HealthWord};
use crate::limits::{ListenerLimits, OPERATOR_CONNECTIONS};
use crate::respond::{Charged, Refusal, harden};
use config::policy::Principal;
use mcp::charge::Charge;
use mcp::lines::Ends;
use model::call::Correlation;
use service::fair::{self, FairShare};

/// Path that needs no token: without one it says whether calls are taken, and nothing else.
const HEALTH_PATH: &str = "/health";
/// Path of commands, which takes a form with files too.
const RUN_PATH: &str = "/run";
/// Path of MCP.
const MCP_PATH: &str = "/mcp";
/// Paths whose answer to GET is a stream, which lasts until the client closes it.
const STREAM_PATHS: [&str; 2] = [MCP_PATH, "/events"];
/// Header with the method of a message of MCP, and the method whose answer is a stream too.
const METHOD_HEADER: &str = "mcp-method";
const LISTEN_METHOD: &str = "subscriptions/listen";
/// Headers by which a client names its request for logs; the first one present is copied to the answer.
const CORRELATION_HEADERS: [&str; 2] = ["x-correlation-id", "x-request-id"];
/// Size in bytes up to which an answer is not charged: the number of requests bounds these.
const MAX_UNCHARGED_BYTES: u64 = 64 << 10;

/// Drops what the server behind the doors remembers of a client.
type ForgetClient = Arc<dyn Fn(&Principal) + Send + Sync>;

/// The checks, and the doors behind them.
pub struct Guard<H> {
    pub(crate) access: AccessRules,
    bodies: BodyMemory,
    /// Connections that serve requests of agents, and those that serve operators, which take nothing from agents.
    serving: Arc<FairShare>,
    serving_operators: Arc<FairShare>,
    /// Clients for which memory and connections are kept free.
    registered: Mutex<BTreeSet<(Principal, ClientRights)>>,
    doors: Arc<Doors<H>>,
    /// Drops what is remembered of a client.
    forget: ForgetClient,
    pub(crate) ends: Ends,
    /// Tripped when the server is about to end: requests are still served, and `/health` asks for no more.
    leaving: CancellationToken,
    /// Requests that wait for their answer.
    pub(crate) busy: TaskTracker,
    /// State of the server behind the doors.
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
        leaving: CancellationToken,
        end: &CancellationToken,
    ) -> Self {
        let bodies = BodyMemory::new(limits.body, limits.bodies, limits.body_time);
        let for_operators = OPERATOR_CONNECTIONS.min(limits.connections / 2);
        let serving = FairShare::new(limits.connections - for_operators);
        let made_by = Arc::clone(handlers);
        let bounds = *limits;
        let end = end.clone();
        let guard = Self {
            doors: Arc::new(Doors::new(move |client| Door::new(&made_by, client, &bounds, &end))),
            forget: {
                let handlers = Arc::clone(handlers);
                Arc::new(move |client| handlers.forget(client))
            },
            busy: TaskTracker::new(),
            health: {
                let handlers = Arc::clone(handlers);
                Box::new(move || handlers.health())
            },
            bodies,
            serving,
            serving_operators: FairShare::new(for_operators),
            registered: Mutex::default(),
            access,
            ends,
            leaving,
        };
        guard.follow();
        guard
    }

    /// Adapts the doors and the shares to the credentials in force: for a client that has none any more there is no
    /// door, and no place is kept free.
    pub(crate) fn follow(&self) {
        let clients = self.access.clients();
        self.register(&clients);
        self.close(self.doors.list(&clients));
    }

    /// Closes doors, and forgets each client that has no other one then.
    fn close(&self, removed: Vec<RemovedDoor<H>>) {
        for (client, door) in removed {
            let doors = Arc::clone(&self.doors);
            let forget = Arc::clone(&self.forget);
            tokio::spawn(async move {
                door.close().await;
                doors.unless_open(&client, |client| forget(client));
            });
        }
    }

    /// Registers these clients, and no others, with the memory for bodies and with the connections.
    fn register(&self, clients: &[Client]) {
        let now: BTreeSet<_> =
            clients.iter().map(|client| (client.principal.clone(), client.rights)).collect();
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        for (client, rights) in now.difference(&registered) {
            self.bodies.register(client, *rights);
            if *rights == ClientRights::Agent {
                self.serving.register(client);
            }
        }
        for (client, rights) in registered.difference(&now) {
            self.bodies.unregister(client, *rights);
            if *rights == ClientRights::Agent {
                self.serving.unregister(client);
            }
        }
        *registered = now;
    }

    /// Closes the doors of clients whose access tokens have expired.
    pub(crate) fn close_expired(&self) {
        self.close(self.doors.take_expired(SystemTime::now()));
    }

    /// Returns the client of a request and its door.
    fn authenticate(
        &self,
        credentials: &Credentials,
        parts: &Parts,
    ) -> Result<(Client, Arc<Door<H>>), Refusal> {
        if self.ends.stop.is_cancelled() || self.ends.lost.is_cancelled() {
            return Err(busy("the server is ending"));
        }
        // Every request comes by a connection of ours, which has set its peer.
        let peer = parts.extensions.get::<Peer>().copied();
        let unknown = || Refusal::new(StatusCode::FORBIDDEN, "forbidden", "an unknown client");
        let peer = peer.ok_or_else(unknown)?;
        let certificate = parts.extensions.get::<Arc<PresentedCertificate>>();
        let certificate = certificate.map(AsRef::as_ref);
        let client = self.access.client(credentials, peer, certificate, &parts.headers)?;
        let door = self.door(&client)?;
        Ok((client, door))
    }

    /// Returns the door of a client. Another one that makes room for it is closed.
    fn door(&self, client: &Client) -> Result<Arc<Door<H>>, Refusal> {
        let entry = self.doors.get(client)?;
        self.close(entry.removed.into_iter().collect());
        Ok(entry.door)
    }

    /// Reports to a load balancer without a token whether calls are taken.
    fn liveness(&self) -> Response {
        let is_ending = self.is_leaving() || self.ends.lost.is_cancelled();
        health::word(if is_ending { HealthWord::Unhealthy } else { (self.health)() })
    }

    /// Returns true once a signal to end has come.
    fn is_leaving(&self) -> bool {
        self.leaving.is_cancelled() || self.ends.stop.is_cancelled()
    }

    fn serving(&self, client: &Client) -> Result<fair::Share, Refusal> {
        let connections = match client.rights {
            ClientRights::Agent => &self.serving,
            ClientRights::Operator => &self.serving_operators,
        };
        let full = || busy("this client has too many connections that are being served");
        connections.take(&client.principal, 1).ok_or_else(full)
    }

    async fn served(&self, request: Request, next: Next) -> Result<Response, Refusal> {
        let (mut parts, body) = request.into_parts();
        let mut credentials = self.access.credentials();
        let (mut client, mut door) = self.authenticate(&credentials, &parts)?;
        rights::check(client.rights, &parts.method, parts.uri.path())?;
        let is_agent = client.rights == ClientRights::Agent;
        if door.has_secret() && is_agent && is_plain_call(parts.uri.path()) {
            let message = "this project's remote token is shown in `_meta` of requests to /mcp";
            return Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", message));
        }
        // Read before a place is taken: a slow body would keep the place from others.
        let form = if is_form(&parts) { BodyForm::Form } else { BodyForm::Json };
        let held = self.bodies.read(&client, &parts.headers, form, body).await?;
        // A slow body may have outlasted the credentials by which it was admitted.
        let current = self.access.credentials();
        if !Arc::ptr_eq(&credentials, &current) || has_passed(client.until) {
            let (again, its_door) = self.authenticate(&current, &parts)?;
            if again.principal != client.principal || again.rights != client.rights {
                return Err(busy("the credentials were replaced meanwhile"));
            }
            credentials = current;
            client = again;
            door = its_door;
        }
        // The client decides when a stream ends, so a server that ends does not wait for it.
        let is_stream = is_stream(&parts);
        let place = if is_stream { door.take_stream()? } else { door.take_place()? };
        let serving = self.serving(&client)?;
        let counted = parts.extensions.get::<ConnectionHandle>().map(ConnectionHandle::serves);
        let (named, id) = correlation(&parts.headers).unzip();
        let span = id.as_ref().map(|id| {
            let client = client.principal.name();
            let id = id.as_str();
            tracing::error_span!("request", client, correlation_id = id)
        });
        id.map(|id| parts.extensions.insert(id));
        let used = Arc::clone(&door);
        let until = client.until;
        let certificate = parts.extensions.get::<Arc<PresentedCertificate>>().cloned();
        parts.extensions.insert(client);
        parts.extensions.insert(door);
        if parts.uri.path() == RUN_PATH {
            parts.extensions.insert(held.room.clone());
        }
        // A task runs on after its answer, and a session may keep the head of a request for longer than its call.
        if parts.uri.path() == MCP_PATH && is_stateless(&parts.headers) {
            parts.extensions.insert(Charge::new(held.room.clone()));
        }
        let request = Request::from_parts(parts, Body::from(held.bytes.clone()));
        let token = (!is_stream).then(|| self.busy.token());
        let response = next.run(request).instrument(span.unwrap_or_else(Span::none)).await;
        let response = charged(response, &held);
        // Its client resumes a stream with the credentials that it has then.
        let stop =
            is_stream.then(|| stream_end(self.ends.stop.clone(), credentials, until, certificate));
        let permit = RequestPermit {
            _place: place,
            held,
            _serving: (serving, counted),
            _busy: token,
            _door: used,
        };
        let mut response = response.map(|body| Body::new(AnswerBody::new(body, permit, stop)));
        response.headers_mut().extend(named);
        Ok(response)
    }
}

/// Returns true for a request whose body is read as a form.
fn is_form(parts: &Parts) -> bool {
    parts.method == Method::POST
        && parts.uri.path() == RUN_PATH
        && form_type(&parts.headers).is_some()
}

/// Returns true for a path of plain requests that call tools.
fn is_plain_call(path: &str) -> bool {
    path == RUN_PATH || path.split('/').nth(1) == Some("tools")
}

/// Returns true for a request whose answer is a stream.
fn is_stream(parts: &Parts) -> bool {
    let path = parts.uri.path();
    // Older revisions have no such header: all of their messages are requests.
    let listens = || {
        is_stateless(&parts.headers)
            && parts.headers.get(METHOD_HEADER).is_some_and(|method| method == LISTEN_METHOD)
    };
    match parts.method {
        Method::GET => STREAM_PATHS.contains(&path),
        Method::POST => path == MCP_PATH && listens(),
        _ => false,
    }
}

/// Returns the name that a client gave its request, with its header. A name is one word of visible characters.
fn correlation(headers: &HeaderMap) -> Option<((HeaderName, HeaderValue), Correlation)> {
    let (name, value) =
        CORRELATION_HEADERS.iter().find_map(|name| Some((*name, headers.get(*name)?)))?;
    let is_word = value.as_bytes().iter().all(u8::is_ascii_graphic);
    let id = Correlation::new(value.to_str().ok().filter(|_| is_word)?).ok()?;
    Some(((HeaderName::from_static(name), value.clone()), id))
}

/// Charges an answer to the memory of its request until it is sent. Without memory for it the answer is dropped: its
/// client leaves other answers unread.
fn charged(response: Response, held: &HeldBody) -> Response {
    let bytes = response.body().size_hint().exact().filter(|bytes| *bytes > MAX_UNCHARGED_BYTES);
    let is_charged = response.extensions().get::<Charged>().is_some();
    let Some(bytes) = bytes.filter(|_| !is_charged) else { return response };
    if usize::try_from(bytes).is_ok_and(|bytes| held.room.grow(bytes)) {
        return response;
    }
    let message = "the request was served, and there is no memory for its answer: \
                   this client leaves too many unread";
    busy(message).into_response()
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
        Err(refusal) => {
            let mut response = refusal.into_response();
            harden(response.headers_mut());
            return response;
        }
    };
    let metadata = metadata(&guard.access, &request);
    let mut response = match (metadata, request.method(), request.uri().path(), &from) {
        (Some(metadata), ..) => metadata,
        (None, &Method::OPTIONS, _, RequestOrigin::Listed(_)) => preflight(),
        (None, &Method::GET, HEALTH_PATH, _) if guard.is_leaving() => guard.liveness(),
        // A known client sees every check, others only the status: a load balancer has no token.
        (None, &Method::GET, HEALTH_PATH, _) => {
            guard.served(request, next).await.unwrap_or_else(|_| guard.liveness())
        }
        (None, ..) => guard.served(request, next).await.unwrap_or_else(IntoResponse::into_response),
    };
    harden(response.headers_mut());
    if guard.is_leaving() {
        // The client's next request comes by a new connection, which a load balancer gives to another server.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if let RequestOrigin::Listed(origin) = from {
        allow_origin(&origin, response.headers_mut());
    }
    response
}

/// Returns the metadata of this server, if the request is for it: a client without a token learns from it where to get
/// one.
fn metadata(access: &AccessRules, request: &Request) -> Option<Response> {
    let resource = access.resource.as_ref().filter(|_| request.method() == Method::GET)?;
    resource.answer(request.uri().path())
}

/// Refuses requests that two parsers could split in different places: more than one way to end a body. Both a length
/// and a coding do not get here: hyper drops that length, and closes the connection after the request (RFC 9112,
/// section 6.1).
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

/// Answers a browser's preflight request for a listed origin.
fn preflight() -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let fixed = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE"),
        (
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            "authorization, content-type, accept, last-event-id, mcp-session-id, mcp-protocol-version, mcp-method, mcp-name, x-correlation-id, x-request-id",
        ),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ];
    for (name, value) in fixed {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn allow_origin(origin: &str, headers: &mut HeaderMap) {
    if let Ok(origin) = HeaderValue::from_str(origin) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    let exposed = HeaderValue::from_static("mcp-session-id, www-authenticate");
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    let cross = HeaderValue::from_static("cross-origin");
    headers.insert("cross-origin-resource-policy", cross);
}

/// Resources that a request holds until its answer is sent.
struct RequestPermit {
    _place: OwnedSemaphorePermit,
    held: HeldBody,
    /// Marks the request as served in the count of the server and in that of its connection.
    _serving: (fair::Share, Option<Serving>),
    _busy: Option<TaskTrackerToken>,
    _door: Arc<dyn Any + Send + Sync>,
}

/// Resolves when a stream is to end.
type StreamEnd = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Returns the end of a stream: that of the server, and of the credentials with which it was opened.
fn stream_end(
    ending: CancellationToken,
    credentials: Arc<Credentials>,
    until: Option<SystemTime>,
    certificate: Option<Arc<PresentedCertificate>>,
) -> StreamEnd {
    let expired = async move {
        match until {
            Some(until) => tokio::time::sleep(time_until(until)).await,
            None => std::future::pending().await,
        }
    };
    Box::pin(async move {
        let lapsed = async {
            match &certificate {
                Some(certificate) => credentials.lapse(certificate).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = ending.cancelled() => {}
            () = credentials.replaced().cancelled() => {}
            () = expired => {}
            () = lapsed => {}
        }
    })
}

fn time_until(end: SystemTime) -> Duration {
    end.duration_since(SystemTime::now()).unwrap_or_default()
}

/// Returns true if an access token with this end has expired.
fn has_passed(until: Option<SystemTime>) -> bool {
    until.is_some_and(|until| time_until(until).is_zero())
}

/// The body of an answer, which holds the request's resources until it is sent. A stream ends when the server does.
struct AnswerBody {
    body: Body,
    permit: Option<RequestPermit>,
    stop: Option<StreamEnd>,
    /// True if the whole body is charged, or small.
    is_measured: bool,
    /// Bytes charged for one frame: the size of the largest so far.
    charged: usize,
}

impl AnswerBody {
    /// `stop` ends a stream.
    fn new(body: Body, permit: RequestPermit, stop: Option<StreamEnd>) -> Self {
        let is_measured = body.size_hint().exact().is_some();
        Self { body, permit: Some(permit), stop, is_measured, charged: 0 }
    }

    /// Charges a frame of a body of unknown size. The frame before it has been sent, except what hyper buffers.
    fn charge(&mut self, frame: &Frame<Bytes>) -> bool {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let more = bytes.saturating_sub(self.charged);
        let is_small = u64::try_from(bytes).is_ok_and(|bytes| bytes <= MAX_UNCHARGED_BYTES);
        if self.is_measured || is_small || more == 0 {
            return true;
        }
        let has_room = self.permit.as_ref().is_some_and(|permit| permit.held.room.grow(more));
        if has_room {
            self.charged = bytes;
        }
        has_room
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let mut polled = Pin::new(&mut this.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && !this.charge(frame)
        {
            this.body = Body::empty();
            let message = "there is no memory for an answer: its client leaves too many unread";
            polled = Poll::Ready(Some(Err(axum::Error::new(io::Error::other(message)))));
        }
        let stopped = polled.is_pending()
            && this.stop.as_mut().is_some_and(|it| it.as_mut().poll(cx).is_ready());
        if stopped || matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            this.permit = None;
        }
        if stopped { Poll::Ready(None) } else { polled }
    }

    fn is_end_stream(&self) -> bool {
        // hyper drops a body that reports its end before the bytes are sent, and with it the permit.
        self.permit.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
