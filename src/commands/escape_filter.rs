//! Filters what a program in a cell writes to the operator's terminal: text, colours and the cursor pass, and nothing
//! that the terminal would answer with text, keep, or act on outside of its window.
//!
//! A terminal types its answers as if the operator had (xterm's ctlseqs has the list). A program chooses the text of
//! some of them: the title, a setting that is asked for by DECRQSS, the clipboard by OSC 52. So what passes is listed
//! here, sequence by sequence; anything else does not.

/// Longest beginning of a device control string, and longest operating system control, in bytes.
const HEAD: usize = 16;
const COMMAND: usize = 4096;
/// Longest control sequence, in bytes: a long list of colours.
const SEQUENCE: usize = 256;
/// Most digits of a number: terminals cut longer ones in different ways.
const DIGITS: usize = 5;

/// Private modes that pass (DECSET): keys, the cursor, wrapping, the mouse, the other screen, pasting, and drawing at once.
/// Not those that change the size of the window, the character set or the keyboard's own settings.
const MODES: [u32; 22] = [
    1, 5, 6, 7, 9, 12, 25, 47, 66, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 1047, 1048,
    1049, 2004, 2026,
];
/// Private modes that a terminal has on by itself: they are switched on again.
const USUALLY_ON: [u32; 2] = [7, 25];

