//! Datagrams and echo requests: a connected socket of the host for each flow, whose errors go back to the cell.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::egress::frames::CallId;
use model::egress::{ConnectionEnd, Protocol};
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recv, recvmsg, send, setsockopt, sockopt,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::Worker;
use super::account::{Allowance, Entry, Way};
use super::connection::unreachable;
use super::judge::{Allowed, Decision};
use super::packet::{self, MTU, Undelivered};
use super::sockets::NoSocket;
use super::stack::{self, hold};
use super::unsent::OnItsWay;

/// Most flows of a cell.
pub(crate) const MOST: usize = 256;
/// Time without a packet after which a flow ends.
const IDLE: Duration = Duration::from_secs(60);
/// Bytes of the header of a datagram and of an echo request, which are counted: its ports, its sequence number and its hops
/// are of the cell's choice, also where nothing follows.
const HEADER: usize = 8;
/// Packets and errors that are taken in a row, before others of the cell have their turn.
const IN_A_ROW: usize = 32;
/// Packets that wait for a flow: as many small ones as the cell's packet socket holds, and as the kernel makes of some that
/// a program sends in segments (udp(7), UDP_SEGMENT). More are dropped, as by a network.
pub(crate) const WAITING: usize = 512;

/// A flow: of UDP with both ports, or of echo requests with their identifier as the cell's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub echo: bool,
    pub cell: SocketAddr,
    pub remote: SocketAddr,
}

/// A packet of the cell on its way out.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub payload: Vec<u8>,
    pub hops: u8,
    /// Of an echo request.
    pub sequence: u16,
    #[expect(dead_code, reason = "it counts until it is dropped")]
    pub on_its_way: OnItsWay,
}

impl Flow {
    fn protocol(&self) -> Protocol {
        if self.echo { Protocol::Icmp } else { Protocol::Udp }
    }

    fn port(&self) -> Option<u16> {
        (!self.echo).then_some(self.remote.port())
    }

    /// Returns the packet as the cell sent it, from its IP header on.
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

impl Worker {
    /// Judges a flow, and carries it until it is idle.
    pub(crate) async fn flow(
        self: Arc<Self>,
        flow: Flow,
        call: CallId,
        mut packets: mpsc::Receiver<Outgoing>,
    ) {
        let since = Instant::now();
        if let Some((socket, entry)) = self.opened(&flow, call, &mut packets).await {
            let mut carried = Carried { flow, socket, entry, sent: 0, received: 0, hops: 0 };
            let verdict = self.carried(&mut carried, &mut packets).await;
            let call = carried.entry.call;
            hold(&self.account).closes(call);
            let milliseconds = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
            let connection = model::egress::Connection {
                protocol: flow.protocol(),
                name: None,
                address: flow.remote,
                rule: Some(carried.entry.rule),
                sent: carried.sent,
                received: carried.received,
                milliseconds,
                end: verdict,
                request: None,
            };
            self.audit(call, connection);
        }
        hold(&self.flows).remove(&flow);
    }

    /// Judges the first packet of a flow. Returns its socket; what is refused is told to the cell.
    async fn opened(
        &self,
        flow: &Flow,
        call: CallId,
        packets: &mut mpsc::Receiver<Outgoing>,
    ) -> Option<(AsyncFd<OwnedFd>, Entry)> {
        let to = flow.remote;
        let decision = hold(&self.judge).decide(flow.protocol(), to.ip(), flow.port());
        let opened = match decision {
            Decision::Allowed(allowed) => self.allowed(flow, call, &allowed).await,
            Decision::Refused(refusal) => {
                self.deny(call, (flow.protocol(), to), None, refusal);
                Err(Undelivered::Denied)
            }
        };
        let why = match opened {
            Ok(opened) => return Some(opened),
            Err(why) => why,
        };
        let first = packets.recv().await?;
        let quoted = flow.as_sent(&first.payload, first.sequence);
        self.link.send(packet::undelivered(&quoted, flow.cell.ip(), why));
        None
    }

