//! Jobs next to the shell of a session: each runs in a copy of the shell, and init reports its end.

use std::time::Instant;

use super::current::CurrentCall;
use super::input_query::InputQuery;
use super::{SIGKILL, ShellEvent};
use crate::cells::cell::Cell;
use crate::cells::cell_life::CellLife;
use crate::cells::exit;
use crate::sessions::cpu_time::CpuTime;
use crate::sessions::mailbox::{Mailbox, PendingCall};
use cell::report::{PayloadEnd, ReapedJob, ToInit};
use model::defaults::GRACE;
use model::job::JobSignal;
use model::outcome::{
    DeniedCall, Ended, Failure, Force, LimitKind, Outcome, PeakSource, ShellAfter, Timings, Usage,
};
use model::wire::CallId;

/// Maximum jobs of one session next to its shell. The files of each take room in the mailbox.
pub(crate) const MAX_JOBS: usize = 16;

/// The jobs next to one shell.
#[derive(Debug, Default)]
pub(super) struct BackgroundJobs(Vec<BackgroundJob>);

/// A job next to the shell.
#[derive(Debug)]
pub(super) struct BackgroundJob {
    pub call: CallId,
    /// Number of its first process in the cell, which leads its process group.
    pid: u32,
    pub pending: PendingCall,
    pub input_query: InputQuery,
    started: Instant,
    timings: Timings,
    stage: JobStage,
    deadline: Option<Instant>,
    /// Reason for which the supervisor ends it; it outweighs how its process ends.
    stopped: Option<Outcome>,
    force: Force,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobStage {
    Running,
    /// INT or TERM is sent to its processes; KILL comes next.
    Warned,
    /// KILL is sent; the whole cell is next.
    Killed,
}

impl BackgroundJobs {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether no more jobs may be added.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= MAX_JOBS
    }

    pub(super) fn has(&self, call: CallId) -> bool {
        self.0.iter().any(|job| job.call == call)
    }

    pub(super) fn find(&mut self, call: CallId) -> Option<&mut BackgroundJob> {
        self.0.iter_mut().find(|job| job.call == call)
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, BackgroundJob> {
        self.0.iter_mut()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.0.iter().filter_map(|job| job.deadline).min()
    }

    pub(super) fn add(&mut self, job: BackgroundJob) {
        self.0.push(job);
    }

    /// Removes the job whose first process has this number.
    pub(super) fn remove(&mut self, pid: u32) -> Option<BackgroundJob> {
        let index = self.0.iter().position(|job| job.pid == pid)?;
        Some(self.0.swap_remove(index))
    }

    /// Ends a job by a signal to its processes, and by KILL where they are still there after a grace.
    pub(super) fn signal(
        &mut self,
        call: CallId,
        signal: JobSignal,
        outcome: Outcome,
        cell: &Cell,
        now: Instant,
    ) {
        if let Some(job) = self.find(call) {
            job.signal(signal, outcome, cell, now);
        }
    }

    /// Records for each job that it ends with the cell, because of the cell's memory.
    pub(super) fn end_for_memory(&mut self) {
        for job in &mut self.0 {
            job.stopped = Some(Outcome::Limit(LimitKind::Memory));
        }
    }

    /// Ends the jobs whose time is over. Returns true if one is still there after KILL: then the cell must end.
    pub(super) fn pass_deadlines(&mut self, cell: &Cell, now: Instant) -> bool {
        let mut is_stuck = false;
        for job in &mut self.0 {
            if job.deadline.is_none_or(|deadline| deadline > now) {
                continue;
            }
            match job.stage {
                JobStage::Running => job.signal(JobSignal::Interrupt, Outcome::Timeout, cell, now),
                JobStage::Warned => {
                    job.force = Force::Killed;
                    let outcome = job.stopped.clone().unwrap_or(Outcome::Cancelled);
                    job.signal(JobSignal::Kill, outcome, cell, now);
                }
                JobStage::Killed => {
                    job.deadline = None;
                    is_stuck = true;
                }
            }
        }
        is_stuck
    }

    /// Ends all jobs, whose cell has ended like this.
    pub(super) fn end_all(
        &mut self,
        cell: &Outcome,
        mailbox: &mut Mailbox,
    ) -> Vec<(CallId, Box<Ended>)> {
        let jobs = std::mem::take(&mut self.0);
        let ends = jobs.into_iter().map(|job| {
            let usage = Usage { wall: job.started.elapsed(), ..Usage::default() };
            let killed = match cell {
                Outcome::Limit(_) => cell.clone(),
                Outcome::Exited { .. }
                | Outcome::Signaled { .. }
                | Outcome::Timeout
                | Outcome::Cancelled
                | Outcome::Failed(_) => Outcome::Signaled { signal: SIGKILL },
            };
            let call = job.call;
            (call, Box::new(job.end(killed, usage, Vec::new(), ShellAfter::Ended, mailbox)))
        });
        ends.collect()
    }
}

impl BackgroundJob {
    /// Begins with a call that has left the shell, and runs in a process of this number.
    pub(super) fn new(current: CurrentCall, pid: u32, deadline: Option<Instant>) -> Self {
        let CurrentCall { call, mut pending, input_query, started, timings, .. } = current;
        // The copy of the shell has opened it before it reported its number.
        pending.opened();
        Self {
            call,
            pid,
            pending,
            input_query,
            started,
            timings,
            stage: JobStage::Running,
            deadline,
            stopped: None,
            force: Force::None,
        }
    }

