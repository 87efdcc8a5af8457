//! A worker: the network of one cell, in a process of its own.
//!
//! One thread and one runtime. [`Worker::drive`] reads the packets of the cell and the frames of the gateway; a task
//! carries each connection, flow and question, and counts it for the call in which it began. Locks are never held across a
//! wait.

pub(crate) mod account;
pub(crate) mod connection;
pub(crate) mod dns;
pub(crate) mod first_flight;
pub(crate) mod flows;
pub(crate) mod judge;
pub(crate) mod packet;
pub(crate) mod requests;
pub(crate) mod sockets;
pub(crate) mod stack;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model::egress::frames::{
    CallId, CellKey, FRAME_BYTES, FromGateway, ToGateway, decode, encode, encode_tally,
};
use model::egress::{Connection, ConnectionEnd, Egress, Only, Protocol};
use nix::errno::Errno;
use sys::socket::{PacketWait, receive_into, send_bytes};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, Semaphore, mpsc};

use crate::intercept::CellRequests;
use account::Account;
use connection::Opening;
use flows::{Flow, Outgoing};
use judge::{Judge, Refusal};
use packet::{Body, Packet, RESOLVER};
use sockets::SocketSource;
use stack::{CellStream, Ends, Link, Reuse, Stack, hold};

/// Most connections on their way. The cell sends the first segment of any more again.
const CONNECTING: usize = 512;
/// Most questions that are being answered.
const QUESTIONS: usize = 64;
/// Packets that are read in a row, before connections have their turn.
const IN_A_ROW: usize = 64;

/// Time in which connections of a cell that has ended may still send what its programs had written.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(2);
/// Time between two looks at such connections.
const TICK: Duration = Duration::from_millis(10);
/// Time for which a question about a call waits for datagrams that the call has sent. Shorter than the supervisor waits.
const ON_THEIR_WAY: Duration = Duration::from_millis(100);
/// Time between two looks at those.
const SHORT_TICK: Duration = Duration::from_millis(1);
/// Packets that are read before a question is answered or the worker ends, in units of [`IN_A_ROW`].
const BACKLOG: usize = 64;

/// Everything that a worker is made with.
#[derive(Debug)]
pub(crate) struct Parts {
    pub cell: CellKey,
    /// Packet socket on the cell's link.
    pub packets: OwnedFd,
    /// End of a pipe that hangs up when the cell's init has ended.
    pub lifeline: OwnedFd,
    /// Link to the gateway.
    pub gateway: OwnedFd,
    /// The one by which it gets sockets.
    pub sockets: OwnedFd,
    pub egress: Arc<Egress>,
    /// Number of resolvers that the gateway knows.
    pub resolvers: u8,
    pub hosts: Arc<Vec<(String, IpAddr)>>,
    pub begun: Begun,
    /// Judgement of requests.
    pub requests: CellRequests,
}

/// Descriptors of a worker beside its sockets: its links, its runtime, and what is on its way.
const OTHER_DESCRIPTORS: usize = 64;

impl Parts {
    /// Returns the most descriptors that the worker needs: for connections that are open, that are on their way, and to
    /// the resolver, for flows, and for questions, of which each may be asked again over a stream.
    pub(crate) fn most_descriptors(&self) -> u64 {
        let open = u64::from(self.egress.limits.connections);
        let own = [stack::MOST, CONNECTING, flows::MOST, 2 * QUESTIONS, OTHER_DESCRIPTORS];
        let own = own.into_iter().fold(0, usize::saturating_add);
        u64::try_from(own).unwrap_or(u64::MAX).saturating_add(open)
    }
}

/// Outcome of reading from the gateway's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    Read,
    /// The tally of a call is asked for.
    Asked(CallId),
    /// The cell is gone.
    Close,
    /// The gateway is gone.
    End,
}

/// Returns the time at which the worker of a cell that has just ended must end too.
fn last_words() -> Option<Instant> {
    Instant::now().checked_add(LAST_WORDS)
}

/// A call that has begun, and its narrowing.
#[derive(Debug, Clone)]
pub(crate) struct Begun {
    pub call: CallId,
    pub only: Option<Only>,
}

/// The state that the tasks of a worker share.
#[derive(Debug)]
pub(crate) struct Worker {
    cell: CellKey,
    stack: Arc<Mutex<Stack>>,
    /// Wakes [`Worker::drive`], where the stack has something to send.
    poke: Arc<Notify>,
    link: Arc<Link>,
    gateway: AsyncFd<OwnedFd>,
    judge: Mutex<Judge>,
    account: Mutex<Account>,
    connecting: Mutex<HashSet<Ends>>,
    /// The way to each flow; none to one that is to end.
    flows: Mutex<HashMap<Flow, Option<mpsc::Sender<Outgoing>>>>,
    questions: Semaphore,
    sockets: SocketSource,
    resolvers: u8,
    hosts: Arc<Vec<(String, IpAddr)>>,
    requests: CellRequests,
    /// Held once more by each datagram that the cell has sent and that is not on the network yet.
    unsent: Arc<()>,
}

