//! Tool results: output and a status line for a model, fields for a program.
//!
//! An absent value has no field; it is never null.

pub mod calculations;
mod calculator;
pub mod changes;

use std::time::Duration;

use nix::sys::signal::Signal;
use rmcp::model::{CallToolResult, ContentBlock, MetaObject};
use serde::Serialize;
use serde_json::{Value, json};

pub(crate) use calculator::{calculated, precision_set, scripted};
use model::outcome::{Outcome, Timings};
use model::receipt::Receipt;
use service::denied::DenialReport;
use service::refused::{Refused, RefusedKind};
use service::report::{Clamped, CommandReport, Cut, SessionFields, SessionReport, Stream, are_cut};
use service::rules::Rules;

/// Key of the receipt, in `_meta`: clients show models the structured content, not this.
pub(crate) const RECEIPT_KEY: &str = "cofferdam/receipt";
/// Key of the note that the audit log lacks lines: `{lost, why}`.
pub(crate) const AUDIT_KEY: &str = "cofferdam/audit";
/// Key of the call's time limit: `{timeout_s, clamped}`.
pub(crate) const TIMEOUT_KEY: &str = "cofferdam/timeout";

#[derive(Debug, Serialize)]
struct Structured<'a> {
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'static str>,
    stdout: &'a str,
    stderr: &'a str,
    stdout_bytes: u64,
    stderr_bytes: u64,
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_id: Option<&'a str>,
    duration_ms: u64,
    usage: StructuredUsage,
    denials: &'a [DenialReport],
    cwd: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionFields<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    files_changed: Option<Value>,
}

#[derive(Debug, Default, Serialize)]
struct StructuredUsage {
    user_ms: u64,
    system_ms: u64,
    peak_memory_bytes: u64,
}

/// Formats a signal: `SIGSEGV`, or `signal 40` for one without a name.
pub(crate) fn signal_name(signal: u8) -> String {
    match Signal::try_from(i32::from(signal)) {
        Ok(known) => known.as_str().to_owned(),
        Err(_) => format!("signal {signal}"),
    }
}

pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Formats a time for people: `12 ms`, `1.5 s`, `600 s`.
pub fn time_text(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        return format!("{} ms", time.as_millis());
    }
    let tenths = time.as_millis() / 100;
    match tenths % 10 {
        0 => format!("{} s", tenths / 10),
        rest => format!("{}.{rest} s", tenths / 10),
    }
}

/// Makes the result of a command that got as far as a cell.
pub fn told(told: &CommandReport) -> CallToolResult {
    let mut text = String::new();
    push_streams(&mut text, &told.stdout, &told.stderr);
    text.push_str(&status(told));
    let mut result = result(text, is_error(&told.outcome));
    result.structured_content = Some(fields(told));
    result.meta = Some(told_meta(told));
    result
}

/// Returns true if an outcome is an error of the call. A non-zero exit is data.
pub fn is_error(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Exited { .. } | Outcome::Signaled { .. } => false,
        Outcome::Timeout | Outcome::Limit(_) | Outcome::Cancelled | Outcome::Failed(_) => true,
    }
}

/// Returns the protection of a command and its time limit.
pub(super) fn told_meta(told: &CommandReport) -> MetaObject {
    let mut meta = meta(told.receipt.as_ref(), told.unrecorded.as_ref());
    if let Some(receipt) = &told.receipt {
        meta.0.insert(RECEIPT_KEY.to_owned(), with_timings(receipt, &told.timings));
    }
    let timeout =
        json!({ "timeout_s": seconds(told.timeout), "clamped": told.clamped == Clamped::Yes });
    meta.0.insert(TIMEOUT_KEY.to_owned(), timeout);
    meta
}

/// Returns the fields of a command's report.
pub fn fields(told: &CommandReport) -> Value {
    to_value(&structured(told))
}

fn structured(told: &CommandReport) -> Structured<'_> {
    let usage = &told.usage;
    Structured {
        outcome: told.outcome.name(),
        exit_code: match told.outcome {
            Outcome::Exited { code } => Some(code),
            Outcome::Signaled { .. }
            | Outcome::Timeout
            | Outcome::Limit(_)
            | Outcome::Cancelled
            | Outcome::Failed(_) => None,
        },
        signal: match told.outcome {
            Outcome::Signaled { signal } => Some(signal_name(signal)),
            Outcome::Exited { .. }
            | Outcome::Timeout
            | Outcome::Limit(_)
            | Outcome::Cancelled
            | Outcome::Failed(_) => None,
        },
        limit: match told.outcome {
            Outcome::Limit(kind) => Some(kind.name()),
            Outcome::Exited { .. }
            | Outcome::Signaled { .. }
            | Outcome::Timeout
            | Outcome::Cancelled
            | Outcome::Failed(_) => None,
        },
        stdout: &told.stdout.text,
        stderr: &told.stderr.text,
        stdout_bytes: told.stdout.bytes,
        stderr_bytes: told.stderr.bytes,
        truncated: is_cut(told),
        output_id: told.output_id.as_deref(),
        duration_ms: millis(usage.wall),
        usage: StructuredUsage {
            user_ms: millis(usage.user),
            system_ms: millis(usage.system),
            peak_memory_bytes: usage.peak_memory,
        },
        denials: &told.denials,
        cwd: &told.cwd,
        session: told.session.as_ref().map(SessionReport::fields),
        files_changed: told.files_changed.as_ref().map(changes::fields),
    }
}

fn is_cut(told: &CommandReport) -> bool {
    are_cut(&told.stdout, &told.stderr)
}

fn at_its_ends(told: &CommandReport) -> bool {
    told.stdout.cut == Cut::HeadAndTail || told.stderr.cut == Cut::HeadAndTail
}

