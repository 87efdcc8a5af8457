//! A worker: carries the network traffic of one cell, in a separate process.
//!
//! A worker has one thread and one runtime. [`Worker::drive`] reads the cell's packets and the
//! gateway's frames. A task carries each connection, flow and DNS question, which counts for the
//! call in which it began; `dispatch` hands it the packets. `traffic` has what all of them share.
//! No lock is held across an await.

pub(crate) mod account;
pub(crate) mod connection;
mod dispatch;
pub(crate) mod dns;
pub(crate) mod dns_cache;
pub(crate) mod dns_message;
pub(crate) mod first_flight;
pub(crate) mod flows;
pub(crate) mod judge;
pub(crate) mod packet;
mod relay;
pub(crate) mod requests;
pub(crate) mod sockets;
pub(crate) mod stack;
mod traffic;
pub(crate) mod unsent;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model::egress::Egress;
use model::egress::frames::{CallId, CellKey, FRAME_BYTES, ToGateway, decode};
use nix::errno::Errno;
use sys::socket::{PacketWait, receive_into};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Semaphore, watch};

use crate::cells::{CurrentCall, is_ready};
use crate::intercept::CellRequests;
use account::Account;
use connection::{Connections, MAX_CONNECTING};
use dns::Resolver;
use flows::Flows;
use judge::Judge;
use sockets::SocketSource;
use stack::{Link, Stack, lock};
use traffic::{CellTraffic, SEND_TIMEOUT, SHORT_TICK};
use unsent::Unsent;

/// Maximum number of DNS questions that are answered at once.
const MAX_QUESTIONS: usize = 64;
/// Packets that are read in a row before connections have their turn.
const IN_A_ROW: usize = 64;

/// Time in which connections of an ended cell may still send what its programs had written.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which such connections are checked.
const TICK: Duration = Duration::from_millis(10);
/// Time from the question for a call's tally in which the worker waits for what the call has sent.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum number of packets read before a tally is sent. The packet socket holds about 280 small
/// ones, or more if the host has set net.core.rmem_default.
const MAX_BACKLOG: usize = 4_096;

/// Input of [`serve`].
#[derive(Debug)]
pub(crate) struct Parts {
    pub cell: CellKey,
    /// Packet socket on the cell's link.
    pub packets: OwnedFd,
    /// End of a pipe that hangs up when the cell's init has ended.
    pub lifeline: OwnedFd,
    /// Link to the gateway.
    pub gateway: OwnedFd,
    /// Link by which the worker gets its sockets.
    pub sockets: OwnedFd,
    pub egress: Arc<Egress>,
    /// Number of resolvers that the gateway knows.
    pub resolvers: u8,
    pub hosts: Arc<Vec<(String, IpAddr)>>,
    pub begun: CurrentCall,
    /// Judges the cell's HTTP requests.
    pub requests: CellRequests,
}

/// Descriptors of a worker other than its sockets: links, runtime, and sockets in flight.
const OTHER_DESCRIPTORS: usize = 64;

impl Parts {
    /// Returns the maximum number of descriptors of the worker: open and pending connections,
    /// connections to the resolver, flows, and DNS questions, each of which may be repeated over
    /// TCP.
    pub(crate) fn max_descriptors(&self) -> u64 {
        let open = u64::from(self.egress.limits.connections);
        let fixed = [
            stack::MAX_CONNECTIONS,
            MAX_CONNECTING,
            flows::MAX_FLOWS,
            2 * MAX_QUESTIONS,
            OTHER_DESCRIPTORS,
        ];
        let fixed = fixed.into_iter().fold(0, usize::saturating_add);
        u64::try_from(fixed).unwrap_or(u64::MAX).saturating_add(open)
    }
}

/// Outcome of reading from the gateway's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    /// A frame was read and handled.
    Handled,
    /// The gateway asks for the tally of a call.
    Ask(CallId),
    /// The cell is gone.
    Close,
    /// The gateway is gone.
    End,
}

/// Returns the time by which the worker of a cell that has just ended must exit.
fn drain_deadline() -> Option<Instant> {
    Instant::now().checked_add(DRAIN_TIMEOUT)
}

