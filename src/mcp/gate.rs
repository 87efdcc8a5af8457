//! Stands before the server of a connection: checks that requests carry the project's secret, if the operator set one,
//! and translates the few requests and results that the framework of projects has in another form than MCP.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rmcp::model::{
    ClientNotification, ClientRequest, ConstString, CustomRequest, CustomResult, ErrorCode,
    InitializeResultMethod, PingRequestMethod, ProtocolVersion, ReadResourceRequestMethod,
    ReadResourceRequestParams, Request, ServerConfig, ServerResult, SubscribeRequestMethod,
    SubscribeRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext, Service};
use rmcp::{ErrorData, RoleServer};

use serde_json::{Map, Value, json};

use crate::harmless;
use crate::server::Offer;
use projects::{ProjectSettings, RemoteToken};

/// Methods that reveal the server's name, and nothing of its project.
const OPEN_METHODS: [&str; 2] = [InitializeResultMethod::VALUE, PingRequestMethod::VALUE];
/// Time for which a failure counts.
const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// Delay of the answer to a further wrong secret.
const THROTTLE_DELAY: Duration = Duration::from_secs(1);

/// The secret that requests must carry, and the failures of those that did not.
#[derive(Debug)]
pub struct RemoteSecret {
    token: RemoteToken,
    /// Failures within [`FAILURE_WINDOW`] after which each answer is delayed.
    max_failures: usize,
    failures: Mutex<VecDeque<Instant>>,
}

impl RemoteSecret {
    /// Returns the secret of the project that is offered, if it has one.
    pub fn from_offer(offer: &Offer) -> Option<Self> {
        let (Offer::Project(project) | Offer::Both(project)) = offer else { return None };
        Self::from_settings(&project.last().settings)
    }

    fn from_settings(settings: &ProjectSettings) -> Option<Self> {
        let token = settings.token.clone()?;
        let max_failures = settings.token_failures;
        Some(Self { token, max_failures, failures: Mutex::default() })
    }

    /// Returns the answer to a message that lacks the secret.
    pub async fn refusal(&self, message: &Value) -> Option<Value> {
        // Answers of the client have no method, and notifications have other methods.
        let method = message.get("method")?.as_str().unwrap_or_default();
        if OPEN_METHODS.contains(&method) || method.starts_with("notifications/") {
            return None;
        }
        let meta = message.pointer("/params/_meta").and_then(Value::as_object);
        let error = self.check(meta.unwrap_or(&Map::new())).await.err()?;
        let id = message.get("id").cloned().unwrap_or_default();
        let error = json!({ "code": error.code.0, "message": error.message });
        Some(json!({ "jsonrpc": "2.0", "id": id, "error": error }))
    }

    /// Checks that a request with this `_meta` may pass.
    ///
    /// # Errors
    /// A request without the secret. After some of them, the answer to each further one waits.
    async fn check(&self, meta: &Map<String, Value>) -> Result<(), ErrorData> {
        if self.token.accepts(meta) {
            return Ok(());
        }
        let mut message = "Remote token missing or invalid";
        match self.count_failure() {
            false => tracing::warn!("a request without the remote token was refused"),
            true => {
                tokio::time::sleep(THROTTLE_DELAY).await;
                message = "Remote token missing or invalid (throttled)";
            }
        }
        Err(ErrorData::new(ErrorCode::INVALID_PARAMS, message, None))
    }

    /// Counts a failure; true if there were too many recently.
    fn count_failure(&self) -> bool {
        let now = Instant::now();
        let mut failures = self.failures.lock().unwrap_or_else(|broken| broken.into_inner());
        while failures.front().is_some_and(|first| now.duration_since(*first) > FAILURE_WINDOW) {
            failures.pop_front();
        }
        let is_throttled = failures.len() >= self.max_failures;
        if !is_throttled {
            failures.push_back(now);
        }
        is_throttled
    }
}

/// A service, and the secret that its requests must carry.
#[derive(Debug)]
pub(crate) struct SecretGate<S> {
    inner: S,
    secret: Option<RemoteSecret>,
    /// True before the server of a project.
    is_project: bool,
}

