//! The audit log: one JSON line for each decision and each outcome, chained by hashes.
//!
//! The chain shows a change, a removal or another order to whoever verifies it. It has no key: who
//! can write the file can write all of it anew, so a hash kept elsewhere is what proves the rest.

#![deny(unreachable_pub)]

pub mod chain;
mod figures;
mod file;
pub mod read;
mod record;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde::Deserialize;

use figures::Figures;
pub use figures::{CallCounts, DURATION_BOUNDS};
use file::LogFile;
pub use file::LogFileError;
use model::call::{Call, ToolName};
use model::egress::Connection;
use model::outcome::in_words;
use policy::{Denial, Grant, Principal};
pub use record::{CallRecord, Story};
use record::{ConnectionEntry, Decision, Ending, Record};

/// Treatment of calls while the log cannot be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// They run; replies and the server's own log say that lines are lost.
    #[default]
    Continue,
    /// They are refused until a line can be written again.
    Stop,
}

/// Place of the log, and how it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub file: PathBuf,
    /// Bytes before a file is rotated.
    pub max_bytes: u64,
    /// Rotated files that are kept.
    pub keep: u32,
    pub on_error: OnError,
}

/// A call is refused: it could not be recorded, and the operator wants no call without a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the audit log cannot be written: {why}\nhint: the operator's `[audit] on_error = \"stop\"` \
     refuses calls until it can be"
)]
pub struct Unrecorded {
    why: String,
}

/// The log as one client's calls are recorded in it, or none. Clones write to the same.
#[derive(Debug, Clone)]
pub struct Audit {
    log: Option<Arc<Log>>,
    /// Client that the lines of decisions, of jobs and of refused arguments name.
    principal: Principal,
    figures: Arc<Figures>,
}

#[derive(Debug)]
struct Log {
    state: Mutex<State>,
    on_error: OnError,
    /// Before the number of a call, so that ids of several processes differ.
    prefix: String,
    calls: AtomicU64,
}

#[derive(Debug)]
struct State {
    file: LogFile,
    lost: u64,
    why: String,
}

impl Audit {
    /// Makes an audit without a log: nothing is recorded.
    pub fn off() -> Self {
        Self { log: None, principal: Principal::local(), figures: Arc::default() }
    }

    /// Returns the same log for the calls of another client.
    #[must_use]
    pub fn of(&self, principal: Principal) -> Self {
        Self { log: self.log.clone(), principal, figures: Arc::clone(&self.figures) }
    }

    /// Opens the log for the local client; before the front end confines itself.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open(options: &Options) -> Result<Self, LogFileError> {
        let state = State { file: LogFile::open(options)?, lost: 0, why: String::new() };
        let log = Log {
            state: Mutex::new(state),
            on_error: options.on_error,
            prefix: format!("{}-{}", model::clock::now(), std::process::id()),
            calls: AtomicU64::new(0),
        };
        let log = Some(Arc::new(log));
        Ok(Self { log, principal: Principal::local(), figures: Arc::default() })
    }

    /// Returns the one directory that a confined front end may write in.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn directory(&self) -> std::io::Result<Option<std::os::fd::OwnedFd>> {
        let Some(log) = &self.log else { return Ok(None) };
        log.state().file.directory().try_clone_to_owned().map(Some)
    }

    /// Returns the counts of calls since the start, by tool, of all clients together.
    pub fn figures(&self) -> BTreeMap<String, CallCounts> {
        self.figures.all()
    }

    /// Returns the record of a call as it was asked; `None` without a log.
    pub fn asked(&self, call: &Call) -> Option<CallRecord> {
        let log = self.log.as_ref()?;
        let number = log.calls.fetch_add(1, Ordering::Relaxed);
        Some(CallRecord::of(format!("{}-{number}", log.prefix), &self.principal, call))
    }

    /// Records a grant to a call of a tool.
    ///
    /// # Errors
    /// When it cannot be recorded and calls are to stop then.
    pub fn granted(
        &self,
        tool: ToolName,
        asked: Option<CallRecord>,
        grant: &Grant,
    ) -> Result<LoggedCall, Unrecorded> {
        let mut open =
            Open { log: None, tool, since: Instant::now(), figures: Arc::clone(&self.figures) };
        if let (Some(log), Some(asked)) = (&self.log, asked) {
            open.log = Some((Arc::clone(log), asked.call.clone()));
            log.write(Record::Decision(Box::new(Decision::granted(asked, grant))))?;
        }
        Ok(LoggedCall(Some(open)))
    }

    /// Records a denial of a call of a tool; it stays one, recorded or not.
    pub fn denied(&self, tool: &str, asked: Option<CallRecord>, denial: &Denial) {
        self.figures.denied(tool);
        if let (Some(log), Some(asked)) = (&self.log, asked) {
            log.note(Record::Decision(Box::new(Decision::denied(asked, denial))));
        }
    }

    /// Records that the arguments of a call were not taken.
    pub fn invalid(&self, tool: &str, why: &str) {
        self.figures.invalid(tool);
        if let Some(log) = &self.log {
            log.note(Record::invalid(&self.principal, tool, why));
        }
    }

    /// Records that a tool looks at a job, writes to it or ends it; `job` is empty for all of them.
    /// Of an input its length and hash are recorded: it may be a password.
    ///
    /// # Errors
    /// When it cannot be recorded and calls are to stop then.
    pub fn of_job(
        &self,
        tool: &'static str,
        job: &str,
        input: Option<&str>,
        decided: Result<&str, &Denial>,
    ) -> Result<(), Unrecorded> {
        let Some(log) = &self.log else { return Ok(()) };
        let principal = &self.principal;
        match decided {
            Ok(rule) => log.write(Record::job(principal, tool, job, input, rule)),
            Err(denial) => {
                log.note(Record::no_job(principal, tool, job, denial));
                Ok(())
            }
        }
    }

    /// Returns the number of lost lines and the reason, for replies while lines are lost.
    pub fn trouble(&self) -> Option<(u64, String)> {
        let state = self.log.as_ref()?.state();
        (state.lost > 0).then(|| (state.lost, state.why.clone()))
    }
}

