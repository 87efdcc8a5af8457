//! A one-shot call in the supervisor, from the hand-over of its job to the end of its cell.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::cell::Cell;
use super::cell_life::{CellEnd, CellLife, PassedLimit};
use super::dying::{self, TurnBudget};
use super::handover;
use super::phases::Phases;
use super::prestart;
use super::queued_job::QueuedJob;
use super::streams::FarEnds;
use cell::report::FromInit;
use cell::{Design, Shared};
use model::defaults::GRACE;
use model::outcome::{Ended, LimitKind, Outcome, Usage};
use sys::process::Used;

/// The event that a step reports to the loop.
#[derive(Debug)]
pub(crate) enum CallEvent {
    None,
    Ended(Box<Ended>),
    /// The cell was reaped; carries the end if it was not reported before.
    Gone(Option<Box<Ended>>),
}

/// The errno, the job and the cell of a failed hand-over: nothing was executed.
pub(crate) type NotStarted = Box<(Errno, QueuedJob, Cell)>;

/// A call with its cell.
#[derive(Debug)]
pub(crate) struct Running {
    pub life: CellLife,
    /// Why the supervisor ends the call; overrides the program's status. While the cell is not ending, its programs
    /// have got TERM, and KILL follows at the deadline.
    stopped: Option<Outcome>,
    is_reported: bool,
    phases: Phases,
}

impl Running {
    /// Hands a job to a ready cell.
    ///
    /// # Errors
    /// The errno, with the job, which was not started, and the cell.
    pub(crate) fn begin(
        ready: QueuedJob,
        mut cell: Cell,
        design: &Design,
        measured: Instant,
    ) -> Result<(Self, FarEnds), NotStarted> {
        let is_prestarted = cell.prestarted.as_ref().is_some_and(|program| program.execed);
        let handed_over = match cell.prestarted.take() {
            Some(program) => prestart::feed(&cell, design, &ready, program),
            None => handover::hand_over(&mut cell, design, &ready),
        };
        let ends = match handed_over {
            Ok(ends) => ends,
            Err(errno) => return Err(Box::new((errno, ready, cell))),
        };
        let QueuedJob { start, block, limits, arrived, .. } = ready;
        cell.crawl.begin(Instant::now(), limits.memory);
        let mut phases = Phases::new(arrived, measured);
        if is_prestarted {
            phases.execed_before();
        }
        let mut life = CellLife::new(cell, block, limits, start.changes, start.workspace);
        life.deadline = phases.started.checked_add(limits.wall);
        Ok((Self { life, stopped: None, is_reported: false, phases }, ends))
    }

    /// Reads a message of the payload: either it cannot exec, or it has.
    pub(crate) fn read_job(&mut self) -> CallEvent {
        if self.life.read_job() {
            self.phases.execed();
        }
        CallEvent::None
    }

    /// Reads a message of init into `buffer`, which fits the longest report. Reports the end of the program now,
    /// or once the cell is reaped if the cell can still write to a workspace that outlives it.
    pub(crate) fn read_control(&mut self, buffer: &mut Vec<u8>) -> CallEvent {
        let Some((FromInit::Ended(_), _)) = self.life.receive(buffer) else {
            return CallEvent::None;
        };
        self.phases.reported();
        if self.life.keeps_workspace() {
            return CallEvent::None;
        }
        self.is_reported = true;
        self.life.death_check.end();
        CallEvent::Ended(self.end(Used::default()))
    }

    /// Ends the call from outside, immediately or after a grace period.
    pub(crate) fn stop(&mut self, outcome: Outcome, now: Instant) {
        if self.stopped.is_some() || self.life.is_ending() {
            return;
        }
        let is_graceful = matches!(outcome, Outcome::Timeout | Outcome::Cancelled);
        self.stopped = Some(outcome);
        if !is_graceful {
            return self.kill(now);
        }
        self.life.cell.crawl.end();
        self.life.deadline = Some(now + GRACE);
        // Fails if init has ended, with (ECONNRESET) or without (EPIPE) unread messages: its pidfd
        // is then readable. After any other error KILL follows.
        if let Err(errno) = self.life.cell.terminate() {
            tracing::debug!(%errno, "a cell could not be asked to end");
        }
    }

    fn kill(&mut self, now: Instant) {
        if !self.is_reported {
            self.life.death_check.begin(now);
        }
        self.life.kill(now);
    }

    /// Handles a due deadline.
    pub(crate) fn pass_deadline(&mut self, now: Instant) {
        match self.life.passed_limit(now) {
            None => {}
            Some(PassedLimit::Memory) => self.stop(Outcome::Limit(LimitKind::Memory), now),
            Some(PassedLimit::Time) if self.stopped.is_some() || self.life.is_ending() => {
                self.kill(now);
            }
            Some(PassedLimit::Time) => self.stop(Outcome::Timeout, now),
        }
    }

    /// Handles that the kernel ran out of this cell's memory.
    pub(crate) fn out_of_memory(&mut self) -> CallEvent {
        if self.life.cell.took_out_of_memory() {
            self.stop(Outcome::Limit(LimitKind::Memory), Instant::now());
        }
        CallEvent::None
    }

    /// Returns the end early if the cell ends slowly and its processes cannot run any more.
    pub(crate) fn answer_dying(
        &mut self,
        shared: &Shared,
        now: Instant,
        budget: TurnBudget,
    ) -> Option<Box<Ended>> {
        if !self.life.is_dead(shared, now, budget) {
            return None;
        }
        self.is_reported = true;
        let mut ended = self.end(Used::default());
        if self.life.lists_kept_changes() {
            ended.files_changed = dying::incomplete(ended.files_changed);
        }
        Some(ended)
    }

    /// Reaps the cell's init if it has ended.
    pub(crate) fn collect(&mut self) -> CallEvent {
        let Some(used) = self.life.cell.collect() else { return CallEvent::None };
        CallEvent::Gone((!self.is_reported).then(|| self.end(used)))
    }

    /// Returns the end of the call.
    fn end(&mut self, used: Used) -> Box<Ended> {
        let CellEnd { exec_failure, outcome, counts, peak, denials } = self.life.end(used);
        let failed = exec_failure.map(Outcome::Failed);
        let outcome = failed.or(self.stopped.take()).unwrap_or(outcome);
        let (peak_memory, peak_source) = peak;
        let usage = Usage {
            wall: self.phases.wall(),
            user: Duration::from_micros(counts.user_us),
            system: Duration::from_micros(counts.system_us),
            peak_memory,
            peak_source,
        };
        Box::new(Ended {
            usage,
            denials,
            timings: self.phases.timings(),
            files_changed: self.life.files_changed(),
            network: self.life.unreached(),
            full: counts.full,
            ..Ended::new(outcome)
        })
    }
}
