//! Descriptors: nothing of the supervisor's reaches a cell, nothing of the cell's set-up its program.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

use sys::{Result, process};

/// Most descriptors that [`keep_only`] can keep.
pub const MOST: usize = 10;

/// Closes every descriptor but 0, 1, 2 and `kept`.
///
/// The kept ones stay where they are; the gaps between them are closed with close_range(2).
pub fn keep_only<'a>(kept: impl Iterator<Item = BorrowedFd<'a>>) -> Result<()> {
    let mut numbers = [u32::MAX; MOST];
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

/// Closes one descriptor that this process inherited and that the code holds only borrowed.
pub fn close(fd: BorrowedFd<'_>) -> Result<()> {
    let number = u32::try_from(fd.as_raw_fd()).map_err(|_| Errno::EBADF)?;
    process::close_range(number, number)
}
