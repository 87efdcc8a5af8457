//! Pseudo-terminals of a devpts that cells have.

use std::os::fd::OwnedFd;

use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, mkdirat};

use cell::mounts::TERMINALS;
use model::profile::TerminalSize;
use sys::{Result, terminal};

/// Terminals of a cell whose call has one, those included that its programs make. The number of all devpts together is
/// bounded for the machine (`kernel.pty.max`).
const MOST: u32 = 16;
/// The device that makes terminals.
pub(crate) const PTMX: &str = "ptmx";

/// A new terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    pub master: OwnedFd,
    /// The end that the command has.
    pub slave: OwnedFd,
    pub number: u32,
}

/// Mounts a devpts at `dev/pts` below the current directory, whose `ptmx` any program of the cell may open, and
/// returns its directory. What programs open at `/dev/ptmx` leads there.
///
/// # Errors
/// The errno with which a kernel or a container refuses it.
pub(crate) fn mount_shared() -> Result<OwnedFd> {
    let place = TERMINALS.trim_start_matches('/');
    mkdirat(AT_FDCWD, place, Mode::from_bits_truncate(0o755))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    let options = format!("newinstance,mode=0666,ptmxmode=0666,max={MOST}");
    mount(Some("devpts"), place, Some("devpts"), flags, Some(options.as_str()))?;
    nix::unistd::symlinkat("pts/ptmx", AT_FDCWD, "dev/ptmx")?;
    let directory = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    openat(AT_FDCWD, place, directory, Mode::empty())
}

/// Makes a new terminal in a devpts.
///
/// # Errors
/// ENOSPC: as many as it may have are in use.
pub(crate) fn open_in(directory: &OwnedFd, size: TerminalSize) -> Result<Terminal> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let master = openat(directory, PTMX, flags, Mode::empty())?;
    terminal::unlock(&master)?;
    terminal::set_size(&master, size.rows, size.columns)?;
    let number = terminal::number(&master)?;
    let slave = terminal::peer(&master)?;
    Ok(Terminal { master, slave, number })
}
