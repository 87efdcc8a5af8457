//! Pseudo-terminals, operated through the descriptor of the master (ioctl_tty(2)).

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use rustix::process::ioctl_tiocsctty;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{
    OptionalActions, QueueSelector, Termios, Winsize, tcflush, tcgetattr, tcgetwinsize, tcsetattr,
    tcsetwinsize,
};

use super::{Result, errno};

/// Unlocks the slave, so that it can be opened (unlockpt(3)).
pub fn unlock(master: impl AsFd) -> Result<()> {
    unlockpt(master).map_err(errno)
}

/// Returns the name of the slave in its devpts, a number. ptsname(3) would return a path that may
/// not exist here.
pub fn number(master: impl AsFd) -> Result<u32> {
    let mut number: libc::c_uint = 0;
    let raw = master.as_fd().as_raw_fd();
    // SAFETY: TIOCGPTN takes a pointer to an unsigned int, which outlives the call.
    Errno::result(unsafe { libc::ioctl(raw, libc::TIOCGPTN, &raw mut number) })?;
    Ok(number)
}

/// Opens the slave through the master, wherever its devpts is mounted. The slave does not become a
/// controlling terminal.
pub fn peer(master: impl AsFd) -> Result<OwnedFd> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    ioctl_tiocgptpeer(master, flags).map_err(errno)
}

/// Makes a terminal the controlling one of the caller's session, which must not have one yet
/// (TIOCSCTTY).
pub fn take_control(terminal: impl AsFd) -> Result<()> {
    ioctl_tiocsctty(terminal).map_err(errno)
}

/// Saved attributes of a terminal.
#[derive(Debug, Clone)]
pub struct Attributes(Termios);

/// Returns the attributes of a terminal.
pub fn attributes(terminal: impl AsFd) -> Result<Attributes> {
    tcgetattr(terminal).map(Attributes).map_err(errno)
}

/// Sets attributes immediately, without waiting for pending output or input.
pub fn set_attributes(terminal: impl AsFd, attributes: &Attributes) -> Result<()> {
    tcsetattr(terminal, OptionalActions::Now, &attributes.0).map_err(errno)
}

impl Attributes {
    /// Returns these attributes in raw mode, in which every byte passes unchanged (cfmakeraw(3)).
    #[must_use]
    pub fn raw(&self) -> Self {
        let mut raw = self.0.clone();
        raw.make_raw();
        Self(raw)
    }
}

/// Discards unread input.
pub fn discard_input(terminal: impl AsFd) -> Result<()> {
    tcflush(terminal, QueueSelector::IFlush).map_err(errno)
}

/// Returns the numbers of rows and columns.
pub fn size(terminal: impl AsFd) -> Result<(u16, u16)> {
    tcgetwinsize(terminal).map(|size| (size.ws_row, size.ws_col)).map_err(errno)
}

/// Sets the window size that programs see.
pub fn set_size(master: impl AsFd, rows: u16, columns: u16) -> Result<()> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(master, size).map_err(errno)
}
