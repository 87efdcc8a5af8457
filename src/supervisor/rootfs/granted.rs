//! Directories and files of the host that the operator granted.

use std::path::PathBuf;

use sys::mount::attribute;

/// One granted set of paths, as the operator gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspaces {
    pub directories: Vec<Granted>,
}

/// A host directory, or a single file, that cells may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    pub host: PathBuf,
    /// Path in the cell, such as `/workspace`.
    pub cell: PathBuf,
    pub access: Access,
}

/// The access of a cell to a granted directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    /// Files that the host obeys are read-only, and no such name can be made.
    ReadWrite,
    /// Files that the host obeys and that exist are read-only; any name can be made.
    Unguarded,
}

/// The kind of file that a mount covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
}

impl Access {
    pub fn attributes(self) -> u64 {
        let always = attribute::NOSUID | attribute::NODEV;
        match self {
            Self::ReadOnly => always | attribute::RDONLY,
            Self::ReadWrite | Self::Unguarded => always,
        }
    }
}
