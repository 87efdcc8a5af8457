//! Results of these tools: the reference implementation's field names, and a text that a model can
//! read.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

use crate::reply;
use model::call::Cwd;
use model::outcome::Outcome;
use service::report::{Clamped, CommandReport, are_cut, changes, millis};
use service::request::StderrIs;

/// Makes the result of `bash_exec`: six fields, and the same as text. A second text has what they
/// cannot express, such as an exceeded time limit.
pub(crate) fn executed(told: &CommandReport, command: &str, stderr: StderrIs) -> CallToolResult {
    let error = match stderr {
        StderrIs::Told => told.stderr.text.as_str(),
        StderrIs::LeftOut => "",
    };
    let mut fields = json!({
        "stdout": told.stdout.text,
        "stderr": error,
        "exit_code": told.outcome.exit_code(),
        "execution_time_ms": millis(told.usage.wall),
        "working_dir": told.cwd,
        "command": command,
    });
    if let (Some(changed), Some(fields)) = (&told.files_changed, fields.as_object_mut()) {
        fields.insert("files_changed".to_owned(), changes::fields(changed));
    }
    if let (true, Some(fields)) = (are_cut(&told.stdout, &told.stderr), fields.as_object_mut()) {
        fields.insert("stdout_bytes".to_owned(), Value::from(told.stdout.bytes));
        fields.insert("stderr_bytes".to_owned(), Value::from(told.stderr.bytes));
        fields.insert("truncated".to_owned(), Value::Bool(true));
        let id = told.output_id.as_deref().map(|id| ("output_id".to_owned(), Value::from(id)));
        fields.extend(id);
    }
    let mut result = reply::result(reply::pretty(&fields), told.is_error());
    let plain = matches!(told.outcome, Outcome::Exited { .. })
        && told.denials.is_empty()
        && !are_cut(&told.stdout, &told.stderr)
        && told.clamped == Clamped::No;
    if !plain {
        result.content.push(ContentBlock::text(reply::status(told)));
    }
    with(result, told, fields)
}

/// Makes the result of the two tools that report the directory.
pub(crate) fn working_dir(directory: &Cwd) -> CallToolResult {
    reply::of_fields(json!({ "working_dir": directory.as_str() }))
}

/// Makes the result of a question that is answered by fields alone.
pub(crate) fn answered(told: &CommandReport, fields: Value) -> CallToolResult {
    let text = reply::pretty(&fields);
    with(reply::result(text, false), told, fields)
}

/// Makes the result of a question that is answered by a text.
pub(crate) fn shown(told: &CommandReport, text: &str, fields: Value) -> CallToolResult {
    with(reply::result(text.to_owned(), false), told, fields)
}

fn with(mut result: CallToolResult, told: &CommandReport, fields: Value) -> CallToolResult {
    result.structured_content = Some(fields);
    result.meta = Some(reply::told_meta(told));
    result
}
