//! Filters what a program in a cell writes to the operator's terminal: text, colours and the cursor pass, and nothing
//! that the terminal would answer with text, keep, or act on outside of its window.
//!
//! A terminal sends its answers as if the operator had typed them (xterm's ctlseqs has the list). A program chooses the
//! text of some of them: the title, a setting that is requested by DECRQSS, the clipboard by OSC 52. So the sequences that
//! pass are listed here; all others are dropped.
//!
//! The states are those of the usual parser of the VT500 series. Crates for it, such as `vte`, report the values of a
//! sequence and not its bytes: `CSI K` and `CSI 0 K`, or an empty part of a colour, are the same there. They have no limit
//! on the length of a command, end one before its terminator has come, and replace bytes that are not UTF-8.

use super::fences::{FENCE, Fences};

/// Maximum bytes of a device control string before the letter that names its kind.
const MAX_DCS_HEAD: usize = 16;
/// Maximum bytes of an operating system control.
const MAX_OSC: usize = 4096;
/// Maximum bytes of a control sequence: a long list of colours.
const MAX_CSI: usize = 256;
/// Maximum digits of a number: terminals cut longer ones in different ways.
const MAX_DIGITS: usize = 5;

/// Private modes that pass (DECSET): keys, the cursor, wrapping, the mouse, the other screen, pasting, and drawing at once.
/// Modes that change the size of the window, the character set or the settings of the keyboard are missing, and so is
/// the origin (6), which a terminal saves with the cursor and restores later.
const PRIVATE_MODES: [u32; 21] = [
    1, 5, 7, 9, 12, 25, 47, 66, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 1047, 1048, 1049,
    2004, 2026,
];
/// Private modes that are on by default: they are switched on again at the end.
const ON_BY_DEFAULT: [u32; 2] = [7, 25];

/// Commands of operating system controls (OSC) that pass: title and icon, colours that are set, links, and marks of
/// shell prompts. Dropped are 52, the clipboard, 50, a font whose name can be queried, and 7, a directory in which the
/// terminal opens its next window.
const OSC_COMMANDS: [&str; 12] =
    ["0", "1", "2", "4", "8", "10", "11", "12", "104", "110", "111", "133"];
/// Commands that set the title or the icon's.
const TITLES: [&str; 3] = ["0", "1", "2"];
/// Save and restore the title (xterm's ctlseqs, `CSI Ps t`).
const SAVE_TITLE: &[u8] = b"\x1b[22;0t";
const RESTORE_TITLE: &[u8] = b"\x1b[23;0t";
/// Commands that set colours.
const COLOURS: [&str; 4] = ["4", "10", "11", "12"];

/// Treatment of queries that a terminal answers with numbers alone, such as the position of the cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queries {
    /// The program reads the answers.
    Pass,
    /// Only the operator's shell would read the answers.
    Drop,
}

/// Coding of characters at the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Utf8,
    /// One byte a character: 0x80 to 0x9f are controls, like ESC and another byte.
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
    queries: Queries,
    coding: Coding,
    state: State,
    /// Bytes of the current sequence.
    pending: Vec<u8>,
    /// Bytes of the current UTF-8 character.
    character: Vec<u8>,
    /// Bytes that this character has when it is complete.
    length: usize,
    /// Private modes that were set, each with its value.
    modes: Vec<(u32, bool)>,
    changed: ChangedSettings,
    /// Fences after the queries that passed.
    fences: Fences,
    /// A query that waits until the terminal has drawn more, and the output after it.
    held_back: Option<Vec<u8>>,
}

/// Settings of the terminal that were changed, and are restored at the end.
#[derive(Debug, Default)]
struct ChangedSettings {
    /// Anything but text was written.
    anything: bool,
    /// Keys were set to send other sequences.
    keys: bool,
    cursor_shape: bool,
    colours: bool,
    link: bool,
    title: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Ground,
    /// After ESC.
    Escape,
    /// After ESC and an intermediate byte.
    EscapeIntermediate,
    /// In a control sequence (CSI).
    Csi,
    /// In an operating system control (OSC).
    Osc,
    /// In an operating system control, after ESC.
    OscEscape,
    /// In a device control string (DCS) whose kind is not known yet.
    DcsHead,
    /// In a device control string that passes.
    DcsPassed,
    /// In a control string that is dropped.
    StringDropped,
}

