//! The task that reads a line at a time until the end of input or a signal, without losing a
//! request between the two.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{ClientRequest, GetExtensions, JsonRpcMessage, JsonRpcRequest, RequestId};
use rmcp::service::RxJsonRpcMessage;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::bounds::{PartialLine, RequestHold, SharedBounds, Unread};
use super::lifecycle::{Lifecycle, Step};
use super::{Dialect, Ends, KILL_GRACE, LINE_BYTES, Open, Outgoing, closed, write_line};
use crate::charge::Charge;
use crate::message::{Fault, OpeningGate, ParsedLine, cancelled_id, parse_batch_part, parse_line};
use model::outcome::in_words;
use service::fair::Share;

/// Time for requests already received, after the end of input.
const EOF_GRACE: Duration = Duration::from_secs(1);
/// Time for calls in flight, after a signal to stop.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// Time for `exit`, after `shutdown`.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// Maximum lines that are read after a signal to stop, from a client that never pauses. Not a time, which can pass
/// on a busy machine while a request is still unread.
const MAX_LINES_AFTER_STOP: usize = 4096;

/// Maximum cancelled ids that are kept; the calls of older ones ended long ago.
const MAX_CANCELLED_IDS: usize = 4096;

/// A line as read.
#[derive(Debug)]
enum Read {
    Line(Vec<u8>, Option<Share>),
    Unread(Unread),
    End,
}

impl Read {
    fn whole(line: PartialLine) -> Self {
        Self::Line(line.bytes, line.room)
    }
}

