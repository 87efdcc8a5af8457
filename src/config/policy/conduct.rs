//! Conduct of a declared tool: how many calls run at once, when a call is retried, when calls are
//! refused for a while, which words the operator adds, and the form of the output.

use std::time::Duration;

/// Calls of one tool that run at once, unless the file says otherwise: the default of the reference
/// implementation.
pub(crate) const CONCURRENCY: u32 = 2;
/// Calls of one tool that wait for their turn, unless the file says otherwise.
const QUEUE: u32 = 256;
/// Failures in a row after which calls are refused, and the time for which they are.
pub(crate) const FAILURES: u32 = 5;
pub const RECOVERY: Duration = Duration::from_secs(60);
/// Upper bounds of these keys, those of the reference implementation.
pub const MAX_FAILURES: u32 = 10;
pub(crate) const MAX_RECOVERY: Duration = Duration::from_secs(3600);
/// Time before the first retry, unless the file says otherwise. It doubles before each further one.
pub(crate) const RETRY_DELAY: Duration = Duration::from_millis(500);
pub(crate) const MAX_CONCURRENCY: u32 = 1024;

/// Conduct of a declared tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conduct {
    /// Timeout of a call that does not set it. If absent, the server's file or the profile decides.
    pub timeout: Option<Duration>,
    /// Calls that run at once. If absent, the server's file decides.
    pub concurrency: Option<u32>,
    /// Calls that wait for a free place. A call beyond them is refused.
    pub queue: u32,
    pub retries: Retries,
    /// Limits of the circuit breaker. If absent, the server's file decides.
    pub failures: Option<u32>,
    pub recovery: Option<Duration>,
    /// Words directly after the program's name. No caller can change them.
    pub always: Vec<String>,
    pub defaults: Vec<DefaultWords>,
    pub templates: Vec<Template>,
    pub output: OutputForm,
}

/// Retries of a call that had no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retries {
    /// Attempts after the first.
    pub times: u32,
    /// Time before the second attempt; it doubles before each further one.
    pub delay: Duration,
    /// Exit codes of the program after which the call is retried. If the program has no exit code,
    /// it is retried only if it was ended from outside.
    pub codes: Vec<u8>,
}

/// Limits of a circuit breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerLimits {
    /// Failures in a row that open it.
    pub failures: u32,
    /// Time for which it refuses calls before one is let through.
    pub recovery: Duration,
}

/// Words that a call gets by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultWords {
    pub args: Vec<String>,
    /// Flags that replace the words: a call with one of them does not get the words.
    pub unless: Vec<String>,
}

/// Named words that a call chooses by the field `template`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub name: String,
    pub args: Vec<String>,
    pub why: String,
}

words! {
    /// Form of a tool's standard output. The result's metadata then has it as data.
    pub enum OutputForm {
        /// Any text, which is not parsed.
        Text = "text",
        /// One JSON value.
        Json = "json",
        /// An XML document.
        Xml = "xml",
        /// The XML of nmap: hosts, ports, states and services.
        Nmap = "nmap",
        /// JSON or XML if the output is one of these, else plain text.
        Auto = "auto",
    }
}

impl Default for Conduct {
    fn default() -> Self {
        Self {
            timeout: None,
            concurrency: None,
            queue: QUEUE,
            retries: Retries { times: 0, delay: RETRY_DELAY, codes: Vec::new() },
            failures: None,
            recovery: None,
            always: Vec::new(),
            defaults: Vec::new(),
            templates: Vec::new(),
            output: OutputForm::Text,
        }
    }
}

impl Conduct {
    /// Returns the template of this name.
    pub fn template(&self, name: &str) -> Option<&Template> {
        self.templates.iter().find(|template| template.name == name)
    }

    /// Returns the default words for a call with these words.
    pub(crate) fn default_words<'a>(
        &'a self,
        words: &'a [String],
    ) -> impl Iterator<Item = &'a String> {
        let given = |flag: &String| {
            words.iter().any(|word| word == flag || word.split('=').next() == Some(flag))
        };
        let apply = move |one: &&DefaultWords| !one.unless.iter().any(given);
        self.defaults.iter().filter(apply).flat_map(|one| &one.args)
    }
}
