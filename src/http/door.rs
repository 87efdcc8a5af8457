//! Serves the requests of one client: MCP by rmcp, with the sessions of this client.
//!
//! Each client has a table of sessions. The id of another client's session is not in it, so it is answered as an
//! unknown one.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use axum::response::Response;
use http_body_util::Full;
use rmcp::ServerHandler;
use rmcp::model::ProtocolVersion;
use rmcp::transport::streamable_http_server::session::SessionManager;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::access::{Client, ClientRights, Standing};
use crate::body::busy;
use crate::health::HealthWord;
use crate::limits::ListenerLimits;
use crate::respond::{Refusal, json_response};
use crate::session_use::{ActivityProbe, ServedBody, SessionUses};
use config::policy::Principal;
use mcp::gate::RemoteSecret;
use mcp::server::Continuity;

/// Header that names an MCP session.
const SESSION_HEADER: &str = "mcp-session-id";
/// Header that names the revision of MCP.
const REVISION_HEADER: &str = "mcp-protocol-version";

/// Time between looks at the requests of a client that was removed.
const CLOSE_INTERVAL: Duration = Duration::from_millis(100);

/// Makes the handlers that serve clients over MCP.
pub trait MakeHandler: Send + Sync + 'static {
    type Handler: ServerHandler + Clone + Send + Sync + 'static;

    /// Makes the handler of one session of a client, or of its requests without one.
    fn handler(&self, client: &Principal, continuity: Continuity) -> Self::Handler;

    /// Makes the handler of an MCP session of a client, with a probe for the commands that run in it.
    fn session(&self, client: &Principal) -> (Self::Handler, Option<ActivityProbe>) {
        (self.handler(client, Continuity::Session), None)
    }

    /// Makes the handler of a client that calls nothing, so no share of the queue is reserved for it.
    fn watcher(&self, client: &Principal) -> Self::Handler {
        self.handler(client, Continuity::Requests)
    }

    /// Drops what is remembered of a client that was removed and that no request serves any more.
    fn forget(&self, _: &Principal) {}

    /// Returns the state of the server behind the doors.
    fn health(&self) -> HealthWord {
        HealthWord::Healthy
    }

    /// Returns the secret that messages of MCP must carry in addition to the token, if there is one.
    fn secret(&self) -> Option<Arc<RemoteSecret>> {
        None
    }

    /// Returns further routes, next to MCP and the tools. Requests have their [`Client`] as an extension.
    fn more(self: &Arc<Self>, _: &ListenerLimits) -> Router {
        Router::new()
    }
}

/// Makes the handler of a request without a session.
type HandlerFactory<H> = Arc<dyn Fn() -> H + Send + Sync>;

/// MCP as rmcp serves it.
type Service<H> = StreamableHttpService<H, LocalSessionManager>;

/// The door of one client.
pub struct Door<H> {
    /// Serves the revisions of MCP that have sessions.
    sessions: Service<H>,
    table: Arc<LocalSessionManager>,
    /// Serves the revision without sessions: each request stands alone.
    requests: Service<H>,
    /// The same, with a stream for each answer.
    streamed: Service<H>,
    max_sessions: usize,
    /// Held while a session is opened, so that two at once cannot both take the last place.
    opening: Mutex<()>,
    /// Reports what runs in the session that was opened last.
    last_probe: Arc<std::sync::Mutex<Option<ActivityProbe>>>,
    uses: Arc<SessionUses>,
    secret: Option<Arc<RemoteSecret>>,
    /// Makes the handler of a request without a session.
    make_handler: HandlerFactory<H>,
    streams: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl<H> std::fmt::Debug for Door<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("max_sessions", &self.max_sessions).finish_non_exhaustive()
    }
}

