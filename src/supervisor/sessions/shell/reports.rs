//! What comes in the report of a call. Any process of the cell may have written it: it is a reason to look at the shell,
//! and the call is over when that shows its end.

use std::time::Instant;

use nix::errno::Errno;
use nix::unistd::read;

use super::{Current, Shell, ShellEvent, ShellStage};
use crate::cells::exit::LINGER;
use crate::sessions::loops::{self, MOST_RINGS, STARTED};
use cell::report;
use model::outcome::{Failure, Outcome};

impl Shell {
    /// Looks at the shell, because something has come about the call that runs.
    pub(crate) fn read_report(&mut self, now: Instant) -> ShellEvent {
        let Some(current) = &mut self.current else { return ShellEvent::None };
        let mut buffer = [0; 4096];
        let read = match read(&current.pending.end, &mut buffer) {
            Ok(length) => buffer.get(..length).unwrap_or_default(),
            Err(Errno::EAGAIN | Errno::EINTR) => return ShellEvent::None,
            Err(errno) => return self.unseen(errno, now),
        };
        if matches!(self.stage, ShellStage::Ending | ShellStage::Counting) {
            return ShellEvent::None;
        }
        current.rung = current.rung.saturating_add(read.len());
        if let Some(pid) = current.started_beside(read) {
            return self.leave(pid, now);
        }
        match self.look_at_shell(now) {
            Ok(()) => {}
            Err(errno) => return self.unseen(errno, now),
        }
        let rung = self.current.as_ref().map_or(0, |current| current.rung);
        if self.stage != ShellStage::Counting && rung >= MOST_RINGS {
            // Who writes there goes on, and each time costs a look.
            let why = "something else than its shell told how the command ended".to_owned();
            self.stop_current(Outcome::Failed(Failure::Refused { why }), now);
            self.kill(now);
        }
        ShellEvent::None
    }

    /// Takes note of what the shell shows of the call that runs.
    fn look_at_shell(&mut self, now: Instant) -> Result<(), Errno> {
        let Some(current) = &self.current else { return Ok(()) };
        let pending = &current.pending;
        // Twice: nothing rings again where one system call failed as if the shell had no such file.
        let has_input =
            pending.awaits_input() && (self.has_input(pending)? || self.has_input(pending)?);
        let shown = match self.shown_end(pending)? {
            None => self.shown_end(pending)?,
            shown => shown,
        };
        let Some(current) = &mut self.current else { return Ok(()) };
        if has_input {
            current.pending.opened();
        }
        let Some(shown) = shown else { return Ok(()) };
        current.reported = Some(shown);
        current.took = Some(current.started.elapsed());
        let input = current.pending.input_file;
        self.stage = ShellStage::Counting;
        self.deadline = Some(now + LINGER);
        // Init is gone: its pidfd tells.
        if let Err(errno) = self.cell.tell(&report::ToInit::Count { input }) {
            tracing::debug!(%errno, "a session's cell could not be asked");
        }
        Ok(())
    }

    /// Ends the call: how its command ends cannot be known, and it does not go on unwatched.
    fn unseen(&mut self, errno: Errno, now: Instant) -> ShellEvent {
        let step = "reading how the command ended".to_owned();
        let failure = Failure::Setup { step, errno: report::raw(errno) };
        self.stop_current(Outcome::Failed(failure), now);
        ShellEvent::None
    }
}

impl Current {
    /// Returns the number of the process in which a background call runs, if that has come whole.
    fn started_beside(&mut self, read: &[u8]) -> Option<u32> {
        self.leaving.as_ref()?;
        self.report.extend_from_slice(read);
        // Behind what somebody else may have written.
        let begins = self.report.iter().rposition(|byte| char::from(*byte) == STARTED)?;
        let started = loops::started(self.report.get(begins..)?);
        if self.report.ends_with(&[0]) {
            self.report.clear();
        }
        started
    }
}
