//! Carries one TCP connection, from the segment that opens it to its end.
//!
//! The cell gets its answer only after the host has connected: a destination that refuses, is
//! unreachable or stays silent does so to the cell too.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model::egress::frames::CallId;
use model::egress::{ConnectionEnd, Protocol};
use nix::errno::Errno;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::account::Entry;
use super::first_flight::{self, FirstFlight};
use super::judge::{Allowed, Decision, Named};
use super::packet::{self, Packet, Undelivered};
use super::relay::Relay;
use super::sockets::NoSocket;
use super::stack::{CellStream, Ends, MAX_CONNECTIONS, Reuse, Stack, lock};
use super::traffic::{CellTraffic, ConnectionRecord};
use super::unsent::UnsentGuard;
use crate::intercept::CellRequests;
use crate::refusal::NetworkRefusal;

/// Maximum pending connects; further SYNs are dropped and retransmitted by the cell.
pub(super) const MAX_CONNECTING: usize = 512;

/// Time after which a pending connect is abandoned: as long as Linux tries by default.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(130);
/// Time in which the cell or the server must send its first bytes where the host's name is to be
/// read.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(120);
/// Ports on which rules by name expect TLS or HTTP, where no server sends first.
const CLIENT_FIRST_PORTS: [u16; 4] = [80, 443, 8_080, 8_443];

/// How a connection is relayed, and for which host.
enum RelayMode {
    /// Relayed without reading a host name.
    Opaque,
    /// Relayed, for this host by this rule.
    Named { rule: String, name: String },
    /// Relayed request by request, each judged.
    Requests { rule: String, name: String },
}

/// The packet that opens a connection.
#[derive(Debug)]
pub(crate) struct Opening {
    /// The call that was running when the packet came.
    pub call: CallId,
    pub ends: Ends,
    /// The IP packet with the SYN segment.
    pub syn: Vec<u8>,
    pub packet: Packet,
}

/// A connection that the cell opens, and that is to be carried by a task.
#[derive(Debug)]
pub(super) struct Attempt {
    pub opening: Opening,
    /// Counts until the attempt is judged.
    pub guard: UnsentGuard,
}

/// The TCP connections of a cell.
#[derive(Debug)]
pub(super) struct Connections {
    pub traffic: Arc<CellTraffic>,
    pub stack: Arc<Mutex<Stack>>,
    /// Wakes the worker's loop if the stack has something to send.
    pub poke: Arc<Notify>,
    pub connecting: Mutex<HashSet<Ends>>,
    pub requests: CellRequests,
    /// One reference for each connection that has no line in the audit log yet.
    pub unlogged: Arc<()>,
    /// Changes when the remaining connections must end: the cell is gone and they had their time to
    /// drain.
    pub over: watch::Receiver<()>,
}

impl Connections {
    /// Passes a segment to its connection. Returns the new connection if it opens one.
    pub(super) fn segment(
        &self,
        stack: &mut Stack,
        ends: Ends,
        packet: Packet,
        opens: bool,
        resets: bool,
    ) -> Option<Attempt> {
        let is_known = match stack.reuse(&ends) {
            Reuse::Open => true,
            // Dropped: the cell retransmits it, and by then the old connection is gone.
            Reuse::Ending if opens => return None,
            Reuse::Ending => true,
            Reuse::Free => stack.has(&ends) && !opens,
        };
        if is_known {
            stack.segment(&ends, packet.ip);
            return None;
        }
        let ip = stack.frame(packet.ip.end).get(packet.ip.start..).unwrap_or_default();
        if !opens {
            if !resets && !lock(&self.connecting).contains(&ends) {
                self.traffic.link.send(packet::reset(ip, &packet));
            }
            return None;
        }
        let mut connecting = lock(&self.connecting);
        if connecting.len() >= MAX_CONNECTING || stack.connections() >= MAX_CONNECTIONS {
            return None;
        }
        // A retransmitted SYN while the host is still connecting.
        if !connecting.insert(ends) {
            return None;
        }
        drop(connecting);
        let call = self.traffic.call();
        // Dropped if there is no room: the cell retransmits it.
        let Some(guard) = self.traffic.unsent.add(call, 0) else {
            self.end_connecting(&ends);
            return None;
        };
        let opening = Opening { call, ends, syn: ip.to_vec(), packet };
        Some(Attempt { opening, guard })
    }

    /// Ends the time in which a SYN of these ends is dropped as a retransmitted one.
    pub(super) fn end_connecting(&self, ends: &Ends) {
        lock(&self.connecting).remove(ends);
    }

    /// Accepts a connection; returns its stream, unless there is no room.
    pub(super) fn accept(&self, opening: &Opening) -> Option<CellStream> {
        self.end_connecting(&opening.ends);
        CellStream::accept(&self.stack, &self.poke, opening.ends, &opening.syn)
    }

