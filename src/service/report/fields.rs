//! The fields of a command's report: one JSON for every front door.
//!
//! An absent value has no field; it is never null.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    Clamped, CommandReport, CommandState, InputTaken, JobOutput, JobSummary, RunningReport,
    SessionAction, SessionFields, SessionReport, StreamReport, are_cut, changes, network,
    protection,
};
use crate::denied::DenialReport;
use crate::refused::{Refused, RefusedKind};
use model::outcome::{Outcome, Waits};

/// Amount of a report that its fields have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Detail {
    /// The fields that a model needs: byte counts and usage only where output was cut or a limit ended the command.
    #[default]
    Small,
    /// All of it.
    Full,
}

impl From<bool> for Detail {
    fn from(full: bool) -> Self {
        if full { Self::Full } else { Self::Small }
    }
}

#[derive(Debug, Serialize)]
struct CommandFields<'a> {
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'static str>,
    stdout: &'a str,
    stderr: &'a str,
    #[serde(flatten)]
    counts: Option<CountFields>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_id: Option<&'a str>,
    duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<UsageFields>,
    #[serde(skip_serializing_if = "Option::is_none")]
    denials: Option<&'a [DenialReport]>,
    cwd: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionFields<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    files_changed: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Value>,
}

/// Bytes that a command printed, and whether its fields have less of them.
#[derive(Debug, Serialize)]
struct CountFields {
    stdout_bytes: u64,
    stderr_bytes: u64,
    truncated: bool,
}

impl CountFields {
    fn of(stdout: &StreamReport, stderr: &StreamReport) -> Self {
        let truncated = are_cut(stdout, stderr);
        Self { stdout_bytes: stdout.bytes, stderr_bytes: stderr.bytes, truncated }
    }
}

#[derive(Debug, Serialize)]
struct RunningFields<'a> {
    outcome: &'static str,
    job: &'a str,
    stdout: &'a str,
    stderr: &'a str,
    #[serde(flatten)]
    counts: Option<CountFields>,
    duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for_input: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionFields<'a>>,
    notes: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
struct UsageFields {
    user_ms: u64,
    system_ms: u64,
    peak_memory_bytes: u64,
}

impl CommandReport {
    /// Returns the fields of what the command did.
    pub fn fields(&self, detail: Detail) -> Value {
        to_value(&self.described(detail))
    }

    /// Returns the fields, and with them what a reply with metadata has there: the time limit, the receipt,
    /// and the reason of a failure.
    pub fn whole(&self) -> Value {
        let mut fields = self.fields(Detail::Full);
        let Some(map) = fields.as_object_mut() else { return fields };
        map.insert("timeout_s".to_owned(), json!(self.timeout.as_secs_f64()));
        map.insert("clamped".to_owned(), json!(self.clamped == Clamped::Yes));
        let receipt = self.receipt_fields().map(|receipt| ("receipt".to_owned(), receipt));
        map.extend(receipt);
        if let Some(unrecorded) = &self.unrecorded {
            map.insert("audit".to_owned(), protection::unrecorded_fields(unrecorded));
        }
        if let Outcome::Failed(failure) = &self.ended.outcome {
            map.insert("failure".to_owned(), json!(failure.to_string()));
        }
        fields
    }

    fn described(&self, detail: Detail) -> CommandFields<'_> {
        let usage = &self.ended.usage;
        let met = matches!(self.ended.outcome, Outcome::Limit(_) | Outcome::Timeout);
        let counts = CountFields::of(&self.stdout, &self.stderr);
        let is_full = detail == Detail::Full || met || counts.truncated;
        let denials = Some(self.denials.as_slice());
        let session = self.session.as_ref().map(SessionReport::fields);
        let (exit_code, signal, limit) = match self.ended.outcome {
            Outcome::Exited { code } => (Some(code), None, None),
            Outcome::Signaled { signal } => (None, Some(signal_name(signal)), None),
            Outcome::Limit(kind) => (None, None, Some(kind.name())),
            Outcome::Timeout | Outcome::Cancelled | Outcome::Failed(_) => (None, None, None),
        };
        CommandFields {
            outcome: self.ended.outcome.name(),
            exit_code,
            signal,
            limit,
            stdout: &self.stdout.text,
            stderr: &self.stderr.text,
            counts: is_full.then_some(counts),
            output_id: self.output_id.as_deref(),
            duration_ms: millis(usage.wall),
            usage: is_full.then(|| UsageFields {
                user_ms: millis(usage.user),
                system_ms: millis(usage.system),
                peak_memory_bytes: usage.peak_memory,
            }),
            denials: denials.filter(|all| detail == Detail::Full || !all.is_empty()),
            cwd: &self.cwd,
            error: self.error(),
            hint: self.hint(),
            notes: self.notes().into_iter().chain(self.denial_notes()).collect(),
            session: session.filter(|session| detail == Detail::Full || session.has_news()),
            files_changed: self.ended.files_changed.as_ref().map(changes::fields),
            network: self.ended.network.as_ref().map(network::fields),
        }
    }

    /// Returns the time limit: `{timeout_s, clamped}`.
    pub fn timeout_fields(&self) -> Value {
        json!({ "timeout_s": seconds(self.timeout), "clamped": self.clamped == Clamped::Yes })
    }

    /// Returns the protection with the timings in microseconds, if the command had a cell.
    pub fn receipt_fields(&self) -> Option<Value> {
        let receipt = self.receipt.as_ref()?;
        Some(protection::with_timings(receipt, &self.ended.timings))
    }

    /// Returns true if the outcome is an error of the call. A non-zero exit is data.
    pub fn is_error(&self) -> bool {
        match self.ended.outcome {
            Outcome::Exited { .. } | Outcome::Signaled { .. } => false,
            Outcome::Timeout | Outcome::Limit(_) | Outcome::Cancelled | Outcome::Failed(_) => true,
        }
    }
}

