//! Answers of these tools: the seed's field names, and a text that a model can read.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

use crate::mcp::backend::Told;
use crate::mcp::reply;
use model::call::Cwd;
use model::outcome::Outcome;

/// Whether a reply has what went to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StderrIs {
    Told,
    LeftOut,
}

impl StderrIs {
    /// It is told unless the caller says no.
    pub fn asked(capture: Option<bool>) -> Self {
        if capture == Some(false) { Self::LeftOut } else { Self::Told }
    }
}

/// The result of `bash_exec`: six fields, and the same as text. What they cannot say, such as a time
/// limit that was reached, stands in a second text.
pub fn executed(told: &Told, command: &str, stderr: StderrIs) -> CallToolResult {
    let error = match stderr {
        StderrIs::Told => told.stderr.text.as_str(),
        StderrIs::LeftOut => "",
    };
    let mut fields = json!({
        "stdout": told.stdout.text,
        "stderr": error,
        "exit_code": exit_code(&told.outcome),
        "execution_time_ms": reply::millis(told.usage.wall),
        "working_dir": told.cwd,
        "command": command,
    });
    if let (Some(changed), Some(fields)) = (&told.files_changed, fields.as_object_mut()) {
        fields.insert("files_changed".to_owned(), reply::changes::fields(changed));
    }
    let mut result = reply::result(reply::pretty(&fields), reply::is_error(&told.outcome));
    let plain = matches!(told.outcome, Outcome::Exited { .. })
        && told.denials.is_empty()
        && !reply::are_cut(&told.stdout, &told.stderr)
        && told.clamped == crate::mcp::backend::Clamped::No;
    if !plain {
        result.content.push(ContentBlock::text(reply::status(told)));
    }
    with(result, told, fields)
}

/// One number for every end: the program's own, or the one that `cofferdam run` exits with.
pub fn exit_code(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Exited { code } => *code,
        Outcome::Signaled { signal } => signal.saturating_add(128),
        Outcome::Limit(_) => 123,
        Outcome::Timeout => 124,
        Outcome::Cancelled | Outcome::Failed(_) => 125,
    }
}

/// The result of the two tools that tell the directory.
pub fn working_dir(directory: &Cwd) -> CallToolResult {
    let fields = json!({ "working_dir": directory.as_str() });
    let mut result = reply::result(reply::pretty(&fields), false);
    result.structured_content = Some(fields);
    result
}

/// The result of a question whose fields are all of the answer.
pub fn answered(told: &Told, fields: Value) -> CallToolResult {
    let text = reply::pretty(&fields);
    with(reply::result(text, false), told, fields)
}

/// The result of a question whose answer is a text.
pub fn shown(told: &Told, text: &str, fields: Value) -> CallToolResult {
    with(reply::result(text.to_owned(), false), told, fields)
}

fn with(mut result: CallToolResult, told: &Told, fields: Value) -> CallToolResult {
    result.structured_content = Some(fields);
    result.meta = Some(reply::told_meta(told));
    result
}
