//! Mediation: init answers some system calls in place of the kernel, because their arguments must
//! be checked.
//!
//! The filter notifies init of such a call (seccomp_unotify(2)), and init executes it on a private
//! copy of the arguments, so that the caller cannot change them after the check. Init has the
//! payload's ids, mounts and Landlock rules, and no more rights.
//!
//! `mediator` is the only reader of a cell's notifications. `calls` has the table from call to
//! handler, and `handlers` the state that handlers share: a new kind of call needs a row, a group
//! and a handler. `registers` reads the arguments, and `response` has the possible answers. The
//! reason for each group:
//!
//! - Names that the host obeys cannot be made in a writable grant. Read-only mounts protect
//!   existing ones (`supervisor/protect`). A name that does not exist cannot be mounted over, and a
//!   mount disappears when the host replaces the file below it, as git does with its configuration.
//!   [`names`] has the rules, and `guard` applies them to directories that [`paths`] has looked up.
//!   `records` copies files with paths that git opens unchecked, and `locks` knows which new versions
//!   of these the cell itself has made.
//! - Sockets of the host in a grant, even a read-only one, cannot be connected to ([`sockets`]).
//!   `connect` serves connect(2) and bind(2), and `datagrams` pairs of datagram sockets.
//! - epoll instances are counted in every cell (`epoll`, [`counted`]).
//! - inotify watches could reveal activity of the host: they are limited to the cell's private
//!   files and its grants ([`inotify`]).
//! - Only directories get the set-group-id bit (`set_group`).
//! - Sockets that ask for the cell's network interfaces are counted, and receive only answers about
//!   the cell (`interfaces`).

pub mod address;
mod caller;
pub mod calls;
mod connect;
mod connecting;
pub mod counted;
mod datagrams;
mod epoll;
mod guard;
pub mod handlers;
pub mod inotify;
mod interfaces;
mod locks;
pub(crate) mod mediator;
pub mod names;
mod open;
pub mod paths;
pub mod pending;
mod records;
mod refusals;
pub mod registers;
mod rename;
mod response;
mod set_group;
pub mod sockets;
mod sysinfo;

use std::collections::BTreeSet;
use std::ffi::CString;
use std::path::{Path, PathBuf};

use syscalls::Sysno;

use super::seccomp::{self, Recording};
use calls::{CallGroup, MediatedCall};
use sys::Result;
use sys::bpf::Instruction;
use sys::notify::Notification;

/// Everything that init needs to mediate calls for the cells of one key; computed before the clone.
#[derive(Debug, Clone)]
pub struct Mediation {
    /// Calls that the filter notifies init of.
    pub calls: Vec<MediatedCall>,
    /// Paths that a configuration in the grant names, as the cell sees them: directory and name.
    pub named: Vec<(Vec<u8>, Vec<u8>)>,
    /// Read-only files in the grant that have other names too, by device and inode number.
    pub shared: BTreeSet<(u64, u64)>,
    /// Names that the operator guards, anywhere in a grant.
    pub also: Vec<Vec<u8>>,
    /// Directories of repositories, whatever their names: granted ones, and those of submodules and
    /// linked worktrees.
    pub repositories: Vec<Vec<u8>>,
    /// Private filesystems of the cell, where any name may be made.
    pub private: Vec<CString>,
    /// The mount of the workspace's cache, where any name may be made too. Sockets in it cannot be
    /// connected to.
    pub cache: Option<CString>,
    /// The directory of granted sockets, which may be connected to; cells of a template share it.
    pub sockets: Option<CString>,
    /// Granted directories and files of the host, as the cell sees them.
    pub granted: Vec<Vec<u8>>,
    /// A name that must not be made, for the payload's probe; `None` if only sockets are guarded.
    pub probe: Option<CString>,
    /// System calls of such an init, in addition to those of every init.
    pub own_calls: Vec<Sysno>,
    /// The filter of such an init.
    pub init_filter: Vec<Instruction>,
}

/// A granted directory in which names are guarded.
#[derive(Debug, Clone, Copy)]
pub struct GuardedNames<'a> {
    /// A granted writable directory, as the cell sees it.
    pub directory: &'a Path,
    /// Paths that a configuration names.
    pub named: &'a [PathBuf],
    /// Read-only files that have other names too, by device and inode number.
    pub shared: &'a BTreeSet<(u64, u64)>,
    /// Names that the operator guards.
    pub also: &'a [Vec<u8>],
    /// Directories of repositories, whatever their names.
    pub repositories: &'a [PathBuf],
}

/// Private filesystems of a cell, and the granted paths of the host.
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
    /// EINVAL: a path contains a NUL.
    pub fn new(
        calls: Vec<MediatedCall>,
        names: Option<GuardedNames<'_>>,
        belongings: Belongings<'_>,
        recording: Recording,
    ) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let split = |path: &PathBuf| {
            let name = path.file_name()?.as_bytes().to_owned();
            Some((path.parent()?.as_os_str().as_bytes().to_owned(), name))
        };
        let named = names.map_or(&[][..], |names| names.named);
        let repositories = names.map_or(&[][..], |names| names.repositories);
        // Without guarded names the cache is irrelevant, and init may not read mount ids.
        let cache = belongings.cache.filter(|_| names.is_some());
        let probe = names.map(|names| super::c_path(&names.directory.join(".git:probe")));
        let mut own_calls: Vec<Sysno> =
            calls.iter().flat_map(|call| call.row.group.calls()).copied().collect();
        own_calls.sort_unstable();
        own_calls.dedup();
        let path = |path: &PathBuf| path.as_os_str().as_bytes().to_owned();
        Ok(Self {
            calls,
            named: named.iter().filter_map(split).collect(),
            shared: names.map_or_else(BTreeSet::new, |names| names.shared.clone()),
            also: names.map_or_else(Vec::new, |names| names.also.to_vec()),
            repositories: repositories.iter().map(path).collect(),
            private: belongings.private,
            cache: cache.map(super::c_path).transpose()?,
            sockets: belongings.sockets,
            granted: belongings.granted.iter().map(path).collect(),
            probe: probe.transpose()?,
            init_filter: seccomp::init_filter(recording, &own_calls)?,
            own_calls,
        })
    }

    /// Finds the mediated call of a notification; `None` if the profile refuses its arguments.
    #[must_use]
    pub fn find(&self, call: Notification) -> Option<&MediatedCall> {
        // Two rows may share a call: sockets of unix and of netlink are made by socket(2).
        self.calls.iter().find(|mediated| {
            mediated.number == call.number && mediated.verdict.allows(&call.arguments)
        })
    }

    /// Returns true if the cell has a directory of the host, where names or sockets are guarded.
    #[must_use]
    pub fn has_directory(&self) -> bool {
        self.calls.iter().any(|call| match call.row.group {
            CallGroup::Names | CallGroup::Bind | CallGroup::Connect | CallGroup::Datagram => true,
            CallGroup::Epoll
            | CallGroup::Inotify
            | CallGroup::SetGroup
            | CallGroup::Interfaces
            | CallGroup::BufferSizes => false,
        })
    }
}
