//! Tool results: output and a status line for a model, and the fields of the report for a program.

pub mod calculations;
pub(crate) mod exec;
pub(crate) mod files;
pub(crate) mod jobs;
pub(crate) mod sessions;

use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use serde_json::{Map, Value};

use crate::harmless;
use model::outcome::Outcome;
use model::receipt::Receipt;
use service::refused::{Refused, RefusedKind};
pub(crate) use service::report::millis;
use service::report::{
    Clamped, CommandReport, Cut, Detail, StreamReport, changes, network, receipt_fields, time_text,
    to_value, unrecorded_fields,
};
use service::rules::Rules;

/// Key of the receipt, in `_meta`: clients show models the structured content, not this.
pub(crate) const RECEIPT_KEY: &str = "cofferdam/receipt";
/// Key of the note that the audit log lacks lines: `{lost, why}`.
pub(crate) const AUDIT_KEY: &str = "cofferdam/audit";
/// Key of the call's time limit: `{timeout_s, clamped}`.
pub(crate) const TIMEOUT_KEY: &str = "cofferdam/timeout";

/// Makes the result of a command that got as far as a cell.
pub(crate) fn of_command(report: &CommandReport, detail: Detail) -> CallToolResult {
    let mut text = String::new();
    push_streams(&mut text, &report.stdout, &report.stderr);
    text.push_str(&status(report));
    let mut result = result(text, report.is_error());
    result.structured_content = Some(report.fields(detail));
    result.meta = Some(command_meta(report));
    result
}

/// Returns the protection of a command and its time limit.
pub(super) fn command_meta(report: &CommandReport) -> MetaObject {
    let mut meta = meta(report.receipt.as_ref(), report.unrecorded.as_ref());
    if let Some(receipt) = report.receipt_fields() {
        meta.0.insert(RECEIPT_KEY.to_owned(), receipt);
    }
    meta.0.insert(TIMEOUT_KEY.to_owned(), report.timeout_fields());
    meta
}

fn at_its_ends(report: &CommandReport) -> bool {
    report.stdout.cut == Cut::HeadAndTail || report.stderr.cut == Cut::HeadAndTail
}

/// Returns the last line of the text: outcome, duration, time limit, refused system calls.
pub(super) fn status(report: &CommandReport) -> String {
    let printed = if report.stdout.text.is_empty() && report.stderr.text.is_empty() {
        "it had printed nothing"
    } else {
        "output above is what it had printed"
    };
    let is_cut_short =
        matches!(report.ended.outcome, Outcome::Timeout | Outcome::Limit(_) | Outcome::Cancelled);
    let mut end = match report.error().filter(|_| is_cut_short) {
        Some(error) => format!("{error}; {printed}"),
        None => report.end(),
    };
    if let Some(hint) = report.hint() {
        end.push_str(&format!("; hint: {hint}"));
    }
    let mut line = format!("[{end}; time limit {}", time_text(report.timeout));
    if report.clamped == Clamped::Yes {
        line.push_str(", which is less than was asked for");
    }
    if at_its_ends(report) {
        line.push_str("; not all of the output is shown");
        if let Some(id) = &report.output_id {
            line.push_str(&format!(", bash_output with output_id {id} reads the rest"));
        }
    }
    line.push(']');
    if let Some(session) = &report.session {
        session.notes(&report.ended.outcome).iter().for_each(|note| push_note(&mut line, note));
    }
    report.remarks.iter().for_each(|note| push_note(&mut line, note));
    for denial in &report.denials {
        line.push('\n');
        line.push_str(&denial.line());
    }
    if let Some(note) = report.unguarded() {
        push_note(&mut line, &note);
    }
    for entry in report.ended.network.iter().flat_map(network::lines) {
        line.push('\n');
        line.push_str(&entry);
    }
    if let Some(changed) = &report.ended.files_changed {
        line.push('\n');
        line.push_str(&changes::line(changed));
    }
    line
}

/// Appends a remark, on a new line.
pub(crate) fn push_note(text: &mut String, note: &str) {
    text.push_str(&format!("\n[{note}]"));
}

