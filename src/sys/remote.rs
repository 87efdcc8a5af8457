//! Reads and writes another process's memory (process_vm_readv(2)).

use std::io::{IoSlice, IoSliceMut};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use super::Result;

/// Smallest page size of the supported machines.
const MIN_PAGE: usize = 4096;

/// Reads up to `buffer.len()` bytes at `address` of process `pid`; fewer if its memory ends there.
///
/// # Errors
/// EFAULT if nothing can be read there, EPERM if the process may not be read, ESRCH if it is gone.
pub fn read(pid: i32, address: u64, buffer: &mut [u8]) -> Result<usize> {
    let length = buffer.len();
    let start = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    // Two pieces, split at a page boundary: the kernel reads a piece completely or not at all.
    let first = length.min(MIN_PAGE - start % MIN_PAGE);
    let second = start.checked_add(first).ok_or(Errno::EFAULT)?;
    let remote = [
        RemoteIoVec { base: start, len: first },
        RemoteIoVec { base: second, len: length - first },
    ];
    process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(buffer)], &remote)
}

/// Writes `bytes` at `address` of process `pid`. Returns the number of bytes written, which is
/// smaller if its writable memory ends there.
///
/// # Errors
/// The errors of [`read`].
pub fn write(pid: i32, address: u64, bytes: &[u8]) -> Result<usize> {
    let base = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    let remote = [RemoteIoVec { base, len: bytes.len() }];
    process_vm_writev(Pid::from_raw(pid), &[IoSlice::new(bytes)], &remote)
}
