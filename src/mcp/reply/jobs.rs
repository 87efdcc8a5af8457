//! Results of `bash_output`, `bash_input`, `bash_jobs` and `bash_kill`.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

use super::sessions;
use crate::reply;
use model::outcome::Outcome;
use service::report::{
    CommandState, Detail, InputTaken, JobAnswer, JobOutput, JobSummary, time_text,
};

/// Maximum jobs in one list.
const MAX_LISTED: usize = 50;

/// Makes the result of any of the tools.
pub(crate) fn answer(answer: &JobAnswer, detail: Detail) -> CallToolResult {
    match answer {
        JobAnswer::One(output) => one(output, detail),
        JobAnswer::List(jobs) => list(jobs),
    }
}

fn one(output: &JobOutput, detail: Detail) -> CallToolResult {
    let JobOutput { id, state, note, taken, .. } = output;
    let mut result = match state {
        CommandState::Ended(report) => reply::of_command(report, detail),
        CommandState::Running(job) => sessions::running(job, detail),
    };
    // The command's exit code does not matter here: this call asked for its state, and has it.
    result.is_error = Some(*taken == Some(InputTaken::Nothing));
    let mut more = format!("[{id}: read on with since {}]", output.offsets());
    if let Some(note) = note {
        more.push_str(&format!("\n[{note}]"));
    }
    result.content.push(ContentBlock::text(more));
    result.structured_content = Some(output.fields(detail));
    result
}

fn list(jobs: &[JobSummary]) -> CallToolResult {
    let shown = jobs.iter().take(MAX_LISTED);
    let mut text: String = shown.clone().map(line).collect();
    let left_out = jobs.len().saturating_sub(MAX_LISTED);
    if jobs.is_empty() {
        text.push_str("no jobs");
    } else if left_out > 0 {
        text.push_str(&format!("[… {left_out} older ones left out …]\n"));
    }
    let fields: Vec<Value> = shown.map(JobSummary::fields).collect();
    reply::with_fields(text, json!({ "jobs": fields, "left_out": left_out }))
}

fn line(job: &JobSummary) -> String {
    let took = time_text(job.took);
    let state = match &job.outcome {
        None => format!("running for {took}"),
        Some(Outcome::Exited { code }) => format!("exit {code} after {took}"),
        Some(other) => format!("{} after {took}", other.name()),
    };
    format!("{} [{}] {state}: {}\n", job.id, job.session, job.command)
}