/// A worker: reads what its cell and the gateway send, and starts the tasks.
#[derive(Debug)]
struct Worker {
    traffic: Arc<CellTraffic>,
    connections: Arc<Connections>,
    flows: Arc<Flows>,
    resolver: Arc<Resolver>,
}

/// Draws the seed of the stack's sequence numbers.
///
/// # Errors
/// The errno of getrandom(2).
pub(crate) fn seed() -> Result<u64, Errno> {
    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Errno::from_raw(error.raw_os_error()))?;
    Ok(u64::from_ne_bytes(seed))
}

/// Serves a cell until the cell or the gateway ends. Must run inside the runtime.
///
/// # Errors
/// The errno of a descriptor that cannot be registered with the runtime.
pub(crate) async fn serve(parts: Parts, seed: u64) -> Result<(), Errno> {
    let registered = |fd: OwnedFd| stack::async_fd(fd, Interest::READABLE);
    let lifeline = registered(parts.lifeline)?;
    let link = Arc::new(Link { socket: registered(parts.packets)?, mac: Mutex::default() });
    let sockets = stack::async_fd(parts.sockets, Interest::READABLE.add(Interest::WRITABLE))?;
    let (running, over) = watch::channel(());
    let traffic = Arc::new(CellTraffic {
        cell: parts.cell,
        gateway: registered(parts.gateway)?,
        link: Arc::clone(&link),
        sockets: SocketSource::new(sockets),
        account: Mutex::new(Account::new(parts.egress.limits, parts.begun.call)),
        judge: Mutex::new(Judge::new(parts.egress)),
        unsent: Unsent::default(),
    });
    lock(&traffic.judge).only = parts.begun.only;
    let worker = Worker {
        connections: Arc::new(Connections {
            traffic: Arc::clone(&traffic),
            stack: Arc::new(Mutex::new(Stack::new(link, seed))),
            poke: Arc::default(),
            connecting: Mutex::default(),
            requests: parts.requests,
            unlogged: Arc::default(),
            over,
        }),
        flows: Arc::new(Flows { traffic: Arc::clone(&traffic), open: Mutex::default() }),
        resolver: Arc::new(Resolver {
            traffic: Arc::clone(&traffic),
            cache: Mutex::default(),
            questions: Semaphore::new(MAX_QUESTIONS),
            resolvers: parts.resolvers,
            hosts: parts.hosts,
        }),
        traffic,
    };
    worker.drive(lifeline).await;
    worker.end_all(running).await;
    worker.traffic.send_last_tally().await;
    Ok(())
}

