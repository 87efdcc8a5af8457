//! The request that a call arrived with, and the notifications that its client gets before the answer.
#![expect(
    deprecated,
    reason = "the newest revision drops logging; clients of those before it have it"
)]

use hyperium_http::request::Parts;
use rmcp::model::{
    ClientCapabilities, Extensions, LoggingMessageNotificationParam, NumberOrString,
    ProgressNotificationParam, ProtocolVersion, RequestId, RequestMetaObject,
};
use rmcp::service::RequestContext;
use rmcp::{Peer, RoleServer};
use tokio_util::sync::CancellationToken;

use model::call::Correlation;

/// A request, with what identifies its client.
#[derive(Debug, Clone)]
pub struct Context {
    pub(crate) id: RequestId,
    /// Cancelled when the client takes the request back, or leaves.
    pub ct: CancellationToken,
    pub(crate) meta: RequestMetaObject,
    pub(crate) extensions: Extensions,
    /// Reaches the client before its answer; `None` for a plain request over HTTP.
    pub(crate) peer: Option<Peer<RoleServer>>,
    protocol_version: Option<ProtocolVersion>,
    client_capabilities: Option<ClientCapabilities>,
}

impl From<RequestContext<RoleServer>> for Context {
    fn from(request: RequestContext<RoleServer>) -> Self {
        Self {
            protocol_version: request.protocol_version(),
            client_capabilities: request.client_capabilities(),
            id: request.id,
            ct: request.ct,
            meta: request.meta,
            extensions: request.extensions,
            peer: Some(request.peer),
        }
    }
}

impl Context {
    /// Makes the context of a plain request over HTTP, which is answered as one of the newest revision of MCP whose
    /// client can do nothing but wait. Cancelling `ct` ends the call.
    pub fn plain(ct: CancellationToken, correlation: Option<Correlation>) -> Self {
        let version = ProtocolVersion::V_2026_07_28;
        let capabilities = ClientCapabilities::default();
        let mut meta = RequestMetaObject::new();
        meta.set_protocol_version(version.clone());
        meta.set_client_capabilities(capabilities.clone());
        let mut extensions = Extensions::new();
        correlation.map(|correlation| extensions.insert(correlation));
        Self {
            id: NumberOrString::Number(1),
            ct,
            meta,
            extensions,
            peer: None,
            protocol_version: Some(version),
            client_capabilities: Some(capabilities),
        }
    }

    /// Returns the revision of MCP that the request is of.
    pub(crate) fn protocol_version(&self) -> Option<&ProtocolVersion> {
        self.protocol_version.as_ref()
    }

    /// Returns what the client can do.
    pub(crate) fn client_capabilities(&self) -> Option<&ClientCapabilities> {
        self.client_capabilities.as_ref()
    }

    /// Sends progress of the call. A failure means that the connection is going down; the call is ended elsewhere.
    pub(crate) async fn notify_progress(&self, note: ProgressNotificationParam) {
        let Some(peer) = &self.peer else { return };
        if let Err(error) = peer.notify_progress(note).await {
            tracing::debug!(%error, "progress was not sent");
        }
    }

    /// Sends a log message about the call, as [`Context::notify_progress`] does.
    pub(crate) async fn notify_log(&self, note: LoggingMessageNotificationParam) {
        let Some(peer) = &self.peer else { return };
        if let Err(error) = peer.notify_logging_message(note).await {
            tracing::debug!(%error, "a log message was not sent");
        }
    }

    /// Returns what the server over HTTP or lines gave the request, or the HTTP request by which it came.
    pub(crate) fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<&T> {
        let of_http = || self.extensions.get::<Parts>()?.extensions.get::<T>();
        self.extensions.get::<T>().or_else(of_http)
    }
}
