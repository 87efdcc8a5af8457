//! The guard of writable grants: names that the host obeys cannot be made there (rulings R6).
//!
//! What is there is covered by read-only mounts (`supervisor/protect`); a name that is not there
//! cannot be covered, and a mount is gone when the host makes what it covers anew (git does so with
//! its configuration). So where a cell may write to a directory of the host, its filter asks init
//! about each call that makes a name or opens a file to write, and init makes it itself, on its own
//! copy of the arguments: a caller that changes them meanwhile changes nothing. Init has the payload's ids, its mounts and
//! its Landlock rules, and no more.
//!
//! [`names`] says what is guarded, [`calls`] has the table from call to handler, [`paths`] says where they lead,
//! `judge` decides on each, [`gate`] does them, `opening` hands files over. [`sockets`] keeps sockets of the
//! host in a grant, read-only ones too, from being connected to.
//!
//! Two more kinds of calls are answered in every cell that may make them, by a gate that is made with the
//! first: instances of epoll, which are counted ([`instances`]), and watches of inotify, which could show
//! what the host does ([`watches`]). [`mediator`] has all of it for init.

mod caller;
pub mod calls;
pub mod gate;
pub mod instances;
mod judge;
pub mod mediator;
mod moving;
pub mod names;
mod opening;
pub mod paths;
pub mod sockets;
pub mod waiting;
pub mod watches;

use std::ffi::CString;
use std::path::{Path, PathBuf};

use syscalls::Sysno;

use super::seccomp::{self, Recording};
use calls::{Group, Watched};
use sys::Result;
use sys::bpf::Instruction;
use sys::notify::Notification;

/// What init needs to guard the grants of one key; computed before the clone.
#[derive(Debug, Clone)]
pub struct Guard {
    pub calls: Vec<Watched>,
    /// Places that a configuration in the grant names, as the cell has them: directory and name.
    pub named: Vec<(Vec<u8>, Vec<u8>)>,
    /// The cell's own filesystems, where every name may be made.
    pub private: Vec<CString>,
    /// The directory of granted sockets, which may be connected to: cells of a template share it.
    pub sockets: Option<CString>,
    /// Directories and files of the host that were granted, as the cell has them.
    pub granted: Vec<Vec<u8>>,
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

/// What of a root belongs to a cell: its own filesystems, and what of the host was granted.
#[derive(Debug, Clone, Default)]
pub struct Belongings<'a> {
    pub private: Vec<CString>,
    pub sockets: Option<CString>,
    pub granted: &'a [PathBuf],
}

impl Guard {
    /// # Errors
    /// A path with a NUL in it.
    pub fn new(
        calls: Vec<Watched>,
        names: Option<Names<'_>>,
        own: Belongings<'_>,
        recording: Recording,
    ) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let split = |path: &PathBuf| {
            let name = path.file_name()?.as_bytes().to_owned();
            Some((path.parent()?.as_os_str().as_bytes().to_owned(), name))
        };
        let named = names.map_or(&[][..], |names| names.named);
        let probe = names.map(|names| super::c_path(&names.directory.join(".git:probe")));
        let mut own_calls: Vec<Sysno> =
            calls.iter().flat_map(|watched| watched.row.group.calls()).copied().collect();
        own_calls.sort_unstable();
        own_calls.dedup();
        let path = |path: &PathBuf| path.as_os_str().as_bytes().to_owned();
        Ok(Self {
            calls,
            named: named.iter().filter_map(split).collect(),
            private: own.private,
            sockets: own.sockets,
            granted: own.granted.iter().map(path).collect(),
            probe: probe.transpose()?,
            init_filter: seccomp::init_filter(recording, &own_calls)?,
            own_calls,
        })
    }

    /// The row of a call that the filter asked about; none where the filter refused it.
    #[must_use]
    pub fn watched(&self, call: Notification) -> Option<&Watched> {
        let watched = self.calls.iter().find(|watched| watched.number == call.number)?;
        watched.verdict.allows(&call.arguments).then_some(watched)
    }

    /// Returns whether there is a directory of the host whose names or sockets are looked after.
    #[must_use]
    pub fn has_directory(&self) -> bool {
        self.calls.iter().any(|watched| match watched.row.group {
            Group::Names | Group::Bind | Group::Connect => true,
            Group::Epoll | Group::Inotify => false,
        })
    }
}
