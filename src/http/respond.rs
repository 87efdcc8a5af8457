//! Answers to requests that are not served: a status, and JSON with the reason and the remedy.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use service::capture::deceptive::harmless;

/// Reason why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) error: &'static str,
    pub(crate) message: String,
    /// Time after which the client may ask again.
    pub(crate) retry_after: Option<Duration>,
    /// Value of `WWW-Authenticate`.
    pub(crate) challenge: Option<HeaderValue>,
}

/// Body of an answer to a request that is not served.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ErrorBody {
    /// The kind of refusal, in one word.
    error: &'static str,
    message: String,
    /// Seconds after which the request may be sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, error: &'static str, message: impl Into<String>) -> Self {
        // The message may quote the request.
        let message = harmless(&message.into()).into_owned();
        Self { status, error, message, retry_after: None, challenge: None }
    }

    pub(crate) fn after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(Duration::from_secs(seconds));
        self
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let retry_after = self.retry_after.map(|wait| wait.as_secs());
        let body = ErrorBody { error: self.error, message: self.message, retry_after };
        let mut response = json_response(self.status, &json!(body));
        if let Some(wait) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, wait.as_secs().into());
        }
        // The connection of a refused request is closed.
        if self.status.is_client_error() && self.status != StatusCode::NOT_FOUND {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        if let Some(challenge) = self.challenge {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

/// Makes an answer of JSON.
pub(crate) fn json_response(status: StatusCode, body: &serde_json::Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Marks an answer that has been charged to the memory of its request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Charged;

/// Adds headers that keep browsers and caches from using an answer elsewhere.
pub(crate) fn harden(headers: &mut HeaderMap) {
    let fixed: [(HeaderName, &'static str); 3] = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
