//! Parts of captured output: from an offset on, and in consecutive pieces.

use super::Captured;

/// Consecutive bytes, and the offset at which to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPart {
    /// Number of bytes before them that were not kept.
    pub skipped: u64,
    pub bytes: Vec<u8>,
    /// Offset in the stream after the last byte.
    pub next: u64,
}

impl Captured {
    /// Joins the stream with its continuation.
    #[must_use]
    pub fn and(&self, later: &Self) -> Self {
        let mut all = self.clone();
        match later.whole() {
            Some(whole) => all.push(&whole),
            None => {
                // Gaps are merged: everything between the first head and the last tail.
                all.tail = later.tail().to_vec();
                all.total = self.total.saturating_add(later.total);
            }
        }
        all
    }

    /// Returns the kept part from byte `offset` on.
    #[must_use]
    pub fn since(&self, offset: u64) -> Self {
        let tail_starts = self.total.saturating_sub(length(self.tail().len()));
        Self {
            half: self.half,
            head: after(&self.head, offset).to_vec(),
            tail: after(self.tail(), offset.saturating_sub(tail_starts)).to_vec(),
            total: self.total.saturating_sub(offset),
        }
    }

    /// Returns at most `max_bytes` consecutive bytes from `offset` on, without splitting short
    /// lines. A client that continues at `next` each time gets all that was kept.
    pub fn piece(&self, offset: u64, max_bytes: usize) -> OutputPart {
        let start = offset.min(self.total);
        let rest = self.since(start);
        let (skipped, kept) = match rest.whole() {
            Some(whole) => (0, whole),
            None if rest.head.is_empty() => (rest.gap(), rest.tail),
            None => (0, rest.head),
        };
        let bytes = kept.get(..seam(&kept, max_bytes)).unwrap_or_default().to_vec();
        let next = start.saturating_add(skipped).saturating_add(length(bytes.len()));
        OutputPart { skipped, bytes, next }
    }
}

fn length(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn after(bytes: &[u8], offset: u64) -> &[u8] {
    usize::try_from(offset).ok().and_then(|at| bytes.get(at..)).unwrap_or_default()
}

/// Returns the end of a piece of at most `max_bytes` bytes: after a line, or else after a
/// character.
fn seam(bytes: &[u8], max_bytes: usize) -> usize {
    let Some(within) = bytes.get(..max_bytes).filter(|_| bytes.len() > max_bytes) else {
        return bytes.len();
    };
    let line = within.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
    let begins = |at: &usize| bytes.get(*at).is_some_and(|byte| byte & 0xc0 != 0x80);
    // A character has at most four bytes; a longer run of continuation bytes is invalid.
    let character = (max_bytes.saturating_sub(3)..=max_bytes).rev().find(begins);
    line.or(character.filter(|at| *at > 0)).unwrap_or(max_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(bytes: &[u8], keep: usize) -> Captured {
        let mut captured = Captured::new(keep);
        captured.push(bytes);
        captured
    }

    #[test]
    fn consecutive_pieces_return_all_that_is_kept_and_count_the_rest() {
        let kept = stream(b"0123456789abcdef", 8);
        let mut next = 0;
        let mut read = Vec::new();
        let mut skipped = 0;
        for _ in 0..9 {
            let piece = kept.piece(next, 3);
            next = piece.next;
            read.extend(piece.bytes);
            skipped += piece.skipped;
        }
        assert_eq!((read, skipped, next), (b"0123cdef".to_vec(), 8, 16));
    }

    #[test]
    fn a_piece_ends_with_a_line_or_else_with_a_character() {
        let piece = |text: &str, max_bytes| stream(text.as_bytes(), 100).piece(0, max_bytes).bytes;
        assert_eq!(piece("one\ntwo\nthree", 10), b"one\ntwo\n");
        assert_eq!(piece("ab\u{20ac}", 4), b"ab");
        assert_eq!(piece("\u{20ac}\u{20ac}", 5), "\u{20ac}".as_bytes());
        assert_eq!(piece("abc", 3), b"abc");
        assert_eq!(piece("abc", 0), b"");
    }

    #[test]
    fn since_counts_what_is_left_of_the_gap() {
        let kept = stream(b"0123456789", 6);
        let seen = |offset| {
            let rest = kept.since(offset);
            (rest.head().to_vec(), rest.gap(), rest.tail().to_vec(), rest.total())
        };
        assert_eq!(seen(1), (b"12".to_vec(), 4, b"789".to_vec(), 9));
        assert_eq!(seen(5), (vec![], 2, b"789".to_vec(), 5));
        assert_eq!(seen(8), (vec![], 0, b"89".to_vec(), 2));
        assert_eq!(seen(99), (vec![], 0, vec![], 0));
    }

    #[test]
    fn what_comes_later_continues_the_stream() {
        let all = stream(b"ab", 8).and(&stream(b"cd", 8));
        assert_eq!((all.whole(), all.total()), (Some(b"abcd".to_vec()), 4));
        let all = stream(b"ab", 8).and(&stream(b"0123456789", 4));
        assert_eq!((all.head(), all.tail(), all.total()), (&b"ab"[..], &b"89"[..], 12));
        assert_eq!(all.gap(), 8);
    }
}
