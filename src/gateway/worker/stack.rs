//! The TCP stack of a worker: smoltcp over the cell's packet socket, with a stream for each
//! connection.
//!
//! smoltcp accepts IPv6 packets only for addresses of its interface. So the stack has one address
//! per family and one port per connection, and packets are rewritten to and from the remote
//! address.

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

/// Size in bytes of each of the two buffers of a connection.
const BUFFER: usize = 128 << 10;
/// Maximum time for the last segments of a closed connection.
const LINGER: Duration = Duration::from_secs(60);
/// First of the ports that identify connections within the stack.
const FIRST_PORT: u16 = 1_024;
/// Interval of keep-alive probes to a cell whose connection is half closed.
const KEEP_ALIVE_INTERVAL: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(10);
/// Maximum number of connections in the stack, including closing ones.
pub(crate) const MAX_CONNECTIONS: usize = 512;

/// A connection by its addresses and ports, as the cell sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ends {
    pub cell: SocketAddr,
    pub remote: SocketAddr,
}

/// The packet socket, and the cell's hardware address.
#[derive(Debug)]
pub(crate) struct Link {
    pub socket: AsyncFd<OwnedFd>,
    /// Source address of the cell's last frame.
    pub mac: Mutex<[u8; 6]>,
}

impl Link {
    /// Sends a frame built by `packet`. A frame that the kernel does not take now is lost, as on
    /// any network.
    pub(crate) fn send(&self, frame: Option<Vec<u8>>) {
        if let Some(mut frame) = frame {
            self.send_in_place(&mut frame, Sum::There);
        }
    }

    fn send_in_place(&self, frame: &mut [u8], sum: Sum) {
        if packet::front(frame, *lock(&self.mac), sum).is_some() {
            // TCP retransmits a lost frame; the other protocols may lose packets.
            send(self.socket.get_ref().as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT)
                .unwrap_or_default();
        }
    }
}

/// Registers a descriptor with the runtime.
///
/// # Errors
/// The errno of epoll_ctl(2).
#[expect(
    deprecated,
    reason = "the new function has a condition on types whose descriptor could change; that of OwnedFd cannot"
)]
pub(crate) fn async_fd(fd: OwnedFd, interest: Interest) -> Result<AsyncFd<OwnedFd>, Errno> {
    AsyncFd::with_interest(fd, interest).map_err(|error| cell::errno_of(&error))
}

/// The device of smoltcp: holds at most one received packet, and sends each packet at once.
struct Device {
    link: Arc<Link>,
    /// The frame that was read last.
    frame: Vec<u8>,
    arrived: Option<std::ops::Range<usize>>,
    out: Vec<u8>,
    /// Connections by their port within the stack.
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

/// Returns the source port of a segment from the stack.
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
        // `rewrite` fills in the IPv4 checksum; the TCP checksum is not needed, as no wire is
        // crossed.
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities
    }
}

#[derive(Debug, Clone, Copy)]
struct Connection {
    handle: SocketHandle,
    port: u16,
    /// Time at which the stream was dropped. Until then `handle` must stay this connection's.
    dropped: Option<Instant>,
    /// True once the cell has reset the connection.
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
    /// Makes an empty stack. `seed` determines the initial sequence numbers.
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
                // smoltcp has room for two addresses by default, so neither push fails.
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

    /// Reads the next frame into the buffer that [`Self::segment`] uses.
    ///
    /// # Errors
    /// EAGAIN if there is no frame; any other error means that the link is gone.
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

    /// Returns whether the addresses and ports of a connection can be used for a new one.
    pub(crate) fn reuse(&self, ends: &Ends) -> Reuse {
        let Some(connection) = self.connections.get(ends) else { return Reuse::Free };
        let socket = self.sockets.get::<tcp::Socket<'_>>(connection.handle);
        match (socket.state(), connection.dropped) {
            (State::TimeWait | State::Closed, Some(_)) => Reuse::Free,
            (State::TimeWait | State::Closed, None) => Reuse::Ending,
            _ => Reuse::Open,
        }
    }

