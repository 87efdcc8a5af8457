//! `bash_exec_stream`: what a command prints is told while it runs, to a client that gave a progress token.

use std::time::Instant;

use rmcp::model::{CallToolResult, ProgressNotificationParam, ProgressToken};
use rmcp::{Peer, RoleServer};
use tokio::sync::mpsc::Receiver;

use super::Context;
use super::arguments::{ExecArguments, StreamArguments};
use crate::capture::Captured;
use crate::capture::tap::{Piece, Source, Tap};
use crate::capture::text::{render, without_cut_character};
use crate::mcp::arguments::{Arguments, BadArguments};
use crate::mcp::backend::{Backend, Refused};
use crate::mcp::server::Server;

/// Bytes of one notification, when nobody says, and what may be said.
pub const BUFFER: usize = 4096;
pub const LEAST_BUFFER: usize = 16;
pub const MOST_BUFFER: usize = 65_536;
/// Bytes of one command that are told while it runs.
const LIVE_BYTES: usize = 1 << 20;

impl<B: Backend> Server<B> {
    pub(super) async fn bash_exec_stream(
        &self,
        arguments: StreamArguments,
        context: &Context,
    ) -> Result<CallToolResult, Refused> {
        let StreamArguments { command, working_dir, timeout, buffer_size } = arguments;
        let size = buffer_size.unwrap_or(BUFFER);
        if !(LEAST_BUFFER..=MOST_BUFFER).contains(&size) {
            let tool = StreamArguments::TOOL;
            let message =
                format!("{tool}: `buffer_size`: expected {LEAST_BUFFER} to {MOST_BUFFER}");
            return Err(BadArguments { message, hint: None }.into());
        }
        let asked = ExecArguments { command, working_dir, timeout, ..ExecArguments::default() };
        let Some(token) = context.meta.get_progress_token() else {
            return self.executed(StreamArguments::TOOL, asked, Tap::default(), context).await;
        };
        let (tap, pieces) = Tap::listened();
        let live = Live { peer: context.peer.clone(), token, size, started: Instant::now() };
        // The tap is gone when the call has ended: then all that it passed on has been told.
        let run = self.executed(StreamArguments::TOOL, asked, tap, context);
        tokio::join!(run, live.tell(pieces)).0
    }
}

/// A client that hears of output.
struct Live {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    size: usize,
    started: Instant,
}

impl Live {
    async fn tell(self, mut pieces: Receiver<Piece>) {
        let (mut out, mut err, mut told) = (Vec::new(), Vec::new(), 0);
        while let Some(Piece { source, bytes, after_gap }) = pieces.recv().await {
            if told > LIVE_BYTES {
                continue;
            }
            told += bytes.len();
            if told > LIVE_BYTES {
                self.say("[output goes on; the result has its end]").await;
                continue;
            }
            if after_gap {
                self.say("[output is left out here]").await;
            }
            let rest = match source {
                Source::Stdout => &mut out,
                Source::Stderr => &mut err,
            };
            rest.extend_from_slice(&bytes);
            self.chunks(source, rest).await;
        }
        for (source, rest) in [(Source::Stdout, out), (Source::Stderr, err)] {
            if !rest.is_empty() {
                self.chunk(source, &rest).await;
            }
        }
    }

    /// Tells all but the beginning of a character that is not all there yet.
    async fn chunks(&self, source: Source, rest: &mut Vec<u8>) {
        loop {
            let first = rest.get(..self.size).unwrap_or(rest);
            let whole = without_cut_character(first).len();
            if whole == 0 {
                return;
            }
            let chunk: Vec<u8> = rest.drain(..whole).collect();
            self.chunk(source, &chunk).await;
        }
    }

    async fn chunk(&self, source: Source, bytes: &[u8]) {
        let text = render(&Captured::of(bytes), &Captured::of(b""), 4 * MOST_BUFFER).stdout;
        match source {
            Source::Stdout => self.say(&text).await,
            Source::Stderr => self.say(&format!("[stderr] {text}")).await,
        }
    }

    async fn say(&self, text: &str) {
        let elapsed = self.started.elapsed().as_secs_f64();
        let note = ProgressNotificationParam::new(self.token.clone(), elapsed).with_message(text);
        if let Err(error) = self.peer.notify_progress(note).await {
            // The connection is going down; the call itself is ended elsewhere.
            tracing::debug!(%error, "output was not told");
        }
    }
}
