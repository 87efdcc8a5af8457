//! Conduct of a declared tool: how many calls run at once, when a call is retried, when calls are
//! refused for a while, which words the operator adds, and the form of the output.

use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::commands::why;
use super::schema::WrittenCommand;
use super::values::plain;
use model::units::Time;
use profile::document::{Document, Mistake};

/// Calls of one tool that run at once, unless the file says otherwise: the default of the reference
/// implementation.
pub const CONCURRENCY: u32 = 2;
/// Calls of one tool that wait for their turn, unless the file says otherwise.
const QUEUE: u32 = 256;
/// Failures in a row after which calls are refused, and the time for which they are.
pub const FAILURES: u32 = 5;
pub const RECOVERY: Duration = Duration::from_secs(60);
/// Upper bounds of these keys, those of the reference implementation.
pub const MAX_FAILURES: u32 = 10;
pub const MAX_RECOVERY: Duration = Duration::from_secs(3600);
/// Maximum number of retries of a call.
const MAX_RETRIES: u32 = 5;
/// Time before the first retry, unless the file says otherwise. It doubles before each further one.
const RETRY_DELAY: Duration = Duration::from_millis(500);
pub const MAX_CONCURRENCY: u32 = 1024;

/// Conduct of a declared tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conduct {
    /// Timeout of a call that names none. If absent, the server's file or the profile decides.
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

/// Form of a tool's standard output. The result's metadata then has it as data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputForm {
    /// Any text, which is not parsed.
    #[default]
    Text,
    /// One JSON value.
    Json,
    /// An XML document.
    Xml,
    /// The XML of nmap: hosts, ports, states and services.
    Nmap,
    /// JSON or XML if the output is one of these, else plain text.
    Auto,
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

/// Further attempts of a call that had no result: it met a limit, its time was over, or no cell could be made.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenRetries {
    /// Attempts after the first, 5 at most. Example: `2`.
    times: Spanned<u32>,
    /// Time before the second attempt; it doubles before each further one.
    ///
    /// Default: `"500ms"`. Example: `"1s"`.
    delay: Option<Time>,
    /// Exit codes of the program that count as no result.
    ///
    /// Default: `[]`. Example: `[7, 28]`.
    #[serde(default)]
    codes: Vec<u8>,
    /// Reason for it. Example: `"a name server may be slow to answer once"`.
    why: Spanned<String>,
}

/// Circuit breaker: after failures in a row, calls are refused for a while. Failures are timeouts, limits, signals
/// and a program that is not there; an exit code is none.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenBreaker {
    /// Failures in a row that open it, 1 to 10.
    ///
    /// Default: that of `[commands]`, else 5. Example: `3`.
    failures: Option<Spanned<u32>>,
    /// Time for which calls are refused, one hour at most; then one is let through, and its end decides.
    ///
    /// Default: that of `[commands]`, else 60s. Example: `"120s"`.
    recovery: Option<Spanned<Time>>,
}

/// Words that a call has unless it chooses others.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenDefault {
    /// Words, in order. Example: `["-T4"]`.
    args: Spanned<Vec<String>>,
    /// Flags that take their place.
    ///
    /// Default: `[]`. Example: `["-T0", "-T1"]`.
    #[serde(default)]
    unless: Vec<String>,
    /// Reason for it. Example: `"a scan of a near network need not be slow"`.
    why: Spanned<String>,
}

/// Words under a name, which a call can choose by the field `template`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenTemplate {
    /// Name: lower-case letters. Example: `"quick"`.
    name: Spanned<String>,
    /// Words, in order. Example: `["-T4", "--top-ports", "100"]`.
    args: Spanned<Vec<String>>,
    /// Reason for it; callers are told. Example: `"the hundred most common ports"`.
    why: Spanned<String>,
}

