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
//! `judge` decides on each, [`gate`] does them, `opening` hands files over. [`sockets`] keeps sockets of the
//! host in a grant, read-only ones too, from being connected to.

mod caller;
pub mod calls;
pub mod gate;
mod judge;
pub mod names;
mod opening;
mod paths;
pub mod sockets;
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
    /// A name that must not be made, for the payload's probe; none where only sockets are guarded.
    pub probe: Option<CString>,
    /// What an init does that does all this, besides what every init does.
    pub own_calls: Vec<Sysno>,
    /// The filter of such an init.
    pub init_filter: Vec<Instruction>,
}

/// What of a template names are guarded in.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    /// A granted directory that may be written to, as the cell has it.
    pub directory: &'a Path,
    /// Places that a configuration names.
    pub named: &'a [PathBuf],
}

/// The system calls by which init makes names, besides those it always needs.
const CALLS: [Sysno; 13] = [
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

/// The system calls of an init that guards names, and always sockets.
fn calls_of(names: Option<Names<'_>>) -> Vec<Sysno> {
    let making = names.map_or(&[][..], |_| &CALLS);
    making.iter().chain(&sockets::CALLS).copied().collect()
}

impl Guard {
    /// # Errors
    /// A path with a NUL in it.
    pub fn new(
        calls: Vec<Watched>,
        names: Option<Names<'_>>,
        private: Vec<CString>,
        recording: Recording,
    ) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let split = |path: &PathBuf| {
            let name = path.file_name()?.as_bytes().to_owned();
            Some((path.parent()?.as_os_str().as_bytes().to_owned(), name))
        };
        let named = names.map_or(&[][..], |names| names.named);
        let probe = names.map(|names| super::c_path(&names.directory.join(".git:probe")));
        let own_calls = calls_of(names);
        Ok(Self {
            calls,
            named: named.iter().filter_map(split).collect(),
            private,
            probe: probe.transpose()?,
            init_filter: seccomp::init_filter(recording, &own_calls)?,
            own_calls,
        })
    }
}
