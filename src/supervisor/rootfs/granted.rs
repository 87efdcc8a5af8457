//! Directories and files of the host that the operator granted.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;

use nix::errno::Errno;
use nix::sys::stat::{FileStat, fstat};

use cell::c_path;
use model::job::Access;
use sys::mount::{attribute, open_resolved};

/// A host directory, or a single file, that cells may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// Path without links.
    pub host: PathBuf,
    /// File that was there when the grant was checked.
    pub file: FileId,
    /// Path in the cell, such as `/workspace`.
    pub cell: PathBuf,
    pub access: Access,
    /// Names that the operator guards in it, besides those of [`cell::mediate::names`].
    pub also: Rc<[Vec<u8>]>,
}

impl Granted {
    /// Returns a grant of what is at a path now.
    ///
    /// # Errors
    /// ELOOP: the path has a link; else as of openat2(2).
    pub fn now(host: PathBuf, cell: PathBuf, access: Access) -> Result<Self, Errno> {
        let file = FileId::of(&open_resolved(&c_path(&host)?)?)?;
        Ok(Self { host, file, cell, access, also: Rc::default() })
    }

    /// Holds what is granted (O_PATH).
    ///
    /// # Errors
    /// ELOOP: a link is on the way; ESTALE: another file is there. Either has come since the grant was checked.
    pub(crate) fn hold(&self) -> Result<OwnedFd, Errno> {
        let held = open_resolved(&c_path(&self.host)?)?;
        if FileId::of(&held)? == self.file { Ok(held) } else { Err(Errno::ESTALE) }
    }
}

/// Identity of a file while it exists: its device and its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Returns the identity of a held file.
    ///
    /// # Errors
    /// As of fstat(2).
    pub fn of(held: impl AsFd) -> Result<Self, Errno> {
        fstat(held).map(|status| Self::from(&status))
    }
}

impl From<&FileStat> for FileId {
    fn from(status: &FileStat) -> Self {
        Self { device: status.st_dev, inode: status.st_ino }
    }
}

/// The kind of file that a mount covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
}

/// Returns the attributes of a mount with this access (mount_setattr(2)).
pub(crate) fn attributes(access: Access) -> u64 {
    let always = attribute::NOSUID | attribute::NODEV;
    match access {
        Access::ReadOnly => always | attribute::RDONLY,
        Access::ReadWrite | Access::Unguarded | Access::Cache => always,
    }
}
