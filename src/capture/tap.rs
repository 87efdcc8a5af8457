//! What a running call prints, heard while it prints it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;

/// Pieces that wait for who listens. Each is at most one read, so that they are bounded.
const WAITING: usize = 32;

/// Which stream was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Stdout,
    Stderr,
}

/// Bytes as they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub source: Source,
    pub bytes: Vec<u8>,
    /// Whether pieces before it were lost.
    pub after_gap: bool,
}

/// Where a call's output is heard, if anybody listens. The listener's end comes with the last clone's.
#[derive(Debug, Clone, Default)]
pub struct Tap(Option<Arc<Listened>>);

#[derive(Debug)]
struct Listened {
    pieces: mpsc::Sender<Piece>,
    lost: AtomicBool,
}

impl Tap {
    /// A tap, and what comes out of it.
    pub fn listened() -> (Self, mpsc::Receiver<Piece>) {
        let (pieces, heard) = mpsc::channel(WAITING);
        (Self(Some(Arc::new(Listened { pieces, lost: AtomicBool::new(false) }))), heard)
    }

    pub fn is_listened(&self) -> bool {
        self.0.is_some()
    }

    /// Passes bytes on. Who listens too slowly misses some: the program is not held up for it.
    pub fn pass(&self, source: Source, bytes: &[u8]) {
        let Some(listened) = &self.0 else { return };
        let after_gap = listened.lost.swap(false, Ordering::AcqRel);
        let piece = Piece { source, bytes: bytes.to_vec(), after_gap };
        if listened.pieces.try_send(piece).is_err() {
            listened.lost.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_listens_too_slowly_misses_pieces_and_is_told_so() {
        let (tap, mut heard) = Tap::listened();
        for number in 0..40 {
            tap.pass(Source::Stdout, &[number]);
        }
        let piece =
            |byte, after_gap| Piece { source: Source::Stdout, bytes: vec![byte], after_gap };
        for number in 0..32 {
            assert_eq!(heard.recv().await, Some(piece(number, false)));
        }
        tap.pass(Source::Stdout, &[99]);
        assert_eq!(heard.recv().await, Some(piece(99, true)));
        drop(tap);
        assert_eq!(heard.recv().await, None);
    }
}
