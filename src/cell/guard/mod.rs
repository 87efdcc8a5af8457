//! The guard of writable grants: names that the host obeys cannot be made there (rulings R6).
//!
//! What is there is covered by read-only mounts (`supervisor/protect`); a name that is not there
//! cannot be covered, and a mount is gone when the host makes what it covers anew (git does so with
//! its configuration). So where a cell may write to a directory of the host, its filter asks init
//! about each call that makes a name or opens a file to write, and init makes it itself, on its own
//! copy of the arguments: a caller that changes them meanwhile changes nothing. Init has the payload's ids, its mounts and
//! its Landlock rules, and no more.
//!
//! [`names`] says what is guarded, [`calls`] which calls are asked about, `paths` where they lead,
//! `judge` decides on each, [`gate`] does them, `opening` hands files over.

pub mod calls;
pub mod gate;
mod judge;
pub mod names;
mod opening;
mod paths;
pub mod waiting;

use std::ffi::CString;
use std::path::{Path, PathBuf};

use syscalls::Sysno;

use super::seccomp::{self, Recording};
use crate::sys::Result;
use crate::sys::bpf::Instruction;
use calls::Watched;

/// What init needs to guard the grants of one key; computed before the clone.
#[derive(Debug, Clone)]
pub struct Guard {
    pub calls: Vec<Watched>,
    /// Places that a configuration in the grant names, as the cell has them: directory and name.
    pub named: Vec<(Vec<u8>, Vec<u8>)>,
    /// The cell's own filesystems, where every name may be made.
    pub private: Vec<CString>,
    /// A name that must not be made, for the payload's probe.
    pub probe: CString,
    /// The filter of an init that makes names.
    pub init_filter: Vec<Instruction>,
}

/// The system calls by which init makes names, besides those it always needs.
pub const CALLS: [Sysno; 13] = [
    Sysno::process_vm_readv,
    Sysno::openat2,
    Sysno::openat,
    Sysno::readlinkat,
    Sysno::fstatfs,
    Sysno::umask,
    Sysno::ftruncate,
    Sysno::mkdirat,
    Sysno::mknodat,
    Sysno::symlinkat,
    Sysno::linkat,
    // The C library's renameat2 makes this of one without flags.
    Sysno::renameat,
    Sysno::renameat2,
];

impl Guard {
    /// # Errors
    /// A path with a NUL in it.
    pub fn new(
        calls: Vec<Watched>,
        guarded: &Path,
        named: &[PathBuf],
        private: Vec<CString>,
        recording: Recording,
    ) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let split = |path: &PathBuf| {
            let name = path.file_name()?.as_bytes().to_owned();
            Some((path.parent()?.as_os_str().as_bytes().to_owned(), name))
        };
        Ok(Self {
            calls,
            named: named.iter().filter_map(split).collect(),
            private,
            probe: super::c_path(&guarded.join(".git:probe"))?,
            init_filter: seccomp::init_filter(recording, &CALLS)?,
        })
    }
}
