//! The end of a call as its shell shows it: by the files that it holds open while it waits for the next call.
//!
//! Any process of the cell can write to the report of a call, and read and write what the shell can. None can open a
//! file in the shell: that would take ptrace(2), pidfd_getfd(2) or its memory, which no cell has. The shell opens these
//! files before it rings and closes them when the supervisor opens the gate of the next call, so they are there for
//! each look that its own ring leads to.
//!
//! The cell's init looks (`cell::init`): how long that takes is up to what the shell has open.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::readlinkat;

use super::{Shell, ShellEvent, ShellStage};
use crate::cells::cell::Cell;
use crate::cells::exit::LINGER;
use cell::Design;
use cell::report::{self, ShellLook, ShownState, ToInit};
use model::profile::ProcView;

/// The end of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShownEnd {
    pub status: u8,
    /// The shell's directory, as the kernel has it.
    pub cwd: String,
}

/// The look of init at the shell while a call runs. Init has one order to look at most, so that rings cannot fill its
/// socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Looking {
    #[default]
    No,
    /// Init has been sent the order.
    Sent,
    /// Something rang since then: init looks once more.
    Again,
}

/// Hands init the directory of the shell in the supervisor's procfs where the cell has no `/proc`.
pub(super) fn show_init(cell: &Cell, design: &Design, process: &OwnedFd) -> Result<(), Errno> {
    match design.profile.proc {
        ProcView::Own => Ok(()),
        ProcView::None => report::send(&cell.control, &ToInit::ShellDirectory, &[process.as_fd()]),
    }
}

impl Shell {
    /// Asks init to look at the shell for the running call.
    pub(super) fn look_at_shell(&mut self) {
        let Some(current) = &mut self.current else { return };
        if current.looking != Looking::No {
            current.looking = Looking::Again;
            return;
        }
        current.looking = Looking::Sent;
        let pending = &current.pending;
        let look =
            ShellLook { number: pending.number, marks: pending.marks, input: pending.input_file };
        // Init is gone, which its pidfd reports.
        if let Err(errno) = self.cell.tell(&ToInit::LookAtShell(look)) {
            tracing::debug!(%errno, "a session's cell could not be asked");
        }
    }

    /// Takes what init has seen of a call.
    pub(super) fn shown(&mut self, number: u64, shell: ShownState, now: Instant) -> ShellEvent {
        let is_over = matches!(self.stage, ShellStage::Ending | ShellStage::Counting);
        let current = self.current.as_mut().filter(|current| current.pending.number == number);
        let Some(current) = current.filter(|_| !is_over) else { return ShellEvent::None };
        let before = std::mem::take(&mut current.looking);
        match shell {
            ShownState::Runs { has_input } => {
                if has_input {
                    current.pending.opened();
                }
                if before == Looking::Again {
                    self.look_at_shell();
                }
            }
            ShownState::Over { status } => return self.shown_end(status, now),
            ShownState::Unseen { errno } => return self.unseen(Errno::from_raw(errno), now),
        }
        ShellEvent::None
    }

    /// Notes the end of the call that runs; the counters of init come next.
    fn shown_end(&mut self, status: u8, now: Instant) -> ShellEvent {
        let cwd = match self.directory() {
            Ok(Some(cwd)) => cwd,
            // Its end is reported next.
            Ok(None) => return ShellEvent::None,
            Err(errno) => return self.unseen(errno, now),
        };
        let Some(current) = &mut self.current else { return ShellEvent::None };
        current.reported = Some(ShownEnd { status, cwd });
        current.took = Some(current.started.elapsed());
        self.stage = ShellStage::Counting;
        self.deadline = Some(now + LINGER);
        ShellEvent::None
    }

    /// Returns the directory of the shell, unless it has ended.
    fn directory(&self) -> Result<Option<String>, Errno> {
        match readlinkat(&self.process, "cwd") {
            Ok(path) => Ok(Some(path.to_string_lossy().into_owned())),
            Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
            // Its path is longer than a page.
            Err(Errno::ENAMETOOLONG) => Ok(Some(String::new())),
            Err(errno) => Err(errno),
        }
    }
}
