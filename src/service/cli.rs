//! Declared commands: words checked against a flag list, run alone in a cell, reported with the
//! reference implementation's fields.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::CallReport;
use super::denied::DenialReport;
use capture::Captured;
use capture::text::render;
use model::call::{Asked, Call, Cwd, Env, InvalidCall, Stdin, seconds};
use model::defaults::{KIB, MIB};
use model::outcome::{Failure, Outcome};
use model::profile::Profile;
use model::receipt::Receipt;
use policy::flags::{BadWords, DeclaredCommand, Input};

/// Characters of each stream in a result, at most. The reference implementation has the same
/// numbers in bytes.
const STDOUT_CHARACTERS: u64 = MIB;
const STDERR_CHARACTERS: u64 = 256 * KIB;
/// Length of the longest correlation id that is echoed, in bytes.
const CORRELATION_BYTES: usize = 128;
/// Exit code of timeout(1), which the reference implementation also uses.
const TIMED_OUT: i32 = 124;

/// A declared command that is offered.
#[derive(Debug, Clone)]
pub struct Declared {
    pub command: DeclaredCommand,
    /// Profile of its cells, with the limits that the rules leave.
    pub profile: Profile,
}

/// One call of a declared command, as the client sent it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeclaredRequest {
    /// Words that are no flags, each with its name in the list.
    pub given: Vec<(String, String)>,
    pub flags: Vec<String>,
    pub stdin: Option<String>,
    pub timeout: Option<f64>,
    pub correlation: Option<String>,
}

/// Reason why a call was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    #[error(transparent)]
    Words(#[from] BadWords),
    #[error(transparent)]
    Call(#[from] InvalidCall),
    #[error("{tool}: give `stdin` or `{file}`, not both")]
    TwoInputs { tool: String, file: String },
    #[error("{tool}: give `stdin` or `{file}`")]
    NoInput { tool: String, file: String },
}

impl BadRequest {
    /// Makes the result that reports it, with a hint.
    pub fn result(&self, correlation: Option<String>) -> DeclaredResult {
        let hint = match self {
            Self::Words(bad) => bad.hint(),
            Self::Call(_) | Self::TwoInputs { .. } | Self::NoInput { .. } => None,
        };
        let hint = hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
        // A correlation id that was too long is not echoed either.
        let correlation = correlation.filter(|id| id.len() <= CORRELATION_BYTES);
        DeclaredResult::refused(ErrorType::ValidationError, format!("{self}{hint}"), correlation)
    }
}

/// `extra_args`: a list of words, or one text that is split at spaces.
///
/// Splits at spaces only: quotes and backslashes stay in the words, and no flag has one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Words {
    List(Vec<String>),
    Text(String),
}

impl Words {
    pub fn into_list(self) -> Vec<String> {
        match self {
            Self::List(words) => words,
            Self::Text(text) => {
                text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
            }
        }
    }
}

/// Builds the call of `command` that `request` describes.
///
/// # Errors
/// The first word or value that is refused.
pub fn call(command: &DeclaredCommand, request: &DeclaredRequest) -> Result<Call, BadRequest> {
    one_input(command, request)?;
    if request.correlation.as_ref().is_some_and(|id| id.len() > CORRELATION_BYTES) {
        let bytes = request.correlation.as_ref().map_or(0, String::len);
        let limit = CORRELATION_BYTES;
        return Err(InvalidCall::TooLong { field: "correlation_id", bytes, limit }.into());
    }
    let given: Vec<(&str, &str)> =
        request.given.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    Ok(Call {
        tool: command.name.clone().into(),
        argv: command.argv(&request.flags, &given)?,
        script: None,
        stdin: Stdin::text("stdin", request.stdin.clone().unwrap_or_default())?,
        env: Env::default(),
        cwd: Some(Cwd::workspace()),
        asked: Asked {
            wall: request.timeout.map(|value| seconds("timeout_sec", value)).transpose()?,
            ..Asked::default()
        },
        profile: None,
    })
}

/// Checks for a file or standard input: never both, and one of them if the program cannot choose by
/// itself.
fn one_input(command: &DeclaredCommand, request: &DeclaredRequest) -> Result<(), BadRequest> {
    let Some(file) = command.file().map(|file| file.name.clone()) else { return Ok(()) };
    let tool = command.name.clone();
    let named = request.given.iter().any(|(name, _)| *name == file);
    match (named, request.stdin.is_some()) {
        (true, true) => Err(BadRequest::TwoInputs { tool, file }),
        (false, false) if command.input == Input::Dash => Err(BadRequest::NoInput { tool, file }),
        (true, false) | (false, true | false) => Ok(()),
    }
}

/// Reason why a command gave no result, in the reference implementation's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorType {
    ValidationError,
    Timeout,
    NotFound,
    ExecutionError,
    ResourceExhausted,
}

