//! Questions about the terminal's status (DSR), each behind a question of a program's. A terminal answers in order: once it
//! has told its status, it has answered all before that, and drawn it.

use std::time::Duration;

use tokio::time::Instant;

/// Asks for the status, and its answers. The filter lets no program ask for it.
pub(super) const FENCE: &[u8] = b"\x1b[5n";
const ANSWERS: [&[u8]; 2] = [b"\x1b[0n", b"\x1b[3n"];

/// Fences that may be open when a program asks something.
const MOST: usize = 16;
/// Bytes that the terminal may have before it when a program asks something.
const WINDOW: usize = 16 << 10;
/// Time in which a terminal answers, over a slow line too, what it has not drawn yet left aside.
const ANSWER: Duration = Duration::from_secs(2);
/// Bytes that the slowest line carries in a second, and the longest time that is granted to it.
const SLOWEST: usize = 20_000;
const LONGEST: Duration = Duration::from_secs(60);

/// Fences that were put, and how far the terminal is.
#[derive(Debug, Clone, Default)]
pub(super) struct Fences {
    open: usize,
    /// Bytes since the last fence, and those that the terminal may not have drawn.
    since: usize,
    undrawn: usize,
    /// Time of the last byte.
    wrote_at: Option<Instant>,
}

impl Fences {
    /// Returns whether a program may ask something now: the answer comes soon.
    pub(super) fn may_ask(&self) -> bool {
        self.open < MOST && self.undrawn < WINDOW
    }

    /// Returns whether an answer is outstanding.
    pub(super) fn is_open(&self) -> bool {
        self.open > 0
    }

    /// Counts a fence that is put.
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

    /// Returns the time after which no answer is expected any more, if none has come.
    pub(super) fn patience(&self) -> Duration {
        let behind = u64::try_from(self.undrawn / SLOWEST).unwrap_or(u64::MAX);
        let gone = self.wrote_at.map_or(Duration::ZERO, |then| then.elapsed());
        let behind = Duration::from_secs(behind).min(LONGEST).saturating_sub(gone);
        ANSWER.saturating_add(behind)
    }
}

/// Input of a terminal in which answers to fences are found, however they are cut.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Beginning of what may be one.
    begun: Vec<u8>,
}

impl Answers {
    /// Takes answers out of the input. Returns the rest, and their number.
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

    /// Returns whether something is held back that may be the beginning of an answer, or a key.
    pub(super) fn has_begun(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Returns what was held back: no answer.
    pub(super) fn give_up(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_however_they_are_cut() {
        let input = b"a\x1b[0nb\x1b\x1b[3n\x1b[0\x1b[A\x1b[00n\x1b[0n\x1b";
        for size in 1..=input.len() {
            let mut answers = Answers::default();
            let (mut rest, mut count) = (Vec::new(), 0);
            for chunk in input.chunks(size) {
                let (some, more) = answers.take(chunk);
                rest.extend(some);
                count += more;
            }
            assert!(answers.has_begun());
            rest.extend(answers.give_up());
            assert_eq!((rest.as_slice(), count), (&b"ab\x1b\x1b[0\x1b[A\x1b[00n\x1b"[..], 3));
        }
    }

    #[test]
    fn a_program_may_ask_while_the_terminal_keeps_up() {
        let mut fences = Fences::default();
        assert!(fences.may_ask());
        fences.wrote(10 * SLOWEST);
        assert!(!fences.may_ask());
        assert!(fences.patience() > ANSWER + Duration::from_secs(8));
        fences.put();
        fences.wrote(100);
        fences.answered(0);
        assert!(!fences.may_ask() && fences.is_open());
        fences.answered(1);
        assert!(fences.may_ask() && !fences.is_open());
        (0..MOST).for_each(|_| fences.put());
        assert!(!fences.may_ask());
        fences.answered(1);
        assert!(fences.may_ask() && fences.is_open());
    }
}
