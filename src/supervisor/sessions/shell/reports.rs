//! What comes in the report of a call. Any process of the cell may have written it: it is a reason to look at the shell,
//! and the call is over when that shows its end.

use std::time::Instant;

use nix::errno::Errno;
use nix::unistd::read;

use super::{Current, Shell, ShellEvent, ShellStage};
use crate::sessions::loops::{self, MAX_RINGS, STARTED};
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
        self.look_at_shell();
        let rung = self.current.as_ref().map_or(0, |current| current.rung);
        if rung >= MAX_RINGS {
            // The writer continues, and each time costs a look.
            let why = "a process other than its shell reported how the command ended".to_owned();
            self.stop_current(Outcome::Failed(Failure::Refused { why }), now);
            self.kill(now);
        }
        ShellEvent::None
    }

    /// Ends the call: the end of its command cannot be observed, and it must not run unobserved.
    pub(super) fn unseen(&mut self, errno: Errno, now: Instant) -> ShellEvent {
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
        // After bytes that another process may have written.
        let begins = self.report.iter().rposition(|byte| char::from(*byte) == STARTED)?;
        let started = loops::started(self.report.get(begins..)?);
        if self.report.ends_with(&[0]) {
            self.report.clear();
        }
        started
    }
}
