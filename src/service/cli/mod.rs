//! Declared commands: words checked against a flag list, run alone in a cell, reported with the
//! reference implementation's fields.
//!
//! `state` has the state that a tool's calls share, with its `breaker`; `result` makes the reply, `output`, `xml` and
//! `nmap` parse the output, `advice` classifies errors.

mod advice;
pub(crate) mod breaker;
pub(crate) mod hooks;
mod nmap;
mod output;
mod result;
pub mod state;
mod xml;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Map, Value};

pub use self::advice::ErrorType;
pub use self::result::{AboutCall, DeclaredResult, ToolError};
use config::commands::CommandSettings;
use model::call::{Asked, Call, Correlation, Cwd, Env, InvalidCall, Stdin, seconds};
use model::profile::Profile;
use policy::conduct::{BreakerLimits, Conduct};
use policy::flags::{BadWords, DeclaredCommand, Input};
use policy::reach::TooLarge;

/// A declared command that is offered.
#[derive(Debug, Clone)]
pub struct Declared {
    pub command: DeclaredCommand,
    /// Profile of its cells, with the limits that the rules leave.
    pub profile: Profile,
    pub terms: CommandTerms,
}

/// Values of a declared command: those of its file, else those of the server's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandTerms {
    /// Default time limit of a call.
    pub timeout: Duration,
    pub concurrency: u32,
    pub breaker: BreakerLimits,
    /// Bytes of `extra_args`.
    pub max_args: usize,
    /// Characters of each stream in a result.
    pub max_stdout: u64,
    pub max_stderr: u64,
    /// Bytes of memory of a cell.
    pub memory: u64,
}

impl CommandTerms {
    /// Chooses the values: the tool's own, else the configured ones, else the profile's.
    pub fn of(conduct: &Conduct, settings: &CommandSettings, profile: &Profile) -> Self {
        let most = profile.limits.wall;
        let usual = settings.breaker();
        let memory = settings
            .memory
            .value
            .map_or(profile.limits.memory, |memory| memory.min(profile.limits.memory));
        Self {
            timeout: conduct.timeout.or(settings.timeout.value).map_or(most, |time| time.min(most)),
            concurrency: conduct.concurrency.unwrap_or(settings.concurrency.value),
            breaker: BreakerLimits {
                failures: conduct.failures.unwrap_or(usual.failures),
                recovery: conduct.recovery.unwrap_or(usual.recovery),
            },
            max_args: usize::try_from(settings.max_args.value).unwrap_or(usize::MAX),
            max_stdout: settings.max_stdout.value,
            max_stderr: settings.max_stderr.value,
            memory,
        }
    }
}

/// One call of a declared command, as the client sent it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeclaredRequest {
    /// Words that are no flags, each with its name in the list.
    pub given: Vec<(String, String)>,
    pub flags: Words,
    /// Name of the words that the tool's file has for it.
    pub template: Option<String>,
    pub stdin: Option<String>,
    /// True if the caller asks what would run, and nothing else.
    pub dry_run: bool,
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
    #[error("{tool}: extra_args has {what}; a list of words needs no quotes")]
    Quotes { tool: String, what: &'static str },
}

impl From<BadRequest> for ToolError {
    fn from(bad: BadRequest) -> Self {
        let hint = match &bad {
            BadRequest::Words(bad) => bad.hint(),
            BadRequest::Call(_)
            | BadRequest::TwoInputs { .. }
            | BadRequest::NoInput { .. }
            | BadRequest::Quotes { .. } => None,
        };
        let hint = hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
        let error = Self::new(ErrorType::ValidationError, format!("{bad}{hint}"));
        match &bad {
            BadRequest::Words(BadWords::Value { too_large: Some(large), .. }) => {
                let error = error.with_suggestion(format!("Use /{} or smaller", large.prefix));
                Self { facts: facts(large), ..error }
            }
            BadRequest::Words(BadWords::Value { elsewhere: true, .. }) => {
                error.with_suggestion(advice::PERMISSION)
            }
            BadRequest::Words(_)
            | BadRequest::Call(_)
            | BadRequest::TwoInputs { .. }
            | BadRequest::NoInput { .. }
            | BadRequest::Quotes { .. } => error,
        }
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

/// `extra_args`: a list of words, or one text that is split as a shell would, with quotes and backslashes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Words {
    List(Vec<String>),
    Text(String),
}

impl Default for Words {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl Words {
    /// Returns the words of `tool`'s call, which have so many bytes at most.
    fn list(&self, tool: &str, limit: usize) -> Result<Vec<String>, BadRequest> {
        let bytes = match self {
            Self::List(words) => words.iter().map(String::len).sum(),
            Self::Text(text) => text.len(),
        };
        if bytes > limit {
            return Err(InvalidCall::TooLong { field: "extra_args", bytes, limit }.into());
        }
        match self {
            Self::List(words) => Ok(words.clone()),
            // The splitter takes `#` for the beginning of a comment, and would drop what follows.
            Self::Text(text) if text.split_whitespace().any(|word| word.starts_with('#')) => {
                Err(BadRequest::Quotes { tool: tool.to_owned(), what: "a word that begins with #" })
            }
            Self::Text(text) => shlex::split(text).ok_or_else(|| BadRequest::Quotes {
                tool: tool.to_owned(),
                what: "a quote or a backslash without its end",
            }),
        }
    }
}

/// Returns the caller's words, apart.
///
/// # Errors
/// A text that cannot be split.
pub(crate) fn words(
    declared: &Declared,
    request: &DeclaredRequest,
) -> Result<Vec<String>, BadRequest> {
    let words = request.flags.list(&declared.command.name, declared.terms.max_args)?;
    Ok(declared.command.apart(&words))
}

/// Builds the call of a declared tool that `request` describes.
///
/// # Errors
/// The first word or value that is refused.
pub fn call(
    declared: &Declared,
    request: &DeclaredRequest,
    correlation: &str,
) -> Result<Call, BadRequest> {
    let Declared { command, terms, .. } = declared;
    one_input(command, request)?;
    let given: Vec<(&str, &str)> =
        request.given.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let words = words(declared, request)?;
    // Limits of the operator's files are within those of the profile, and are not reported as a clamped wish of the
    // caller.
    let asked = request.timeout.map(|value| seconds("timeout_sec", value)).transpose()?;
    // One that a caller gave is refused here if it cannot be logged.
    let correlation = match &request.correlation {
        Some(given) => Correlation::new(given)?,
        None => Correlation::new(correlation)?,
    };
    Ok(Call {
        tool: command.name.clone().into(),
        argv: command.argv_by(request.template.as_deref(), &words, &given)?,
        script: None,
        stdin: Stdin::text("stdin", request.stdin.clone().unwrap_or_default())?,
        env: Env::default(),
        cwd: Some(Cwd::workspace()),
        asked: Asked {
            wall: asked.or(Some(terms.timeout)),
            memory: Some(terms.memory),
            ..Asked::default()
        },
        profile: None,
        only: command.only(&given)?,
        correlation: Some(correlation),
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

/// Returns the id of a call: the caller's, if it can be echoed, else a new one.
pub fn correlation(given: Option<&str>) -> String {
    match given.filter(|id| Correlation::new(id).is_ok()) {
        Some(id) => id.to_owned(),
        None => fresh(),
    }
}

/// Makes an id for a call without one: the time and a number, so that log lines can be joined.
fn fresh() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
    format!("{time:x}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
