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
pub(crate) mod kept;
pub(crate) mod packet;
pub(crate) mod requests;
pub(crate) mod sockets;
pub(crate) mod stack;
pub(crate) mod unsent;

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
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use crate::cells::is_ready;
use crate::intercept::CellRequests;
use account::Account;
use connection::Opening;
use flows::{Flow, Outgoing};
use judge::{Judge, Refusal};
use kept::KeptAnswers;
use packet::{Body, Packet, RESOLVER};
use sockets::SocketSource;
use stack::{CellStream, Ends, Link, Reuse, Stack, hold};
use unsent::Unsent;

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
/// Time for which the tally of a call waits for what the call has sent, from the question on.
const ON_ITS_WAY: Duration = Duration::from_millis(100);
/// Time in which a frame for the gateway must have found room on the link, in all. The supervisor waits 200 ms.
const TOLD: Duration = Duration::from_millis(150);
/// Time between two looks at either.
const SHORT_TICK: Duration = Duration::from_millis(1);
/// Packets that are read in a row before a tally is told. The packet socket holds some 280 small ones, or more where the
/// host has set net.core.rmem_default.
const BACKLOG: usize = 4_096;

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

/// The way to a flow.
#[derive(Debug)]
struct FlowWay {
    /// The call in which it began, for which it counts.
    call: CallId,
    /// None where it is to end.
    packets: Option<mpsc::Sender<Outgoing>>,
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
    flows: Mutex<HashMap<Flow, FlowWay>>,
    questions: Semaphore,
    kept: Mutex<KeptAnswers>,
    sockets: SocketSource,
    resolvers: u8,
    hosts: Arc<Vec<(String, IpAddr)>>,
    requests: CellRequests,
    unsent: Unsent,
    /// Held once more by each connection that the audit log has no line of yet.
    untold: Arc<()>,
    /// Changes once connections are to end, as the cell is gone and its last words are over.
    over: watch::Receiver<()>,
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
    let (running, over) = watch::channel(());
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
        kept: Mutex::default(),
        sockets: SocketSource::over(sockets),
        resolvers: parts.resolvers,
        hosts: parts.hosts,
        requests: parts.requests,
        unsent: Unsent::default(),
        untold: Arc::default(),
        over,
    });
    hold(&worker.judge).only = parts.begun.only;
    Arc::clone(&worker).drive(lifeline).await;
    worker.end_all(running).await;
    worker.last_tally().await;
    Ok(())
}