impl Log {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // The state that a panicking thread left is checked again before each line.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, record: Record) -> Result<(), Unrecorded> {
        let mut state = self.state();
        let mut records = Vec::new();
        if state.lost > 0 {
            records.push(Record::Gap { lost: state.lost, why: state.why.clone() });
        }
        records.push(record);
        match state.file.append(&records) {
            Ok(()) => {
                state.lost = 0;
                Ok(())
            }
            Err(error) => {
                let why = in_words(&error);
                tracing::error!(lost = state.lost + 1, why, "the audit log cannot be written");
                state.lost += 1;
                state.why.clone_from(&why);
                match self.on_error {
                    OnError::Continue => Ok(()),
                    OnError::Stop => Err(Unrecorded { why }),
                }
            }
        }
    }

    /// Writes where nothing is left to be refused; a failure is logged and counted by `write`.
    fn note(&self, record: Record) {
        if let Err(unrecorded) = self.write(record) {
            tracing::debug!(%unrecorded, "an outcome or a denial");
        }
    }
}

/// A granted call in the log. Dropped without an end, it is recorded as taken back.
#[derive(Debug)]
#[must_use = "dropping it records that the call was taken back"]
pub struct LoggedCall(Option<Open>);

#[derive(Debug)]
struct Open {
    /// The log, and the call's id in it.
    log: Option<(Arc<Log>, String)>,
    tool: ToolName,
    since: Instant,
    figures: Arc<Figures>,
}

/// Record of the connections of one call; its clones write to the same log.
#[derive(Debug, Clone)]
pub struct ConnectionLog {
    log: Arc<Log>,
    call: String,
    tool: ToolName,
}

impl ConnectionLog {
    /// Records a connection that has closed, or was denied.
    pub fn closed(&self, connection: &Connection) {
        let (call, tool) = (self.call.clone(), self.tool.clone());
        self.log.note(Record::Connection(Box::new(ConnectionEntry::of(call, tool, connection))));
    }
}

impl LoggedCall {
    /// Returns the record of the call's connections; nothing without a log.
    pub fn connections(&self) -> Option<ConnectionLog> {
        let Open { log, tool, .. } = self.0.as_ref()?;
        let (log, call) = log.as_ref()?;
        Some(ConnectionLog { log: Arc::clone(log), call: call.clone(), tool: tool.clone() })
    }

    /// Records how the call ended.
    pub fn ended(mut self, story: &Story<'_>) {
        let Some(Open { log, tool, since, figures }) = self.0.take() else { return };
        let took = since.elapsed();
        figures.ended(&tool, took, story);
        if let Some((log, call)) = log {
            log.note(Record::Outcome(Box::new(Ending::of(call, tool, took, story))));
        }
    }

    /// Records that a granted call did not run.
    pub fn refused(mut self, why: String) {
        self.close("refused", why);
    }

    /// Records that the answer was known: no cell ran.
    pub fn remembered(mut self) {
        self.close("cached", "the value was calculated before; no cell ran".to_owned());
    }

    /// Records that only the decision was asked for: no cell ran.
    pub fn only_decided(mut self) {
        self.close("dry_run", "the caller asked for what would run; no cell ran".to_owned());
    }

    fn close(&mut self, outcome: &'static str, why: String) {
        let Some(Open { log, tool, since, figures }) = self.0.take() else { return };
        let took = since.elapsed();
        figures.closed(&tool, took, outcome);
        if let Some((log, call)) = log {
            let ending = Ending::refused(call, tool, took, outcome, why);
            log.note(Record::Outcome(Box::new(ending)));
        }
    }
}

impl Drop for LoggedCall {
    fn drop(&mut self) {
        self.close("cancelled", "taken back before its end was seen".to_owned());
    }
}

#[cfg(test)]
mod tests;
