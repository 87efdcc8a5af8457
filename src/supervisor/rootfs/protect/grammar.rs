//! Parses git's configuration with git's own grammar (config.c: git_parse_source and its callees).
//!
//! Allocates nothing, and passes each setting to the caller when it is found. `fuzz/` and a
//! property test compare it with `git config --list`.

/// Maximum bytes of a name that are kept; section and key are separated correctly even for longer
/// names.
const MAX_NAME: usize = 4096;
/// Maximum bytes of a value that are kept: longer than any path.
pub const VALUE: usize = 16 << 10;

/// A setting as it is written; its value is without quotes, escapes and comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenSetting<'a> {
    /// The part of the name before the key, including the dot.
    pub stem: &'a [u8],
    /// In lower case, as everything before the first dot.
    pub section: &'a [u8],
    /// Text between section and key; `None` if there is no such text.
    pub subsection: Option<&'a [u8]>,
    /// In lower case, as everything after the last dot.
    pub key: &'a [u8],
    /// `None` if there is no `=`.
    pub value: Option<&'a [u8]>,
}

/// Git's verdict on a complete text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whole {
    Yes,
    /// Git refuses it. Settings after the mistake are still reported, as another program may obey
    /// them.
    No,
}

/// A bounded buffer of text; bytes after a NUL are ignored.
struct Buffer<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Buffer<N> {
    const fn new() -> Self {
        Self { bytes: [0; N], length: 0 }
    }

    /// Adds a byte, or drops it if the buffer is full.
    fn push(&mut self, byte: u8) {
        if let Some(room) = self.bytes.get_mut(self.length) {
            *room = byte;
            self.length += 1;
        }
    }

    fn all(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    fn text(&self) -> &[u8] {
        self.all().split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// The text, read character by character.
struct Source<'t> {
    text: &'t [u8],
    at: usize,
    /// True once the end was reached, where a line end is returned.
    ended: bool,
}

impl Source<'_> {
    fn next(&mut self) -> u8 {
        let byte = self.text.get(self.at).copied();
        self.at += 1;
        match byte {
            Some(b'\r') if self.text.get(self.at) == Some(&b'\n') => {
                self.at += 1;
                b'\n'
            }
            Some(byte) => byte,
            None => {
                self.ended = true;
                b'\n'
            }
        }
    }

    /// Skips the rest of a line that git would not have read.
    fn skip_line(&mut self, last: u8) {
        let mut byte = last;
        while byte != b'\n' {
            byte = self.next();
        }
    }
}

/// A line that git refuses, with the last character that was read from it.
struct Refused(u8);

/// Passes each setting of `text` to `take`.
pub fn settings(text: &[u8], mut take: impl FnMut(WrittenSetting<'_>)) -> Whole {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut source = Source { text, at: 0, ended: false };
    let mut stem = Buffer::<MAX_NAME>::new();
    let mut value = Buffer::<VALUE>::new();
    let mut verdict = Whole::Yes;
    let mut comment = false;
    loop {
        let byte = source.next();
        let outcome = match byte {
            b'\n' if source.ended => return verdict,
            b'\n' => {
                comment = false;
                continue;
            }
            _ if comment || is_space(byte) => continue,
            b'#' | b';' => {
                comment = true;
                continue;
            }
            b'[' => header(&mut source, &mut stem),
            first if first.is_ascii_alphabetic() => {
                setting(&mut source, first, &stem, &mut value, &mut take)
            }
            other => Err(Refused(other)),
        };
        if let Err(Refused(last)) = outcome {
            verdict = Whole::No;
            source.skip_line(last);
        }
    }
}

/// Parses the text after `[` into `stem`: the section, then after a dot the subsection, terminated
/// by a dot.
fn header<const N: usize>(source: &mut Source<'_>, stem: &mut Buffer<N>) -> Result<(), Refused> {
    stem.length = 0;
    loop {
        let byte = source.next();
        match byte {
            _ if source.ended => return Err(Refused(byte)),
            b']' if stem.length == 0 => return Err(Refused(byte)),
            b']' => break,
            _ if is_space(byte) => {
                quoted_subsection(source, stem, byte)?;
                break;
            }
            _ if is_key(byte) || byte == b'.' => stem.push(byte.to_ascii_lowercase()),
            other => return Err(Refused(other)),
        }
    }
    stem.push(b'.');
    Ok(())
}

fn quoted_subsection<const N: usize>(
    source: &mut Source<'_>,
    stem: &mut Buffer<N>,
    mut byte: u8,
) -> Result<(), Refused> {
    loop {
        if byte == b'\n' {
            return Err(Refused(byte));
        }
        byte = source.next();
        if !is_space(byte) {
            break;
        }
    }
    if byte != b'"' {
        return Err(Refused(byte));
    }
    stem.push(b'.');
    loop {
        match source.next() {
            b'\n' => return Err(Refused(b'\n')),
            b'"' => break,
            b'\\' => match source.next() {
                b'\n' => return Err(Refused(b'\n')),
                escaped => stem.push(escaped),
            },
            plain => stem.push(plain),
        }
    }
    match source.next() {
        b']' => Ok(()),
        other => Err(Refused(other)),
    }
}

/// Parses a setting that begins with `first`.
fn setting(
    source: &mut Source<'_>,
    first: u8,
    stem: &Buffer<MAX_NAME>,
    value: &mut Buffer<VALUE>,
    take: &mut impl FnMut(WrittenSetting<'_>),
) -> Result<(), Refused> {
    let mut key = Buffer::<MAX_NAME>::new();
    key.push(first.to_ascii_lowercase());
    let mut byte = source.next();
    while !source.ended && is_key(byte) {
        key.push(byte.to_ascii_lowercase());
        byte = source.next();
    }
    while byte == b' ' || byte == b'\t' {
        byte = source.next();
    }
    let value = match byte {
        b'\n' => None,
        b'=' => {
            read_value(source, value)?;
            Some(value.text())
        }
        other => return Err(Refused(other)),
    };
    let stem = stem.all();
    let mut parts = stem.strip_suffix(b".").unwrap_or(stem).splitn(2, |byte| *byte == b'.');
    let section = parts.next().unwrap_or_default();
    take(WrittenSetting { stem, section, subsection: parts.next(), key: key.text(), value });
    Ok(())
}

fn read_value<const N: usize>(source: &mut Source<'_>, to: &mut Buffer<N>) -> Result<(), Refused> {
    to.length = 0;
    let mut quoted = false;
    let mut comment = false;
    let mut trimmed = 0;
    loop {
        let byte = source.next();
        match byte {
            b'\n' if quoted => return Err(Refused(byte)),
            b'\n' => {
                if trimmed > 0 {
                    to.length = trimmed;
                }
                return Ok(());
            }
            _ if comment => {}
            _ if is_space(byte) && !quoted => {
                if trimmed == 0 {
                    trimmed = to.length;
                }
                if to.length > 0 {
                    to.push(byte);
                }
            }
            b';' | b'#' if !quoted => comment = true,
            _ => {
                trimmed = 0;
                match byte {
                    b'\\' => match source.next() {
                        b'\n' => {}
                        b't' => to.push(b'\t'),
                        b'b' => to.push(8),
                        b'n' => to.push(b'\n'),
                        same @ (b'\\' | b'"') => to.push(same),
                        other => return Err(Refused(other)),
                    },
                    b'"' => quoted = !quoted,
                    plain => to.push(plain),
                }
            }
        }
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn is_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}