    /// Passes the IP packet at `ip` in the last frame to its connection.
    pub(crate) fn segment(&mut self, ends: &Ends, ip: std::ops::Range<usize>) {
        let Some(Connection { port, handle, .. }) = self.connections.get(ends).copied() else {
            return;
        };
        let before = self.socket(handle).state();
        let local = SocketAddr::new(packet::of_family(GATEWAY, ends.remote.ip()), port);
        let rewritten = self.device.frame.get_mut(ip.clone());
        if rewritten.and_then(|packet| packet::rewrite(packet, None, Some(local))).is_some() {
            self.device.arrived = Some(ip);
            let now = self.now();
            self.interface.poll_ingress_single(now, &mut self.device, &mut self.sockets);
        }
        // From any other state only a reset leads to Closed.
        let in_order = [State::LastAck, State::Closing, State::TimeWait, State::Closed];
        if self.socket(handle).state() == State::Closed
            && !in_order.contains(&before)
            && let Some(connection) = self.connections.get_mut(ends)
        {
            connection.is_reset = true;
        }
    }

    /// Answers the SYN segment of a connection. Returns false if there is no room, or if the
    /// segment opens no connection.
    pub(crate) fn accept(&mut self, ends: Ends, syn: &[u8]) -> bool {
        let Some(port) = self.free_port() else { return false };
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        let local = packet::of_family(GATEWAY, ends.remote.ip());
        if socket.listen(IpListenEndpoint { addr: Some(local.into()), port }).is_err() {
            return false;
        }
        self.forget(&ends);
        let handle = self.sockets.add(socket);
        self.connections.insert(ends, Connection { handle, port, dropped: None, is_reset: false });
        self.device.ports.insert(port, ends);
        let end = HEAD.saturating_add(syn.len());
        if let Some(room) = self.device.frame.get_mut(HEAD..end) {
            room.copy_from_slice(syn);
            self.segment(&ends, HEAD..end);
        }
        let accepted = self.sockets.get::<tcp::Socket<'_>>(handle).state() == State::SynReceived;
        if !accepted {
            self.forget(&ends);
        }
        accepted
    }

