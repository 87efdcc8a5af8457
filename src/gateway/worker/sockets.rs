//! The worker's side of its sockets: it asks the gateway for each, and gets it connected.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream as StdTcpStream};
use std::os::fd::OwnedFd;

use model::egress::Protocol;
use model::egress::frames::{MOST_ADDRESSES, SocketAnswer, SocketRequest, decode, encode};
use nix::errno::Errno;
use sys::socket::{PacketWait, receive, send_bytes};
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{mpsc, oneshot};

/// Bytes of the longest answer.
const ANSWER_BYTES: usize = 4_096;
/// Most requests that wait for their turn; a task waits for room.
const WAITING: usize = 64;

/// The reason why there is no socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoSocket {
    /// The gateway does not let the cell reach it.
    Refused(String),
    /// The host has no route there.
    NoRoute(Errno),
    Failed(Errno),
}

impl From<NoSocket> for io::Error {
    fn from(none: NoSocket) -> Self {
        match none {
            NoSocket::Refused(_) => io::ErrorKind::PermissionDenied.into(),
            NoSocket::NoRoute(errno) | NoSocket::Failed(errno) => errno.into(),
        }
    }
}

/// An answer, with its socket.
type Answered = (SocketAnswer, Option<OwnedFd>);
/// A request, and where its answer goes.
type Asked = (SocketRequest, oneshot::Sender<Answered>);

/// The source of sockets; tasks share it.
#[derive(Debug, Clone)]
pub(crate) struct SocketSource(mpsc::Sender<Asked>);

impl SocketSource {
    /// Serves tasks by a link to the gateway. Must run inside the runtime.
    pub(crate) fn over(link: AsyncFd<OwnedFd>) -> Self {
        let (sender, asked) = mpsc::channel(WAITING);
        tokio::spawn(serve(link, asked));
        Self(sender)
    }

    async fn ask(&self, request: SocketRequest) -> Answered {
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
            // Descriptors can be lost on their way, where the worker may have no more.
            (SocketAnswer::Socket, None) => Err(NoSocket::Failed(Errno::EMFILE)),
            (SocketAnswer::Refused { why }, _) => Err(NoSocket::Refused(why)),
            (SocketAnswer::NoRoute { errno }, _) => Err(NoSocket::NoRoute(Errno::from_raw(errno))),
            (SocketAnswer::Failed { errno }, _) => Err(NoSocket::Failed(Errno::from_raw(errno))),
            (SocketAnswer::Own { .. }, _) => Err(NoSocket::Failed(Errno::EPROTO)),
        }
    }

    /// Returns a TCP connection to a destination, once it is there.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) async fn stream(&self, to: SocketAddr) -> Result<TcpStream, NoSocket> {
        let request = SocketRequest::Destination { protocol: Protocol::Tcp, to };
        established(self.socket(request).await?).await
    }

    /// Returns a socket of datagrams, or of echo requests, that is connected to a destination.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) async fn datagrams(
        &self,
        protocol: Protocol,
        to: SocketAddr,
    ) -> Result<OwnedFd, NoSocket> {
        self.socket(SocketRequest::Destination { protocol, to }).await
    }

    /// Returns a socket of datagrams to a resolver, by its index.
    ///
    /// # Errors
    /// Of the socket.
    pub(crate) async fn resolver(&self, index: u8) -> io::Result<UdpSocket> {
        let request = SocketRequest::Resolver { protocol: Protocol::Udp, index };
        UdpSocket::from_std(self.socket(request).await?.into())
    }

    /// Returns a connection to a resolver, by its index.
    ///
    /// # Errors
    /// Of the connection.
    pub(crate) async fn resolver_stream(&self, index: u8) -> io::Result<TcpStream> {
        let request = SocketRequest::Resolver { protocol: Protocol::Tcp, index };
        Ok(established(self.socket(request).await?).await?)
    }

    /// Returns those of the addresses that are the host's own, or may be. What is beyond the bound of one question is too.
    pub(crate) async fn own(&self, addresses: &[IpAddr]) -> Vec<IpAddr> {
        let asked: Vec<IpAddr> = addresses.iter().take(MOST_ADDRESSES).copied().collect();
        let beyond = addresses.iter().skip(MOST_ADDRESSES).copied();
        let own = match self.ask(SocketRequest::Own { addresses: asked.clone() }).await {
            (SocketAnswer::Own { own }, _) if own.len() == asked.len() => own,
            _ => vec![true; asked.len()],
        };
        let is_own = asked.into_iter().zip(own).filter(|(_, own)| *own);
        is_own.map(|(address, _)| address).chain(beyond).collect()
    }
}

/// Waits until the host has connected.
async fn established(socket: OwnedFd) -> Result<TcpStream, NoSocket> {
    let failed = |error: io::Error| NoSocket::Failed(cell::errno_of(&error));
    let stream = TcpStream::from_std(StdTcpStream::from(socket)).map_err(failed)?;
    stream.writable().await.map_err(failed)?;
    match stream.take_error().map_err(failed)? {
        Some(error) => Err(failed(error)),
        None => Ok(stream),
    }
}

/// Sends requests and hands out the answers, which come in the same order. Ends with the link.
async fn serve(link: AsyncFd<OwnedFd>, mut asked: mpsc::Receiver<Asked>) {
    let mut open: VecDeque<oneshot::Sender<Answered>> = VecDeque::new();
    let mut next: Option<Asked> = None;
    loop {
        let went_on = tokio::select! {
            ready = link.readable(), if !open.is_empty() => match ready {
                Ok(mut ready) => answers(&link, &mut open).map(|more| if !more { ready.clear_ready() }),
                Err(_) => None,
            },
            request = asked.recv(), if next.is_none() => {
                next = request;
                next.as_ref().map(|_| ())
            },
            ready = link.writable(), if next.is_some() => match ready {
                Ok(mut ready) => request(&link, &mut next, &mut open)
                    .map(|sent| if !sent { ready.clear_ready() }),
                Err(_) => None,
            },
        };
        if went_on.is_none() {
            return;
        }
    }
}

/// Sends a request. Returns false where the link has no room, and nothing where it is closed.
fn request(
    link: &AsyncFd<OwnedFd>,
    next: &mut Option<Asked>,
    open: &mut VecDeque<oneshot::Sender<Answered>>,
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

/// Hands out an answer. Returns false where there is none now, and nothing where the link is closed.
fn answers(
    link: &AsyncFd<OwnedFd>,
    open: &mut VecDeque<oneshot::Sender<Answered>>,
) -> Option<bool> {
    let mut buffer = [0; ANSWER_BYTES];
    let mut received = match receive(link.get_ref(), &mut buffer, PacketWait::No) {
        Ok(received) if received.bytes > 0 => received,
        Err(Errno::EAGAIN) => return Some(false),
        Ok(_) | Err(_) => return None,
    };
    let answer = decode(buffer.get(..received.bytes)?).ok()?;
    let [socket, ..] = &mut received.fds;
    // Whoever asked may have given up; the socket is closed then.
    open.pop_front()?.send((answer, socket.take())).map_err(drop).unwrap_or_default();
    Some(true)
}
