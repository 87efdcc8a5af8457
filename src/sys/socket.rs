//! Sends and receives packets with descriptors over SOCK_SEQPACKET, without allocating.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, getsockopt, sockopt};

use super::Result;

/// Maximum number of descriptors in one packet.
pub const MAX_FDS: usize = 6;

/// Size of the buffer for ancillary data: the descriptors, and a ucred if SO_PASSCRED is set.
const CONTROL_BYTES: usize = 128;

/// Aligned like cmsghdr, as ancillary data must be.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Returns the default buffer size of sockets, the larger of sending and receiving (socket(7),
/// `wmem_default` and `rmem_default`), read from a `socket` whose sizes were never set.
///
/// # Errors
/// The errno of getsockopt(2).
pub fn default_buffer_bytes(socket: impl AsFd) -> Result<u64> {
    let sizes = [getsockopt(&socket, sockopt::SndBuf)?, getsockopt(&socket, sockopt::RcvBuf)?];
    u64::try_from(sizes.into_iter().max().unwrap_or(0)).map_err(|_| Errno::ERANGE)
}

/// A received packet.
#[derive(Debug, Default)]
pub struct Received {
    /// Length of the packet; 0 without descriptors means that the other end is closed.
    pub bytes: usize,
    pub fds: [Option<OwnedFd>; MAX_FDS],
    /// The sender's pid in this process's pid namespace, if SO_PASSCRED is set.
    pub pid: Option<i32>,
    /// True if the packet or its descriptors did not fit.
    pub cut: bool,
}

/// Connects to an address in the kernel's layout.
pub fn connect(socket: impl AsFd, address: &[u8]) -> Result<()> {
    let length = libc::socklen_t::try_from(address.len()).map_err(|_| Errno::EINVAL)?;
    let pointer = address.as_ptr().cast();
    // SAFETY: the address is readable for its length and outlives the call; the kernel copies it.
    let result = unsafe { libc::connect(socket.as_fd().as_raw_fd(), pointer, length) };
    Errno::result(result).map(drop)
}

/// Binds to an address in the kernel's layout.
pub fn bind(socket: impl AsFd, address: &[u8]) -> Result<()> {
    let length = libc::socklen_t::try_from(address.len()).map_err(|_| Errno::EINVAL)?;
    let pointer = address.as_ptr().cast();
    // SAFETY: the address is readable for its length and outlives the call; the kernel copies it.
    let result = unsafe { libc::bind(socket.as_fd().as_raw_fd(), pointer, length) };
    Errno::result(result).map(drop)
}

/// Sends one packet with descriptors (sendmsg(2)). Never raises SIGPIPE.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    send_with(socket, bytes, fds, libc::MSG_NOSIGNAL)
}

/// Sends one packet without waiting.
///
/// # Errors
/// EAGAIN: the queue of the other end is full.
pub fn send_now(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    send_with(socket, bytes, fds, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
}

/// Sends one packet without waiting, by send(2), which takes neither an address nor descriptors:
/// for a process whose filter denies sendmsg(2).
///
/// # Errors
/// EAGAIN: the queue of the other end is full.
pub fn send_bytes(socket: impl AsFd, bytes: &[u8]) -> Result<()> {
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    loop {
        match nix::sys::socket::send(socket.as_fd().as_raw_fd(), bytes, flags) {
            Err(Errno::EINTR) => {}
            result => return result.map(drop),
        }
    }
}

fn send_with(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: libc::c_int,
) -> Result<()> {
    if fds.len() > MAX_FDS {
        return Err(Errno::EINVAL);
    }
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr is plain integers and pointers, for which all zeroes is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        let length = size_of_val(fds) as u32;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: only computes on a number.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(length) } as usize;
        // SAFETY: msg_control points at CONTROL_BYTES aligned bytes, more than msg_controllen.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        // SAFETY: `header` is the first header in that buffer, and not null as the buffer has room
        // for it.
        let header = unsafe { &mut *header };
        header.cmsg_level = libc::SOL_SOCKET;
        header.cmsg_type = libc::SCM_RIGHTS;
        // SAFETY: only computes on a number.
        header.cmsg_len = unsafe { libc::CMSG_LEN(length) } as usize;
        // SAFETY: only computes on an address inside the buffer.
        let data = unsafe { libc::CMSG_DATA(header) };
        // SAFETY: BorrowedFd is a transparent RawFd, and the buffer holds MAX_FDS of them.
        unsafe { std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), data, length as usize) };
    }
    loop {
        // SAFETY: `message` and all it points at outlive the call.
        let sent = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, flags) };
        match Errno::result(sent) {
            Err(Errno::EINTR) => {}
            result => return result.map(drop),
        }
    }
}

