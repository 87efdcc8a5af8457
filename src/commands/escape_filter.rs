//! Filters what a program in a cell writes to the operator's terminal: text, colours and the cursor pass, and nothing
//! that the terminal would answer with text, keep, or act on outside of its window.
//!
//! A terminal types its answers as if the operator had (xterm's ctlseqs has the list). A program chooses the text of
//! some of them: the title, a setting that is asked for by DECRQSS, the clipboard by OSC 52. So what passes is listed
//! here, sequence by sequence; anything else does not.

use super::fences::{FENCE, Fences};

/// Longest beginning of a device control string, and longest operating system control, in bytes.
const HEAD: usize = 16;
const COMMAND: usize = 4096;
/// Longest control sequence, in bytes: a long list of colours.
const SEQUENCE: usize = 256;
/// Most digits of a number: terminals cut longer ones in different ways.
const DIGITS: usize = 5;

/// Private modes that pass (DECSET): keys, the cursor, wrapping, the mouse, the other screen, pasting, and drawing at once.
/// Not those that change the size of the window, the character set or the keyboard's own settings, nor the origin
/// (6), which a terminal keeps with the cursor and brings back later.
const MODES: [u32; 21] = [
    1, 5, 7, 9, 12, 25, 47, 66, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 1047, 1048, 1049,
    2004, 2026,
];
/// Private modes that a terminal has on by itself: they are switched on again.
const USUALLY_ON: [u32; 2] = [7, 25];

/// Commands of operating system controls (OSC) that pass: title and icon, colours that are set, links, and marks of
/// shell prompts. Not 52, the clipboard, nor 50, a font by a name that can be asked for, nor 7, a directory in which the
/// terminal opens its next window.
const COMMANDS: [&str; 12] =
    ["0", "1", "2", "4", "8", "10", "11", "12", "104", "110", "111", "133"];
/// Those among them that set the title or the icon's.
const TITLES: [&str; 3] = ["0", "1", "2"];
/// Keeps the title and takes it back (xterm's ctlseqs, `CSI Ps t`).
const KEEP_TITLE: &[u8] = b"\x1b[22;0t";
const TITLE_AS_KEPT: &[u8] = b"\x1b[23;0t";
/// Those among them that set colours.
const COLOURS: [&str; 4] = ["4", "10", "11", "12"];

/// Treatment of questions that a terminal answers with numbers alone, such as the place of the cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Questions {
    /// They pass: the answers go to the program.
    Pass,
    /// They do not: nobody would read the answers but the operator's shell.
    Drop,
}

/// Coding of characters at the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Utf8,
    /// One byte a character: 0x80 to 0x9f are controls, as ESC and another byte are.
    Bytes,
}

impl Coding {
    /// Returns the coding of the operator's locale (locale(7)).
    pub(super) fn of_locale() -> Self {
        let values = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(std::env::var_os);
        let value = values.into_iter().find(|value| !value.is_empty()).unwrap_or_default();
        let value = value.to_string_lossy().to_ascii_lowercase();
        match value.contains("utf-8") || value.contains("utf8") {
            true => Self::Utf8,
            false => Self::Bytes,
        }
    }
}

/// A filter over the output of one call.
#[derive(Debug)]
pub(super) struct EscapeFilter {
    questions: Questions,
    coding: Coding,
    state: State,
    /// Bytes of the sequence so far.
    held: Vec<u8>,
    /// Bytes of a character of UTF-8 so far, and their number when it is whole.
    character: Vec<u8>,
    length: usize,
    modes: Vec<(u32, bool)>,
    changed: Changed,
    /// Fences behind the questions that passed.
    fences: Fences,
    /// A question that waits until the terminal is further, and what is behind it.
    later: Option<Vec<u8>>,
}

/// Settings of the terminal that were changed, and are put back at the end.
#[derive(Debug, Default)]
struct Changed {
    /// Anything but text was written.
    anything: bool,
    /// Keys were told to send something else than usual.
    keys: bool,
    cursor_shape: bool,
    colours: bool,
    link: bool,
    title: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After ESC and an intermediate byte.
    Intermediate,
    /// In a control sequence (CSI).
    Sequence,
    /// In an operating system control (OSC), and after an ESC there.
    Command,
    CommandEscape,
    /// In a device control string (DCS) whose kind is not known yet.
    Head,
    /// In one that passes.
    Passed,
    /// In a control string that does not.
    Dropped,
}

