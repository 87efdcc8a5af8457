//! Opening a file for a caller and handing it over, without ever waiting.

use std::os::fd::{BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::fstat;

use super::gate::{Made, Unmade};
use super::judge::Judge;
use super::paths::Spot;
use super::waiting::{MADE, Pending, blocked, unblocked};
use sys::Result;
use sys::lookup::{self, Follow};
use sys::notify::{self, Notification};

/// Opens a spot, without ever waiting for the other end of a FIFO.
pub fn opened(
    judge: &Judge<'_>,
    spot: &Spot,
    flags: i32,
    mode: u32,
) -> std::result::Result<Made, Unmade> {
    // A path that ends in a slash or a dot leads to a directory, or nowhere.
    let follow = if spot.is_no_file() { Follow::Texts } else { Follow::Nothing };
    match lookup::open(&spot.parent, spot.last()?, unblocked(flags), mode, follow) {
        Ok(file) => finished(file, flags),
        Err(errno) if blocked(errno, flags) => {
            let hold = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
            let held = lookup::open(&spot.parent, spot.last()?, hold, 0, Follow::Nothing)?;
            later(judge, held, flags, errno)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// What a caller waits for that met `errno` at what is held.
pub fn later(
    judge: &Judge<'_>,
    held: OwnedFd,
    flags: i32,
    errno: Errno,
) -> std::result::Result<Made, Unmade> {
    if errno == Errno::EWOULDBLOCK {
        return Ok(Made::Later(Pending::Open { held, flags }));
    }
    // A socket cannot be opened at all, and says the same as a FIFO that nobody reads.
    if fstat(&held)?.st_mode & libc::S_IFMT != libc::S_IFIFO {
        return Err(errno.into());
    }
    Ok(Made::Later(match writer(judge, &held, flags) {
        Ok(end) => Pending::Writer { end, flags, is_read: false },
        Err(_) => Pending::Open { held, flags },
    }))
}

/// A FIFO's end for writing that nobody reads.
///
/// Where nobody reads, only an open for both does not wait (fifo(7)); while there is that one, there is a
/// reader. A writer outside the cell that waits too, in open(2) or by another init, takes it for one.
///
/// # Errors
/// The caller may not read it.
fn writer(judge: &Judge<'_>, held: &OwnedFd, flags: i32) -> Result<OwnedFd> {
    let both = OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let _reader = judge.open_held(held, both)?;
    judge.open_held(held, OFlag::from_bits_retain(unblocked(flags & !MADE)))
}

pub fn finished(file: OwnedFd, flags: i32) -> std::result::Result<Made, Unmade> {
    settle(&file, flags)?;
    Ok(Made::File(file, flags))
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
