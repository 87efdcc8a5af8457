//! Routes of the operator: switch tools on and off, reset circuit breakers, show the configuration without secrets.
//! Only requests with an operator's token reach them ([`crate::access::rights`]).

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::respond::{Refusal, json_response};
use crate::scopes::Scopes;
use crate::tool_path::ToolInPath;
use config::{ShownLine, ValueSource};
use service::executor::{NoControl, ToolSwitch};

/// Text shown in place of a value that names a file or a secret.
const REDACTED: &str = "***";
/// Sections of the configuration whose values are never shown: files of secrets, and the names of clients.
const HIDDEN_SECTIONS: [&str; 3] = ["secret", "http.", "audit.file"];
/// Keys of these sections that name neither a file nor a client.
const SHOWN_KEYS: [&str; 4] = ["http.sessions", "http.streams", "http.pre_stop", "http.drain"];

/// A tool after the operator switched it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Switched {
    tool: String,
    /// True if the tool is offered now.
    enabled: bool,
    /// False if nothing changed.
    changed: bool,
}

/// A tool whose circuit breaker was reset.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Reset {
    tool: String,
    /// Number of breakers that were not closed.
    breakers_closed: usize,
}

/// The configuration in force.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ShownConfig {
    values: Vec<ShownValue>,
}

/// One value of the configuration.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ShownValue {
    key: &'static str,
    /// `***` for what names a file, a client or a secret.
    value: String,
    /// `default`, `file` or `environment`.
    source: &'static str,
}

pub(crate) async fn enable(
    State(scopes): State<Arc<Scopes>>,
    ToolInPath(tool): ToolInPath,
) -> Result<Response, Refusal> {
    switched(&scopes, tool, ToolSwitch::On)
}

pub(crate) async fn disable(
    State(scopes): State<Arc<Scopes>>,
    ToolInPath(tool): ToolInPath,
) -> Result<Response, Refusal> {
    switched(&scopes, tool, ToolSwitch::Off)
}

fn switched(scopes: &Scopes, tool: String, to: ToolSwitch) -> Result<Response, Refusal> {
    let changed = scopes.executor.switch(&tool, to).map_err(|error| refusal(&error))?;
    let enabled = to == ToolSwitch::On;
    Ok(json_response(StatusCode::OK, &json!(Switched { tool, enabled, changed })))
}

pub(crate) async fn reset(
    State(scopes): State<Arc<Scopes>>,
    ToolInPath(tool): ToolInPath,
) -> Result<Response, Refusal> {
    let closed = scopes.executor.reset_breakers(Some(&tool)).map_err(|error| refusal(&error))?;
    Ok(json_response(StatusCode::OK, &json!(Reset { tool, breakers_closed: closed })))
}

fn refusal(error: &NoControl) -> Refusal {
    let (status, error) = match error {
        NoControl::Unknown(_) => (StatusCode::NOT_FOUND, "not_found"),
        NoControl::Configured(_) => (StatusCode::FORBIDDEN, "denied"),
        NoControl::NoBreaker(_) => (StatusCode::CONFLICT, "conflict"),
    };
    Refusal::new(status, error, error.to_string())
}

pub(crate) async fn configuration(State(scopes): State<Arc<Scopes>>) -> Response {
    let values = scopes.executor.configuration().into_iter().map(shown).collect();
    let shown: Value = json!(ShownConfig { values });
    json_response(StatusCode::OK, &shown)
}

/// Shows a value, unless it names a file of the host, a client or a secret.
fn shown(line: ShownLine) -> ShownValue {
    let is_hidden = HIDDEN_SECTIONS.iter().any(|hidden| line.key.starts_with(hidden))
        && !SHOWN_KEYS.contains(&line.key);
    // Paths within cells are not secret; any other key may hold a path of the host.
    let is_path = line.value.contains('/') && line.key != "exec.working_dir";
    let value = match (is_hidden || is_path) && !line.value.is_empty() {
        true => REDACTED.to_owned(),
        false => line.value,
    };
    let source = match line.source {
        ValueSource::Default => "default",
        ValueSource::Given(_) => "environment",
        ValueSource::File { .. } => "file",
    };
    ShownValue { key: line.key, value, source }
}