/// Takes back what keys were told to send.
const KEYS_AS_USUAL: &[u8] = b"\x1b[<99u\x1b[>4m";

const ESCAPE: u8 = 0x1b;
const BELL: u8 = 0x07;

impl EscapeFilter {
    pub(super) fn new(questions: Questions, coding: Coding) -> Self {
        Self {
            questions,
            coding,
            state: State::default(),
            held: Vec::new(),
            character: Vec::new(),
            length: 0,
            modes: Vec::new(),
            changed: Changed::default(),
            fences: Fences::default(),
            later: None,
        }
    }

    /// Returns the bytes that may pass.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for byte in bytes {
            match &mut self.later {
                Some(later) => later.push(*byte),
                None => self.take(*byte, &mut out),
            }
        }
        self.fences.wrote(out.len());
        out
    }

    /// Returns whether output waits for an answer of the terminal.
    pub(super) fn is_waiting(&self) -> bool {
        self.later.is_some()
    }

    /// Returns the fences that were put behind questions.
    pub(super) fn fences(&self) -> &Fences {
        &self.fences
    }

    /// Takes answers of the terminal to fences. Returns the bytes that may pass for it.
    pub(super) fn answered(&mut self, answers: usize) -> Vec<u8> {
        self.fences.answered(answers);
        match self.fences.may_ask() {
            true => self.go_on(),
            false => Vec::new(),
        }
    }

    /// Lets no question pass any more. Returns the bytes that may pass for it.
    pub(super) fn ask_no_more(&mut self) -> Vec<u8> {
        self.questions = Questions::Drop;
        self.go_on()
    }

    fn go_on(&mut self) -> Vec<u8> {
        let later = self.later.take().unwrap_or_default();
        self.push(&later)
    }

    /// Returns what puts the terminal back: an unfinished string ends, modes are as they were, colours are off. Nothing,
    /// if only text was written.
    pub(super) fn reset(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.changed.anything {
            return out;
        }
        if self.state == State::Passed {
            out.extend(b"\x1b\\");
        }
        // Each screen has key flags of its own.
        let keys: &[u8] = if self.changed.keys { KEYS_AS_USUAL } else { b"" };
        out.extend(keys);
        for (mode, on) in &self.modes {
            if *on != USUALLY_ON.contains(mode) {
                let end = if *on { 'l' } else { 'h' };
                out.extend(format!("\x1b[?{mode}{end}").bytes());
            }
        }
        out.extend(keys);
        if self.changed.link {
            out.extend(b"\x1b]8;;\x1b\\");
        }
        if self.changed.colours {
            out.extend(b"\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b]112\x1b\\");
        }
        if self.changed.title {
            out.extend(TITLE_AS_KEPT);
        }
        if self.changed.cursor_shape {
            out.extend(b"\x1b[0 q");
        }
        // Modes of every terminal: inserting, and what Enter sends. Then the scrolled region, by which the cursor stays
        // where it is; colours, the keypad, and the character sets.
        out.extend(b"\x1b[4;20l\x1b7\x1b[r\x1b8\x1b[0m\x1b>\x0f\x1b(B\x1b)B");
        out
    }

    fn take(&mut self, byte: u8, out: &mut Vec<u8>) {
        match self.state {
            State::Text => self.text(byte, out),
            State::Escape => self.escape(byte, out),
            State::Intermediate => match byte {
                0x20..=0x2f if self.held.len() < SEQUENCE => self.held.push(byte),
                0x30..=0x7e => self.end(byte, out),
                _ => self.again(byte, out),
            },
            State::Sequence => match byte {
                0x20..=0x3f if self.held.len() < SEQUENCE => self.held.push(byte),
                0x40..=0x7e => self.sequence(byte, out),
                _ => self.again(byte, out),
            },
            State::Command => self.command(byte, out),
            State::CommandEscape => match byte {
                b'\\' => self.commanded(b"\x1b\\", out),
                _ => {
                    self.state = State::Escape;
                    self.escape(byte, out);
                }
            },
            State::Head => self.head(byte, out),
            State::Passed => match byte {
                ESCAPE => {
                    // Its end comes next, or something else that ends it too.
                    out.extend(b"\x1b\\");
                    self.state = State::Dropped;
                    self.held.push(byte);
                }
                0x20..=0x7e => out.push(byte),
                _ => {}
            },
            State::Dropped => self.dropped(byte, out),
        }
    }

    fn dropped(&mut self, byte: u8, out: &mut Vec<u8>) {
        match (self.held.last(), byte) {
            (_, BELL) => self.over(),
            (Some(&ESCAPE), b'\\') => self.over(),
            (Some(&ESCAPE), _) => {
                self.over();
                self.state = State::Escape;
                self.escape(byte, out);
            }
            (_, ESCAPE) => self.held.push(byte),
            (_, 0x18 | 0x1a) => self.over(),
            (_, _) => {}
        }
    }

    fn over(&mut self) {
        self.held.clear();
        self.state = State::Text;
    }

    fn text(&mut self, byte: u8, out: &mut Vec<u8>) {
        if byte >= 0x80 {
            return self.beyond_ascii(byte, out);
        }
        self.character.clear();
        match byte {
            ESCAPE => {
                self.held.clear();
                self.state = State::Escape;
            }
            // Bell, backspace, tab, lines, and shifts of the character set, which are put back.
            0x07..=0x0d => out.push(byte),
            0x0e | 0x0f => {
                self.changed.anything = true;
                out.push(byte);
            }
            // ENQ, which is answered with a text, CAN, by which file transfers begin, and others that draw nothing.
            0x00..=0x1f | 0x7f => {}
            _ => out.push(byte),
        }
    }

    /// Takes a byte of a character beyond ASCII. A whole one passes, in its shortest form, if it is no control (U+0080 to
    /// U+009F). A terminal that takes bytes for characters would see controls in others: they become a question mark.
    fn beyond_ascii(&mut self, byte: u8, out: &mut Vec<u8>) {
        if byte >= 0xc0 || self.character.is_empty() {
            self.character.clear();
            self.length = match byte {
                0xc2..=0xdf => 2,
                0xe0..=0xef => 3,
                0xf0..=0xf4 => 4,
                _ => return,
            };
        }
        self.character.push(byte);
        if self.character.len() < self.length {
            return;
        }
        let character = std::mem::take(&mut self.character);
        match std::str::from_utf8(&character) {
            Ok(text) if text.chars().any(char::is_control) => {}
            Ok(_) if self.coding == Coding::Bytes && has_control(&character) => out.push(b'?'),
            Ok(_) => out.extend(character),
            Err(_) => {}
        }
    }

    fn escape(&mut self, byte: u8, out: &mut Vec<u8>) {
        self.held.clear();
        match byte {
            b'[' => self.state = State::Sequence,
            b']' => self.state = State::Command,
            b'P' => self.state = State::Head,
            // SOS, PM, APC: nothing that is needed.
            b'X' | b'^' | b'_' => self.state = State::Dropped,
            0x20..=0x2f => {
                self.held.push(byte);
                self.state = State::Intermediate;
            }
            // Cursor and colours kept and taken back, keypad, lines, and the terminal's own reset. Not a tab stop: nobody
            // knows where they were.
            b'6' | b'7' | b'8' | b'9' | b'=' | b'>' | b'D' | b'E' | b'M' | b'c' | b'\\' => {
                self.changed.anything = true;
                out.extend([ESCAPE, byte]);
                self.state = State::Text;
            }
            ESCAPE => {}
            0x30..=0x7e => self.state = State::Text,
            _ => self.again(byte, out),
        }
    }

    /// A sequence breaks off: what comes is text again.
    fn again(&mut self, byte: u8, out: &mut Vec<u8>) {
        self.over();
        self.text(byte, out);
    }

    /// Ends an escape sequence with intermediate bytes: a character set, or the size of a line. Not the coding (`ESC %`).
    fn end(&mut self, byte: u8, out: &mut Vec<u8>) {
        let held = std::mem::take(&mut self.held);
        self.state = State::Text;
        let passes = match held.as_slice() {
            [b'(' | b')' | b'*' | b'+'] => true,
            [b'#'] => matches!(byte, b'3'..=b'6' | b'8'),
            _ => false,
        };
        if passes {
            self.changed.anything = true;
            out.push(ESCAPE);
            out.extend(held);
            out.push(byte);
        }
    }

    /// Ends a control sequence: passes it on if it is listed.
    fn sequence(&mut self, last: u8, out: &mut Vec<u8>) {
        let held = std::mem::take(&mut self.held);
        self.state = State::Text;
        let Some(Parts { prefix, numbers, intermediate }) = Parts::of(&held) else { return };
        let is_plain = !numbers.contains(&b':');
        let passes = match (prefix, intermediate, last) {
            // Colours, whose numbers may have parts.
            (b"", b"", b'm') => true,
            _ if !is_plain => false,
            // The cursor, tabs, erasing, inserting, scrolling, repeating, margins.
            (b"", b"", b'@'..=b'M' | b'P' | b'S' | b'T' | b'X' | b'Z' | b'`' | b'a' | b'b') => true,
            (b"", b"", b'd'..=b'f' | b'r' | b's' | b'u') => true,
            (b"?", b"", b'J' | b'K') | (b"", b"!", b'p') => true,
            (b"", b"", b'h' | b'l') => matches!(numbers, b"4" | b"20"),
            (b"", b" ", b'q') => {
                self.changed.cursor_shape = true;
                true
            }
            (b"?", b"", b'h' | b'l') => return self.mode(numbers, last, out),
            (b">", b"", b'm') => self.keys(matches!(numbers, b"4") || numbers.starts_with(b"4;")),
            (b">" | b"=" | b"<", b"", b'u') => self.keys(true),
            // Kinds of the terminal and its state, and modes: answered with numbers alone.
            (b"" | b">", b"", b'c') | (b"?", b"", b'u') | (b"" | b"?", b"$", b'p') => {
                return self.ask(&held, last, out);
            }
            // Not the status, which is a fence.
            (b"" | b"?", b"", b'n') if matches!(numbers, b"6" | b"996") => {
                return self.ask(&held, last, out);
            }
            _ => false,
        };
        if passes {
            self.changed.anything = true;
            out.extend(b"\x1b[");
            out.extend(held);
            out.push(last);
        }
    }

    fn keys(&mut self, passes: bool) -> bool {
        self.changed.keys |= passes;
        passes
    }

    /// Passes a question on with a fence behind it, or has it wait for the terminal, behind a fence too.
    fn ask(&mut self, held: &[u8], last: u8, out: &mut Vec<u8>) {
        if self.questions == Questions::Drop {
            return;
        }
        let question = [b"\x1b[", held, &[last]].concat();
        let mut now = Fences::clone(&self.fences);
        now.wrote(out.len());
        if now.may_ask() {
            self.changed.anything = true;
            out.extend(question);
        } else {
            self.later = Some(question);
        }
        if self.later.is_none() || !self.fences.is_open() {
            out.extend(FENCE);
            self.fences.put();
        }
    }

    /// Passes on the listed ones of private modes, and keeps them in mind.
    fn mode(&mut self, numbers: &[u8], last: u8, out: &mut Vec<u8>) {
        let numbers = std::str::from_utf8(numbers).unwrap_or_default().split(';');
        for number in numbers.filter_map(|number| number.parse().ok()) {
            if MODES.contains(&number) {
                self.modes.retain(|(known, _)| *known != number);
                self.modes.push((number, last == b'h'));
                self.changed.anything = true;
                // The other screen has key flags of its own, which nobody would take back later.
                if self.changed.keys && last == b'l' && matches!(number, 47 | 1047 | 1049) {
                    out.extend(KEYS_AS_USUAL);
                }
                out.extend(format!("\x1b[?{number}{}", char::from(last)).bytes());
            }
        }
    }

    /// Takes a byte of an operating system control, which is held until its end.
    fn command(&mut self, byte: u8, out: &mut Vec<u8>) {
        match byte {
            BELL => self.commanded(b"\x07", out),
            ESCAPE => self.state = State::CommandEscape,
            0x20..=0x7e | 0x80..=0xff if self.held.len() < COMMAND => self.held.push(byte),
            _ => {
                self.held.clear();
                self.state = State::Dropped;
            }
        }
    }

    /// Ends an operating system control: passes it on if it is known to be harmless.
    fn commanded(&mut self, end: &[u8], out: &mut Vec<u8>) {
        let held = std::mem::take(&mut self.held);
        self.state = State::Text;
        let Ok(text) = std::str::from_utf8(&held) else { return };
        let (number, value) = text.split_once(';').unwrap_or((text, ""));
        // Some terminals take bytes for characters in here whatever their coding is.
        let is_harmless = |c: &char| !c.is_control() && !has_control(c.to_string().as_bytes());
        let value: String = value.chars().filter(is_harmless).collect();
        // Judge the text that is written, not the one that was read. A query has `?` in place of a value; a link may have
        // one in its address.
        let asks = number != "8" && value.split(';').any(|one| one == "?");
        // A mark of a prompt may have a code behind it, and no option: one asks for clicks.
        let is_mark = || {
            let (mark, code) = value.split_once(';').unwrap_or((&value, ""));
            matches!(mark, "A" | "B" | "C" | "D") && code.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !COMMANDS.contains(&number) || asks || (number == "133" && !is_mark()) {
            return;
        }
        self.changed.anything = true;
        self.changed.link |= number == "8";
        self.changed.colours |= COLOURS.contains(&number);
        if TITLES.contains(&number) && !self.changed.title {
            self.changed.title = true;
            out.extend(KEEP_TITLE);
        }
        out.extend(format!("\x1b]{number}").bytes());
        if text.contains(';') {
            out.push(b';');
        }
        out.extend(value.bytes());
        out.extend(end);
    }

    /// Takes a byte of the beginning of a device control string, up to what tells its kind: sixel graphics (`q` after
    /// numbers) pass. DECRQSS and XTGETTCAP have `$` or `+` before it.
    fn head(&mut self, byte: u8, out: &mut Vec<u8>) {
        match byte {
            0x30..=0x3b if self.held.len() < HEAD => self.held.push(byte),
            b'q' => {
                self.changed.anything = true;
                out.extend(b"\x1bP");
                out.append(&mut self.held);
                out.push(byte);
                self.state = State::Passed;
            }
            _ => {
                self.held.clear();
                self.state = State::Dropped;
                self.take(byte, out);
            }
        }
    }
}

