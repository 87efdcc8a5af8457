//! MCP over raw TCP, one message a line, for clients of an older server. Each connection is a session of its own.
//!
//! This form has no place for a token, so it is served on loopback alone, and only while cells have nothing of the host.
//! A web page can make a browser send requests to ports of its machine: their first byte is a letter, where a message
//! begins with a brace. At any other byte the connection is closed, before anything is taken.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_util::task::TaskTracker;

use mcp::lines::{Ends, QUIET};
use mcp::serve::{self, Offer};
use policy::Principal;
use service::Executor;

/// Connections at once: each may hold one line of the longest kind.
const CONNECTIONS: usize = 16;
/// Time for the first byte.
const FIRST: Duration = Duration::from_secs(10);
/// Time without progress in which a client may leave an answer unread.
const UNREAD: Duration = Duration::from_secs(30);
/// Name of the clients in policies and in the audit log.
pub const CLIENT: &str = "tcp";

/// A socket that listens, and the addresses that may connect; all if there are none.
#[derive(Debug)]
pub struct LineListener {
    pub socket: std::net::TcpListener,
    pub allowed: Vec<IpNet>,
}

/// Serves connections until `ends` says so. Calls in flight have the time that standard input leaves them.
///
/// # Errors
/// A socket that cannot be listened to.
pub async fn serve(
    listener: LineListener,
    executor: Arc<Executor>,
    offer: Offer,
    ends: Ends,
) -> io::Result<()> {
    let LineListener { socket, allowed } = listener;
    socket.set_nonblocking(true)?;
    let socket = TcpListener::from_std(socket)?;
    let (places, all) = (Arc::new(Semaphore::new(CONNECTIONS)), TaskTracker::new());
    loop {
        let taken = tokio::select! {
            taken = socket.accept() => taken,
            () = ends.ending() => break,
        };
        let (stream, from) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if !admits(&allowed, from) {
            tracing::warn!(address = %from.ip(), "an address that is not allowed");
            continue;
        }
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            tracing::warn!("a connection was refused: there are {CONNECTIONS} already");
            continue;
        };
        let served = connection(stream, Arc::clone(&executor), offer.clone(), ends.clone());
        all.spawn(async move {
            served.await;
            drop(place);
        });
    }
    all.close();
    all.wait().await;
    Ok(())
}

fn admits(allowed: &[IpNet], from: SocketAddr) -> bool {
    let ip = from.ip().to_canonical();
    allowed.is_empty() || allowed.iter().any(|net| net.contains(&ip))
}

async fn connection(stream: TcpStream, executor: Arc<Executor>, offer: Offer, ends: Ends) {
    let mut first = [0; 1];
    let peeked = tokio::select! {
        peeked = timeout(FIRST, stream.peek(&mut first)) => peeked,
        () = ends.ending() => return,
    };
    match (peeked, first) {
        (Ok(Ok(1)), [b'{' | b'[']) => {}
        (Ok(Ok(1)), _) => return tracing::warn!("a connection that begins with no message"),
        _ => return,
    }
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "small answers may be slow");
    }
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(UNREAD));
    let (reader, writer) = tokio::io::split(Box::pin(stream));
    let backend = executor.scope(Principal::named(CLIENT));
    let own = ends.of_a_connection(QUIET);
    if let Err(error) = serve::streams((backend, offer), reader, writer, own).await {
        tracing::debug!(%error, "a connection ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_admitted_by_the_list_and_by_an_empty_one() {
        let from = |text: &str| text.parse().expect("an address");
        let nets = ["127.0.0.0/8".parse().expect("a net")];
        assert!(admits(&[], from("127.0.0.1:5")) && admits(&nets, from("127.0.0.1:5")));
        assert!(admits(&nets, from("[::ffff:127.0.0.1]:5")));
        assert!(!admits(&nets, from("[::1]:5")) && !admits(&nets, from("10.0.0.1:5")));
    }
}