impl<S> SecretGate<S> {
    /// Puts a gate before `inner`; without a secret everything passes.
    pub(crate) fn new(inner: S, settings: Option<&ProjectSettings>) -> Self {
        let secret = settings.and_then(RemoteSecret::from_settings);
        Self { inner, secret, is_project: settings.is_some() }
    }

    async fn check(&self, context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
        let Some(secret) = &self.secret else { return Ok(()) };
        let meta = serde_json::to_value(&context.meta).unwrap_or_default();
        secret.check(meta.as_object().unwrap_or(&Map::new())).await
    }
}

impl<S: Service<RoleServer>> Service<RoleServer> for SecretGate<S> {
    async fn handle_request(
        &self,
        request: ClientRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<ServerResult, ErrorData> {
        let is_open =
            matches!(request, ClientRequest::InitializeRequest(_) | ClientRequest::PingRequest(_));
        if !is_open {
            self.check(&context).await?;
        }
        if !self.is_project {
            return self.inner.handle_request(request, context).await;
        }
        let request = by_name(request);
        let addition = Addition::to(&request);
        let result = self.inner.handle_request(request, context).await?;
        Ok(match addition {
            Some(addition) => addition.put_into(result),
            None => result,
        })
    }

    async fn handle_notification(
        &self,
        notification: ClientNotification,
        context: NotificationContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.inner.handle_notification(notification, context).await
    }

    fn get_info(&self) -> ServerConfig {
        self.inner.get_info()
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        self.inner.supported_protocol_versions()
    }
}

/// Reads a request for a resource that has its `name` in place of its `uri`, as the framework has it. The server finds
/// resources by both.
fn by_name(request: ClientRequest) -> ClientRequest {
    let ClientRequest::CustomRequest(CustomRequest { method, params, .. }) = &request else {
        return request;
    };
    let name = params.as_ref().filter(|params| params.get("uri").is_none());
    let Some(name) = name.and_then(|params| params.get("name")?.as_str()) else { return request };
    match method.as_str() {
        ReadResourceRequestMethod::VALUE => {
            let params = ReadResourceRequestParams::new(name);
            ClientRequest::ReadResourceRequest(Request::new(params))
        }
        SubscribeRequestMethod::VALUE => {
            let params = SubscribeRequestParams::new(name);
            ClientRequest::SubscribeRequest(Request::new(params))
        }
        _ => request,
    }
}

/// Members that the framework's result of a request has in addition to those of MCP.
enum Addition {
    /// The id by which the framework ends a subscription: the address.
    SubscriptionId(String),
    /// The text of a prompt, and the arguments that were put into it.
    Rendered(Value),
}

impl Addition {
    fn to(request: &ClientRequest) -> Option<Self> {
        if let ClientRequest::SubscribeRequest(request) = request {
            return Some(Self::SubscriptionId(request.params.uri.clone()));
        }
        let ClientRequest::GetPromptRequest(request) = request else { return None };
        let arguments = request.params.arguments.clone().unwrap_or_default();
        Some(Self::Rendered(Value::Object(arguments)))
    }

    fn put_into(self, result: ServerResult) -> ServerResult {
        let fields = match self {
            Self::SubscriptionId(id) => json!({ "subscriptionId": id }),
            Self::Rendered(mut arguments) => {
                harmless::value(&mut arguments);
                let Ok(Value::Object(mut fields)) = serde_json::to_value(&result) else {
                    return result;
                };
                let text =
                    fields.get("messages").and_then(|messages| messages.pointer("/0/content/text"));
                let text = text.cloned().unwrap_or_default();
                let metadata = fields.get("_meta").cloned();
                fields.extend([("text".to_owned(), text), ("arguments".to_owned(), arguments)]);
                fields.extend(metadata.map(|metadata| ("metadata".to_owned(), metadata)));
                Value::Object(fields)
            }
        };
        ServerResult::CustomResult(CustomResult(fields))
    }
}
