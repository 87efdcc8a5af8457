//! Looking paths up from a held directory: openat2 and readlinkat.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;

use super::{Result, check};

/// What the kernel may follow on the way (openat2(2), RESOLVE_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Symbolic links, but none of procfs that lead to a process's own things.
    Texts,
    /// No symbolic link at all.
    Nothing,
    /// No symbolic link and no way up.
    Below,
    /// No symbolic link, no mount, and no way up.
    Beneath,
}

/// What open(2) makes of flags that a program sets (VALID_OPEN_FLAGS in the kernel); the others it
/// ignores, and openat2 would refuse them.
const KNOWN: i32 = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_NOCTTY
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_ASYNC
    | libc::O_DIRECT
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_CLOEXEC
    | libc::O_PATH
    | libc::O_TMPFILE;

/// O_LARGEFILE, which open(2) sets by itself on 64 bits and the C library defines as 0.
#[cfg(target_arch = "x86_64")]
const LARGE: i32 = 0o100_000;
#[cfg(not(target_arch = "x86_64"))]
const LARGE: i32 = 0o400_000;

/// openat2(2) of `path` from `directory`, with the flags and the mode of an open(2).
pub fn open(
    directory: impl AsFd,
    path: &CStr,
    flags: i32,
    mode: u32,
    follow: Follow,
) -> Result<OwnedFd> {
    // SAFETY: open_how is plain integers, for which all zeroes is a value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    let large = if flags & libc::O_PATH == 0 { LARGE } else { 0 };
    how.flags = (flags & KNOWN | large) as u32 as u64;
    how.mode = if flags & libc::O_CREAT == 0 { 0 } else { u64::from(mode & 0o7777) };
    how.resolve = match follow {
        Follow::Texts => libc::RESOLVE_NO_MAGICLINKS,
        Follow::Nothing => libc::RESOLVE_NO_MAGICLINKS | libc::RESOLVE_NO_SYMLINKS,
        Follow::Below => {
            libc::RESOLVE_NO_MAGICLINKS | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_BENEATH
        }
        Follow::Beneath => {
            libc::RESOLVE_NO_MAGICLINKS
                | libc::RESOLVE_NO_SYMLINKS
                | libc::RESOLVE_NO_XDEV
                | libc::RESOLVE_BENEATH
        }
    };
    // SAFETY: `path` is NUL-terminated, `how` is a whole open_how of the size given; both outlive
    // the call.
    let raw = check(unsafe {
        libc::syscall(
            libc::SYS_openat2,
            directory.as_fd().as_raw_fd(),
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    })?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as libc::c_int) })
}

/// readlinkat(2) into `buffer`; a text that fills it may be longer and is ENAMETOOLONG.
pub fn read_link<'b>(directory: impl AsFd, name: &CStr, buffer: &'b mut [u8]) -> Result<&'b [u8]> {
    // SAFETY: `name` is NUL-terminated, `buffer` is writable for its length; both outlive the call.
    let length = unsafe {
        libc::readlinkat(
            directory.as_fd().as_raw_fd(),
            name.as_ptr(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
        )
    };
    let length = Errno::result(length)? as usize;
    if length >= buffer.len() {
        return Err(Errno::ENAMETOOLONG);
    }
    buffer.get(..length).ok_or(Errno::ENAMETOOLONG)
}

/// Whether a directory may take two spellings of a name for one: its flag says so (FS_CASEFOLD_FL),
/// or it has none and its filesystem is not one that is known to tell them apart.
pub fn may_fold(directory: impl AsFd) -> Result<bool> {
    const GET_FLAGS: libc::c_ulong = 0x8008_6601;
    const CASEFOLD: libc::c_int = 0x4000_0000;
    let mut flags: libc::c_int = 0;
    // SAFETY: FS_IOC_GETFLAGS stores an int, which outlives the call.
    let result = unsafe { libc::ioctl(directory.as_fd().as_raw_fd(), GET_FLAGS, &raw mut flags) };
    match Errno::result(result) {
        Ok(_) => Ok(flags & CASEFOLD != 0),
        Err(Errno::ENOTTY | Errno::EOPNOTSUPP | Errno::EINVAL | Errno::EACCES | Errno::ENOSYS) => {
            Ok(true)
        }
        Err(errno) => Err(errno),
    }
}
