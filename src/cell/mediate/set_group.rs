//! Sets the set-group-id bit of directories, in which new files then get the directory's group.
//!
//! A program file with the bit runs with its group's rights, also for others: the filter allows no
//! such mode. Directories need it in repositories that a group shares. The filter cannot
//! distinguish the two, so it asks init about modes with this bit and without the set-user-id bit.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmodat, fstat};
use syscalls::Sysno;

use super::caller::TargetCall;
use super::handlers::Handlers;
use super::paths::LastLink;
use super::refusals::GuardedName;
use super::registers::PathArgument;
use super::response::{CallError, Response};
use sys::Result;

/// The system calls by which init changes modes, in addition to those of every init.
pub(super) const CALLS: [Sysno; 7] = [
    Sysno::process_vm_readv,
    Sysno::openat2,
    Sysno::openat,
    Sysno::readlinkat,
    Sysno::fstatfs,
    Sysno::fchdir,
    Sysno::fchmodat,
];

/// Serves chmod(2) by a path.
pub(super) fn by_path(
    handlers: &Handlers<'_>,
    caller: &TargetCall<'_>,
    path: PathArgument,
    mode: u32,
    flags: i32,
) -> std::result::Result<Response, CallError> {
    const NO_FOLLOW: i32 = libc::AT_SYMLINK_NOFOLLOW;
    const EMPTY: i32 = libc::AT_EMPTY_PATH;
    if flags & !(NO_FOLLOW | EMPTY) != 0 {
        return Err(CallError::Errno(Errno::EINVAL));
    }
    let target = caller.target;
    if flags & EMPTY != 0 && target.text(path.text)?.bytes().is_empty() {
        let held = target.start(path.from)?;
        return change(handlers, caller, &held, mode);
    }
    let links = if flags & NO_FOLLOW == 0 { LastLink::Follow } else { LastLink::Stay };
    let held = target.hold(path, links)?;
    change(handlers, caller, &held, mode)
}

/// Serves fchmod(2).
pub(super) fn by_descriptor(
    handlers: &Handlers<'_>,
    caller: &TargetCall<'_>,
    number: i32,
    mode: u32,
) -> std::result::Result<Response, CallError> {
    let number = u32::try_from(number).map_err(|_| Errno::EBADF)?;
    let held = caller.target.descriptor(number, OFlag::O_PATH | OFlag::O_CLOEXEC);
    let held = held.map_err(|errno| if errno == Errno::ENOENT { Errno::EBADF } else { errno })?;
    change(handlers, caller, &held, mode)
}

/// Changes the mode of a held directory. Init has the caller's ids, so that the kernel refuses what
/// it would refuse the caller, and drops the bit where the group is not the caller's.
fn change(
    handlers: &Handlers<'_>,
    caller: &TargetCall<'_>,
    held: &OwnedFd,
    mode: u32,
) -> std::result::Result<Response, CallError> {
    match kind(held)? {
        SFlag::S_IFDIR => {}
        SFlag::S_IFLNK => return Err(CallError::Errno(Errno::EOPNOTSUPP)),
        _ => return Err(CallError::Guarded(GuardedName::Other)),
    }
    caller.still_waits()?;
    let init = handlers.name_guard.init_thread();
    let mut entry = [0; 64];
    let entry = init.entry(&mut entry, format_args!("fd/{}", held.as_raw_fd()))?;
    let mode = Mode::from_bits_truncate(mode);
    fchmodat(init.proc, entry, mode, FchmodatFlags::FollowSymlink)?;
    Ok(Response::Done)
}

fn kind(file: &OwnedFd) -> Result<SFlag> {
    Ok(SFlag::from_bits_truncate(fstat(file)?.st_mode & libc::S_IFMT))
}
