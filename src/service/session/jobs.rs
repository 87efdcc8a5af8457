//! Jobs: commands that continue without a waiting call, inspected and ended by their handle.
//!
//! They belong to one principal: with the handle it may read the output and end the command from
//! any session. The rule of `bash`, which started the job, is asked each time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::Command;
use super::feed::{Eof, InputEnd, Rest, WriteResult};
use crate::workbench::Workbench;
use crate::{Caller, Refusal, Report};
use model::job::JobSignal;

/// Interval at which a waiting call looks for output.
const GLANCE: Duration = Duration::from_millis(50);
/// Time to wait for the end of a job: INT, grace and the end of the cell.
pub(super) const END: Duration = Duration::from_secs(8);

/// Time to wait for a program that reads its input slowly.
const TAKEN: Duration = Duration::from_secs(1);

/// Byte offset up to which each stream was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offsets {
    pub stdout: u64,
    pub stderr: u64,
}

/// Way to end a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Interrupts it as ^C does; a process that ignores that is killed with its shell.
    Interrupt,
    /// Sends TERM to its processes; kills those that ignore it.
    Terminate,
    /// Sends KILL to its processes.
    Kill,
}

impl Command {
    /// Returns the length of both streams so far, with later output of background processes.
    pub fn printed(&self) -> Offsets {
        Offsets { stdout: self.stdout.printed(), stderr: self.stderr.printed() }
    }
}

impl Workbench {
    /// Returns the command with this handle, once it has more than `seen` of output, has ended, or
    /// `wait` is over.
    ///
    /// # Errors
    /// A denial by policy, or an unknown handle.
    pub(crate) async fn look(
        &self,
        id: &str,
        seen: Option<Offsets>,
        wait: Duration,
        caller: &Caller,
    ) -> Result<Arc<Command>, Refusal> {
        self.allowed("bash_output", id, None)?;
        let command = self.sessions.spool.find(id)?;
        command.query_input_now().await;
        if wait.is_zero() {
            return Ok(command);
        }
        let _waits = self.shared.queue.place(&self.principal)?;
        let seen = seen.unwrap_or_else(|| command.printed());
        let until = Instant::now() + wait;
        let fresh = |now: Offsets| now.stdout > seen.stdout || now.stderr > seen.stderr;
        let is_done = |command: &Command| command.is_over() || command.waits();
        while !is_done(&command) && !fresh(command.printed()) && Instant::now() < until {
            tokio::select! {
                biased;
                () = caller.cancel.cancelled() => break,
                _ = command.end() => {}
                () = command.waiting() => {}
                () = sleep_until(until) => {}
                () = sleep(GLANCE) => {}
            }
        }
        Ok(command)
    }

    /// Keeps the output of a call in a fresh cell, and returns its handle.
    #[must_use]
    pub(crate) fn keep(&self, report: &Report) -> Option<String> {
        report.receipt.as_ref()?;
        let id = self.sessions.spool.name();
        let control = self.shared.link.detached_control();
        let command = Command::past(id.clone(), None, report.clone(), control);
        self.sessions.spool.keep(command);
        Some(id)
    }

    /// Returns the command with this handle, for the server itself: no rule is asked.
    #[must_use]
    pub(crate) fn command(&self, id: &str) -> Option<Arc<Command>> {
        self.sessions.spool.find(id).ok()
    }

    /// Returns running and ended jobs, the newest first.
    ///
    /// # Errors
    /// A denial by policy.
    pub(crate) fn jobs(&self) -> Result<Vec<Arc<Command>>, Refusal> {
        self.allowed("bash_jobs", "", None)?;
        Ok(self.sessions.spool.jobs())
    }

    /// Writes to the input of a running command, and waits until it has ended, waits for more, or
    /// the time is over. Returns earlier output too.
    ///
    /// # Errors
    /// A denial by policy, or an unknown handle.
    pub(crate) async fn feed(
        &self,
        id: &str,
        text: &str,
        eof: Eof,
        wait: Duration,
        caller: &Caller,
    ) -> Result<(Arc<Command>, WriteResult, Offsets), Refusal> {
        self.allowed("bash_input", id, Some(text))?;
        let command = self.sessions.spool.find(id)?;
        let before = command.printed();
        let fed = match command.is_over() {
            true => WriteResult { taken: 0, rest: Some(Rest::Shut(InputEnd::Over)) },
            false => command.input.give(text.as_bytes(), eof, TAKEN).await,
        };
        if !matches!(fed.rest, Some(Rest::Shut(_))) {
            command.input.passed_on().await;
            command.query_input();
            tokio::select! {
                biased;
                () = caller.cancel.cancelled() => {}
                _ = command.end() => {}
                () = command.waiting() => {}
                () = sleep(wait) => {}
            }
        }
        Ok((command, fed, before))
    }

    /// Ends a command and waits for its end; returns whether it had ended before.
    ///
    /// # Errors
    /// A denial by policy, or an unknown handle.
    pub(crate) async fn stop(&self, id: &str, stop: Stop) -> Result<(Arc<Command>, bool), Refusal> {
        self.allowed("bash_kill", id, None)?;
        let command = self.sessions.spool.find(id)?;
        let was_over = command.is_over();
        if !was_over {
            match stop {
                Stop::Interrupt => command.control.cancel(),
                Stop::Terminate => command.control.signal(JobSignal::Terminate),
                Stop::Kill => command.control.signal(JobSignal::Kill),
            }
            // A command that does not end in this time is reported as running.
            drop(tokio::time::timeout(END, command.end()).await);
        }
        Ok((command, was_over))
    }

    /// Asks the rule of `bash`, and records its answer.
    fn allowed(&self, tool: &'static str, job: &str, input: Option<&str>) -> Result<(), Refusal> {
        let terms = self.terms.loaded.policy.terms(tool, &self.terms.loaded.profiles);
        self.audit.of_job(tool, job, input, terms.as_ref().map(|terms| terms.rule))?;
        terms.map(drop).map_err(Refusal::from)
    }
}