    /// Opens the socket of a flow that the judge allows.
    async fn allowed(
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
        let entered = hold(&self.account).enters(call);
        if let Err(refusal) = entered {
            self.deny(call, (flow.protocol(), to), None, refusal);
            return Err(Undelivered::Denied);
        }
        let socket = self.sockets.datagrams(flow.protocol(), to).await;
        let interest = Interest::READABLE.add(Interest::ERROR);
        let socket = socket.and_then(|one| stack::waited(one, interest).map_err(NoSocket::Failed));
        match socket {
            Ok(socket) => {
                hold(&self.account).opened(&entry);
                Ok((socket, entry))
            }
            Err(none) => {
                hold(&self.account).closes(call);
                Err(self.not_opened(flow, call, none))
            }
        }
    }

    fn not_opened(&self, flow: &Flow, call: CallId, none: NoSocket) -> Undelivered {
        let why = match none {
            NoSocket::NoRoute(errno)
            | NoSocket::Failed(errno @ (Errno::ENETUNREACH | Errno::EHOSTUNREACH)) => {
                return unreachable(errno);
            }
            NoSocket::Refused(why) => why,
            NoSocket::Failed(Errno::EACCES | Errno::EPERM) if flow.echo => {
                "the host lets no program send echo requests (net.ipv4.ping_group_range)".to_owned()
            }
            NoSocket::Failed(errno) => format!("the host refuses to send: {}", errno.desc()),
        };
        let refusal = super::judge::Refusal { why, grant: None };
        self.deny(call, (flow.protocol(), flow.remote), None, refusal);
        Undelivered::Denied
    }

    /// Carries packets both ways until the flow is idle or over a limit.
    async fn carried(
        &self,
        carried: &mut Carried,
        packets: &mut mpsc::Receiver<Outgoing>,
    ) -> ConnectionEnd {
        let mut buffer = vec![0; MTU];
        let mut taken = Taken::All;
        loop {
            let interest = Interest::READABLE.add(Interest::ERROR);
            tokio::select! {
                outgoing = packets.recv() => match outgoing {
                    Some(outgoing) => if !self.sent(carried, &outgoing).await {
                        return ConnectionEnd::Limit;
                    },
                    None => return ConnectionEnd::Relayed,
                },
                ready = carried.socket.ready(interest), if taken == Taken::All => {
                    let Ok(mut ready) = ready else { return ConnectionEnd::Relayed };
                    ready.clear_ready();
                    drop(ready);
                    taken = self.taken(carried, &mut buffer);
                }
                () = tokio::task::yield_now(), if taken == Taken::Some => {
                    taken = self.taken(carried, &mut buffer);
                }
                () = tokio::time::sleep(IDLE) => return ConnectionEnd::Relayed,
            }
            if taken == Taken::Limit {
                return ConnectionEnd::Limit;
            }
        }
    }

    /// Passes on some of the errors and packets that have come.
    fn taken(&self, carried: &mut Carried, buffer: &mut [u8]) -> Taken {
        match (self.errors(carried), self.received(carried, buffer)) {
            (Taken::Some, Taken::All) => Taken::Some,
            (_, packets) => packets,
        }
    }

    /// Sends a packet of the cell. Returns false where a limit of the call is reached.
    async fn sent(&self, carried: &mut Carried, outgoing: &Outgoing) -> bool {
        let call = carried.entry.call;
        let bytes = outgoing.payload.len().saturating_add(HEADER);
        loop {
            let allowance = hold(&self.account).allowance_of_packet(call, Way::Sent, bytes);
            match allowance {
                Allowance::Bytes(_) => break,
                Allowance::Wait(time) => tokio::time::sleep(time).await,
                Allowance::Over => return false,
            }
        }
        if carried.hops != outgoing.hops && carried.set_hops(outgoing.hops).is_ok() {
            carried.hops = outgoing.hops;
        }
        let request = if carried.flow.cell.is_ipv4() { 8 } else { 128 };
        let message = match carried.flow.echo {
            // The kernel puts in its own identifier and the checksum.
            true => packet::echo_message(request, 0, outgoing.sequence, &outgoing.payload),
            false => outgoing.payload.clone(),
        };
        // An error of an earlier packet is told once by any call; this packet is then sent by the second.
        for _ in 0..2 {
            match send(carried.socket.get_ref().as_raw_fd(), &message, MsgFlags::MSG_DONTWAIT) {
                Ok(_) => {
                    carried.sent = carried.sent.saturating_add(u64::try_from(bytes).unwrap_or(0));
                    hold(&self.account).moved(&carried.entry, Way::Sent, bytes);
                    break;
                }
                Err(_) => drop(self.errors(carried)),
            }
        }
        true
    }

