//! What is in a directory of a layer, compared with the directory of the host: names, marks of
//! overlayfs, and contents.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::openat;
use nix::sys::stat::{Mode, fstat};

use super::files::{DIRECTORY, OPAQUE, Seen, Stamp, look, open_file};
use cell::errno_of;
use sys::xattr;

/// Maximum number of names of a directory.
pub(super) const MAX_NAMES: usize = 200_000;
/// Set on a file of the layer that began as one of the host; empty in an unprivileged overlay.
const ORIGIN: &CStr = c"user.overlay.origin";

/// Opens a directory; `None` if this process may not list it or look at what is in it.
pub(super) fn open_readable(parent: &OwnedFd, name: &CStr) -> Result<Option<OwnedFd>, Errno> {
    let opened = openat(parent, name, DIRECTORY, Mode::empty())
        .and_then(|opened| look(&opened, c".").map(|_| opened));
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::EACCES) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns the names in a directory, in order.
pub(super) fn sorted(directory: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::openat(directory, ".", DIRECTORY, Mode::empty())?.into_iter() {
        let entry = entry?;
        if names.len() > MAX_NAMES {
            return Err(Errno::EFBIG);
        }
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

pub(super) fn is_opaque(directory: &OwnedFd) -> Result<bool, Errno> {
    let mut buffer = [0; 8];
    Ok(xattr::get(directory, OPAQUE, &mut buffer)? == Some(b"y"))
}

pub(super) fn has_origin(file: &OwnedFd) -> Result<bool, Errno> {
    let mut buffer = [0; 256];
    Ok(xattr::get(file, ORIGIN, &mut buffer)?.is_some())
}

/// Returns true if a directory of the host was moved to its place since the layer was made, with
/// files that are older: a rename changes the time of its status and the contents of its parent, and
/// not its own contents.
pub(super) fn may_be_moved(directory: &Seen, parent: &Seen, since: Stamp) -> bool {
    directory.changed.may_be_since(since)
        && !directory.modified.may_be_since(since)
        && parent.modified.may_be_since(since)
}

/// Returns true if two files have the same bytes and can both be executed or not.
pub(super) fn is_same(
    upper: &OwnedFd,
    host: &OwnedFd,
    name: &CStr,
    new: &Seen,
    old: &Seen,
) -> Result<bool, Errno> {
    let is_executable = |seen: &Seen| seen.mode & 0o111 != 0;
    if new.size != old.size || is_executable(new) != is_executable(old) {
        return Ok(false);
    }
    let opened = open_file(upper, name).and_then(|new| Ok((new, open_file(host, name)?)));
    let (mut one, mut other) = match opened {
        Ok((new, old)) => (File::from(new), File::from(old)),
        Err(Errno::EACCES | Errno::EPERM) => return Ok(false),
        Err(errno) => return Err(errno),
    };
    if fstat(&one)?.st_size != new.size {
        return Ok(false);
    }
    let mut ours = [0; 16 << 10];
    let mut theirs = [0; 16 << 10];
    loop {
        let length = one.read(&mut ours).map_err(|error| errno_of(&error))?;
        let read = ours.get(..length).unwrap_or_default();
        let against = theirs.get_mut(..length).unwrap_or_default();
        if other.read_exact(against).is_err() || read != against {
            return Ok(false);
        }
        if length == 0 {
            return Ok(true);
        }
    }
}
