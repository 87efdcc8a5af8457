//! Relays datagrams and echo requests: each flow has a connected socket of the host, whose errors
//! are passed to the cell.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model::egress::frames::CallId;
use model::egress::{ConnectionEnd, ECHO_REMEDY, Protocol};
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recv, recvmsg, send, setsockopt, sockopt,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::account::{Allowance, Direction, Entry};
use super::connection::unreachable;
use super::judge::{Allowed, Decision};
use super::packet::{self, MTU, Undelivered};
use super::sockets::NoSocket;
use super::stack::{self, lock};
use super::traffic::{CellTraffic, ConnectionRecord};
use super::unsent::UnsentGuard;
use crate::refusal::NetworkRefusal;

/// Maximum number of flows of a cell.
pub(crate) const MAX_FLOWS: usize = 256;
/// Time without a packet after which a flow ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a UDP or echo header, which count too: ports, sequence number and hops are of the
/// cell's choice, even in an empty packet.
const HEADER: usize = 8;
/// Packets and errors of one flow that are handled in a row before other tasks have their turn.
const IN_A_ROW: usize = 32;
/// Maximum number of packets that wait for a flow: as many small ones as the cell's packet socket
/// holds, or as one send with UDP_SEGMENT makes (udp(7)). More are dropped, as a network would.
pub(crate) const MAX_WAITING: usize = 512;

/// A UDP flow by its addresses and ports, or echo requests with their identifier as the cell's
/// port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub echo: bool,
    pub cell: SocketAddr,
    pub remote: SocketAddr,
}

/// A packet of the cell that waits to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub payload: Vec<u8>,
    pub hops: u8,
    /// Sequence number of an echo request.
    pub sequence: u16,
    #[expect(dead_code, reason = "it counts until it is dropped")]
    pub guard: UnsentGuard,
}

impl Flow {
    fn protocol(&self) -> Protocol {
        if self.echo { Protocol::Icmp } else { Protocol::Udp }
    }

    fn port(&self) -> Option<u16> {
        (!self.echo).then_some(self.remote.port())
    }

    /// Rebuilds the packet as the cell sent it, beginning with its IP header.
    fn as_sent(&self, payload: &[u8], sequence: u16) -> Vec<u8> {
        let frame = if self.echo {
            let kind = if self.cell.is_ipv4() { 8 } else { 128 };
            let message = packet::echo_message(kind, self.cell.port(), sequence, payload);
            packet::icmp(self.cell.ip(), self.remote.ip(), &message)
        } else {
            packet::datagram(self.cell, self.remote, payload)
        };
        frame.unwrap_or_default().split_off(packet::HEAD)
    }
}

/// The flows of a cell.
#[derive(Debug)]
pub(super) struct Flows {
    pub traffic: Arc<CellTraffic>,
    pub open: Mutex<HashMap<Flow, FlowHandle>>,
}

/// A flow, with the channel to its task.
#[derive(Debug)]
pub(super) struct FlowHandle {
    /// The call in which the flow began, for which it counts.
    pub call: CallId,
    /// `None` once the flow is to end.
    pub packets: Option<mpsc::Sender<Outgoing>>,
}

impl Flows {
    /// Passes a datagram to its flow. Dropped if too much waits, as by a network.
    pub(super) fn pass_on(self: &Arc<Self>, flow: Flow, payload: &[u8], hops: u8, sequence: u16) {
        let mut flows = lock(&self.open);
        let call = flows.get(&flow).map_or_else(|| self.traffic.call(), |handle| handle.call);
        let Some(guard) = self.traffic.unsent.add(call, payload.len()) else { return };
        let full = flows.len() >= MAX_FLOWS;
        let handle = match flows.get(&flow) {
            Some(handle) => handle,
            None if full => return,
            None => {
                let (sender, packets) = mpsc::channel(MAX_WAITING);
                tokio::spawn(Arc::clone(self).carry(flow, call, packets));
                flows.entry(flow).or_insert(FlowHandle { call, packets: Some(sender) })
            }
        };
        if let Some(sender) = &handle.packets {
            let outgoing = Outgoing { payload: payload.to_vec(), hops, sequence, guard };
            // A full queue drops the packet, as a network would; a closed one belongs to a flow that ends.
            sender.try_send(outgoing).unwrap_or_default();
        }
    }