    /// Passes on packets that have come.
    fn received(&self, carried: &mut Carried, buffer: &mut [u8]) -> Taken {
        for _ in 0..IN_A_ROW {
            let socket = carried.socket.get_ref().as_raw_fd();
            let length = match recv(socket, buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => length,
                // The error queue has it.
                Err(Errno::ECONNREFUSED | Errno::EHOSTUNREACH | Errno::ENETUNREACH) => continue,
                Err(_) => return Taken::All,
            };
            let flow = carried.flow;
            let payload = if flow.echo { length.saturating_sub(8) } else { length };
            let bytes = payload.saturating_add(HEADER);
            let call = carried.entry.call;
            let allowance = hold(&self.account).allowance_of_packet(call, Way::Received, bytes);
            match allowance {
                Allowance::Bytes(_) => {}
                // A network that is too slow drops it.
                Allowance::Wait(_) => continue,
                Allowance::Over => return Taken::Limit,
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
            carried.received = carried.received.saturating_add(u64::try_from(bytes).unwrap_or(0));
            hold(&self.account).moved(&carried.entry, Way::Received, bytes);
            self.link.send(frame);
        }
        Taken::Some
    }

    /// Passes on the errors that routers and the destination sent.
    fn errors(&self, carried: &Carried) -> Taken {
        let mut buffer = vec![0; 2_048];
        for _ in 0..IN_A_ROW {
            let Ok(Some(error)) = carried.next_error(&mut buffer) else { return Taken::All };
            let flow = carried.flow;
            let quoted = buffer.get(..error.quoted).unwrap_or_default();
            let quoted = match flow.echo {
                true => {
                    let sequence = sequence_of(quoted).unwrap_or_default();
                    flow.as_sent(quoted.get(8..).unwrap_or_default(), sequence)
                }
                false => flow.as_sent(quoted, 0),
            };
            let start = [error.kind, error.code, 0, 0, 0, 0, 0, 0];
            self.link.send(packet::error(error.from, flow.cell.ip(), start, &quoted));
        }
        Taken::Some
    }
}

/// Share that was taken of what has come for a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    All,
    /// There may be more; others go first.
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
struct Carried {
    flow: Flow,
    socket: AsyncFd<OwnedFd>,
    entry: Entry,
    sent: u64,
    received: u64,
    /// Time to live that the socket has; 0 at first.
    hops: u8,
}

/// An error from the network.
#[derive(Debug)]
struct NetworkError {
    from: IpAddr,
    kind: u8,
    code: u8,
    /// Bytes of the packet that it is about.
    quoted: usize,
}

impl Carried {
    fn set_hops(&self, hops: u8) -> Result<(), Errno> {
        let hops = i32::from(hops);
        match self.flow.remote {
            SocketAddr::V4(_) => setsockopt(self.socket.get_ref(), sockopt::Ipv4Ttl, &hops),
            SocketAddr::V6(_) => setsockopt(self.socket.get_ref(), sockopt::Ipv6Ttl, &hops),
        }
    }

    /// Takes the next error off the queue of the socket (ip(7), IP_RECVERR). Returns nothing for one of this
    /// machine.
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
                // Unreachable, and time exceeded; what concerns sizes is between the host and the network.
                let passes = match from {
                    IpAddr::V4(_) => {
                        matches!((error.ee_type, error.ee_code), (3, 0..=3 | 5..=15) | (11, _))
                    }
                    IpAddr::V6(_) => matches!(error.ee_type, 1 | 3),
                };
                if from_network && passes {
                    let (kind, code) = (error.ee_type, error.ee_code);
                    return Ok(Some(NetworkError { from, kind, code, quoted }));
                }
            }
        }
    }
}

/// Returns an error of the network, and who sent it.
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
