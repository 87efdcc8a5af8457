//! `POST /run`: one command in a cell of its own, in a directory that nobody else has, with files in and out.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::Response;
use base64::prelude::{BASE64_STANDARD, Engine};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::access::Client;
use crate::respond::{Refusal, json_response};
use crate::scopes::Scopes;
use service::apart::{ApartRun, FileIn, FileOut};
use service::refused::{Refused, RefusedKind};
use service::report::{CommandReport, millis};
use service::shell::ScriptArgs;
use service::{Backend, Caller};

/// Seconds of a command that asks for no time.
const TIMEOUT: f64 = 5.0;
/// Tool under whose rule the command is decided, and the one where that is not offered.
pub(crate) const TOOL: &str = "bash_exec";
pub(crate) const BASH: &str = "bash";

/// The body of a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunRequest {
    /// The script, for bash; at most 1 MiB.
    command: String,
    /// Seconds that it may take: 5 unless told, at most what the operator allows.
    #[schemars(extend("exclusiveMinimum" = 0))]
    timeout_seconds: Option<f64>,
    /// Text for its standard input.
    #[serde(default)]
    stdin: String,
    /// Files that its directory has before it runs; 8 MiB with the standard input.
    #[serde(default)]
    files: Vec<GivenFile>,
    /// Files of its directory that the answer has, if the command ends by itself; 4 MiB together.
    #[serde(default)]
    outputs: Vec<String>,
}

/// A file for a command: its text, or its bytes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GivenFile {
    /// Relative to the command's directory, without `..`.
    path: String,
    content: Option<String>,
    content_base64: Option<String>,
}

/// The answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunAnswer {
    stdout: String,
    stderr: String,
    exit_code: u8,
    duration_ms: u64,
    /// End of the call: `exited`, `signaled`, `timeout`, `limit`, `cancelled` or `failed`.
    outcome: &'static str,
    /// Seconds that it had.
    timeout_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// Files that `outputs` named, where there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<Vec<ReturnedFile>>,
}

/// A file of the command's directory, or the reason why it is not returned.
#[derive(Debug, Serialize, JsonSchema)]
struct ReturnedFile {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Runs the command of a request. A client that goes away cancels it.
pub(crate) async fn run(
    State(scopes): State<Arc<Scopes>>,
    Extension(client): Extension<Client>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let asked = serde_json::from_slice(&body).map_err(|error| {
        let known = "{command, timeout_seconds?, stdin?, files?, outputs?}";
        bad(format!("the body is not {known}: {error}"))
    });
    let RunRequest { command, timeout_seconds, stdin, files, outputs } = asked?;
    let args = ScriptArgs {
        command,
        stdin: stdin.into_bytes(),
        timeout: Some(timeout_seconds.unwrap_or(TIMEOUT)),
        ..ScriptArgs::default()
    };
    let files = files.into_iter().map(GivenFile::read).collect::<Result<Vec<_>, _>>()?;
    let caller = Caller { cancel: scopes.kill.child_token(), ..Caller::default() };
    // Of this request alone: nothing that it leaves is found by another.
    let scope = scopes.executor.scope(client.principal);
    if let Some(refused) = scopes.withheld_run(&scope) {
        return Err(refusal(&refused));
    }
    let begun = Instant::now();
    let wanted = !outputs.is_empty();
    let apart = ApartRun::new(args, files, outputs, scopes.run_root.as_deref());
    let apart = apart.map_err(|bad_file| bad(bad_file.to_string()))?;
    // A shell that is there for the sake of `bash` is under the rule of `bash`.
    let tool = if scope.withheld(TOOL).is_none() { TOOL } else { BASH };
    let done = scope.apart(tool, apart, caller).await;
    let (report, files) = done.map_err(|refused| refusal(&refused))?;
    let files = wanted.then(|| files.into_iter().map(ReturnedFile::of).collect());
    let answer = RunAnswer::of(&report, millis(begun.elapsed()), files);
    Ok(json_response(StatusCode::OK, &json!(answer)))
}

fn bad(message: String) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, "bad_request", message)
}

impl GivenFile {
    fn read(self) -> Result<FileIn, Refusal> {
        let bytes = match (self.content, self.content_base64) {
            (Some(text), None) => Some(text.into_bytes()),
            (None, Some(coded)) => BASE64_STANDARD.decode(coded).ok(),
            (Some(_), Some(_)) | (None, None) => None,
        };
        let bytes = bytes.ok_or_else(|| {
            bad("a file of `files` has either `content` or `content_base64`".to_owned())
        })?;
        Ok(FileIn { path: self.path, bytes })
    }
}

impl ReturnedFile {
    fn of(FileOut { path, content }: FileOut) -> Self {
        let (content_base64, error) = match content {
            Ok(bytes) => (Some(BASE64_STANDARD.encode(bytes)), None),
            Err(why) => (None, Some(why.to_string())),
        };
        Self { path, content_base64, error }
    }
}

impl RunAnswer {
    fn of(report: &CommandReport, duration_ms: u64, files: Option<Vec<ReturnedFile>>) -> Self {
        Self {
            stdout: report.stdout.text.clone(),
            stderr: report.stderr.text.clone(),
            exit_code: report.outcome.exit_code(),
            duration_ms,
            outcome: report.outcome.name(),
            timeout_seconds: report.timeout.as_secs_f64(),
            error: report.error(),
            hint: report.hint().map(str::to_owned),
            files,
        }
    }
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
