//! Jobs: commands that nobody waits for any more, looked at and ended by their handle.
//!
//! They are one principal's: who has the handle may read the output and end the command, from
//! whatever session. The rule of `bash` is asked each time, as the job came by it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::feed::{Eof, Fed, Rest, Shut};
use super::spool::{MOST_BYTES, MOST_COMMANDS};
use super::{Command, Finished};
use crate::tools::{Caller, Refusal, Workbench};
use model::job::JobSignal;

const KEPT_MIB: u64 = MOST_BYTES >> 20;
/// How often a caller that waits looks for output.
const GLANCE: Duration = Duration::from_millis(50);
/// How long the end of a command that is ended is awaited: INT, grace and the end of the cell.
const END: Duration = Duration::from_secs(8);

/// How long a text waits for a program that reads slowly.
const TAKEN: Duration = Duration::from_secs(1);

/// Why there is nothing to look at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoJob {
    #[error("there is no job `{0}`\nhint: bash_jobs lists them")]
    Unknown(String),
    #[error(
        "the output of `{0}` is forgotten\nhint: that of the last {MOST_COMMANDS} commands is \
         kept, and at most {KEPT_MIB} MiB"
    )]
    Forgotten(String),
}

/// How far each stream was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offsets {
    pub stdout: u64,
    pub stderr: u64,
}

/// How a job is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// As ^C does; what does not heed it is killed with its shell.
    Interrupt,
    /// TERM to its processes; what does not heed it is killed.
    Terminate,
    /// KILL to its processes.
    Kill,
}

impl Command {
    /// How much both streams have so far, with what background processes printed after the end.
    pub fn printed(&self) -> Offsets {
        Offsets { stdout: self.stdout.printed(), stderr: self.stderr.printed() }
    }
}

impl Workbench {
    /// The command with this handle, once there is more than `seen` of its output, it has ended,
    /// or `wait` is over.
    ///
    /// # Errors
    /// When policy denies it, or there is no such command.
    pub async fn look(
        &self,
        id: &str,
        seen: Option<Offsets>,
        wait: Duration,
        caller: &Caller,
    ) -> Result<Arc<Command>, Refusal> {
        self.allowed("bash_output", id, None)?;
        let command = self.sessions.spool.find(id)?;
        command.asked().await;
        if wait.is_zero() {
            return Ok(command);
        }
        let _waits = self.queue.place()?;
        let seen = seen.unwrap_or_else(|| command.printed());
        let until = Instant::now() + wait;
        let fresh = |now: Offsets| now.stdout > seen.stdout || now.stderr > seen.stderr;
        let told = |command: &Command| command.finished().is_some() || command.waits_for_input();
        while !told(&command) && !fresh(command.printed()) && Instant::now() < until {
            tokio::select! {
                biased;
                () = caller.cancel.cancelled() => break,
                _ = command.end() => {}
                () = command.waits() => {}
                () = sleep_until(until) => {}
                () = sleep(GLANCE) => {}
            }
        }
        Ok(command)
    }

    /// The command with this handle, for the server itself: no rule is asked.
    #[must_use]
    pub fn command(&self, id: &str) -> Option<Arc<Command>> {
        self.sessions.spool.find(id).ok()
    }

    /// Jobs that run and that have ended, the newest first.
    ///
    /// # Errors
    /// When policy denies it.
    pub fn jobs(&self) -> Result<Vec<Arc<Command>>, Refusal> {
        self.allowed("bash_jobs", "", None)?;
        Ok(self.sessions.spool.jobs())
    }

    /// Writes to the input of a command that runs, and waits until it has ended, waits for more, or
    /// the time is over. What it had printed before is told too.
    ///
    /// # Errors
    /// When policy denies it, or there is no such command.
    pub async fn feed(
        &self,
        id: &str,
        text: &str,
        eof: Eof,
        wait: Duration,
        caller: &Caller,
    ) -> Result<(Arc<Command>, Fed, Offsets), Refusal> {
        self.allowed("bash_input", id, Some(text))?;
        let command = self.sessions.spool.find(id)?;
        let before = command.printed();
        let fed = match command.finished() {
            Some(_) => Fed { taken: 0, rest: Some(Rest::Shut(Shut::Over)) },
            None => command.input.give(text.as_bytes(), eof, TAKEN).await,
        };
        if !matches!(fed.rest, Some(Rest::Shut(_))) {
            command.input.passed_on().await;
            command.ask();
            tokio::select! {
                biased;
                () = caller.cancel.cancelled() => {}
                _ = command.end() => {}
                () = command.waits() => {}
                () = sleep(wait) => {}
            }
        }
        Ok((command, fed, before))
    }

    /// Ends a command, and waits for its end; how it had ended before, if it had.
    ///
    /// # Errors
    /// When policy denies it, or there is no such command.
    pub async fn stop(
        &self,
        id: &str,
        stop: Stop,
    ) -> Result<(Arc<Command>, Option<Finished>), Refusal> {
        self.allowed("bash_kill", id, None)?;
        let command = self.sessions.spool.find(id)?;
        let before = command.finished();
        if before.is_none() {
            match stop {
                Stop::Interrupt => command.control.cancel(),
                Stop::Terminate => command.control.signal(JobSignal::Terminate),
                Stop::Kill => command.control.signal(JobSignal::Kill),
            }
            // It may be that it does not end; then it is told as one that runs.
            drop(tokio::time::timeout(END, command.end()).await);
        }
        Ok((command, before))
    }

    /// Asks the rule of `bash`, and records what it says.
    fn allowed(&self, tool: &'static str, job: &str, input: Option<&str>) -> Result<(), Refusal> {
        let terms = self.policy.terms(tool, &self.profiles);
        self.audit.of_job(tool, job, input, terms.as_ref().map(|terms| terms.rule))?;
        terms.map(drop).map_err(Refusal::from)
    }
}
