//! Pseudo-terminals by the descriptor of their master (ioctl_tty(2)).

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;

use super::Result;

/// Lets the other end be opened.
pub fn unlock(master: impl AsFd) -> Result<()> {
    let open: libc::c_int = 0;
    let raw = master.as_fd().as_raw_fd();
    // SAFETY: TIOCSPTLCK takes a pointer to an int, which outlives the call.
    Errno::result(unsafe { libc::ioctl(raw, libc::TIOCSPTLCK, &raw const open) }).map(drop)
}

/// The name of the other end in its devpts: a number.
pub fn number(master: impl AsFd) -> Result<u32> {
    let mut number: libc::c_uint = 0;
    let raw = master.as_fd().as_raw_fd();
    // SAFETY: TIOCGPTN takes a pointer to an unsigned int, which outlives the call.
    Errno::result(unsafe { libc::ioctl(raw, libc::TIOCGPTN, &raw mut number) })?;
    Ok(number)
}

/// Opens the other end by the master, wherever its devpts is mounted; it becomes nobody's
/// controlling terminal.
pub fn peer(master: impl AsFd) -> Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    let raw = master.as_fd().as_raw_fd();
    // SAFETY: TIOCGPTPEER takes flags of open(2) and no pointer.
    let peer = Errno::result(unsafe { libc::ioctl(raw, libc::TIOCGPTPEER, flags) })?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(peer) })
}

/// Sets what programs are told of its size.
pub fn set_size(master: impl AsFd, rows: u16, columns: u16) -> Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let raw = master.as_fd().as_raw_fd();
    // SAFETY: TIOCSWINSZ takes a pointer to a winsize, which outlives the call.
    Errno::result(unsafe { libc::ioctl(raw, libc::TIOCSWINSZ, &raw const size) }).map(drop)
}
