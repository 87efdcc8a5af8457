//! The audit log: one JSON line for each decision and each outcome, chained by hashes.
//!
//! Verifying the chain reveals changed, removed and reordered lines. The chain has no key: a writer
//! of the file can rewrite all of it, so only a hash stored elsewhere proves the rest.

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

use config::policy::{Denial, Grant, Principal};
use config::server::OnError;
use figures::Figures;
pub use figures::{CallCounts, DURATION_BOUNDS};
use file::LogFile;
pub use file::LogFileError;
use model::call::{Call, ToolName};
use model::egress::Connection;
use model::outcome::{Ended, in_words};
use model::receipt::Receipt;
pub use record::CallRecord;
use record::{ConnectionEntry, Decision, Ending, Record};

/// Where the log is, and how it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub file: PathBuf,
    /// Size in bytes at which a file is rotated.
    pub max_bytes: u64,
    /// Number of rotated files that are kept.
    pub keep: u32,
    pub on_error: OnError,
}

/// The call is refused, as it could not be recorded and the operator wants every call recorded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the audit log cannot be written: {reason}")]
pub struct Unrecorded {
    reason: String,
}

impl Unrecorded {
    /// The reason why such a call is refused, as a hint to the client.
    pub const HINT: &str =
        "the operator's `[audit] on_error = \"stop\"` refuses calls until it can be";
}

/// The log for the calls of one client, or no log. Clones write to the same log.
#[derive(Debug, Clone)]
pub struct Audit {
    log: Option<Arc<Log>>,
    /// Client that the lines name.
    principal: Principal,
    figures: Arc<Figures>,
}

#[derive(Debug)]
struct Log {
    state: Mutex<State>,
    on_error: OnError,
    /// Prefix of call numbers, so that ids of different processes differ.
    prefix: String,
    calls: AtomicU64,
}

#[derive(Debug)]
struct State {
    file: LogFile,
    lost: u64,
    reason: String,
}

impl Audit {
    /// Makes an audit without a log: calls are only counted.
    pub fn off() -> Self {
        Self { log: None, principal: Principal::local(), figures: Arc::default() }
    }

    /// Returns the same log for the calls of another client.
    #[must_use]
    pub fn for_client(&self, principal: Principal) -> Self {
        Self { log: self.log.clone(), principal, figures: Arc::clone(&self.figures) }
    }

    /// Opens the log for the local client. Must run before the front end is confined.
    ///
    /// # Errors
    /// Why the log cannot be used.
    pub fn open(options: &Options) -> Result<Self, LogFileError> {
        let state = State { file: LogFile::open(options)?, lost: 0, reason: String::new() };
        let log = Log {
            state: Mutex::new(state),
            on_error: options.on_error,
            prefix: format!("{}-{}", model::clock::now(), std::process::id()),
            calls: AtomicU64::new(0),
        };
        let log = Some(Arc::new(log));
        Ok(Self { log, principal: Principal::local(), figures: Arc::default() })
    }

    /// Returns the log's directory, the only one that a confined front end may write in.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn directory(&self) -> std::io::Result<Option<std::os::fd::OwnedFd>> {
        let Some(log) = &self.log else { return Ok(None) };
        log.state().file.directory().try_clone_to_owned().map(Some)
    }

    /// Returns the counters of calls since the start, by tool, over all clients.
    pub fn figures(&self) -> BTreeMap<String, CallCounts> {
        self.figures.all()
    }

    /// Returns the record of a requested call; `None` without a log.
    pub fn new_record(&self, call: &Call) -> Option<CallRecord> {
        let log = self.log.as_ref()?;
        let number = log.calls.fetch_add(1, Ordering::Relaxed);
        Some(CallRecord::new(format!("{}-{number}", log.prefix), &self.principal, call))
    }

    /// Records a grant to a call of a tool.
    ///
    /// # Errors
    /// If it cannot be recorded and [`OnError::Stop`] is set.
    pub fn granted(
        &self,
        tool: ToolName,
        request: Option<CallRecord>,
        grant: &Grant,
    ) -> Result<LoggedCall, Unrecorded> {
        let mut open =
            Open { log: None, tool, since: Instant::now(), figures: Arc::clone(&self.figures) };
        if let (Some(log), Some(request)) = (&self.log, request) {
            open.log = Some((Arc::clone(log), request.call.clone()));
            log.write(Record::Decision(Box::new(Decision::granted(request, grant))))?;
        }
        Ok(LoggedCall(Some(open)))
    }

    /// Records that a call of a tool was denied. If that fails, the call is denied all the same.
    pub fn denied(&self, tool: &str, request: Option<CallRecord>, denial: &Denial) {
        self.figures.denied(tool);
        if let (Some(log), Some(request)) = (&self.log, request) {
            log.note(Record::Decision(Box::new(Decision::denied(request, denial))));
        }
    }

    /// Records that a call had invalid arguments.
    pub fn invalid(&self, tool: &str, reason: &str) {
        self.figures.invalid(tool);
        if let Some(log) = &self.log {
            log.note(Record::invalid(&self.principal, tool, reason));
        }
    }

    /// Records that a tool reads, writes to or ends a job; `job` is empty for all jobs. Only length
    /// and hash of an input are recorded, as it may be a password.
    ///
    /// # Errors
    /// If it cannot be recorded and [`OnError::Stop`] is set.
    pub(crate) fn of_job(
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

    /// Returns how many lines were lost, and the reason; `None` while the log can be written.
    pub fn trouble(&self) -> Option<(u64, String)> {
        let state = self.log.as_ref()?.state();
        (state.lost > 0).then(|| (state.lost, state.reason.clone()))
    }
}

