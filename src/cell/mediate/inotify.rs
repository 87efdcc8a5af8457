//! Limits inotify(7) watches to a cell's private filesystems and its grants.
//!
//! Other files of a cell are inodes of the host, or are shared by all cells of a template: a watch
//! would reveal which files other processes read, write and execute.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use syscalls::Sysno;

use super::caller::TargetCall;
use super::handlers::Handlers;
use super::names;
use super::paths::LastLink;
use super::refusals::GuardedName;
use super::registers::PathArgument;
use super::response::{CallError, Response};
use sys::{Result, process, watch};

/// The system calls by which init adds watches, in addition to those of every init.
pub const CALLS: [Sysno; 10] = [
    Sysno::process_vm_readv,
    Sysno::pidfd_open,
    Sysno::pidfd_getfd,
    Sysno::openat2,
    Sysno::openat,
    Sysno::readlinkat,
    Sysno::fstatfs,
    Sysno::fchdir,
    Sysno::read,
    Sysno::inotify_add_watch,
];

/// Serves inotify_add_watch(2), and watches the inode that was checked.
pub fn add_watch(
    handlers: &Handlers<'_>,
    caller: &TargetCall<'_>,
    instance: i32,
    path: PathArgument,
    mask: u32,
) -> std::result::Result<Response, CallError> {
    let target = caller.target;
    let number = u32::try_from(instance).map_err(|_| Errno::EBADF)?;
    let leader = process::open_pidfd(target.status()?.process)?;
    let instance = process::take_descriptor(&leader, number)?;
    let links = if mask & libc::IN_DONT_FOLLOW == 0 { LastLink::Follow } else { LastLink::Stay };
    let held = target.hold(path, links)?;
    caller.still_waits()?;
    if !may_watch(handlers, &held)? {
        return Err(CallError::Guarded(GuardedName::Other));
    }
    let mut entry = [0; 64];
    // Relative to the procfs, which is the current directory.
    let entry = handlers
        .name_guard
        .init_thread()
        .entry(&mut entry, format_args!("fd/{}", held.as_raw_fd()))?;
    let watch = watch::add(&instance, entry, mask & !libc::IN_DONT_FOLLOW)?;
    Ok(Response::Value(i64::from(watch)))
}

/// Returns true if the file is private to the cell or granted.
fn may_watch(handlers: &Handlers<'_>, held: &OwnedFd) -> Result<bool> {
    if handlers.name_guard.is_own(held)? {
        return Ok(true);
    }
    let mut buffer = [0; 4096];
    let path = handlers.name_guard.path(held, &mut buffer)?;
    Ok(handlers.mediation.granted.iter().any(|granted| lies_in(path, granted)))
}

/// Returns true if an absolute path equals another one or lies below it.
#[must_use]
pub fn lies_in(path: &[u8], granted: &[u8]) -> bool {
    let mut here = names::parts(path);
    path.first() == Some(&b'/') && names::parts(granted).all(|part| here.next() == Some(part))
}

#[cfg(test)]
mod tests {
    use super::lies_in;

    #[test]
    fn only_a_grant_and_paths_below_it_lie_in_the_grant() {
        for inside in ["/workspace", "/workspace/a/b", "/workspace/x (deleted)"] {
            assert!(lies_in(inside.as_bytes(), b"/workspace"), "{inside}");
        }
        for outside in ["/", "/workspace2", "/usr/workspace", "pipe:[1]", "workspace", ""] {
            assert!(!lies_in(outside.as_bytes(), b"/workspace"), "{outside}");
        }
    }
}
