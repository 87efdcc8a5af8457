//! Results of commands and questions in fresh cells: the reference implementation's field names, and a text that a model can
//! read.

use rmcp::model::{CallToolResult, ContentBlock};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

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
    let mut fields = Map::from_iter([
        ("stdout".to_owned(), json!(report.stdout.text)),
        ("stderr".to_owned(), json!(error)),
        ("exit_code".to_owned(), json!(report.ended.outcome.exit_code())),
        ("execution_time_ms".to_owned(), json!(millis(report.ended.usage.wall))),
        ("working_dir".to_owned(), json!(report.cwd)),
        ("command".to_owned(), json!(command)),
    ]);
    if let Some(changed) = &report.ended.files_changed {
        fields.insert("files_changed".to_owned(), changes::fields(changed));
    }
    if let Some(tally) = &report.ended.network {
        fields.insert("network".to_owned(), network::fields(tally));
    }
    if are_cut(&report.stdout, &report.stderr) {
        fields.insert("stdout_bytes".to_owned(), json!(report.stdout.bytes));
        fields.insert("stderr_bytes".to_owned(), json!(report.stderr.bytes));
        fields.insert("truncated".to_owned(), json!(true));
        fields.extend(report.output_id.as_ref().map(|id| ("output_id".to_owned(), json!(id))));
    }
    reply::push_outcome(&mut fields, report);
    let fields = Value::Object(fields);
    let mut result = reply::result(reply::pretty(&fields), report.is_error());
    let plain = matches!(report.ended.outcome, Outcome::Exited { .. })
        && report.denials.is_empty()
        && !are_cut(&report.stdout, &report.stderr)
        && report.clamped == Clamped::No;
    if !plain {
        result.content.push(ContentBlock::text(reply::status(report)));
    }
    with_report(result, report, fields)
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
    with_report(reply::result(text, false), report, fields)
}

/// Makes the result of a question that is answered by a text.
pub(crate) fn shown(report: &CommandReport, text: &str, fields: Value) -> CallToolResult {
    with_report(reply::result(text.to_owned(), false), report, fields)
}

fn with_report(
    mut result: CallToolResult,
    report: &CommandReport,
    fields: Value,
) -> CallToolResult {
    result.structured_content = Some(fields);
    result.meta = Some(reply::command_meta(report));
    result
}