/// Resets the sequences that keys send.
const DEFAULT_KEYS: &[u8] = b"\x1b[<99u\x1b[>4m";

const ESCAPE: u8 = 0x1b;
const BELL: u8 = 0x07;

impl EscapeFilter {
    pub(super) fn new(queries: Queries, coding: Coding) -> Self {
        Self {
            queries,
            coding,
            state: State::default(),
            pending: Vec::new(),
            character: Vec::new(),
            length: 0,
            modes: Vec::new(),
            changed: ChangedSettings::default(),
            fences: Fences::default(),
            held_back: None,
        }
    }

    /// Returns the bytes that may pass.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for byte in bytes {
            match &mut self.held_back {
                Some(held_back) => held_back.push(*byte),
                None => self.advance(*byte, &mut out),
            }
        }
        self.fences.wrote(out.len());
        out
    }

    /// Returns true while output waits for an answer of the terminal.
    pub(super) fn is_waiting(&self) -> bool {
        self.held_back.is_some()
    }

    /// Returns the fences that were written after queries.
    pub(super) fn fences(&self) -> &Fences {
        &self.fences
    }

    /// Counts answers of the terminal to fences. Returns the bytes that may pass now.
    pub(super) fn answered(&mut self, answers: usize) -> Vec<u8> {
        self.fences.answered(answers);
        match self.fences.may_ask() {
            true => self.resume(),
            false => Vec::new(),
        }
    }

    /// Drops all queries from now on. Returns the bytes that may pass now.
    pub(super) fn drop_queries(&mut self) -> Vec<u8> {
        self.queries = Queries::Drop;
        self.resume()
    }

    /// Filters the output that has waited.
    fn resume(&mut self) -> Vec<u8> {
        // Without a query that waits there is no such output.
        let held_back = self.held_back.take().unwrap_or_default();
        self.push(&held_back)
    }

    /// Returns the sequences that restore the terminal: they end an unfinished string, switch modes back and turn colours
    /// off. Empty if only text was written.
    pub(super) fn reset(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.changed.anything {
            return out;
        }
        if self.state == State::DcsPassed {
            out.extend(b"\x1b\\");
        }
        // Each of the two screens has key flags: they are reset before and after the modes, which may switch screens.
        let keys: &[u8] = if self.changed.keys { DEFAULT_KEYS } else { b"" };
        out.extend(keys);
        for (mode, on) in &self.modes {
            if *on != ON_BY_DEFAULT.contains(mode) {
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
            out.extend(RESTORE_TITLE);
        }
        if self.changed.cursor_shape {
            out.extend(b"\x1b[0 q");
        }
        // Modes of every terminal: inserting, and what Enter sends. Then the scrolling region, with the cursor saved
        // around it; colours, the keypad, and the character sets.
        out.extend(b"\x1b[4;20l\x1b7\x1b[r\x1b8\x1b[0m\x1b>\x0f\x1b(B\x1b)B");
        out
    }

    fn advance(&mut self, byte: u8, out: &mut Vec<u8>) {
        match self.state {
            State::Ground => self.ground(byte, out),
            State::Escape => self.escape(byte, out),
            State::EscapeIntermediate => match byte {
                0x20..=0x2f if self.pending.len() < MAX_CSI => self.pending.push(byte),
                0x30..=0x7e => self.end_escape(byte, out),
                _ => self.abort(byte, out),
            },
            State::Csi => match byte {
                0x20..=0x3f if self.pending.len() < MAX_CSI => self.pending.push(byte),
                0x40..=0x7e => self.end_csi(byte, out),
                _ => self.abort(byte, out),
            },
            State::Osc => self.osc(byte, out),
            State::OscEscape => match byte {
                b'\\' => self.end_osc(b"\x1b\\", out),
                _ => {
                    self.state = State::Escape;
                    self.escape(byte, out);
                }
            },
            State::DcsHead => self.dcs_head(byte, out),
            State::DcsPassed => match byte {
                ESCAPE => {
                    // ESC ends the string, whatever byte comes next.
                    out.extend(b"\x1b\\");
                    self.state = State::StringDropped;
                    self.pending.push(byte);
                }
                0x20..=0x7e => out.push(byte),
                _ => {}
            },
            State::StringDropped => self.string_dropped(byte, out),
        }
    }

    fn string_dropped(&mut self, byte: u8, out: &mut Vec<u8>) {
        match (self.pending.last(), byte) {
            (_, BELL) => self.enter_ground(),
            (Some(&ESCAPE), b'\\') => self.enter_ground(),
            (Some(&ESCAPE), _) => {
                self.enter_ground();
                self.state = State::Escape;
                self.escape(byte, out);
            }
            (_, ESCAPE) => self.pending.push(byte),
            (_, 0x18 | 0x1a) => self.enter_ground(),
            (_, _) => {}
        }
    }

    fn enter_ground(&mut self) {
        self.pending.clear();
        self.state = State::Ground;
    }

    fn ground(&mut self, byte: u8, out: &mut Vec<u8>) {
        if byte >= 0x80 {
            return self.non_ascii(byte, out);
        }
        self.character.clear();
        match byte {
            ESCAPE => {
                self.pending.clear();
                self.state = State::Escape;
            }
            // Bell, backspace, tab, lines, and shifts of the character set, which are restored.
            0x07..=0x0d => out.push(byte),
            0x0e | 0x0f => {
                self.changed.anything = true;
                out.push(byte);
            }
            // ENQ, which is answered with a text; CAN, which starts file transfers; and others that draw nothing.
            0x00..=0x1f | 0x7f => {}
            _ => out.push(byte),
        }
    }

    /// Handles a byte of a character outside of ASCII. Complete characters pass in their shortest form, except controls
    /// (U+0080 to U+009F). A terminal with one byte a character would see controls in others: these become a question mark.
    fn non_ascii(&mut self, byte: u8, out: &mut Vec<u8>) {
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
        self.pending.clear();
        match byte {
            b'[' => self.state = State::Csi,
            b']' => self.state = State::Osc,
            b'P' => self.state = State::DcsHead,
            // SOS, PM, APC: no program needs them.
            b'X' | b'^' | b'_' => self.state = State::StringDropped,
            0x20..=0x2f => {
                self.pending.push(byte);
                self.state = State::EscapeIntermediate;
            }
            // Saving and restoring cursor and colours, keypad, lines, and a reset. A tab stop is dropped: the earlier
            // ones are not known and could not be restored.
            b'6' | b'7' | b'8' | b'9' | b'=' | b'>' | b'D' | b'E' | b'M' | b'c' | b'\\' => {
                self.changed.anything = true;
                out.extend([ESCAPE, byte]);
                self.state = State::Ground;
            }
            ESCAPE => {}
            0x30..=0x7e => self.state = State::Ground,
            _ => self.abort(byte, out),
        }
    }

    /// Drops an incomplete sequence: the byte that ends it is text.
    fn abort(&mut self, byte: u8, out: &mut Vec<u8>) {
        self.enter_ground();
        self.ground(byte, out);
    }

    /// Ends an escape sequence with intermediate bytes. Character sets and the size of a line pass, the coding of
    /// characters (`ESC %`) does not.
    fn end_escape(&mut self, byte: u8, out: &mut Vec<u8>) {
        let pending = std::mem::take(&mut self.pending);
        self.state = State::Ground;
        let passes = match pending.as_slice() {
            [b'(' | b')' | b'*' | b'+'] => true,
            [b'#'] => matches!(byte, b'3'..=b'6' | b'8'),
            _ => false,
        };
        if passes {
            self.changed.anything = true;
            out.push(ESCAPE);
            out.extend(pending);
            out.push(byte);
        }
    }

    /// Ends a control sequence: passes it on if it is listed.
    fn end_csi(&mut self, last: u8, out: &mut Vec<u8>) {
        let pending = std::mem::take(&mut self.pending);
        self.state = State::Ground;
        let Some(SequenceParts { prefix, numbers, intermediate }) = SequenceParts::parse(&pending)
        else {
            return;
        };
        let has_subparameters = numbers.contains(&b':');
        let passes = match (prefix, intermediate, last) {
            // Colours, which may have subparameters.
            (b"", b"", b'm') => true,
            _ if has_subparameters => false,
            // The cursor, tabs, erasing, inserting, scrolling, repeating, margins.
            (b"", b"", b'@'..=b'M' | b'P' | b'S' | b'T' | b'X' | b'Z' | b'`' | b'a' | b'b') => true,
            (b"", b"", b'd'..=b'f' | b'r' | b's' | b'u') => true,
            (b"?", b"", b'J' | b'K') | (b"", b"!", b'p') => true,
            (b"", b"", b'h' | b'l') => matches!(numbers, b"4" | b"20"),
            (b"", b" ", b'q') => {
                self.changed.cursor_shape = true;
                true
            }
            (b"?", b"", b'h' | b'l') => return self.private_modes(numbers, last, out),
            (b">", b"", b'm') => self.keys(matches!(numbers, b"4") || numbers.starts_with(b"4;")),
            (b">" | b"=" | b"<", b"", b'u') => self.keys(true),
            // Queries for the kind of the terminal, its state and modes: answered with numbers alone.
            (b"" | b">", b"", b'c') | (b"?", b"", b'u') | (b"" | b"?", b"$", b'p') => {
                return self.ask(&pending, last, out);
            }
            // Queries for the cursor and the colour scheme. The status (5) is dropped: the filter uses it for fences.
            (b"" | b"?", b"", b'n') if matches!(numbers, b"6" | b"996") => {
                return self.ask(&pending, last, out);
            }
            _ => false,
        };
        if passes {
            self.changed.anything = true;
            out.extend(b"\x1b[");
            out.extend(pending);
            out.push(last);
        }
    }

    /// Remembers that keys were changed, if the sequence passes.
    fn keys(&mut self, passes: bool) -> bool {
        self.changed.keys |= passes;
        passes
    }

    /// Passes a query on and writes a fence after it. If the terminal is far behind, writes a fence and holds the query
    /// back until it is answered.
    fn ask(&mut self, pending: &[u8], last: u8, out: &mut Vec<u8>) {
        if self.queries == Queries::Drop {
            return;
        }
        let question = [b"\x1b[", pending, &[last]].concat();
        let mut now = Fences::clone(&self.fences);
        now.wrote(out.len());
        if now.may_ask() {
            self.changed.anything = true;
            out.extend(question);
        } else {
            self.held_back = Some(question);
        }
        if self.held_back.is_none() || !self.fences.is_open() {
            out.extend(FENCE);
            self.fences.put();
        }
    }

    /// Passes on the private modes that are listed, and remembers them.
    fn private_modes(&mut self, numbers: &[u8], last: u8, out: &mut Vec<u8>) {
        // Numbers are ASCII digits and `;` here.
        let numbers = std::str::from_utf8(numbers).unwrap_or_default().split(';');
        for number in numbers.filter_map(|number| number.parse().ok()) {
            if PRIVATE_MODES.contains(&number) {
                self.modes.retain(|(known, _)| *known != number);
                self.modes.push((number, last == b'h'));
                self.changed.anything = true;
                // The other screen has separate key flags, which `reset` cannot reach from this one.
                if self.changed.keys && last == b'l' && matches!(number, 47 | 1047 | 1049) {
                    out.extend(DEFAULT_KEYS);
                }
                out.extend(format!("\x1b[?{number}{}", char::from(last)).bytes());
            }
        }
    }

    /// Handles a byte of an operating system control, which is pending back until its end.
    fn osc(&mut self, byte: u8, out: &mut Vec<u8>) {
        match byte {
            BELL => self.end_osc(b"\x07", out),
            ESCAPE => self.state = State::OscEscape,
            0x20..=0x7e | 0x80..=0xff if self.pending.len() < MAX_OSC => self.pending.push(byte),
            _ => {
                self.pending.clear();
                self.state = State::StringDropped;
            }
        }
    }

    /// Ends an operating system control: passes it on if it is known to be harmless.
    fn end_osc(&mut self, end: &[u8], out: &mut Vec<u8>) {
        let pending = std::mem::take(&mut self.pending);
        self.state = State::Ground;
        let Ok(text) = std::str::from_utf8(&pending) else { return };
        let (number, value) = text.split_once(';').unwrap_or((text, ""));
        // Some terminals read one byte a character here, whatever their coding is.
        let is_harmless = |c: &char| !c.is_control() && !has_control(c.to_string().as_bytes());
        let value: String = value.chars().filter(is_harmless).collect();
        // Judge the text that is written, not the one that was read. A query has `?` in place of a value; the address of
        // a link may have `?` too.
        let is_query = number != "8" && value.split(';').any(|part| part == "?");
        // A mark of a prompt may have an exit code, but no option: one of them has the terminal send clicks.
        let is_mark = || {
            let (mark, code) = value.split_once(';').unwrap_or((&value, ""));
            matches!(mark, "A" | "B" | "C" | "D") && code.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !OSC_COMMANDS.contains(&number) || is_query || (number == "133" && !is_mark()) {
            return;
        }
        self.changed.anything = true;
        self.changed.link |= number == "8";
        self.changed.colours |= COLOURS.contains(&number);
        if TITLES.contains(&number) && !self.changed.title {
            self.changed.title = true;
            out.extend(SAVE_TITLE);
        }
        out.extend(format!("\x1b]{number}").bytes());
        if text.contains(';') {
            out.push(b';');
        }
        out.extend(value.bytes());
        out.extend(end);
    }

    /// Handles a byte of a device control string before its kind is known. Sixel graphics (`q` after numbers) pass.
    /// DECRQSS and XTGETTCAP have `$` or `+` before the `q`.
    fn dcs_head(&mut self, byte: u8, out: &mut Vec<u8>) {
        match byte {
            0x30..=0x3b if self.pending.len() < MAX_DCS_HEAD => self.pending.push(byte),
            b'q' => {
                self.changed.anything = true;
                out.extend(b"\x1bP");
                out.append(&mut self.pending);
                out.push(byte);
                self.state = State::DcsPassed;
            }
            _ => {
                self.pending.clear();
                self.state = State::StringDropped;
                self.advance(byte, out);
            }
        }
    }
}

/// Parts of a control sequence without its last byte.
struct SequenceParts<'s> {
    /// One of `<=>?`, or empty.
    prefix: &'s [u8],
    /// Numbers with `;` and `:` between them.
    numbers: &'s [u8],
    intermediate: &'s [u8],
}

impl<'s> SequenceParts<'s> {
    /// Parses a sequence. `None` if it is malformed, or has numbers that terminals read in different ways.
    fn parse(pending: &'s [u8]) -> Option<Self> {
        let is_number = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b';' | b':');
        let begin = usize::from(pending.first().is_some_and(|first| matches!(first, b'<'..=b'?')));
        let (prefix, rest) = pending.split_at_checked(begin)?;
        let end = rest.iter().position(|byte| !is_number(byte)).unwrap_or(rest.len());
        let (numbers, intermediate) = rest.split_at_checked(end)?;
        let is_short = |number: &[u8]| number.len() <= MAX_DIGITS;
        let is_well_formed = intermediate.iter().all(|byte| matches!(byte, 0x20..=0x2f))
            && numbers.split(|byte| !byte.is_ascii_digit()).all(is_short);
        is_well_formed.then_some(Self { prefix, numbers, intermediate })
    }
}

/// Returns true if a terminal with one byte a character would see a control in these bytes.
fn has_control(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| matches!(byte, 0x80..=0x9f))
}

#[cfg(test)]
#[path = "escape_filter_tests.rs"]
mod tests;
