//! Gets sockets for a worker: asks the gateway, which returns them connected.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream as StdTcpStream};
use std::os::fd::OwnedFd;

use model::egress::Protocol;
use model::egress::frames::{MAX_ADDRESSES, SocketAnswer, SocketRequest, decode, encode};
use nix::errno::Errno;
use sys::socket::{PacketWait, receive, send_bytes};
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{mpsc, oneshot};

/// Maximum size of an answer in bytes.
const MAX_ANSWER_BYTES: usize = 4_096;
/// Maximum number of queued requests; further tasks wait for room.
const MAX_QUEUED: usize = 64;

/// Why the gateway returned no socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoSocket {
    /// The gateway does not let the cell reach the destination.
    Refused(String),
    /// The host has no route to the destination.
    NoRoute(Errno),
    Failed(Errno),
}

impl From<NoSocket> for io::Error {
    fn from(no_socket: NoSocket) -> Self {
        match no_socket {
            NoSocket::Refused(_) => io::ErrorKind::PermissionDenied.into(),
            NoSocket::NoRoute(errno) | NoSocket::Failed(errno) => errno.into(),
        }
    }
}

/// An answer, with its socket if any.
type AnswerWithSocket = (SocketAnswer, Option<OwnedFd>);
/// A request, with the sender for its answer.
type PendingRequest = (SocketRequest, oneshot::Sender<AnswerWithSocket>);

/// Source of connected sockets, shared by the tasks of a worker.
#[derive(Debug, Clone)]
pub(crate) struct SocketSource(mpsc::Sender<PendingRequest>);

impl SocketSource {
    /// Serves tasks over a link to the gateway. Must run inside the runtime.
    pub(crate) fn new(link: AsyncFd<OwnedFd>) -> Self {
        let (sender, requests) = mpsc::channel(MAX_QUEUED);
        tokio::spawn(serve(link, requests));
        Self(sender)
    }

    async fn ask(&self, request: SocketRequest) -> AnswerWithSocket {
        let gone = (SocketAnswer::Failed { errno: sys::raw(Errno::EPIPE) }, None);
        let (sender, answer) = oneshot::channel();
        if self.0.send((request, sender)).await.is_err() {
            return gone;
        }
        answer.await.unwrap_or(gone)
    }

    async fn socket(&self, request: SocketRequest) -> Result<OwnedFd, NoSocket> {
        match self.ask(request).await {
            (SocketAnswer::Socket, Some(socket)) => Ok(socket),
            // The descriptor can be lost in flight if the worker has reached its limit.
            (SocketAnswer::Socket, None) => Err(NoSocket::Failed(Errno::EMFILE)),
            (SocketAnswer::Refused { why }, _) => Err(NoSocket::Refused(why)),
            (SocketAnswer::NoRoute { errno }, _) => Err(NoSocket::NoRoute(Errno::from_raw(errno))),
            (SocketAnswer::Failed { errno }, _) => Err(NoSocket::Failed(Errno::from_raw(errno))),
            (SocketAnswer::Own { .. }, _) => Err(NoSocket::Failed(Errno::EPROTO)),
        }
    }

    /// Returns a TCP connection to a destination, once it is established.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(crate) async fn stream(&self, to: SocketAddr) -> Result<TcpStream, NoSocket> {
        let request = SocketRequest::Destination { protocol: Protocol::Tcp, to };
        established(self.socket(request).await?).await
    }

    /// Returns a socket for datagrams or echo requests, connected to a destination.
    ///
    /// # Errors
    /// Why there is no socket.
    pub(crate) async fn datagrams(
        &self,
        protocol: Protocol,
        to: SocketAddr,
    ) -> Result<OwnedFd, NoSocket> {
        self.socket(SocketRequest::Destination { protocol, to }).await
    }

    /// Returns a UDP socket to a resolver, by its index.
    ///
    /// # Errors
    /// The error of the socket.
    pub(crate) async fn resolver(&self, index: u8) -> io::Result<UdpSocket> {
        let request = SocketRequest::Resolver { protocol: Protocol::Udp, index };
        UdpSocket::from_std(self.socket(request).await?.into())
    }

    /// Returns a TCP connection to a resolver, by its index.
    ///
    /// # Errors
    /// The error of the connection.
    pub(crate) async fn resolver_stream(&self, index: u8) -> io::Result<TcpStream> {
        let request = SocketRequest::Resolver { protocol: Protocol::Tcp, index };
        Ok(established(self.socket(request).await?).await?)
    }

    /// Returns those addresses that are the host's own, or may be. Addresses beyond the maximum of
    /// one request count as the host's own.
    pub(crate) async fn host_addresses(&self, addresses: &[IpAddr]) -> Vec<IpAddr> {
        let queried: Vec<IpAddr> = addresses.iter().take(MAX_ADDRESSES).copied().collect();
        let beyond = addresses.iter().skip(MAX_ADDRESSES).copied();
        let are_own = match self.ask(SocketRequest::Own { addresses: queried.clone() }).await {
            (SocketAnswer::Own { own }, _) if own.len() == queried.len() => own,
            _ => vec![true; queried.len()],
        };
        let own = queried.into_iter().zip(are_own).filter(|(_, is_own)| *is_own);
        own.map(|(address, _)| address).chain(beyond).collect()
    }
}