impl Worker {
    async fn drive(self: Arc<Self>, lifeline: AsyncFd<OwnedFd>) {
        let mut next: Option<Duration> = None;
        let mut end: Option<Instant> = None;
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
                        // In the order of the frames: the next call begins after the tally of the one before.
                        Ok(Frame::Asked(call)) => {
                            let began = Instant::now();
                            let whole = self.settle(call, began).await;
                            if end.is_some() || is_ready(lifeline.get_ref()) {
                                self.end_flows(began).await;
                            }
                            self.tell(call, whole, began).await;
                        }
                        Ok(Frame::Close) => {
                            self.read_backlog().await;
                            end = end.or_else(last_words);
                        }
                        Ok(Frame::End) => return,
                        Err(Errno::EAGAIN) => readable.clear_ready(),
                        Err(_) => return,
                    }
                }
                // Nothing is ever written to it.
                _ = lifeline.readable(), if end.is_none() => {
                    self.read_backlog().await;
                    end = last_words();
                }
                readable = self.link.socket.readable() => {
                    let Ok(mut readable) = readable else { return };
                    match self.read(IN_A_ROW) {
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
        }
    }

    /// Returns true while something that the cell has sent is not on the network yet.
    fn has_last_words(&self) -> bool {
        hold(&self.stack).connections() > 0 || !self.unsent.is_empty()
    }

    /// Reads what the cell has sent so far, which belongs to the call that ends, or is its last, and lets the tasks run that
    /// it is for. Returns false if that may not be all.
    async fn read_backlog(self: &Arc<Self>) -> bool {
        let began = Instant::now();
        let mut left = BACKLOG;
        while left > 0 && began.elapsed() < ON_ITS_WAY {
            // Leaves errors to where packets are waited for.
            let is_all = self.read(IN_A_ROW).is_err();
            // Yields twice: a turn of the runtime polls some sixty tasks, and others may have been there before.
            for _ in 0..2 {
                tokio::task::yield_now().await;
            }
            if is_all {
                return true;
            }
            left = left.saturating_sub(IN_A_ROW);
        }
        false
    }

    /// Waits until all that a call has sent is judged, and its datagrams are on the network. Returns false if not all
    /// was in time.
    async fn settle(self: &Arc<Self>, call: CallId, began: Instant) -> bool {
        let is_all = self.read_backlog().await;
        while !self.unsent.is_empty_of(call) && began.elapsed() < ON_ITS_WAY {
            hold(&self.stack).turn();
            tokio::time::sleep(SHORT_TICK).await;
        }
        is_all && self.unsent.is_empty_of(call)
    }

    /// Ends the flows of a cell that is gone, so that each is told to the audit log.
    async fn end_flows(&self, began: Instant) {
        hold(&self.flows).values_mut().for_each(|way| way.packets = None);
        // Each removes itself, but for one that waits for its turn under a limit.
        while !hold(&self.flows).is_empty() && began.elapsed() < ON_ITS_WAY {
            tokio::time::sleep(SHORT_TICK).await;
        }
    }

    /// Ends what is left of a cell that is gone, so that each connection is told to the audit log, or counted.
    async fn end_all(&self, running: watch::Sender<()>) {
        let began = Instant::now();
        self.end_flows(began).await;
        drop(running);
        while Arc::strong_count(&self.untold) > 1 && began.elapsed() < TOLD {
            tokio::time::sleep(SHORT_TICK).await;
        }
        let untold = Arc::strong_count(&self.untold).saturating_sub(1);
        let flows = hold(&self.flows).len();
        hold(&self.account).left_out(untold.saturating_add(flows));
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

    /// Sends the tally of a call, for which the supervisor waits.
    async fn tell(&self, call: CallId, is_whole: bool, began: Instant) {
        let mut tally = hold(&self.account).tally(call);
        tally.incomplete |= !is_whole;
        if let Ok(frame) = encode_tally(self.cell, call, tally) {
            self.send(&frame, began).await;
        }
    }

    /// Leaves the tally with the gateway, which may be asked for it when this process has ended.
    async fn last_tally(&self) {
        let (cell, call, mut tally) = {
            let mut account = hold(&self.account);
            let call = account.call();
            (self.cell, call, account.tally(call))
        };
        tally.incomplete |= !self.unsent.is_empty_of(call);
        // Halved until it fits, as `encode_tally` does.
        while !tally.rows.is_empty() || !tally.denied.is_empty() {
            match encode(&FromGateway::Last { cell, call, tally: tally.clone() }) {
                Ok(_) => break,
                Err(_) => tally.halve(),
            }
        }
        if let Ok(frame) = encode(&FromGateway::Last { cell, call, tally }) {
            self.send(&frame, Instant::now()).await;
        }
    }

    /// Sends a frame that is not dropped at once where the link is full: lines of the audit log may fill it.
    async fn send(&self, frame: &[u8], began: Instant) {
        // Any other error is the gateway's end, which reading tells.
        while send_bytes(self.gateway.get_ref(), frame) == Err(Errno::EAGAIN)
            && began.elapsed() < TOLD
        {
            tokio::time::sleep(SHORT_TICK).await;
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
            hold(&self.account).left_out(1);
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

    /// Reads packets of the cell, so many at most.
    fn read(self: &Arc<Self>, most: usize) -> Result<(), Errno> {
        let mut stack = hold(&self.stack);
        for _ in 0..most {
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
        let call = self.call();
        // The cell sends it again.
        let Some(on_its_way) = self.unsent.add(call, 0) else {
            self.connecting_is_over(&ends);
            return;
        };
        let opening = Opening { call, ends, syn: ip.to_vec(), packet };
        let worker = Arc::clone(self);
        if RESOLVER.contains(&ends.remote.ip()) && ends.remote.port() == dns::PORT {
            tokio::spawn(worker.resolver(opening));
        } else {
            let untold = Arc::clone(&self.untold);
            tokio::spawn(on_its_way.until_judged(async move {
                worker.clone().connection(opening).await;
                worker.connecting_is_over(&ends);
                drop(untold);
            }));
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
            if let Ok(permit) = self.questions.try_acquire()
                && let Some(on_its_way) = self.unsent.add(self.call(), payload.len())
            {
                permit.forget();
                let asked = Arc::clone(self).asked(flow.cell, flow.remote, payload.to_vec());
                tokio::spawn(on_its_way.until_judged(asked));
            }
            return;
        }
        // An empty datagram is one too.
        let parts: Vec<&[u8]> = match payload.is_empty() {
            true => vec![payload],
            false => payload.chunks(segment.max(1)).collect(),
        };
        for part in parts {
            let part = Part { payload: part, hops: packet.hops, sequence };
            self.outgoing(flow, &part);
        }
    }

    /// Gives a part to its flow. It is dropped where too much waits, as by a network.
    fn outgoing(self: &Arc<Self>, flow: Flow, part: &Part<'_>) {
        let mut flows = hold(&self.flows);
        let call = flows.get(&flow).map_or_else(|| self.call(), |way| way.call);
        let Some(on_its_way) = self.unsent.add(call, part.payload.len()) else { return };
        let full = flows.len() >= flows::MOST;
        let way = match flows.get(&flow) {
            Some(way) => way,
            None if full => return,
            None => {
                let (sender, packets) = mpsc::channel(flows::WAITING);
                tokio::spawn(Arc::clone(self).flow(flow, call, packets));
                flows.entry(flow).or_insert(FlowWay { call, packets: Some(sender) })
            }
        };
        if let Some(sender) = &way.packets {
            let (payload, hops, sequence) = (part.payload.to_vec(), part.hops, part.sequence);
            sender.try_send(Outgoing { payload, hops, sequence, on_its_way }).unwrap_or_default();
        }
    }
}

/// A datagram as the network has it: one packet of the cell may be many.
#[derive(Debug)]
struct Part<'a> {
    payload: &'a [u8],
    hops: u8,
    sequence: u16,
}
