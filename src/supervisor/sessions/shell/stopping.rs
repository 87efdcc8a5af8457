//! How a call of a session is ended: gently first, so that its shell is kept where that works.

use std::time::Instant;

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use super::{SIGKILL, Shell, ShellEvent, ShellStage};
use crate::cells::cell_life::PassedLimit;
use cell::report::{Ticks, ToInit};
use model::defaults::GRACE;
use model::job::JobSignal;
use model::outcome::{Force, LimitKind, Outcome};
use model::wire::CallId;
use sys::Result;

/// Nanoseconds of one tick: the kernel reports start times in USER_HZ, which is 100 everywhere.
const TICK: i64 = 10_000_000;

/// Returns the current time in the unit of processes' start times.
pub(super) fn ticks() -> Result<Ticks> {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME)?;
    let ticks = now.tv_sec().saturating_mul(100).saturating_add(now.tv_nsec() / TICK);
    Ticks::try_from(ticks).map_err(|_| Errno::ERANGE)
}

impl Shell {
    /// Ends a call, in the shell or next to it: by INT first, so that the shell is kept where that works.
    pub(crate) fn stop(&mut self, call: CallId, outcome: Outcome, now: Instant) {
        match self.current.as_ref().is_some_and(|current| current.call == call) {
            true => self.stop_current(outcome, now),
            false => {
                self.jobs.signal(call, JobSignal::Interrupt, outcome, &self.life.cell, now);
            }
        }
    }

    /// Ends the call in the shell.
    pub(super) fn stop_current(&mut self, outcome: Outcome, now: Instant) {
        let stage = self.stage();
        let Some(current) = self.current.as_mut().filter(|_| stage.is_some()) else { return };
        if current.stopped.is_some() {
            return;
        }
        let gently = match outcome {
            Outcome::Timeout | Outcome::Cancelled => true,
            Outcome::Limit(kind) => kind == LimitKind::Output,
            Outcome::Exited { .. } | Outcome::Signaled { .. } | Outcome::Failed(_) => false,
        };
        current.stopped = Some(outcome);
        if !gently {
            return self.kill(now);
        }
        if stage != Some(ShellStage::Running) {
            return;
        }
        if current.leaving.is_some() {
            return self.end_once_it_left(now);
        }
        if current.pending.terminal.is_some() {
            // They are in another kernel session than the shell's group.
            return self.send(JobSignal::Interrupt, ShellStage::Terminated, now);
        }
        current.is_interrupted = true;
        self.stage = ShellStage::Interrupted;
        self.life.deadline = Some(now + GRACE);
        // KILL follows after any failure.
        if let Err(errno) = self.life.cell.interrupt(current.began) {
            tracing::debug!(%errno, "a session's command could not be interrupted");
        }
    }

    /// Waits a grace period until a background call has left the shell, and ends it as a job then. A signal before that
    /// could end one of the processes that start it and miss the others.
    fn end_once_it_left(&mut self, now: Instant) {
        self.stage = ShellStage::Interrupted;
        self.life.deadline = Some(now + GRACE);
    }

    /// Ends the shell on request; what runs in it is killed.
    pub(crate) fn end(&mut self, now: Instant) {
        if let Some(current) = &mut self.current {
            current.stopped.get_or_insert(Outcome::Signaled { signal: SIGKILL });
        }
        self.kill(now);
    }

    /// Ends the shell, and what runs in it.
    pub(crate) fn kill(&mut self, now: Instant) {
        if self.current.is_some() || !self.jobs.is_empty() {
            self.life.death_check.begin(now);
        }
        self.life.kill(now);
    }

    /// Does what is due.
    pub(crate) fn pass_deadline(&mut self, now: Instant) {
        let passed = self.life.passed_limit(now);
        if passed == Some(PassedLimit::Memory) {
            return self.over_memory(now);
        }
        if self.jobs.pass_deadlines(&self.life.cell, now) {
            self.kill(now);
        }
        if passed.is_none() {
            return;
        }
        match self.stage() {
            Some(ShellStage::Running) => self.stop_current(Outcome::Timeout, now),
            Some(ShellStage::Terminated) => {
                self.send(JobSignal::Kill, ShellStage::Interrupted, now);
            }
            Some(ShellStage::Idle | ShellStage::Interrupted | ShellStage::Counting) | None => {
                self.kill(now);
            }
        }
    }

    /// Ends a call by signals to its processes: TERM, a grace period and KILL, or KILL at once. If the call
    /// runs in the shell, the shell gets INT first, and is killed if it does not return.
    pub(crate) fn signal(&mut self, call: CallId, signal: JobSignal, now: Instant) {
        if self.current.as_ref().is_none_or(|current| current.call != call) {
            let outcome = match signal {
                JobSignal::Interrupt | JobSignal::Terminate => Outcome::Cancelled,
                JobSignal::Kill => Outcome::Signaled { signal: SIGKILL },
            };
            return self.jobs.signal(call, signal, outcome, &self.life.cell, now);
        }
        // Otherwise it is being ended already.
        let Some(stage) = self.stage() else { return };
        let Some(current) = &mut self.current else { return };
        let is_starting = matches!(stage, ShellStage::Running | ShellStage::Interrupted);
        if is_starting && current.leaving.is_some() {
            match signal {
                JobSignal::Interrupt | JobSignal::Terminate => {
                    current.stopped.get_or_insert(Outcome::Cancelled);
                }
                JobSignal::Kill => current.stopped = Some(Outcome::Signaled { signal: SIGKILL }),
            }
            if stage == ShellStage::Running {
                self.end_once_it_left(now);
            }
            return;
        }
        let next = match (stage, signal) {
            (ShellStage::Running, JobSignal::Interrupt | JobSignal::Terminate) => {
                current.stopped.get_or_insert(Outcome::Cancelled);
                ShellStage::Terminated
            }
            // Again: its time is not extended.
            (ShellStage::Interrupted, JobSignal::Kill)
                if current.stopped == Some(Outcome::Signaled { signal: SIGKILL }) =>
            {
                return;
            }
            (
                ShellStage::Running | ShellStage::Terminated | ShellStage::Interrupted,
                JobSignal::Kill,
            ) => {
                current.stopped = Some(Outcome::Signaled { signal: SIGKILL });
                ShellStage::Interrupted
            }
            // It is being ended already.
            (_, JobSignal::Interrupt | JobSignal::Terminate)
            | (ShellStage::Idle | ShellStage::Counting, JobSignal::Kill) => return,
        };
        self.send(signal, next, now);
    }

    fn send(&mut self, signal: JobSignal, next: ShellStage, now: Instant) {
        let Some(current) = &mut self.current else { return };
        if self.stage == ShellStage::Terminated && signal == JobSignal::Kill {
            current.force = Force::Killed;
        }
        current.is_interrupted = true;
        let order = ToInit::Signal { signal, since: current.began };
        self.stage = next;
        self.life.deadline = Some(now + GRACE);
        // The end of the cell follows after any failure.
        if let Err(errno) = self.life.cell.send(&order) {
            tracing::debug!(%errno, "a session's command could not be signalled");
        }
    }

    /// Handles that the kernel ran out of this cell's memory.
    pub(crate) fn out_of_memory(&mut self) -> ShellEvent {
        if self.life.cell.took_out_of_memory() {
            self.over_memory(Instant::now());
        }
        ShellEvent::None
    }

    /// Ends the shell and everything that runs in it and next to it, as the cell exceeded its memory.
    fn over_memory(&mut self, now: Instant) {
        self.stop_current(Outcome::Limit(LimitKind::Memory), now);
        self.jobs.end_for_memory();
        self.kill(now);
    }
}
