//! Relays a connection whose requests are judged one by one, and counts its bytes.

use std::future::Future as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use model::egress::frames::CallId;
use model::egress::{Connection, ConnectionEnd, Protocol};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::account::{Allowance, Direction, Entry};
use super::connection::Connections;
use super::judge::Allowed;
use super::stack::{CellStream, Ready, lock};
use super::traffic::{CellTraffic, ConnectionRecord, audit_line};
use crate::intercept::RequestEvents;
use crate::refusal::NetworkRefusal;

impl Connections {
    /// Judges and relays the requests of a connection until either side ends it.
    pub(super) async fn relay_requests(
        &self,
        cell: CellStream,
        host: TcpStream,
        allowed: &Allowed,
        record: &mut ConnectionRecord,
        to: SocketAddr,
    ) -> ConnectionEnd {
        let named: Vec<_> = allowed.named.iter().map(|it| (it.rule, it.names.clone())).collect();
        let counts = Arc::new(Counts::default());
        let reset = cell.reset();
        let stream = Counted {
            inner: cell,
            traffic: Arc::clone(&self.traffic),
            entry: record.entry.clone(),
            counts: Arc::clone(&counts),
            wait: None,
        };
        let events = Events {
            traffic: Arc::clone(&self.traffic),
            to,
            name: record.name.clone(),
            call: record.entry.call,
            rule: record.entry.rule.clone(),
        };
        let intercepted = self.requests.intercepted(to.port(), &named);
        let mut over = self.over.clone();
        let served = tokio::select! {
            biased;
            served = self.requests.cell.serve(intercepted, stream, host, Arc::new(events)) => served,
            // The server may never answer.
            () = reset => Ok(()),
            _ = over.changed() => Ok(()),
        };
        record.sent = counts.sent.load(Ordering::Relaxed);
        record.received = counts.received.load(Ordering::Relaxed);
        match served {
            Err(crate::intercept::InterceptError::Denied) => ConnectionEnd::Denied,
            _ if counts.over.load(Ordering::Relaxed) => ConnectionEnd::Limit,
            Ok(()) | Err(_) => ConnectionEnd::Relayed,
        }
    }
}

/// Bytes of one connection, as the cell sent and received them.
#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
    /// True once a limit of the call has ended the connection.
    over: AtomicBool,
}

/// The cell's stream; its bytes count for the call and keep to the call's limits.
struct Counted {
    inner: CellStream,
    traffic: Arc<CellTraffic>,
    entry: Entry,
    counts: Arc<Counts>,
    wait: Option<Pin<Box<Sleep>>>,
}

impl Counted {
    /// Waits until bytes may be moved; returns how many.
    fn poll_allowance(
        &mut self,
        context: &mut Context<'_>,
        direction: Direction,
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Some(wait) = &mut self.wait {
                ready!(wait.as_mut().poll(context));
                self.wait = None;
            }
            let allowance = lock(&self.traffic.account).allowance(self.entry.call, direction);
            match allowance {
                Allowance::Bytes(bytes) => return Poll::Ready(Ok(bytes)),
                Allowance::Wait(time) => self.wait = Some(Box::pin(tokio::time::sleep(time))),
                Allowance::Over => {
                    self.counts.over.store(true, Ordering::Relaxed);
                    return Poll::Ready(Err(io::Error::other("a limit of the call")));
                }
            }
        }
    }

    fn moved(&self, direction: Direction, bytes: usize) {
        lock(&self.traffic.account).count_moved(&self.entry, direction, bytes);
        let count = match direction {
            Direction::Sent => &self.counts.sent,
            Direction::Received => &self.counts.received,
        };
        count.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let max_bytes = ready!(self.poll_allowance(context, Direction::Sent))?;
        match ready!(self.inner.poll_readable(context))? {
            Ready::Finished => Poll::Ready(Ok(())),
            Ready::Yes => {
                let read = self.inner.receive(|bytes| {
                    let length = bytes.len().min(buffer.remaining()).min(max_bytes);
                    buffer.put_slice(bytes.get(..length).unwrap_or_default());
                    (length, length)
                })?;
                self.moved(Direction::Sent, read);
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let length = ready!(self.poll_allowance(context, Direction::Received))?.min(bytes.len());
        let bytes = bytes.get(..length).unwrap_or_default();
        let wrote = ready!(Pin::new(&mut self.inner).poll_write(context, bytes))?;
        self.moved(Direction::Received, wrote);
        Poll::Ready(Ok(wrote))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// Reports requests to the tally and the audit log.
struct Events {
    traffic: Arc<CellTraffic>,
    to: SocketAddr,
    name: Option<String>,
    call: CallId,
    rule: String,
}

impl Events {
    fn audit(&self, request: &str, end: ConnectionEnd) {
        let line = audit_line(Protocol::Tcp, self.to, self.name.clone(), end);
        let rule = Some(self.rule.clone());
        self.traffic
            .audit(self.call, Connection { rule, request: Some(request.to_owned()), ..line });
    }
}

impl RequestEvents for Events {
    fn denied(&self, request: &str, refusal: NetworkRefusal) {
        lock(&self.traffic.account).count_denied(self.call, request.to_owned(), refusal);
        self.audit(request, ConnectionEnd::Denied);
    }

    fn answered(&self, request: &str, status: u16) {
        self.audit(&format!("{request} {status}"), ConnectionEnd::Relayed);
    }
}
