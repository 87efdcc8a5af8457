//! One call's life in the supervisor, from the hand-over of its job to the end of its cell.

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
use cell::report::{self, FromInit, FromPayload, PayloadEnd, REPORT_BYTES};
use cell::{Design, Shared};
use model::defaults::GRACE;
use model::job::{Limits, ListChanges, Workspace};
use model::outcome::{Ended, Failure, FilesChanged, LimitKind, Outcome, PeakSource, Usage};
use model::wire::{Block, Start};
use sys::process::Used;
use sys::socket::{self, PacketWait};

/// The stage of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallStage {
    /// The job is handed over.
    Running,
    /// TERM is sent, KILL follows.
    Terminating,
    /// The end is known; init is on its way out.
    Ending,
}

/// The event that a step passes to the loop.
#[derive(Debug)]
pub(crate) enum CallEvent {
    None,
    Ended(Box<Ended>),
    /// The cell is collected; the end is told now if it was not before.
    Gone(Option<Box<Ended>>),
}

/// Why a job was not handed over, with the job and its cell: nothing ran.
pub(crate) type Unbegun = Box<(Errno, QueuedJob, Cell)>;

/// A call that has its cell.
#[derive(Debug)]
pub(crate) struct Running {
    start: Start,
    block: Block,
    pub limits: Limits,
    pub cell: Cell,
    stage: CallStage,
    deadline: Option<Instant>,
    /// Why the supervisor ends the call; it outweighs what the program's status says.
    stopped: Option<Outcome>,
    /// Why the program could not start.
    exec: Option<Failure>,
    /// The end, kept back until the cell is collected where something outlives it.
    ended: Option<Box<Ended>>,
    is_reported: bool,
    /// Once it is ending: when to look whether it can be told before that.
    look: DeathCheck,
    /// Changes in the workspace, as init reported them.
    changed: Option<FilesChanged>,
    phases: Phases,
}

impl Running {
    /// Hands a job over to a cell that is offered.
    ///
    /// # Errors
    /// What failed, with the job, which nobody has, and the cell.
    pub(crate) fn begin(
        ready: QueuedJob,
        mut cell: Cell,
        design: &Design,
        measured: Instant,
    ) -> Result<(Self, FarEnds), Unbegun> {
        let executed = cell.prestarted.as_ref().is_some_and(|executed| executed.execed);
        let handed_over = match cell.prestarted.take() {
            Some(executed) => prestart::feed(&cell, design, &ready, executed),
            None => handover::hand_over(&mut cell, design, &ready),
        };
        let ends = match handed_over {
            Ok(ends) => ends,
            Err(errno) => return Err(Box::new((errno, ready, cell))),
        };
        let QueuedJob { start, block, limits, arrived, .. } = ready;
        cell.crawl.begin(Instant::now(), limits.memory);
        let mut phases = Phases::new(arrived, measured);
        if executed {
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
            look: DeathCheck::default(),
            changed: None,
            phases,
        };
        Ok((running, ends))
    }

    pub(crate) fn workspace(&self) -> Workspace {
        self.start.workspace
    }

    /// Returns whether its program has ended: what is left takes no processor from anybody.
    pub(crate) fn is_over(&self) -> bool {
        self.stage == CallStage::Ending
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let crawl = self.cell.crawl.at().filter(|_| self.stage == CallStage::Running);
        [self.deadline, self.look.at(), crawl].into_iter().flatten().min()
    }

    /// Something from the payload: it cannot exec, or it has exec'd.
    pub(crate) fn read_job(&mut self) -> CallEvent {
        let mut buffer = [0; 512];
        let received = match socket::receive(&self.cell.job, &mut buffer, PacketWait::No) {
            Ok(received) if received.bytes > 0 => received,
            Err(Errno::EAGAIN) => return CallEvent::None,
            // Closed at exec, or with the payload; init tells which.
            Ok(_) | Err(_) => {
                self.phases.execed();
                self.cell.stop_listening(CellSocket::Job);
                return CallEvent::None;
            }
        };
        let bytes = buffer.get(..received.bytes).unwrap_or_default();
        self.hear(bytes);
        CallEvent::None
    }