    /// Judges a flow, and relays it until it is idle or over a limit.
    async fn carry(
        self: Arc<Self>,
        flow: Flow,
        call: CallId,
        mut packets: mpsc::Receiver<Outgoing>,
    ) {
        let since = Instant::now();
        if let Some((socket, entry)) = self.open(&flow, call, &mut packets).await {
            let record = ConnectionRecord::new(entry, None, since);
            let mut open = OpenFlow { flow, socket, record, hops: 0 };
            let end = self.relay_packets(&mut open, &mut packets).await;
            lock(&self.traffic.account).release_slot(call);
            self.traffic.audit_closed(flow.protocol(), flow.remote, open.record, end);
        }
        lock(&self.open).remove(&flow);
    }

    /// Judges the first packet of a flow. Returns its socket; a refusal is reported to the cell.
    async fn open(
        &self,
        flow: &Flow,
        call: CallId,
        packets: &mut mpsc::Receiver<Outgoing>,
    ) -> Option<(AsyncFd<OwnedFd>, Entry)> {
        let to = flow.remote;
        let decision = lock(&self.traffic.judge).decide(flow.protocol(), to.ip(), flow.port());
        let opened = match decision {
            Decision::Allowed(allowed) => self.open_allowed(flow, call, &allowed).await,
            Decision::Refused(refusal) => {
                self.traffic.deny(call, flow.protocol(), to, None, refusal);
                Err(Undelivered::Denied)
            }
        };
        let undelivered = match opened {
            Ok(opened) => return Some(opened),
            Err(undelivered) => undelivered,
        };
        let first = packets.recv().await?;
        let quoted = flow.as_sent(&first.payload, first.sequence);
        self.traffic.link.send(packet::undelivered(&quoted, flow.cell.ip(), undelivered));
        None
    }

    /// Opens the socket of a flow that the judge allows.
    async fn open_allowed(
        &self,
        flow: &Flow,
        call: CallId,
        allowed: &Allowed,
    ) -> Result<(AsyncFd<OwnedFd>, Entry), Undelivered> {
        let to = flow.remote;
        let name = allowed.name().map_or_else(|| to.ip().to_string(), str::to_owned);
        let to_entry = match (flow.echo, allowed.name()) {
            (true, _) => name,
            (false, Some(name)) => format!("{name}:{}", to.port()),
            (false, None) => to.to_string(),
        };
        let entry = Entry { call, to: to_entry, rule: allowed.rule().to_owned() };
        let taken = lock(&self.traffic.account).take_slot(call);
        if let Err(refusal) = taken {
            self.traffic.deny(call, flow.protocol(), to, None, refusal);
            return Err(Undelivered::Denied);
        }
        let socket = self.traffic.sockets.datagrams(flow.protocol(), to).await;
        let interest = Interest::READABLE.add(Interest::ERROR);
        let socket =
            socket.and_then(|one| stack::async_fd(one, interest).map_err(NoSocket::Failed));
        match socket {
            Ok(socket) => {
                lock(&self.traffic.account).count_opened(&entry);
                Ok((socket, entry))
            }
            Err(no_socket) => {
                lock(&self.traffic.account).release_slot(call);
                Err(self.not_opened(flow, call, no_socket))
            }
        }
    }

    fn not_opened(&self, flow: &Flow, call: CallId, no_socket: NoSocket) -> Undelivered {
        let reason = match no_socket {
            NoSocket::NoRoute(errno)
            | NoSocket::Failed(errno @ (Errno::ENETUNREACH | Errno::EHOSTUNREACH)) => {
                return unreachable(errno);
            }
            NoSocket::Refused(reason) => reason,
            NoSocket::Failed(Errno::EACCES | Errno::EPERM) if flow.echo => {
                format!(
                    "the host lets no program send echo requests; its operator can: {ECHO_REMEDY}"
                )
            }
            NoSocket::Failed(errno) => format!("the host refuses to send: {}", errno.desc()),
        };
        self.traffic.deny(call, flow.protocol(), flow.remote, None, NetworkRefusal::new(reason));
        Undelivered::Denied
    }

