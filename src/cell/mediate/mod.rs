//! Mediation: init answers some system calls for the program, so that it can look at their arguments.
//!
//! The filter notifies init of such a call (seccomp_unotify(2)), and init executes it itself on its own copy of
//! the arguments: a caller that changes them meanwhile changes nothing. Init has the payload's ids, its mounts
//! and its Landlock rules, and no more.
//!
//! `mediator` is the one reader of a cell's notifications. `calls` has the table from call to handler, and
//! `handlers` the state that handlers share: a new kind of call is a row, a group and a handler. Each group
//! has its reason:
//!
//! - Names that the host obeys cannot be made in a writable grant. Read-only mounts cover those that exist
//!   (`supervisor/protect`); a name that does not exist cannot be covered, and a mount is gone when the host
//!   replaces the file below it, as git does with its configuration. [`names`] has the rules, `guard` applies them to
//!   directories that [`paths`] has looked up.
//! - Sockets of the host in a grant, even a read-only one, cannot be connected to ([`sockets`]).
//! - Instances of epoll are counted in every cell ([`epoll`]).
//! - Watches of inotify could show what the host does: they are limited to the cell's own files and its grants
//!   ([`inotify`]).

mod caller;
pub mod calls;
pub mod epoll;
mod guard;
pub mod handlers;
pub mod inotify;
pub(crate) mod mediator;
pub mod names;
mod open;
pub mod paths;
pub mod pending;
mod refusals;
mod rename;
pub mod sockets;
mod sysinfo;

use std::ffi::CString;
use std::path::{Path, PathBuf};

use syscalls::Sysno;

use super::seccomp::{self, Recording};
use calls::{CallGroup, MediatedCall};
use sys::Result;
use sys::bpf::Instruction;
use sys::notify::Notification;

/// Everything that init needs to mediate for the cells of one key; computed before the clone.
#[derive(Debug, Clone)]
pub struct Mediation {
    /// Calls that the filter notifies init of.
    pub calls: Vec<MediatedCall>,
    /// Places that a configuration in the grant names, as the cell has them: directory and name.
    pub named: Vec<(Vec<u8>, Vec<u8>)>,
    /// Names that the operator guards, wherever they lie in a grant.
    pub also: Vec<Vec<u8>>,
    /// The cell's own filesystems, where every name may be made.
    pub private: Vec<CString>,
    /// The mount of the workspace's cache, where every name may be made too. Sockets in it cannot be connected to.
    pub cache: Option<CString>,
    /// The directory of granted sockets, which may be connected to: cells of a template share it.
    pub sockets: Option<CString>,
    /// Directories and files of the host that were granted, as the cell has them.
    pub granted: Vec<Vec<u8>>,
    /// A name that must not be made, for the payload's probe; none where only sockets are guarded.
    pub probe: Option<CString>,
    /// System calls of such an init, besides those of every init.
    pub own_calls: Vec<Sysno>,
    /// The filter of such an init.
    pub init_filter: Vec<Instruction>,
}

/// A granted directory in which names are guarded.
#[derive(Debug, Clone, Copy)]
pub struct GuardedNames<'a> {
    /// A granted directory that may be written to, as the cell has it.
    pub directory: &'a Path,
    /// Places that a configuration names.
    pub named: &'a [PathBuf],
    /// Names that the operator guards.
    pub also: &'a [Vec<u8>],
}

/// The filesystems of a cell's own, and the paths of the host that were granted.
#[derive(Debug, Clone, Default)]
pub struct Belongings<'a> {
    pub private: Vec<CString>,
    pub cache: Option<&'a Path>,
    pub sockets: Option<CString>,
    pub granted: &'a [PathBuf],
}

impl Mediation {
    /// Computes the mediation of `calls`.
    ///
    /// # Errors
    /// EINVAL: a path has a NUL in it.
    pub fn new(
        calls: Vec<MediatedCall>,
        names: Option<GuardedNames<'_>>,
        own: Belongings<'_>,
        recording: Recording,
    ) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let split = |path: &PathBuf| {
            let name = path.file_name()?.as_bytes().to_owned();
            Some((path.parent()?.as_os_str().as_bytes().to_owned(), name))
        };
        let named = names.map_or(&[][..], |names| names.named);
        // Else no name is guarded, and init may not ask for the number of a mount.
        let cache = own.cache.filter(|_| names.is_some());
        let probe = names.map(|names| super::c_path(&names.directory.join(".git:probe")));
        let mut own_calls: Vec<Sysno> =
            calls.iter().flat_map(|call| call.row.group.calls()).copied().collect();
        own_calls.sort_unstable();
        own_calls.dedup();
        let path = |path: &PathBuf| path.as_os_str().as_bytes().to_owned();
        Ok(Self {
            calls,
            named: named.iter().filter_map(split).collect(),
            also: names.map_or_else(Vec::new, |names| names.also.to_vec()),
            private: own.private,
            cache: cache.map(super::c_path).transpose()?,
            sockets: own.sockets,
            granted: own.granted.iter().map(path).collect(),
            probe: probe.transpose()?,
            init_filter: seccomp::init_filter(recording, &own_calls)?,
            own_calls,
        })
    }

    /// Finds the mediated call of a notification; none if the profile refuses these arguments.
    #[must_use]
    pub fn find(&self, call: Notification) -> Option<&MediatedCall> {
        let mediated = self.calls.iter().find(|mediated| mediated.number == call.number)?;
        mediated.verdict.allows(&call.arguments).then_some(mediated)
    }

    /// Returns true if the cell has a directory of the host, whose names or sockets are guarded.
    #[must_use]
    pub fn has_directory(&self) -> bool {
        self.calls.iter().any(|call| match call.row.group {
            CallGroup::Names | CallGroup::Bind | CallGroup::Connect => true,
            CallGroup::Epoll | CallGroup::Inotify => false,
        })
    }
}
