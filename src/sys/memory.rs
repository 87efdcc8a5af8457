//! Memory of others: sealed memfds, by which bytes cross process boundaries, and a struct written
//! into a process of one's own cell.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::Result;

/// Every seal that makes a memfd a constant: no write, no change of size, no change of seals.
const SEALS: SealFlag = SealFlag::F_SEAL_WRITE
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_SHRINK)
    .union(SealFlag::F_SEAL_SEAL);

/// Makes a sealed memfd of `bytes`, not executable, at offset 0.
///
/// # Errors
/// The errno of memfd_create(2), write(2) or F_ADD_SEALS (fcntl(2)).
pub fn sealed(name: &std::ffi::CStr, bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let mut file = File::from(writable(name)?);
    file.write_all(bytes)?;
    file.rewind()?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
    Ok(file.into())
}

/// Makes an empty memfd, not executable, that can be written and sealed.
///
/// # Errors
/// The errno of memfd_create(2).
pub fn writable(name: &std::ffi::CStr) -> std::io::Result<OwnedFd> {
    const NOEXEC_SEAL: MFdFlags = MFdFlags::from_bits_retain(8);
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    match memfd_create(name, flags | NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag; the cell's filter and Landlock hold there.
        Err(Errno::EINVAL) => Ok(memfd_create(name, flags)?),
        result => Ok(result?),
    }
}

/// Returns true if `fd` is a memfd that can no longer change (F_GET_SEALS, fcntl(2)). Other descriptors that a
/// peer may send, such as a directory, a socket or a device, have no seals.
pub fn is_sealed(fd: impl AsFd) -> Result<bool> {
    match fcntl(fd, FcntlArg::F_GET_SEALS) {
        Ok(seals) => Ok(SealFlag::from_bits_retain(seals).contains(SEALS)),
        Err(Errno::EINVAL) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Reads a sealed memfd, whose length cannot change meanwhile.
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
/// The errno of process_vm_writev(2); EFAULT where not all of it can be written.
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

/// Keeps up to `bytes` of freed memory instead of giving it back to the kernel (mallopt(3)), for the next call to
/// use. A C library without such a setting ignores it.
pub fn keep_freed(bytes: i32) {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two numbers.
    let kept = unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, bytes) };
    #[cfg(not(target_env = "gnu"))]
    let kept = bytes;
    tracing::trace!(kept, "memory that is freed is kept");
}

unsafe extern "C" {
    // Set by the linker: the start of the program, and the end of its code.
    static __executable_start: u8;
    static etext: u8;
}

/// Unmaps this program's code and constants, which the kernel reads again from the file when they are used. Code
/// that only a start needs takes no memory then (madvise(2), MADV_DONTNEED).
///
/// # Errors
/// The errno of madvise(2).
pub fn forget_code() -> Result<()> {
    const PAGE: usize = 4096;
    let (start, end) = (&raw const __executable_start, &raw const etext);
    let length = (end as usize).saturating_sub(start as usize) & !(PAGE - 1);
    let start = start.cast_mut().cast::<libc::c_void>();
    // SAFETY: between the two are whole pages of the program's file, mapped without write permission:
    // the linker puts all that can be written behind `etext`. They read the same when they come back.
    Errno::result(unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) }).map(drop)
}