    /// Takes a report of the payload.
    fn hear(&mut self, bytes: &[u8]) {
        match report::decode::<FromPayload>(bytes) {
            Ok(FromPayload::Exec { errno }) => {
                self.exec = Some(exit::exec_failure(self.block.argv.program(), errno));
            }
            Ok(FromPayload::Cwd { errno }) => {
                let path = self.block.cwd.as_str().to_owned();
                self.exec = Some(Failure::Cwd { path, errno });
            }
            Ok(FromPayload::Failed { step, errno }) => {
                self.exec = Some(Failure::Setup { step: step.name().to_owned(), errno });
            }
            // Only a program could send more, and it does not have this socket.
            Ok(FromPayload::Ready(_)) | Err(_) => {}
        }
    }

    /// Something from init, read into `room`, which holds the longest report.
    pub(crate) fn read_control(&mut self, room: &mut Vec<u8>) -> CallEvent {
        match socket::receive_into(&self.cell.control, room, PacketWait::No) {
            Ok(received) if received.bytes > 0 => {}
            Err(Errno::EAGAIN) => return CallEvent::None,
            // The pidfd tells the rest.
            Ok(_) | Err(_) => {
                self.cell.stop_listening(CellSocket::Control);
                return CallEvent::None;
            }
        }
        match postcard::take_from_bytes::<FromInit>(room) {
            Ok((FromInit::Ended(end), denied)) => self.end(end, denied),
            Ok((FromInit::Failed { step, errno }, _)) => {
                self.exec = Some(Failure::Setup { step: step.name().to_owned(), errno });
                CallEvent::None
            }
            Ok((FromInit::Changed, changed)) => {
                self.changed = report::changed(changed);
                CallEvent::None
            }
            // Init says neither of these to a cell that runs: its end will tell.
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

    /// Reads what the payload may have reported about exec before init's own report.
    fn last_words(&mut self) {
        let mut buffer = [0; 512];
        if let Ok(received) = socket::receive(&self.cell.job, &mut buffer, PacketWait::No) {
            self.hear(buffer.get(..received.bytes).unwrap_or_default());
        }
    }

    /// Ends the call from outside, at once or after a grace period.
    pub(crate) fn stop(&mut self, outcome: Outcome, now: Instant) {
        if self.stopped.is_some() || self.stage == CallStage::Ending {
            return;
        }
        let gently = matches!(outcome, Outcome::Timeout | Outcome::Cancelled);
        self.stopped = Some(outcome);
        if gently && self.stage == CallStage::Running {
            self.stage = CallStage::Terminating;
            self.deadline = Some(now + GRACE);
            // Init has ended, with (ECONNRESET) or without (EPIPE) something unread: its pidfd is
            // readable. After any other error KILL follows.
            if let Err(errno) = self.cell.terminate() {
                tracing::debug!(%errno, "a cell could not be told to end");
            }
            return;
        }
        self.kill(now);
    }

    fn kill(&mut self, now: Instant) {
        self.stage = CallStage::Ending;
        self.deadline = Some(now + LINGER);
        if !self.is_reported {
            self.look.begin(now);
        }
        self.cell.kill();
    }

    /// Does what is due.
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

    /// The kernel ran out of this cell's memory.
    pub(crate) fn out_of_memory(&mut self) -> CallEvent {
        if self.cell.took_out_of_memory() {
            self.stop(Outcome::Limit(LimitKind::Memory), Instant::now());
        }
        CallEvent::None
    }

    /// The end as init reported it.
    fn as_reported(&mut self, end: PayloadEnd, denied: &[u8]) -> Ended {
        Ended {
            usage: Usage {
                user: Duration::from_micros(end.counts.user_us),
                system: Duration::from_micros(end.counts.system_us),
                ..self.usage(end.counts.max_rss)
            },
            denials: report::denials(denied, end.counts.denied),
            timings: self.phases.timings(),
            files_changed: self.files_changed(),
            ..Ended::new(self.outcome(&end))
        }
    }

    /// Takes the changes in the workspace. Without a report, a workspace that is gone with its cell had none.
    fn files_changed(&mut self) -> Option<FilesChanged> {
        match (self.start.changes, self.start.workspace) {
            (ListChanges::No, _) => None,
            (ListChanges::Yes, Workspace::Fresh) => self.changed.take(),
            (ListChanges::Yes, Workspace::Granted(_) | Workspace::Session(_)) => {
                Some(self.changed.take().unwrap_or(FilesChanged::unknown()))
            }
        }
        .filter(|changed| !changed.is_nothing())
    }

    /// Returns the usage of the cell as the supervisor itself knows it; `largest` where nothing counts its memory.
    fn usage(&self, largest: u64) -> Usage {
        let peak = self.cell.peak_memory();
        Usage {
            wall: self.phases.started.elapsed(),
            peak_memory: peak.unwrap_or(largest),
            peak_source: match peak {
                Some(_) => PeakSource::Cgroup,
                None => PeakSource::LargestProcess,
            },
            ..Usage::default()
        }
    }

    /// Init has reported: the answer goes out, or waits for the cell's last breath.
    fn end(&mut self, end: PayloadEnd, denied: &[u8]) -> CallEvent {
        self.phases.reported();
        self.last_words();
        let ended = self.as_reported(end, denied);
        self.stage = CallStage::Ending;
        self.deadline = Some(Instant::now() + LINGER);
        self.cell.stop_listening(CellSocket::Control);
        // A granted directory outlives the cell: the answer waits until nothing can write to it.
        if self.start.workspace == Workspace::Fresh {
            self.is_reported = true;
            CallEvent::Ended(Box::new(ended))
        } else {
            self.ended = Some(Box::new(ended));
            self.look.begin(Instant::now());
            CallEvent::None
        }
    }

    /// The end, where the cell takes its time and nothing of it can run any more.
    pub(crate) fn answer_dying(
        &mut self,
        shared: &Shared,
        now: Instant,
        budget: TurnBudget,
    ) -> Option<Box<Ended>> {
        if !self.look.is_over(&self.cell, shared, now, budget) {
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

    /// The cell's init may have ended.
    pub(crate) fn collect(&mut self) -> CallEvent {
        // ECHILD cannot be: the child is ours and collected once. The cell is gone either way.
        let used = match self.cell.collect() {
            Ok(None) => return CallEvent::None,
            Ok(Some(used)) => used,
            Err(_) => Used::default(),
        };
        if self.is_reported {
            return CallEvent::Gone(None);
        }
        CallEvent::Gone(Some(self.last_end(used)))
    }

    /// The end as it was reported, or else as it is known here.
    fn last_end(&mut self, used: Used) -> Box<Ended> {
        // The report may have come in the same round of events.
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
                Ok((FromInit::Ended(end), denied)) => {
                    self.last_words();
                    return Some(Box::new(self.as_reported(end, denied)));
                }
                Ok((FromInit::Failed { step, errno }, _)) => {
                    self.exec = Some(Failure::Setup { step: step.name().to_owned(), errno });
                }
                Ok((FromInit::Changed, changed)) => self.changed = report::changed(changed),
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

    /// The end of a cell whose init could not report it.
    ///
    /// Its kernel counted for it: an init that was killed has waited for all it left.
    fn unreported(&mut self, used: Used) -> Ended {
        self.last_words();
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
        let files_changed = self.files_changed();
        Ended { usage, timings: self.phases.timings(), files_changed, ..Ended::new(outcome) }
    }
}
