//! Reading another process's memory (process_vm_readv(2)).

use std::io::IoSliceMut;

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use super::Result;

/// Bytes of the smallest page of a supported machine.
const PAGE: usize = 4096;

/// Reads up to `buffer.len()` bytes at `address` of process `pid`; fewer where its memory ends.
///
/// # Errors
/// EFAULT: nothing can be read there. EPERM, ESRCH: it may not be read, or is gone.
pub fn read(pid: i32, address: u64, buffer: &mut [u8]) -> Result<usize> {
    let length = buffer.len();
    let start = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    // In two pieces, cut at a page's end: the kernel reads a piece whole or not at all.
    let first = length.min(PAGE - start % PAGE);
    let second = start.checked_add(first).ok_or(Errno::EFAULT)?;
    let remote = [
        RemoteIoVec { base: start, len: first },
        RemoteIoVec { base: second, len: length - first },
    ];
    process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(buffer)], &remote)
}
