//! Serves connect(2) and bind(2).

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::socket::{SockType, getsockopt, sockopt};
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::fchdir;
use syscalls::Sysno;

use super::address::{Address, SocketArguments};
use super::caller::TargetCall;
use super::connecting::Connecting;
use super::guard::NameGuard;
use super::paths::{FoundFile, LastLink, Spot, TargetThread, Text};
use super::refusals::GuardedName;
use super::response::{CallError, Response, Retry};
use sys::lookup::{self, Follow};
use sys::{Result, process, socket};

/// The system calls by which init binds for others, in addition to those for connecting and for
/// names.
pub(super) const BINDING: [Sysno; 1] = [Sysno::bind];
/// The system calls by which init connects for others, in addition to those of every init.
pub(super) const CONNECTING: [Sysno; 11] = [
    Sysno::process_vm_readv,
    Sysno::pidfd_open,
    Sysno::pidfd_getfd,
    Sysno::openat2,
    Sysno::openat,
    Sysno::readlinkat,
    Sysno::fstatfs,
    Sysno::fchdir,
    Sysno::connect,
    Sysno::getsockopt,
    Sysno::setitimer,
];

/// Connects for the caller, except to a socket in a directory of the host.
pub(super) fn connected(
    caller: &TargetCall<'_>,
    name_guard: &NameGuard<'_>,
    wanted: SocketArguments,
) -> std::result::Result<Response, CallError> {
    let target = caller.target;
    let socket = wanted.take_socket(target)?;
    let address = Address::read_from(target, wanted)?;
    let (address, held_socket) = match address.path() {
        Some(path) => {
            let held_socket = check_socket(target, name_guard, Text::new(path)?)?;
            (Address::from_held(&held_socket)?, Some(held_socket))
        }
        None => (address, None),
    };
    caller.still_waits()?;
    let mut connecting = Connecting { socket, address, held: held_socket, deadline: None };
    match connecting.try_connect() {
        Ok(true) => return Ok(Response::Value(0)),
        Ok(false) => {}
        Err(errno) => return Err(unreachable(&connecting, errno)),
    }
    connecting.read_deadline()?;
    Ok(Response::Later(Retry::Connection(connecting)))
}

/// Names the destination if there is no route to it. Datagram sockets are connected to find out the
/// own address too, so that only streams count.
fn unreachable(connecting: &Connecting, errno: Errno) -> CallError {
    let is_stream = || getsockopt(&connecting.socket, sockopt::SockType) == Ok(SockType::Stream);
    match connecting.address.internet() {
        Some(to) if errno == Errno::ENETUNREACH && is_stream() => CallError::Unreachable(to),
        Some(_) | None => CallError::Errno(errno),
    }
}

/// Opens the socket that a path leads to, if its directory is private to the cell.
fn check_socket(
    target: TargetThread<'_>,
    name_guard: &NameGuard<'_>,
    path: Text,
) -> std::result::Result<OwnedFd, CallError> {
    let from = libc::AT_FDCWD;
    let spot = match target.find_text(from, path, LastLink::Follow)? {
        FoundFile::Spot(spot) => spot,
        // The directory of a descriptor's file is not known.
        FoundFile::Descriptor(_) => return Err(CallError::Errno(Errno::EACCES)),
    };
    if spot.is_no_file() {
        return Err(CallError::Errno(Errno::ECONNREFUSED));
    }
    if !name_guard.is_private(&spot.parent)? {
        return Err(match spot.kind()? {
            Some(SFlag::S_IFSOCK) => CallError::Guarded(GuardedName::Other),
            Some(_) => CallError::Errno(Errno::ECONNREFUSED),
            None => CallError::Errno(Errno::ENOENT),
        });
    }
    hold_socket(&spot).map_err(CallError::Errno)
}

fn hold_socket(spot: &Spot) -> Result<OwnedFd> {
    let hold = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let held = lookup::open(&spot.parent, spot.last()?, hold, 0, Follow::Nothing)?;
    match SFlag::from_bits_truncate(fstat(&held)?.st_mode & libc::S_IFMT) {
        SFlag::S_IFSOCK => Ok(held),
        _ => Err(Errno::ECONNREFUSED),
    }
}

/// Binds for the caller, unless the host obeys the name.
///
/// getsockname(2) returns the caller's address if the path leads without links into a private
/// filesystem of the cell. In all other directories another process could replace a part of the
/// path by a link: there the socket is bound to the bare name in the directory that was checked.
pub(super) fn bound(
    caller: &TargetCall<'_>,
    name_guard: &NameGuard<'_>,
    wanted: SocketArguments,
) -> std::result::Result<Response, CallError> {
    let target = caller.target;
    let socket = wanted.take_socket(target)?;
    let address = Address::read_from(target, wanted)?;
    let Some(path) = address.path() else {
        caller.still_waits()?;
        socket::bind(&socket, address.bytes())?;
        return Ok(Response::Value(0));
    };
    let spot = target.spot_of_text(libc::AT_FDCWD, &Text::new(path)?)?;
    let no_file = spot.is_no_file();
    if no_file || name_guard.is_guarded(&spot)? {
        return Err(match spot.without_slashes()?.kind()? {
            Some(_) => CallError::Errno(Errno::EADDRINUSE),
            // With a trailing slash it would be a directory.
            None if no_file => CallError::Errno(Errno::ENOENT),
            None => CallError::Guarded(GuardedName::Other),
        });
    }
    let from = target.start_of(path)?;
    let is_direct =
        name_guard.is_alone(&spot.parent)? && name_guard.leads_straight(&from, path, &spot)?;
    caller.lend_umask()?;
    caller.still_waits()?;
    if is_direct {
        bind_from(name_guard, &from, &socket, address.bytes())?;
    } else {
        bind_from(name_guard, &spot.parent, &socket, Address::from_path(spot.name())?.bytes())?;
    }
    Ok(Response::Value(0))
}

/// Binds with `from` as the current directory.
fn bind_from(
    name_guard: &NameGuard<'_>,
    from: &OwnedFd,
    socket: &OwnedFd,
    address: &[u8],
) -> Result<()> {
    fchdir(from)?;
    let result = socket::bind(socket, address);
    if fchdir(&name_guard.proc).is_err() {
        // Init names its files by paths relative to this directory: from another one they would
        // name other files.
        process::exit_now(1);
    }
    result
}
