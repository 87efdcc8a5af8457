//! State that the connections, flows and DNS questions of a cell share: the judge, the counts of its
//! calls, the link to the gateway, and the ways to the cell and to the network.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model::egress::frames::{CallId, CellKey, FromGateway, encode, encode_tally};
use model::egress::{Connection, ConnectionEnd, Protocol};
use nix::errno::Errno;
use sys::socket::send_bytes;
use tokio::io::unix::AsyncFd;

use super::account::{Account, Entry};
use super::judge::Judge;
use super::sockets::SocketSource;
use super::stack::{Link, lock};
use super::unsent::Unsent;
use crate::cells::CurrentCall;
use crate::refusal::NetworkRefusal;

/// Total time in which a frame for the gateway must find room on the link. The supervisor waits 200
/// ms.
pub(super) const SEND_TIMEOUT: Duration = Duration::from_millis(150);
/// Time between two tries to send such a frame, and between two checks whether traffic has ended.
pub(super) const SHORT_TICK: Duration = Duration::from_millis(1);

/// The traffic of a cell.
#[derive(Debug)]
pub(super) struct CellTraffic {
    pub cell: CellKey,
    pub gateway: AsyncFd<OwnedFd>,
    /// The cell's link, by which packets are sent to it.
    pub link: Arc<Link>,
    pub sockets: SocketSource,
    pub judge: Mutex<Judge>,
    pub account: Mutex<Account>,
    pub unsent: Unsent,
}

/// Audit data of a connection or flow.
#[derive(Debug)]
pub(super) struct ConnectionRecord {
    pub entry: Entry,
    pub name: Option<String>,
    pub since: Instant,
    pub sent: u64,
    pub received: u64,
}

impl ConnectionRecord {
    /// Begins the record of a connection that has moved no bytes.
    pub(super) fn new(entry: Entry, name: Option<String>, since: Instant) -> Self {
        Self { entry, name, since, sent: 0, received: 0 }
    }
}

/// Returns a line of the audit log about traffic that has moved no bytes and is allowed by no rule.
pub(super) fn audit_line(
    protocol: Protocol,
    address: SocketAddr,
    name: Option<String>,
    end: ConnectionEnd,
) -> Connection {
    Connection {
        protocol,
        name,
        address,
        rule: None,
        sent: 0,
        received: 0,
        milliseconds: 0,
        end,
        request: None,
    }
}

/// Returns the milliseconds that have passed, for the audit log.
pub(super) fn milliseconds_since(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl CellTraffic {
    /// Begins a call, for which new traffic counts.
    pub(super) fn begin(&self, begun: CurrentCall) {
        lock(&self.judge).only = begun.only;
        lock(&self.account).begin(begun.call);
    }

    /// Sends the tally of a call, for which the supervisor waits.
    pub(super) async fn send_tally(&self, call: CallId, is_whole: bool, began: Instant) {
        let mut tally = lock(&self.account).tally(call);
        tally.incomplete |= !is_whole;
        if let Ok(frame) = encode_tally(self.cell, call, tally) {
            self.send(&frame, began).await;
        }
    }

    /// Sends the last tally to the gateway, which may be asked for it after this process has
    /// exited.
    pub(super) async fn send_last_tally(&self) {
        let cell = self.cell;
        let (call, mut tally) = {
            let mut account = lock(&self.account);
            let call = account.call();
            (call, account.tally(call))
        };
        tally.incomplete |= !self.unsent.is_empty_for(call);
        // Halved until it fits a frame, as `encode_tally` does.
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

    /// Sends a frame, and retries while the link is full: lines of the audit log may fill it.
    async fn send(&self, frame: &[u8], began: Instant) {
        // Any other error means that the gateway is gone, which the next read finds.
        while send_bytes(self.gateway.get_ref(), frame) == Err(Errno::EAGAIN)
            && began.elapsed() < SEND_TIMEOUT
        {
            tokio::time::sleep(SHORT_TICK).await;
        }
    }

    /// Returns the current call, for which new traffic counts.
    pub(super) fn call(&self) -> CallId {
        lock(&self.account).call()
    }

    /// Reports a connection of a call to the audit log. The line is left out if the link is full;
    /// the tally then counts it as unlisted.
    pub(super) fn audit(&self, call: CallId, connection: Connection) {
        let frame = encode(&FromGateway::Connection { cell: self.cell, call, connection });
        let sent = frame.is_ok_and(|frame| send_bytes(self.gateway.get_ref(), &frame).is_ok());
        if !sent {
            lock(&self.account).count_unlisted(1);
        }
    }

    /// Counts a refusal of a call and reports it to the audit log.
    pub(super) fn deny(
        &self,
        call: CallId,
        protocol: Protocol,
        to: SocketAddr,
        name: Option<String>,
        refusal: NetworkRefusal,
    ) {
        let shown = match protocol {
            Protocol::Icmp => to.ip().to_string(),
            Protocol::Tcp | Protocol::Udp => lock(&self.judge).shown(to),
        };
        lock(&self.account).count_denied(call, shown, refusal);
        let denied = audit_line(protocol, to, name, ConnectionEnd::Denied);
        self.audit(call, denied);
    }

    /// Reports a connection or flow that has ended to the audit log.
    pub(super) fn audit_closed(
        &self,
        protocol: Protocol,
        address: SocketAddr,
        record: ConnectionRecord,
        end: ConnectionEnd,
    ) {
        let line = Connection {
            rule: Some(record.entry.rule),
            sent: record.sent,
            received: record.received,
            milliseconds: milliseconds_since(record.since),
            ..audit_line(protocol, address, record.name, end)
        };
        self.audit(record.entry.call, line);
    }
}