impl Worker {
    /// Serves frames, packets and timers until the cell or the gateway has ended.
    async fn drive(&self, lifeline: AsyncFd<OwnedFd>) {
        let mut next: Option<Duration> = None;
        let mut end: Option<Instant> = None;
        while end.is_none_or(|end| Instant::now() < end && self.has_unsent()) {
            let timer = async {
                match next {
                    Some(time) => tokio::time::sleep(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Frames come first: a call begins before its packets.
                biased;
                readable = self.traffic.gateway.readable() => {
                    let Ok(mut readable) = readable else { return };
                    match self.frame() {
                        Ok(Frame::Handled) => {}
                        // Handled before the next frame: the next call must not begin before this
                        // tally is sent.
                        Ok(Frame::Ask(call)) => {
                            let began = Instant::now();
                            let is_whole = self.settle(call, began).await;
                            if end.is_some() || is_ready(lifeline.get_ref()) {
                                self.end_flows(began).await;
                            }
                            self.traffic.send_tally(call, is_whole, began).await;
                        }
                        Ok(Frame::Close) => {
                            self.read_backlog().await;
                            end = end.or_else(drain_deadline);
                        }
                        Ok(Frame::End) => return,
                        Err(Errno::EAGAIN) => readable.clear_ready(),
                        Err(_) => return,
                    }
                }
                // Never written to: readable means that the cell has ended.
                _ = lifeline.readable(), if end.is_none() => {
                    self.read_backlog().await;
                    end = drain_deadline();
                }
                readable = self.traffic.link.socket.readable() => {
                    let Ok(mut readable) = readable else { return };
                    match self.read(IN_A_ROW) {
                        Ok(()) => {}
                        Err(Errno::EAGAIN) => readable.clear_ready(),
                        // The link went down with the cell's network namespace.
                        Err(_) => return,
                    }
                }
                () = self.connections.poke.notified() => {}
                () = timer => {}
            }
            next = lock(&self.connections.stack).turn();
            if end.is_some() {
                next = Some(next.map_or(TICK, |next| next.min(TICK)));
            }
            tokio::task::yield_now().await;
        }
    }

    /// Returns true while something that the cell has sent is not on the network yet.
    fn has_unsent(&self) -> bool {
        lock(&self.connections.stack).connections() > 0 || !self.traffic.unsent.is_empty()
    }

    /// Reads what the cell has sent so far, which belongs to the ending call, and lets the tasks
    /// that handle it run. Returns false if there may be more.
    async fn read_backlog(&self) -> bool {
        let began = Instant::now();
        let mut left = MAX_BACKLOG;
        while left > 0 && began.elapsed() < SETTLE_TIMEOUT {
            // Errors are left to the loop, which waits for packets.
            let is_all = self.read(IN_A_ROW).is_err();
            // Yields twice: one turn of the runtime polls about sixty tasks, and other tasks may be
            // queued before these.
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

    /// Waits until everything that a call has sent is judged and its datagrams are on the network.
    /// Returns false if the time ran out.
    async fn settle(&self, call: CallId, began: Instant) -> bool {
        let is_all = self.read_backlog().await;
        while !self.traffic.unsent.is_empty_for(call) && began.elapsed() < SETTLE_TIMEOUT {
            lock(&self.connections.stack).turn();
            tokio::time::sleep(SHORT_TICK).await;
        }
        is_all && self.traffic.unsent.is_empty_for(call)
    }

    /// Ends the flows of an ended cell, so that each is reported to the audit log.
    async fn end_flows(&self, began: Instant) {
        lock(&self.flows.open).values_mut().for_each(|flow| flow.packets = None);
        // Each flow removes itself, except one that waits under a rate limit.
        while !lock(&self.flows.open).is_empty() && began.elapsed() < SETTLE_TIMEOUT {
            tokio::time::sleep(SHORT_TICK).await;
        }
    }

    /// Ends the rest of an ended cell, so that each connection is reported to the audit log or
    /// counted as unlisted.
    async fn end_all(&self, running: watch::Sender<()>) {
        let began = Instant::now();
        self.end_flows(began).await;
        drop(running);
        while Arc::strong_count(&self.connections.unlogged) > 1 && began.elapsed() < SEND_TIMEOUT {
            tokio::time::sleep(SHORT_TICK).await;
        }
        let unlogged = Arc::strong_count(&self.connections.unlogged).saturating_sub(1);
        let flows = lock(&self.flows.open).len();
        lock(&self.traffic.account).count_unlisted(unlogged.saturating_add(flows));
    }

    /// Reads and handles a frame of the gateway.
    fn frame(&self) -> Result<Frame, Errno> {
        let mut buffer = Vec::with_capacity(FRAME_BYTES);
        let received = receive_into(self.traffic.gateway.get_ref(), &mut buffer, PacketWait::No)?;
        if received.bytes == 0 {
            return Ok(Frame::End);
        }
        let bytes = buffer.as_slice();
        match decode::<ToGateway>(bytes) {
            Ok(ToGateway::Begin { cell, call, only }) if cell == self.traffic.cell => {
                self.traffic.begin(CurrentCall { call, only });
            }
            Ok(ToGateway::Ask { cell, call }) if cell == self.traffic.cell => {
                return Ok(Frame::Ask(call));
            }
            Ok(ToGateway::Close { cell }) if cell == self.traffic.cell => return Ok(Frame::Close),
            Ok(_) | Err(_) => {}
        }
        Ok(Frame::Handled)
    }
}
