//! Directories and files of the host that the operator granted.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;
use nix::sys::stat::{FileStat, fstat};

use cell::c_path;
use model::job::Access;
use sys::mount::{attribute, open_resolved};

/// A directory or a single file of the host that cells may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// Path without links.
    pub host: PathBuf,
    /// The file at the path when the grant was checked.
    pub file: FileId,
    /// Path in the cell, such as `/workspace`.
    pub cell: PathBuf,
    pub access: Access,
    /// Names in it that the operator guards, in addition to those of [`cell::mediate::names`].
    pub also: Rc<[Vec<u8>]>,
    /// True if `/workspace` in the cell is a link to [`Self::cell`].
    pub is_linked: bool,
    /// Where changes are kept, if the access is [`Access::Layer`].
    pub layer: Option<LayerDirectory>,
}

/// The directory of a layer on the host, with `upper` and `work` of an overlay in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerDirectory {
    /// Path without links.
    pub host: PathBuf,
    pub file: FileId,
    /// True if cells only read the layer.
    pub is_frozen: bool,
}

impl LayerDirectory {
    /// Opens the directory (O_PATH).
    ///
    /// # Errors
    /// ELOOP: the path contains a link. ESTALE: it leads to another directory now.
    pub(crate) fn hold(&self) -> Result<OwnedFd, Errno> {
        hold_file(&self.host, self.file)
    }
}

impl Granted {
    /// Makes a grant of the file that is at a path now.
    ///
    /// # Errors
    /// ELOOP: the path contains a link. Otherwise the errno of openat2(2).
    pub fn now(host: PathBuf, cell: PathBuf, access: Access) -> Result<Self, Errno> {
        let file = FileId::of_file(&open_resolved(&c_path(&host)?)?)?;
        Ok(Self { host, file, cell, access, also: Rc::default(), is_linked: false, layer: None })
    }

    /// Opens the granted file or directory (O_PATH).
    ///
    /// # Errors
    /// The file was replaced since the grant was checked: ELOOP: by a path with a link; ESTALE: by
    /// another file.
    pub(crate) fn hold(&self) -> Result<OwnedFd, Errno> {
        hold_file(&self.host, self.file)
    }
}

fn hold_file(path: &Path, file: FileId) -> Result<OwnedFd, Errno> {
    let held = open_resolved(&c_path(path)?)?;
    if FileId::of_file(&held)? == file { Ok(held) } else { Err(Errno::ESTALE) }
}

/// Identity of an existing file: its device and inode numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Returns the identity of an open file.
    ///
    /// # Errors
    /// The errno of fstat(2).
    pub fn of_file(held: impl AsFd) -> Result<Self, Errno> {
        fstat(held).map(|status| Self::from(&status))
    }
}

impl From<&FileStat> for FileId {
    fn from(status: &FileStat) -> Self {
        Self { device: status.st_dev, inode: status.st_ino }
    }
}

/// Kind of a mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
}

/// Returns the mount attributes for this access (mount_setattr(2)).
pub(crate) fn attributes(access: Access) -> u64 {
    let always = attribute::NOSUID | attribute::NODEV;
    match access {
        Access::ReadOnly => always | attribute::RDONLY,
        Access::ReadWrite
        | Access::Unguarded
        | Access::Repository
        | Access::Cache
        | Access::Layer => always,
    }
}
