//! The end of a call as its shell shows it: by the files that it holds open while it waits for the next call.
//!
//! Any process of the cell can write to the report of a call, and read and write what the shell can. None can open a
//! file in the shell: that would take ptrace(2), pidfd_getfd(2) or its memory, which no cell has. The shell opens these
//! files before it rings and closes them when the supervisor opens the gate of the next call, so they are there for
//! each look that its own ring leads to. What comes in the report is only a reason to look.
//!
//! The cell's init looks (`cell::init`): how long that takes is up to what the shell has open.

use std::time::Instant;

use nix::errno::Errno;
use nix::unistd::read;

use super::background::BackgroundJob;
use super::current::{Leaving, ShownEnd};
use super::{Shell, ShellEvent, ShellStage};
use crate::cells::exit::LINGER;
use crate::sessions::loops::MAX_RINGS;
use cell::report::{self, ShownState, ToInit};
use model::job::JobSignal;
use model::outcome::{Failure, Outcome};

impl Shell {
    /// Returns whether the end of the running call can still be shown.
    fn is_watched(&self) -> bool {
        self.stage().is_some_and(|stage| stage != ShellStage::Counting)
    }

    /// Looks at the shell, because something has come about the call that runs.
    pub(crate) fn read_report(&mut self, now: Instant) -> ShellEvent {
        let is_watched = self.is_watched();
        let Some(current) = &mut self.current else { return ShellEvent::None };
        let mut buffer = [0; 4096];
        let read = match read(&current.pending.end, &mut buffer) {
            Ok(length) => buffer.get(..length).unwrap_or_default(),
            Err(Errno::EAGAIN | Errno::EINTR) => return ShellEvent::None,
            Err(errno) => return self.unseen(errno, now),
        };
        if !is_watched {
            return ShellEvent::None;
        }
        current.rings = current.rings.saturating_add(read.len());
        if let Some(pid) = current.copy_started(read) {
            return self.leave(pid, now);
        }
        current.look_at_shell(&self.life.cell);
        if current.rings >= MAX_RINGS {
            // The writer continues, and each time costs a look.
            let why = "a process other than its shell reported how the command ended".to_owned();
            self.stop_current(Outcome::Failed(Failure::Refused { why }), now);
            self.kill(now);
        }
        ShellEvent::None
    }

    /// Takes what init has seen of a call.
    pub(super) fn shown(&mut self, number: u64, shell: ShownState, now: Instant) -> ShellEvent {
        let is_watched = self.is_watched();
        let current = self.current.as_mut().filter(|current| current.pending.number == number);
        let Some(current) = current.filter(|_| is_watched) else { return ShellEvent::None };
        let is_looking_again = current.looked();
        match shell {
            ShownState::Runs { has_input } => {
                if has_input {
                    current.pending.opened();
                }
                if is_looking_again {
                    current.look_at_shell(&self.life.cell);
                }
                ShellEvent::None
            }
            ShownState::Over { status } => self.shown_end(status, now),
            ShownState::Unseen { errno } => self.unseen(Errno::from_raw(errno), now),
        }
    }

    /// Notes the end of the call that runs; the counters of init come next.
    fn shown_end(&mut self, status: u8, now: Instant) -> ShellEvent {
        let cwd = match self.process.cwd() {
            Ok(Some(cwd)) => cwd,
            // Its end is reported next.
            Ok(None) => return ShellEvent::None,
            Err(errno) => return self.unseen(errno, now),
        };
        let Some(current) = &mut self.current else { return ShellEvent::None };
        current.reported = Some(ShownEnd { status, cwd });
        current.took = Some(current.started.elapsed());
        self.stage = ShellStage::Counting;
        self.life.deadline = Some(now + LINGER);
        ShellEvent::None
    }

    /// Ends the call: the end of its command cannot be observed, and it must not run unobserved.
    fn unseen(&mut self, errno: Errno, now: Instant) -> ShellEvent {
        let step = "reading how the command ended".to_owned();
        let failure = Failure::Setup { step, errno: report::raw(errno) };
        self.stop_current(Outcome::Failed(failure), now);
        ShellEvent::None
    }

    /// Frees the shell: the call that was handed over runs in a copy of it.
    fn leave(&mut self, pid: u32, now: Instant) -> ShellEvent {
        let Some(mut current) = self.current.take_if(|current| current.leaving.is_some()) else {
            return ShellEvent::None;
        };
        let call = current.call;
        let stopped = current.stopped.take();
        let Some(Leaving { turn, ends, stdin }) = current.leaving.take() else {
            return ShellEvent::None;
        };
        let deadline = self.life.deadline.take();
        let job = BackgroundJob::new(current, pid, deadline);
        let order = ToInit::Follow { pid, input: job.pending.input_file };
        self.jobs.add(job);
        self.stage = ShellStage::Idle;
        // Without this order, its end would never be reported.
        if let Err(errno) = self.life.cell.send(&order) {
            tracing::debug!(%errno, "a session's cell could not be notified of a job");
            self.kill(now);
        }
        let signal = match stopped {
            Some(Outcome::Signaled { .. }) => JobSignal::Kill,
            _ => JobSignal::Interrupt,
        };
        if let Some(outcome) = stopped {
            self.jobs.signal(call, signal, outcome, &self.life.cell, now);
        }
        self.ask_next();
        ShellEvent::Left { call, stdin, turn, ends: Box::new(ends) }
    }
}
