//! Results of `bash_output`, `bash_input`, `bash_jobs` and `bash_kill`.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

use super::reply;
use super::sessions;
use model::outcome::Outcome;
use service::report::{InputTaken, JobAnswer, JobOutput, JobState, JobSummary, millis, time_text};

/// Jobs in one list, at most.
pub const LISTED: usize = 50;

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
