//! System calls that cofferdam makes of a container engine's filter, beyond what its cells may do.
//!
//! From the tables of the filters themselves, and a list of what is called before any of them is loaded. A container's
//! seccomp profile is made from this (`commands::container_filter`).

use syscalls::Sysno;

use super::filter;
use cell::seccomp;

/// Calls that no filter of ours lists: made by `main` and by the supervisor before its own filter, on the way to a root of its
/// own and to the maps of its cells.
const BEFORE: [Sysno; 14] = [
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

/// Returns the names of the system calls of the supervisor and of cells' inits, with those before their filters.
#[must_use]
pub fn calls() -> Vec<&'static str> {
    let tables = filter::own().chain(seccomp::init_calls()).chain(BEFORE);
    tables.map(|call| call.name()).collect()
}
