//! Arguments of the tools that look at jobs and end them.

use std::fmt::Display;
use std::time::Duration;

use serde::Deserialize;

use super::{Arguments, Seconds};
use capture::grep::Pattern;
use model::call::{InvalidCall, STDIN_BYTES, seconds};
use model::defaults::INLINE_CHARACTERS;
use service::refused::{Refused, RefusedKind};
use service::request::{InputRequest, JobRequest, OutputRequest};
use service::session::{Eof, Offsets, Stop};

/// Arguments of `bash_output`. One of `job` and `output_id` names the command.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BashOutputArguments {
    pub job: Option<String>,
    pub output_id: Option<String>,
    pub since: Option<OutputOffsets>,
    pub tail: Option<usize>,
    pub grep: Option<String>,
    pub wait: Option<Seconds>,
    pub max_output: Option<usize>,
}

impl BashOutputArguments {
    /// Converts them to a request.
    ///
    /// # Errors
    /// A field that is missing or out of its bounds.
    pub fn request(self) -> Result<JobRequest, Refused> {
        let bad =
            |why: &dyn Display| Refused::new(RefusedKind::Arguments, format!("bash_output: {why}"));
        let id = match (self.job, self.output_id) {
            (Some(id), None) | (None, Some(id)) => id,
            (Some(_), Some(_)) | (None, None) => {
                return Err(bad(&"one of `job` and `output_id` is needed"));
            }
        };
        let pattern = self.grep.map(|pattern| Pattern::new(&pattern)).transpose();
        Ok(JobRequest::Output(OutputRequest {
            id,
            since: self.since.map(|OutputOffsets { stdout, stderr }| Offsets { stdout, stderr }),
            tail: self.tail,
            pattern: pattern.map_err(|error| bad(&error))?,
            wait: waited(self.wait)?.unwrap_or_default(),
            characters: self.max_output.unwrap_or(INLINE_CHARACTERS).min(INLINE_CHARACTERS),
        }))
    }
}

/// Returns the time to wait; zero is not to wait at all.
fn waited(wait: Option<Seconds>) -> Result<Option<Duration>, InvalidCall> {
    match wait {
        None => Ok(None),
        Some(given) if given.0 == 0.0 => Ok(Some(Duration::ZERO)),
        Some(given) => seconds("wait", given.0).map(Some),
    }
}

impl Arguments for BashOutputArguments {
    const FIELDS: &'static [&'static str] =
        &["job", "output_id", "since", "tail", "grep", "wait", "max_output"];
}

/// Bytes of each stream that were read before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputOffsets {
    #[serde(default)]
    pub stdout: u64,
    #[serde(default)]
    pub stderr: u64,
}

/// `bash_jobs` takes none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BashJobsArguments {}

impl Arguments for BashJobsArguments {
    const FIELDS: &'static [&'static str] = &[];
}

/// Arguments of `bash_input`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BashInputArguments {
    pub job: String,
    #[serde(default)]
    pub text: String,
    #[serde(default)]
    pub eof: bool,
    pub wait: Option<Seconds>,
}

impl BashInputArguments {
    /// Converts them to a request.
    ///
    /// # Errors
    /// A field that is missing or out of its bounds.
    pub fn request(self) -> Result<JobRequest, Refused> {
        let bad = |why: String| Refused::new(RefusedKind::Arguments, why);
        if self.text.is_empty() && !self.eof {
            return Err(bad("bash_input: `text` or `eof` is needed".to_owned()));
        }
        if self.text.len() > STDIN_BYTES {
            return Err(bad(format!("bash_input: `text`: at most {STDIN_BYTES} bytes")));
        }
        let eof = if self.eof { Eof::Yes } else { Eof::No };
        let wait = waited(self.wait)?;
        Ok(JobRequest::Input(InputRequest { job: self.job, text: self.text, eof, wait }))
    }
}

impl Arguments for BashInputArguments {
    const FIELDS: &'static [&'static str] = &["job", "text", "eof", "wait"];
}

/// Arguments of `bash_kill`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BashKillArguments {
    pub job: String,
    #[serde(default)]
    pub signal: JobSignal,
}

impl BashKillArguments {
    /// Converts them to a request.
    pub fn request(self) -> JobRequest {
        let stop = match self.signal {
            JobSignal::Interrupt => Stop::Interrupt,
            JobSignal::Terminate => Stop::Terminate,
            JobSignal::Kill => Stop::Kill,
        };
        JobRequest::Stop { job: self.job, stop }
    }
}

impl Arguments for BashKillArguments {
    const FIELDS: &'static [&'static str] = &["job", "signal"];
}

/// Signal that ends a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum JobSignal {
    #[default]
    #[serde(rename = "INT")]
    Interrupt,
    #[serde(rename = "TERM")]
    Terminate,
    #[serde(rename = "KILL")]
    Kill,
}
