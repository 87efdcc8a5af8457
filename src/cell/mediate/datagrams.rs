//! Answers calls that make datagram sockets of unix, in cells that have a directory of the host.
//!
//! Such a socket can send to any socket by its path, and the address is in memory that no filter can
//! read. A pair gets sequenced packets instead, which keep the messages apart and ignore addresses
//! (unix(7)). A single socket is refused.

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::resource::Resource;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::stat::fstatat;
use syscalls::Sysno;

use super::caller::TargetCall;
use super::paths::TargetThread;
use super::response::{CallError, Response};
use sys::{Result, notify, process, remote};

/// The system calls by which init makes pairs, in addition to those of every init.
pub(super) const CALLS: [Sysno; 4] =
    [Sysno::process_vm_readv, Sysno::socketpair, Sysno::prlimit64, Sysno::fchdir];

/// Bytes of the caller's array of two descriptors.
const ARRAY_BYTES: usize = 2 * size_of::<i32>();

/// Serves socketpair(2) of datagram sockets; `kind` is the type with its flags, `array` the address
/// of the array for both descriptors.
///
/// Each descriptor is added by a separate step. If another thread takes the last free number in
/// between, the call returns EMFILE and the first one stays open.
pub(super) fn pair(
    caller: &TargetCall<'_>,
    kind: i32,
    array: u64,
) -> std::result::Result<Response, CallError> {
    let target = caller.target;
    // Shows that the array can be written before anything is added. On failure it stays unchanged.
    let mut before = [0; ARRAY_BYTES];
    if remote::read(target.pid, array, &mut before)? < ARRAY_BYTES {
        return Err(CallError::Errno(Errno::EFAULT));
    }
    put(target, array, before)?;
    if !has_room_for_two(target)? {
        return Err(CallError::Errno(Errno::EMFILE));
    }
    let wanted = SockFlag::from_bits_truncate(kind);
    let flags = wanted & SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    caller.still_waits()?;
    let closes = wanted.contains(SockFlag::SOCK_CLOEXEC);
    let one = notify::add(caller.listener, caller.notification, one, closes)?;
    let other = notify::add(caller.listener, caller.notification, other, closes)?;
    let mut numbers = [0; ARRAY_BYTES];
    let (first, second) = numbers.split_at_mut(size_of::<i32>());
    first.copy_from_slice(&one.to_ne_bytes());
    second.copy_from_slice(&other.to_ne_bytes());
    put(target, array, numbers)?;
    Ok(Response::Done)
}

/// Writes the caller's array.
fn put(target: TargetThread<'_>, array: u64, bytes: [u8; ARRAY_BYTES]) -> Result<()> {
    match remote::write(target.pid, array, &bytes)? {
        ARRAY_BYTES => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

/// Returns true if the caller's limit leaves room for two more descriptors. Before Linux 6.2 the
/// kernel does not say how many are open: then true.
fn has_room_for_two(target: TargetThread<'_>) -> Result<bool> {
    let mut buffer = [0; 64];
    let entry = target.entry(&mut buffer, format_args!("fd"))?;
    let open = fstatat(target.proc, entry, AtFlags::empty())?.st_size;
    let limit = process::limit_of(target.pid, Resource::RLIMIT_NOFILE)?;
    Ok(u64::try_from(open).is_ok_and(|open| open.saturating_add(2) <= limit))
}
