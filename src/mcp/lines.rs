//! JSON-RPC over lines, as an rmcp transport that answers what rmcp's own leaves unanswered.
//!
//! rmcp 3.9 stays silent on a line that is not JSON, drops lines that are too long, and forgets a
//! last line without its newline; a client then waits for ever. Here each gets an answer. The end
//! of input is held back until requests already received are answered (rulings R10).

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{JsonRpcMessage, ProtocolVersion, RequestId, ServerResult};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::message::{Fault, Gate, Judged, judge};
use crate::outcome::in_words;

/// The longest line that is read, in bytes (16 MiB).
pub const LINE_BYTES: usize = 16 << 20;
/// How long requests already received may take after the end of input.
pub const EOF_GRACE: Duration = Duration::from_secs(1);
/// How long calls in flight may take after a signal to stop.
pub const STOP_GRACE: Duration = Duration::from_secs(5);
/// How long killed calls may take to tell what they had printed (rulings: a cell dies within 2 s).
const KILL_GRACE: Duration = Duration::from_secs(3);

/// How many ids of cancelled requests are remembered; calls behind older ones ended long ago.
const TAKEN_BACK: usize = 4096;

/// How a connection is told to end. Clones are the same switches.
#[derive(Debug, Clone, Default)]
pub struct Ends {
    /// No new requests are read; calls in flight may finish.
    pub stop: CancellationToken,
    /// Calls in flight are killed.
    pub kill: CancellationToken,
}

/// Ids of requests that have no answer yet.
type Open = Arc<watch::Sender<HashSet<RequestId>>>;

/// One line on its way out, and who waits until it is written.
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
    writer: JoinHandle<()>,
}

impl Lines {
    /// Starts reading and writing. Must be called inside a tokio runtime.
    pub fn new<R, W>(reader: R, writer: W, ends: Ends) -> Self
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        // Small: whoever sends faster than the other side reads has to wait.
        let (to_service, incoming) = mpsc::channel(16);
        let (outgoing, to_write) = mpsc::channel(64);
        let open = Open::default();
        let batches = Arc::new(AtomicBool::new(false));
        let reading = Reading {
            to_service,
            outgoing: outgoing.clone(),
            open: Arc::clone(&open),
            batches: Arc::clone(&batches),
            gate: Gate::default(),
            taken_back: HashSet::new(),
            ends: ends.clone(),
        };
        tokio::spawn(reading.run(BufReader::new(reader)));
        let writer = tokio::spawn(write_lines(writer, to_write, ends));
        Self { incoming, outgoing: Some(outgoing), open, batches, writer }
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
            let has_batches = result.protocol_version == ProtocolVersion::V_2025_03_26;
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
                open.send_modify(|ids| {
                    ids.remove(&id);
                });
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

/// The id that a message answers.
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

/// Hands a line to the writing task and waits until it is written.
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
            // Nobody reads any more: what still runs would run for nobody.
            tracing::debug!(%error, "the client is gone");
            ends.kill.cancel();
            ends.stop.cancel();
            return;
        }
        if written.send(()).is_err() {
            tracing::trace!("nobody waited for this line");
        }
    }
}

/// A line as read.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    Line(Vec<u8>),
    TooLong,
    End,
}

/// Reads up to a newline, or to the end of input: a last line needs no newline.
async fn next_line<R: AsyncRead + Unpin>(
    reader: &mut BufReader<R>,
    most: usize,
) -> io::Result<Read> {
    let mut line = Vec::new();
    let most_with_newline = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    reader.take(most_with_newline).read_until(b'\n', &mut line).await?;
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Read::Line(line));
    }
    if line.len() > most {
        skip_line(reader).await?;
        return Ok(Read::TooLong);
    }
    Ok(if line.is_empty() { Read::End } else { Read::Line(line) })
}

async fn skip_line<R: AsyncRead + Unpin>(reader: &mut BufReader<R>) -> io::Result<()> {
    loop {
        let buffered = reader.fill_buf().await?;
        if buffered.is_empty() {
            return Ok(());
        }
        let newline = buffered.iter().position(|byte| *byte == b'\n');
        let used = newline.map_or(buffered.len(), |at| at.saturating_add(1));
        reader.consume(used);
        if newline.is_some() {
            return Ok(());
        }
    }
}

/// The reading task.
struct Reading {
    to_service: mpsc::Sender<RxJsonRpcMessage<RoleServer>>,
    outgoing: mpsc::Sender<Outgoing>,
    open: Open,
    batches: Arc<AtomicBool>,
    gate: Gate,
    /// Ids of cancelled requests. rmcp would give the late answer of the first to a second
    /// request with its id, so these are not taken again.
    taken_back: HashSet<RequestId>,
    ends: Ends,
}