    /// Relays packets both ways until the flow is idle or over a limit.
    async fn relay_packets(
        &self,
        flow: &mut OpenFlow,
        packets: &mut mpsc::Receiver<Outgoing>,
    ) -> ConnectionEnd {
        let mut buffer = vec![0; MTU];
        let mut drained = Drained::All;
        loop {
            let interest = Interest::READABLE.add(Interest::ERROR);
            tokio::select! {
                outgoing = packets.recv() => match outgoing {
                    Some(outgoing) => if !self.send_packet(flow, &outgoing).await {
                        return ConnectionEnd::Limit;
                    },
                    None => return ConnectionEnd::Relayed,
                },
                ready = flow.socket.ready(interest), if drained == Drained::All => {
                    let Ok(mut ready) = ready else { return ConnectionEnd::Relayed };
                    ready.clear_ready();
                    drop(ready);
                    drained = self.drain(flow, &mut buffer);
                }
                () = tokio::task::yield_now(), if drained == Drained::Some => {
                    drained = self.drain(flow, &mut buffer);
                }
                () = tokio::time::sleep(IDLE_TIMEOUT) => return ConnectionEnd::Relayed,
            }
            if drained == Drained::Limit {
                return ConnectionEnd::Limit;
            }
        }
    }

    /// Passes on some of the received errors and packets.
    fn drain(&self, flow: &mut OpenFlow, buffer: &mut [u8]) -> Drained {
        let errors = self.forward_errors(flow);
        let packets = self.receive_packets(flow, buffer);
        match (errors, packets) {
            (Drained::Some, Drained::All) => Drained::Some,
            (_, packets) => packets,
        }
    }

    /// Sends a packet of the cell. Returns false if a limit of the call is reached.
    async fn send_packet(&self, open: &mut OpenFlow, outgoing: &Outgoing) -> bool {
        let call = open.record.entry.call;
        let bytes = outgoing.payload.len().saturating_add(HEADER);
        loop {
            let allowance =
                lock(&self.traffic.account).allowance_of_packet(call, Direction::Sent, bytes);
            match allowance {
                Allowance::Bytes(_) => break,
                Allowance::Wait(time) => tokio::time::sleep(time).await,
                Allowance::Over => return false,
            }
        }
        if open.hops != outgoing.hops && open.set_hops(outgoing.hops).is_ok() {
            open.hops = outgoing.hops;
        }
        let request = if open.flow.cell.is_ipv4() { 8 } else { 128 };
        let message = match open.flow.echo {
            // The kernel fills in its own identifier and the checksum.
            true => packet::echo_message(request, 0, outgoing.sequence, &outgoing.payload),
            false => outgoing.payload.clone(),
        };
        // A send may fail with the error of an earlier packet, once; the second try then sends this
        // one.
        for _ in 0..2 {
            match send(open.socket.get_ref().as_raw_fd(), &message, MsgFlags::MSG_DONTWAIT) {
                Ok(_) => {
                    open.record.sent =
                        open.record.sent.saturating_add(u64::try_from(bytes).unwrap_or(0));
                    lock(&self.traffic.account).count_moved(
                        &open.record.entry,
                        Direction::Sent,
                        bytes,
                    );
                    break;
                }
                Err(_) => drop(self.forward_errors(open)),
            }
        }
        true
    }

    /// Passes received packets on to the cell.
    fn receive_packets(&self, open: &mut OpenFlow, buffer: &mut [u8]) -> Drained {
        for _ in 0..IN_A_ROW {
            let socket = open.socket.get_ref().as_raw_fd();
            let length = match recv(socket, buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => length,
                // Read from the error queue instead.
                Err(Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH) => continue,
                Err(_) => return Drained::All,
            };
            let flow = open.flow;
            let payload = if flow.echo { length.saturating_sub(8) } else { length };
            let bytes = payload.saturating_add(HEADER);
            let call = open.record.entry.call;
            let allowance =
                lock(&self.traffic.account).allowance_of_packet(call, Direction::Received, bytes);
            match allowance {
                Allowance::Bytes(_) => {}
                // Dropped, as a network that is too slow would.
                Allowance::Wait(_) => continue,
                Allowance::Over => return Drained::Limit,
            }
            let message = buffer.get(..length).unwrap_or_default();
            let frame = if flow.echo {
                let reply = if flow.cell.is_ipv4() { 0 } else { 129 };
                let (Some(sequence), Some(data)) = (sequence_of(message), message.get(8..)) else {
                    continue;
                };
                let message = packet::echo_message(reply, flow.cell.port(), sequence, data);
                packet::icmp(flow.remote.ip(), flow.cell.ip(), &message)
            } else {
                packet::datagram(flow.remote, flow.cell, message)
            };
            open.record.received =
                open.record.received.saturating_add(u64::try_from(bytes).unwrap_or(0));
            lock(&self.traffic.account).count_moved(&open.record.entry, Direction::Received, bytes);
            self.traffic.link.send(frame);
        }
        Drained::Some
    }

