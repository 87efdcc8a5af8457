//! One TCP connection, from the segment that opens it to its end.
//!
//! The cell gets its answer only once the host has one: what is refused, unreachable or silent to the host is so to
//! the cell.

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
use super::account::{Allowance, Entry, Way};
use super::first_flight::{self, FirstFlight};
use super::judge::{Allowed, Decision, Named, Refusal};
use super::packet::{self, Packet, Undelivered};
use super::sockets::NoSocket;
use super::stack::{CellStream, Ends, Ready, hold};

/// Time after which a connection that the host could not make is forgotten: as long as Linux tries by default.
const CONNECT: Duration = Duration::from_secs(130);
/// Time in which the cell or the server must say the first word where the host's name is to be read.
const FIRST_WORD: Duration = Duration::from_secs(120);
/// Ports on which rules by name expect TLS or HTTP: no server speaks first there.
const NAMED_FIRST: [u16; 4] = [80, 443, 8_080, 8_443];

/// The host that a connection is for, and how it goes on.
enum Spoken {
    /// It is relayed, and nothing was read.
    Unread,
    /// It is relayed, and is for this host by this rule.
    Named { rule: String, name: String },
    /// Each of its requests is judged.
    Requests { rule: String, name: String },
}

/// The packet that opens a connection.
#[derive(Debug)]
pub(crate) struct Opening {
    /// The call that ran when it came.
    pub call: CallId,
    pub ends: Ends,
    /// The IP packet.
    pub syn: Vec<u8>,
    pub packet: Packet,
}

