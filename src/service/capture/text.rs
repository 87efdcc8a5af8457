//! Renders captured output for a reply: within a number of characters, and harmless to show.
//!
//! Invalid UTF-8 is repaired, escape sequences are removed, other control characters are shown as
//! pictures (`␀`), and a line that was redrawn with carriage returns or backspaces is shown in its
//! last state. What is left out between head and tail is stated in bytes of the stream.
//!
//! Not a terminal parser on purpose: those let an unterminated OSC sequence swallow all output that
//! follows. Here a sequence ends with its line at the latest.

use std::collections::VecDeque;

use super::Captured;
use super::deceptive::{deceives, escaped};
use super::escapes::{first_character, sequence_length, shown};

/// Characters reserved for the line that states what was left out.
const NOTE_CHARACTERS: usize = 64;
/// After a gap, text starts at a line's start if there is one within this many bytes.
const SEAM_LINE_BYTES: usize = 4096;
/// Otherwise after a break within this many bytes, so that the rest of a cut sequence is not shown.
const SEAM_BREAK_BYTES: usize = 64;

/// Both streams of a call as shown in a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    pub stdout: String,
    pub stderr: String,
    /// True if anything of either stream was left out.
    pub truncated: bool,
}

/// Renders both streams within `budget` characters together. A stream that needs less than half
/// leaves the rest to the other.
pub fn render(stdout: &Captured, stderr: &Captured, budget: usize) -> Rendered {
    let out = Window::over(stdout, budget);
    let err = Window::over(stderr, budget);
    let half = budget / 2;
    let (out_room, err_room) = if out.needs() + err.needs() <= budget {
        (out.needs(), err.needs())
    } else if out.needs() <= half {
        (out.needs(), budget - out.needs())
    } else if err.needs() <= half {
        (budget - err.needs(), err.needs())
    } else {
        (half, half)
    };
    let out = out.within(out_room, stdout);
    let err = err.within(err_room, stderr);
    let truncated = out.left_out() > 0 || err.left_out() > 0;
    Rendered { stdout: out.into_text(), stderr: err.into_text(), truncated }
}

/// The first and last characters of a text, with their offsets in the stream.
struct Window {
    head: String,
    head_room: usize,
    /// Offset in the stream after the head's last character.
    head_end: u64,
    /// Each character with the offset of its first byte.
    tail: VecDeque<(char, u64)>,
    tail_room: usize,
    /// Length of the stream.
    end: u64,
    /// Number of characters pushed.
    seen: usize,
    /// True if anything between head and tail is missing.
    gap: bool,
}

impl Window {
    fn over(captured: &Captured, room: usize) -> Self {
        let mut window = Self {
            head: String::new(),
            head_room: room - room / 2,
            head_end: 0,
            tail: VecDeque::new(),
            tail_room: room / 2,
            end: captured.total(),
            seen: 0,
            gap: false,
        };
        if let Some(whole) = captured.whole() {
            clean(&whole, 0, &mut window);
            return window;
        }
        clean(without_cut_character(captured.head()), 0, &mut window);
        window.close_head();
        let tail = after_seam(captured.tail());
        clean(tail, captured.total().saturating_sub(offset(tail.len())), &mut window);
        window
    }

    /// Returns this window, or a narrower one over the same stream if it exceeds `room`.
    fn within(self, room: usize, captured: &Captured) -> Self {
        if self.needs() <= room {
            return self;
        }
        Self::over(captured, room.saturating_sub(NOTE_CHARACTERS))
    }

    /// Returns how many characters it takes to show everything.
    fn needs(&self) -> usize {
        self.seen + if self.left_out() > 0 { NOTE_CHARACTERS } else { 0 }
    }

    fn push(&mut self, character: char, start: u64, end: u64) {
        self.seen += 1;
        if self.head_room > 0 {
            self.head_room -= 1;
            self.head.push(character);
            self.head_end = end;
            return;
        }
        self.tail.push_back((character, start));
        if self.tail.len() > self.tail_room {
            self.tail.pop_front();
            self.gap = true;
        }
    }

