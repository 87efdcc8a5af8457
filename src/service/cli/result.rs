//! The result of a declared command, with the reference implementation's fields.

use std::collections::BTreeSet;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Declared;
use super::advice::{self, ErrorType};
use super::output::{self, Parsed, Readings};
use super::request::{BadRequest, DeclaredRequest};
use crate::Report;
use crate::capture::Captured;
use crate::capture::text::render;
use crate::denied::DenialReport;
use crate::report::{Clamped, network};
use config::policy::Grant;
use config::policy::flags::BadWords;
use config::policy::reach::TooLarge;
use model::clock;
use model::egress::{Denied, ECHO_REMEDY};
use model::outcome::{Failure, Outcome};
use model::receipt::Receipt;

/// Exit code of timeout(1), which the reference implementation also uses.
const TIMED_OUT: i32 = 124;

/// Result of a command; the field names are the reference implementation's.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
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
    #[schemars(with = "Option<String>", extend("enum" = ErrorType::ALL.map(ErrorType::name)))]
    pub error_type: Option<ErrorType>,
    /// Seconds.
    pub execution_time: f64,
    pub correlation_id: String,
    /// System calls that were refused.
    pub denials: Vec<DenialReport>,
    /// Connections, bytes and refusals.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub network: Option<Value>,
    #[schemars(schema_with = "any_object")]
    pub metadata: Value,
    /// The same for a model.
    #[serde(skip)]
    pub network_lines: Vec<String>,
    /// The program's own standard output for hooks, if `stdout` has it in another form.
    #[serde(skip)]
    pub(crate) printed: Option<String>,
    /// Figures for the metrics and the health of the tool.
    #[serde(skip)]
    pub(crate) readings: Readings,
    /// Protection of the cell, if there was one; not among the fields.
    #[serde(skip)]
    pub receipt: Option<Receipt>,
    /// True if the program ended by itself; reported as the result's `isError`.
    #[serde(skip)]
    exited: bool,
}

fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object" })
}

/// The call that a result is of.
#[derive(Debug, Clone, Copy)]
pub struct AboutCall<'c> {
    pub tool: &'c str,
    pub program: &'c str,
    /// The word that the tool is pointed at, if it has such a field.
    pub target: Option<&'c str>,
    pub correlation: &'c str,
}

impl<'c> AboutCall<'c> {
    /// Describes a request of a tool.
    pub fn of(declared: &'c Declared, request: &'c DeclaredRequest, correlation: &'c str) -> Self {
        let command = &declared.command;
        let target = command.positionals.iter().find(|one| one.takes.kind.is_target());
        let word = |name: &str| request.given.iter().find(|(given, _)| given == name);
        Self {
            tool: &command.name,
            program: &command.program,
            target: target.and_then(|one| word(&one.name)).map(|(_, word)| word.as_str()),
            correlation,
        }
    }
}

/// An error of a result: its kind, its text, and facts about it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolError {
    pub kind: ErrorType,
    pub message: String,
    /// Facts for a program, such as the size of a network that is too large.
    pub facts: Box<Map<String, Value>>,
    /// The way out, where it is another than the usual one of this kind.
    pub suggestion: Option<String>,
}

impl ToolError {
    /// Makes an error without facts.
    pub fn new(kind: ErrorType, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), facts: Box::default(), suggestion: None }
    }

    pub(crate) fn with_suggestion(self, suggestion: impl Into<String>) -> Self {
        Self { suggestion: Some(suggestion.into()), ..self }
    }

    /// Formats it as the reference implementation's context of an error.
    fn context(&self, about: AboutCall<'_>) -> Value {
        let Self { kind, message, facts, suggestion } = self;
        let usual = || kind.suggestion(about.program);
        json!({
            "error_type": kind,
            "message": message,
            "recovery_suggestion": suggestion.clone().unwrap_or_else(usual),
            "timestamp": clock::now(),
            "tool_name": about.tool,
            "target": about.target.unwrap_or_default(),
            "metadata": facts,
        })
    }
}

impl From<BadRequest> for ToolError {
    fn from(bad: BadRequest) -> Self {
        let invalid = |text: String| Self::new(ErrorType::ValidationError, text);
        let BadRequest::Words(words) = &bad else { return invalid(bad.to_string()) };
        let hint = words.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
        let error = invalid(format!("{bad}{hint}"));
        if let BadWords::Value { too_large: Some(large), .. } = words {
            let error = error.with_suggestion(format!("Use /{} or smaller", large.prefix));
            return Self { facts: Box::new(facts(large)), ..error };
        }
        let is_elsewhere = matches!(words, BadWords::Value { elsewhere: true, .. });
        if is_elsewhere { error.with_suggestion(advice::PERMISSION) } else { error }
    }
}

