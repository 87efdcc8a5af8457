//! Copies of the arguments of connect(2) and bind(2): a socket of the caller, and an address.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;

use super::paths::TargetThread;
use super::registers::int;
use sys::{Result, process, remote};

/// Arguments of connect(2) or bind(2): the caller's number of the socket, and the location of its
/// address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketArguments {
    pub socket: i32,
    pub address: u64,
    pub length: i32,
}

impl SocketArguments {
    #[must_use]
    pub fn from_registers(&[socket, address, length, ..]: &[u64; 6]) -> Self {
        Self { socket: int(socket), address, length: int(length) }
    }

    /// Takes a copy of the caller's socket.
    pub(super) fn take_socket(self, target: TargetThread<'_>) -> Result<OwnedFd> {
        let number = u32::try_from(self.socket).map_err(|_| Errno::EBADF)?;
        process::take_descriptor(process::open_pidfd(target.status()?.process)?, number)
    }
}

/// Maximum length of an address in the kernel (sockaddr_storage).
const MAX_ADDRESS_BYTES: usize = 128;
/// Maximum length of an address with a path (sockaddr_un), and of the family that precedes it.
const MAX_UNIX_BYTES: usize = 110;
const FAMILY_BYTES: usize = 2;

/// Copy of an address of the caller.
#[derive(Debug, Clone)]
pub struct Address {
    bytes: [u8; MAX_ADDRESS_BYTES],
    length: usize,
}

impl Address {
    pub(super) fn read_from(target: TargetThread<'_>, wanted: SocketArguments) -> Result<Self> {
        let length = usize::try_from(wanted.length).map_err(|_| Errno::EINVAL)?;
        let mut address = Self { bytes: [0; MAX_ADDRESS_BYTES], length };
        let room = address.bytes.get_mut(..length).ok_or(Errno::EINVAL)?;
        if !room.is_empty() && remote::read(target.pid, wanted.address, room)? < length {
            return Err(Errno::EFAULT);
        }
        Ok(address)
    }

    /// Makes an address from bytes.
    ///
    /// # Errors
    /// EINVAL: longer than the kernel allows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut address = Self { bytes: [0; MAX_ADDRESS_BYTES], length: bytes.len() };
        address.bytes.get_mut(..bytes.len()).ok_or(Errno::EINVAL)?.copy_from_slice(bytes);
        Ok(address)
    }

    /// Makes the address of a path in the file system.
    ///
    /// # Errors
    /// EINVAL: longer than such an address allows (unix(7)).
    pub(super) fn from_path(path: &[u8]) -> Result<Self> {
        let family = libc::sa_family_t::try_from(libc::AF_UNIX).map_err(|_| Errno::EINVAL)?;
        let length = FAMILY_BYTES + path.len() + 1;
        let mut address =
            Self { bytes: [0; MAX_ADDRESS_BYTES], length: length.min(MAX_UNIX_BYTES) };
        let (start, rest) = address.bytes.split_at_mut(FAMILY_BYTES);
        start.copy_from_slice(&family.to_ne_bytes());
        let room =
            rest.get_mut(..path.len()).filter(|_| path.len() <= MAX_UNIX_BYTES - FAMILY_BYTES);
        room.ok_or(Errno::EINVAL)?.copy_from_slice(path);
        Ok(address)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Returns true for the address of a unix socket (unix(7)), or one without a family.
    pub(super) fn is_local(&self) -> bool {
        let local = [libc::AF_UNIX, libc::AF_UNSPEC].map(libc::sa_family_t::try_from);
        let family = self.bytes().first_chunk().copied().map(libc::sa_family_t::from_ne_bytes);
        family.is_none_or(|family| local.contains(&Ok(family)))
    }

    /// Returns the path in the address, up to its NUL (unix(7)). `None` for another family, for an
    /// abstract socket and for an unnamed one.
    #[must_use]
    pub fn path(&self) -> Option<&[u8]> {
        let (family, path) = self.bytes().split_at_checked(FAMILY_BYTES)?;
        let is_unix = family == libc::sa_family_t::try_from(libc::AF_UNIX).ok()?.to_ne_bytes();
        let path = path.split(|byte| *byte == 0).next().filter(|path| !path.is_empty())?;
        is_unix.then_some(path)
    }

    /// Returns the destination in an address of IPv4 or IPv6 (ip(7), ipv6(7)).
    pub(super) fn internet(&self) -> Option<SocketAddr> {
        let (family, rest) = self.bytes().split_first_chunk::<FAMILY_BYTES>()?;
        let (port, rest) = rest.split_first_chunk::<2>()?;
        let ip = match i32::from(libc::sa_family_t::from_ne_bytes(*family)) {
            libc::AF_INET => IpAddr::from(*rest.first_chunk::<4>()?),
            // After four bytes of flow information.
            libc::AF_INET6 => IpAddr::from(*rest.get(4..)?.first_chunk::<16>()?),
            _ => return None,
        };
        Some(SocketAddr::new(ip, u16::from_be_bytes(*port)))
    }

    /// Returns the address of a held file, as a path relative to the procfs, the current directory.
    pub(super) fn from_held(held: &OwnedFd) -> Result<Self> {
        let mut address = Self { bytes: [0; MAX_ADDRESS_BYTES], length: 0 };
        let family = libc::sa_family_t::try_from(libc::AF_UNIX).map_err(|_| Errno::EINVAL)?;
        let mut rest = address.bytes.as_mut_slice();
        let written = rest
            .write_all(&family.to_ne_bytes())
            .and_then(|()| write!(rest, "self/fd/{}\0", held.as_raw_fd()));
        written.map_err(|_| Errno::ENAMETOOLONG)?;
        address.length = MAX_ADDRESS_BYTES - rest.len();
        Ok(address)
    }
}
