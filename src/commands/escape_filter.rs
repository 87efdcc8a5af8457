//! Filters what a program in a cell writes to the operator's terminal: text, colours and the cursor pass, and nothing
//! that the terminal would answer with text, keep, or act on outside of its window.
//!
//! A terminal types its answers as if the operator had (xterm's ctlseqs has the list). A program chooses the text of
//! some of them: the title, a setting that is asked for by DECRQSS, the clipboard by OSC 52. Such queries do not pass.

/// Longest beginning of a device control string, and longest operating system control, in bytes.
const HEAD: usize = 16;
const COMMAND: usize = 4096;
/// Longest control sequence; a longer one is none that a terminal knows.
const SEQUENCE: usize = 256;

/// Private modes that a terminal has on by itself: they are switched on again.
const USUALLY_ON: [u32; 2] = [7, 25];

/// Commands of operating system controls (OSC) that pass: title and icon, colours that are set, links, the
/// directory, marks of shell prompts. Not 52, the clipboard, nor 50, a font by a name that can be asked for.
const COMMANDS: [&str; 13] =
    ["0", "1", "2", "4", "7", "8", "10", "11", "12", "104", "110", "111", "133"];

/// A filter over the output of one call.
#[derive(Debug, Default)]
pub(super) struct EscapeFilter {
    state: State,
    /// Bytes of the sequence so far.
    held: Vec<u8>,
    /// Bytes that are missing of a character of UTF-8.
    missing: u8,
    /// True after the first byte of the characters U+0080 to U+00BF, of which half are controls.
    is_c2: bool,
    modes: Vec<(u32, bool)>,
    /// True if keys were told to send something else than usual.
    keys: bool,
    /// True if something passed that a terminal answers.
    asked: bool,
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

    /// Returns what puts the terminal back: an unfinished string ends, modes are as they were, colours are off.
    pub(super) fn reset(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.state == State::Passed {
            out.extend(b"\x1b\\");
        }
        for (mode, on) in &self.modes {
            if *on != USUALLY_ON.contains(mode) {
                let end = if *on { 'l' } else { 'h' };
                out.extend(format!("\x1b[?{mode}{end}").bytes());
            }
        }
        if self.keys {
            out.extend(b"\x1b[<99u\x1b[>4m");
        }
        // Modes of every terminal: the keyboard, inserting, echo, what Enter sends. Then the scrolled region, by which
        // the cursor stays where it is; colours, the keypad, and the character set.
        out.extend(b"\x1b[2;4;20l\x1b[12h\x1b7\x1b[r\x1b8\x1b[0m\x1b>\x0f\x1b(B");
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
            State::Dropped => match (self.held.last(), byte) {
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
            },
        }
    }

    fn over(&mut self) {
        self.held.clear();
        self.state = State::Text;
    }

    fn text(&mut self, byte: u8, out: &mut Vec<u8>) {
        if self.missing > 0 && (0x80..=0xbf).contains(&byte) {
            self.missing -= 1;
            match (std::mem::take(&mut self.is_c2), byte) {
                // U+0080 to U+009F: controls, as ESC and another byte are.
                (true, 0x80..=0x9f) => {}
                (true, _) => out.extend([0xc2, byte]),
                (false, _) => out.push(byte),
            }
            return;
        }
        (self.missing, self.is_c2) = (0, false);
        match byte {
            ESCAPE => {
                self.held.clear();
                self.state = State::Escape;
            }
            0xc2 => (self.missing, self.is_c2) = (1, true),
            0xc3..=0xdf => {
                self.missing = 1;
                out.push(byte);
            }
            0xe0..=0xef => {
                self.missing = 2;
                out.push(byte);
            }
            0xf0..=0xf4 => {
                self.missing = 3;
                out.push(byte);
            }
            // ENQ, which is answered with a text; controls of eight bits, and bytes of no character.
            0x05 | 0x80..=0xc1 | 0xf5..=0xff => {}
            _ => out.push(byte),
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
            // DECID asks.
            b'Z' => self.state = State::Text,
            0x20..=0x2f => {
                self.held.push(byte);
                self.state = State::Intermediate;
            }
            0x30..=0x7e => {
                out.extend([ESCAPE, byte]);
                self.state = State::Text;
            }
            ESCAPE => {}
            _ => self.again(byte, out),
        }
    }

    /// A sequence breaks off: what comes is text again.
    fn again(&mut self, byte: u8, out: &mut Vec<u8>) {
        self.over();
        self.text(byte, out);
    }

    /// The end of an escape sequence with intermediate bytes.
    fn end(&mut self, byte: u8, out: &mut Vec<u8>) {
        out.push(ESCAPE);
        out.append(&mut self.held);
        out.push(byte);
        self.state = State::Text;
    }

    /// The end of a control sequence.
    fn sequence(&mut self, last: u8, out: &mut Vec<u8>) {
        let parameters = std::mem::take(&mut self.held);
        self.state = State::Text;
        let first = parameters.first().copied();
        let passes = match last {
            // Reports of the window's title, and changes of the window: CSI 8 ; rows ; columns t and the like.
            b't' => false,
            // DECRQPSR, DECRQTSR, DECRQDE and DECRQCRA are answered with what stands on the screen.
            b'w' | b'u' if parameters.ends_with(b"$") || parameters.ends_with(b"&") => false,
            b'y' if parameters.ends_with(b"*") => false,
            // Media copy prints.
            b'i' => false,
            // Device attributes and status: answered with numbers alone. XTVERSION has a name, of the terminal's own.
            b'c' | b'n' => {
                self.asked = true;
                true
            }
            b'p' if parameters.ends_with(b"$") => {
                self.asked = true;
                true
            }
            b'q' if first == Some(b'>') => false,
            // Graphics, the locator, the parameters of a line.
            b'S' | b'|' | b'x' | b'v' => {
                self.asked = true;
                true
            }
            b'u' if first == Some(b'?') => {
                self.asked = true;
                true
            }
            b'u' | b'm' if matches!(first, Some(b'>' | b'=')) => {
                self.keys = true;
                true
            }
            b'h' | b'l' if first == Some(b'?') => {
                self.mode(parameters.get(1..).unwrap_or_default(), last == b'h');
                true
            }
            _ => true,
        };
        if passes {
            out.extend(b"\x1b[");
            out.extend(parameters);
            out.push(last);
        }
    }

    fn mode(&mut self, parameters: &[u8], on: bool) {
        for number in parameters.split(|byte| *byte == b';') {
            let number = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok());
            let Some(number) = number else { continue };
            self.modes.retain(|(known, _)| *known != number);
            // More than any program sets.
            if self.modes.len() < SEQUENCE {
                self.modes.push((number, on));
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
        let is_plain = !value.chars().any(char::is_control);
        if COMMANDS.contains(&number) && is_plain && !asks {
            out.extend(b"\x1b]");
            out.extend(text.bytes());
            out.extend(end);
        }
    }

    /// Takes a byte of the beginning of a device control string, up to what tells its kind: sixel graphics (`q` after
    /// numbers) pass. DECRQSS and XTGETTCAP have `$` or `+` before it.
    fn head(&mut self, byte: u8, out: &mut Vec<u8>) {
        match byte {
            0x30..=0x3b if self.held.len() < HEAD => self.held.push(byte),
            b'q' => {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Filters in one piece and byte by byte: the result is the same.
    fn filtered(bytes: &[u8]) -> Vec<u8> {
        let whole = EscapeFilter::default().push(bytes);
        let mut filter = EscapeFilter::default();
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
            b"\x1b[ q\x1b[2 q\x1b[!p",
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
        let mut filter = EscapeFilter::default();
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
}
