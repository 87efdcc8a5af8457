//! Carries one TCP connection, from the segment that opens it to its end.
//!
//! The cell gets its answer only after the host has connected: a destination that refuses, is
//! unreachable or stays silent does so to the cell too.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::egress::frames::CallId;
use model::egress::{ConnectionEnd, Protocol};
use nix::errno::Errno;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Worker;
use super::account::{Allowance, Direction, Entry};
use super::first_flight::{self, FirstFlight};
use super::judge::{Allowed, Decision, Named, Refusal};
use super::packet::{self, Packet, Undelivered};
use super::sockets::NoSocket;
use super::stack::{CellStream, Ends, Ready, lock};

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

/// Audit data of a connection.
pub(super) struct ConnectionRecord {
    pub(super) entry: Entry,
    pub(super) name: Option<String>,
    since: Instant,
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Worker {
    /// Judges a connection, connects, answers the cell and relays.
    pub(crate) async fn connection(self: Arc<Self>, opening: Opening) {
        let ends = opening.ends;
        let to = ends.remote;
        let since = Instant::now();
        let call = opening.call;
        let decision = lock(&self.judge).decide(Protocol::Tcp, to.ip(), Some(to.port()));
        let allowed = match decision {
            Decision::Allowed(allowed) => allowed,
            Decision::Refused(refusal) => return self.refuse(&opening, call, None, refusal),
        };
        let shown = allowed.name().map(|name| format!("{name}:{}", to.port()));
        let rule = allowed.rule().to_owned();
        let entry = Entry { call, to: shown.unwrap_or_else(|| to.to_string()), rule };
        let mut record = ConnectionRecord {
            entry,
            name: allowed.name().map(str::to_owned),
            since,
            sent: 0,
            received: 0,
        };
        let room = lock(&self.account).check_room(call);
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
        self.audit_closed(Protocol::Tcp, to, record, verdict);
    }

    /// Counts a refusal and reports it to the cell.
    fn refuse(&self, opening: &Opening, call: CallId, name: Option<String>, refusal: Refusal) {
        self.deny(call, Protocol::Tcp, opening.ends.remote, name, refusal);
        self.undelivered(opening, Undelivered::Denied);
    }

    /// Connects on the host and answers the cell accordingly. Returns how the connection ended;
    /// `None` if it was refused, which has been audited already.
    async fn connect(
        self: &Arc<Self>,
        opening: &Opening,
        allowed: &Allowed,
        record: &mut ConnectionRecord,
    ) -> Option<ConnectionEnd> {
        let to = opening.ends.remote;
        let call = record.entry.call;
        let host = match timeout(CONNECT_TIMEOUT, self.sockets.stream(to)).await {
            Ok(Ok(host)) => host,
            // No answer, as from a network that drops the packets.
            Err(_) => return Some(ConnectionEnd::Timeout),
            Ok(Err(NoSocket::Refused(reason))) => {
                self.refuse(opening, call, None, refusal(&reason));
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
        let entered = lock(&self.account).take_slot(call);
        if let Err(refusal) = entered {
            self.refuse(opening, call, record.name.clone(), refusal);
            return None;
        }
        let end = self.accept(host, opening, allowed, record).await;
        lock(&self.account).release_slot(call);
        end
    }

    /// Answers the cell, reads for which host the connection is, and relays it. Returns how the
    /// connection ended; `None` if it was refused.
    async fn accept(
        self: &Arc<Self>,
        host: TcpStream,
        opening: &Opening,
        allowed: &Allowed,
        record: &mut ConnectionRecord,
    ) -> Option<ConnectionEnd> {
        let to = opening.ends.remote;
        self.end_connecting(&opening.ends);
        let accepted = CellStream::accept(&self.stack, &self.poke, opening.ends, &opening.syn);
        let Some(cell) = accepted else { return Some(ConnectionEnd::Limit) };
        if cell.established().await.is_err() {
            return Some(ConnectionEnd::Relayed);
        }
        let mode = match self.relay_mode(&cell, &host, allowed, to).await {
            Ok(mode) => mode,
            Err(refusal) => {
                self.deny(record.entry.call, Protocol::Tcp, to, record.name.clone(), refusal);
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
        lock(&self.account).count_opened(&record.entry);
        Some(match by_request {
            true => self.relay_requests(cell, host, allowed, record, to).await,
            false => self.relay(&cell, &host, record).await,
        })
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
            self.link.send(packet::reset(&opening.syn, &opening.packet));
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
        self.refuse(opening, call, None, refusal(&reason));
        None
    }

    fn undelivered(&self, opening: &Opening, reason: Undelivered) {
        self.link.send(packet::undelivered(&opening.syn, opening.ends.cell.ip(), reason));
    }

    /// Decides how to relay a connection; reads the host's name where only rules by name allow the
    /// destination.
    async fn relay_mode(
        &self,
        cell: &CellStream,
        host: &TcpStream,
        allowed: &Allowed,
        to: SocketAddr,
    ) -> Result<RelayMode, Refusal> {
        let reads = allowed.named.iter().any(|named| self.intercepts(named));
        if allowed.open.is_some() && !reads {
            return Ok(RelayMode::Opaque);
        }
        let first = timeout(FIRST_BYTES_TIMEOUT, first_bytes(cell, host)).await;
        let first = first.map_err(|_| refusal("nothing was said that names a host"))?;
        let strict = CLIENT_FIRST_PORTS.contains(&to.port()) || reads;
        let is_http = matches!(first, First::Flight(FirstFlight::Http(_)));
        let name = match first {
            First::Server if strict => {
                return Err(refusal("the server spoke first on a port of TLS or HTTP"));
            }
            First::Flight(FirstFlight::Other) if strict => {
                return Err(refusal("neither TLS nor HTTP on a port of TLS or HTTP"));
            }
            First::Server | First::Flight(FirstFlight::Other) => return Ok(RelayMode::Opaque),
            First::Flight(FirstFlight::Tls(name)) => {
                name.ok_or_else(|| refusal("TLS without a server name"))?
            }
            First::Flight(FirstFlight::Http(name)) => {
                name.ok_or_else(|| refusal("a request without one plain Host"))?
            }
            First::Flight(FirstFlight::Http2) => {
                return Err(refusal("HTTP/2 without TLS is not read"));
            }
            First::Flight(FirstFlight::More | FirstFlight::Malformed) => {
                return Err(refusal("TLS or HTTP that cannot be read"));
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
                Err(refusal(&reason))
            }
        }
    }

    fn intercepts(&self, named: &Named) -> bool {
        let judge = lock(&self.judge);
        judge.rule(named.rule).is_none_or(model::egress::EgressRule::intercepts)
    }

    /// Moves bytes both ways until both sides have closed or a limit is reached.
    async fn relay(
        &self,
        cell: &CellStream,
        host: &TcpStream,
        record: &mut ConnectionRecord,
    ) -> ConnectionEnd {
        let ConnectionRecord { entry, sent, received, .. } = record;
        let both = async {
            tokio::try_join!(
                self.to_host(cell, host, entry, sent),
                self.to_cell(cell, host, entry, received)
            )
        };
        let result = tokio::select! {
            biased;
            result = both => result,
            // Both directions may be waiting for the server only.
            () = cell.reset() => Err(RelayError::Reset),
        };
        match result {
            Ok(_) => ConnectionEnd::Relayed,
            Err(RelayError::Limit) => {
                cut(cell, host);
                ConnectionEnd::Limit
            }
            Err(RelayError::Reset) => {
                cut(cell, host);
                ConnectionEnd::Relayed
            }
        }
    }

    async fn to_host(
        &self,
        cell: &CellStream,
        host: &TcpStream,
        entry: &Entry,
        count: &mut u64,
    ) -> Result<(), RelayError> {
        while cell.readable().await? == Ready::Yes {
            self.wait_for_allowance(entry.call, Direction::Sent).await?;
            host.writable().await?;
            let moved = self.transfer(entry, Direction::Sent, |max_bytes| {
                cell.receive(|bytes| {
                    let length = bytes.len().min(max_bytes);
                    let result = host.try_write(bytes.get(..length).unwrap_or_default());
                    (*result.as_ref().unwrap_or(&0), result)
                })
            })?;
            *count = count.saturating_add(moved.bytes());
        }
        shut_down(host);
        // The program may be gone; a cell that waits for nothing would never send a reset by
        // itself.
        cell.enable_keep_alive();
        Ok(())
    }

    async fn to_cell(
        &self,
        cell: &CellStream,
        host: &TcpStream,
        entry: &Entry,
        count: &mut u64,
    ) -> Result<(), RelayError> {
        loop {
            self.wait_for_allowance(entry.call, Direction::Received).await?;
            host.readable().await?;
            cell.writable().await?;
            let moved = self.transfer(entry, Direction::Received, |max_bytes| {
                cell.send(|room| {
                    let length = room.len().min(max_bytes);
                    let result = host.try_read(room.get_mut(..length).unwrap_or_default());
                    (*result.as_ref().unwrap_or(&0), result)
                })
            })?;
            if moved == Moved::Bytes(0) {
                break;
            }
            *count = count.saturating_add(moved.bytes());
        }
        cell.finish();
        // Half closed: the cell may keep sending.
        Ok(())
    }

    /// Moves as many bytes as the call may move now, and counts them. `transfer` is a plain closure
    /// so that it cannot await: otherwise each connection of the call could move the same bytes of
    /// its limits.
    fn transfer(
        &self,
        entry: &Entry,
        direction: Direction,
        try_move: impl FnOnce(usize) -> io::Result<io::Result<usize>>,
    ) -> Result<Moved, RelayError> {
        let allowance = lock(&self.account).allowance(entry.call, direction);
        let max_bytes = match allowance {
            Allowance::Bytes(bytes) => bytes,
            // The caller waits before the next try.
            Allowance::Wait(_) => return Ok(Moved::Later),
            Allowance::Over => return Err(RelayError::Limit),
        };
        match try_move(max_bytes)? {
            Ok(bytes) => {
                lock(&self.account).count_moved(entry, direction, bytes);
                Ok(Moved::Bytes(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Moved::Later),
            Err(_) => Err(RelayError::Reset),
        }
    }

    /// Waits until bytes may be moved.
    async fn wait_for_allowance(
        &self,
        call: CallId,
        direction: Direction,
    ) -> Result<(), RelayError> {
        loop {
            let allowance = lock(&self.account).allowance(call, direction);
            match allowance {
                Allowance::Bytes(_) => return Ok(()),
                Allowance::Wait(time) => tokio::time::sleep(time).await,
                Allowance::Over => return Err(RelayError::Limit),
            }
        }
    }

    /// Reports a closed connection to the audit log.
    fn audit_closed(
        &self,
        protocol: Protocol,
        address: SocketAddr,
        record: ConnectionRecord,
        verdict: ConnectionEnd,
    ) {
        let milliseconds = u64::try_from(record.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let connection = model::egress::Connection {
            protocol,
            name: record.name,
            address,
            rule: Some(record.entry.rule),
            sent: record.sent,
            received: record.received,
            milliseconds,
            end: verdict,
            request: None,
        };
        self.audit(record.entry.call, connection);
    }
}

/// Number of bytes moved, or `Later` if the other side or the rate had no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    Bytes(usize),
    Later,
}

impl Moved {
    fn bytes(self) -> u64 {
        match self {
            Self::Bytes(bytes) => u64::try_from(bytes).unwrap_or(u64::MAX),
            Self::Later => 0,
        }
    }
}

/// Why a relay ended before both sides had closed.
#[derive(Debug)]
enum RelayError {
    Reset,
    Limit,
}

impl From<io::Error> for RelayError {
    fn from(_: io::Error) -> Self {
        Self::Reset
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

/// Closes both sides with a reset.
fn cut(cell: &CellStream, host: &TcpStream) {
    cell.abort();
    // On failure closing the socket sends FIN or RST anyway.
    nix::sys::socket::setsockopt(
        host,
        nix::sys::socket::sockopt::Linger,
        &nix::libc::linger { l_onoff: 1, l_linger: 0 },
    )
    .unwrap_or_default();
}

/// Signals to the server that no more bytes come. Fails only if the server has closed already.
fn shut_down(host: &TcpStream) {
    use std::os::fd::AsRawFd;
    nix::sys::socket::shutdown(host.as_raw_fd(), nix::sys::socket::Shutdown::Write)
        .unwrap_or_default();
}

fn refusal(reason: &str) -> Refusal {
    Refusal { reason: reason.to_owned(), grant: None }
}

/// Returns the ICMP error for a missing route.
pub(crate) fn unreachable(errno: Errno) -> Undelivered {
    if errno == Errno::ENETUNREACH { Undelivered::NoNetwork } else { Undelivered::NoHost }
}
