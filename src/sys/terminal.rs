//! Pseudo-terminals by the descriptor of their master (ioctl_tty(2)).

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::{Result, errno};

/// Lets the other end be opened (unlockpt(3)).
pub fn unlock(master: impl AsFd) -> Result<()> {
    unlockpt(master).map_err(errno)
}

/// Returns the name of the other end in its devpts, a number. Not by ptsname(3), which gives a path that may
/// not exist here.
pub fn number(master: impl AsFd) -> Result<u32> {
    let mut number: libc::c_uint = 0;
    let raw = master.as_fd().as_raw_fd();
    // SAFETY: TIOCGPTN takes a pointer to an unsigned int, which outlives the call.
    Errno::result(unsafe { libc::ioctl(raw, libc::TIOCGPTN, &raw mut number) })?;
    Ok(number)
}

/// Opens the other end by the master, wherever its devpts is mounted. It becomes no process's controlling
/// terminal.
pub fn peer(master: impl AsFd) -> Result<OwnedFd> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    ioctl_tiocgptpeer(master, flags).map_err(errno)
}

/// Sets the size that programs see.
pub fn set_size(master: impl AsFd, rows: u16, columns: u16) -> Result<()> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(master, size).map_err(errno)
}
