//! A call of a declared command: its words checked, and the call of a cell that they make.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use super::Declared;
use config::policy::flags::{BadWords, DeclaredCommand, Input};
use model::call::{Asked, Call, Correlation, Cwd, Env, InvalidCall, Stdin, seconds};

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
