//! `POST /run`: runs one command in a fresh cell, in a new directory, with files in and out.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use base64::prelude::{BASE64_STANDARD, Engine};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::access::Client;
use crate::body::{RequestMemory, busy};
use crate::form::{self, AnswerPart, FORM_TYPE, ParsedRun, bad_request, form_type, takes_form};
use crate::respond::{Charged, Refusal};
use crate::scopes::{BASH_TOOL, EXEC_TOOL, Scopes};
use model::call::Correlation;
use service::Caller;
use service::apart::{ApartRun, FileIn, FileOut};
use service::capture::deceptive::harmless;
use service::refused::{Refused, RefusedKind};
use service::report::{CommandReport, millis};
use service::shell::ScriptArgs;

/// Default time limit of a command, in seconds.
const DEFAULT_TIMEOUT: f64 = 5.0;

/// The body of a request.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunRequest {
    /// The script, for bash; at most 1 MiB.
    command: String,
    /// Time limit in seconds: 5 by default, at most what the operator allows.
    #[schemars(extend("exclusiveMinimum" = 0))]
    timeout_seconds: Option<f64>,
    /// Text for its standard input.
    #[serde(default)]
    stdin: String,
    /// Files that are put into its directory before it runs; 8 MiB with the standard input.
    #[serde(default)]
    files: Vec<GivenFile>,
    /// Files of its directory that the answer returns, if the command ends by itself; 4 MiB together.
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
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct RunAnswer {
    stdout: String,
    stderr: String,
    exit_code: u8,
    duration_ms: u64,
    /// End of the call: `exited`, `signaled`, `timeout`, `limit`, `cancelled` or `failed`.
    outcome: &'static str,
    /// Its time limit in seconds.
    timeout_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// System calls and hosts that were refused, with the grants, and remarks about limits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    /// Files that `outputs` named, if it named any.
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<Vec<ReturnedFile>>,
}

/// A file of the command's directory, or the reason why it is not returned.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct ReturnedFile {
    /// The path that was asked for; characters that hide or reorder text are shown as escapes.
    path: String,
    /// Absent in a form, where the file is a separate part.
    #[serde(skip_serializing_if = "Option::is_none")]
    content_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// A form with the same fields (`multipart/form-data`): its files are parts with a `filename`.
#[derive(Debug, JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "it describes what crate::form reads")]
pub(crate) struct RunForm {
    /// The script, for bash; at most 1 MiB.
    command: String,
    /// Time limit in seconds: 5 by default, at most what the operator allows.
    #[schemars(default = "usual", extend("exclusiveMinimum" = 0))]
    timeout_seconds: f64,
    /// Bytes for its standard input.
    #[schemars(default)]
    stdin: String,
    /// Files that are put into its directory before it runs, each with its path as `filename`; 8 MiB with the standard
    /// input.
    #[schemars(default, extend("items" = json!({ "type": "string", "format": "binary" })))]
    files: Vec<String>,
    /// Files of its directory that the answer returns, if the command ends by itself; 4 MiB together.
    #[schemars(default)]
    outputs: Vec<String>,
}

fn usual() -> f64 {
    DEFAULT_TIMEOUT
}

impl ParsedRun {
    /// Reads a body as a form if its type says so, else as JSON.
    async fn read(headers: &HeaderMap, body: Bytes) -> Result<Self, Refusal> {
        if let Some(kind) = form_type(headers) {
            return form::read(kind, body).await;
        }
        let run = serde_json::from_slice(&body).map_err(|error| {
            let known = "{command, timeout_seconds?, stdin?, files?, outputs?}";
            bad_request(format!("the body is not {known}: {error}"))
        });
        let RunRequest { command, timeout_seconds, stdin, files, outputs } = run?;
        let files = files.into_iter().map(GivenFile::read).collect::<Result<_, _>>()?;
        Ok(Self { command, timeout: timeout_seconds, stdin: stdin.into_bytes(), files, outputs })
    }

    /// Makes the command with its directory and its files.
    fn apart(self, root: Option<&str>) -> Result<ApartRun, Refusal> {
        let Self { command, timeout, stdin, files, outputs } = self;
        let timeout = Some(timeout.unwrap_or(DEFAULT_TIMEOUT));
        let args = ScriptArgs { command, stdin, timeout, ..ScriptArgs::default() };
        ApartRun::new(args, files, outputs, root)
            .map_err(|bad_file| bad_request(bad_file.to_string()))
    }
}

/// Reads a request of `/run`, and checks the files that it gives and names.
///
/// # Errors
/// The status of the answer to a request that is not taken.
pub async fn checked(headers: &HeaderMap, body: Bytes) -> Result<ApartRun, u16> {
    let run = ParsedRun::read(headers, body).await.and_then(|run| run.apart(None));
    run.map_err(|refusal| refusal.status.as_u16())
}

