//! Scans the workspace for changes: before a program starts, between the commands of a session, and
//! at the end.

use nix::errno::Errno;

use super::{Cause, Init};
use crate::files::{Files, Then};
use model::outcome::FilesChanged;
use sys::Result;
use sys::socket;

impl Init<'_> {
    /// Takes one step of the running scan. When the scan is complete, sends the message that waited
    /// for it.
    pub(super) fn continue_scan(&mut self) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        let Some((then, changed)) = files.step() else { return Ok(()) };
        match then {
            Then::Begin => match socket::send(self.handoff, b"l", &[]) {
                // The payload's end is the next event.
                Ok(()) | Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(()),
                Err(errno) => Err(errno),
            },
            Then::Count => self.count(Some(&changed)),
        }
    }

    /// Scans for changes once only init is left in the cell. Skipped for a cell that must end at
    /// once.
    pub(super) fn final_scan(&mut self, cause: Cause) -> Option<FilesChanged> {
        match cause {
            Cause::Program => self.files.as_mut().map(Files::last),
            Cause::OverLimit(_) => None,
        }
    }
}