/// Parts of a control sequence before its last byte.
struct Parts<'s> {
    /// One of `<=>?`, or nothing.
    prefix: &'s [u8],
    /// Numbers with `;` and `:` between them.
    numbers: &'s [u8],
    intermediate: &'s [u8],
}

impl<'s> Parts<'s> {
    /// Returns the parts of a sequence that is well formed, and whose numbers every terminal reads in the same way.
    fn of(held: &'s [u8]) -> Option<Self> {
        let is_number = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b';' | b':');
        let begin = usize::from(held.first().is_some_and(|first| matches!(first, b'<'..=b'?')));
        let (prefix, rest) = held.split_at_checked(begin)?;
        let end = rest.iter().position(|byte| !is_number(byte)).unwrap_or(rest.len());
        let (numbers, intermediate) = rest.split_at_checked(end)?;
        let is_short = |number: &[u8]| number.len() <= DIGITS;
        let is_well_formed = intermediate.iter().all(|byte| matches!(byte, 0x20..=0x2f))
            && numbers.split(|byte| !byte.is_ascii_digit()).all(is_short);
        is_well_formed.then_some(Self { prefix, numbers, intermediate })
    }
}

/// Returns whether a terminal that takes bytes for characters would see a control in these.
fn has_control(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| matches!(byte, 0x80..=0x9f))
}

#[cfg(test)]
#[path = "escape_filter_tests.rs"]
mod tests;
