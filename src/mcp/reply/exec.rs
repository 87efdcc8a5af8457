//! Results of these tools: the reference implementation's field names, and a text that a model can
//! read.

use rmcp::model::{CallToolResult, ContentBlock};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::reply;
use model::call::Cwd;
use model::outcome::Outcome;
use service::report::{Clamped, CommandReport, are_cut, changes, millis, network, to_value};
use service::request::StderrIs;

/// Makes the result of `bash_exec`: six fields, others where there is more to say, and the same as
/// text. A second text says it in a line.
pub(crate) fn executed(report: &CommandReport, command: &str, stderr: StderrIs) -> CallToolResult {
    let error = match stderr {
        StderrIs::Shown => report.stderr.text.as_str(),
        StderrIs::LeftOut => "",
    };
    let mut fields = json!({
        "stdout": report.stdout.text,
        "stderr": error,
        "exit_code": report.ended.outcome.exit_code(),
        "execution_time_ms": millis(report.ended.usage.wall),
        "working_dir": report.cwd,
        "command": command,
    });
    if let (Some(changed), Some(fields)) = (&report.ended.files_changed, fields.as_object_mut()) {
        fields.insert("files_changed".to_owned(), changes::fields(changed));
    }
    if let (Some(tally), Some(fields)) = (&report.ended.network, fields.as_object_mut()) {
        fields.insert("network".to_owned(), network::fields(tally));
    }
    if let (true, Some(fields)) = (are_cut(&report.stdout, &report.stderr), fields.as_object_mut())
    {
        fields.insert("stdout_bytes".to_owned(), Value::from(report.stdout.bytes));
        fields.insert("stderr_bytes".to_owned(), Value::from(report.stderr.bytes));
        fields.insert("truncated".to_owned(), Value::Bool(true));
        let id = report.output_id.as_deref().map(|id| ("output_id".to_owned(), Value::from(id)));
        fields.extend(id);
    }
    if let Some(fields) = fields.as_object_mut() {
        reply::push_story(fields, report);
    }
    let mut result = reply::result(reply::pretty(&fields), report.is_error());
    let plain = matches!(report.ended.outcome, Outcome::Exited { .. })
        && report.denials.is_empty()
        && !are_cut(&report.stdout, &report.stderr)
        && report.clamped == Clamped::No;
    if !plain {
        result.content.push(ContentBlock::text(reply::status(report)));
    }
    with(result, report, fields)
}

/// Result of the two tools that report the directory.
#[derive(Serialize, JsonSchema)]
pub(crate) struct WorkingDir {
    working_dir: String,
}

/// Makes the result of the two tools that report the directory.
pub(crate) fn working_dir(directory: &Cwd) -> CallToolResult {
    reply::of_fields(to_value(&WorkingDir { working_dir: directory.as_str().to_owned() }))
}

/// Makes the result of a question that is answered by fields alone.
pub(crate) fn answered(report: &CommandReport, fields: Value) -> CallToolResult {
    let text = reply::pretty(&fields);
    with(reply::result(text, false), report, fields)
}

/// Makes the result of a question that is answered by a text.
pub(crate) fn shown(report: &CommandReport, text: &str, fields: Value) -> CallToolResult {
    with(reply::result(text.to_owned(), false), report, fields)
}

fn with(mut result: CallToolResult, report: &CommandReport, fields: Value) -> CallToolResult {
    result.structured_content = Some(fields);
    result.meta = Some(reply::command_meta(report));
    result
}
