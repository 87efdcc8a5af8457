//! Output of a running call as progress: told while it comes, bounded, and made fit for text.

use std::time::Instant;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::{Peer, RoleServer};
use tokio::sync::mpsc::Receiver;

use crate::capture::Captured;
use crate::capture::tap::{Piece, Source};
use crate::capture::text::{render, without_cut_character};

/// Bytes of one notification at most, and when nobody says.
pub const MOST: usize = 65_536;
pub const USUAL: usize = 4096;
/// Bytes of one command that are told while it runs.
const LIVE_BYTES: usize = 1 << 20;

/// A client that hears of output.
#[derive(Debug)]
pub struct Live {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    size: usize,
    started: Instant,
}

impl Live {
    /// Tells `peer` in notifications of at most `size` bytes of output.
    pub fn new(peer: Peer<RoleServer>, token: ProgressToken, size: usize) -> Self {
        Self { peer, token, size, started: Instant::now() }
    }

    /// Tells pieces until there are no more.
    pub async fn tell(self, mut pieces: Receiver<Piece>) {
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
        let text = render(&Captured::of(bytes), &Captured::of(b""), 4 * MOST).stdout;
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