/// Returns the fields that the reference implementation reports about a network that is too large.
fn facts(large: &TooLarge) -> Map<String, Value> {
    let TooLarge { size, most, prefix } = large;
    // Numbers of JSON have 64 bits.
    let number = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
    Map::from_iter([
        ("network_size".to_owned(), number(*size).into()),
        ("max_allowed".to_owned(), number(*most).into()),
        ("suggested_cidr".to_owned(), format!("/{prefix}").into()),
    ])
}

impl DeclaredResult {
    /// Makes the result of a call that did not run.
    pub fn refused(error: ToolError, about: AboutCall<'_>) -> Self {
        let nothing = Self::nothing(about);
        let metadata = json!({ "error_context": error.context(about) });
        Self {
            error: Some(error.message),
            error_type: Some(error.kind),
            metadata,
            returncode: 1,
            exited: false,
            ..nothing
        }
    }

    /// Makes the result of a call that asked what would run.
    pub(crate) fn would_run(declared: &Declared, grant: &Grant, about: AboutCall<'_>) -> Self {
        let hooks = declared.command.hooks.scripts.iter().map(|hook| hook.at.name());
        let hooks: Vec<&str> = hooks.collect();
        let job = grant.job();
        let words: Vec<String> = job.argv.words().iter().map(|word| quoted(word)).collect();
        let command = words.join(" ");
        let mut reply = Self {
            stdout: format!("Would execute: {command}"),
            metadata: json!({
                "dry_run": true,
                "command": command,
                "argv": job.argv.words(),
                "rule": grant.rule(),
                "profile": job.profile.to_string(),
                "timeout_sec": job.limits.wall.as_secs_f64(),
                "clamped": grant.clamped(),
            }),
            ..Self::nothing(about)
        };
        let Some(metadata) = reply.metadata.as_object_mut() else { return reply };
        if let Some(only) = &job.only {
            metadata.insert("egress".to_owned(), json!(only.to_string()));
        }
        // They would need cells: they may still refuse the call, or change its flags.
        if !hooks.is_empty() {
            metadata.insert("hooks_not_run".to_owned(), json!(hooks));
        }
        reply
    }

    fn nothing(about: AboutCall<'_>) -> Self {
        Self {
            stdout: String::new(),
            stderr: String::new(),
            returncode: 0,
            truncated_stdout: false,
            truncated_stderr: false,
            timed_out: false,
            error: None,
            error_type: None,
            execution_time: 0.0,
            correlation_id: about.correlation.to_owned(),
            denials: Vec::new(),
            network: None,
            network_lines: Vec::new(),
            metadata: json!({}),
            printed: None,
            readings: Readings::default(),
            receipt: None,
            exited: true,
        }
    }

    /// Makes the result of a call that ran, after so many attempts.
    pub fn of(declared: &Declared, report: Report, attempts: u32, about: AboutCall<'_>) -> Self {
        let (stdout, truncated_stdout) = stream(&report.stdout, declared.terms.max_stdout);
        let (stderr, truncated_stderr) = stream(&report.stderr, declared.terms.max_stderr);
        let denial = |denied| DenialReport::of(denied, &declared.profile);
        let denials: Vec<DenialReport> = report.ended.denials.iter().map(denial).collect();
        let (returncode, failed) = ended(&declared.command.program, &report.ended.outcome);
        let unreached = report.ended.network.as_ref().map_or(&[][..], |tally| &tally.denied);
        let failed = failed.map(|error| withheld(error, &denials, unreached));
        let mut metadata = Map::from_iter([
            ("stdout_bytes".to_owned(), json!(report.stdout.total())),
            ("stderr_bytes".to_owned(), json!(report.stderr.total())),
            ("timeout_sec".to_owned(), json!(report.limits.wall.as_secs_f64())),
            ("clamped".to_owned(), json!(report.clamped == Clamped::Yes)),
        ]);
        if attempts > 1 {
            metadata.insert("attempts".to_owned(), json!(attempts));
        }
        if let Some(error) = &failed {
            metadata.insert("error_context".to_owned(), error.context(about));
        }
        let Parsed { fields, readable } = data(declared, &stdout, truncated_stdout);
        metadata.extend(fields);
        let mut readings = Readings::default();
        if let Some(read) = output::found_by_readers(&declared.command.hooks, &stdout) {
            let summary = output::summary(&declared.command.hooks, &read);
            metadata.extend(summary.map(|text| ("summary".to_owned(), json!(text))));
            readings = output::readings(&declared.command.hooks, &read);
            metadata.insert("parsed".to_owned(), Value::Object(read));
        }
        let (error_type, error) = failed.map(|it| (it.kind, it.message)).unzip();
        let (stdout, printed) = match readable {
            Some(readable) => (readable, Some(stdout)),
            None => (stdout, None),
        };
        Self {
            stdout,
            printed,
            readings,
            stderr,
            returncode,
            truncated_stdout,
            truncated_stderr,
            timed_out: report.ended.outcome == Outcome::Timeout,
            error,
            error_type,
            execution_time: report.took.as_secs_f64(),
            denials,
            network: report.ended.network.as_ref().map(network::fields),
            network_lines: report.ended.network.as_ref().map(network::lines).unwrap_or_default(),
            metadata: Value::Object(metadata),
            exited: matches!(report.ended.outcome, Outcome::Exited { .. }),
            receipt: report.receipt,
            ..Self::nothing(about)
        }
    }

