//! The life of a call in the supervisor, from the hand-over of its job to the end of its cell.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::cell::Cell;
use super::cell::CellSocket;
use super::dying::{self, DeathCheck, TurnBudget};
use super::exit::{self, LINGER};
use super::handover;
use super::phases::Phases;
use super::prestart;
use super::queued_job::QueuedJob;
use super::streams::FarEnds;
use cell::report::{self, FromInit, PayloadEnd, REPORT_BYTES};
use cell::{Design, Shared};
use model::defaults::GRACE;
use model::job::{Limits, ListChanges, Workspace};
use model::outcome::{Ended, Failure, FilesChanged, LimitKind, Outcome, Usage};
use model::wire::{Block, Start};
use sys::process::Used;
use sys::socket::{self, PacketWait};

/// The stage of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallStage {
    /// The job was handed over.
    Running,
    /// TERM was sent, and KILL follows.
    Terminating,
    /// The end is known, and init is exiting.
    Ending,
}

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
    start: Start,
    block: Block,
    pub limits: Limits,
    pub cell: Cell,
    stage: CallStage,
    deadline: Option<Instant>,
    /// Why the supervisor ends the call; overrides the program's status.
    stopped: Option<Outcome>,
    /// Why the program could not start.
    exec: Option<Failure>,
    /// The end, held back until the cell is reaped if the workspace outlives the cell.
    ended: Option<Box<Ended>>,
    is_reported: bool,
    /// Schedule of checks whether the end can be reported before the cell is reaped.
    death_check: DeathCheck,
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
        let running = Self {
            start,
            block,
            limits,
            cell,
            stage: CallStage::Running,
            deadline: phases.started.checked_add(limits.wall),
            stopped: None,
            exec: None,
            ended: None,
            is_reported: false,
            death_check: DeathCheck::default(),
            phases,
        };
        Ok((running, ends))
    }

    pub(crate) fn workspace(&self) -> Workspace {
        self.start.workspace
    }

    /// Returns true if the program has ended: the remaining processes do not compete for
    /// processors.
    pub(crate) fn is_over(&self) -> bool {
        self.stage == CallStage::Ending
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let crawl = self.cell.crawl.at().filter(|_| self.stage == CallStage::Running);
        [self.deadline, self.death_check.at(), crawl].into_iter().flatten().min()
    }

    /// Reads a message of the payload: either it cannot exec, or it has.
    pub(crate) fn read_job(&mut self) -> CallEvent {
        match self.read_exec_failure() {
            Ok(()) | Err(Errno::EAGAIN) => {}
            Err(_) => {
                self.phases.execed();
                self.cell.stop_listening(CellSocket::Job);
            }
        }
        CallEvent::None
    }

    /// Reads a message of init into `room`, which fits the longest report.
    pub(crate) fn read_control(&mut self, room: &mut Vec<u8>) -> CallEvent {
        match socket::receive_into(&self.cell.control, room, PacketWait::No) {
            Ok(received) if received.bytes > 0 => {}
            Err(Errno::EAGAIN) => return CallEvent::None,
            // The pidfd shows the end.
            Ok(_) | Err(_) => {
                self.cell.stop_listening(CellSocket::Control);
                return CallEvent::None;
            }
        }
        match postcard::take_from_bytes::<FromInit>(room) {
            Ok((FromInit::Ended(end), rest)) => self.end(end, rest),
            Ok((FromInit::Failed { step, errno }, _)) => {
                self.exec = Some(Failure::Setup { step: step.name().to_owned(), errno });
                CallEvent::None
            }
            // Init does not send these to a running cell; its end will show what is wrong.
            Ok((
                FromInit::Sealed
                | FromInit::Network
                | FromInit::Counted(_)
                | FromInit::Shown { .. }
                | FromInit::Confirmed { .. }
                | FromInit::Input { .. }
                | FromInit::JobEnded(_),
                _,
            ))
            | Err(_) => CallEvent::None,
        }
    }

    /// Reads a message that the payload may have sent about its exec.
    fn read_exec_failure(&mut self) -> Result<(), Errno> {
        let program = self.block.argv.program();
        let failure = exit::read_failure(&self.cell, program, &self.block.cwd)?;
        self.exec = failure.or(self.exec.take());
        Ok(())
    }

    /// Ends the call from outside, immediately or after a grace period.
    pub(crate) fn stop(&mut self, outcome: Outcome, now: Instant) {
        if self.stopped.is_some() || self.stage == CallStage::Ending {
            return;
        }
        let is_graceful = matches!(outcome, Outcome::Timeout | Outcome::Cancelled);
        self.stopped = Some(outcome);
        if is_graceful && self.stage == CallStage::Running {
            self.stage = CallStage::Terminating;
            self.deadline = Some(now + GRACE);
            // Fails if init has ended, with (ECONNRESET) or without (EPIPE) unread messages: its
            // pidfd is then readable. After any other error KILL follows.
            if let Err(errno) = self.cell.terminate() {
                tracing::debug!(%errno, "a cell could not be asked to end");
            }
            return;
        }
        self.kill(now);
    }

    fn kill(&mut self, now: Instant) {
        self.stage = CallStage::Ending;
        self.deadline = Some(now + LINGER);
        if !self.is_reported {
            self.death_check.begin(now);
        }
        self.cell.kill();
    }

    /// Handles a due deadline.
    pub(crate) fn pass_deadline(&mut self, now: Instant) {
        if self.stage == CallStage::Running && self.cell.crawls(now) {
            self.stop(Outcome::Limit(LimitKind::Memory), now);
        }
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        match self.stage {
            CallStage::Running => self.stop(Outcome::Timeout, now),
            CallStage::Terminating | CallStage::Ending => self.kill(now),
        }
    }

    /// Handles that the kernel ran out of this cell's memory.
    pub(crate) fn out_of_memory(&mut self) -> CallEvent {
        if self.cell.took_out_of_memory() {
            self.stop(Outcome::Limit(LimitKind::Memory), Instant::now());
        }
        CallEvent::None
    }

    /// Returns the end as init reported it.
    fn as_reported(&mut self, end: PayloadEnd, rest: &[u8]) -> Ended {
        let (denials, changed) = report::appended(rest, end.counts.denied);
        Ended {
            usage: Usage {
                user: Duration::from_micros(end.counts.user_us),
                system: Duration::from_micros(end.counts.system_us),
                ..self.usage(end.counts.max_rss)
            },
            denials,
            timings: self.phases.timings(),
            files_changed: self.files_changed(changed),
            ..Ended::new(self.outcome(&end))
        }
    }

    /// Returns the changes in the workspace as init reported them. If they were not reported, a
    /// workspace that ended with its cell had no changes.
    fn files_changed(&self, reported: Option<FilesChanged>) -> Option<FilesChanged> {
        match (self.start.changes, self.start.workspace) {
            (ListChanges::No, _) => None,
            (ListChanges::Yes, Workspace::Fresh) => reported,
            (ListChanges::Yes, Workspace::Granted(_) | Workspace::Session(_)) => {
                Some(reported.unwrap_or(FilesChanged::unknown()))
            }
        }
        .filter(|changed| !changed.is_nothing())
    }

    /// Returns the usage that the supervisor itself knows; `largest` is used if the memory is not
    /// counted.
    fn usage(&self, largest: u64) -> Usage {
        let (peak_memory, peak_source) = self.cell.peak_memory(largest);
        let wall = self.phases.started.elapsed();
        Usage { wall, peak_memory, peak_source, ..Usage::default() }
    }

    /// Handles init's report. Replies now, or once the cell is reaped if it can still write to a
    /// grant.
    fn end(&mut self, end: PayloadEnd, rest: &[u8]) -> CallEvent {
        self.phases.reported();
        // Without a message the program was executed.
        self.read_exec_failure().unwrap_or_default();
        let ended = self.as_reported(end, rest);
        self.stage = CallStage::Ending;
        self.deadline = Some(Instant::now() + LINGER);
        self.cell.stop_listening(CellSocket::Control);
        // A granted directory outlives the cell: the reply waits until nothing can write to it.
        if self.start.workspace == Workspace::Fresh {
            self.is_reported = true;
            CallEvent::Ended(Box::new(ended))
        } else {
            self.ended = Some(Box::new(ended));
            self.death_check.begin(Instant::now());
            CallEvent::None
        }
    }

    /// Returns the end early if the cell ends slowly and its processes cannot run any more.
    pub(crate) fn answer_dying(
        &mut self,
        shared: &Shared,
        now: Instant,
        budget: TurnBudget,
    ) -> Option<Box<Ended>> {
        if !self.death_check.is_over(&self.cell, shared, now, budget) {
            return None;
        }
        self.is_reported = true;
        let mut ended = self.last_end(Used::default());
        if self.start.changes == ListChanges::Yes && self.start.workspace != Workspace::Fresh {
            ended.files_changed = dying::incomplete(ended.files_changed);
        }
        Some(ended)
    }

    fn outcome(&mut self, end: &PayloadEnd) -> Outcome {
        if let Some(failure) = self.exec.take() {
            return Outcome::Failed(failure);
        }
        if let Some(stopped) = self.stopped.take() {
            return stopped;
        }
        exit::of_program(end, &self.limits, &self.cell)
    }

    /// Reaps the cell's init if it has ended.
    pub(crate) fn collect(&mut self) -> CallEvent {
        let Some(used) = self.cell.collect() else { return CallEvent::None };
        if self.is_reported {
            return CallEvent::Gone(None);
        }
        CallEvent::Gone(Some(self.last_end(used)))
    }

    /// Returns the reported end, or one made from what is known here.
    fn last_end(&mut self, used: Used) -> Box<Ended> {
        // The report may have arrived in the same round of events.
        if self.ended.is_none() {
            self.ended = self.late_report();
        }
        let mut ended = self.ended.take().unwrap_or_else(|| Box::new(self.unreported(used)));
        ended.timings = self.phases.timings();
        ended
    }

    fn late_report(&mut self) -> Option<Box<Ended>> {
        let mut buffer = vec![0; REPORT_BYTES];
        loop {
            let received = socket::receive(&self.cell.control, &mut buffer, PacketWait::No).ok()?;
            if received.bytes == 0 {
                return None;
            }
            let bytes = buffer.get(..received.bytes).unwrap_or_default();
            match postcard::take_from_bytes::<FromInit>(bytes) {
                Ok((FromInit::Ended(end), rest)) => {
                    self.read_exec_failure().unwrap_or_default();
                    return Some(Box::new(self.as_reported(end, rest)));
                }
                Ok((FromInit::Failed { step, errno }, _)) => {
                    self.exec = Some(Failure::Setup { step: step.name().to_owned(), errno });
                }
                Ok((
                    FromInit::Sealed
                    | FromInit::Network
                    | FromInit::Counted(_)
                    | FromInit::Shown { .. }
                    | FromInit::Confirmed { .. }
                    | FromInit::Input { .. }
                    | FromInit::JobEnded(_),
                    _,
                ))
                | Err(_) => {}
            }
        }
    }

    /// Makes the end of a cell whose init could not report it.
    ///
    /// The kernel's counts for init include all children that it has waited for, even if it was
    /// killed.
    fn unreported(&mut self, used: Used) -> Ended {
        self.read_exec_failure().unwrap_or_default();
        let outcome = if let Some(failure) = self.exec.take() {
            Outcome::Failed(failure)
        } else if let Some(stopped) = self.stopped.take() {
            stopped
        } else if self.cell.ran_out_of_memory() {
            Outcome::Limit(LimitKind::Memory)
        } else {
            Outcome::Failed(Failure::Lost)
        };
        let usage = Usage {
            user: Duration::from_micros(used.user_us),
            system: Duration::from_micros(used.system_us),
            ..self.usage(used.max_rss)
        };
        let files_changed = self.files_changed(None);
        Ended { usage, timings: self.phases.timings(), files_changed, ..Ended::new(outcome) }
    }
}