    /// Judges a connection, connects, answers the cell and relays.
    pub(super) async fn carry(&self, opening: Opening) {
        let ends = opening.ends;
        let to = ends.remote;
        let since = Instant::now();
        let call = opening.call;
        let decision = lock(&self.traffic.judge).decide(Protocol::Tcp, to.ip(), Some(to.port()));
        let allowed = match decision {
            Decision::Allowed(allowed) => allowed,
            Decision::Refused(refusal) => return self.refuse(&opening, call, None, refusal),
        };
        let shown = allowed.name().map(|name| format!("{name}:{}", to.port()));
        let rule = allowed.rule().to_owned();
        let entry = Entry { call, to: shown.unwrap_or_else(|| to.to_string()), rule };
        let mut record = ConnectionRecord::new(entry, allowed.name().map(str::to_owned), since);
        let room = lock(&self.traffic.account).check_room(call);
        if let Err(refusal) = room {
            return self.refuse(&opening, call, None, refusal);
        }
        let mut over = self.over.clone();
        let verdict = tokio::select! {
            biased;
            verdict = self.connect(&opening, &allowed, &mut record) => verdict,
            // The cell is gone and its connections had their time to drain; bytes already sent stay
            // sent.
            _ = over.changed() => Some(match lock(&self.connecting).contains(&ends) {
                true => ConnectionEnd::Timeout,
                false => ConnectionEnd::Relayed,
            }),
        };
        let Some(verdict) = verdict else { return };
        self.traffic.audit_closed(Protocol::Tcp, to, record, verdict);
    }

    /// Counts a refusal and reports it to the cell.
    fn refuse(
        &self,
        opening: &Opening,
        call: CallId,
        name: Option<String>,
        refusal: NetworkRefusal,
    ) {
        self.traffic.deny(call, Protocol::Tcp, opening.ends.remote, name, refusal);
        self.undelivered(opening, Undelivered::Denied);
    }

    /// Connects on the host and answers the cell accordingly. Returns how the connection ended;
    /// `None` if it was refused, which has been audited already.
    async fn connect(
        &self,
        opening: &Opening,
        allowed: &Allowed,
        record: &mut ConnectionRecord,
    ) -> Option<ConnectionEnd> {
        let to = opening.ends.remote;
        let call = record.entry.call;
        let host = match timeout(CONNECT_TIMEOUT, self.traffic.sockets.stream(to)).await {
            Ok(Ok(host)) => host,
            // No answer, as from a network that drops the packets.
            Err(_) => return Some(ConnectionEnd::Timeout),
            Ok(Err(NoSocket::Refused(reason))) => {
                self.refuse(opening, call, None, NetworkRefusal::new(reason));
                return None;
            }
            Ok(Err(NoSocket::NoRoute(errno))) => {
                self.undelivered(opening, unreachable(errno));
                return Some(ConnectionEnd::Unreachable);
            }
            Ok(Err(NoSocket::Failed(errno))) => {
                return self.not_connected(opening, call, errno);
            }
        };
        // Counted only now: a scan has more pending connects than the profile allows open
        // connections.
        let entered = lock(&self.traffic.account).take_slot(call);
        if let Err(refusal) = entered {
            self.refuse(opening, call, record.name.clone(), refusal);
            return None;
        }
        let end = self.accept_and_relay(host, opening, allowed, record).await;
        lock(&self.traffic.account).release_slot(call);
        end
    }

    /// Answers the cell, reads for which host the connection is, and relays it. Returns how the
    /// connection ended; `None` if it was refused.
    async fn accept_and_relay(
        &self,
        host: TcpStream,
        opening: &Opening,
        allowed: &Allowed,
        record: &mut ConnectionRecord,
    ) -> Option<ConnectionEnd> {
        let to = opening.ends.remote;
        let Some(cell) = self.accept(opening) else { return Some(ConnectionEnd::Limit) };
        if cell.established().await.is_err() {
            return Some(ConnectionEnd::Relayed);
        }
        let mode = match self.relay_mode(&cell, &host, allowed, to).await {
            Ok(mode) => mode,
            Err(refusal) => {
                self.traffic.deny(
                    record.entry.call,
                    Protocol::Tcp,
                    to,
                    record.name.clone(),
                    refusal,
                );
                cell.abort();
                return None;
            }
        };
        let by_request = matches!(mode, RelayMode::Requests { .. });
        match mode {
            RelayMode::Opaque => {}
            RelayMode::Named { rule, name } | RelayMode::Requests { rule, name } => {
                let call = record.entry.call;
                record.entry = Entry { call, to: format!("{name}:{}", to.port()), rule };
                record.name = Some(name);
            }
        }
        lock(&self.traffic.account).count_opened(&record.entry);
        if by_request {
            return Some(self.relay_requests(cell, host, allowed, record, to).await);
        }
        let ConnectionRecord { entry, sent, received, .. } = record;
        let relay = Relay { traffic: &self.traffic, cell: &cell, host: &host, entry };
        Some(relay.run(sent, received).await)
    }

