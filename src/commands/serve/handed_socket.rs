//! The listening socket that a service manager hands over (sd_listen_fds(3)), for `serve --http systemd`.
//!
//! Another process may serve the same socket, so one version of this program can follow another without a refused
//! connection.

use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{SockType, SockaddrStorage, getsockname, getsockopt, sockopt};

use super::endpoint::Endpoint;
use crate::commands::error::CliError;
use sys::process::{close_range, take_inherited};

/// Word for such a socket in place of an address.
pub(crate) const WORD: &str = "systemd";
/// Time after a signal to end in which connections that were accepted before it are served.
pub(crate) const HANDOVER_TIME: Duration = Duration::from_secs(1);

/// Number of the first descriptor that is handed over (SD_LISTEN_FDS_START).
const FIRST: u32 = 3;
/// Variables by which a service manager says to which process it hands over how many sockets.
const PROCESS: &str = "LISTEN_PID";
const COUNT: &str = "LISTEN_FDS";

/// Closes all descriptors from 3 on that this program was started with. Returns the one socket that a service manager
/// hands over to it, if there is one.
///
/// # Errors
/// Descriptors that cannot be closed.
pub(crate) fn take() -> Result<Option<OwnedFd>, Errno> {
    if !is_one_handed_over() {
        close_range(FIRST, u32::MAX)?;
        return Ok(None);
    }
    close_range(FIRST + 1, u32::MAX)?;
    match take_inherited(FIRST) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::EBADF) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns true if the variables name this process and one socket. A child of a process that has the variables does
/// not have the pid in them.
fn is_one_handed_over() -> bool {
    let is = |name, expected: &str| std::env::var_os(name).is_some_and(|value| value == expected);
    is(PROCESS, &std::process::id().to_string()) && is(COUNT, "1")
}

/// Checks that `socket` can be served. Returns it with its own address, whose conditions apply to it.
///
/// # Errors
/// No socket, or one that is not a listening stream socket of TCP or at a path.
pub(super) fn checked(socket: Option<OwnedFd>) -> Result<(OwnedFd, Endpoint), CliError> {
    let socket = socket.ok_or_else(|| {
        refused("no socket was handed over, or more than one").with_hint(
            "start the server by a socket unit with one ListenStream=, or by systemd-socket-activate -l ADDRESS",
        )
    })?;
    let endpoint = address(&socket).ok_or_else(|| {
        refused("what was handed over is no listening stream socket of TCP, or of Unix at a path")
            .with_hint("a socket unit has ListenStream= and Accept=no")
    })?;
    Ok((socket, endpoint))
}

fn refused(fault: &str) -> CliError {
    CliError::new(format!("--http {WORD}: {fault}"))
}

/// Returns the address of a listening stream socket; `None` for any other descriptor.
fn address(socket: &OwnedFd) -> Option<Endpoint> {
    let kind = getsockopt(socket, sockopt::SockType).ok()?;
    let listens = getsockopt(socket, sockopt::AcceptConn).ok()?;
    if kind != SockType::Stream || !listens {
        return None;
    }
    let name: SockaddrStorage = getsockname(socket.as_raw_fd()).ok()?;
    if let Some(at) = name.as_sockaddr_in() {
        return Some(Endpoint::Tcp(SocketAddr::V4(SocketAddrV4::from(*at))));
    }
    if let Some(at) = name.as_sockaddr_in6() {
        return Some(Endpoint::Tcp(SocketAddr::V6(SocketAddrV6::from(*at))));
    }
    // An abstract name has no mode that keeps other users out.
    let path = name.as_unix_addr()?.path()?;
    Some(Endpoint::Unix(path.to_path_buf()))
}
