//! Opens a file for a caller and hands it over, without blocking init.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, FcntlArg, OFlag, fcntl};
use nix::sys::stat::fstat;

use super::caller::TargetCall;
use super::guard::NameGuard;
use super::paths::Spot;
use super::response::{CallError, Response, Retry};
use crate::mounts::TERMINALS;
use sys::Result;
use sys::lookup::{self, Follow};
use sys::notify::{self, Notification};

/// Flags of open(2) that concern the name, and do not apply when a held file is reopened.
pub(crate) const NAME_FLAGS: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;

/// The device of `/dev/tty` (tty(4)).
const TTY_DEVICE: u64 = libc::makedev(5, 0);

/// Opens a spot without waiting for the other end of a FIFO.
pub(crate) fn opened(
    name_guard: &NameGuard<'_>,
    spot: &Spot,
    flags: i32,
    mode: u32,
) -> std::result::Result<Response, CallError> {
    // A path that ends in a slash or a dot names a directory, or nothing.
    let follow = if spot.is_no_file() { Follow::Texts } else { Follow::Nothing };
    match lookup::open(&spot.parent, spot.last()?, unblocked(flags), mode, follow) {
        Ok(file) => finished(file, flags),
        Err(errno) if blocked(errno, flags) => {
            let hold = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
            let held = lookup::open(&spot.parent, spot.last()?, hold, 0, Follow::Nothing)?;
            later(name_guard, held, flags, errno)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Creates a file for the caller. Fails with EEXIST if another process has made one by now.
pub(crate) fn create(
    caller: &TargetCall<'_>,
    spot: &Spot,
    flags: i32,
    mode: u32,
) -> std::result::Result<Response, CallError> {
    caller.lend_umask()?;
    caller.still_waits()?;
    let new = unblocked(flags | libc::O_EXCL);
    let file = lookup::open(&spot.parent, spot.last()?, new, mode, Follow::Nothing)?;
    finished(file, flags)
}

/// Decides how to retry a call after opening the held file failed with `errno`.
pub(crate) fn later(
    name_guard: &NameGuard<'_>,
    held: OwnedFd,
    flags: i32,
    errno: Errno,
) -> std::result::Result<Response, CallError> {
    if errno == Errno::EWOULDBLOCK {
        return Ok(Response::Later(Retry::Open { held, flags }));
    }
    // A socket, which open(2) cannot open, gives the same errno as a FIFO without a reader.
    if fstat(&held)?.st_mode & libc::S_IFMT != libc::S_IFIFO {
        return Err(errno.into());
    }
    Ok(Response::Later(match writer(name_guard, &held, flags) {
        Ok(end) => Retry::FifoWriter { end, flags, is_read: false },
        Err(_) => Retry::Open { held, flags },
    }))
}

/// Opens the writing end of a FIFO that has no reader.
///
/// Without a reader only O_RDWR does not block (fifo(7)), but it counts as a reader while it is
/// open. Another writer that waits outside the cell, in open(2) or through another init, may
/// mistake it for one.
///
/// # Errors
/// The caller may not read the FIFO.
fn writer(name_guard: &NameGuard<'_>, held: &OwnedFd, flags: i32) -> Result<OwnedFd> {
    let both = OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let _reader = name_guard.open_held(held, both)?;
    name_guard.open_held(held, OFlag::from_bits_retain(unblocked(flags & !NAME_FLAGS)))
}

/// Returns true if a held file is `/dev/tty`, which means another terminal for each process. Init
/// has no controlling terminal, so its own open of it gets ENXIO.
pub(crate) fn is_tty_device(held: &OwnedFd) -> Result<bool> {
    let status = fstat(held)?;
    Ok(status.st_mode & libc::S_IFMT == libc::S_IFCHR && status.st_rdev == TTY_DEVICE)
}

/// Opens the caller's controlling terminal, by its number: all terminals of a cell are of one
/// devpts.
///
/// # Errors
/// ENXIO: the caller has no controlling terminal.
pub(crate) fn controlling_terminal(
    caller: &TargetCall<'_>,
    flags: i32,
) -> std::result::Result<Response, CallError> {
    let number = caller.target.terminal()?.ok_or(Errno::ENXIO)?;
    caller.still_waits()?;
    let mut buffer = [0; 32];
    let mut rest = buffer.as_mut_slice();
    write!(rest, "{TERMINALS}/{number}\0").map_err(|_| Errno::ENXIO)?;
    let path = CStr::from_bytes_until_nul(&buffer).map_err(|_| Errno::ENXIO)?;
    let file = lookup::open(AT_FDCWD, path, unblocked(flags & !NAME_FLAGS), 0, Follow::Nothing)?;
    finished(file, flags)
}

/// Answers with a file that was opened with O_NONBLOCK.
pub(crate) fn finished(file: OwnedFd, flags: i32) -> std::result::Result<Response, CallError> {
    settle(&file, flags)?;
    Ok(Response::Descriptor(file, flags))
}

/// Clears O_NONBLOCK, which only kept init from blocking, unless the caller requested it.
pub(crate) fn settle(file: &OwnedFd, flags: i32) -> Result<()> {
    if flags & libc::O_NONBLOCK != 0 {
        return Ok(());
    }
    let kept = libc::O_APPEND | libc::O_DIRECT | libc::O_NOATIME | libc::O_ASYNC;
    fcntl(file, FcntlArg::F_SETFL(OFlag::from_bits_retain(flags & kept))).map(drop)
}

/// Installs a file in the caller. If that fails, the call fails with the same errno.
pub(crate) fn hand_over(
    listener: BorrowedFd<'_>,
    call: Notification,
    file: &OwnedFd,
    flags: i32,
) -> Result<()> {
    match notify::answer_with(listener, call, file, flags & libc::O_CLOEXEC != 0) {
        // The caller has ended, or a signal has interrupted its call.
        Ok(()) | Err(Errno::ENOENT | Errno::EINPROGRESS) => Ok(()),
        Err(errno) => notify::refuse(listener, call, errno),
    }
}

/// Returns the flags of an open that never blocks and takes no controlling terminal.
pub(crate) fn unblocked(flags: i32) -> i32 {
    flags | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC
}

/// Returns true if the caller's own open would have blocked, given that init's got `errno`.
pub(crate) fn blocked(errno: Errno, flags: i32) -> bool {
    flags & libc::O_NONBLOCK == 0 && matches!(errno, Errno::ENXIO | Errno::EWOULDBLOCK)
}