/// Commands of operating system controls (OSC) that pass: title and icon, colours that are set, links, and marks of
/// shell prompts. Not 52, the clipboard, nor 50, a font by a name that can be asked for, nor 7, a directory in which the
/// terminal opens its next window.
const COMMANDS: [&str; 12] =
    ["0", "1", "2", "4", "8", "10", "11", "12", "104", "110", "111", "133"];
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
    /// True if something passed that a terminal answers.
    asked: bool,
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
            asked: false,
        }
    }

    /// Returns the bytes that may pass.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for byte in bytes {
            self.take(*byte, &mut out);
        }
        out
    }

    /// Returns whether something passed that a terminal answers.
    pub(super) fn has_asked(&self) -> bool {
        self.asked
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
        let keys: &[u8] = if self.changed.keys { b"\x1b[<99u\x1b[>4m" } else { b"" };
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
        if self.changed.cursor_shape {
            out.extend(b"\x1b[0 q");
        }
        // Modes of every terminal: inserting, and what Enter sends. Then the scrolled region, by which the cursor stays
        // where it is; colours, the keypad, and the character set.
        out.extend(b"\x1b[4;20l\x1b7\x1b[r\x1b8\x1b[0m\x1b>\x0f\x1b(B");
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
            // Cursor and colours kept and taken back, keypad, lines, a tab, and the terminal's own reset.
            b'6' | b'7' | b'8' | b'9' | b'=' | b'>' | b'D' | b'E' | b'H' | b'M' | b'c' | b'\\' => {
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
            (b"", b"", b'd'..=b'g' | b'r' | b's' | b'u') => true,
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
            (b"" | b">", b"", b'c') | (b"?", b"", b'u') | (b"" | b"?", b"$", b'p') => self.ask(),
            (b"" | b"?", b"", b'n') => self.ask() && matches!(numbers, b"5" | b"6" | b"996"),
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

    fn ask(&mut self) -> bool {
        let passes = self.questions == Questions::Pass;
        self.asked |= passes;
        passes
    }

    /// Passes on the listed ones of private modes, and keeps them in mind.
    fn mode(&mut self, numbers: &[u8], last: u8, out: &mut Vec<u8>) {
        let numbers = std::str::from_utf8(numbers).unwrap_or_default().split(';');
        for number in numbers.filter_map(|number| number.parse().ok()) {
            if MODES.contains(&number) {
                self.modes.retain(|(known, _)| *known != number);
                self.modes.push((number, last == b'h'));
                self.changed.anything = true;
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
        // A query has `?` in place of a value; a link may have one in its address.
        let asks = number != "8" && value.split(';').any(|one| one == "?");
        if !COMMANDS.contains(&number) || asks {
            return;
        }
        // Some terminals take bytes for characters in here whatever their coding is.
        let is_harmless = |c: &char| !c.is_control() && !has_control(c.to_string().as_bytes());
        let value: String = value.chars().filter(is_harmless).collect();
        self.changed.anything = true;
        self.changed.link |= number == "8";
        self.changed.colours |= COLOURS.contains(&number);
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
mod tests {
    use super::*;

    fn filter() -> EscapeFilter {
        EscapeFilter::new(Questions::Pass, Coding::Utf8)
    }

    /// Filters in one piece and byte by byte: the result is the same.
    fn filtered(bytes: &[u8]) -> Vec<u8> {
        let whole = filter().push(bytes);
        let mut filter = filter();
        let single: Vec<u8> = bytes.iter().flat_map(|byte| filter.push(&[*byte])).collect();
        assert_eq!(whole, single);
        whole
    }

    #[test]
    fn what_programs_draw_with_passes_unchanged() {
        let usual: &[&[u8]] = &[
            b"plain text\r\n\ttab\x07\x08",
            "\u{e9}\u{2713}\u{1f600}\u{a0}".as_bytes(),
            b"\x1b[1;31mred\x1b[0m\x1b[38;2;1;2;3m",
            b"\x1b[2J\x1b[H\x1b[10;20H\x1b[K\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[1;24r",
            b"\x1b(B\x1b)0\x1b7\x1b8\x1b=\x1b>\x1bM\x1b#8",
            b"\x1b]0;a title\x07\x1b]8;;https://example.org\x07link\x1b]8;;\x07",
            b"\x1b[6n\x1b[c\x1b[>c\x1b[5n",
            b"\x1bPq#0;2;0;0;0~~@@\x1b\\",
            b"\x1b[ q\x1b[2 q\x1b[!p\x1b[4:3;58:2::1:2:3m\x1b[>4;2m\x1b[>1u\x1b[?u\x1b[?2026$p",
        ];
        for bytes in usual {
            let shown = String::from_utf8_lossy(bytes);
            assert_eq!(filtered(bytes), *bytes, "{shown:?}");
        }
    }

    #[test]
    fn queries_that_are_answered_with_a_chosen_text_and_acts_outside_of_the_window_do_not_pass() {
        let hostile: &[&[u8]] = &[
            b"\x1b[21t",
            b"\x1b[20t",
            b"\x1b[8;1;1t",
            b"\x1bP$qm\x1b\\",
            b"\x1bP$q\"p\x07",
            b"\x1bP+q544e\x1b\\",
            b"\x1b]52;c;?\x07",
            b"\x1b]52;c;Y3VybCBldmlsfHNoCg==\x1b\\",
            b"\x1b]50;?\x07",
            b"\x1b]4;1;?\x07",
            b"\x1b]11;?\x1b\\",
            b"\x1b]1337;File=inline=1:AAAA\x07",
            b"\x1b[>q",
            b"\x1b[1;1;1;1;1;1*y",
            b"\x1b[1$w",
            b"\x1b[5i",
            b"\x1b_Gi=1,a=q\x1b\\",
            b"\x1b^private\x1b\\",
            b"\x1bX\x1b\\",
            b"\x1bZ",
            b"\x05",
            b"\x9b21t",
            b"\x9d52;c;?\x07",
            b"\xc2\x9b",
            b"\xc2\x90",
            b"\xff\xfe\xc0\xc1",
            // Out of UTF-8, and forms of controls that a lax reader of UTF-8 takes.
            b"\x1b%@",
            b"\xe0\x82\x9b",
            b"\xf0\x80\x82\x9b",
            // Modes that cannot be put back, or change more than the window shows.
            b"\x1b[?2l",
            b"\x1b[?3h\x1b[?40h\x1b[?38h\x1b[?8h",
            b"\x1b[?1000s\x1b[?1000r",
            b"\x1b[?1003:1h\x1b[?4294968296h",
            b"\x1b[12h\x1b[2h",
            b"\x1b[1'z\x1b[1;3'{\x1b G\x1b[61\"p\x1b[1$}\x1b[>2;3m",
            b"\x1b[12;3]",
            b"\x1b[?4m\x1b[?4g\x1b[#R\x1b[=c\x1b[x",
            b"\x1b]7;file:///evil\x07",
            b"\x18\x1a\x00\x7f",
        ];
        for bytes in hostile {
            let shown = String::from_utf8_lossy(bytes);
            let left = filtered(&[b"a", *bytes, b"b"].concat());
            let text = String::from_utf8_lossy(&left).into_owned();
            assert!(!left.contains(&ESCAPE) && !left.contains(&0x05), "{shown:?}: {text:?}");
            assert!(!left.iter().any(|byte| *byte >= 0x80), "{shown:?}: {text:?}");
            assert!(text.starts_with('a') && text.ends_with('b'), "{shown:?}: {text:?}");
        }
    }

    #[test]
    fn a_query_cannot_hide_behind_a_sequence_that_breaks_off() {
        for bytes in [
            &b"\x1b[\x1b[21t"[..],
            b"\x1b]0;x\x1b[21t",
            b"\x1bP\x1bP$qm\x1b\\",
            b"\x1b\x1b]52;c;?\x07",
            b"\x1b]0;\x1b]52;c;?\x07",
            b"\x1b[?\x1bP$qm\x1b\\",
            b"\x1b \x1b]52;c;?\x07",
            b"\xe2\x1b]52;c;?\x07",
            b"\xc2\x1b[21t",
        ] {
            let left = filtered(bytes);
            let has = |part: &[u8]| left.windows(part.len()).any(|window| window == part);
            assert!(!has(b"21t") || !has(b"\x1b[21t"), "{left:?}");
            assert!(!has(b"52;c") && !has(b"$q"), "{left:?}");
        }
    }

    #[test]
    fn any_bytes_leave_no_query() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let parts: [&[u8]; 16] = [
            b"\x1b", b"[", b"]", b"P", b"$", b"q", b"52", b";", b"c", b"?", b"\x07", b"\\", b"21",
            b"t", b"\x9b", b"\xc2",
        ];
        for _ in 0..20_000 {
            let mut bytes = Vec::new();
            for _ in 0..12 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let index = usize::try_from(seed >> 60).unwrap_or(0);
                bytes.extend(parts.get(index).copied().unwrap_or_default());
            }
            let left = filtered(&bytes);
            for query in [&b"\x1b[21t"[..], b"\x1b]52", b"\x1bP$q", b"\x9b", b"\xc2\x9b"] {
                let found = left.windows(query.len()).any(|window| window == query);
                assert!(!found, "{bytes:?} leaves {left:?}");
            }
        }
    }

    #[test]
    fn modes_that_were_switched_are_switched_back() {
        let mut filter = filter();
        filter.push(b"only text\r\n");
        assert_eq!(filter.reset(), b"");
        filter.push(b"\x1b[?1049h\x1b[?1000;1006h\x1b[?25l\x1b[?2004h\x1b[?2004l");
        let reset = String::from_utf8_lossy(&filter.reset()).into_owned();
        for mode in ["?1049l", "?1000l", "?1006l", "?25h"] {
            assert!(reset.contains(mode), "{mode}: {reset:?}");
        }
        assert!(!reset.contains("2004"), "{reset:?}");
        assert!(!reset.contains("\u{1b}[<99u"), "{reset:?}");
        filter.push(b"\x1b[>1u");
        assert!(filter.reset().windows(5).any(|part| part == b"[<99u"));
        assert!(!filter.has_asked());
        filter.push(b"\x1b[6n");
        assert!(filter.has_asked());
    }

    #[test]
    fn a_link_colours_and_the_shape_of_the_cursor_are_put_back() {
        let mut filter = filter();
        filter.push(b"\x1b]8;;https://example.org\x07\x1b]11;#000000\x07\x1b[5 q");
        let reset = String::from_utf8_lossy(&filter.reset()).into_owned();
        for part in ["\x1b]8;;\x1b\\", "\x1b]111\x1b\\", "\x1b[0 q"] {
            assert!(reset.contains(part), "{part:?}: {reset:?}");
        }
    }

    #[test]
    fn many_modes_are_put_back_or_do_not_pass() {
        let mut filter = filter();
        for mode in 3000..3300 {
            assert_eq!(filter.push(format!("\x1b[?{mode}h").as_bytes()), b"");
        }
        assert_eq!(filter.push(b"\x1b[?1003;3000;1006h"), b"\x1b[?1003h\x1b[?1006h");
        let reset = String::from_utf8_lossy(&filter.reset()).into_owned();
        assert!(reset.contains("?1003l") && reset.contains("?1006l"), "{reset:?}");
    }

    #[test]
    fn a_terminal_that_takes_bytes_for_characters_sees_no_control() {
        let mut filter = EscapeFilter::new(Questions::Pass, Coding::Bytes);
        let text = "\u{e9} \u{db}21t \u{2713}";
        assert_eq!(filter.push(text.as_bytes()), "\u{e9} ?21t ?".as_bytes());
        // In a title it could be one in any coding.
        assert_eq!(filtered("\x1b]0;a\u{db}6n\x07".as_bytes()), b"\x1b]0;a6n\x07");
    }

    #[test]
    fn no_question_passes_where_nobody_reads_the_answer() {
        let mut filter = EscapeFilter::new(Questions::Drop, Coding::Utf8);
        assert_eq!(filter.push(b"\x1b[6n\x1b[c\x1b[?u\x1b[?1$p\x1b[1m"), b"\x1b[1m");
        assert!(!filter.has_asked());
    }
}
