//! Reading another process's memory (process_vm_readv(2)).

use nix::errno::Errno;

use super::Result;

/// No page of a supported machine is smaller.
const PAGE: usize = 4096;

/// Reads up to `buffer.len()` bytes at `address` of process `pid`; fewer where its memory ends.
///
/// # Errors
/// EFAULT: nothing can be read there. EPERM, ESRCH: it may not be read, or is gone.
pub fn read(pid: i32, address: u64, buffer: &mut [u8]) -> Result<usize> {
    let length = buffer.len();
    let start = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    // In two pieces, cut at a page's end: what the kernel reads of a piece is all or nothing.
    let first = length.min(PAGE - start % PAGE);
    let second = start.checked_add(first).ok_or(Errno::EFAULT)?;
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: length };
    let remote = [
        libc::iovec { iov_base: start as *mut libc::c_void, iov_len: first },
        libc::iovec { iov_base: second as *mut libc::c_void, iov_len: length - first },
    ];
    // SAFETY: `local` is one writable buffer of its length, which outlives the call; the remote
    // pieces are addresses of the other process, which the kernel checks.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), 2, 0) };
    Errno::result(read).map(|read| read as usize)
}
