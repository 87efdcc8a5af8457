//! `POST /run`: one command in a cell of its own, whose directory nobody else has.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::access::Client;
use crate::respond::{Refusal, json_response};
use crate::scopes::Scopes;
use service::refused::{Refused, RefusedKind};
use service::report::{CommandReport, millis};
use service::shell::ScriptArgs;
use service::{Backend, Caller};

/// Seconds of a command that asks for no time.
const TIMEOUT: f64 = 5.0;
/// Tool under whose rule the command is decided.
pub(crate) const TOOL: &str = "bash_exec";

/// The body of a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    command: String,
    timeout_seconds: Option<f64>,
    #[serde(default)]
    stdin: String,
}

/// Runs the command of a request. A client that goes away cancels it.
pub(crate) async fn run(
    State(scopes): State<Arc<Scopes>>,
    Extension(client): Extension<Client>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let asked = serde_json::from_slice(&body).map_err(|error| {
        let message = format!("the body is not {{command, timeout_seconds?, stdin?}}: {error}");
        Refusal::new(StatusCode::BAD_REQUEST, "bad_request", message)
    });
    let Asked { command, timeout_seconds, stdin } = asked?;
    let args = ScriptArgs {
        command,
        stdin: stdin.into_bytes(),
        timeout: Some(timeout_seconds.unwrap_or(TIMEOUT)),
        ..ScriptArgs::default()
    };
    let caller = Caller { cancel: scopes.kill.child_token(), ..Caller::default() };
    // Of this request alone: nothing that it leaves is found by another.
    let scope = scopes.executor.scope(client.principal);
    if let Some(refused) = scopes.withheld_run(&scope) {
        return Err(refusal(&refused));
    }
    let begun = Instant::now();
    let report = scope.script(TOOL, args, caller).await.map_err(|refused| refusal(&refused))?;
    Ok(json_response(StatusCode::OK, &fields(&report, millis(begun.elapsed()))))
}

fn fields(report: &CommandReport, duration_ms: u64) -> Value {
    let mut fields = json!({
        "stdout": report.stdout.text,
        "stderr": report.stderr.text,
        "exit_code": report.outcome.exit_code(),
        "duration_ms": duration_ms,
        "outcome": report.outcome.name(),
        "timeout_seconds": report.timeout.as_secs_f64(),
    });
    let more = [("error", report.error()), ("hint", report.hint().map(str::to_owned))];
    if let Some(fields) = fields.as_object_mut() {
        for (name, text) in more {
            fields.extend(text.map(|text| (name.to_owned(), Value::from(text))));
        }
    }
    fields
}

fn refusal(refused: &Refused) -> Refusal {
    let (status, error) = match refused.kind {
        RefusedKind::Arguments => (StatusCode::BAD_REQUEST, "bad_request"),
        RefusedKind::Denied => (StatusCode::FORBIDDEN, "denied"),
        RefusedKind::Absent => (StatusCode::NOT_FOUND, "not_found"),
        RefusedKind::Cancelled | RefusedKind::Failed => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
    };
    let hint = refused.hint.iter().map(|hint| format!("; hint: {hint}"));
    let refusal = Refusal::new(status, error, refused.message.clone() + &hint.collect::<String>());
    if status == StatusCode::SERVICE_UNAVAILABLE { refusal.after(1) } else { refusal }
}
