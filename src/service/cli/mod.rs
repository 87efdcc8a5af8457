//! Declared commands: words checked against a flag list, run alone in a cell, reported with the
//! reference implementation's fields.
//!
//! `request` checks a call, and `state` has the state that a tool's calls share, with its `breaker`; `result` makes the
//! reply, `output`, `xml` and `nmap` parse the output, `advice` classifies errors.

mod advice;
pub(crate) mod breaker;
pub(crate) mod hooks;
mod nmap;
mod output;
mod request;
mod result;
pub mod state;
mod xml;

use std::time::Duration;

pub use advice::ErrorType;
use config::commands::CommandSettings;
use config::policy::conduct::{BreakerLimits, Conduct};
use config::policy::flags::DeclaredCommand;
use model::profile::Profile;
pub(crate) use request::words;
pub use request::{BadRequest, DeclaredRequest, Words, call, correlation};
pub use result::{AboutCall, DeclaredResult, ToolError};

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
