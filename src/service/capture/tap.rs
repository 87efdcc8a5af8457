//! Taps the output of a running call: passes it to a listener as it is printed, or keeps all of it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

/// Maximum number of pieces that wait for the listener. A piece is at most one read, so their size
/// is bounded.
const MAX_WAITING: usize = 32;

/// The stream that was written to.
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
    /// True if output before this piece was lost.
    pub after_gap: bool,
}

/// Where a call's output is sent in addition to its reply. A listener's channel closes when the
/// last clone is dropped.
#[derive(Debug, Clone, Default)]
pub struct Tap(Destination);

#[derive(Debug, Clone, Default)]
enum Destination {
    #[default]
    Nowhere,
    Listener(Arc<ListenerQueue>),
    Kept(KeptOutput),
    Reader(Arc<dyn Reader>),
}

/// Receives every piece of output, on the thread that read it from the pipe.
pub trait Reader: Send + Sync + fmt::Debug {
    /// Takes a piece; it must not block.
    fn read(&self, source: Source, bytes: &[u8]);
}

/// All of a call's standard output, unless it exceeds the maximum.
#[derive(Debug, Clone)]
pub struct KeptOutput {
    max_bytes: usize,
    /// `None` once the output has exceeded the maximum.
    bytes: Arc<Mutex<Option<Vec<u8>>>>,
}

impl KeptOutput {
    fn push(&self, more: &[u8]) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        match bytes.as_mut() {
            Some(kept) if kept.len() + more.len() <= self.max_bytes => kept.extend_from_slice(more),
            Some(_) => *bytes = None,
            None => {}
        }
    }

    /// Returns the output; `None` if it exceeded the maximum.
    pub fn take(self) -> Option<Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[derive(Debug)]
struct ListenerQueue {
    pieces: mpsc::Sender<Piece>,
    lost: AtomicBool,
}

impl Tap {
    /// Makes a tap and the receiver of its pieces.
    pub fn listened() -> (Self, mpsc::Receiver<Piece>) {
        let (pieces, receiver) = mpsc::channel(MAX_WAITING);
        let queue = ListenerQueue { pieces, lost: AtomicBool::new(false) };
        (Self(Destination::Listener(Arc::new(queue))), receiver)
    }

    /// Makes a tap that keeps up to `max_bytes` bytes of standard output.
    pub fn kept(max_bytes: usize) -> (Self, KeptOutput) {
        let kept = KeptOutput { max_bytes, bytes: Arc::new(Mutex::new(Some(Vec::new()))) };
        (Self(Destination::Kept(kept.clone())), kept)
    }

    /// Makes a tap that passes every piece to `reader`.
    pub fn read_by(reader: Arc<dyn Reader>) -> Self {
        Self(Destination::Reader(reader))
    }

    pub fn is_listened(&self) -> bool {
        match self.0 {
            Destination::Listener(_) => true,
            Destination::Nowhere | Destination::Kept(_) | Destination::Reader(_) => false,
        }
    }

    /// Passes bytes on. A slow listener misses pieces, so that it does not delay the program.
    pub fn pass(&self, source: Source, bytes: &[u8]) {
        let queue = match (&self.0, source) {
            (Destination::Listener(queue), _) => queue,
            (Destination::Reader(reader), _) => return reader.read(source, bytes),
            (Destination::Kept(kept), Source::Stdout) => return kept.push(bytes),
            (Destination::Kept(_), Source::Stderr) | (Destination::Nowhere, _) => return,
        };
        let after_gap = queue.lost.swap(false, Ordering::AcqRel);
        let piece = Piece { source, bytes: bytes.to_vec(), after_gap };
        if queue.pieces.try_send(piece).is_err() {
            queue.lost.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_output_is_kept_completely_or_not_at_all() {
        let (tap, kept) = Tap::kept(4);
        tap.pass(Source::Stdout, b"ab\0");
        tap.pass(Source::Stderr, b"not this");
        tap.pass(Source::Stdout, b"\xff");
        assert_eq!(kept.take(), Some(b"ab\0\xff".to_vec()));
        let (tap, kept) = Tap::kept(4);
        tap.pass(Source::Stdout, b"abc");
        tap.pass(Source::Stdout, b"de");
        tap.pass(Source::Stdout, b"f");
        assert_eq!(kept.take(), None);
    }

    #[tokio::test]
    async fn a_slow_listener_misses_pieces_and_learns_of_the_gap() {
        let (tap, mut receiver) = Tap::listened();
        for number in 0..40 {
            tap.pass(Source::Stdout, &[number]);
        }
        let piece =
            |byte, after_gap| Piece { source: Source::Stdout, bytes: vec![byte], after_gap };
        for number in 0..32 {
            assert_eq!(receiver.recv().await, Some(piece(number, false)));
        }
        tap.pass(Source::Stdout, &[99]);
        assert_eq!(receiver.recv().await, Some(piece(99, true)));
        drop(tap);
        assert_eq!(receiver.recv().await, None);
    }
}