/// Reads up to a newline, or to the end of input: a last line needs no newline.
async fn next_line<R: AsyncRead + Unpin>(
    reader: &mut BufReader<R>,
    most: usize,
    shared: Option<&SharedBounds>,
) -> io::Result<Read> {
    let mut line = None;
    loop {
        let buffered = reader.fill_buf().await?;
        if buffered.is_empty() {
            return Ok(line.map_or(Read::End, Read::whole));
        }
        let newline = buffered.iter().position(|byte| *byte == b'\n');
        let piece = buffered.get(..newline.unwrap_or(buffered.len())).unwrap_or_default();
        let begun = line.take().map_or_else(|| PartialLine::begin(most, shared), Ok);
        let taken = begun.and_then(|mut line: PartialLine| line.take(piece).map(|()| line));
        match taken {
            Ok(so_far) => {
                let used = newline.map_or(buffered.len(), |at| at.saturating_add(1));
                reader.consume(used);
                if newline.is_some() {
                    return Ok(Read::whole(so_far));
                }
                line = Some(so_far);
            }
            Err(unread) => {
                skip_line(reader).await?;
                return Ok(Read::Unread(unread));
            }
        }
    }
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

/// The task that reads.
pub(super) struct LineReader {
    pub to_service: mpsc::Sender<RxJsonRpcMessage<RoleServer>>,
    pub outgoing: mpsc::Sender<Outgoing>,
    pub open: Open,
    pub batches: Arc<AtomicBool>,
    pub gate: OpeningGate,
    /// Ids of cancelled requests. rmcp would give the late answer of the first to a second
    /// request with its id, so these are not taken again.
    pub cancelled: HashSet<RequestId>,
    pub lifecycle: Lifecycle,
    pub dialect: Dialect,
    /// Bounds for the sake of other connections.
    pub shared: Option<SharedBounds>,
    /// Part of the memory that the line holds which is being taken.
    pub held: Option<Arc<Share>>,
    pub ends: Ends,
}

impl LineReader {
    pub(crate) async fn run<R: AsyncRead + Unpin>(mut self, mut reader: BufReader<R>) {
        let ends = self.ends.clone();
        let grace = tokio::select! {
            biased;
            grace = self.read(&mut reader) => grace,
            // A client that reads no answer must not hold back the end either.
            () = async { ends.ending().await; sleep(STOP_GRACE).await } => Duration::ZERO,
        };
        self.drain(grace).await;
        // Dropping the channel signals the end of input to the service.
    }

    /// Reads until the end of input, or until the service accepts no more. Returns the time that
    /// open requests have from then on.
    ///
    /// A signal to stop interrupts no line and no delivery, and lines sent before it are still
    /// read, so that each of their requests is answered.
    async fn read<R: AsyncRead + Unpin>(&mut self, reader: &mut BufReader<R>) -> Duration {
        let ends = self.ends.clone();
        let mut lines_after_stop = 0;
        loop {
            let shared = self.shared.clone();
            let mut line = pin!(next_line(reader, LINE_BYTES, shared.as_ref()));
            let line = tokio::select! {
                biased;
                line = &mut line, if !ends.are_ending() => line,
                () = self.idle() => {
                    tracing::info!("the client was idle for its time");
                    ends.stop.cancel();
                    return Duration::ZERO;
                }
                () = ends.ending() => {
                    lines_after_stop += 1;
                    if lines_after_stop > MAX_LINES_AFTER_STOP {
                        return STOP_GRACE;
                    }
                    let Ok(line) = timeout(ends.quiet, line).await else { return STOP_GRACE };
                    line
                }
            };
            let parsed = match line {
                Ok(Read::Line(line, room)) => {
                    self.held = room.map(Arc::new);
                    parse_line(&line)
                }
                Ok(Read::Unread(why)) => ParsedLine::Fault(Fault::request(why.to_string())),
                Ok(Read::End) => break,
                Err(error) => {
                    self.log_read_error(&error);
                    break;
                }
            };
            let taken = self.take(parsed).await;
            self.held = None;
            if taken.is_err() {
                break;
            }
        }
        if ends.are_ending() { STOP_GRACE } else { EOF_GRACE }
    }

    /// Waits until the client had no open request for its idle time, if it has one.
    async fn idle(&self) {
        let Some(most) = self.dialect.idle else { return std::future::pending().await };
        let mut open = self.open.subscribe();
        loop {
            if open.wait_for(HashMap::is_empty).await.is_err() {
                return std::future::pending().await;
            }
            tokio::select! {
                () = sleep(most) => return,
                _ = open.changed() => {}
            }
        }
    }

    /// Logs a failed read: a warning for standard input alone, as any client of a listener can cause it often.
    fn log_read_error(&self, error: &io::Error) {
        let error = in_words(error);
        match self.shared {
            Some(_) => tracing::debug!(error, "a connection cannot be read"),
            None => tracing::warn!(error, "standard input cannot be read"),
        }
    }

    async fn take(&mut self, parsed: ParsedLine) -> io::Result<()> {
        match parsed {
            ParsedLine::Nothing => Ok(()),
            ParsedLine::Message(message) => self.deliver(*message).await,
            ParsedLine::Fault(fault) => self.refuse(fault).await,
            ParsedLine::Batch(parts) if self.batches.load(Ordering::Acquire) => {
                for part in parts {
                    Box::pin(self.take(parse_batch_part(part))).await?;
                }
                Ok(())
            }
            ParsedLine::Batch(_) => {
                self.refuse(Fault::request("batches are not taken; send one message a line")).await
            }
        }
    }

    async fn deliver(&mut self, mut message: RxJsonRpcMessage<RoleServer>) -> io::Result<()> {
        if !self.gate.admits(&message) {
            return Ok(());
        }
        if !self.follow_lifecycle(&message).await? {
            return Ok(());
        }
        if let JsonRpcMessage::Request(request) = &message {
            if self.ends.stop.is_cancelled() {
                let fault = Fault::request("the server is ending: it takes no more requests");
                return self.refuse(fault.with_id(request.id.clone())).await;
            }
            let fresh = !self.cancelled.contains(&request.id) && self.note_request(request);
            if !fresh {
                let id = request.id.clone();
                return self.refuse(Fault::request("this id is in use").with_id(id)).await;
            }
        }
        if let Some(id) = cancelled_id(&message) {
            // A cancelled request gets no answer, so nothing may wait for one.
            if self.open.send_if_modified(|ids| ids.remove(&id).is_some()) {
                if self.cancelled.len() >= MAX_CANCELLED_IDS {
                    self.cancelled.clear();
                }
                self.cancelled.insert(id);
            }
        }
        if let (JsonRpcMessage::Request(request), Some(line)) = (&mut message, &self.held) {
            request.request.extensions_mut().insert(Charge::new(Arc::clone(line)));
        }
        self.to_service.send(message).await.map_err(|_| closed())
    }

    /// Notes that a request has no answer yet, with what it holds until then. Returns false if the id is in use.
    fn note_request(&self, request: &JsonRpcRequest<ClientRequest>) -> bool {
        let listens = matches!(request.request, ClientRequest::SubscriptionsListenRequest(_));
        let hold = if listens { RequestHold::waiting } else { RequestHold::new };
        self.open.send_if_modified(|ids| match ids.entry(request.id.clone()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(hold(self.shared.as_ref(), self.held.clone()));
                true
            }
        })
    }

    /// Returns true if the message passes; another has its answer.
    async fn follow_lifecycle(
        &mut self,
        message: &RxJsonRpcMessage<RoleServer>,
    ) -> io::Result<bool> {
        let (step, id) = match message {
            JsonRpcMessage::Request(request) => {
                (self.lifecycle.request(&request.request), Some(request.id.clone()))
            }
            JsonRpcMessage::Notification(notification) => {
                (self.lifecycle.notification(&notification.notification), None)
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => return Ok(true),
        };
        match (&step, id) {
            (Step::Pass, _) => return Ok(true),
            (Step::Ignore, _) => return Ok(false),
            (Step::Refuse(fault), Some(id)) => self.refuse(fault.clone().with_id(id)).await?,
            (Step::Shut | Step::Exit, Some(id)) => {
                let answer = json!({ "jsonrpc": "2.0", "id": id, "result": {} });
                write_line(&self.outgoing, answer.to_string().into_bytes()).await?;
            }
            (Step::Refuse(_) | Step::Shut | Step::Exit, None) => {}
        }
        match step {
            Step::Exit => self.ends.stop.cancel(),
            Step::Shut => {
                let stop = self.ends.stop.clone();
                let grace = self.dialect.shut_grace.unwrap_or(SHUTDOWN_GRACE);
                tokio::spawn(async move {
                    sleep(grace).await;
                    stop.cancel();
                });
            }
            Step::Pass | Step::Refuse(_) | Step::Ignore => {}
        }
        Ok(false)
    }

    async fn refuse(&self, fault: Fault) -> io::Result<()> {
        write_line(&self.outgoing, fault.to_line()).await
    }

    /// Waits until every request has its answer; kills calls that take longer than `grace`.
    async fn drain(&self, grace: Duration) {
        let mut open = self.open.subscribe();
        let answered =
            async |time: Duration, open: &mut watch::Receiver<HashMap<RequestId, RequestHold>>| {
                timeout(time, open.wait_for(HashMap::is_empty)).await.is_ok()
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
    use config::policy::Principal;
    use rmcp::model::{EmptyResult, ServerResult};
    use rmcp::transport::Transport;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::super::Lines;
    use super::*;
    use crate::values::MAX_VALUES;

    type LineOrReason = Result<Vec<u8>, Unread>;

    /// Reads lines to the end of input.
    async fn lines_of(input: &[u8], most: usize) -> Vec<LineOrReason> {
        let mut reader = BufReader::with_capacity(3, input);
        let mut read = Vec::new();
        loop {
            match next_line(&mut reader, most, None).await.unwrap() {
                Read::Line(line, _) => read.push(Ok(line)),
                Read::Unread(why) => read.push(Err(why)),
                Read::End => return read,
            }
        }
    }

    #[tokio::test]
    async fn a_long_line_is_skipped_whole_and_the_next_is_read() {
        let expected = vec![Ok(b"12345".to_vec()), Err(Unread::Long), Ok(b"ok".to_vec())];
        assert_eq!(lines_of(b"12345\n123456789\nok\n", 5).await, expected);
    }

    #[tokio::test]
    async fn a_last_line_needs_no_newline() {
        let expected = vec![Ok(Vec::new()), Ok(b"ok".to_vec())];
        assert_eq!(lines_of(b"\nok", 5).await, expected);
        assert_eq!(lines_of(b"123456", 5).await, vec![Err(Unread::Long)]);
    }

    #[tokio::test]
    async fn a_line_of_very_many_values_is_skipped_whole_and_the_next_is_read() {
        let many = format!("[{}0]\nok", "0,".repeat(MAX_VALUES + 1));
        let expected = vec![Err(Unread::Values), Ok(b"ok".to_vec())];
        assert_eq!(lines_of(many.as_bytes(), LINE_BYTES).await, expected);
    }

    #[tokio::test]
    async fn lines_of_all_connections_have_their_memory_together_and_each_leaves_some() {
        let room = SharedBounds::room(1 << 20);
        let bounds = |name: &str| {
            SharedBounds::new(Arc::clone(&room), Principal::named(name), || Box::new(()))
        };
        let greedy = bounds("greedy");
        let modest = bounds("modest");
        let line = [vec![b'x'; 200 << 10], vec![b'\n']].concat();
        let read = async |bounds: &SharedBounds| {
            let mut reader = BufReader::new(line.as_slice());
            match next_line(&mut reader, LINE_BYTES, Some(bounds)).await.unwrap() {
                Read::Line(_, share) => Ok(share.expect("it was measured")),
                Read::Unread(why) => Err(why),
                Read::End => panic!("there is a line"),
            }
        };
        let held = [read(&greedy).await.unwrap(), read(&greedy).await.unwrap()];
        assert_eq!(read(&greedy).await.err(), Some(Unread::NoRoom), "it leaves as much as it has");
        assert!(read(&modest).await.is_ok(), "another finds room");
        drop(held);
        assert!(read(&greedy).await.is_ok(), "and it comes back");
    }

    /// Returns unread input at a signal to stop: more lines than the service and its channel hold
    /// at once.
    fn unread_requests(count: u64) -> String {
        (1..=count)
            .map(|id| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/list\"}}\n"))
            .collect()
    }

    /// Opens the transport over an input that does not end, and returns both with its output.
    async fn opened(ends: &Ends, input: &str) -> (Lines, [DuplexStream; 2]) {
        let (mut client, reader) = duplex(1 << 20);
        let (writer, answers) = duplex(1 << 20);
        let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
        client.write_all(format!("{hello}\n").as_bytes()).await.unwrap();
        let mut lines = Lines::new(reader, writer, ends.clone());
        answer(&mut lines).await.unwrap();
        let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        client.write_all(format!("{initialized}\n{input}").as_bytes()).await.unwrap();
        (lines, [client, answers])
    }

    /// Answers the next request, as a service does; `None` at the end.
    async fn answer(lines: &mut Lines) -> Option<RequestId> {
        loop {
            if let JsonRpcMessage::Request(request) = lines.receive().await? {
                let id = request.id;
                let result = ServerResult::EmptyResult(EmptyResult {});
                lines.send(JsonRpcMessage::response(result, id.clone())).await.unwrap();
                return Some(id);
            }
        }
    }

    #[tokio::test]
    async fn what_was_asked_before_the_supervisor_was_gone_is_taken() {
        let ends = Ends::default();
        let (mut lines, _client) = opened(&ends, &unread_requests(40)).await;
        ends.lost.cancel();
        let mut taken = 0;
        while answer(&mut lines).await.is_some() {
            taken += 1;
        }
        assert_eq!(taken, 40);
    }

    #[tokio::test]
    async fn what_was_asked_before_a_signal_and_not_read_is_refused() {
        let ends = Ends::default();
        let (mut lines, [_client, mut answers]) = opened(&ends, &unread_requests(40)).await;
        ends.stop.cancel();
        let mut taken = 0;
        while answer(&mut lines).await.is_some() {
            taken += 1;
        }
        drop(lines);
        let mut text = String::new();
        answers.read_to_string(&mut text).await.unwrap();
        let refused = text.lines().filter(|line| line.contains("the server is ending")).count();
        assert_eq!((taken + refused, text.lines().count()), (40, 41), "{text}");
        assert!(refused > 0);
    }
}
