//! Checks the conduct of a declared tool: retries, the circuit breaker, and the operator's words.

use std::time::Duration;

use toml::Spanned;

use crate::document::{Document, Mistake};
use crate::policy::conduct::{
    Conduct, DefaultWords, MAX_CONCURRENCY, MAX_FAILURES, MAX_RECOVERY, RETRY_DELAY, Retries,
    Template,
};
use crate::policy::schema::{WrittenBreaker, WrittenCommand, WrittenRetries, WrittenTemplate};
use crate::policy::values::plain;
use model::units::Time;

/// Maximum number of retries of a call.
const MAX_RETRIES: u32 = 5;

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
        let why = one.why.as_str().to_owned();
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