    /// Passes on the ICMP errors that routers and the destination sent.
    fn forward_errors(&self, open: &OpenFlow) -> Drained {
        let mut buffer = vec![0; 2_048];
        for _ in 0..IN_A_ROW {
            let Ok(Some(error)) = open.next_error(&mut buffer) else { return Drained::All };
            let flow = open.flow;
            let quoted = buffer.get(..error.quoted).unwrap_or_default();
            let quoted = match flow.echo {
                true => {
                    let sequence = sequence_of(quoted).unwrap_or_default();
                    flow.as_sent(quoted.get(8..).unwrap_or_default(), sequence)
                }
                false => flow.as_sent(quoted, 0),
            };
            let start = [error.kind, error.code, 0, 0, 0, 0, 0, 0];
            self.traffic.link.send(packet::error(error.from, flow.cell.ip(), start, &quoted));
        }
        Drained::Some
    }
}

/// How much of what was received for a flow has been passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drained {
    All,
    /// There may be more; other tasks have their turn first.
    Some,
    /// A limit of the call is reached.
    Limit,
}

/// Returns the sequence number of an echo message.
fn sequence_of(message: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(message.get(6..8)?.try_into().ok()?))
}

/// A flow with its socket.
#[derive(Debug)]
struct OpenFlow {
    flow: Flow,
    socket: AsyncFd<OwnedFd>,
    record: ConnectionRecord,
    /// Time to live set on the socket; 0 at first.
    hops: u8,
}

/// An error from the network.
#[derive(Debug)]
struct NetworkError {
    from: IpAddr,
    kind: u8,
    code: u8,
    /// Length of the quoted packet that the error is about.
    quoted: usize,
}

impl OpenFlow {
    fn set_hops(&self, hops: u8) -> Result<(), Errno> {
        let hops = i32::from(hops);
        match self.flow.remote {
            SocketAddr::V4(_) => setsockopt(self.socket.get_ref(), sockopt::Ipv4Ttl, &hops),
            SocketAddr::V6(_) => setsockopt(self.socket.get_ref(), sockopt::Ipv6Ttl, &hops),
        }
    }

    /// Takes the next network error off the socket's error queue (ip(7), IP_RECVERR); skips errors
    /// of this machine.
    fn next_error(&self, buffer: &mut [u8]) -> Result<Option<NetworkError>, Errno> {
        loop {
            let mut room = nix::cmsg_space!(nix::libc::sock_extended_err, nix::libc::sockaddr_in6);
            let mut parts = [io::IoSliceMut::new(buffer)];
            let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
            let raw = self.socket.get_ref().as_raw_fd();
            let message = recvmsg::<SockaddrStorage>(raw, &mut parts, Some(&mut room), flags)?;
            let quoted = message.bytes;
            for control in message.cmsgs()? {
                let Some((error, from)) = offender(&control) else { continue };
                let from_network = [2, 3].contains(&error.ee_origin);
                // Destination unreachable and time exceeded. Errors about packet sizes are between
                // the host and the network.
                let passes = match from {
                    IpAddr::V4(_) => {
                        matches!((error.ee_type, error.ee_code), (3, 0..=3 | 5..=15) | (11, _))
                    }
                    IpAddr::V6(_) => matches!(error.ee_type, 1 | 3),
                };
                if from_network && passes {
                    let kind = error.ee_type;
                    let code = error.ee_code;
                    return Ok(Some(NetworkError { from, kind, code, quoted }));
                }
            }
        }
    }
}

/// Returns a network error and the address that sent it.
fn offender(control: &ControlMessageOwned) -> Option<(nix::libc::sock_extended_err, IpAddr)> {
    if let ControlMessageOwned::Ipv4RecvErr(error, Some(from)) = control {
        let bits = u32::from_be(from.sin_addr.s_addr);
        return Some((*error, IpAddr::from(bits.to_be_bytes())));
    }
    if let ControlMessageOwned::Ipv6RecvErr(error, Some(from)) = control {
        return Some((*error, IpAddr::from(from.sin6_addr.s6_addr)));
    }
    None
}
