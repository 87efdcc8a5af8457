//! Lists the system calls that a container engine's filter must allow for cofferdam, in addition to
//! those of its cells.
//!
//! Taken from the filter tables, plus a list of calls that are made before any filter is loaded.
//! `commands::container_filter` makes a seccomp profile for containers from it.

use syscalls::Sysno;

use super::filter;
use cell::seccomp;

/// Calls in no filter table: `main` makes them, and the supervisor before it loads its filter, to
/// set up its root and the maps of its cells.
const BEFORE_FILTERS: [Sysno; 14] = [
    Sysno::umount2,
    Sysno::pivot_root,
    Sysno::sethostname,
    Sysno::mount_setattr,
    Sysno::mkdirat,
    Sysno::fchownat,
    Sysno::fchown,
    Sysno::flock,
    Sysno::umask,
    Sysno::capget,
    Sysno::capset,
    Sysno::pidfd_getfd,
    Sysno::execve,
    Sysno::unshare,
];

/// Returns the names of the system calls of the supervisor and of cells' inits, including those
/// before their filters.
#[must_use]
pub fn calls() -> Vec<&'static str> {
    let tables = filter::supervisor_calls().chain(seccomp::init_calls()).chain(BEFORE_FILTERS);
    tables.map(|call| call.name()).collect()
}