/// Runs the command of a request. It is cancelled if the client disconnects.
pub(crate) async fn run(
    State(scopes): State<Arc<Scopes>>,
    Extension(client): Extension<Client>,
    Extension(room): Extension<RequestMemory>,
    correlation: Option<Extension<Correlation>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    let form = if takes_form(&headers) { AnswerForm::parts()? } else { AnswerForm::Json };
    // The parts of a form are copied out of the body.
    if form_type(&headers).is_some() && !room.grow(body.len()) {
        return Err(busy("too many large requests are being read"));
    }
    let run = ParsedRun::read(&headers, body).await?;
    let cancel = scopes.kill.child_token();
    let correlation = correlation.map(|Extension(id)| id);
    let caller = Caller { cancel, correlation, ..Caller::default() };
    // A scope for this request: another request finds nothing of it.
    let scope = scopes.executor.scope(client.principal);
    if let Some(refused) = scopes.withheld_run(&scope) {
        return Err(refusal(&refused));
    }
    let begun = Instant::now();
    let wanted = !run.outputs.is_empty();
    let apart = run.apart(scopes.run_root.as_deref())?;
    // Where only `bash` is offered, its rule decides.
    let tool = if scope.withheld(EXEC_TOOL).is_none() { EXEC_TOOL } else { BASH_TOOL };
    let done = scope.apart(tool, apart, caller).await;
    let (report, files) = done.map_err(|refused| refusal(&refused))?;
    let answer = RunAnswer::new(&report, millis(begun.elapsed()));
    answered(answer, wanted.then_some(files), &form, &room)
}

/// Form of an answer.
enum AnswerForm {
    Json,
    /// A form of parts, with the boundary between them.
    Parts(String),
}

impl AnswerForm {
    /// Makes the boundary before the command runs, so that the command cannot know it.
    fn parts() -> Result<Self, Refusal> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|_| {
            let message = "there are no random bytes";
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
        })?;
        Ok(Self::Parts(format!("cofferdam-{:032x}", u128::from_ne_bytes(bytes))))
    }

    fn encode(&self, answer: RunAnswer, files: Option<Vec<FileOut>>) -> (String, Vec<u8>) {
        let Self::Parts(boundary) = self else {
            let files = files.map(|all| all.into_iter().map(ReturnedFile::new).collect());
            return ("application/json".to_owned(), json_bytes(&RunAnswer { files, ..answer }));
        };
        // The result lists each file that is a separate part.
        let named = files.as_ref().map(|all| all.iter().map(ReturnedFile::named).collect());
        let result = json_bytes(&RunAnswer { files: named, ..answer });
        let kind = "application/json";
        let mut parts = vec![AnswerPart { name: "result", path: None, kind, bytes: &result }];
        for file in files.iter().flatten() {
            if let Ok(bytes) = &file.content {
                let name = "files";
                let path = Some(file.path.as_str());
                let kind = "application/octet-stream";
                parts.push(AnswerPart { name, path, kind, bytes });
            }
        }
        (format!("{FORM_TYPE}; boundary={boundary}"), form::write_form(boundary, &parts))
    }
}

/// Makes the answer, and charges it to the memory of its request until it is sent. Where there is no memory for its
/// files, they are left out: the client leaves other answers unread.
fn answered(
    answer: RunAnswer,
    files: Option<Vec<FileOut>>,
    form: &AnswerForm,
    room: &RequestMemory,
) -> Result<Response, Refusal> {
    let left_out = files.as_ref().map(|all| all.iter().map(FileOut::left_out).collect());
    for files in [files, left_out] {
        let (kind, bytes) = form.encode(answer.clone(), files);
        if room.grow(bytes.len()) {
            let mut response = Response::new(Body::from(bytes));
            if let Ok(kind) = HeaderValue::from_str(&kind) {
                response.headers_mut().insert(header::CONTENT_TYPE, kind);
            }
            response.extensions_mut().insert(Charged);
            return Ok(response);
        }
    }
    Err(busy("the command ran, and there is no memory for its answer: read those that you have"))
}

fn json_bytes(answer: &RunAnswer) -> Vec<u8> {
    // Texts and numbers can always be serialised.
    serde_json::to_vec(answer).unwrap_or_default()
}

impl GivenFile {
    fn read(self) -> Result<FileIn, Refusal> {
        let bytes = match (self.content, self.content_base64) {
            (Some(text), None) => Some(text.into_bytes()),
            (None, Some(coded)) => BASE64_STANDARD.decode(coded).ok(),
            (Some(_), Some(_)) | (None, None) => None,
        };
        let bytes = bytes.ok_or_else(|| {
            bad_request("a file of `files` has either `content` or `content_base64`".to_owned())
        })?;
        Ok(FileIn { path: self.path, bytes })
    }
}

impl ReturnedFile {
    fn new(FileOut { path, content }: FileOut) -> Self {
        let (content_base64, error) = match content {
            Ok(bytes) => (Some(BASE64_STANDARD.encode(bytes)), None),
            Err(why) => (None, Some(why.to_string())),
        };
        Self { path: harmless(&path).into_owned(), content_base64, error }
    }

    /// Lists a file without its content.
    fn named(FileOut { path, content }: &FileOut) -> Self {
        let error = content.as_ref().err().map(ToString::to_string);
        Self { path: harmless(path).into_owned(), content_base64: None, error }
    }
}

impl RunAnswer {
    fn new(report: &CommandReport, duration_ms: u64) -> Self {
        Self {
            stdout: report.stdout.text.clone(),
            stderr: report.stderr.text.clone(),
            exit_code: report.ended.outcome.exit_code(),
            duration_ms,
            outcome: report.ended.outcome.name(),
            timeout_seconds: report.timeout.as_secs_f64(),
            error: report.error(),
            hint: report.hint().map(str::to_owned),
            notes: report.reasons(),
            files: None,
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
