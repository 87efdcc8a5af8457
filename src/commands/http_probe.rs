//! Probe of `doctor` for what `serve --http` and `--tcp` need: a socket on loopback that takes a connection.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::doctor::{LayerCheck, LayerState};
use super::surroundings::Surroundings;

/// Time for a connection to a socket of one's own.
const CONNECTS: Duration = Duration::from_secs(2);

/// Describes the socket of a listener, if none can be had here.
pub(super) fn layer(surroundings: Surroundings) -> Option<LayerCheck> {
    let (what, error) = trial().err()?;
    let errno = error.raw_os_error().unwrap_or_default();
    // Take these for a filter: it refuses, or answers as a kernel without the call.
    let is_filter = [libc::EPERM, libc::EACCES, libc::ENOSYS].contains(&errno);
    let remedy = match is_filter {
        true => surroundings.remedy(),
        false => "bring the loopback up (`ip link set lo up`), or use `serve --http unix:PATH`",
    };
    Some(LayerCheck {
        name: "listener of --http".to_owned(),
        state: LayerState::Missing,
        how: format!("{what}: {}", model::outcome::errno_text(errno)),
        remedy: Some(remedy.to_owned()),
    })
}

/// Listens, connects and takes the connection, as a front end and its client do.
fn trial() -> Result<(), (&'static str, io::Error)> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let socket = TcpListener::bind(any).map_err(|error| ("no socket can listen", error))?;
    let address = socket.local_addr().map_err(|error| ("a socket has no address", error))?;
    // It is in the queue of the socket by then, so that taking it does not wait.
    let _client = TcpStream::connect_timeout(&address, CONNECTS)
        .map_err(|error| ("a socket of loopback cannot be reached", error))?;
    let taken = socket.accept().map_err(|error| ("a connection cannot be taken", error));
    taken.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::bpf::{self, Instruction};

    /// Makes a filter that answers one call with EPERM.
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
        assert_eq!(layer(Surroundings::Docker), None, "this machine has sockets");
        for (call, what) in [
            (libc::SYS_socket, "no socket can listen"),
            (libc::SYS_listen, "no socket can listen"),
            (libc::SYS_accept4, "a connection cannot be taken"),
        ] {
            // Load it in a thread of its own, whose alone it is.
            let filtered = std::thread::spawn(move || {
                bpf::load(&refusing(call)).expect("it loads");
                layer(Surroundings::Docker)
            });
            let found = filtered.join().expect("no panic").expect("a layer that is missing");
            assert_eq!(
                (found.state, found.name.as_str()),
                (LayerState::Missing, "listener of --http")
            );
            assert!(found.how.starts_with(what) && found.how.contains("EPERM"), "{found:?}");
            assert_eq!(found.remedy.as_deref(), Some(Surroundings::Docker.remedy()));
        }
    }
}
