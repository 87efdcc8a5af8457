//! Sealed memfds, which carry bytes across process boundaries, writing into the memory of a process
//! in a cell, and counting System V segments.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{SysconfVar, sysconf};

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
        // Kernels before 6.3 do not know the flag; there the cell's filter and Landlock prevent
        // execution.
        Err(Errno::EINVAL) => Ok(memfd_create(name, flags)?),
        result => Ok(result?),
    }
}

/// Returns true if `fd` is a memfd that can no longer change (F_GET_SEALS, fcntl(2)). Other
/// descriptors that a peer may send, such as directories, sockets or devices, have no seals.
pub fn is_sealed(fd: impl AsFd) -> Result<bool> {
    match fcntl(fd, FcntlArg::F_GET_SEALS) {
        Ok(seals) => Ok(SealFlag::from_bits_retain(seals).contains(SEALS)),
        Err(Errno::EINVAL) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Reads a sealed memfd, whose length cannot change while it is read.
///
/// # Errors
/// EFBIG for more than `max_bytes` bytes; otherwise the errno of fstat(2) or pread(2).
pub fn contents(fd: &OwnedFd, max_bytes: usize) -> std::io::Result<Vec<u8>> {
    let file = File::from(fd.try_clone()?);
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    if length > max_bytes {
        return Err(Errno::EFBIG.into());
    }
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Writes a struct sysinfo (sysinfo(2)) to `address` of process `pid`. The struct describes a
/// machine with `memory` bytes, all free, that has been up for `uptime` seconds.
///
/// # Errors
/// The errno of process_vm_writev(2); EFAULT if only a part could be written.
pub fn write_sysinfo(pid: i32, address: u64, memory: u64, uptime: i64) -> Result<()> {
    const SIZE: usize = size_of::<libc::sysinfo>();
    // SAFETY: sysinfo is plain integers, for which all zeroes is a value.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    info.uptime = uptime;
    info.totalram = memory;
    info.freeram = memory;
    info.procs = 1;
    info.mem_unit = 1;
    let local = libc::iovec { iov_base: (&raw mut info).cast(), iov_len: SIZE };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: SIZE };
    // SAFETY: `local` describes `info`, which outlives the call; `remote` is in another process,
    // where the kernel checks each page.
    let written =
        unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) };
    if Errno::result(written)? as usize == SIZE { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Returns the bytes of all System V segments in this IPC namespace, in whole pages (SHM_INFO,
/// shmctl(2)), whether a process has attached them or not.
///
/// # Errors
/// The errno of shmctl(2).
pub fn segment_bytes() -> Result<u64> {
    /// The kernel's struct shm_info.
    #[repr(C)]
    struct ShmInfo {
        used_ids: libc::c_int,
        total: libc::c_ulong,
        resident: libc::c_ulong,
        swapped: libc::c_ulong,
        swap_attempts: libc::c_ulong,
        swap_successes: libc::c_ulong,
    }
    const SHM_INFO: libc::c_int = 14;
    // SAFETY: shm_info is plain integers, for which all zeroes is a value.
    let mut info: ShmInfo = unsafe { std::mem::zeroed() };
    let room = (&raw mut info).cast::<libc::shmid_ds>();
    // SAFETY: with SHM_INFO the kernel writes a struct shm_info to `room`, which outlives the call.
    Errno::result(unsafe { libc::shmctl(0, SHM_INFO, room) })?;
    let page = sysconf(SysconfVar::PAGE_SIZE)?.and_then(|bytes| u64::try_from(bytes).ok());
    Ok(info.total.saturating_mul(page.ok_or(Errno::EINVAL)?))
}

/// Keeps up to `bytes` of freed memory for later allocations instead of returning it to the kernel
/// (mallopt(3)). Ignored by C libraries without such a setting.
pub fn keep_freed(bytes: i32) {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two numbers.
    let kept = unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, bytes) };
    #[cfg(not(target_env = "gnu"))]
    let kept = bytes;
    tracing::trace!(kept, "freed memory is kept");
}

unsafe extern "C" {
    // Set by the linker: the start of the program, and the end of its code.
    static __executable_start: u8;
    static etext: u8;
}

/// Unmaps this program's code and constants; the kernel reads them from the file again when they
/// are used. Code that only runs at the start then takes no memory (madvise(2), MADV_DONTNEED).
///
/// # Errors
/// The errno of madvise(2).
pub fn forget_code() -> Result<()> {
    const PAGE: usize = 4096;
    let start = &raw const __executable_start;
    let end = &raw const etext;
    let length = (end as usize).saturating_sub(start as usize) & !(PAGE - 1);
    let start = start.cast_mut().cast::<libc::c_void>();
    // SAFETY: between the two symbols are whole pages of the program's file, mapped without write
    // permission: the linker puts writable data after `etext`. The pages have the same contents
    // when read again.
    Errno::result(unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) }).map(drop)
}
