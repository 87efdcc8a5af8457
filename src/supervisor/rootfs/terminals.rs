//! The devpts in which programs of a session or of `run` make pseudo-terminals.
//!
//! Each session has its own, mounted in the session's mount namespace, and `run` has one in its
//! template, from which one cell is made. The kernel shows the terminals of an instance only in its
//! own mounts, so no cell sees those of another or of the host.

use std::os::fd::OwnedFd;

use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;

use model::profile::TerminalSize;
use sys::{Result, terminal};

/// Maximum number of terminals of one instance, including those of calls with a terminal. All
/// instances together have `kernel.pty.max` less `kernel.pty.reserve`, which is the host's alone.
pub(crate) const MAX_TERMINALS: u32 = 16;
/// The device that makes terminals.
const PTMX: &str = "ptmx";

/// A new terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    pub master: OwnedFd,
    /// The command's end.
    pub slave: OwnedFd,
    pub number: u32,
}

/// Mounts a new devpts at `target` and returns its directory. Its terminals belong to `owner`, the
/// id of the cell's programs in the user namespace of this process.
///
/// # Errors
/// The errno with which the kernel or a container refuses it.
pub(crate) fn mount_at(target: &str, owner: u32) -> Result<OwnedFd> {
    // Terminals are opened and written all the same. A cell with the supervisor's uid could otherwise
    // change the modes of `ptmx` and the directory, for the calls and shells that come after it.
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    let options =
        format!("newinstance,mode=0620,ptmxmode=0666,uid={owner},gid={owner},max={MAX_TERMINALS}");
    mount(Some("devpts"), target, Some("devpts"), flags, Some(options.as_str()))?;
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
