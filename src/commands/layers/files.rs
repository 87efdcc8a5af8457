//! Files of a layer and of the host: identities, times and names, looked at from held directories.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};
use serde::{Deserialize, Serialize};

use cell::{c_path, errno_of};
use sys::identity;
use sys::lookup::{self, Follow};
use sys::mount::open_resolved;

/// Set on a directory of a layer in which the host's names are hidden.
pub(crate) const OPAQUE: &CStr = c"user.overlay.opaque";
/// Flags to open a directory in which names are looked up.
pub(crate) const DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Longest part of a path that is looked up in one call; the kernel takes fewer than 4096 bytes.
const MAX_PART: usize = 4000;

/// A time of a file: seconds and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Stamp(pub i64, pub i64);

impl Stamp {
    /// Returns the time that the kernel gives to a file that changes now.
    pub(crate) fn now() -> Result<Self, Errno> {
        let now = clock_gettime(ClockId::CLOCK_REALTIME_COARSE)?;
        Ok(Self(now.tv_sec(), now.tv_nsec()))
    }

    /// Returns true if a file with this time of change may have changed at `since` or later.
    /// Filesystems with coarse times cut off the rest.
    pub(crate) fn may_be_since(self, since: Self) -> bool {
        match self.1 {
            0 => self.0 >= since.0,
            _ => self >= since,
        }
    }
}

/// A file of the host as it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub device: u64,
    pub inode: u64,
    pub mode: u32,
    pub size: i64,
    pub modified: Stamp,
    pub changed: Stamp,
    pub owner: (u32, u32),
}

impl From<&FileStat> for Seen {
    fn from(status: &FileStat) -> Self {
        Self {
            device: status.st_dev,
            inode: status.st_ino,
            mode: status.st_mode,
            size: status.st_size,
            modified: Stamp(status.st_mtime, status.st_mtime_nsec),
            changed: Stamp(status.st_ctime, status.st_ctime_nsec),
            owner: (status.st_uid, status.st_gid),
        }
    }
}

impl Seen {
    pub(crate) fn is(&self, kind: libc::mode_t) -> bool {
        self.mode & libc::S_IFMT == kind
    }

    /// Returns true if `other` is the same file with the same contents, as far as a status shows. The
    /// time of the last change differs after a rename.
    pub(crate) fn is_unchanged(&self, other: &Self) -> bool {
        self.device == other.device
            && self.inode == other.inode
            && self.mode & libc::S_IFMT == other.mode & libc::S_IFMT
            && self.size == other.size
            && self.modified == other.modified
    }

    /// Compares the kinds too: a filesystem gives the number of a removed file to the next one.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        self.device == other.device
            && self.inode == other.inode
            && self.mode & libc::S_IFMT == other.mode & libc::S_IFMT
    }
}

/// Looks at a name in a directory; `None` if it is not there.
pub(crate) fn look(directory: impl AsFd, name: &CStr) -> Result<Option<Seen>, Errno> {
    match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(status) => Ok(Some(Seen::from(&status))),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

pub(crate) fn is_kind(status: &FileStat, kind: libc::mode_t) -> bool {
    status.st_mode & libc::S_IFMT == kind
}

/// Identity of a directory that lasts: another filesystem at the same path, or a directory that was
/// made later and got the same inode number, has another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Identity {
    filesystem: u64,
    inode: u64,
    /// Time when it was made, if its filesystem records that.
    born: Option<(i64, u32)>,
}

impl Identity {
    /// Returns the identity of an open directory.
    pub(crate) fn of(directory: &OwnedFd) -> Result<Self, Errno> {
        Ok(Self {
            filesystem: identity::filesystem(directory)?,
            inode: fstat(directory)?.st_ino,
            born: identity::birth_time(directory)?,
        })
    }
}

/// Opens a directory at a relative path of any length, without following links and without leaving
/// the filesystem. The empty path is the directory itself.
pub(crate) fn open_directory(root: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let open = |from: &OwnedFd, part: &[u8]| {
        let path = c_path(Path::new(OsStr::from_bytes(part)))?;
        lookup::open(from, &path, DIRECTORY.bits(), 0, Follow::Beneath)
    };
    if path.is_empty() {
        return open(root, b".");
    }
    let (mut part, mut rest) = first_part(path);
    let mut held = open(root, part)?;
    while !rest.is_empty() {
        (part, rest) = first_part(rest);
        held = open(&held, part)?;
    }
    Ok(held)
}

/// Opens the directory at a path without links.
pub(super) fn open_directory_at(path: &Path) -> Result<OwnedFd, Errno> {
    let held = open_resolved(&c_path(path)?)?;
    openat(&held, ".", DIRECTORY, Mode::empty())
}

/// Splits a path after as many names as the kernel takes in one call.
fn first_part(path: &[u8]) -> (&[u8], &[u8]) {
    let Some(start) = path.get(..=MAX_PART) else { return (path, b"") };
    let cut = start.iter().rposition(|byte| *byte == b'/').unwrap_or(path.len());
    let (part, rest) = path.split_at(cut);
    (part, rest.get(1..).unwrap_or_default())
}

