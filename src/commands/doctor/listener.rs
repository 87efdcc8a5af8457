//! Probe of what `serve --http` and `--tcp` need: a socket on loopback that accepts a connection.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use nix::errno::Errno;

use super::layer::{ProbeResult, missing, refusal};
use super::platform::Platform;

/// Time for a connection to a socket of this process.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Describes why no socket can listen on loopback. `None` if one can.
pub(super) fn loopback(platform: Platform) -> Option<ProbeResult> {
    let (what, error) = accept_one().err()?;
    let errno = cell::errno_of(&error);
    // A filter answers with these, or as a kernel without the call.
    let is_filter = [Errno::EPERM, Errno::EACCES, Errno::ENOSYS].contains(&errno);
    let remedy = match is_filter {
        true => platform.remedy(),
        false => "bring the loopback up (`ip link set lo up`), or use `serve --http unix:PATH`",
    };
    Some(missing(refusal(what, errno)).with_remedy(remedy))
}

/// Listens, connects and accepts the connection, as a front end and its client do.
fn accept_one() -> Result<(), (&'static str, io::Error)> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let socket = TcpListener::bind(any).map_err(|error| ("no socket can listen", error))?;
    let address = socket.local_addr().map_err(|error| ("a socket has no address", error))?;
    // The connection is in the queue of the socket from then on, so that accept(2) does not wait.
    let _client = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)
        .map_err(|error| ("a socket of loopback cannot be reached", error))?;
    let accepted = socket.accept().map_err(|error| ("a connection cannot be taken", error));
    accepted.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::layer::LayerState;
    use sys::bpf::{self, Instruction};

    /// Makes a filter that fails one call with EPERM.
    fn refusing(call: libc::c_long) -> [Instruction; 4] {
        let call = u32::try_from(call).expect("a number of a call");
        [
            Instruction { code: 0x20, jt: 0, jf: 0, k: 0 },
            Instruction { code: 0x15, jt: 0, jf: 1, k: call },
            Instruction { code: 0x06, jt: 0, jf: 0, k: 0x0005_0001 },
            Instruction { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 },
        ]
    }

    #[test]
    fn a_filter_that_keeps_a_front_end_from_its_socket_is_named_with_the_way_out() {
        assert_eq!(loopback(Platform::Docker), None, "this machine has sockets");
        for (call, what) in [
            (libc::SYS_socket, "no socket can listen"),
            (libc::SYS_listen, "no socket can listen"),
            (libc::SYS_accept4, "a connection cannot be taken"),
        ] {
            // A filter without TSYNC holds for its thread alone.
            let filtered = std::thread::spawn(move || {
                bpf::load(&refusing(call)).expect("it loads");
                loopback(Platform::Docker)
            });
            let result = filtered.join().expect("no panic").expect("a refused call");
            assert_eq!(result.state, LayerState::Missing);
            assert!(result.how.starts_with(what) && result.how.contains("EPERM"), "{result:?}");
            assert_eq!(result.remedy.as_deref(), Some(Platform::Docker.remedy()));
        }
    }
}