    fn free_port(&mut self) -> Option<u16> {
        if self.connections.len() >= MAX_CONNECTIONS {
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

    /// Removes a connection without notifying the cell.
    fn forget(&mut self, ends: &Ends) {
        if let Some(connection) = self.connections.remove(ends) {
            self.device.ports.remove(&connection.port);
            self.sockets.remove(connection.handle);
        }
    }

    /// Sends pending segments. Returns the time after which it must be called again.
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
        let lingers = self.connections.values().any(|connection| connection.dropped.is_some());
        let sweep = lingers.then_some(LINGER);
        delay.into_iter().chain(sweep).min()
    }

    /// Ends connections whose stream was dropped.
    fn sweep(&mut self) {
        let mut over = Vec::new();
        for (ends, connection) in &self.connections {
            let Some(dropped) = connection.dropped else { continue };
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(connection.handle);
            if socket.state() == State::Closed || socket.state() == State::Listen {
                over.push(*ends);
            } else if dropped.elapsed() > LINGER {
                // The next turn sends the reset to the cell.
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

/// Locks a mutex. A worker has one thread, so the lock is free; a panic elsewhere leaves the
/// contents valid.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of a connection whose addresses and ports the cell wants to use for a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// Unused, or in TIME_WAIT.
    Free,
    /// The connection is over, but its stream does not know it yet.
    Ending,
    Open,
}

/// The cell's side of a connection.
#[derive(Debug)]
pub(crate) struct CellStream {
    stack: Arc<Mutex<Stack>>,
    /// Wakes the task that calls [`Stack::turn`].
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
    /// Answers the segment that opens a connection. Returns `None` if it cannot be opened.
    pub(crate) fn accept(
        stack: &Arc<Mutex<Stack>>,
        poke: &Arc<Notify>,
        ends: Ends,
        syn: &[u8],
    ) -> Option<Self> {
        let mut locked = lock(stack);
        if !locked.accept(ends, syn) {
            return None;
        }
        let handle = locked.connections.get(&ends)?.handle;
        drop(locked);
        poke.notify_one();
        Some(Self { stack: Arc::clone(stack), poke: Arc::clone(poke), handle, ends })
    }

    /// Waits until the cell has acknowledged the answer and the connection is established.
    pub(crate) async fn established(&self) -> io::Result<()> {
        std::future::poll_fn(|context| {
            let mut stack = lock(&self.stack);
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
        let mut stack = lock(&self.stack);
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

    /// Waits until bytes of the cell can be read, or the cell has finished.
    pub(crate) async fn readable(&self) -> io::Result<Ready> {
        std::future::poll_fn(|context| self.poll_readable(context)).await
    }

    /// Waits for more bytes than the stack holds: true once there are, false if no more can come.
    pub(crate) fn poll_more(&self, context: &Context<'_>) -> Poll<bool> {
        let mut stack = lock(&self.stack);
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
        let mut stack = lock(&self.stack);
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

    /// Waits until bytes to the cell can be written.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll_writable(context)).await
    }

    /// Waits until the cell has reset the connection. Only one task is woken, so this must be
    /// awaited by the task that reads the stream.
    pub(crate) fn reset(&self) -> impl Future<Output = ()> + use<> {
        let stack = Arc::clone(&self.stack);
        let ends = self.ends;
        let handle = self.handle;
        std::future::poll_fn(move |context| {
            let mut stack = lock(&stack);
            if stack.connections.get(&ends).is_none_or(|connection| connection.is_reset) {
                return Poll::Ready(());
            }
            stack.socket(handle).register_recv_waker(context.waker());
            Poll::Pending
        })
    }

    /// Sends keep-alive probes from now on; a cell that no longer has the connection answers with a
    /// reset.
    pub(crate) fn enable_keep_alive(&self) {
        lock(&self.stack).socket(self.handle).set_keep_alive(Some(KEEP_ALIVE_INTERVAL));
        self.poke.notify_one();
    }

    /// Passes received bytes of the cell to `take`, which returns how many it took.
    pub(crate) fn receive<R>(&self, take: impl FnOnce(&mut [u8]) -> (usize, R)) -> io::Result<R> {
        let result = lock(&self.stack).socket(self.handle).recv(take).map_err(|_| reset());
        // The window may have opened, which the next turn announces.
        self.poke.notify_one();
        result
    }

    /// Passes free space for bytes to the cell to `fill`, which returns how many it wrote.
    pub(crate) fn send<R>(&self, fill: impl FnOnce(&mut [u8]) -> (usize, R)) -> io::Result<R> {
        let result = lock(&self.stack).socket(self.handle).send(fill).map_err(|_| reset());
        self.poke.notify_one();
        result
    }

    /// Passes received bytes to `look` without consuming them.
    pub(crate) fn peek<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R {
        let mut stack = lock(&self.stack);
        let socket = stack.socket(self.handle);
        look(socket.peek(BUFFER).unwrap_or_default())
    }

    /// Closes the direction to the cell.
    pub(crate) fn finish(&self) {
        lock(&self.stack).socket(self.handle).close();
        self.poke.notify_one();
    }

    /// Ends the connection with a reset.
    pub(crate) fn abort(&self) {
        lock(&self.stack).socket(self.handle).abort();
        self.poke.notify_one();
    }
}

impl Drop for CellStream {
    fn drop(&mut self) {
        let mut stack = lock(&self.stack);
        let socket = stack.socket(self.handle);
        // The stream was not finished, so the connection did not end in order.
        if matches!(socket.state(), State::Established | State::CloseWait | State::SynReceived) {
            socket.abort();
        }
        if let Some(connection) = stack.connections.get_mut(&self.ends) {
            connection.dropped = Some(Instant::now());
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
