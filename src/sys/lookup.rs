//! Looks up paths from an open directory: openat2(2) and readlinkat(2).

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2, readlinkat_raw};

use super::{Result, errno};

/// Links and mounts that a lookup may pass (openat2(2), RESOLVE_*).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Symbolic links, but not the magic links of procfs.
    Texts,
    /// No symbolic links.
    Nothing,
    /// No symbolic links, and no way up out of the directory.
    Below,
    /// No symbolic links, no mount points, and no way up out of the directory.
    Beneath,
}

/// Flags that open(2) knows (VALID_OPEN_FLAGS in the kernel). open(2) ignores other flags, while
/// openat2(2) refuses them.
const KNOWN_FLAGS: i32 = libc::O_ACCMODE
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

/// Opens `path` from `directory` with openat2(2), with the flags and the mode of an open(2).
pub fn open(
    directory: impl AsFd,
    path: &CStr,
    flags: i32,
    mode: u32,
    follow: Follow,
) -> Result<OwnedFd> {
    let mode = if flags & libc::O_CREAT == 0 { 0 } else { mode & 0o7777 };
    let plain = ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let resolve = match follow {
        Follow::Texts => ResolveFlags::NO_MAGICLINKS,
        Follow::Nothing => plain,
        Follow::Below => plain | ResolveFlags::BENEATH,
        Follow::Beneath => plain | ResolveFlags::NO_XDEV | ResolveFlags::BENEATH,
    };
    // Like open(2), rustix sets O_LARGEFILE.
    let flags = OFlags::from_bits_retain((flags & KNOWN_FLAGS) as u32);
    openat2(directory, path, flags, Mode::from_raw_mode(mode), resolve).map_err(errno)
}

/// Reads a symbolic link into `buffer` (readlinkat(2)).
///
/// # Errors
/// ENAMETOOLONG if the text fills the buffer, so it may be longer.
pub fn read_link<'b>(directory: impl AsFd, name: &CStr, buffer: &'b mut [u8]) -> Result<&'b [u8]> {
    let length = readlinkat_raw(directory, name, &mut *buffer).map_err(errno)?;
    if length >= buffer.len() {
        return Err(Errno::ENAMETOOLONG);
    }
    buffer.get(..length).ok_or(Errno::ENAMETOOLONG)
}

/// Returns true if a directory may take two spellings of a name for the same: it has
/// FS_CASEFOLD_FL, or its filesystem has no such flags.
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
