//! Jobs next to the shell of a session: each runs in a copy of the shell, and init reports its end.

use std::time::Instant;

use super::input_query::InputQuery;
use super::{Current, KILLED, Leaving, Shell, ShellEvent, ShellStage};
use crate::cells::exit;
use crate::sessions::cpu_time::CpuTime;
use crate::sessions::mailbox::{Mailbox, PendingCall};
use cell::report::{self, PayloadEnd, ReapedJob, ToInit};
use model::defaults::GRACE;
use model::job::JobSignal;
use model::outcome::{
    DeniedCall, Ended, Failure, Force, LimitKind, Outcome, PeakSource, ShellAfter, Timings, Usage,
};
use model::wire::CallId;

/// Maximum jobs of one session next to its shell. The files of each take room in the mailbox.
pub(crate) const MAX_JOBS: usize = 16;

/// A job next to the shell.
#[derive(Debug)]
pub(super) struct BackgroundJob {
    pub call: CallId,
    /// Number of its first process in the cell, which leads its process group.
    pid: u32,
    pub pending: PendingCall,
    pub asking: InputQuery,
    started: Instant,
    timings: Timings,
    stage: JobStage,
    pub deadline: Option<Instant>,
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

impl Shell {
    /// Returns whether jobs run next to the shell.
    pub(crate) fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Returns whether no more jobs may run next to the shell.
    pub(crate) fn is_full(&self) -> bool {
        self.jobs.len() >= MAX_JOBS
    }

    /// Frees the shell: the call that was handed over runs in a copy of it.
    pub(super) fn leave(&mut self, pid: u32, now: Instant) -> ShellEvent {
        let Some(Leaving { turn, ends, stdin }) =
            self.current.as_mut().and_then(|current| current.leaving.take())
        else {
            return ShellEvent::None;
        };
        let Some(current) = self.current.take() else { return ShellEvent::None };
        let Current { call, mut pending, stopped, started, timings, asking, .. } = current;
        // The copy has opened it before it reported its number.
        pending.opened();
        let order = ToInit::Follow { pid, input: pending.input_file };
        self.jobs.push(BackgroundJob {
            call,
            pid,
            pending,
            asking,
            started,
            timings,
            stage: JobStage::Running,
            deadline: self.deadline.take(),
            stopped: None,
            force: Force::None,
        });
        self.stage = ShellStage::Idle;
        // Nobody would learn of its end.
        if let Err(errno) = self.cell.tell(&order) {
            tracing::debug!(%errno, "a session's cell could not be notified of a job");
            self.kill(now);
        }
        match stopped {
            None => {}
            Some(outcome @ Outcome::Signaled { .. }) => {
                self.signal_job(call, JobSignal::Kill, outcome, now);
            }
            Some(outcome) => self.stop_job(call, outcome, now),
        }
        self.ask_next();
        ShellEvent::Left { call, stdin, turn, ends: Box::new(ends) }
    }

    /// Ends a job: by INT first.
    pub(super) fn stop_job(&mut self, call: CallId, outcome: Outcome, now: Instant) {
        self.signal_job(call, JobSignal::Interrupt, outcome, now);
    }

    /// Ends a job by a signal to its processes, and by KILL where they are still there after a grace.
    pub(super) fn signal_job(
        &mut self,
        call: CallId,
        signal: JobSignal,
        outcome: Outcome,
        now: Instant,
    ) {
        let Some(job) = self.jobs.iter_mut().find(|job| job.call == call) else { return };
        let next = match (job.stage, signal) {
            (JobStage::Running, JobSignal::Interrupt | JobSignal::Terminate) => JobStage::Warned,
            (JobStage::Running | JobStage::Warned, JobSignal::Kill) => JobStage::Killed,
            // It is being ended already.
            (JobStage::Warned | JobStage::Killed, _) => return,
        };
        match signal {
            JobSignal::Interrupt | JobSignal::Terminate => {
                job.stopped.get_or_insert(outcome);
            }
            JobSignal::Kill => job.stopped = Some(outcome),
        }
        job.stage = next;
        job.deadline = Some(now + GRACE);
        let order = ToInit::SignalJob { signal, pid: job.pid };
        // KILL, or the end of the cell, follows after any failure.
        if let Err(errno) = self.cell.tell(&order) {
            tracing::debug!(%errno, "a session's job could not be signalled");
        }
    }

