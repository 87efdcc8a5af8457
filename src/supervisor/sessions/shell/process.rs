//! The process of a session's shell, as procfs shows it to the supervisor.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::readlinkat;

use crate::cells::cell::Cell;
use cell::report::{self, ToInit};
use cell::{Design, proc_files};
use model::profile::ProcView;

/// A shell's process.
#[derive(Debug)]
pub(super) struct ShellProcess {
    /// Its procfs directory.
    directory: OwnedFd,
    /// Process ids of the shell and of its init, in the procfs of the supervisor.
    shell: String,
    init: String,
}

impl ShellProcess {
    /// Reads the process ids before the shell is executed (proc_pid_stat(5)): nothing of the cell has run yet.
    pub(super) fn read(directory: OwnedFd) -> Result<Self, Errno> {
        let stat = proc_files::read_lossy(&directory, "stat")?;
        let shell = stat.split_once(' ').map(|(shell, _)| shell.to_owned());
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
        let init = fields.and_then(|fields| fields.split_ascii_whitespace().nth(1));
        let (Some(shell), Some(init)) = (shell, init) else { return Err(Errno::EPROTO) };
        Ok(Self { directory, shell, init: init.to_owned() })
    }

    /// Hands init the directory of the shell in the supervisor's procfs where the cell has no `/proc`.
    pub(super) fn show_init(&self, cell: &Cell, design: &Design) -> Result<(), Errno> {
        match design.profile.proc {
            ProcView::Own => Ok(()),
            ProcView::None => {
                report::send(&cell.control, &ToInit::ShellDirectory, &[self.directory.as_fd()])
            }
        }
    }

    /// Returns whether there are children of the shell, or of init, which takes those whose parents have ended.
    /// True where the kernel does not list children (proc_pid_task(5)).
    pub(super) fn has_children(&self, proc: &OwnedFd) -> bool {
        let Self { shell, init, .. } = self;
        let children = |pid| proc_files::read_lossy(proc, &format!("{pid}/task/{pid}/children"));
        match (children(shell), children(init)) {
            (Ok(shells), Ok(inits)) => !shells.trim().is_empty() || inits.trim() != shell,
            (_, _) => true,
        }
    }

    /// Returns the directory in which the shell is, unless it has ended.
    pub(super) fn cwd(&self) -> Result<Option<String>, Errno> {
        match readlinkat(&self.directory, "cwd") {
            Ok(path) => Ok(Some(path.to_string_lossy().into_owned())),
            Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
            // Its path is longer than a page.
            Err(Errno::ENAMETOOLONG) => Ok(Some(String::new())),
            Err(errno) => Err(errno),
        }
    }
}