impl RunningReport {
    /// Returns the fields of a command that continues.
    pub fn fields(&self, detail: Detail) -> Value {
        let session = self.session.fields();
        let counts = CountFields::of(&self.stdout, &self.stderr);
        let is_full = detail == Detail::Full || counts.truncated;
        to_value(&RunningFields {
            outcome: "running",
            job: &self.session.output_id,
            stdout: &self.stdout.text,
            stderr: &self.stderr.text,
            counts: is_full.then_some(counts),
            duration_ms: millis(self.elapsed),
            waiting_for_input: (self.input == Waits::Yes).then_some(true),
            session: Some(session).filter(|one| detail == Detail::Full || one.has_news()),
            notes: self.notes(),
        })
    }
}

/// Returns the fields of a call that has no command.
pub fn session_fields(session: &str, what: SessionAction) -> Value {
    let outcome = match what {
        SessionAction::Restart => "restarted",
        SessionAction::End => "ended",
    };
    json!({
        "outcome": outcome, "session": { "id": session }, "notes": [what.note(session)],
    })
}

impl JobOutput {
    /// Returns the fields of the command, of its job and of what its input took.
    pub fn fields(&self, detail: Detail) -> Value {
        let mut fields = match &self.state {
            CommandState::Ended(report) => report.fields(detail),
            CommandState::Running(running) => running.fields(detail),
        };
        let Some(map) = fields.as_object_mut() else { return fields };
        map.insert("job".to_owned(), json!(self.id));
        map.insert("next".to_owned(), self.offsets());
        let taken = self.taken.map(|taken| match taken {
            InputTaken::Bytes(bytes) => bytes,
            InputTaken::Nothing => 0,
        });
        map.extend(taken.map(|bytes| ("taken_bytes".to_owned(), json!(bytes))));
        match (&self.note, self.taken) {
            (Some(note), Some(InputTaken::Nothing)) => {
                map.insert("error".to_owned(), json!(note));
            }
            (Some(note), Some(InputTaken::Bytes(_)) | None) => {
                let notes = map.entry("notes").or_insert_with(|| json!([]));
                notes.as_array_mut().into_iter().for_each(|notes| notes.push(json!(note)));
            }
            (None, _) => {}
        }
        fields
    }

    /// Returns the offsets at which the next call reads on.
    pub fn offsets(&self) -> Value {
        json!({ "stdout": self.next.stdout, "stderr": self.next.stderr })
    }
}

impl JobSummary {
    /// Returns the fields of a job in a list.
    pub fn fields(&self) -> Value {
        let mut fields = json!({
            "job": self.id,
            "session": self.session,
            "command": self.command,
            "outcome": self.outcome.as_ref().map_or("running", Outcome::name),
            "duration_ms": millis(self.took),
            "stdout_bytes": self.printed.stdout,
            "stderr_bytes": self.printed.stderr,
        });
        if let (Some(Outcome::Exited { code }), Some(map)) = (&self.outcome, fields.as_object_mut())
        {
            map.insert("exit_code".to_owned(), json!(code));
        }
        fields
    }
}

impl Refused {
    /// Returns the fields of a command that did not run.
    pub fn command_fields(&self) -> Value {
        let outcome = match self.kind {
            RefusedKind::Arguments => "invalid",
            RefusedKind::Denied => "denied",
            RefusedKind::Cancelled => "cancelled",
            RefusedKind::Absent | RefusedKind::Failed => "failed",
        };
        let mut fields = self.fields();
        if let Some(map) = fields.as_object_mut() {
            map.insert("outcome".to_owned(), json!(outcome));
        }
        fields
    }

    /// Returns the reason and the way out.
    pub fn fields(&self) -> Value {
        let mut fields = json!({ "error": self.message });
        let hint = self.hint.iter().filter(|hint| !hint.is_empty());
        if let Some(map) = fields.as_object_mut() {
            map.extend(hint.map(|hint| ("hint".to_owned(), json!(hint))));
        }
        fields
    }
}

/// Formats a signal: `SIGSEGV`, or `signal 40` for one without a name.
pub(super) fn signal_name(signal: u8) -> String {
    match Signal::try_from(i32::from(signal)) {
        Ok(known) => known.as_str().to_owned(),
        Err(_) => format!("signal {signal}"),
    }
}

/// Returns whole milliseconds.
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

/// Formats whole seconds as an integer, anything else as a fraction.
fn seconds(time: Duration) -> Value {
    if time.subsec_nanos() == 0 { json!(time.as_secs()) } else { json!(time.as_secs_f64()) }
}

/// Serializes fields. This cannot fail for the types used here; if it did, the reply would say so.
pub fn to_value<T: Serialize>(fields: &T) -> Value {
    serde_json::to_value(fields)
        .unwrap_or_else(|error| json!({ "error": format!("not serialised: {error}") }))
}
