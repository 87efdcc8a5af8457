//! The TCP of connections: smoltcp over the cell's packet socket, and a stream for each connection.
//!
//! smoltcp takes IPv6 packets only for addresses that its interface has. So it sees one address of its own per
//! family and a port per connection, and the remote address is put into packets on their way in and out.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{self, State};
use smoltcp::wire::{HardwareAddress, IpCidr, IpListenEndpoint};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::sync::Notify;

use super::packet::{self, GATEWAY, HEAD, MTU, Sum};

/// Bytes of each of the two buffers of a connection.
const BUFFER: usize = 128 << 10;
/// Time that a closed connection may take for its last segments.
const LINGER: Duration = Duration::from_secs(60);
/// First of the ports by which the stack knows connections.
const FIRST_PORT: u16 = 1_024;
/// Time between two questions to the cell if it still has a connection of which it has closed its direction.
const ALIVE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(10);
/// Most connections that the stack holds, closing ones too.
pub(crate) const MOST: usize = 512;

/// A connection as the cell knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ends {
    pub cell: SocketAddr,
    pub remote: SocketAddr,
}

/// The packet socket, and the hardware address behind it.
#[derive(Debug)]
pub(crate) struct Link {
    pub socket: AsyncFd<OwnedFd>,
    /// Address that the cell's last frame came from.
    pub mac: Mutex<[u8; 6]>,
}

impl Link {
    /// Sends a frame made by `packet`. One that the kernel does not take now is lost, as on any network.
    pub(crate) fn send(&self, frame: Option<Vec<u8>>) {
        if let Some(mut frame) = frame {
            self.send_in_place(&mut frame, Sum::There);
        }
    }

    fn send_in_place(&self, frame: &mut [u8], sum: Sum) {
        if packet::front(frame, *hold(&self.mac), sum).is_some() {
            // Lost frames are sent anew by TCP, and may be lost by the others.
            send(self.socket.get_ref().as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT)
                .unwrap_or_default();
        }
    }
}

/// Makes a descriptor one that the runtime waits for.
///
/// # Errors
/// The errno of epoll_ctl(2).
#[expect(
    deprecated,
    reason = "the new function has a condition on types whose descriptor could change; that of OwnedFd cannot"
)]
pub(crate) fn waited(fd: OwnedFd, interest: Interest) -> Result<AsyncFd<OwnedFd>, Errno> {
    AsyncFd::with_interest(fd, interest).map_err(|error| cell::errno_of(&error))
}

/// The device of smoltcp: at most one packet has arrived at a time, and each one sent goes out at once.
struct Device {
    link: Arc<Link>,
    /// Frame that was read last.
    frame: Vec<u8>,
    arrived: Option<std::ops::Range<usize>>,
    out: Vec<u8>,
    /// Connections by the ports by which the stack knows them.
    ports: HashMap<u16, Ends>,
}

struct Received<'a>(&'a [u8]);

struct Sender<'a> {
    link: &'a Link,
    out: &'a mut Vec<u8>,
    ports: &'a HashMap<u16, Ends>,
}

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl phy::TxToken for Sender<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        self.out.resize(HEAD.saturating_add(length), 0);
        let ip = self.out.get_mut(HEAD..).unwrap_or_default();
        let result = f(ip);
        let port = source_port(ip).unwrap_or_default();
        if let Some(ends) = self.ports.get(&port) {
            let done = packet::rewrite(ip, Some(ends.remote), Some(ends.cell));
            if done.is_some() {
                self.link.send_in_place(self.out, Sum::LeftOut);
            }
        }
        result
    }
}

/// Returns the port that a segment of the stack comes from.
fn source_port(ip: &[u8]) -> Option<u16> {
    let start = if ip.first()? >> 4 == 4 { 20 } else { 40 };
    Some(u16::from_be_bytes(ip.get(start..start + 2)?.try_into().ok()?))
}

impl phy::Device for Device {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Sender<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Received<'_>, Sender<'_>)> {
        let packet = self.frame.get(self.arrived.take()?)?;
        let sender = Sender { link: &self.link, out: &mut self.out, ports: &self.ports };
        Some((Received(packet), sender))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Sender<'_>> {
        Some(Sender { link: &self.link, out: &mut self.out, ports: &self.ports })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        // `rewrite` fills in that of IPv4; that of TCP crosses no wire.
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities
    }
}

#[derive(Debug, Clone, Copy)]
struct Connection {
    handle: SocketHandle,
    port: u16,
    /// Time at which the stream was let go of. Until then the stream has the handle, which must stay this connection's.
    left: Option<Instant>,
    /// True once the cell has reset it.
    is_reset: bool,
}