impl<H: ServerHandler + Clone + Send + Sync + 'static> Door<H> {
    /// Makes the door of a client. Tripping `end` ends its sessions and its requests.
    pub fn new<M: MakeHandler<Handler = H>>(
        handlers: &Arc<M>,
        client: &Client,
        limits: &ListenerLimits,
        end: &CancellationToken,
    ) -> Self {
        let mut table = LocalSessionManager::default();
        table.session_config.keep_alive = Some(limits.session_idle);
        let table = Arc::new(table);
        // Names, origins and sizes are checked by `guard` before.
        let mut config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_json_response(true)
            .with_cancellation_token(end.clone());
        config.max_request_body_bytes = limits.body;
        let stateless = config.clone().with_legacy_session_mode(false);
        let streamed = stateless.clone().with_json_response(false);
        let make_handler = handler_factory(handlers, client);
        let made_of = Arc::clone(&make_handler);
        let make = move || Ok(made_of());
        let made_by = Arc::clone(handlers);
        let of = client.principal.clone();
        let last_probe: Arc<std::sync::Mutex<Option<ActivityProbe>>> = Arc::default();
        let slot = Arc::clone(&last_probe);
        let of_session = move || {
            let (handler, activity) = made_by.session(&of);
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = activity;
            Ok(handler)
        };
        Self {
            sessions: Service::new(of_session, Arc::clone(&table), config),
            table,
            requests: Service::new(make.clone(), Arc::default(), stateless),
            streamed: Service::new(make, Arc::default(), streamed),
            max_sessions: limits.sessions,
            opening: Mutex::default(),
            last_probe,
            uses: Arc::default(),
            secret: handlers.secret(),
            make_handler,
            streams: Arc::new(Semaphore::new(limits.streams)),
            waiting: Arc::new(Semaphore::new(limits.requests)),
        }
    }

    /// Ends the sessions of a client that was removed, once its requests have been answered.
    pub(crate) async fn close(self: Arc<Self>) {
        // Each request holds the door until its answer is sent.
        while Arc::strong_count(&self) > 1 {
            sleep(CLOSE_INTERVAL).await;
        }
        let open: Vec<_> = self.table.sessions.read().await.keys().cloned().collect();
        for id in open {
            if let Err(error) = self.table.close_session(&id).await {
                tracing::debug!(%error, "a session has ended already");
            }
        }
    }

    /// Returns the handler of a request without a session.
    pub(crate) fn handler(&self) -> H {
        (self.make_handler)()
    }

    /// Takes one of the client's places for requests that wait for their answer.
    pub(crate) fn take_place(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let message = "too many requests of this client wait for their answer";
        Arc::clone(&self.waiting).try_acquire_owned().map_err(|_| busy(message))
    }

    /// Takes one of the client's places for open streams.
    pub(crate) fn take_stream(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let message = "this client has too many open streams";
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| busy(message))
    }

    /// Serves a request of MCP.
    pub(crate) async fn mcp(&self, request: Request<Bytes>) -> Result<Response, Refusal> {
        let request = match self.check_secret(request).await {
            Ok(request) => request,
            Err(answer) => return Ok(json_response(StatusCode::FORBIDDEN, &answer)),
        };
        let mut service = &self.requests;
        let mut opening = None;
        let mut serving = None;
        if is_stateless(request.headers()) {
            if prefers_streams(request.headers()) {
                service = &self.streamed;
            }
        } else {
            if request.method() == Method::POST && !request.headers().contains_key(SESSION_HEADER) {
                opening = Some(self.opening.lock().await);
            }
            self.check_session(&request).await?;
            let named = request.headers().get(SESSION_HEADER).and_then(|id| id.to_str().ok());
            serving = named.map(|id| self.uses.serves(id));
            service = &self.sessions;
        }
        let answer = service.clone().oneshot(request.map(Full::new)).await;
        let answer = answer.unwrap_or_else(|never| match never {});
        if opening.is_some()
            && let Some(id) = answer.headers().get(SESSION_HEADER).and_then(|id| id.to_str().ok())
        {
            let last_probe = self.last_probe.lock().unwrap_or_else(PoisonError::into_inner).take();
            self.uses.opened(id, last_probe);
        }
        drop(opening);
        Ok(answer.map(|body| match serving {
            Some(serving) => Body::new(ServedBody { body: Body::new(body), _serving: serving }),
            None => Body::new(body),
        }))
    }

    /// Checks that a message carries the project's secret, where the project has one.
    ///
    /// # Errors
    /// The answer to a message without it.
    async fn check_secret(&self, request: Request<Bytes>) -> Result<Request<Bytes>, Value> {
        let Some(secret) = self.secret.as_ref().filter(|_| request.method() == Method::POST) else {
            return Ok(request);
        };
        let (parts, body) = request.into_parts();
        // Another parser may accept what this one refuses, so the body is not passed on.
        let Ok(message) = serde_json::from_slice::<Value>(&body) else {
            let error = json!({ "code": -32700, "message": "the body is no JSON" });
            return Err(json!({ "jsonrpc": "2.0", "id": null, "error": error }));
        };
        match secret.refusal(&message).await {
            Some(answer) => Err(answer),
            // Passed on as it was read here: another parser could take the other value of a repeated key.
            None => Ok(Request::from_parts(parts, message.to_string().into())),
        }
    }

    /// Returns true if messages of MCP must carry a secret.
    pub(crate) fn has_secret(&self) -> bool {
        self.secret.is_some()
    }

    /// Checks what rmcp does not: that there is room for a new session, and that a session to end exists.
    async fn check_session(&self, request: &Request<Bytes>) -> Result<(), Refusal> {
        let named = request.headers().get(SESSION_HEADER).map(|id| id.to_str());
        let missing =
            || Refusal::new(StatusCode::NOT_FOUND, "not_found", "there is no such session");
        // rmcp ignores an id that is not text, and would open another session.
        let named = named.transpose().map_err(|_| missing())?;
        match (request.method(), named) {
            (&Method::POST, None) => self.make_room_for_session().await,
            (&Method::DELETE, Some(id)) if !self.has(id).await => Err(missing()),
            _ => Ok(()),
        }
    }

    /// Ends the session that was unused for longest, where there is no room for one more: clients leave without DELETE.
    async fn make_room_for_session(&self) -> Result<(), Refusal> {
        let open: Vec<String> =
            self.table.sessions.read().await.keys().map(|id| id.to_string()).collect();
        self.uses.keep(&open);
        if open.len() < self.max_sessions {
            return Ok(());
        }
        let all = "this client has too many sessions, and each serves a call or a stream: end one with DELETE";
        let Some(unused) = self.uses.unused(&open) else { return Err(busy(all).after(30)) };
        let closed = self.table.close_session(&unused.as_str().into()).await;
        closed.map_err(|_| busy(all).after(30))
    }

    async fn has(&self, id: &str) -> bool {
        self.table.has_session(&id.into()).await.unwrap_or(false)
    }
}

