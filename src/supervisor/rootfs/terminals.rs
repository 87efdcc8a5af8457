//! Pseudo-terminals of a devpts in a cell.

use std::os::fd::OwnedFd;

use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, mkdirat};

use cell::mounts::TERMINALS;
use model::profile::TerminalSize;
use sys::{Result, terminal};

/// Maximum number of terminals of a cell whose call has one, including those that its programs
/// open. The kernel limits the total of all devpts instances (`kernel.pty.max`).
const MAX_TERMINALS: u32 = 16;
/// The device that makes terminals.
pub(crate) const PTMX: &str = "ptmx";

/// A new terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    pub master: OwnedFd,
    /// The command's end.
    pub slave: OwnedFd,
    pub number: u32,
}

/// Mounts a devpts at `dev/pts` below the current directory, whose `ptmx` any program of the cell
/// may open, and returns its directory. `/dev/ptmx` is a link to that `ptmx`.
///
/// # Errors
/// The errno with which the kernel or a container refuses it.
pub(crate) fn mount_shared() -> Result<OwnedFd> {
    let target = TERMINALS.trim_start_matches('/');
    mkdirat(AT_FDCWD, target, Mode::from_bits_truncate(0o755))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    let options = format!("newinstance,mode=0666,ptmxmode=0666,max={MAX_TERMINALS}");
    mount(Some("devpts"), target, Some("devpts"), flags, Some(options.as_str()))?;
    nix::unistd::symlinkat("pts/ptmx", AT_FDCWD, "dev/ptmx")?;
    let directory = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    openat(AT_FDCWD, target, directory, Mode::empty())
}

/// Opens a new terminal in a devpts.
///
/// # Errors
/// ENOSPC: the maximum number of terminals is in use.
pub(crate) fn open_in(directory: &OwnedFd, size: TerminalSize) -> Result<Terminal> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let master = openat(directory, PTMX, flags, Mode::empty())?;
    terminal::unlock(&master)?;
    terminal::set_size(&master, size.rows, size.columns)?;
    let number = terminal::number(&master)?;
    let slave = terminal::peer(&master)?;
    Ok(Terminal { master, slave, number })
}