/// Appends both streams, each with a last newline.
pub(crate) fn push_streams(text: &mut String, stdout: &StreamReport, stderr: &StreamReport) {
    push_stream(text, &stdout.text);
    if !stderr.text.is_empty() {
        text.push_str("[stderr]\n");
        push_stream(text, &stderr.text);
    }
}

fn push_stream(text: &mut String, stream: &str) {
    text.push_str(stream);
    if !stream.is_empty() && !stream.ends_with('\n') {
        text.push('\n');
    }
}

/// Makes the result of a call without a report: an error with a hint, as text and as fields.
pub fn refused(refused: &Refused, tool: &str) -> CallToolResult {
    let is_denied = refused.kind == RefusedKind::Denied;
    let message = &refused.message;
    let mut text = if is_denied { format!("[{message}]") } else { message.clone() };
    if let Some(hint) = &refused.hint {
        text.push_str("\nhint: ");
        text.push_str(hint);
    }
    let mut result = result(text, true);
    result.structured_content = Some(match tool {
        "bash" => refused.command_fields(),
        _ => refused.fields(),
    });
    result.meta = meta_if_any(refused.receipt.as_deref(), None);
    result
}

/// Makes the result of `sandbox_rules`.
pub(crate) fn rules(rules: &Rules) -> CallToolResult {
    with_fields(rules.text(), to_value(rules))
}

/// Makes the result of a call that is answered by fields: the text has the same.
pub(crate) fn of_fields(fields: Value) -> CallToolResult {
    with_fields(pretty(&fields), fields)
}

/// Makes the result of a call that succeeded, with a text for a model and fields for a program.
pub(super) fn with_fields(text: String, fields: Value) -> CallToolResult {
    let mut result = result(text, false);
    result.structured_content = Some(fields);
    result
}

/// Adds the fields that say why a command did not end by itself, and what else happened. The fields
/// of the reference implementations have no place for either.
pub(super) fn push_outcome(fields: &mut Map<String, Value>, report: &CommandReport) {
    fields.extend(report.error().map(|error| ("error".to_owned(), Value::from(error))));
    fields.extend(report.hint().map(|hint| ("hint".to_owned(), Value::from(hint))));
    if !report.denials.is_empty() {
        fields.insert("denials".to_owned(), to_value(&report.denials));
    }
    push_notes(fields, report.notes().into_iter().chain(report.denial_notes()).collect());
}

/// Adds remarks to fields, if there are any.
pub(super) fn push_notes(fields: &mut Map<String, Value>, notes: Vec<String>) {
    if !notes.is_empty() {
        fields.insert("notes".to_owned(), Value::from(notes));
    }
}

/// Makes a result of this text.
pub fn result(text: String, error: bool) -> CallToolResult {
    let content = vec![ContentBlock::text(text)];
    if error { CallToolResult::error(content) } else { CallToolResult::success(content) }
}

/// Returns the `_meta` of a result; `None` if it would be empty.
pub(super) fn meta_if_any(
    receipt: Option<&Receipt>,
    unrecorded: Option<&(u64, String)>,
) -> Option<MetaObject> {
    Some(meta(receipt, unrecorded)).filter(|meta| !meta.0.is_empty())
}

/// Returns the `_meta` of a result: its receipt, and the note that the audit log lacks lines.
pub(super) fn meta(receipt: Option<&Receipt>, unrecorded: Option<&(u64, String)>) -> MetaObject {
    let mut meta = MetaObject::default();
    if let Some(receipt) = receipt {
        meta.0.insert(RECEIPT_KEY.to_owned(), receipt_fields(receipt));
    }
    if let Some(unrecorded) = unrecorded {
        meta.0.insert(AUDIT_KEY.to_owned(), unrecorded_fields(unrecorded));
    }
    meta
}

/// Returns fields as text. Their texts are made harmless before: JSON has escapes for some of what is replaced, and
/// the text would differ from the fields.
pub(super) fn pretty(fields: &Value) -> String {
    let mut fields = fields.clone();
    harmless::value(&mut fields);
    serde_json::to_string_pretty(&fields).unwrap_or_else(|_| fields.to_string())
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