/// Result of a command; the field names are the reference implementation's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeclaredResult {
    pub stdout: String,
    pub stderr: String,
    pub returncode: i32,
    pub truncated_stdout: bool,
    pub truncated_stderr: bool,
    pub timed_out: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_type: Option<ErrorType>,
    /// Wall time in seconds.
    pub execution_time: f64,
    pub correlation_id: String,
    /// System calls that were refused.
    pub denials: Vec<DenialReport>,
    pub metadata: Value,
    /// Protection of the cell, if there was one; reported beside the fields.
    #[serde(skip)]
    pub receipt: Option<Receipt>,
    /// True if the program ended by itself; reported as the result's `isError`.
    #[serde(skip)]
    exited: bool,
}

impl DeclaredResult {
    /// Makes the result of a call that did not run.
    pub fn refused(kind: ErrorType, error: String, correlation: Option<String>) -> Self {
        Self {
            stdout: String::new(),
            stderr: String::new(),
            returncode: 1,
            truncated_stdout: false,
            truncated_stderr: false,
            timed_out: false,
            error: Some(error),
            error_type: Some(kind),
            execution_time: 0.0,
            correlation_id: correlation.unwrap_or_else(fresh),
            denials: Vec::new(),
            metadata: json!({}),
            receipt: None,
            exited: false,
        }
    }

    /// Makes the result of a call that ran.
    pub fn of(declared: &Declared, report: CallReport, correlation: Option<String>) -> Self {
        let (stdout, truncated_stdout) = stream(&report.stdout, STDOUT_CHARACTERS);
        let (stderr, truncated_stderr) = stream(&report.stderr, STDERR_CHARACTERS);
        let (returncode, failed) = ended(&declared.command.program, &report.outcome);
        let denial = |denied| DenialReport::of(denied, &declared.profile);
        let (error_type, error) = failed.unzip();
        Self {
            stdout,
            stderr,
            returncode,
            truncated_stdout,
            truncated_stderr,
            timed_out: report.outcome == Outcome::Timeout,
            error,
            error_type,
            execution_time: report.duration.as_secs_f64(),
            correlation_id: correlation.unwrap_or_else(fresh),
            denials: report.denials.iter().map(denial).collect(),
            metadata: json!({
                "stdout_bytes": report.stdout.total(),
                "stderr_bytes": report.stderr.total(),
                "timeout_sec": report.limits.wall.as_secs_f64(),
                "clamped": report.clamped,
            }),
            exited: matches!(report.outcome, Outcome::Exited { .. }),
            receipt: report.receipt,
        }
    }

    /// Returns true if the tool failed. A program's own exit code is data, not a failure of the
    /// tool.
    pub fn is_error(&self) -> bool {
        !self.exited
    }
}

fn stream(captured: &Captured, most: u64) -> (String, bool) {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let rendered = render(captured, &Captured::of(b""), most);
    (rendered.stdout, rendered.truncated)
}

/// Returns the exit code, and the error if there is one.
fn ended(program: &str, outcome: &Outcome) -> (i32, Option<(ErrorType, String)>) {
    let failed = |code, kind, text: String| (code, Some((kind, text)));
    match outcome {
        Outcome::Exited { code: 0 } => (0, None),
        Outcome::Exited { code } => failed(
            i32::from(*code),
            ErrorType::ExecutionError,
            format!("{program} ended with exit code {code}"),
        ),
        Outcome::Signaled { signal } => failed(
            128 + i32::from(*signal),
            ErrorType::ExecutionError,
            format!("{program} was ended by signal {signal}"),
        ),
        Outcome::Timeout => {
            failed(TIMED_OUT, ErrorType::Timeout, format!("{program} used up its time"))
        }
        Outcome::Limit(kind) => failed(
            137,
            ErrorType::ResourceExhausted,
            format!("{program} reached its {} limit", kind.name()),
        ),
        Outcome::Cancelled => {
            failed(130, ErrorType::ExecutionError, "the call was cancelled".to_owned())
        }
        Outcome::Failed(failure) => {
            let kind = match failure {
                Failure::NotFound { .. } => ErrorType::NotFound,
                Failure::Busy { .. } => ErrorType::ResourceExhausted,
                Failure::NotExecutable { .. }
                | Failure::Cwd { .. }
                | Failure::Setup { .. }
                | Failure::Unmeasured { .. }
                | Failure::Supervisor
                | Failure::Lost
                | Failure::Refused { .. } => ErrorType::ExecutionError,
            };
            let (code, hint) = if kind == ErrorType::NotFound {
                (
                    127,
                    Some(format!(
                        "the operator can install {program} where its profile looks for it"
                    )),
                )
            } else {
                (126, failure.hint().map(str::to_owned))
            };
            let hint = hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
            failed(code, kind, format!("{failure}{hint}"))
        }
    }
}

/// Makes an id for a call that has none: the time and a number, so that log lines can be joined.
fn fresh() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
    format!("{time:x}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
