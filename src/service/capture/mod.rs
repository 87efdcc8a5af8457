//! Captures what a program writes: reads everything, keeps head and tail, and counts the rest.
//!
//! A flood of output thus neither blocks the program before its output limit nor fills this
//! process's memory. [`text`] makes captured output fit for a reply.

pub mod deceptive;
mod escapes;
pub mod grep;
pub mod lines;
mod part;
pub mod stream;
pub mod tap;
pub mod text;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use part::OutputPart;

/// Number of bytes kept of one stream (1 MiB), half of them head and half tail.
pub const KEPT_BYTES: usize = 1 << 20;

/// The kept part of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    half: usize,
    head: Vec<u8>,
    /// Up to twice `half` bytes, so that old bytes are dropped rarely and not after each read;
    /// [`Captured::tail`] returns the newest `half`.
    tail: Vec<u8>,
    total: u64,
}

impl Captured {
    /// Makes a capture that keeps at most `keep` bytes.
    pub fn new(keep: usize) -> Self {
        Self { half: keep / 2, head: Vec::new(), tail: Vec::new(), total: 0 }
    }

    /// Returns the maximum of kept bytes.
    pub(crate) fn limit(&self) -> u64 {
        u64::try_from(2 * self.half).unwrap_or(u64::MAX)
    }

    /// Splits at the last kept `marker`. Returns what came before it, as if only that had been
    /// written, and what followed; `None` without a marker.
    pub fn parted(&self, marker: &[u8]) -> Option<(Self, Vec<u8>)> {
        let (head, tail) = match self.whole() {
            Some(whole) => (Vec::new(), whole),
            None => (self.head.clone(), self.tail().to_vec()),
        };
        let at = tail.windows(marker.len().max(1)).rposition(|window| window == marker)?;
        let (before, after) = tail.split_at_checked(at)?;
        let cut = u64::try_from(after.len()).unwrap_or(u64::MAX);
        let after = after.get(marker.len()..)?.to_vec();
        let mut parted = Self { head, ..Self::new(self.half.saturating_mul(2)) };
        parted.push(before);
        parted.total = self.total.saturating_sub(cut);
        Some((parted, after))
    }

    /// Captures a stream of exactly these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut captured = Self::new(KEPT_BYTES);
        captured.push(bytes);
        captured
    }

    /// Returns the first bytes of the stream.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the last bytes of the stream, without those in [`Captured::head`].
    pub fn tail(&self) -> &[u8] {
        let excess = self.tail.len().saturating_sub(self.half);
        self.tail.get(excess..).unwrap_or_default()
    }

    /// Returns the number of bytes that the program wrote, kept or not.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of bytes between head and tail that were not kept.
    pub fn gap(&self) -> u64 {
        let kept = self.head.len() + self.tail().len();
        self.total.saturating_sub(u64::try_from(kept).unwrap_or(u64::MAX))
    }

    /// Returns the whole stream if all of it was kept.
    pub fn whole(&self) -> Option<Vec<u8>> {
        (self.gap() == 0).then(|| [self.head(), self.tail()].concat())
    }

    /// Appends the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let room = self.half.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        // At most `half` bytes of a piece can end up in the tail.
        let rest = rest.get(rest.len().saturating_sub(self.half)..).unwrap_or_default();
        if self.tail.len() + rest.len() > 2 * self.half {
            let stale = self.tail.len().saturating_sub(self.half);
            self.tail.drain(..stale);
        }
        self.tail.extend_from_slice(rest);
    }
}

/// Number of bytes that a running call has produced so far, over both streams. Clones share the
/// count, so that another task can report the progress.
#[derive(Debug, Clone, Default)]
pub struct Produced(Arc<AtomicU64>);

impl Produced {
    /// Adds bytes; returns the count before.
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
    /// Makes a meter with a limit of `limit` bytes; `None` means no limit.
    pub fn new(limit: Option<u64>) -> Self {
        Self::counting(limit, Produced::default())
    }

    /// Makes a meter that shares its count.
    pub fn counting(limit: Option<u64>, produced: Produced) -> Self {
        Self { limit, produced }
    }

    /// Adds bytes. Returns true once, when the limit is exceeded.
    pub fn passes(&self, bytes: u64) -> bool {
        let before = self.produced.add(bytes);
        self.limit.is_some_and(|limit| before <= limit && before.saturating_add(bytes) > limit)
    }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "the test computes its own bounds")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kept(stream: &[u8], keep: usize) -> Captured {
        let mut captured = Captured::new(keep);
        captured.push(stream);
        captured
    }

    #[test]
    fn head_and_tail_are_kept_and_the_rest_is_counted() {
        let captured = kept(b"0123456789", 6);
        assert_eq!(captured.head(), b"012");
        assert_eq!(captured.tail(), b"789");
        assert_eq!((captured.total(), captured.gap(), captured.whole()), (10, 4, None));
    }

    #[test]
    fn a_stream_within_the_cap_is_kept_whole() {
        assert_eq!(kept(b"012345", 6).whole(), Some(b"012345".to_vec()));
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
        let piece = vec![b'x'; 64 << 10];
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
