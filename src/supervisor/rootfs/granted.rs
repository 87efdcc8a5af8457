//! Directories and files of the host that the operator granted.

use std::path::PathBuf;

use model::job::Access;
use sys::mount::attribute;

/// A host directory, or a single file, that cells may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    pub host: PathBuf,
    /// Path in the cell, such as `/workspace`.
    pub cell: PathBuf,
    pub access: Access,
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
        Access::ReadWrite | Access::Unguarded => always,
    }
}
