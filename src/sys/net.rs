//! The loopback interface of a network namespace, and options of sockets.

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::Result;
use super::bpf::{Instruction, Program};

/// Brings up `lo` in the caller's network namespace (netdevice(7), SIOCSIFFLAGS).
pub fn loopback_up() -> Result<()> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: ifreq is plain bytes, for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS takes a pointer to an ifreq, which outlives the call.
    Errno::result(unsafe {
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request)
    })
    .map(drop)
}

/// Prepares a packet socket: frames carry checksum and segmentation metadata (PACKET_VNET_HDR), and
/// only incoming frames that pass `filter` are received. The filter is locked (packet(7),
/// SO_LOCK_FILTER).
pub fn prepare_packet_socket(socket: impl AsFd, filter: &[Instruction]) -> Result<()> {
    set(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)?;
    set(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)?;
    attach_filter(socket, filter)
}

/// Attaches a filter that decides how much of each received message is kept, and locks it: no process
/// that has the socket can remove or replace it (socket(7), SO_ATTACH_FILTER, SO_LOCK_FILTER).
pub(crate) fn attach_filter(socket: impl AsFd, filter: &[Instruction]) -> Result<()> {
    let program = Program::new(filter)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &1)
}

/// Returns the address family of a socket (SO_DOMAIN).
pub fn family(socket: impl AsFd) -> Result<libc::c_int> {
    let mut family: libc::c_int = 0;
    let mut length = size_of_val(&family) as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the value is writable for its length, and both outlive the call.
    Errno::result(unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_DOMAIN,
            (&raw mut family).cast(),
            &raw mut length,
        )
    })
    .map(|_| family)
}

/// Sets SO_SNDBUF or SO_RCVBUF.
pub fn set_size(socket: impl AsFd, option: libc::c_int, size: libc::c_int) -> Result<()> {
    set(socket, libc::SOL_SOCKET, option, &size)
}

/// Sets an option whose value is a `T`, as setsockopt(2) describes it.
fn set<T>(socket: impl AsFd, level: libc::c_int, name: libc::c_int, value: &T) -> Result<()> {
    let length = libc::socklen_t::try_from(size_of::<T>()).map_err(|_| Errno::EINVAL)?;
    let socket = socket.as_fd().as_raw_fd();
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: the value is readable for its length and outlives the call, as does the program that
    // a sock_fprog points at.
    Errno::result(unsafe { libc::setsockopt(socket, level, name, value, length) }).map(drop)
}
