//! A gate before a server: requests show a secret, if the operator set one.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rmcp::model::{
    ClientNotification, ClientRequest, ErrorCode, ProtocolVersion, ServerConfig, ServerResult,
};
use rmcp::service::{NotificationContext, RequestContext, Service};
use rmcp::{ErrorData, RoleServer};

use project::RemoteToken;

/// Failures within [`WITHIN`] after which each answer waits.
const FAILURES: usize = 10;
/// Time in which failures count.
const WITHIN: Duration = Duration::from_secs(60);
/// Time that an answer to a guess waits then.
const PAUSE: Duration = Duration::from_secs(1);

/// A service, and the secret that its requests show.
#[derive(Debug)]
pub(crate) struct Gate<S> {
    inner: S,
    token: Option<RemoteToken>,
    failures: Mutex<VecDeque<Instant>>,
}

impl<S> Gate<S> {
    /// Puts a gate before `inner`; it stands open without a secret.
    pub(crate) fn new(inner: S, token: Option<RemoteToken>) -> Self {
        Self { inner, token, failures: Mutex::default() }
    }

    /// Returns if a request may pass.
    ///
    /// # Errors
    /// A request without the secret. After some of them, the answer to each further one waits.
    async fn check(&self, context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
        let Some(token) = &self.token else { return Ok(()) };
        let meta = serde_json::to_value(&context.meta).unwrap_or_default();
        let is_shown = meta.as_object().is_some_and(|meta| token.accepts(meta));
        if is_shown {
            return Ok(());
        }
        let is_throttled = self.count_failure();
        tracing::warn!(is_throttled, "a request without the remote token was refused");
        let mut message = "Remote token missing or invalid";
        if is_throttled {
            tokio::time::sleep(PAUSE).await;
            message = "Remote token missing or invalid (throttled)";
        }
        Err(ErrorData::new(ErrorCode::INVALID_PARAMS, message, None))
    }

    /// Counts a failure; true if there were too many of late.
    fn count_failure(&self) -> bool {
        let now = Instant::now();
        let mut failures = self.failures.lock().unwrap_or_else(|broken| broken.into_inner());
        while failures.front().is_some_and(|first| now.duration_since(*first) > WITHIN) {
            failures.pop_front();
        }
        let is_throttled = failures.len() >= FAILURES;
        if !is_throttled {
            failures.push_back(now);
        }
        is_throttled
    }
}

impl<S: Service<RoleServer>> Service<RoleServer> for Gate<S> {
    async fn handle_request(
        &self,
        request: ClientRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<ServerResult, ErrorData> {
        // These tell the server's name, and nothing of its project.
        let is_open =
            matches!(request, ClientRequest::InitializeRequest(_) | ClientRequest::PingRequest(_));
        if !is_open {
            self.check(&context).await?;
        }
        self.inner.handle_request(request, context).await
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