impl Reading {
    async fn run<R: AsyncRead + Unpin>(mut self, mut reader: BufReader<R>) {
        let stop = self.ends.stop.clone();
        let grace = tokio::select! {
            biased;
            () = stop.cancelled() => STOP_GRACE,
            () = self.read(&mut reader) => EOF_GRACE,
        };
        self.drain(grace).await;
        // Dropping the channel to the service tells it that there is no more.
    }

    /// Reads until the end of input, or until nobody wants what is read.
    async fn read<R: AsyncRead + Unpin>(&mut self, reader: &mut BufReader<R>) {
        loop {
            let line = match next_line(reader, LINE_BYTES).await {
                Ok(Read::Line(line)) => line,
                Ok(Read::TooLong) => {
                    let fault = Fault::request(format!("a line is at most {LINE_BYTES} bytes"));
                    if self.refuse(fault).await.is_err() {
                        return;
                    }
                    continue;
                }
                Ok(Read::End) => return,
                Err(error) => {
                    tracing::warn!(error = in_words(&error), "standard input cannot be read");
                    return;
                }
            };
            if self.take(judge(&line)).await.is_err() {
                return;
            }
        }
    }

    async fn take(&mut self, judged: Judged) -> io::Result<()> {
        match judged {
            Judged::Nothing => Ok(()),
            Judged::Message(message) => self.deliver(*message).await,
            Judged::Fault(fault) => self.refuse(fault).await,
            Judged::Batch(parts) if self.batches.load(Ordering::Acquire) => {
                for part in parts {
                    Box::pin(self.take(super::message::judge_part(part))).await?;
                }
                Ok(())
            }
            Judged::Batch(_) => {
                self.refuse(Fault::request("batches are not taken; send one message a line")).await
            }
        }
    }

    async fn deliver(&mut self, message: RxJsonRpcMessage<RoleServer>) -> io::Result<()> {
        if !self.gate.admits(&message) {
            return Ok(());
        }
        if let JsonRpcMessage::Request(request) = &message {
            let fresh = !self.taken_back.contains(&request.id)
                && self.open.send_if_modified(|ids| ids.insert(request.id.clone()));
            if !fresh {
                let id = request.id.clone();
                return self.refuse(Fault::request("this id is in use").with_id(id)).await;
            }
        }
        if let Some(id) = super::message::cancelled_id(&message) {
            // A cancelled request gets no answer, so nothing may wait for one.
            if self.open.send_if_modified(|ids| ids.remove(&id)) {
                if self.taken_back.len() >= TAKEN_BACK {
                    self.taken_back.clear();
                }
                self.taken_back.insert(id);
            }
        }
        self.to_service.send(message).await.map_err(|_| closed())
    }

    async fn refuse(&self, fault: Fault) -> io::Result<()> {
        write_line(&self.outgoing, fault.to_line()).await
    }

    /// Waits until every request has its answer; kills what takes longer than `grace`.
    async fn drain(&self, grace: Duration) {
        let mut open = self.open.subscribe();
        let answered = async |time: Duration, open: &mut watch::Receiver<HashSet<RequestId>>| {
            tokio::time::timeout(time, open.wait_for(HashSet::is_empty)).await.is_ok()
        };
        let killed_early = self.ends.kill.cancelled();
        let in_time = tokio::select! {
            in_time = answered(grace, &mut open) => in_time,
            () = killed_early => false,
        };
        // Requests that were cancelled have no answer to wait for, but may still hold a cell.
        self.ends.kill.cancel();
        if !in_time && !answered(KILL_GRACE, &mut open).await {
            tracing::warn!("calls did not end in time; the supervisor ends their cells");
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed read is a failed test")]
mod tests {
    use super::*;

    async fn lines_of(input: &'static [u8], most: usize) -> Vec<Read> {
        let mut reader = BufReader::with_capacity(3, input);
        let mut read = Vec::new();
        loop {
            let line = next_line(&mut reader, most).await.unwrap();
            let end = line == Read::End;
            read.push(line);
            if end {
                return read;
            }
        }
    }

    #[tokio::test]
    async fn a_long_line_is_skipped_whole_and_the_next_is_read() {
        let expected = vec![
            Read::Line(b"12345".to_vec()),
            Read::TooLong,
            Read::Line(b"ok".to_vec()),
            Read::End,
        ];
        assert_eq!(lines_of(b"12345\n123456789\nok\n", 5).await, expected);
    }

    #[tokio::test]
    async fn a_last_line_needs_no_newline() {
        let expected = vec![Read::Line(Vec::new()), Read::Line(b"ok".to_vec()), Read::End];
        assert_eq!(lines_of(b"\nok", 5).await, expected);
        assert_eq!(lines_of(b"123456", 5).await, vec![Read::TooLong, Read::End]);
    }
}
