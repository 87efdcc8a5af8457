//! Arguments of the tools that look at jobs and end them.

use serde::Deserialize;

use super::{Arguments, Seconds};

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
