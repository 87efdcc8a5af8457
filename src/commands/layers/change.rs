//! A change that a layer makes to one name of the directory.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use nix::errno::Errno;

use super::files::Seen;
use super::judge::Held;
use sys::lookup::read_link;

/// Longest text of a link, and one byte more.
const LINK_BUFFER: usize = 4097;

/// Kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Link,
    Other,
}

impl Kind {
    pub(crate) fn of(seen: &Seen) -> Self {
        match seen.mode & libc::S_IFMT {
            libc::S_IFREG => Self::File,
            libc::S_IFDIR => Self::Directory,
            libc::S_IFLNK => Self::Link,
            _ => Self::Other,
        }
    }
}

/// The act of a layer on a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Add,
    Change,
    Delete,
}

/// A change of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// Path below the directory.
    pub path: Vec<u8>,
    pub act: Act,
    /// Kind of the new file; of the removed one for a removal.
    pub kind: Kind,
    /// The file of the layer; `None` for a removal.
    pub new: Option<Seen>,
    /// The file of the host that is changed or removed.
    pub old: Option<Seen>,
    /// Text of the new file, if it is a link.
    pub target: Option<Vec<u8>>,
    /// Why it is not applied.
    pub held: Option<Held>,
    /// True if the host's file changed since the layer was made.
    pub is_conflict: bool,
    /// True if the layer keeps this name for itself, so that it is removed there once applied.
    pub is_movable: bool,
}

impl Change {
    pub(crate) fn is_applicable(&self) -> bool {
        self.held.is_none() && !self.is_conflict
    }

    /// Returns true if the file can be executed, and the host's could not.
    pub(crate) fn becomes_executable(&self) -> bool {
        let is_executable = |seen: &Seen| seen.is(libc::S_IFREG) && seen.mode & 0o111 != 0;
        self.new.as_ref().is_some_and(is_executable)
            && !self.old.as_ref().is_some_and(is_executable)
    }
}

/// Reads the text of a link.
pub(crate) fn link(directory: &OwnedFd, name: &CStr) -> Result<Vec<u8>, Errno> {
    let mut buffer = [0; LINK_BUFFER];
    read_link(directory, name, &mut buffer).map(<[u8]>::to_vec)
}
