//! Taps the output of a running call: a listener gets it as it is printed, or it is kept whole.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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
    /// True if output before this piece was lost.
    pub after_gap: bool,
}

/// Destination of a call's output besides its reply, if any. A listener gets the end when the last clone is
/// dropped.
#[derive(Debug, Clone, Default)]
pub struct Tap(To);

#[derive(Debug, Clone, Default)]
enum To {
    #[default]
    Nobody,
    Listener(Arc<Listened>),
    Kept(Kept),
    Reader(Arc<dyn Reader>),
}

/// Reader of every piece of output, in the thread that took it from the pipe.
pub trait Reader: Send + Sync + fmt::Debug {
    /// Takes a piece; it must not block.
    fn read(&self, source: Source, bytes: &[u8]);
}

/// Every byte of a call's standard output, unless there are more than it was made for.
#[derive(Debug, Clone)]
pub struct Kept {
    most: usize,
    /// `None`: there were more.
    bytes: Arc<Mutex<Option<Vec<u8>>>>,
}

impl Kept {
    fn push(&self, more: &[u8]) {
        let mut held = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        match held.as_mut() {
            Some(bytes) if bytes.len() + more.len() <= self.most => bytes.extend_from_slice(more),
            Some(_) => *held = None,
            None => {}
        }
    }

    /// Returns the output; `None` if it was more than is kept.
    pub fn take(self) -> Option<Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[derive(Debug)]
struct Listened {
    pieces: mpsc::Sender<Piece>,
    lost: AtomicBool,
}

impl Tap {
    /// Makes a tap and the receiver of its pieces.
    pub fn listened() -> (Self, mpsc::Receiver<Piece>) {
        let (pieces, heard) = mpsc::channel(WAITING);
        let listened = Listened { pieces, lost: AtomicBool::new(false) };
        (Self(To::Listener(Arc::new(listened))), heard)
    }

    /// Makes a tap that keeps standard output, `most` bytes of it.
    pub fn kept(most: usize) -> (Self, Kept) {
        let kept = Kept { most, bytes: Arc::new(Mutex::new(Some(Vec::new()))) };
        (Self(To::Kept(kept.clone())), kept)
    }

    /// Makes a tap that passes every piece to `reader`.
    pub fn read_by(reader: Arc<dyn Reader>) -> Self {
        Self(To::Reader(reader))
    }

    pub fn is_listened(&self) -> bool {
        match self.0 {
            To::Listener(_) => true,
            To::Nobody | To::Kept(_) | To::Reader(_) => false,
        }
    }

    /// Passes bytes on. A slow listener misses some: the program is not held up for it.
    pub fn pass(&self, source: Source, bytes: &[u8]) {
        let listened = match (&self.0, source) {
            (To::Listener(listened), _) => listened,
            (To::Reader(reader), _) => return reader.read(source, bytes),
            (To::Kept(kept), Source::Stdout) => return kept.push(bytes),
            (To::Kept(_), Source::Stderr) | (To::Nobody, _) => return,
        };
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

    #[test]
    fn standard_output_is_kept_to_the_last_byte_or_not_at_all() {
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