/// Choice between waiting for a packet and failing with EAGAIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketWait {
    Yes,
    No,
}

/// Receives one packet into `buffer` (recvmsg(2)); descriptors are CLOEXEC and owned by the result.
pub fn receive(socket: impl AsFd, buffer: &mut [u8], wait: PacketWait) -> Result<Received> {
    let pointer = buffer.as_mut_ptr().cast();
    // SAFETY: the same bytes for the same borrow; only the kernel writes to them, and it
    // initializes them.
    let room = unsafe { std::slice::from_raw_parts_mut(pointer, buffer.len()) };
    receive_in(socket.as_fd(), room, wait)
}

/// Receives one packet into the capacity of `buffer`, which then holds exactly the packet. A large
/// unused capacity costs nothing, as only pages that are written take memory.
pub fn receive_into(socket: impl AsFd, buffer: &mut Vec<u8>, wait: PacketWait) -> Result<Received> {
    buffer.clear();
    let received = receive_in(socket.as_fd(), buffer.spare_capacity_mut(), wait)?;
    // SAFETY: recvmsg(2) without MSG_TRUNC returns how many bytes it has written, which is at most
    // the capacity.
    unsafe { buffer.set_len(received.bytes) };
    Ok(received)
}

fn receive_in(
    socket: BorrowedFd<'_>,
    room: &mut [MaybeUninit<u8>],
    wait: PacketWait,
) -> Result<Received> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    // SAFETY: msghdr is plain integers and pointers, for which all zeroes is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES;
    let flags =
        libc::MSG_CMSG_CLOEXEC | if wait == PacketWait::No { libc::MSG_DONTWAIT } else { 0 };
    let bytes = loop {
        // SAFETY: `message` and all it points at outlive the call and are writable.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
        match Errno::result(got) {
            Err(Errno::EINTR) => {}
            result => break result? as usize,
        }
    };
    let mut received = Received {
        bytes,
        cut: message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        ..Received::default()
    };
    collect(&message, &mut received);
    Ok(received)
}

/// Collects descriptors and credentials from the ancillary data of a received message.
fn collect(message: &libc::msghdr, received: &mut Received) {
    // SAFETY: the kernel has filled msg_control and msg_controllen.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return a header inside the buffer, or null at the end.
    while let Some(current) = unsafe { header.as_ref() } {
        // SAFETY: only computes on an address inside the buffer.
        let data = unsafe { libc::CMSG_DATA(header) };
        // SAFETY: only computes on a number.
        let length = current.cmsg_len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
        match (current.cmsg_level, current.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for index in 0..length / size_of::<libc::c_int>() {
                    // SAFETY: the header states that this many descriptors follow it.
                    let slot_pointer = unsafe { data.cast::<libc::c_int>().add(index) };
                    // SAFETY: `slot_pointer` is inside the buffer, as stated above.
                    let raw = unsafe { slot_pointer.read_unaligned() };
                    // SAFETY: the kernel has just made this descriptor for us.
                    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
                    match received.fds.get_mut(index) {
                        Some(slot) => *slot = Some(fd),
                        // Dropped, and so closed: no packet of this program carries that many.
                        None => received.cut = true,
                    }
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if length >= size_of::<libc::ucred>() => {
                // SAFETY: the length states that a ucred follows the header.
                let credentials = unsafe { data.cast::<libc::ucred>().read_unaligned() };
                received.pid = Some(credentials.pid);
            }
            _ => {}
        }
        // SAFETY: `header` came from this message.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
}

/// Makes a datagram socket of `family`, to find out whether that is refused.
pub fn probe(family: libc::c_int) -> Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let raw = Errno::result(unsafe { libc::socket(family, libc::SOCK_DGRAM, 0) })?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}
