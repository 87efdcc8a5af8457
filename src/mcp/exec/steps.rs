//! Runs commands in sequence, each in a fresh cell, and reports them in one reply.

use rmcp::model::CallToolResult;
use serde_json::{Map, Value, json};

use super::run_command;
use crate::calls::ClientCalls;
use crate::context::Context;
use crate::reply;
use model::defaults::INLINE_CHARACTERS;
use model::outcome::Outcome;
use service::capture::Captured;
use service::capture::tap::Tap;
use service::capture::text::render;
use service::refused::Refused;
use service::report::{CommandReport, are_cut, millis};
use service::request::ExecRequest;

/// Tool as whose calls steps run.
const TOOL: &str = "bash_exec";

/// Returns true if a step exited with 0.
fn succeeded(report: &CommandReport) -> bool {
    report.ended.outcome == (Outcome::Exited { code: 0 })
}

/// Amount of a step's standard output in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stdout {
    Shown,
    /// Passed to the next step: the reply has its length.
    Counted,
}

/// Steps that ran, out of a known number.
#[derive(Debug)]
pub(crate) struct Steps {
    of: usize,
    /// True if steps follow one that failed.
    keep_going: bool,
    /// Fields of each step, and true where it exited with 0.
    done: Vec<(Value, bool)>,
    /// Report of the last step, which stands for all.
    last: Option<CommandReport>,
    stopped: Option<String>,
    notes: Vec<String>,
}

impl Steps {
    /// Makes the record of `of` steps; with `keep_going` a failed step is followed by the next.
    pub(crate) fn new(of: usize, keep_going: bool) -> Self {
        let done = Vec::new();
        Self { of, keep_going, done, last: None, stopped: None, notes: Vec::new() }
    }

    /// Returns the number of the next step, from 1 on.
    fn next(&self) -> usize {
        self.done.len() + 1
    }

    /// Runs the next step. Returns no report if it was refused; then no other step may follow.
    ///
    /// # Errors
    /// The refusal of the first step, which is that of the whole call.
    pub(crate) async fn run(
        &mut self,
        calls: &ClientCalls,
        request: ExecRequest,
        tap: Tap,
        context: &Context,
    ) -> Result<Option<CommandReport>, Refused> {
        match run_command(calls, TOOL, request, tap, context).await {
            Ok(report) => Ok(Some(report)),
            Err(refused) if self.done.is_empty() => Err(refused),
            Err(refused) => {
                self.stop(format!("step {} was refused: {refused}", self.next()));
                Ok(None)
            }
        }
    }

    /// Returns true if no step may follow one with this report: cancelling a call ends all of it.
    pub(crate) fn ends_with(&self, report: &CommandReport) -> bool {
        let is_cancelled = report.ended.outcome == Outcome::Cancelled;
        is_cancelled || (!succeeded(report) && !self.keep_going)
    }

    /// Adds the report of the next step; each gets an equal share of the reply.
    pub(crate) fn add(&mut self, command: &str, report: CommandReport, stdout: Stdout) {
        let room = INLINE_CHARACTERS / self.of.max(1);
        let streams = render(
            &Captured::of(report.stdout.text.as_bytes()),
            &Captured::of(report.stderr.text.as_bytes()),
            room,
        );
        let mut fields = Map::new();
        fields.insert("command".to_owned(), Value::from(start_of(command)));
        if stdout == Stdout::Shown {
            fields.insert("stdout".to_owned(), Value::from(streams.stdout));
        }
        fields.extend([
            ("stdout_bytes".to_owned(), Value::from(report.stdout.bytes)),
            ("stderr".to_owned(), Value::from(streams.stderr)),
            ("exit_code".to_owned(), Value::from(report.ended.outcome.exit_code())),
            ("execution_time_ms".to_owned(), Value::from(millis(report.ended.usage.wall))),
        ]);
        if stdout == Stdout::Shown && (streams.truncated || are_cut(&report.stdout, &report.stderr))
        {
            fields.insert("truncated".to_owned(), Value::Bool(true));
            let id =
                report.output_id.as_deref().map(|id| ("output_id".to_owned(), Value::from(id)));
            fields.extend(id);
        }
        if !matches!(report.ended.outcome, Outcome::Exited { .. }) || !report.denials.is_empty() {
            fields.insert("status".to_owned(), Value::from(reply::status(&report)));
        }
        let step = self.next();
        self.notes.extend(report.notes().iter().map(|note| format!("step {step}: {note}")));
        self.done.push((Value::Object(fields), succeeded(&report)));
        self.last = Some(report);
    }

    /// Records the reason why later steps did not run.
    pub(crate) fn stop(&mut self, reason: String) {
        self.stopped.get_or_insert(reason);
    }

    /// Returns true if every step has run.
    pub(crate) fn is_last(&self) -> bool {
        self.done.len() == self.of
    }

    /// Records that later steps do not run because the last one failed.
    pub(crate) fn stop_after_failure(&mut self) {
        self.stop(format!("step {} failed", self.done.len()));
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// Makes the result: `isError` if a step could not end by itself, or if steps did not run for
    /// another reason than an exit code.
    pub(crate) fn result(self) -> CallToolResult {
        let Self { of, done, last, stopped, notes, .. } = self;
        let ran = done.len();
        let failed = done.iter().position(|(_, succeeded)| !succeeded).map(|at| at + 1);
        let mut fields = json!({
            "steps": done.into_iter().map(|(fields, _)| fields).collect::<Vec<_>>(),
            "ran": ran,
            "of": of,
        });
        if let Some(map) = fields.as_object_mut() {
            map.extend(failed.map(|step| ("first_failed".to_owned(), Value::from(step))));
            map.extend(stopped.map(|why| ("stopped".to_owned(), Value::from(why))));
            let error = last.as_ref().and_then(CommandReport::error);
            let hint = last.as_ref().and_then(CommandReport::hint);
            map.extend(error.map(|error| ("error".to_owned(), Value::from(error))));
            map.extend(hint.map(|hint| ("hint".to_owned(), Value::from(hint))));
            reply::push_notes(map, notes);
        }
        let is_error = last.as_ref().is_some_and(CommandReport::is_error);
        let mut result = reply::result(reply::pretty(&fields), is_error);
        result.structured_content = Some(fields);
        result.meta = last.as_ref().map(reply::command_meta);
        result
    }
}

/// Returns enough of a command to recognize it: the client has the rest.
fn start_of(command: &str) -> String {
    const MAX_CHARACTERS: usize = 200;
    let mut characters = command.chars();
    let start: String = characters.by_ref().take(MAX_CHARACTERS).collect();
    if characters.next().is_some() { start + "…" } else { start }
}
