//! Memory of others: sealed memfds, by which bytes cross process boundaries, and a struct written
//! into a process of one's own cell.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;

use super::Result;

/// Every seal that makes a memfd a constant: no write, no change of size, no change of seals.
const SEALS: libc::c_int =
    libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;

/// A memfd with `bytes` in it, sealed, not executable, at offset 0.
///
/// # Errors
/// What memfd_create(2), write(2) or F_ADD_SEALS (fcntl(2)) say.
pub fn sealed(name: &std::ffi::CStr, bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let mut file = File::from(writable(name)?);
    file.write_all(bytes)?;
    file.rewind()?;
    // SAFETY: takes a descriptor and numbers.
    Errno::result(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
    Ok(file.into())
}

/// An empty memfd, not executable, that can be written and sealed.
///
/// # Errors
/// What memfd_create(2) says.
pub fn writable(name: &std::ffi::CStr) -> std::io::Result<OwnedFd> {
    const MFD_NOEXEC_SEAL: libc::c_uint = 8;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let create = |flags: libc::c_uint| {
        // SAFETY: `name` is NUL-terminated and outlives the call.
        Errno::result(unsafe { libc::memfd_create(name.as_ptr(), flags) })
    };
    let raw = match create(flags | MFD_NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag; the cell's filter and Landlock hold there.
        Err(Errno::EINVAL) => create(flags)?,
        result => result?,
    };
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Whether `fd` is a memfd that can no longer change (F_GET_SEALS, fcntl(2)).
/// Anything else a peer may send (a directory, a socket, a device) has no seals and fails here.
pub fn is_sealed(fd: impl AsFd) -> Result<bool> {
    // SAFETY: takes a descriptor and a number.
    let seals = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_GET_SEALS) };
    match Errno::result(seals) {
        Ok(seals) => Ok(seals & SEALS == SEALS),
        Err(Errno::EINVAL) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// What a sealed memfd holds, whose length stays what it is while we look.
///
/// # Errors
/// EFBIG for more than `most` bytes; what fstat(2) or pread(2) say.
pub fn contents(fd: &OwnedFd, most: usize) -> std::io::Result<Vec<u8>> {
    let file = File::from(fd.try_clone()?);
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    if length > most {
        return Err(Errno::EFBIG.into());
    }
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Writes a sysinfo(2) of a machine with `memory` bytes, all free, that runs for `uptime` seconds, to
/// `address` of process `pid`.
///
/// # Errors
/// What process_vm_writev(2) says; EFAULT where not all of it can be written.
pub fn write_sysinfo(pid: i32, address: u64, memory: u64, uptime: i64) -> Result<()> {
    const SIZE: usize = size_of::<libc::sysinfo>();
    // SAFETY: sysinfo is plain integers, for which all zeroes is a value.
    let mut facts: libc::sysinfo = unsafe { std::mem::zeroed() };
    facts.uptime = uptime;
    facts.totalram = memory;
    facts.freeram = memory;
    facts.procs = 1;
    facts.mem_unit = 1;
    let local = libc::iovec { iov_base: (&raw mut facts).cast(), iov_len: SIZE };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: SIZE };
    // SAFETY: `local` describes `facts`, which outlives the call; `remote` is of another process,
    // where the kernel checks each page.
    let written =
        unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) };
    if Errno::result(written)? as usize == SIZE { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Keeps up to `bytes` of freed memory instead of giving it back to the kernel (mallopt(3)): what a
/// call uses, the next uses again. Where the C library has no such setting, nothing changes.
pub fn keep_freed(bytes: i32) {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two numbers.
    let kept = unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, bytes) };
    #[cfg(not(target_env = "gnu"))]
    let kept = bytes;
    tracing::trace!(kept, "memory that is freed is kept");
}

unsafe extern "C" {
    // Set by the linker: where the program begins, and where its code ends.
    static __executable_start: u8;
    static etext: u8;
}

/// Unmaps this program's code and constants, which come back from its file as they are used: what
/// only a start needs is then nobody's (madvise(2), MADV_DONTNEED).
///
/// # Errors
/// What madvise(2) says.
pub fn forget_code() -> Result<()> {
    const PAGE: usize = 4096;
    let (start, end) = (&raw const __executable_start, &raw const etext);
    let length = (end as usize).saturating_sub(start as usize) & !(PAGE - 1);
    let start = start.cast_mut().cast::<libc::c_void>();
    // SAFETY: between the two are whole pages of the program's file, mapped without write permission:
    // the linker puts all that can be written behind `etext`. They read the same when they come back.
    Errno::result(unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) }).map(drop)
}
