//! The report of the shell at the end of a call, and what is believed of it.
//!
//! Any process of the cell can write a report. It ends no call: init looks at the shell, and the call is over when
//! that waits for the next. Until then its time limit holds, and it can be stopped.

use std::time::Instant;

use nix::errno::Errno;
use nix::unistd::read;

use super::{Shell, ShellEvent, ShellStage};
use crate::cells::exit::LINGER;
use crate::sessions::loops::{self, LoopReport};
use cell::report;
use model::outcome::{Failure, Outcome};

/// Reads of what else was reported when the shell waits: as much as a FIFO holds.
const READS: usize = 16;

impl Shell {
    /// Something from the shell about the call that runs.
    pub(crate) fn read_report(&mut self, now: Instant) -> ShellEvent {
        let Some(current) = &mut self.current else { return ShellEvent::None };
        let mut buffer = [0; 4096];
        let length = match read(&current.pending.end, &mut buffer) {
            Ok(length) => length,
            Err(Errno::EAGAIN | Errno::EINTR) => return ShellEvent::None,
            // How the command ends cannot be known: it does not go on unwatched.
            Err(errno) => {
                let step = "reading how the command ended".to_owned();
                let failure = Failure::Setup { step, errno: report::raw(errno) };
                self.stop_current(Outcome::Failed(failure), now);
                return ShellEvent::None;
            }
        };
        if self.stage == ShellStage::Ending {
            return ShellEvent::None;
        }
        current.report.extend_from_slice(buffer.get(..length).unwrap_or_default());
        if current.report.first() == Some(&loops::OPEN) && current.pending.opened() {
            current.report.remove(0);
        }
        if current.report.is_empty() {
            return ShellEvent::None;
        }
        if !current.report.ends_with(&[0]) && current.report.len() < LoopReport::BYTES {
            return ShellEvent::None;
        }
        if current.leaving.is_some()
            && let Some(pid) = loops::started(&current.report)
        {
            return self.leave(pid, now);
        }
        match LoopReport::last(&current.report) {
            Some(reported) => {
                current.reported = Some(reported);
                let (input, next) = (current.pending.input_file, current.pending.next());
                // Init is gone: its pidfd tells.
                if let Err(errno) = self.cell.tell(&report::ToInit::Count { input, next }) {
                    tracing::debug!(%errno, "a session's cell could not be asked");
                }
            }
            None => {
                let full = current.report.len() >= LoopReport::BYTES;
                let why = "something else than its shell told how the command ended".to_owned();
                self.stop_current(Outcome::Failed(Failure::Refused { why }), now);
                if full {
                    // A process that writes there goes on, and a call that is being stopped already would
                    // read on: nothing more is read than a report takes.
                    self.kill(now);
                }
            }
        }
        ShellEvent::None
    }

    /// Init has seen the shell wait for the next call: the call is over.
    pub(super) fn at_gate(&mut self, now: Instant) {
        let Some(current) = &mut self.current else { return };
        if self.stage == ShellStage::Ending || current.reported.is_none() {
            return;
        }
        // The shell has reported by now, and what was there before may have been another's.
        let mut buffer = [0; 4096];
        let mut rest = Vec::new();
        for _ in 0..READS {
            match read(&current.pending.end, &mut buffer) {
                Ok(length) if length > 0 => {
                    rest.extend_from_slice(buffer.get(..length).unwrap_or_default());
                }
                Ok(_) | Err(_) => break,
            }
        }
        if let Some(reported) = LoopReport::last(&rest) {
            current.reported = Some(reported);
        }
        current.took = Some(current.started.elapsed());
        self.stage = ShellStage::Counting;
        self.deadline = Some(now + LINGER);
    }
}
