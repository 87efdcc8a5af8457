//! JSON-RPC over lines, as an rmcp transport that answers what rmcp's own leaves unanswered.
//!
//! rmcp 3.9 stays silent on a line that is not JSON, drops lines that are too long, and forgets a
//! last line without its newline; a client then waits for ever. Here each gets an answer. The end
//! of input is held back until requests already received are answered.

mod bounds;
mod lifecycle;
mod reading;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{JsonRpcMessage, ProtocolVersion, RequestId, ServerResult};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::message::OpeningGate;
use bounds::RequestHold;
pub use bounds::{SharedBounds, UntilAnswered};
use lifecycle::Lifecycle;
use reading::LineReader;

/// Length of the longest line that is read, in bytes (16 MiB).
pub const LINE_BYTES: usize = 16 << 20;
/// Time for killed calls to return their output so far (a cell dies within 2 s).
const KILL_GRACE: Duration = Duration::from_secs(3);

/// Time in which sent lines arrive, where the runtime waits for that by itself.
pub const QUIET: Duration = Duration::from_millis(20);

/// Switches that end a connection. Clones are the same switches.
#[derive(Debug, Clone)]
pub struct Ends {
    /// Time without a line after which all lines sent before a signal to stop count as read.
    pub quiet: Duration,
    /// Refuses new requests; calls in flight may finish.
    pub stop: CancellationToken,
    /// Refuses new requests because no call can run any more. Requests sent before that are read
    /// and answered with the reason.
    pub lost: CancellationToken,
    /// Kills calls in flight.
    pub kill: CancellationToken,
}

impl Default for Ends {
    fn default() -> Self {
        let (stop, lost, kill) = Default::default();
        Self { quiet: QUIET, stop, lost, kill }
    }
}

impl Ends {
    /// Makes switches for one of several connections: tripping them is of no concern to others, and those of the
    /// server trip them too.
    #[must_use]
    pub fn of_a_connection(&self, quiet: Duration) -> Self {
        let stop = self.stop.child_token();
        let lost = self.lost.child_token();
        Self { quiet, stop, lost, kill: self.kill.child_token() }
    }

    /// Resolves when no more requests are taken.
    pub async fn ending(&self) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.lost.cancelled() => {}
        }
    }

    fn are_ending(&self) -> bool {
        self.stop.is_cancelled() || self.lost.is_cancelled()
    }
}

/// Ids of requests that have no answer yet, with what each holds until then.
type Open = Arc<watch::Sender<HashMap<RequestId, RequestHold>>>;

/// One line of output, with the sender that waits until it is written.
struct Outgoing {
    line: Vec<u8>,
    written: oneshot::Sender<()>,
}

/// The transport: one task reads, one writes.
#[derive(Debug)]
pub struct Lines {
    incoming: mpsc::Receiver<RxJsonRpcMessage<RoleServer>>,
    outgoing: Option<mpsc::Sender<Outgoing>>,
    open: Open,
    batches: Arc<AtomicBool>,
    dialect: Dialect,
    writer: JoinHandle<()>,
}

/// Behaviour of a connection that is not part of the protocol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Dialect {
    /// Refuses requests before the session is open and after `shutdown`.
    pub(crate) keeps_order: bool,
    /// Takes batches in each revision.
    pub(crate) has_batches: bool,
    /// Time for `exit` after `shutdown`, where it is not the usual one.
    pub(crate) shut_grace: Option<Duration>,
    /// Time without a line or an open request after which the connection ends.
    pub(crate) idle: Option<Duration>,
}

impl Lines {
    /// Starts reading and writing. Must be called inside a tokio runtime.
    pub fn new<R, W>(reader: R, writer: W, ends: Ends) -> Self
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        Self::of_connection(reader, writer, ends, Dialect::default(), None)
    }

    /// Starts as [`Lines::new`] does, for a connection that shares its server with others.
    pub fn shared<R, W>(reader: R, writer: W, ends: Ends, bounds: SharedBounds) -> Self
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        Self::of_connection(reader, writer, ends, Dialect::default(), Some(bounds))
    }

    pub(crate) fn of_connection<R, W>(
        reader: R,
        writer: W,
        ends: Ends,
        dialect: Dialect,
        shared: Option<SharedBounds>,
    ) -> Self
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        // Small, so that a client that sends faster than the service reads has to wait.
        let (to_service, incoming) = mpsc::channel(16);
        let (outgoing, to_write) = mpsc::channel(64);
        let open = Open::default();
        let batches = Arc::new(AtomicBool::new(dialect.has_batches));
        let reading = LineReader {
            to_service,
            outgoing: outgoing.clone(),
            open: Arc::clone(&open),
            batches: Arc::clone(&batches),
            gate: OpeningGate::default(),
            cancelled: HashSet::new(),
            shared,
            held: None,
            lifecycle: Lifecycle::new(dialect.keeps_order),
            dialect,
            ends: ends.clone(),
        };
        tokio::spawn(reading.run(BufReader::new(reader)));
        let writer = tokio::spawn(write_lines(writer, to_write, ends));
        Self { incoming, outgoing: Some(outgoing), open, batches, dialect, writer }
    }
}

impl Transport<RoleServer> for Lines {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let outgoing = self.outgoing.clone();
        let open = Arc::clone(&self.open);
        if let JsonRpcMessage::Response(response) = &item
            && let ServerResult::InitializeResult(result) = &response.result
        {
            // Batches exist in this one revision.
            let has_batches = self.dialect.has_batches
                || result.protocol_version == ProtocolVersion::V_2025_03_26;
            self.batches.store(has_batches, Ordering::Release);
        }
        async move {
            let answered = answers(&item);
            let line = serde_json::to_vec(&item)?;
            // Dropping the item frees its text before waiting for a slow reader.
            drop(item);
            let sent = match outgoing {
                Some(outgoing) => write_line(&outgoing, line).await,
                None => Err(closed()),
            };
            if let Some(id) = answered {
                open.send_modify(|ids| drop(ids.remove(&id)));
            }
            sent
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        self.incoming.recv().await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.incoming.close();
        self.outgoing = None;
        // The reading task may hold its end of the channel in a read that never returns.
        if tokio::time::timeout(KILL_GRACE, &mut self.writer).await.is_err() {
            self.writer.abort();
        }
        Ok(())
    }
}

/// Returns the id that a message answers.
fn answers(message: &TxJsonRpcMessage<RoleServer>) -> Option<RequestId> {
    match message {
        JsonRpcMessage::Response(response) => Some(response.id.clone()),
        JsonRpcMessage::Error(error) => error.id.clone(),
        JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the connection is closed")
}

/// Passes a line to the writing task and waits until it is written.
async fn write_line(outgoing: &mpsc::Sender<Outgoing>, line: Vec<u8>) -> io::Result<()> {
    let (written, done) = oneshot::channel();
    outgoing.send(Outgoing { line, written }).await.map_err(|_| closed())?;
    done.await.map_err(|_| closed())
}

async fn write_lines<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut lines: mpsc::Receiver<Outgoing>,
    ends: Ends,
) {
    while let Some(Outgoing { mut line, written }) = lines.recv().await {
        line.push(b'\n');
        let wrote = async {
            writer.write_all(&line).await?;
            writer.flush().await
        };
        if let Err(error) = wrote.await {
            // The client reads no more, so results of running calls have no reader.
            tracing::debug!(%error, "the client is gone");
            ends.kill.cancel();
            ends.stop.cancel();
            return;
        }
        if written.send(()).is_err() {
            tracing::trace!("the sender of this line no longer waits");
        }
    }
}
