//! Takes what a program writes: all of it is read, its head and tail are kept, the rest is counted.
//!
//! A flood therefore neither blocks the program before its output limit nor
//! fills this process's memory. [`text`] makes what was kept fit for a reply.

mod escapes;
pub mod grep;
pub mod lines;
mod part;
pub mod tap;
pub mod text;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use part::Piece;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes of one stream that a call keeps (rulings R1: 1 MiB), half of them head and half tail.
pub const KEPT_BYTES: usize = 1 << 20;

/// One read takes at most this much: the size of a pipe's buffer (pipe(7)).
const READ_BYTES: usize = 64 << 10;

/// What was kept of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    half: usize,
    head: Vec<u8>,
    /// Up to twice `half` bytes, so that dropping old ones is a rare move and
    /// not one per read; [`Captured::tail`] shows the newest `half`.
    tail: Vec<u8>,
    total: u64,
}

impl Captured {
    /// Keeps at most `keep` bytes.
    pub fn new(keep: usize) -> Self {
        Self { half: keep / 2, head: Vec::new(), tail: Vec::new(), total: 0 }
    }

    /// What a stream with exactly these bytes leaves behind.
    pub fn of(bytes: &[u8]) -> Self {
        let mut captured = Self::new(KEPT_BYTES);
        captured.push(bytes);
        captured
    }

    /// The first bytes of the stream.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The last bytes of the stream, without those that [`Captured::head`] has.
    pub fn tail(&self) -> &[u8] {
        let excess = self.tail.len().saturating_sub(self.half);
        self.tail.get(excess..).unwrap_or_default()
    }

    /// Bytes the program wrote, kept or not.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes between head and tail that were not kept.
    pub fn gap(&self) -> u64 {
        let kept = self.head.len() + self.tail().len();
        self.total.saturating_sub(u64::try_from(kept).unwrap_or(u64::MAX))
    }

    /// Every byte of the stream, if all were kept.
    pub fn whole(&self) -> Option<Vec<u8>> {
        (self.gap() == 0).then(|| [self.head(), self.tail()].concat())
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let room = self.half.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        // Of one piece no more than `half` bytes can end up in the tail.
        let rest = rest.get(rest.len().saturating_sub(self.half)..).unwrap_or_default();
        if self.tail.len() + rest.len() > 2 * self.half {
            let stale = self.tail.len().saturating_sub(self.half);
            self.tail.drain(..stale);
        }
        self.tail.extend_from_slice(rest);
    }
}

/// What a running call has produced so far, in bytes over both streams. Clones count together, so
/// that somebody else can tell how a call gets on.
#[derive(Debug, Clone, Default)]
pub struct Produced(Arc<AtomicU64>);

impl Produced {
    /// Adds bytes and returns what was there before.
    pub fn add(&self, bytes: u64) -> u64 {
        self.0.fetch_add(bytes, Ordering::Relaxed)
    }

    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts the output of one call over both streams against its limit.
#[derive(Debug)]
pub struct Meter {
    limit: Option<u64>,
    produced: Produced,
}

impl Meter {
    /// A meter for at most `limit` bytes; `None` has no bound.
    pub fn new(limit: Option<u64>) -> Self {
        Self::counting(limit, Produced::default())
    }

    /// The same, counting where somebody else looks.
    pub fn counting(limit: Option<u64>, produced: Produced) -> Self {
        Self { limit, produced }
    }