/// All connections of a cell.
pub(crate) struct Stack {
    device: Device,
    interface: Interface,
    sockets: SocketSet<'static>,
    connections: HashMap<Ends, Connection>,
    next_port: u16,
    started: Instant,
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stack").field("connections", &self.connections).finish_non_exhaustive()
    }
}

impl Stack {
    /// Makes a stack without connections. `seed` decides sequence numbers.
    pub(crate) fn new(link: Arc<Link>, seed: u64) -> Self {
        let mut device = Device {
            link,
            frame: vec![0; HEAD + MTU + 1],
            arrived: None,
            out: Vec::with_capacity(HEAD + MTU),
            ports: HashMap::new(),
        };
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface =
            Interface::new(config, &mut device, smoltcp::time::Instant::from_millis(0));
        interface.update_ip_addrs(|addresses| {
            for (address, prefix) in GATEWAY.into_iter().zip([24, 64]) {
                // There is room for two by default.
                addresses.push(IpCidr::new(address.into(), prefix)).unwrap_or_default();
            }
        });
        Self {
            device,
            interface,
            sockets: SocketSet::new(Vec::new()),
            connections: HashMap::new(),
            next_port: FIRST_PORT,
            started: Instant::now(),
        }
    }

    fn now(&self) -> smoltcp::time::Instant {
        let micros = i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX);
        smoltcp::time::Instant::from_micros(micros)
    }

    /// Reads the next frame into the place from which [`Self::segment`] takes it.
    ///
    /// # Errors
    /// EAGAIN: there is none. Any other: the link is gone.
    pub(crate) fn read(&mut self) -> Result<usize, Errno> {
        let socket = self.device.link.socket.get_ref().as_raw_fd();
        recv(socket, &mut self.device.frame, MsgFlags::MSG_DONTWAIT)
    }

    /// Returns the first `length` bytes of the frame that was read last.
    pub(crate) fn frame(&self, length: usize) -> &[u8] {
        self.device.frame.get(..length).unwrap_or_default()
    }

    pub(crate) fn has(&self, ends: &Ends) -> bool {
        self.connections.contains_key(ends)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Returns the state in which a connection is for a segment that would open it.
    pub(crate) fn reuse(&self, ends: &Ends) -> Reuse {
        let Some(connection) = self.connections.get(ends) else { return Reuse::Free };
        let socket = self.sockets.get::<tcp::Socket<'_>>(connection.handle);
        match (socket.state(), connection.left) {
            (State::TimeWait | State::Closed, Some(_)) => Reuse::Free,
            (State::TimeWait | State::Closed, None) => Reuse::Ending,
            _ => Reuse::Open,
        }
    }

    /// Gives the frame that was read last, whose IP packet is at `ip`, to the connection.
    pub(crate) fn segment(&mut self, ends: &Ends, ip: std::ops::Range<usize>) {
        let Some(Connection { port, handle, .. }) = self.connections.get(ends).copied() else {
            return;
        };
        let before = self.socket(handle).state();
        let own = SocketAddr::new(packet::of_family(GATEWAY, ends.remote.ip()), port);
        let rewritten = self.device.frame.get_mut(ip.clone());
        if rewritten.and_then(|packet| packet::rewrite(packet, None, Some(own))).is_some() {
            self.device.arrived = Some(ip);
            let now = self.now();
            self.interface.poll_ingress_single(now, &mut self.device, &mut self.sockets);
        }
        // In order it is closed from these states alone.
        let in_order = [State::LastAck, State::Closing, State::TimeWait, State::Closed];
        if self.socket(handle).state() == State::Closed
            && !in_order.contains(&before)
            && let Some(connection) = self.connections.get_mut(ends)
        {
            connection.is_reset = true;
        }
    }

    /// Answers the first segment of a connection, an IP packet. Returns false if there is no room, or the segment
    /// opens no connection.
    pub(crate) fn accept(&mut self, ends: Ends, syn: &[u8]) -> bool {
        let Some(port) = self.free_port() else { return false };
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        let own = packet::of_family(GATEWAY, ends.remote.ip());
        if socket.listen(IpListenEndpoint { addr: Some(own.into()), port }).is_err() {
            return false;
        }
        self.forget(&ends);
        let handle = self.sockets.add(socket);
        self.connections.insert(ends, Connection { handle, port, left: None, is_reset: false });
        self.device.ports.insert(port, ends);
        let end = HEAD.saturating_add(syn.len());
        if let Some(room) = self.device.frame.get_mut(HEAD..end) {
            room.copy_from_slice(syn);
            self.segment(&ends, HEAD..end);
        }
        let took = self.sockets.get::<tcp::Socket<'_>>(handle).state() == State::SynReceived;
        if !took {
            self.forget(&ends);
        }
        took
    }

    fn free_port(&mut self) -> Option<u16> {
        if self.connections.len() >= MOST {
            return None;
        }
        loop {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
            if !self.device.ports.contains_key(&port) {
                return Some(port);
            }
        }
    }

    /// Removes a connection without a word to the cell.
    fn forget(&mut self, ends: &Ends) {
        if let Some(connection) = self.connections.remove(ends) {
            self.device.ports.remove(&connection.port);
            self.sockets.remove(connection.handle);
        }
    }

    /// Sends what is to be sent. Returns the time until it must be called again at the latest.
    pub(crate) fn turn(&mut self) -> Option<Duration> {
        let now = self.now();
        loop {
            let result = self.interface.poll_egress(now, &mut self.device, &mut self.sockets);
            if result == smoltcp::iface::PollResult::None {
                break;
            }
        }
        self.sweep();
        let delay = self.interface.poll_delay(now, &self.sockets).map(Duration::from);
        let lingers = self.connections.values().any(|connection| connection.left.is_some());
        let sweep = lingers.then_some(LINGER);
        delay.into_iter().chain(sweep).min()
    }

    /// Ends connections that nobody holds any more.
    fn sweep(&mut self) {
        let mut over = Vec::new();
        for (ends, connection) in &self.connections {
            let Some(left) = connection.left else { continue };
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(connection.handle);
            if socket.state() == State::Closed || socket.state() == State::Listen {
                over.push(*ends);
            } else if left.elapsed() > LINGER {
                // The segment that tells the cell goes out with the next turn.
                socket.abort();
            }
        }
        for ends in over {
            self.forget(&ends);
        }
    }

    fn socket(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }
}

