//! Settings of command-line tools that neither a call nor the tool's own file decides.

use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::server::{Reader, Setting, ShownLine};
use model::defaults::{KIB, MIB, MIN_MEMORY};
use model::units::{Size, Time};
use policy::conduct::{
    BreakerLimits, CONCURRENCY, FAILURES, MAX_CONCURRENCY, MAX_FAILURES, MAX_RECOVERY, RECOVERY,
};
use policy::flags::MAX_BYTES;
use profile::document::Mistake;

/// Longest time of a call.
const TIMEOUT_MOST: Duration = Duration::from_secs(3600);
/// Most characters of a result's streams, and as many as are shown unless the file says less.
const STDOUT: u64 = MIB;
const STDERR: u64 = 256 * KIB;

/// Values of `[commands]`, each with where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandSettings {
    /// Time of a call where neither it nor the tool says one; the profile's if absent.
    pub timeout: Setting<Option<Duration>>,
    pub concurrency: Setting<u32>,
    pub failures: Setting<u32>,
    pub recovery: Setting<Duration>,
    /// Bytes of a call's `extra_args`.
    pub max_args: Setting<u64>,
    /// Characters of each stream in a result.
    pub max_stdout: Setting<u64>,
    pub max_stderr: Setting<u64>,
    /// Bytes of memory of a cell; the profile's if absent.
    pub memory: Setting<Option<u64>>,
}

/// Settings of command-line tools, where neither a call nor the tool's own file says otherwise.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenCommands {
    /// Time of a call where neither it nor the tool says one; the rule and the profile may leave less.
    ///
    /// Default: that of the profile. Example: `"60s"`.
    timeout: Option<Spanned<Time>>,
    /// Calls of one tool that run at once.
    ///
    /// Default: `2`. Example: `4`.
    concurrency: Option<Spanned<u32>>,
    /// Failures in a row that open a circuit breaker, 1 to 10.
    ///
    /// Default: `5`. Example: `3`.
    failures: Option<Spanned<u32>>,
    /// Time for which an open breaker refuses calls, one hour at most.
    ///
    /// Default: `"60s"`. Example: `"2m"`.
    recovery: Option<Spanned<Time>>,
    /// Bytes of `extra_args`, 2048 at most.
    ///
    /// Default: `2048`. Example: `512`.
    max_args: Option<Spanned<u64>>,
    /// Characters of standard output in a result, `1M` at most.
    ///
    /// Default: `"1M"`. Example: `"64K"`.
    max_stdout: Option<Spanned<Size>>,
    /// Characters of standard error in a result, `256K` at most.
    ///
    /// Default: `"256K"`. Example: `"16K"`.
    max_stderr: Option<Spanned<Size>>,
    /// Memory of a cell, where its profile has more; 8M at least.
    ///
    /// Default: that of the profile. Example: `"256M"`.
    memory: Option<Spanned<Size>>,
}

impl CommandSettings {
    pub(super) fn parse(reader: &Reader<'_>, written: &WrittenCommands) -> Result<Self, Mistake> {
        let within = |value: Option<&Spanned<u32>>, most: u32, usual: u32| match value
            .filter(|value| *value.get_ref() == 0 || *value.get_ref() > most)
        {
            Some(bad) => Err(reader.mistake(bad.span(), format!("must be 1 to {most}"))),
            None => Ok(reader.set(value, usual, |value| value)),
        };
        let size = |value: Option<&Spanned<Size>>, most: u64| match value
            .filter(|value| value.get_ref().0 == 0 || value.get_ref().0 > most)
        {
            Some(bad) => {
                let message = format!("must be above 0 and {} at most", Size(most));
                Err(reader.mistake(bad.span(), message))
            }
            None => Ok(reader.set(value, most, |size| size.0)),
        };
        let small = |size: &&Spanned<Size>| size.get_ref().0 < MIN_MEMORY;
        if let Some(bad) = written.memory.as_ref().filter(small) {
            let message = format!("must be {} at least", Size(MIN_MEMORY));
            return Err(reader.mistake(bad.span(), message));
        }
        let most_bytes = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX);
        let too_long = |value: &&Spanned<u64>| *value.get_ref() > most_bytes;
        if let Some(bad) = written.max_args.as_ref().filter(too_long) {
            return Err(reader.mistake(bad.span(), format!("must be {most_bytes} at most")));
        }
        let timeout = time(reader, written.timeout.as_ref(), TIMEOUT_MOST)?;
        let recovery = time(reader, written.recovery.as_ref(), MAX_RECOVERY)?;
        Ok(Self {
            timeout: reader.set(timeout, None, |time| Some(time.0)),
            concurrency: within(written.concurrency.as_ref(), MAX_CONCURRENCY, CONCURRENCY)?,
            failures: within(written.failures.as_ref(), MAX_FAILURES, FAILURES)?,
            recovery: reader.set(recovery, RECOVERY, |time| time.0),
            max_args: reader.set(written.max_args.as_ref(), most_bytes, |bytes| bytes),
            max_stdout: size(written.max_stdout.as_ref(), STDOUT)?,
            max_stderr: size(written.max_stderr.as_ref(), STDERR)?,
            memory: reader.set(written.memory.as_ref(), None, |size| Some(size.0)),
        })
    }

    /// Returns the limits of a breaker whose tool says nothing.
    pub fn breaker(&self) -> BreakerLimits {
        BreakerLimits { failures: self.failures.value, recovery: self.recovery.value }
    }

    pub(super) fn shown(&self) -> [ShownLine; 8] {
        fn shown<T>(key: &'static str, of: &Setting<T>, text: impl Fn(&T) -> String) -> ShownLine {
            ShownLine { key, value: text(&of.value), source: of.source.clone() }
        }
        let size = |bytes: &u64| Size(*bytes).to_string();
        let time = |time: &Duration| Time(*time).to_string();
        [
            shown("commands.timeout", &self.timeout, |it| it.as_ref().map_or(String::new(), time)),
            shown("commands.concurrency", &self.concurrency, u32::to_string),
            shown("commands.failures", &self.failures, u32::to_string),
            shown("commands.recovery", &self.recovery, time),
            shown("commands.max_args", &self.max_args, u64::to_string),
            shown("commands.max_stdout", &self.max_stdout, size),
            shown("commands.max_stderr", &self.max_stderr, size),
            shown("commands.memory", &self.memory, |it| it.as_ref().map_or(String::new(), size)),
        ]
    }
}

/// Checks a time: both have the same bound, one hour.
fn time<'w>(
    reader: &Reader<'_>,
    value: Option<&'w Spanned<Time>>,
    most: Duration,
) -> Result<Option<&'w Spanned<Time>>, Mistake> {
    match value.filter(|value| value.get_ref().0.is_zero() || value.get_ref().0 > most) {
        Some(bad) => Err(reader.mistake(bad.span(), "must be above 0 and 1h at most")),
        None => Ok(value),
    }
}