    /// Ends the job by a signal to its processes, and by KILL where they are still there after a grace.
    pub(super) fn signal(
        &mut self,
        signal: JobSignal,
        outcome: Outcome,
        cell: &Cell,
        now: Instant,
    ) {
        let next = match (self.stage, signal) {
            (JobStage::Running, JobSignal::Interrupt | JobSignal::Terminate) => JobStage::Warned,
            (JobStage::Running | JobStage::Warned, JobSignal::Kill) => JobStage::Killed,
            // It is being ended already.
            (JobStage::Warned | JobStage::Killed, _) => return,
        };
        match signal {
            JobSignal::Interrupt | JobSignal::Terminate => {
                self.stopped.get_or_insert(outcome);
            }
            JobSignal::Kill => self.stopped = Some(outcome),
        }
        self.stage = next;
        self.deadline = Some(now + GRACE);
        let order = ToInit::SignalJob { signal, pid: self.pid };
        // KILL, or the end of the cell, follows after any failure.
        if let Err(errno) = cell.send(&order) {
            tracing::debug!(%errno, "a session's job could not be signalled");
        }
    }

    /// Returns the end of the job, whose first process init has reaped.
    pub(super) fn reaped(
        self,
        reaped: &ReapedJob,
        denials: Vec<DeniedCall>,
        life: &CellLife,
        mailbox: &mut Mailbox,
    ) -> ShellEvent {
        let used = CpuTime::counted(&reaped.counts);
        let usage = Usage {
            wall: self.started.elapsed(),
            user: used.user,
            system: used.system,
            peak_memory: reaped.counts.max_rss,
            peak_source: PeakSource::LargestProcess,
        };
        let outcome = match reaped.status {
            Some(status) => {
                let end = PayloadEnd { status, over_limit: None, counts: reaped.counts };
                exit::program_outcome(&end, &life.limits, &life.cell)
            }
            None => Outcome::Failed(Failure::Lost),
        };
        let call = self.call;
        let ended = self.end(outcome, usage, denials, ShellAfter::Beside, mailbox);
        ShellEvent::Ended(call, Box::new(ended))
    }

    /// Returns the end of the job, which had this outcome unless the supervisor ended it.
    fn end(
        self,
        outcome: Outcome,
        usage: Usage,
        denials: Vec<DeniedCall>,
        shell: ShellAfter,
        mailbox: &mut Mailbox,
    ) -> Ended {
        mailbox.clear_up(self.pending);
        let timings = Timings { run: usage.wall, ..self.timings };
        let force = self.force;
        let outcome = self.stopped.unwrap_or(outcome);
        Ended { usage, denials, timings, shell, force, ..Ended::new(outcome) }
    }
}