impl Log {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // The file's state is checked before each line, so a panic elsewhere does no harm.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, record: Record) -> Result<(), Unrecorded> {
        let mut state = self.state();
        let mut records = Vec::new();
        if state.lost > 0 {
            records.push(Record::Gap { lost: state.lost, why: state.reason.clone() });
        }
        records.push(record);
        match state.file.append(&records) {
            Ok(()) => {
                state.lost = 0;
                Ok(())
            }
            Err(error) => {
                let reason = in_words(&error);
                tracing::error!(lost = state.lost + 1, reason, "the audit log cannot be written");
                state.lost += 1;
                state.reason.clone_from(&reason);
                match self.on_error {
                    OnError::Continue => Ok(()),
                    OnError::Stop => Err(Unrecorded { reason }),
                }
            }
        }
    }

    /// Writes a record when the call cannot be refused any more; `write` logs and counts a failure.
    fn note(&self, record: Record) {
        if let Err(unrecorded) = self.write(record) {
            tracing::debug!(%unrecorded, "an outcome or a denial");
        }
    }
}

/// A granted call in the log. If dropped without an end, it is recorded as cancelled.
#[derive(Debug)]
#[must_use = "dropping it records that the call was taken back"]
pub struct LoggedCall(Option<Open>);

#[derive(Debug)]
struct Open {
    /// The log, and the id of the call in it.
    log: Option<(Arc<Log>, String)>,
    tool: ToolName,
    since: Instant,
    figures: Arc<Figures>,
}

/// Records the connections of one call; clones write to the same log.
#[derive(Debug, Clone)]
pub struct ConnectionLog {
    log: Arc<Log>,
    call: String,
    tool: ToolName,
}

impl ConnectionLog {
    /// Records a connection that was closed or denied.
    pub fn closed(&self, connection: &Connection) {
        let call = self.call.clone();
        let tool = self.tool.clone();
        self.log.note(Record::Connection(Box::new(ConnectionEntry::new(call, tool, connection))));
    }
}

impl LoggedCall {
    /// Returns the recorder of the call's connections; `None` without a log.
    pub fn connections(&self) -> Option<ConnectionLog> {
        let Open { log, tool, .. } = self.0.as_ref()?;
        let (log, call) = log.as_ref()?;
        Some(ConnectionLog { log: Arc::clone(log), call: call.clone(), tool: tool.clone() })
    }

    /// Records how the call ended.
    pub fn ended(mut self, ended: &Ended, receipt: Option<&Receipt>) {
        let Some(Open { log, tool, since, figures }) = self.0.take() else { return };
        let took = since.elapsed();
        figures.ended(&tool, took, ended);
        if let Some((log, call)) = log {
            log.note(Record::Outcome(Box::new(Ending::new(call, tool, took, ended, receipt))));
        }
    }

    /// Records that a granted call did not run.
    pub fn refused(mut self, reason: String) {
        self.close("refused", reason);
    }

    /// Records that the answer was cached: no cell ran.
    pub fn remembered(mut self) {
        self.close("cached", "the value was calculated before; no cell ran".to_owned());
    }

    /// Records that another process of the server answers: no cell ran.
    pub(crate) fn answered_without_a_cell(mut self) {
        self.close("read", "the layer of the workspace was read; no cell ran".to_owned());
    }

    /// Records that only the decision was requested: no cell ran.
    pub(crate) fn only_decided(mut self) {
        self.close("dry_run", "the caller asked for what would run; no cell ran".to_owned());
    }

    fn close(&mut self, outcome: &'static str, reason: String) {
        let Some(Open { log, tool, since, figures }) = self.0.take() else { return };
        let took = since.elapsed();
        figures.closed(&tool, took, outcome);
        if let Some((log, call)) = log {
            let ending = Ending::refused(call, tool, took, outcome, reason);
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
