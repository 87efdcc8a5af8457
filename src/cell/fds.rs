//! Closes descriptors: those of the supervisor before a cell starts, those of the set-up before its
//! program does.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

use sys::{Result, process};

/// Maximum number of descriptors that [`keep_only`] can keep.
const MAX_KEPT: usize = 11;

/// Closes every descriptor but 0, 1, 2 and `kept`.
///
/// The kept descriptors keep their numbers; close_range(2) closes the gaps between them.
pub fn keep_only<'a>(kept: impl Iterator<Item = BorrowedFd<'a>>) -> Result<()> {
    let mut numbers = [u32::MAX; MAX_KEPT];
    for (slot, fd) in kept.enumerate() {
        let number = u32::try_from(fd.as_raw_fd()).map_err(|_| Errno::EBADF)?;
        *numbers.get_mut(slot).ok_or(Errno::EINVAL)? = number;
    }
    numbers.sort_unstable();
    let mut first = 3;
    for number in numbers.into_iter().filter(|number| *number >= 3) {
        if number > first {
            process::close_range(first, number - 1)?;
        }
        if number == u32::MAX {
            return Ok(());
        }
        first = number + 1;
    }
    process::close_range(first, u32::MAX)
}

/// Closes an inherited descriptor that the caller holds only as a borrow.
pub fn close(fd: BorrowedFd<'_>) -> Result<()> {
    let number = u32::try_from(fd.as_raw_fd()).map_err(|_| Errno::EBADF)?;
    process::close_range(number, number)
}
