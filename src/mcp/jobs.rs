//! Requests and results of `bash_output`, `bash_input`, `bash_jobs` and `bash_kill`.

use std::time::Duration;

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

use super::arguments::jobs::{
    BashInputArguments, BashKillArguments, BashOutputArguments, OutputOffsets,
};
use super::backend::CommandReport;
use super::reply::{self, millis, time_text};
use super::sessions::{self, Running};
use model::outcome::Outcome;

/// Jobs in one list, at most.
pub const LISTED: usize = 50;

/// A call of one of these tools.
#[derive(Debug, Clone, PartialEq)]
pub enum JobRequest {
    Output(BashOutputArguments),
    Input(BashInputArguments),
    List,
    Kill(BashKillArguments),
}

/// Answer to such a call.
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
    pub state: JobState,
    /// Byte offsets at which the next call reads on.
    pub next: OutputOffsets,
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

/// Progress of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    Ended(Box<CommandReport>),
    Running(Box<Running>),
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
    pub printed: OutputOffsets,
}

/// Makes the result of any of the tools.
pub fn answer(answer: &JobAnswer) -> CallToolResult {
    match answer {
        JobAnswer::One(looked) => one(looked),
        JobAnswer::List(jobs) => list(jobs),
    }
}

fn one(looked: &JobOutput) -> CallToolResult {
    let JobOutput { id, state, next, note, taken } = looked;
    let mut result = match state {
        JobState::Ended(told) => reply::told(told),
        JobState::Running(job) => sessions::running(job),
    };
    // The command's exit code does not matter here: this call asked for its state, and has it.
    result.is_error = Some(*taken == Some(InputTaken::Nothing));
    let offsets = json!({ "stdout": next.stdout, "stderr": next.stderr });
    let mut more = format!("[{id}: read on with since {offsets}]");
    if let Some(note) = note {
        more.push_str(&format!("\n[{note}]"));
    }
    result.content.push(ContentBlock::text(more));
    if let Some(fields) = result.structured_content.as_mut().and_then(Value::as_object_mut) {
        fields.insert("job".to_owned(), json!(id));
        fields.insert("next".to_owned(), offsets);
        match taken {
            Some(InputTaken::Bytes(bytes)) => {
                drop(fields.insert("taken_bytes".to_owned(), json!(bytes)))
            }
            Some(InputTaken::Nothing) => drop(fields.insert("taken_bytes".to_owned(), json!(0))),
            None => {}
        }
    }
    result
}

fn list(jobs: &[JobSummary]) -> CallToolResult {
    let shown = jobs.iter().take(LISTED);
    let mut text: String = shown.clone().map(line).collect();
    let left_out = jobs.len().saturating_sub(LISTED);
    if jobs.is_empty() {
        text.push_str("no jobs");
    } else if left_out > 0 {
        text.push_str(&format!("[… {left_out} older ones left out …]\n"));
    }
    let mut result = reply::result(text, false);
    let fields: Vec<Value> = shown.map(fields).collect();
    result.structured_content = Some(json!({ "jobs": fields, "left_out": left_out }));
    result
}

fn line(job: &JobSummary) -> String {
    let (took, end) = (time_text(job.took), job.outcome.as_ref());
    let state = match end {
        None => format!("running for {took}"),
        Some(Outcome::Exited { code }) => format!("exit {code} after {took}"),
        Some(
            other @ (Outcome::Signaled { .. }
            | Outcome::Timeout
            | Outcome::Limit(_)
            | Outcome::Cancelled
            | Outcome::Failed(_)),
        ) => format!("{} after {took}", other.name()),
    };
    format!("{} [{}] {state}: {}\n", job.id, job.session, job.command)
}

fn fields(job: &JobSummary) -> Value {
    let mut fields = json!({
        "job": job.id,
        "session": job.session,
        "command": job.command,
        "outcome": job.outcome.as_ref().map_or("running", Outcome::name),
        "duration_ms": millis(job.took),
        "stdout_bytes": job.printed.stdout,
        "stderr_bytes": job.printed.stderr,
    });
    if let (Some(Outcome::Exited { code }), Some(map)) = (&job.outcome, fields.as_object_mut()) {
        map.insert("exit_code".to_owned(), json!(code));
    }
    fields
}
