//! Tool results: output and a status line for a model, and the fields of the report for a program.

pub mod calculations;
mod calculator;
pub(crate) mod exec;
pub(crate) mod files;
pub(crate) mod jobs;
pub(crate) mod sessions;

use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use serde_json::{Map, Value};

use crate::harmless;
pub(crate) use calculator::{calculated, precision_set, scripted};
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
    let mut end = match (&report.ended.outcome, report.error()) {
        (Outcome::Timeout | Outcome::Limit(_) | Outcome::Cancelled, Some(error)) => {
            format!("{error}; {printed}")
        }
        (
            Outcome::Exited { .. }
            | Outcome::Signaled { .. }
            | Outcome::Failed(_)
            | Outcome::Timeout
            | Outcome::Limit(_)
            | Outcome::Cancelled,
            _,
        ) => report.end(),
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
    if let Some(place) = &report.absent_program {
        push_note(&mut line, place);
    }
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
    let mut text = match refused.kind {
        RefusedKind::Denied => format!("[{}]", refused.message),
        RefusedKind::Arguments
        | RefusedKind::Cancelled
        | RefusedKind::Absent
        | RefusedKind::Failed => refused.message.clone(),
    };
    if let Some(hint) = &refused.hint {
        text.push_str("\nhint: ");
        text.push_str(hint);
    }
    let mut result = result(text, true);
    result.structured_content = Some(match tool {
        "bash" => refused.command_fields(),
        _ => refused.fields(),
    });
    result.meta = Some(meta(refused.receipt.as_deref(), None)).filter(|meta| !meta.0.is_empty());
    result
}

/// Makes the result of `sandbox_rules`.
pub fn rules(rules: &Rules) -> CallToolResult {
    let mut result = result(rules.text(), false);
    result.structured_content = Some(to_value(rules));
    result
}

/// Makes the result of a call that is answered by fields: the text has the same.
pub(crate) fn of_fields(fields: Value) -> CallToolResult {
    let mut result = result(pretty(&fields), false);
    result.structured_content = Some(fields);
    result
}

/// Adds the fields that say why a command did not end by itself, and what else happened. The fields
/// of the reference implementations have no place for either.
pub(super) fn push_story(fields: &mut Map<String, Value>, report: &CommandReport) {
    fields.extend(report.error().map(|error| ("error".to_owned(), Value::from(error))));
    fields.extend(report.hint().map(|hint| ("hint".to_owned(), Value::from(hint))));
    if !report.denials.is_empty() {
        fields.insert("denials".to_owned(), to_value(&report.denials));
    }
    push_notes(fields, report.notes());
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
