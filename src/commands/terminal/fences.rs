//! Fences: queries for the terminal's status (DSR), written after each query of a program. A terminal answers in order:
//! once it has reported its status, it has drawn all earlier output and answered all earlier queries.

use std::time::Duration;

use tokio::time::Instant;

/// The query for the status. The filter drops it in the output of programs.
pub(super) const FENCE: &[u8] = b"\x1b[5n";
/// Answers to a fence.
const ANSWERS: [&[u8]; 2] = [b"\x1b[0n", b"\x1b[3n"];

/// Maximum number of open fences with which a program may send a query.
const MAX_OPEN: usize = 16;
/// Maximum bytes that the terminal may not have drawn yet when a program sends a query.
const MAX_UNDRAWN: usize = 16 << 10;
/// Time in which a terminal answers, over a slow line too, once all output is drawn.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes that the slowest line carries in a second.
const MIN_BYTES_PER_SECOND: usize = 20_000;
/// Maximum time for drawing.
const MAX_DRAWING_TIME: Duration = Duration::from_secs(60);

/// Fences that were written, and how far the terminal is behind.
#[derive(Debug, Clone, Default)]
pub(super) struct Fences {
    open: usize,
    /// Bytes since the last fence.
    since: usize,
    /// Bytes that the terminal may not have drawn.
    undrawn: usize,
    /// Time of the last byte.
    wrote_at: Option<Instant>,
}

impl Fences {
    /// Returns true if a program may send a query now: the answer comes soon.
    pub(super) fn may_ask(&self) -> bool {
        self.open < MAX_OPEN && self.undrawn < MAX_UNDRAWN
    }

    /// Returns true if an answer is outstanding.
    pub(super) fn is_open(&self) -> bool {
        self.open > 0
    }

    /// Counts a fence that is written.
    pub(super) fn put(&mut self) {
        self.open += 1;
        self.since = 0;
    }

    /// Counts bytes for the terminal.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.since = self.since.saturating_add(bytes);
        self.undrawn = self.undrawn.saturating_add(bytes);
        if bytes > 0 {
            self.wrote_at = Some(Instant::now());
        }
    }

    /// Counts answers of the terminal.
    pub(super) fn answered(&mut self, answers: usize) {
        if answers > 0 {
            self.open = self.open.saturating_sub(answers);
            self.undrawn = if self.open == 0 { self.since } else { self.undrawn };
        }
    }

    /// Returns the time to wait for an answer from now on.
    pub(super) fn patience(&self) -> Duration {
        let drawing = u64::try_from(self.undrawn / MIN_BYTES_PER_SECOND).unwrap_or(u64::MAX);
        let elapsed = self.wrote_at.map_or(Duration::ZERO, |then| then.elapsed());
        let drawing = Duration::from_secs(drawing).min(MAX_DRAWING_TIME).saturating_sub(elapsed);
        ANSWER_TIMEOUT.saturating_add(drawing)
    }
}

/// Finds answers to fences in the input from a terminal, also if a read ends within one.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The last bytes of the input, if an answer may start with them.
    begun: Vec<u8>,
}

impl Answers {
    /// Removes answers from the input. Returns the other bytes, and the number of answers.
    pub(super) fn take(&mut self, bytes: &[u8]) -> (Vec<u8>, usize) {
        let mut rest = Vec::with_capacity(bytes.len());
        let mut count = 0;
        for byte in bytes {
            self.begun.push(*byte);
            if ANSWERS.contains(&self.begun.as_slice()) {
                self.begun.clear();
                count += 1;
            }
            while !ANSWERS.iter().any(|answer| answer.starts_with(&self.begun)) {
                rest.push(self.begun.remove(0));
            }
        }
        (rest, count)
    }

    /// Returns true if bytes are held back that may be the start of an answer, or a key.
    pub(super) fn has_begun(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Returns the bytes that were held back. They are no answer.
    pub(super) fn give_up(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_in_reads_of_any_size() {
        let input = b"a\x1b[0nb\x1b\x1b[3n\x1b[0\x1b[A\x1b[00n\x1b[0n\x1b";
        for size in 1..=input.len() {
            let mut answers = Answers::default();
            let mut rest = Vec::new();
            let mut count = 0;
            for chunk in input.chunks(size) {
                let (others, answered) = answers.take(chunk);
                rest.extend(others);
                count += answered;
            }
            assert!(answers.has_begun());
            rest.extend(answers.give_up());
            assert_eq!((rest.as_slice(), count), (&b"ab\x1b\x1b[0\x1b[A\x1b[00n\x1b"[..], 3));
        }
    }

    #[test]
    fn a_program_may_send_queries_while_the_terminal_keeps_up() {
        let mut fences = Fences::default();
        assert!(fences.may_ask());
        fences.wrote(10 * MIN_BYTES_PER_SECOND);
        assert!(!fences.may_ask());
        assert!(fences.patience() > ANSWER_TIMEOUT + Duration::from_secs(8));
        fences.put();
        fences.wrote(100);
        fences.answered(0);
        assert!(!fences.may_ask() && fences.is_open());
        fences.answered(1);
        assert!(fences.may_ask() && !fences.is_open());
        (0..MAX_OPEN).for_each(|_| fences.put());
        assert!(!fences.may_ask());
        fences.answered(1);
        assert!(fences.may_ask() && fences.is_open());
    }
}
