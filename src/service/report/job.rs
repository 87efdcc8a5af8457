//! Reports of commands that continue without a waiting call.

use std::time::Duration;

use super::CommandState;
use crate::session::{InputGiven, Offsets};
use model::outcome::Outcome;

/// Answer to a request about jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobAnswer {
    One(Box<JobOutput>),
    /// The newest first.
    List(Vec<JobSummary>),
}

/// A command with its output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOutput {
    pub id: String,
    pub state: CommandState,
    /// Byte offsets at which the next call reads on.
    pub next: Offsets,
    /// Additional remark, one line.
    pub note: Option<String>,
    /// Amount of text that was written to its input.
    pub taken: Option<InputTaken>,
}

/// Result of writing to a command's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputTaken {
    /// Number of bytes written.
    Bytes(usize),
    /// Nothing: no process reads the input.
    Nothing,
}

/// A job in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSummary {
    pub id: String,
    pub session: String,
    /// Beginning of its text.
    pub command: String,
    /// `None` while it runs.
    pub outcome: Option<Outcome>,
    pub took: Duration,
    pub printed: Offsets,
}

/// The end of a command that no call waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEnd {
    pub outcome: Outcome,
    /// Wall time.
    pub took: Duration,
    /// Bytes of both streams.
    pub printed: u64,
    /// Input that it was given while it ran.
    pub input: InputGiven,
}