    /// Answers a segment for which the host could not connect. Returns how the connection ended;
    /// `None` if it was refused.
    fn not_connected(
        &self,
        opening: &Opening,
        call: CallId,
        errno: Errno,
    ) -> Option<ConnectionEnd> {
        if matches!(errno, Errno::ECONNREFUSED | Errno::ECONNRESET) {
            self.traffic.link.send(packet::reset(&opening.syn, &opening.packet));
            return Some(ConnectionEnd::Refused);
        }
        if errno == Errno::ETIMEDOUT {
            return Some(ConnectionEnd::Timeout);
        }
        if matches!(errno, Errno::ENETUNREACH | Errno::EHOSTUNREACH) {
            self.undelivered(opening, unreachable(errno));
            return Some(ConnectionEnd::Unreachable);
        }
        // A firewall of the host, Landlock, or no free ports or descriptors.
        let reason = format!("the host refuses to connect: {}", errno.desc());
        self.refuse(opening, call, None, NetworkRefusal::new(reason));
        None
    }

    fn undelivered(&self, opening: &Opening, reason: Undelivered) {
        self.traffic.link.send(packet::undelivered(&opening.syn, opening.ends.cell.ip(), reason));
    }

    /// Decides how to relay a connection; reads the host's name where only rules by name allow the
    /// destination.
    async fn relay_mode(
        &self,
        cell: &CellStream,
        host: &TcpStream,
        allowed: &Allowed,
        to: SocketAddr,
    ) -> Result<RelayMode, NetworkRefusal> {
        let reads = allowed.named.iter().any(|named| self.intercepts(named));
        if allowed.open.is_some() && !reads {
            return Ok(RelayMode::Opaque);
        }
        let first = timeout(FIRST_BYTES_TIMEOUT, first_bytes(cell, host)).await;
        let first = first.map_err(|_| NetworkRefusal::new("nothing was said that names a host"))?;
        let strict = CLIENT_FIRST_PORTS.contains(&to.port()) || reads;
        let is_http = matches!(first, First::Flight(FirstFlight::Http(_)));
        let name = match first {
            First::Server if strict => {
                return Err(NetworkRefusal::new("the server spoke first on a port of TLS or HTTP"));
            }
            First::Flight(FirstFlight::Other) if strict => {
                return Err(NetworkRefusal::new("neither TLS nor HTTP on a port of TLS or HTTP"));
            }
            First::Server | First::Flight(FirstFlight::Other) => return Ok(RelayMode::Opaque),
            First::Flight(FirstFlight::Tls(name)) => {
                name.ok_or_else(|| NetworkRefusal::new("TLS without a server name"))?
            }
            First::Flight(FirstFlight::Http(name)) => {
                name.ok_or_else(|| NetworkRefusal::new("a request without one plain Host"))?
            }
            First::Flight(FirstFlight::Http2) => {
                return Err(NetworkRefusal::new("HTTP/2 without TLS is not read"));
            }
            First::Flight(FirstFlight::More | FirstFlight::Malformed) => {
                return Err(NetworkRefusal::new("TLS or HTTP that cannot be read"));
            }
        };
        let is = |named: &&Named| named.names.contains(&name);
        match (allowed.named.iter().find(is), &allowed.open) {
            (Some(named), _)
                if is_http || allowed.named.iter().filter(is).any(|it| self.intercepts(it)) =>
            {
                Ok(RelayMode::Requests { rule: named.id.clone(), name })
            }
            (Some(named), _) => Ok(RelayMode::Named { rule: named.id.clone(), name }),
            (None, Some(open)) => Ok(RelayMode::Named { rule: open.clone(), name }),
            (None, None) => {
                let reason =
                    format!("the connection is for {name}, which was not resolved to {}", to.ip());
                Err(NetworkRefusal::new(reason))
            }
        }
    }

    fn intercepts(&self, named: &Named) -> bool {
        let judge = lock(&self.traffic.judge);
        judge.rule(named.rule).is_none_or(model::egress::EgressRule::intercepts)
    }
}

/// The side that sent first.
#[derive(Debug)]
enum First {
    Server,
    Flight(FirstFlight),
}

/// Waits for the server's first byte, or for enough bytes of the cell to name a host.
async fn first_bytes(cell: &CellStream, host: &TcpStream) -> First {
    let mut seen = 0;
    loop {
        let more = std::future::poll_fn(|context| {
            let length = cell.peek(<[u8]>::len);
            if length > seen {
                return std::task::Poll::Ready(true);
            }
            // Wakes for more bytes than were seen; `poll_readable` would return at once for those.
            cell.poll_more(context)
        });
        tokio::select! {
            biased;
            more = more => {
                let (length, flight) = cell.peek(|bytes| {
                    let head = bytes.get(..first_flight::MAX_BYTES).unwrap_or(bytes);
                    (bytes.len(), first_flight::read(head))
                });
                if flight != FirstFlight::More {
                    return First::Flight(flight);
                }
                if !more {
                    return First::Flight(FirstFlight::Malformed);
                }
                seen = length;
            }
            _ = host.readable() => return First::Server,
        }
    }
}

/// Returns the ICMP error for a missing route.
pub(crate) fn unreachable(errno: Errno) -> Undelivered {
    if errno == Errno::ENETUNREACH { Undelivered::NoNetwork } else { Undelivered::NoHost }
}