    /// Records for each job that it ends with the cell, because of the cell's memory.
    pub(super) fn jobs_over_memory(&mut self) {
        for job in &mut self.jobs {
            job.stopped = Some(Outcome::Limit(LimitKind::Memory));
        }
    }

    /// Does what is due for jobs.
    pub(super) fn pass_job_deadlines(&mut self, now: Instant) {
        let due = |job: &&BackgroundJob| job.deadline.is_some_and(|deadline| deadline <= now);
        let due: Vec<_> = self.jobs.iter().filter(due).map(|job| (job.call, job.stage)).collect();
        for (call, stage) in due {
            match stage {
                JobStage::Running => self.stop_job(call, Outcome::Timeout, now),
                JobStage::Warned => {
                    let jobs = self.jobs.iter_mut();
                    let Some(job) = jobs.into_iter().find(|job| job.call == call) else { continue };
                    job.force = Force::Killed;
                    let outcome = job.stopped.clone().unwrap_or(Outcome::Cancelled);
                    self.signal_job(call, JobSignal::Kill, outcome, now);
                }
                JobStage::Killed => {
                    let job = self.jobs.iter_mut().find(|job| job.call == call);
                    job.into_iter().for_each(|job| job.deadline = None);
                    self.kill(now);
                }
            }
        }
    }

    /// Takes the end of a job, which init has seen.
    pub(super) fn job_ended(
        &mut self,
        reaped: &ReapedJob,
        denied: &[u8],
        mailbox: &mut Mailbox,
    ) -> ShellEvent {
        let Some(place) = self.jobs.iter().position(|job| job.pid == reaped.pid) else {
            return ShellEvent::None;
        };
        let job = self.jobs.swap_remove(place);
        let used = CpuTime::of(&reaped.counts);
        // It is in the account of the cell from now on, and of no later call.
        self.used = self.used.and(used);
        let usage = Usage {
            wall: job.started.elapsed(),
            user: used.user,
            system: used.system,
            peak_memory: reaped.counts.max_rss,
            peak_source: PeakSource::LargestProcess,
        };
        let ended = match reaped.status {
            Some(status) => {
                let end = PayloadEnd { status, over_limit: None, counts: reaped.counts };
                exit::of_program(&end, &self.limits, &self.cell)
            }
            None => Outcome::Failed(Failure::Lost),
        };
        let denials = report::denials(denied, reaped.counts.denied);
        let call = job.call;
        let ended = job.over(ended, usage, denials, ShellAfter::Beside, mailbox);
        ShellEvent::Ended(call, Box::new(ended))
    }

    /// Ends all jobs, whose cell has ended like this.
    pub(super) fn last_jobs(
        &mut self,
        cell: &Outcome,
        mailbox: &mut Mailbox,
    ) -> Vec<(CallId, Box<Ended>)> {
        let jobs = std::mem::take(&mut self.jobs);
        let ends = jobs.into_iter().map(|job| {
            let usage = Usage { wall: job.started.elapsed(), ..Usage::default() };
            let killed = match cell {
                Outcome::Limit(_) => cell.clone(),
                Outcome::Exited { .. }
                | Outcome::Signaled { .. }
                | Outcome::Timeout
                | Outcome::Cancelled
                | Outcome::Failed(_) => Outcome::Signaled { signal: KILLED },
            };
            let call = job.call;
            (call, Box::new(job.over(killed, usage, Vec::new(), ShellAfter::Ended, mailbox)))
        });
        ends.collect()
    }
}

impl BackgroundJob {
    fn over(
        self,
        ended: Outcome,
        usage: Usage,
        denials: Vec<DeniedCall>,
        shell: ShellAfter,
        mailbox: &mut Mailbox,
    ) -> Ended {
        mailbox.clear_up(self.pending);
        let timings = Timings { run: usage.wall, ..self.timings };
        let force = self.force;
        let outcome = self.stopped.unwrap_or(ended);
        Ended { usage, denials, timings, shell, force, ..Ended::new(outcome) }
    }
}