/// A connection as it is told when it closes.
pub(super) struct Told {
    pub(super) entry: Entry,
    pub(super) name: Option<String>,
    since: Instant,
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Worker {
    /// Judges, connects, answers and relays.
    pub(crate) async fn connection(self: Arc<Self>, opening: Opening) {
        let ends = opening.ends;
        let (to, since, call) = (ends.remote, Instant::now(), opening.call);
        let decision = hold(&self.judge).decide(Protocol::Tcp, to.ip(), Some(to.port()));
        let allowed = match decision {
            Decision::Allowed(allowed) => allowed,
            Decision::Refused(refusal) => return self.refused(&opening, call, None, refusal),
        };
        let shown = allowed.name().map(|name| format!("{name}:{}", to.port()));
        let rule = allowed.rule().to_owned();
        let entry = Entry { call, to: shown.unwrap_or_else(|| to.to_string()), rule };
        let mut told =
            Told { entry, name: allowed.name().map(str::to_owned), since, sent: 0, received: 0 };
        let room = hold(&self.account).room(call);
        if let Err(refusal) = room {
            return self.refused(&opening, call, None, refusal);
        }
        let mut over = self.over.clone();
        let verdict = tokio::select! {
            biased;
            verdict = self.connected(&opening, &allowed, &mut told) => verdict,
            // Ends it as the cell is gone, and the server has had its time: what it was sent stays sent.
            _ = over.changed() => Some(match hold(&self.connecting).contains(&ends) {
                true => ConnectionEnd::Timeout,
                false => ConnectionEnd::Relayed,
            }),
        };
        let Some(verdict) = verdict else { return };
        self.closed(Protocol::Tcp, to, told, verdict);
    }

    /// Counts a refusal, and answers the cell with it.
    fn refused(&self, opening: &Opening, call: CallId, name: Option<String>, refusal: Refusal) {
        self.deny(call, (Protocol::Tcp, opening.ends.remote), name, refusal);
        self.undelivered(opening, Undelivered::Denied);
    }

    /// Connects on the host and answers the cell accordingly. Returns how it ended; nothing where it was refused, which
    /// is told already.
    async fn connected(
        self: &Arc<Self>,
        opening: &Opening,
        allowed: &Allowed,
        told: &mut Told,
    ) -> Option<ConnectionEnd> {
        let (to, call) = (opening.ends.remote, told.entry.call);
        let host = match timeout(CONNECT, self.sockets.stream(to)).await {
            Ok(Ok(host)) => host,
            // Silence, as the program would have it from the network.
            Err(_) => return Some(ConnectionEnd::Timeout),
            Ok(Err(NoSocket::Refused(why))) => {
                self.refused(opening, call, None, refusal(&why));
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
        // Only now: a scan has more on their way than a profile lets be open.
        let entered = hold(&self.account).enters(call);
        if let Err(refusal) = entered {
            self.refused(opening, call, told.name.clone(), refusal);
            return None;
        }
        let end = self.accepted(host, opening, allowed, told).await;
        hold(&self.account).closes(call);
        end
    }

    /// Answers the cell, reads for which host the connection is, and carries it. Returns how it ended; nothing where it was
    /// refused.
    async fn accepted(
        self: &Arc<Self>,
        host: TcpStream,
        opening: &Opening,
        allowed: &Allowed,
        told: &mut Told,
    ) -> Option<ConnectionEnd> {
        let to = opening.ends.remote;
        self.connecting_is_over(&opening.ends);
        let accepted = CellStream::accept(&self.stack, &self.poke, opening.ends, &opening.syn);
        let Some(cell) = accepted else { return Some(ConnectionEnd::Limit) };
        if cell.established().await.is_err() {
            return Some(ConnectionEnd::Relayed);
        }
        let spoken = match self.spoken(&cell, &host, allowed, to).await {
            Ok(spoken) => spoken,
            Err(refusal) => {
                self.deny(told.entry.call, (Protocol::Tcp, to), told.name.clone(), refusal);
                cell.abort();
                return None;
            }
        };
        let reads = matches!(spoken, Spoken::Requests { .. });
        match spoken {
            Spoken::Unread => {}
            Spoken::Named { rule, name } | Spoken::Requests { rule, name } => {
                let call = told.entry.call;
                told.entry = Entry { call, to: format!("{name}:{}", to.port()), rule };
                told.name = Some(name);
            }
        }
        hold(&self.account).opened(&told.entry);
        Some(match reads {
            true => self.requested(cell, host, allowed, told, to).await,
            false => self.relayed(&cell, &host, told).await,
        })
    }

    /// Answers a segment whose connection the host could not make. Returns how it ended; nothing where it was refused.
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
        // By a firewall of the host, by Landlock, or for want of ports or descriptors.
        let why = format!("the host refuses to connect: {}", errno.desc());
        self.refused(opening, call, None, refusal(&why));
        None
    }

    fn undelivered(&self, opening: &Opening, why: Undelivered) {
        self.link.send(packet::undelivered(&opening.syn, opening.ends.cell.ip(), why));
    }

    /// Reads for which host the connection is, where only rules by name allow it.
    async fn spoken(
        &self,
        cell: &CellStream,
        host: &TcpStream,
        allowed: &Allowed,
        to: SocketAddr,
    ) -> Result<Spoken, Refusal> {
        let reads = allowed.named.iter().any(|named| self.intercepts(named));
        if allowed.open.is_some() && !reads {
            return Ok(Spoken::Unread);
        }
        let first = timeout(FIRST_WORD, first_word(cell, host)).await;
        let first = first.map_err(|_| refusal("nothing was said that names a host"))?;
        let strict = NAMED_FIRST.contains(&to.port()) || reads;
        let is_http = matches!(first, First::Flight(FirstFlight::Http(_)));
        let name = match first {
            First::Server if strict => {
                return Err(refusal("the server spoke first on a port of TLS or HTTP"));
            }
            First::Flight(FirstFlight::Other) if strict => {
                return Err(refusal("neither TLS nor HTTP on a port of TLS or HTTP"));
            }
            First::Server | First::Flight(FirstFlight::Other) => return Ok(Spoken::Unread),
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
                Ok(Spoken::Requests { rule: named.id.clone(), name })
            }
            (Some(named), _) => Ok(Spoken::Named { rule: named.id.clone(), name }),
            (None, Some(open)) => Ok(Spoken::Named { rule: open.clone(), name }),
            (None, None) => {
                let why =
                    format!("the connection is for {name}, which was not resolved to {}", to.ip());
                Err(refusal(&why))
            }
        }
    }

    fn intercepts(&self, named: &Named) -> bool {
        let judge = hold(&self.judge);
        judge.rule(named.rule).is_none_or(model::egress::EgressRule::intercepts)
    }

    /// Moves bytes both ways until both are closed, or a limit is reached.
    async fn relayed(&self, cell: &CellStream, host: &TcpStream, told: &mut Told) -> ConnectionEnd {
        let Told { entry, sent, received, .. } = told;
        let both = async {
            tokio::try_join!(
                self.to_host(cell, host, entry, sent),
                self.to_cell(cell, host, entry, received)
            )
        };
        let result = tokio::select! {
            biased;
            result = both => result,
            // Either direction may be waiting for the server alone.
            () = cell.reset() => Err(Broken::Reset),
        };
        match result {
            Ok(_) => ConnectionEnd::Relayed,
            Err(Broken::Limit) => {
                cut(cell, host);
                ConnectionEnd::Limit
            }
            Err(Broken::Reset) => {
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
    ) -> Result<(), Broken> {
        while cell.readable().await? == Ready::Yes {
            self.allowance(entry.call, Way::Sent).await?;
            host.writable().await?;
            let moved = self.moves(entry, Way::Sent, |most| {
                cell.receive(|bytes| {
                    let length = bytes.len().min(most);
                    let result = host.try_write(bytes.get(..length).unwrap_or_default());
                    (*result.as_ref().unwrap_or(&0), result)
                })
            })?;
            *count = count.saturating_add(moved.bytes());
        }
        shut_down(host);
        // Its program may be gone, which a cell that waits for nothing would never say.
        cell.keep_asking();
        Ok(())
    }

    async fn to_cell(
        &self,
        cell: &CellStream,
        host: &TcpStream,
        entry: &Entry,
        count: &mut u64,
    ) -> Result<(), Broken> {
        loop {
            self.allowance(entry.call, Way::Received).await?;
            host.readable().await?;
            cell.writable().await?;
            let moved = self.moves(entry, Way::Received, |most| {
                cell.send(|room| {
                    let length = room.len().min(most);
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
        // Half closed: the cell may go on sending for as long as it does.
        Ok(())
    }

    /// Moves as many bytes as the call may move now, and counts them. A wait between the two would let each of the call's
    /// connections move the same bytes of its limits, which a closure that is no future cannot have.
    fn moves(
        &self,
        entry: &Entry,
        way: Way,
        transfer: impl FnOnce(usize) -> io::Result<io::Result<usize>>,
    ) -> Result<Moved, Broken> {
        let allowance = hold(&self.account).allowance(entry.call, way);
        let most = match allowance {
            Allowance::Bytes(most) => most,
            // Waits before the next try.
            Allowance::Wait(_) => return Ok(Moved::Later),
            Allowance::Over => return Err(Broken::Limit),
        };
        match transfer(most)? {
            Ok(bytes) => {
                hold(&self.account).moved(entry, way, bytes);
                Ok(Moved::Bytes(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Moved::Later),
            Err(_) => Err(Broken::Reset),
        }
    }

    /// Waits until bytes may be moved.
    async fn allowance(&self, call: CallId, way: Way) -> Result<(), Broken> {
        loop {
            let allowance = hold(&self.account).allowance(call, way);
            match allowance {
                Allowance::Bytes(_) => return Ok(()),
                Allowance::Wait(time) => tokio::time::sleep(time).await,
                Allowance::Over => return Err(Broken::Limit),
            }
        }
    }

    /// Tells of the end of a connection.
    fn closed(&self, protocol: Protocol, address: SocketAddr, told: Told, verdict: ConnectionEnd) {
        let milliseconds = u64::try_from(told.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let connection = model::egress::Connection {
            protocol,
            name: told.name,
            address,
            rule: Some(told.entry.rule),
            sent: told.sent,
            received: told.received,
            milliseconds,
            end: verdict,
            request: None,
        };
        self.audit(told.entry.call, connection);
    }
}

/// Bytes that were moved; later ones where the other side or the rate has no room yet.
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

/// Reason why a relay ended before both sides closed.
#[derive(Debug)]
enum Broken {
    Reset,
    Limit,
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self::Reset
    }
}

/// The side that spoke first.
#[derive(Debug)]
enum First {
    Server,
    Flight(FirstFlight),
}

/// Waits for the server's first byte, or for as much of the cell's as names a host.
async fn first_word(cell: &CellStream, host: &TcpStream) -> First {
    let mut seen = 0;
    loop {
        let more = std::future::poll_fn(|context| {
            let length = cell.peek(<[u8]>::len);
            if length > seen {
                return std::task::Poll::Ready(true);
            }
            // A waker for more than there is: `poll_readable` returns at once for what was seen already.
            cell.poll_more(context)
        });
        tokio::select! {
            biased;
            more = more => {
                let (length, flight) = cell.peek(|bytes| {
                    let most = bytes.get(..first_flight::MOST).unwrap_or(bytes);
                    (bytes.len(), first_flight::read(most))
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
    // Where it fails, closing sends FIN or RST by itself.
    nix::sys::socket::setsockopt(
        host,
        nix::sys::socket::sockopt::Linger,
        &nix::libc::linger { l_onoff: 1, l_linger: 0 },
    )
    .unwrap_or_default();
}

/// Tells the server that there is nothing more to come. A server that has closed already needs no telling.
fn shut_down(host: &TcpStream) {
    use std::os::fd::AsRawFd;
    nix::sys::socket::shutdown(host.as_raw_fd(), nix::sys::socket::Shutdown::Write)
        .unwrap_or_default();
}

fn refusal(why: &str) -> Refusal {
    Refusal { why: why.to_owned(), grant: None }
}

/// Returns the error by which the kernel would tell of a missing route.
pub(crate) fn unreachable(errno: Errno) -> Undelivered {
    if errno == Errno::ENETUNREACH { Undelivered::NoNetwork } else { Undelivered::NoHost }
}