/// Waits until the connection is established or has failed.
async fn established(socket: OwnedFd) -> Result<TcpStream, NoSocket> {
    let failed = |error: io::Error| NoSocket::Failed(cell::errno_of(&error));
    let stream = TcpStream::from_std(StdTcpStream::from(socket)).map_err(failed)?;
    stream.writable().await.map_err(failed)?;
    match stream.take_error().map_err(failed)? {
        Some(error) => Err(failed(error)),
        None => Ok(stream),
    }
}

/// Sends requests and hands out the answers, which arrive in the same order. Ends when the link
/// closes.
async fn serve(link: AsyncFd<OwnedFd>, mut requests: mpsc::Receiver<PendingRequest>) {
    let mut open: VecDeque<oneshot::Sender<AnswerWithSocket>> = VecDeque::new();
    let mut next: Option<PendingRequest> = None;
    loop {
        let progress = tokio::select! {
            ready = link.readable(), if !open.is_empty() => match ready {
                Ok(mut ready) => receive_answer(&link, &mut open).map(|more| if !more { ready.clear_ready() }),
                Err(_) => None,
            },
            request = requests.recv(), if next.is_none() => {
                next = request;
                next.as_ref().map(|_| ())
            },
            ready = link.writable(), if next.is_some() => match ready {
                Ok(mut ready) => send_request(&link, &mut next, &mut open)
                    .map(|sent| if !sent { ready.clear_ready() }),
                Err(_) => None,
            },
        };
        if progress.is_none() {
            return;
        }
    }
}

/// Sends a request. Returns `Some(false)` if the link has no room, and `None` if it is closed.
fn send_request(
    link: &AsyncFd<OwnedFd>,
    next: &mut Option<PendingRequest>,
    open: &mut VecDeque<oneshot::Sender<AnswerWithSocket>>,
) -> Option<bool> {
    let (request, answer) = next.take()?;
    let bytes = encode(&request).ok()?;
    match send_bytes(link.get_ref(), &bytes) {
        Ok(()) => {
            open.push_back(answer);
            Some(true)
        }
        Err(Errno::EAGAIN) => {
            *next = Some((request, answer));
            Some(false)
        }
        Err(_) => None,
    }
}

/// Hands out an answer. Returns `Some(false)` before it has come, and `None` if the link is
/// closed.
fn receive_answer(
    link: &AsyncFd<OwnedFd>,
    open: &mut VecDeque<oneshot::Sender<AnswerWithSocket>>,
) -> Option<bool> {
    let mut buffer = [0; MAX_ANSWER_BYTES];
    let mut received = match receive(link.get_ref(), &mut buffer, PacketWait::No) {
        Ok(received) if received.bytes > 0 => received,
        Err(Errno::EAGAIN) => return Some(false),
        Ok(_) | Err(_) => return None,
    };
    let answer = decode(buffer.get(..received.bytes)?).ok()?;
    let [socket, ..] = &mut received.fds;
    // A task that gave up has dropped its receiver; the socket is then closed here.
    open.pop_front()?.send((answer, socket.take())).map_err(drop).unwrap_or_default();
    Some(true)
}