/// Returns a function that makes the handler of a request without a session. A known client has one handler, which
/// keeps its state. Where clients have no names, each request has a new handler.
fn handler_factory<M: MakeHandler>(
    handlers: &Arc<M>,
    client: &Client,
) -> HandlerFactory<M::Handler> {
    let made_by = Arc::clone(handlers);
    let of = client.principal.clone();
    let rights = client.rights;
    let make = move |continuity| match rights {
        ClientRights::Agent => made_by.handler(&of, continuity),
        ClientRights::Operator => made_by.watcher(&of),
    };
    let kept = (client.standing == Standing::Known).then(|| make(Continuity::Requests));
    Arc::new(move || kept.clone().unwrap_or_else(|| make(Continuity::Anonymous)))
}

/// Returns true for the revision without sessions, which a header of each request names.
pub(crate) fn is_stateless(headers: &HeaderMap) -> bool {
    let revision = headers.get(REVISION_HEADER).and_then(|value| value.to_str().ok());
    revision.is_some_and(|revision| revision >= ProtocolVersion::V_2026_07_28.as_str())
}

/// Returns true if a client prefers a stream to JSON: it gives streams more weight, or names them first (RFC 9110,
/// section 12.5.1, leaves the order open).
fn prefers_streams(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let ranges = accepted.flat_map(|value| value.split(','));
    let mut stream = None;
    let mut json = None;
    for (position, range) in ranges.enumerate() {
        let mut parts = range.split(';').map(str::trim);
        let slot = match parts.next() {
            Some(kind) if kind.eq_ignore_ascii_case("text/event-stream") => &mut stream,
            Some(kind) if kind.eq_ignore_ascii_case("application/json") => &mut json,
            _ => continue,
        };
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
        slot.get_or_insert((weight.unwrap_or(1.0), position));
    }
    match (stream, json) {
        (Some((stream, first)), Some((json, second))) => {
            stream > json || (stream == json && first < second)
        }
        (Some(_), None) => true,
        (None, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_client_that_names_streams_first_or_gives_them_more_weight_prefers_them() {
        let prefers = |accept: &'static str| {
            prefers_streams(&HeaderMap::from_iter([(
                header::ACCEPT,
                HeaderValue::from_static(accept),
            )]))
        };
        for accept in [
            "text/event-stream, application/json",
            "Text/Event-Stream,application/json;q=1",
            "application/json;q=0.5, text/event-stream",
            "text/event-stream",
        ] {
            assert!(prefers(accept), "{accept}");
        }
        for accept in [
            "application/json, text/event-stream",
            "text/event-stream;q=0.5, application/json",
            "text/event-stream; q=0, application/json; q=0.1",
            "*/*",
            "application/json",
            "text/event-stream-of-another, application/json, text/event-stream",
            "",
        ] {
            assert!(!prefers(accept), "{accept}");
        }
        assert!(!prefers_streams(&HeaderMap::new()));
    }
}