/// Takes a lock. One thread runs a worker, so it is free; a panic elsewhere does not make its contents unsafe.
pub(crate) fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state in which ends of a connection are that the cell would use for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// Nothing has them, or late segments alone.
    Free,
    /// Their connection is over, and its stream does not know it yet.
    Ending,
    Open,
}

/// The cell's side of a connection.
#[derive(Debug)]
pub(crate) struct CellStream {
    stack: Arc<Mutex<Stack>>,
    /// Wakes whoever calls [`Stack::turn`].
    poke: Arc<Notify>,
    handle: SocketHandle,
    ends: Ends,
}

/// State of one direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ready {
    Yes,
    /// The other side has closed this direction in order.
    Finished,
}

impl CellStream {
    /// Answers the segment that opens a connection. Returns nothing if it cannot be opened.
    pub(crate) fn accept(
        stack: &Arc<Mutex<Stack>>,
        poke: &Arc<Notify>,
        ends: Ends,
        syn: &[u8],
    ) -> Option<Self> {
        let mut held = hold(stack);
        if !held.accept(ends, syn) {
            return None;
        }
        let handle = held.connections.get(&ends)?.handle;
        drop(held);
        poke.notify_one();
        Some(Self { stack: Arc::clone(stack), poke: Arc::clone(poke), handle, ends })
    }

    /// Waits until the cell has answered in turn: there is a connection.
    pub(crate) async fn established(&self) -> io::Result<()> {
        std::future::poll_fn(|context| {
            let mut stack = hold(&self.stack);
            let socket = stack.socket(self.handle);
            if socket.state() == State::SynReceived {
                socket.register_send_waker(context.waker());
                return Poll::Pending;
            }
            let over = matches!(socket.state(), State::Closed | State::Listen);
            Poll::Ready(if over { Err(reset()) } else { Ok(()) })
        })
        .await
    }

    pub(crate) fn poll_readable(&self, context: &Context<'_>) -> Poll<io::Result<Ready>> {
        let mut stack = hold(&self.stack);
        let socket = stack.socket(self.handle);
        if socket.can_recv() {
            return Poll::Ready(Ok(Ready::Yes));
        }
        if socket.may_recv() || socket.state() == State::SynReceived {
            socket.register_recv_waker(context.waker());
            return Poll::Pending;
        }
        Poll::Ready(match socket.recv(|_| (0, ())) {
            Err(tcp::RecvError::Finished) => Ok(Ready::Finished),
            Ok(()) | Err(tcp::RecvError::InvalidState) => Err(reset()),
        })
    }