    /// Removes the newest character, as a backspace does on a screen.
    fn pop(&mut self) {
        self.seen = self.seen.saturating_sub(1);
        if self.tail.pop_back().is_none() && !self.gap && self.head.pop().is_some() {
            self.head_room += 1;
        }
    }

    /// Closes the head: what follows is not adjacent to it.
    fn close_head(&mut self) {
        self.head_room = 0;
        self.tail.clear();
        self.gap = true;
    }

    /// Returns the number of bytes between head and tail.
    fn left_out(&self) -> u64 {
        let resumes = self.tail.front().map_or(self.end, |(_, start)| *start);
        if self.gap { resumes.saturating_sub(self.head_end) } else { 0 }
    }

    fn into_text(self) -> String {
        let left_out = self.left_out();
        let mut text = self.head;
        if left_out > 0 {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&format!("[\u{2026} {left_out} bytes left out \u{2026}]\n"));
        }
        text.extend(self.tail.into_iter().map(|(character, _)| character));
        text
    }
}

fn offset(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Returns the head of a stream without a last character that was cut off.
pub fn without_cut_character(head: &[u8]) -> &[u8] {
    let cut =
        head.utf8_chunks().last().map_or(0, |chunk| match std::str::from_utf8(chunk.invalid()) {
            // `error_len` is `None` if more bytes could have completed a character.
            Err(error) if error.error_len().is_none() => chunk.invalid().len(),
            Ok(_) | Err(_) => 0,
        });
    head.get(..head.len() - cut).unwrap_or_default()
}

/// Returns the tail of a stream from a position that is likely not within a character or sequence.
fn after_seam(tail: &[u8]) -> &[u8] {
    let within = |bytes| tail.get(..bytes).unwrap_or(tail);
    let line = within(SEAM_LINE_BYTES).iter().position(|byte| *byte == b'\n').map(|at| at + 1);
    let pause = || within(SEAM_BREAK_BYTES).iter().position(|byte| b" \r\x1b".contains(byte));
    let character = || tail.iter().position(|byte| byte & 0xc0 != 0x80);
    let start = line.or_else(pause).or_else(character).unwrap_or(0);
    tail.get(start..).unwrap_or_default()
}

/// Pushes the text of `bytes`, which start at offset `base` of the stream.
fn clean(bytes: &[u8], base: u64, window: &mut Window) {
    let mut start = base;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        clean_line(line, start, window);
        start = start.saturating_add(offset(line.len()));
    }
}

fn clean_line(line: &[u8], base: u64, window: &mut Window) {
    let ended = line.ends_with(b"\n");
    let length = line.iter().rposition(|byte| !b"\r\n".contains(byte)).map_or(0, |at| at + 1);
    let drawn = line.get(..length).unwrap_or_default();
    // Each carriage return restarts the line; only the last drawing remains visible.
    let mut at = drawn.iter().rposition(|byte| *byte == b'\r').map_or(0, |index| index + 1);
    // Number of pushed characters for each character since then.
    let mut widths: Vec<u8> = Vec::new();
    let mut before = None;
    while let Some(rest) = drawn.get(at..).filter(|rest| !rest.is_empty()) {
        let sequence = sequence_length(rest);
        if sequence > 0 {
            at += sequence;
            continue;
        }
        let (character, length) = first_character(rest);
        if character == '\u{8}' {
            (0..widths.pop().unwrap_or(0)).for_each(|_| window.pop());
            before = None;
        } else {
            let start = base.saturating_add(offset(at));
            let end = start.saturating_add(offset(length));
            let after = rest.get(length..).filter(|rest| !rest.is_empty());
            let after = after.map(|rest| first_character(rest).0);
            if deceives(character, before, after) {
                let escape = escaped(character);
                escape.chars().for_each(|character| window.push(character, start, end));
                widths.push(u8::try_from(escape.len()).unwrap_or(u8::MAX));
            } else {
                window.push(shown(character), start, end);
                widths.push(1);
            }
            before = Some(character);
        }
        at += length;
    }
    if ended {
        let end = base.saturating_add(offset(line.len()));
        window.push('\n', end.saturating_sub(1), end);
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