/// Draws the number by which the stack's own are made.
///
/// # Errors
/// The errno of getrandom(2).
pub(crate) fn seed() -> Result<u64, Errno> {
    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Errno::from_raw(error.raw_os_error()))?;
    Ok(u64::from_ne_bytes(seed))
}

/// Serves a cell until it ends, or the gateway does. Must run inside the runtime.
///
/// # Errors
/// The errno of a descriptor that cannot be waited for.
pub(crate) async fn serve(parts: Parts, seed: u64) -> Result<(), Errno> {
    let waited = |fd: OwnedFd| stack::waited(fd, Interest::READABLE);
    let lifeline = waited(parts.lifeline)?;
    let link = Arc::new(Link { socket: waited(parts.packets)?, mac: Mutex::default() });
    let sockets = stack::waited(parts.sockets, Interest::READABLE.add(Interest::WRITABLE))?;
    let worker = Arc::new(Worker {
        cell: parts.cell,
        stack: Arc::new(Mutex::new(Stack::new(Arc::clone(&link), seed))),
        poke: Arc::default(),
        link,
        gateway: waited(parts.gateway)?,
        account: Mutex::new(Account::new(parts.egress.limits, parts.begun.call)),
        judge: Mutex::new(Judge::new(parts.egress)),
        connecting: Mutex::default(),
        flows: Mutex::default(),
        questions: Semaphore::new(QUESTIONS),
        sockets: SocketSource::over(sockets),
        resolvers: parts.resolvers,
        hosts: parts.hosts,
        requests: parts.requests,
        unsent: Arc::default(),
    });
    hold(&worker.judge).only = parts.begun.only;
    Arc::clone(&worker).drive(lifeline).await;
    worker.last_tally();
    Ok(())
}

