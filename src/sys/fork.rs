//! Forks by clone(2), for machines that refuse clone3(2).

use std::os::fd::{FromRawFd, OwnedFd};

use super::process::{Child, Side};
use super::{Result, check};

/// Makes a child with a pidfd in the caller's namespaces, by a call that the filters of container
/// engines allow.
///
/// The caller must be single-threaded: the child has this thread only, and a lock held by another
/// thread would stay locked in it for ever.
pub fn fork() -> Result<Side> {
    let mut pidfd: libc::c_int = -1;
    let flags = (libc::CLONE_PIDFD | libc::SIGCHLD) as libc::c_ulong;
    let zero: libc::c_ulong = 0;
    // SAFETY: without CLONE_VM the child runs on a copy of this memory and needs no separate stack;
    // `pidfd` outlives the call, and the other two pointers are not read with these flags.
    let pid = check(unsafe {
        libc::syscall(libc::SYS_clone, flags, zero, std::ptr::from_mut(&mut pidfd), zero, zero)
    })?;
    if pid == 0 {
        return Ok(Side::Child);
    }
    // SAFETY: the kernel stored a new descriptor there that has no other owner (CLONE_PIDFD).
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Side::Parent(Child { pid: pid as i32, pidfd }))
}