/// Returns the last line of the text: outcome, duration, time limit, refused system calls.
pub(super) fn status(told: &CommandReport) -> String {
    let took = time_text(told.usage.wall);
    let what = told.session.as_ref().map_or("the cell was killed", SessionReport::killed);
    let printed = if told.stdout.text.is_empty() && told.stderr.text.is_empty() {
        "it had printed nothing"
    } else {
        "output above is what it had printed"
    };
    let killed = format!("{what}; {printed}");
    let end = match &told.outcome {
        Outcome::Exited { code } => format!("exit {code} in {took}"),
        Outcome::Signaled { signal } => {
            format!("ended by {} after {took}", signal_name(*signal))
        }
        Outcome::Timeout => format!("timed out after {}; {killed}", time_text(told.timeout)),
        Outcome::Limit(kind) => {
            format!("limit reached: {} after {took}; {killed}", kind.name().replace('_', " "))
        }
        Outcome::Cancelled => format!("cancelled after {took}; {killed}"),
        Outcome::Failed(failure) => match failure.hint() {
            Some(hint) => format!("failed: {failure}; hint: {hint}"),
            None => format!("failed: {failure}"),
        },
    };
    let mut line = format!("[{end}; time limit {}", time_text(told.timeout));
    if told.clamped == Clamped::Yes {
        line.push_str(", which is less than was asked for");
    }
    if at_its_ends(told) {
        line.push_str("; not all of the output is shown");
        if let Some(id) = &told.output_id {
            line.push_str(&format!(", bash_output with output_id {id} reads the rest"));
        }
    }
    line.push(']');
    if let Some(session) = &told.session {
        line.push_str(&session.notes(&told.outcome));
    }
    for denial in &told.denials {
        line.push('\n');
        line.push_str(&denial.line());
    }
    if let Some(notes) = told.receipt.as_ref().and_then(Receipt::unguarded) {
        line.push_str(&format!("\n[the workspace is not guarded in full: {notes}; `cofferdam doctor` in it has the remedy]"));
    }
    if let Some(changed) = &told.files_changed {
        line.push('\n');
        line.push_str(&changes::line(changed));
    }
    line
}

/// Appends both streams, each with a last newline.
pub(crate) fn push_streams(text: &mut String, stdout: &Stream, stderr: &Stream) {
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

/// Makes the result of a call without a report: an error, with a hint.
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
    if tool == "bash" {
        result.structured_content = nothing_ran(refused.kind).map(|fields| to_value(&fields));
    }
    result.meta = Some(meta(refused.receipt.as_deref(), None)).filter(|meta| !meta.0.is_empty());
    result
}

/// Returns the fields of a call that ran nothing. Bad arguments have no outcome: there was no call
/// yet.
fn nothing_ran(kind: RefusedKind) -> Option<Structured<'static>> {
    let outcome = match kind {
        RefusedKind::Arguments => return None,
        RefusedKind::Denied => "denied",
        RefusedKind::Cancelled => "cancelled",
        RefusedKind::Absent | RefusedKind::Failed => "failed",
    };
    Some(Structured {
        outcome,
        exit_code: None,
        signal: None,
        limit: None,
        stdout: "",
        stderr: "",
        stdout_bytes: 0,
        stderr_bytes: 0,
        truncated: false,
        output_id: None,
        duration_ms: 0,
        usage: StructuredUsage::default(),
        denials: &[],
        cwd: "/workspace",
        session: None,
        files_changed: None,
    })
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

/// Makes a result of this text.
pub fn result(text: String, error: bool) -> CallToolResult {
    let content = vec![ContentBlock::text(text)];
    if error { CallToolResult::error(content) } else { CallToolResult::success(content) }
}

/// Returns a receipt as JSON, with the protections that its tier lacks, if any.
fn receipt_value(receipt: &Receipt) -> Value {
    let mut value = to_value(receipt);
    let lacks = receipt.lacks();
    if let Some(map) = value.as_object_mut()
        && !lacks.is_empty()
    {
        map.insert("lacks".to_owned(), json!(lacks));
    }
    value
}

/// Adds the timings in microseconds to a receipt.
pub fn with_timings(receipt: &Receipt, timings: &Timings) -> Value {
    let mut value = receipt_value(receipt);
    if let Some(map) = value.as_object_mut() {
        let micros = |time: Duration| json!(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let phases = timings.named().map(|(name, time)| (name.to_owned(), micros(time)));
        map.insert("timings_us".to_owned(), Value::Object(phases.into_iter().collect()));
    }
    value
}

pub(super) fn meta(receipt: Option<&Receipt>, unrecorded: Option<&(u64, String)>) -> MetaObject {
    let mut meta = MetaObject::default();
    if let Some(receipt) = receipt {
        meta.0.insert(RECEIPT_KEY.to_owned(), receipt_value(receipt));
    }
    if let Some((lost, why)) = unrecorded {
        meta.0.insert(AUDIT_KEY.to_owned(), json!({ "lost": lost, "why": why }));
    }
    meta
}

/// Formats whole seconds as an integer, anything else as a fraction.
fn seconds(time: Duration) -> Value {
    if time.subsec_nanos() == 0 { json!(time.as_secs()) } else { json!(time.as_secs_f64()) }
}

/// Serializes fields. None of the types used here can fail to; if one did, the reply would say so.
pub fn to_value<T: Serialize>(fields: &T) -> Value {
    serde_json::to_value(fields)
        .unwrap_or_else(|error| json!({ "error": format!("not serialised: {error}") }))
}

pub(super) fn pretty(fields: &Value) -> String {
    serde_json::to_string_pretty(fields).unwrap_or_else(|_| fields.to_string())
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