    /// Returns true if a stream was longer than what is kept of it.
    pub(crate) fn is_cut(&self) -> bool {
        self.truncated_stdout || self.truncated_stderr
    }

    /// Returns true if the tool failed. A program's own exit code is data, not a failure of the
    /// tool.
    pub fn is_error(&self) -> bool {
        !self.exited
    }
}

/// Returns the output as data, or the reason why it cannot be parsed, if the tool declares a form.
fn data(declared: &Declared, stdout: &str, truncated: bool) -> Parsed {
    let unparsed = |why: String| {
        let fields = Map::from_iter([("parse_error".to_owned(), Value::String(why))]);
        Parsed { fields, readable: None }
    };
    match output::parse(declared.command.conduct.output, stdout) {
        None => Parsed { fields: Map::new(), readable: None },
        Some(_) if truncated => unparsed("the output was cut".to_owned()),
        Some(Ok(parsed)) => parsed,
        Some(Err(why)) => unparsed(why.to_string()),
    }
}

/// Quotes a word for a reader, as a shell would take it.
fn quoted(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| format!("{word:?}"), std::borrow::Cow::into_owned)
}

fn stream(captured: &Captured, most: u64) -> (String, bool) {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let rendered = render(captured, &Captured::of(b""), most);
    (rendered.stdout, rendered.truncated)
}

/// Returns the exit code, and the error if there is one.
fn ended(program: &str, outcome: &Outcome) -> (i32, Option<ToolError>) {
    let failed = |code, kind, text: String| (code, Some(ToolError::new(kind, text)));
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
            let kind = kind_of(failure);
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
            let error = ToolError::new(kind, format!("{failure}{hint}"));
            (code, Some(ToolError { suggestion: way_out(failure), ..error }))
        }
    }
}

/// Returns the specific way out of a failure, if it has one.
fn way_out(failure: &Failure) -> Option<String> {
    match failure {
        Failure::NotExecutable { .. } | Failure::Cwd { .. } | Failure::Refused { .. } => {
            Some(advice::PERMISSION.to_owned())
        }
        Failure::Network { .. } => Some(advice::NETWORK.to_owned()),
        Failure::Setup { .. } | Failure::Unmeasured { .. } => failure.hint().map(str::to_owned),
        Failure::NotFound { .. } | Failure::Busy { .. } | Failure::Supervisor | Failure::Lost => {
            None
        }
    }
}

/// Adds to the error of a program that failed what was withheld from it, and the grants that would change that.
fn withheld(error: ToolError, denials: &[DenialReport], unreached: &[Denied]) -> ToolError {
    if error.kind != ErrorType::ExecutionError || error.suggestion.is_some() {
        return error;
    }
    // The host refuses, and no policy can change that.
    if let Some(denied) = unreached.iter().find(|denied| denied.why.ends_with(ECHO_REMEDY)) {
        return error.with_suggestion(denied.why.clone());
    }
    let suggestion = match (unreached.is_empty(), denials.is_empty()) {
        (false, _) => advice::NETWORK,
        (true, false) => advice::PERMISSION,
        (true, true) => return error,
    };
    let of_network = unreached.iter().filter_map(|one| one.grant.as_deref());
    let of_calls = denials.iter().filter_map(|one| one.grant.as_deref());
    let grants: BTreeSet<&str> = of_network.chain(of_calls).collect();
    let mut error = error.with_suggestion(suggestion);
    if !grants.is_empty() {
        error.facts.insert("grants".to_owned(), json!(grants));
    }
    error
}

fn kind_of(failure: &Failure) -> ErrorType {
    match failure {
        Failure::NotFound { .. } => ErrorType::NotFound,
        Failure::Busy { .. } => ErrorType::ResourceExhausted,
        Failure::NotExecutable { .. }
        | Failure::Cwd { .. }
        | Failure::Setup { .. }
        | Failure::Unmeasured { .. }
        | Failure::Refused { .. } => ErrorType::ExecutionError,
        Failure::Supervisor | Failure::Lost | Failure::Network { .. } => ErrorType::Unknown,
    }
}