/// Opens a regular file for reading. Never waits for the other end of a FIFO.
pub(crate) fn open_file(directory: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = lookup::open(directory, name, flags | libc::O_CLOEXEC, 0, Follow::Beneath)?;
    let status = fstat(&file)?;
    if is_kind(&status, libc::S_IFREG) { Ok(file) } else { Err(Errno::EINVAL) }
}

/// Reads a file of the directory of a layer, at most `max_bytes` of it.
pub(crate) fn read_file(directory: &OwnedFd, name: &str, max_bytes: u64) -> Result<Vec<u8>, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = File::from(openat(directory, name, flags, Mode::empty())?);
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes).map_err(|error| errno_of(&error))?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= max_bytes) {
        Ok(bytes)
    } else {
        Err(Errno::EFBIG)
    }
}

/// Writes a file of the directory of a layer, whole or not at all.
pub(crate) fn write_file(directory: &OwnedFd, name: &str, bytes: &[u8]) -> Result<(), Errno> {
    let new = format!("{name}.new");
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC;
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mode = Mode::S_IRUSR | Mode::S_IWUSR;
    let mut file = File::from(openat(directory, new.as_str(), flags, mode)?);
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|error| errno_of(&error))?;
    renameat(directory, new.as_str(), directory, name)?;
    fsync(directory)
}

/// Removes a file of the directory of a layer, if it is there.
pub(crate) fn remove_file(directory: &OwnedFd, name: &str) -> Result<(), Errno> {
    match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Returns true if a directory has no entry.
pub(crate) fn is_empty(directory: &OwnedFd) -> Result<bool, Errno> {
    for entry in Dir::openat(directory, ".", DIRECTORY, Mode::empty())?.into_iter() {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns true if an entry of a layer says that the name was removed (overlayfs, "whiteouts").
pub(crate) fn is_whiteout(upper: &OwnedFd, name: &CStr, seen: &Seen) -> Result<bool, Errno> {
    if !seen.is(libc::S_IFCHR) {
        return Ok(false);
    }
    Ok(fstatat(upper, name, AtFlags::AT_SYMLINK_NOFOLLOW)?.st_rdev == 0)
}

/// Returns a name for a system call.
pub(crate) fn c_name(name: &[u8]) -> Result<CString, Errno> {
    CString::new(name).map_err(|_| Errno::EINVAL)
}

/// Splits a relative path into its directory and its name.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => {
            let (directory, rest) = path.split_at(at);
            (directory, rest.get(1..).unwrap_or_default())
        }
        None => (b"", path),
    }
}

/// Returns a path as text: bytes other than plain characters as `%XX`.
pub(crate) fn encoded(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => {
                text.push(char::from(*byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// Returns the path of a text of [`encoded`]. A `%` without two digits is kept.
pub(crate) fn decoded(text: &str) -> Vec<u8> {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let byte = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        path.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_survives_its_text() {
        let all: Vec<u8> = (1..=255).collect();
        for path in [&b"a/b c.d-e_f"[..], b"", b"%41%", &all] {
            assert_eq!(decoded(&encoded(path)), path);
        }
        assert_eq!(encoded(b"a b\n/c"), "a%20b%0A/c");
    }

    #[test]
    fn a_directory_is_opened_at_a_path_of_any_length() -> std::io::Result<()> {
        let held = tempfile::tempdir()?;
        let root = OwnedFd::from(File::open(held.path())?);
        let mut deepest = root.try_clone()?;
        let name = c_name(&[b'n'; 255])?;
        let mut path = Vec::new();
        // 25,600 bytes, more than six times as many as one call takes.
        for _ in 0..100 {
            nix::sys::stat::mkdirat(&deepest, name.as_c_str(), Mode::S_IRWXU)?;
            deepest = openat(&deepest, name.as_c_str(), DIRECTORY, Mode::empty())?;
            path.extend_from_slice(if path.is_empty() { b"" } else { b"/" });
            path.extend_from_slice(name.to_bytes());
            let opened = open_directory(&root, &path)?;
            assert_eq!(fstat(&opened)?.st_ino, fstat(&deepest)?.st_ino);
        }
        path.extend_from_slice(b"/missing");
        assert_eq!(open_directory(&root, &path).err(), Some(Errno::ENOENT));
        std::os::unix::fs::symlink(".", held.path().join("link"))?;
        assert_eq!(open_directory(&root, b"link/x").err(), Some(Errno::ELOOP));
        cell::removal::remove_all(&root, "")?;
        Ok(())
    }

    #[test]
    fn a_change_in_the_same_second_counts_on_a_filesystem_without_fractions() {
        let since = Stamp(100, 500);
        assert!(Stamp(100, 0).may_be_since(since));
        assert!(!Stamp(100, 499).may_be_since(since));
        assert!(Stamp(100, 500).may_be_since(since));
        assert!(!Stamp(99, 999).may_be_since(since));
    }
}
