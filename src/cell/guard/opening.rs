//! Opening a file for a caller and handing it over, without ever waiting.

use std::os::fd::{BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::fstat;

use super::gate::{Made, Unmade};
use super::paths::Spot;
use super::waiting::{Pending, blocked, unblocked};
use crate::sys::Result;
use crate::sys::lookup::{self, Follow};
use crate::sys::notify::{self, Notification};

/// Opens a spot, without ever waiting for the other end of a FIFO.
pub fn opened(spot: &Spot, flags: i32, mode: u32) -> std::result::Result<Made, Unmade> {
    // A path that ends in a slash or a dot leads to a directory, or nowhere.
    let follow = if spot.is_no_file() { Follow::Texts } else { Follow::Nothing };
    match lookup::open(&spot.parent, spot.last()?, unblocked(flags), mode, follow) {
        Ok(file) => finished(file, flags),
        Err(errno) if blocked(errno, flags) => {
            let hold = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
            let held = lookup::open(&spot.parent, spot.last()?, hold, 0, Follow::Nothing)?;
            later(held, flags, errno)
        }
        Err(errno) => Err(errno.into()),
    }
}

pub fn later(held: OwnedFd, flags: i32, errno: Errno) -> std::result::Result<Made, Unmade> {
    // A socket cannot be opened at all, and says the same as a FIFO that nobody reads.
    let is_fifo = fstat(&held)?.st_mode & libc::S_IFMT == libc::S_IFIFO;
    if is_fifo || errno == Errno::EWOULDBLOCK {
        Ok(Made::Later(Pending::Open { held, flags }))
    } else {
        Err(errno.into())
    }
}

pub fn finished(file: OwnedFd, flags: i32) -> std::result::Result<Made, Unmade> {
    settle(&file, flags)?;
    Ok(Made::File(file))
}

/// Takes back the flag that kept init from waiting, where the caller did not ask for it.
pub fn settle(file: &OwnedFd, flags: i32) -> Result<()> {
    if flags & libc::O_NONBLOCK != 0 {
        return Ok(());
    }
    let kept = libc::O_APPEND | libc::O_DIRECT | libc::O_NOATIME | libc::O_ASYNC;
    fcntl(file, FcntlArg::F_SETFL(OFlag::from_bits_retain(flags & kept))).map(drop)
}

/// Gives a file to the caller; what keeps it from having one more is its answer then.
pub fn hand_over(
    listener: BorrowedFd<'_>,
    call: Notification,
    file: &OwnedFd,
    flags: i32,
) -> Result<()> {
    match notify::answer_with(listener, call, file, flags & libc::O_CLOEXEC != 0) {
        // Gone already: nobody needs it.
        Ok(()) | Err(Errno::ENOENT | Errno::EINPROGRESS) => Ok(()),
        Err(errno) => notify::refuse(listener, call, errno),
    }
}