    /// Waits for bytes of the cell, or for their end.
    pub(crate) async fn readable(&self) -> io::Result<Ready> {
        std::future::poll_fn(|context| self.poll_readable(context)).await
    }

    /// Waits for more bytes than the stack holds: true once there are, false if there will be none.
    pub(crate) fn poll_more(&self, context: &Context<'_>) -> Poll<bool> {
        let mut stack = hold(&self.stack);
        let socket = stack.socket(self.handle);
        let full = socket.recv_queue() >= socket.recv_capacity();
        let open = matches!(socket.state(), State::Established | State::FinWait1 | State::FinWait2);
        if !open || full {
            return Poll::Ready(false);
        }
        socket.register_recv_waker(context.waker());
        Poll::Pending
    }

    fn poll_writable(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut stack = hold(&self.stack);
        let socket = stack.socket(self.handle);
        if socket.can_send() {
            return Poll::Ready(Ok(()));
        }
        if socket.may_send() || socket.state() == State::SynReceived {
            socket.register_send_waker(context.waker());
            return Poll::Pending;
        }
        Poll::Ready(Err(reset()))
    }

    /// Waits for room for bytes to the cell.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll_writable(context)).await
    }

    /// Waits until the cell has reset the connection. Must be waited for by the task that reads the stream, as one task
    /// is woken.
    pub(crate) fn reset(&self) -> impl Future<Output = ()> + use<> {
        let (stack, ends, handle) = (Arc::clone(&self.stack), self.ends, self.handle);
        std::future::poll_fn(move |context| {
            let mut stack = hold(&stack);
            if stack.connections.get(&ends).is_none_or(|connection| connection.is_reset) {
                return Poll::Ready(());
            }
            stack.socket(handle).register_recv_waker(context.waker());
            Poll::Pending
        })
    }

    /// Asks the cell from time to time if it still has the connection; it resets one that it has not.
    pub(crate) fn keep_asking(&self) {
        hold(&self.stack).socket(self.handle).set_keep_alive(Some(ALIVE));
        self.poke.notify_one();
    }

    /// Hands bytes of the cell to `take`, which says how many it took.
    pub(crate) fn receive<R>(&self, take: impl FnOnce(&mut [u8]) -> (usize, R)) -> io::Result<R> {
        let result = hold(&self.stack).socket(self.handle).recv(take).map_err(|_| reset());
        // A window that has opened is to be told.
        self.poke.notify_one();
        result
    }

    /// Hands room for bytes to the cell to `fill`, which says how many it wrote.
    pub(crate) fn send<R>(&self, fill: impl FnOnce(&mut [u8]) -> (usize, R)) -> io::Result<R> {
        let result = hold(&self.stack).socket(self.handle).send(fill).map_err(|_| reset());
        self.poke.notify_one();
        result
    }

    /// Looks at the bytes of the cell that were not yet received, which stay.
    pub(crate) fn peek<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R {
        let mut stack = hold(&self.stack);
        let socket = stack.socket(self.handle);
        look(socket.peek(BUFFER).unwrap_or_default())
    }

    /// Tells the cell that there is nothing more to come.
    pub(crate) fn finish(&self) {
        hold(&self.stack).socket(self.handle).close();
        self.poke.notify_one();
    }

    /// Ends the connection with a reset.
    pub(crate) fn abort(&self) {
        hold(&self.stack).socket(self.handle).abort();
        self.poke.notify_one();
    }
}

impl Drop for CellStream {
    fn drop(&mut self) {
        let mut stack = hold(&self.stack);
        let socket = stack.socket(self.handle);
        // Nothing was said to end it, so it did not end in order.
        if matches!(socket.state(), State::Established | State::CloseWait | State::SynReceived) {
            socket.abort();
        }
        if let Some(connection) = stack.connections.get_mut(&self.ends) {
            connection.left = Some(Instant::now());
        }
        self.poke.notify_one();
    }
}

impl AsyncRead for CellStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match ready!(self.poll_readable(context))? {
            Ready::Finished => Poll::Ready(Ok(())),
            Ready::Yes => Poll::Ready(self.receive(|bytes| {
                let length = bytes.len().min(buffer.remaining());
                buffer.put_slice(bytes.get(..length).unwrap_or_default());
                (length, ())
            })),
        }
    }
}

impl AsyncWrite for CellStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_writable(context))?;
        Poll::Ready(self.send(|room| {
            let length = bytes.len().min(room.len());
            if let (Some(to), Some(from)) = (room.get_mut(..length), bytes.get(..length)) {
                to.copy_from_slice(from);
            }
            (length, length)
        }))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        Poll::Ready(Ok(()))
    }
}

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}
