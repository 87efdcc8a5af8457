//! Scans the workspace for changes: before a program starts, between the commands of a session, at the end.

use nix::errno::Errno;

use super::{Cause, Init};
use crate::files::Then;
use crate::report;
use sys::Result;
use sys::socket;

impl Init<'_> {
    /// Takes a step of the scan that is under way; at its end the message that waited for it is sent.
    pub(super) fn look_further(&mut self) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        let Some((then, changed)) = files.step() else { return Ok(()) };
        match then {
            Then::Begin => match socket::send(self.beside, b"l", &[]) {
                // Its end is the next event.
                Ok(()) | Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(()),
                Err(errno) => Err(errno),
            },
            Then::Count => {
                report::tell_changed(self.control, &changed)?;
                self.count()
            }
        }
    }

    /// Reports changes when only init is left in the cell. A cell that must end at once is not scanned.
    pub(super) fn last_look(&mut self, cause: Cause) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        match cause {
            Cause::Program => report::tell_changed(self.control, &files.last()),
            Cause::OverLimit(_) => Ok(()),
        }
    }
}
