//! Notifies a client of a running call: of its time by progress, and of its output by progress and log messages, sent
//! as it arrives, bounded, and made fit for text.

use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::context::Context;
use crate::logs::CallLog;
use crate::tasks;
use service::capture::tap::{Piece, Source};
use service::capture::text::{render, without_cut_character};
use service::capture::{Captured, Produced};

/// Bytes of one notification: the maximum, and the default.
pub(crate) const MAX_BYTES: usize = 65_536;
pub(crate) const DEFAULT_BYTES: usize = 4096;
/// Maximum bytes of output that are sent for one command while it runs.
const MAX_LIVE_BYTES: usize = 1 << 20;
/// Interval between two notifications of the time.
const INTERVAL: Duration = Duration::from_secs(1);

/// Sends the time of a call every [`INTERVAL`], with the amount of its output. Never resolves: race it with the call.
pub(crate) async fn send_time(context: &Context, token: ProgressToken, produced: Produced) {
    let start = Instant::now();
    let mut ticks = interval_at(start + INTERVAL, INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let elapsed = start.elapsed();
        let note = ProgressNotificationParam::new(token.clone(), elapsed.as_secs_f64())
            .with_message(tasks::running(elapsed, produced.bytes()));
        context.notify_progress(note).await;
    }
}

/// A client that receives output.
#[derive(Debug)]
pub(crate) struct OutputNotifier<'s> {
    context: &'s Context,
    token: Option<ProgressToken>,
    logs: Option<CallLog<'s>>,
    size: usize,
    started: Instant,
}

impl<'s> OutputNotifier<'s> {
    /// Sends the client of a request notifications of at most `size` bytes of output, until it has its answer.
    pub(crate) fn new(context: &'s Context, token: Option<ProgressToken>, size: usize) -> Self {
        Self { context, token, logs: None, size, started: Instant::now() }
    }

    /// Adds log messages, if the client wants them.
    #[must_use]
    pub(crate) fn logged(self, logs: Option<CallLog<'s>>) -> Self {
        Self { logs, ..self }
    }

    /// Sends pieces of output until there are no more.
    pub(crate) async fn send(self, mut pieces: Receiver<Piece>) {
        let mut out = Vec::new();
        let mut err = Vec::new();
        let mut sent = 0;
        while let Some(Piece { source, bytes, after_gap }) = pieces.recv().await {
            if sent > MAX_LIVE_BYTES || tasks::is_answered(self.context) {
                continue;
            }
            sent += bytes.len();
            if sent > MAX_LIVE_BYTES {
                self.send_note("[output goes on; the result has its end]").await;
                continue;
            }
            if after_gap {
                self.send_note("[output is left out here]").await;
            }
            let rest = match source {
                Source::Stdout => &mut out,
                Source::Stderr => &mut err,
            };
            rest.extend_from_slice(&bytes);
            self.send_whole_characters(source, rest).await;
        }
        for (source, rest) in [(Source::Stdout, out), (Source::Stderr, err)] {
            if !rest.is_empty() && !tasks::is_answered(self.context) {
                self.send_text(source, &rest).await;
            }
        }
    }

    /// Sends everything but an incomplete character at the end.
    async fn send_whole_characters(&self, source: Source, rest: &mut Vec<u8>) {
        loop {
            let first = rest.get(..self.size).unwrap_or(rest);
            let whole = without_cut_character(first).len();
            if whole == 0 {
                return;
            }
            let chunk: Vec<u8> = rest.drain(..whole).collect();
            self.send_text(source, &chunk).await;
        }
    }

    async fn send_text(&self, source: Source, bytes: &[u8]) {
        let text = render(&Captured::of(bytes), &Captured::of(b""), 4 * MAX_BYTES).stdout;
        match source {
            Source::Stdout => {
                self.log("stdout", &text).await;
                self.progress(&text).await;
            }
            Source::Stderr => {
                self.log("stderr", &text).await;
                self.progress(&format!("[stderr] {text}")).await;
            }
        }
    }

    /// Sends a remark that cofferdam itself makes.
    async fn send_note(&self, text: &str) {
        self.log("note", text).await;
        self.progress(text).await;
    }

    async fn log(&self, what: &'static str, text: &str) {
        if let Some(logs) = &self.logs {
            logs.send(self.context, what, text).await;
        }
    }

    async fn progress(&self, text: &str) {
        let Some(token) = self.token.clone() else { return };
        let elapsed = self.started.elapsed().as_secs_f64();
        let note = ProgressNotificationParam::new(token, elapsed).with_message(text);
        self.context.notify_progress(note).await;
    }
}
