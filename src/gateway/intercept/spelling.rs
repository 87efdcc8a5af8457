//! The encodings in which a request or an answer may hold a text.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

/// A text in one of its encodings.
pub(super) struct Spelling {
    pub(super) text: Zeroizing<Vec<u8>>,
    offsets: Offsets,
}

/// Offsets in a spelling of the bytes that it spells.
enum Offsets {
    /// Offset of each byte's first letter, and the end.
    Bytes(Vec<usize>),
    /// Base64 after this many bytes.
    Base64(usize),
}

impl Spelling {
    /// Returns the letters that are determined by these bytes of the text alone.
    pub(super) fn range(&self, first: usize, end: usize) -> Option<std::ops::Range<usize>> {
        match &self.offsets {
            Offsets::Bytes(offsets) => Some(*offsets.get(first)?..*offsets.get(end)?),
            Offsets::Base64(before) => {
                let left_out = (before * 8).div_ceil(6);
                let start = ((before + first) * 8).div_ceil(6).checked_sub(left_out)?;
                let end = ((before + end) * 8 / 6).checked_sub(left_out)?;
                Some(start..end)
            }
        }
    }

    /// Spells each byte separately, in at most three letters.
    fn bytewise(text: &[u8], mut spell: impl FnMut(u8, &mut Vec<u8>)) -> Self {
        let mut all = Zeroizing::new(Vec::with_capacity(text.len() * 3));
        let mut offsets = vec![0];
        for byte in text {
            spell(*byte, &mut all);
            offsets.push(all.len());
        }
        Self { text: all, offsets: Offsets::Bytes(offsets) }
    }
}

/// Returns a text in its encodings: plain, hexadecimal, percent-encoded, escaped for JSON, and
/// base64 at each of its three alignments, without the letters at the ends that depend on adjacent
/// bytes.
pub(super) fn spellings(text: &[u8]) -> Vec<Spelling> {
    let mut all = vec![Spelling::bytewise(text, |byte, text| text.push(byte))];
    let digits = |byte: u8, lower: bool| match lower {
        true => format!("{byte:02x}"),
        false => format!("{byte:02X}"),
    };
    for lower in [false, true] {
        let spell = |byte, text: &mut Vec<u8>| text.extend(digits(byte, lower).bytes());
        all.push(Spelling::bytewise(text, spell));
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    if !text.iter().all(|byte| is_plain(*byte)) {
        for lower in [false, true] {
            all.push(Spelling::bytewise(text, |byte, text| {
                if is_plain(byte) {
                    text.push(byte);
                } else {
                    text.push(b'%');
                    text.extend(digits(byte, lower).bytes());
                }
            }));
        }
        for escaped in [b"\"\\".as_slice(), b"\"\\/"] {
            all.push(Spelling::bytewise(text, |byte, text| {
                if escaped.contains(&byte) {
                    text.push(b'\\');
                }
                text.push(byte);
            }));
        }
    }
    for before in 0..3_usize {
        let mut padded = Zeroizing::new(Vec::with_capacity(before + text.len()));
        padded.resize(before, 0);
        padded.extend_from_slice(text);
        let whole = padded.len() * 8 / 6;
        let first = (before * 8).div_ceil(6);
        for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
            let encoded = Zeroizing::new(engine.encode(&padded).into_bytes());
            let middle = encoded.get(first..whole).unwrap_or_default();
            let text = Zeroizing::new(middle.to_vec());
            all.push(Spelling { text, offsets: Offsets::Base64(before) });
        }
    }
    all.retain(|spelling| spelling.text.len() >= 6);
    all
}