    /// Adds bytes; true once, for the addition that passes the limit.
    pub fn passes(&self, bytes: u64) -> bool {
        let before = self.produced.add(bytes);
        self.limit.is_some_and(|limit| before <= limit && before.saturating_add(bytes) > limit)
    }
}

/// Reads `stream` to its end into `captured`. When the call's output passes
/// the meter's limit, `over` is called once; reading goes on, so that the
/// program is not left blocked on a full pipe while it is being ended.
///
/// Dropping the future keeps what was captured so far.
///
/// # Errors
/// When reading fails; what was read before is in `captured`.
pub async fn drain(
    stream: impl AsyncRead + Unpin,
    captured: &mut Captured,
    meter: &Meter,
    over: impl Fn(),
) -> std::io::Result<()> {
    drain_heard(stream, captured, meter, over, |_| {}).await
}

/// As [`drain`], with every piece passed to `heard`.
///
/// # Errors
/// As [`drain`].
pub async fn drain_heard(
    mut stream: impl AsyncRead + Unpin,
    captured: &mut Captured,
    meter: &Meter,
    over: impl Fn(),
    heard: impl Fn(&[u8]),
) -> std::io::Result<()> {
    let mut piece = Vec::with_capacity(READ_BYTES);
    loop {
        piece.clear();
        if stream.read_buf(&mut piece).await? == 0 {
            return Ok(());
        }
        captured.push(&piece);
        heard(&piece);
        if meter.passes(u64::try_from(piece.len()).unwrap_or(u64::MAX)) {
            over();
        }
    }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "the test computes its own bounds")]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    async fn drained(stream: &[u8], keep: usize, limit: Option<u64>) -> (Captured, u32) {
        let (mut captured, meter, calls) = (Captured::new(keep), Meter::new(limit), Cell::new(0));
        let read = drain(stream, &mut captured, &meter, || calls.set(calls.get() + 1)).await;
        assert!(read.is_ok());
        (captured, calls.get())
    }

    #[tokio::test]
    async fn head_and_tail_are_kept_and_the_rest_is_counted() {
        let (captured, _) = drained(b"0123456789", 6, None).await;
        assert_eq!(captured.head(), b"012");
        assert_eq!(captured.tail(), b"789");
        assert_eq!((captured.total(), captured.gap(), captured.whole()), (10, 4, None));
    }

    #[tokio::test]
    async fn a_stream_within_the_cap_is_kept_whole() {
        let (captured, _) = drained(b"012345", 6, None).await;
        assert_eq!(captured.whole(), Some(b"012345".to_vec()));
    }

    #[tokio::test]
    async fn passing_the_limit_is_told_once_and_reading_goes_on() {
        let bytes = vec![b'x'; 1 << 20];
        let (captured, calls) = drained(&bytes, 100, Some(70_000)).await;
        assert_eq!((captured.total(), calls), (1 << 20, 1));
        let (_, calls) = drained(&bytes, 100, Some(1 << 20)).await;
        assert_eq!(calls, 0, "a limit that is reached exactly is not passed");
    }

    #[test]
    fn the_limit_is_over_both_streams() {
        let meter = Meter::new(Some(10));
        assert_eq!([meter.passes(6), meter.passes(4), meter.passes(1)], [false, false, true]);
        assert!(!meter.passes(1));
    }

    #[test]
    fn memory_stays_flat_under_a_flood() {
        let mut captured = Captured::new(KEPT_BYTES);
        let piece = vec![b'x'; READ_BYTES];
        for _ in 0..16_384 {
            captured.push(&piece);
        }
        assert_eq!(captured.total(), 1 << 30);
        assert!(captured.head.capacity() + captured.tail.capacity() <= 4 * KEPT_BYTES);
    }

    proptest! {
        #[test]
        fn any_pieces_leave_the_true_head_and_tail(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20),
            keep in 0usize..64,
        ) {
            let mut captured = Captured::new(keep);
            pieces.iter().for_each(|piece| captured.push(piece));
            let all = pieces.concat();
            let head = &all[..all.len().min(keep / 2)];
            let rest = &all[head.len()..];
            prop_assert_eq!(captured.head(), head);
            prop_assert_eq!(captured.tail(), &rest[rest.len().saturating_sub(keep / 2)..]);
            prop_assert_eq!(captured.total(), u64::try_from(all.len()).unwrap_or(0));
        }
    }
}