impl Worker {
    async fn drive(self: Arc<Self>, lifeline: AsyncFd<OwnedFd>) {
        let mut next: Option<Duration> = None;
        let mut end: Option<Instant> = None;
        // Calls whose tally was asked for, and the time by which it must be told.
        let mut asked: Vec<(CallId, Instant)> = Vec::new();
        while end.is_none_or(|end| Instant::now() < end && self.has_last_words()) {
            let timer = async {
                match next {
                    Some(time) => tokio::time::sleep(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Frames come first: a call begins before its packets.
                biased;
                readable = self.gateway.readable() => {
                    let Ok(mut readable) = readable else { return };
                    match self.frame() {
                        Ok(Frame::Read) => {}
                        Ok(Frame::Asked(call)) => {
                            self.read_backlog();
                            asked.extend(Instant::now().checked_add(ON_THEIR_WAY).map(|by| (call, by)));
                        }
                        Ok(Frame::Close) => {
                            self.read_backlog();
                            end = end.or_else(last_words);
                        }
                        Ok(Frame::End) => return,
                        Err(Errno::EAGAIN) => readable.clear_ready(),
                        Err(_) => return,
                    }
                }
                // Nothing is ever written to it.
                _ = lifeline.readable(), if end.is_none() => {
                    self.read_backlog();
                    end = last_words();
                }
                readable = self.link.socket.readable() => {
                    let Ok(mut readable) = readable else { return };
                    match self.read() {
                        Ok(()) => {}
                        Err(Errno::EAGAIN) => readable.clear_ready(),
                        // The link went down with the cell's namespace.
                        Err(_) => return,
                    }
                }
                () = self.poke.notified() => {}
                () = timer => {}
            }
            next = hold(&self.stack).turn();
            if end.is_some() {
                next = Some(next.map_or(TICK, |next| next.min(TICK)));
            }
            tokio::task::yield_now().await;
            let waits = self.has_unsent();
            let now = Instant::now();
            for (call, _) in asked.extract_if(.., |(_, by)| !waits || *by <= now) {
                self.tell(call);
            }
            if !asked.is_empty() {
                next = Some(next.map_or(SHORT_TICK, |next| next.min(SHORT_TICK)));
            }
        }
        asked.into_iter().for_each(|(call, _)| self.tell(call));
        self.end_flows().await;
    }

    /// Ends the flows, so that each is told to the audit log.
    async fn end_flows(&self) {
        hold(&self.flows).values_mut().for_each(|packets| *packets = None);
        let began = Instant::now();
        // Each removes itself. One that waits for its turn under a limit is left.
        while !hold(&self.flows).is_empty() && began.elapsed() < ON_THEIR_WAY {
            tokio::time::sleep(SHORT_TICK).await;
        }
    }

    /// Returns true while something that the cell has sent is not on the network yet.
    fn has_last_words(&self) -> bool {
        hold(&self.stack).connections() > 0 || self.has_unsent()
    }

    fn has_unsent(&self) -> bool {
        Arc::strong_count(&self.unsent) > 1
    }

    /// Reads what the cell has sent so far, which belongs to the call that ends, or is its last.
    fn read_backlog(self: &Arc<Self>) {
        for _ in 0..BACKLOG {
            // Whatever cannot be read now shows where packets are waited for.
            if self.read().is_err() {
                return;
            }
        }
    }

    /// Reads a frame of the gateway.
    fn frame(&self) -> Result<Frame, Errno> {
        let mut buffer = Vec::with_capacity(FRAME_BYTES);
        let received = receive_into(self.gateway.get_ref(), &mut buffer, PacketWait::No)?;
        if received.bytes == 0 {
            return Ok(Frame::End);
        }
        let bytes = buffer.as_slice();
        match decode::<ToGateway>(bytes) {
            Ok(ToGateway::Begin { cell, call, only }) if cell == self.cell => {
                self.begin(Begun { call, only });
            }
            Ok(ToGateway::Ask { cell, call }) if cell == self.cell => {
                return Ok(Frame::Asked(call));
            }
            Ok(ToGateway::Close { cell }) if cell == self.cell => return Ok(Frame::Close),
            Ok(_) | Err(_) => {}
        }
        Ok(Frame::Read)
    }

    fn begin(&self, begun: Begun) {
        hold(&self.judge).only = begun.only;
        hold(&self.account).begin(begun.call);
    }

    /// Sends the tally of a call. The supervisor waits for it, so it is the one frame that is not dropped.
    fn tell(&self, call: CallId) {
        let tally = hold(&self.account).tally(call);
        if let Ok(frame) = encode_tally(self.cell, call, tally) {
            // A link that is full of audit lines is one that nobody reads: the supervisor goes on without.
            send_bytes(self.gateway.get_ref(), &frame).unwrap_or_default();
        }
    }

    /// Leaves the tally with the gateway, which may be asked for it when this process has ended.
    fn last_tally(&self) {
        let mut account = hold(&self.account);
        let call = account.call();
        let (cell, mut tally) = (self.cell, account.tally(call));
        drop(account);
        // Halved until it fits, as `encode_tally` does.
        while !tally.rows.is_empty() || !tally.denied.is_empty() {
            match encode(&FromGateway::Last { cell, call, tally: tally.clone() }) {
                Ok(_) => break,
                Err(_) => tally.halve(),
            }
        }
        if let Ok(frame) = encode(&FromGateway::Last { cell, call, tally }) {
            send_bytes(self.gateway.get_ref(), &frame).unwrap_or_default();
        }
    }

    /// Returns the call for which what begins now counts.
    pub(crate) fn call(&self) -> CallId {
        hold(&self.account).call()
    }

    /// Tells the audit log of a connection of a call. Left out where the link is full: the tally has the sums, and how many
    /// were left out.
    pub(crate) fn audit(&self, call: CallId, connection: Connection) {
        let frame = encode(&FromGateway::Connection { cell: self.cell, call, connection });
        let sent = frame.is_ok_and(|frame| send_bytes(self.gateway.get_ref(), &frame).is_ok());
        if !sent {
            hold(&self.account).left_out();
        }
    }

    /// Counts and tells a refusal of a call.
    pub(crate) fn deny(
        &self,
        call: CallId,
        (protocol, to): (Protocol, SocketAddr),
        name: Option<String>,
        refusal: Refusal,
    ) {
        let shown = match protocol {
            Protocol::Icmp => to.ip().to_string(),
            Protocol::Tcp | Protocol::Udp => hold(&self.judge).shown(to),
        };
        hold(&self.account).denied(call, shown, refusal);
        let denied = Connection {
            protocol,
            name,
            address: to,
            rule: None,
            sent: 0,
            received: 0,
            milliseconds: 0,
            end: ConnectionEnd::Denied,
            request: None,
        };
        self.audit(call, denied);
    }

    pub(crate) fn connecting_is_over(&self, ends: &Ends) {
        hold(&self.connecting).remove(ends);
    }

    /// Reads packets of the cell.
    fn read(self: &Arc<Self>) -> Result<(), Errno> {
        let mut stack = hold(&self.stack);
        for _ in 0..IN_A_ROW {
            let length = stack.read()?;
            let Some(packet) = packet::parse(stack.frame(length)) else { continue };
            *hold(&self.link.mac) = packet.mac;
            match packet.body {
                Body::Tcp { source, destination, opens, resets } => {
                    let ends = Ends {
                        cell: SocketAddr::new(packet.source, source),
                        remote: SocketAddr::new(packet.destination, destination),
                    };
                    self.segment(&mut stack, ends, packet, (opens, resets));
                }
                Body::Udp { .. } | Body::Echo { .. } => {
                    let frame = stack.frame(length);
                    self.datagram(frame, &packet);
                }
            }
        }
        Ok(())
    }

    /// Gives a segment to its connection, or begins one.
    fn segment(
        self: &Arc<Self>,
        stack: &mut Stack,
        ends: Ends,
        packet: Packet,
        (opens, resets): (bool, bool),
    ) {
        match stack.reuse(&ends) {
            Reuse::Open => return stack.segment(&ends, packet.ip),
            // The cell sends it again, and soon there is room.
            Reuse::Ending if opens => return,
            Reuse::Ending => return stack.segment(&ends, packet.ip),
            Reuse::Free if stack.has(&ends) && !opens => return stack.segment(&ends, packet.ip),
            Reuse::Free => {}
        }
        let ip = stack.frame(packet.ip.end).get(packet.ip.start..).unwrap_or_default();
        if !opens {
            if !resets && !hold(&self.connecting).contains(&ends) {
                self.link.send(packet::reset(ip, &packet));
            }
            return;
        }
        let mut connecting = hold(&self.connecting);
        if connecting.len() >= CONNECTING || stack.connections() >= stack::MOST {
            return;
        }
        // The first segment again, while the host still connects.
        if !connecting.insert(ends) {
            return;
        }
        drop(connecting);
        let opening = Opening { ends, syn: ip.to_vec(), packet };
        let worker = Arc::clone(self);
        if RESOLVER.contains(&ends.remote.ip()) && ends.remote.port() == dns::PORT {
            tokio::spawn(worker.resolver(opening));
        } else {
            tokio::spawn(async move {
                worker.clone().connection(opening).await;
                worker.connecting_is_over(&ends);
            });
        }
    }

    /// Accepts a connection to the resolver.
    async fn resolver(self: Arc<Self>, opening: Opening) {
        self.connecting_is_over(&opening.ends);
        let cell = CellStream::accept(&self.stack, &self.poke, opening.ends, &opening.syn);
        let Some(cell) = cell else { return };
        if cell.established().await.is_ok() {
            self.asked_by_stream(cell).await;
        }
    }

    /// Gives a datagram or an echo request to its flow, or begins one.
    fn datagram(self: &Arc<Self>, frame: &[u8], packet: &Packet) {
        let (flow, payload, segment, sequence) = match &packet.body {
            Body::Udp { source, destination, payload, segment } => {
                let cell = SocketAddr::new(packet.source, *source);
                let remote = SocketAddr::new(packet.destination, *destination);
                (Flow { echo: false, cell, remote }, payload, *segment, 0)
            }
            Body::Echo { ident, sequence, payload } => {
                let cell = SocketAddr::new(packet.source, *ident);
                let remote = SocketAddr::new(packet.destination, 0);
                (Flow { echo: true, cell, remote }, payload, payload.len(), *sequence)
            }
            Body::Tcp { .. } => return,
        };
        let payload = frame.get(payload.clone()).unwrap_or_default();
        if RESOLVER.contains(&flow.remote.ip()) && flow.remote.port() == dns::PORT {
            // A question that is not answered is asked again.
            if let Ok(permit) = self.questions.try_acquire() {
                permit.forget();
                tokio::spawn(Arc::clone(self).asked(flow.cell, flow.remote, payload.to_vec()));
            }
            return;
        }
        // An empty datagram is one too.
        let parts: Vec<&[u8]> = match payload.is_empty() {
            true => vec![payload],
            false => payload.chunks(segment.max(1)).collect(),
        };
        for part in parts {
            let unsent = Arc::clone(&self.unsent);
            let outgoing = Outgoing { payload: part.to_vec(), hops: packet.hops, sequence, unsent };
            self.outgoing(flow, outgoing);
        }
    }

    fn outgoing(self: &Arc<Self>, flow: Flow, outgoing: Outgoing) {
        let mut flows = hold(&self.flows);
        let full = flows.len() >= flows::MOST;
        let sender = match flows.get(&flow) {
            Some(Some(sender)) => sender,
            Some(None) => return,
            None if full => return,
            None => {
                let (sender, packets) = mpsc::channel(flows::WAITING);
                tokio::spawn(Arc::clone(self).flow(flow, packets));
                flows.entry(flow).or_default().insert(sender)
            }
        };
        // Dropped where too many wait, as by a network.
        sender.try_send(outgoing).unwrap_or_default();
    }
}