/// Checks the conduct of one declared tool. A key that is not written keeps its value in `base`.
pub(super) fn conduct(
    document: &Document,
    written: &WrittenCommand,
    base: Conduct,
) -> Result<Conduct, Mistake> {
    let concurrency = written.concurrency.as_ref();
    let concurrency = concurrency.map(|number| within(document, number, 1..=MAX_CONCURRENCY));
    let breaker = written.breaker.as_ref().map_or(Ok((None, None)), |it| breaker(document, it))?;
    if let Some(time) = written.timeout.as_ref().filter(|time| time.get_ref().0.is_zero()) {
        return Err(document.mistake(time.span(), "a timeout is above 0"));
    }
    let defaults = written.defaults.iter().map(|one| {
        why(document, &one.why)?;
        let args = words(document, &one.args)?;
        Ok(DefaultWords { args, unless: one.unless.clone() })
    });
    let defaults = defaults.collect::<Result<Vec<_>, Mistake>>()?;
    let templates = templates(document, &written.templates)?;
    Ok(Conduct {
        timeout: written.timeout.as_ref().map_or(base.timeout, |time| Some(time.get_ref().0)),
        concurrency: concurrency.transpose()?.or(base.concurrency),
        queue: written.queue.unwrap_or(base.queue),
        retries: written.retries.as_ref().map_or(Ok(base.retries), |it| retries(document, it))?,
        failures: breaker.0.or(base.failures),
        recovery: breaker.1.or(base.recovery),
        always: written.always.as_ref().map_or(Ok(base.always), |it| words(document, it))?,
        defaults: if defaults.is_empty() { base.defaults } else { defaults },
        templates: if templates.is_empty() { base.templates } else { templates },
        output: written.output.unwrap_or(base.output),
    })
}

fn retries(document: &Document, written: &WrittenRetries) -> Result<Retries, Mistake> {
    why(document, &written.why)?;
    let delay = written.delay.map_or(RETRY_DELAY, |time| time.0);
    let times = within(document, &written.times, 1..=MAX_RETRIES)?;
    Ok(Retries { times, delay, codes: written.codes.clone() })
}

fn breaker(
    document: &Document,
    written: &WrittenBreaker,
) -> Result<(Option<u32>, Option<Duration>), Mistake> {
    let failures = written.failures.as_ref();
    let failures = failures.map(|number| within(document, number, 1..=MAX_FAILURES));
    let recovery = written.recovery.as_ref();
    let bad = |time: &&Spanned<Time>| time.get_ref().0.is_zero() || time.get_ref().0 > MAX_RECOVERY;
    if let Some(time) = recovery.filter(bad) {
        return Err(document.mistake(time.span(), "`recovery` is above 0 and 1h at most"));
    }
    Ok((failures.transpose()?, recovery.map(|time| time.get_ref().0)))
}

fn templates(document: &Document, written: &[WrittenTemplate]) -> Result<Vec<Template>, Mistake> {
    let mut all: Vec<Template> = Vec::new();
    for one in written {
        let name = one.name.get_ref();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_lowercase()) {
            let message = "a template's name is lower-case letters";
            return Err(document.mistake(one.name.span(), message));
        }
        if all.iter().any(|other| other.name == *name) {
            return Err(
                document.mistake(one.name.span(), format!("there are two templates `{name}`"))
            );
        }
        let args = words(document, &one.args)?;
        let why = why(document, &one.why)?;
        all.push(Template { name: name.clone(), args, why });
    }
    Ok(all)
}

/// Checks the words that the operator adds: each is plain text without control characters.
fn words(document: &Document, written: &Spanned<Vec<String>>) -> Result<Vec<String>, Mistake> {
    match written.get_ref().iter().find_map(|word| plain(word).err()) {
        Some(why) => Err(document.mistake(written.span(), format!("a word of the list {why}"))),
        None => Ok(written.get_ref().clone()),
    }
}

fn within(
    document: &Document,
    number: &Spanned<u32>,
    range: std::ops::RangeInclusive<u32>,
) -> Result<u32, Mistake> {
    match range.contains(number.get_ref()) {
        true => Ok(*number.get_ref()),
        false => {
            let message = format!("must be {} to {}", range.start(), range.end());
            Err(document.mistake(number.span(), message))
        }
    }
}
