//! Search of streams for texts, also where a text is split over reads.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use memchr::memmem;
use zeroize::Zeroizing;

/// Texts that are looked for. They may be secrets: nothing prints them, and they are erased when dropped.
#[derive(Clone, Default)]
pub(crate) struct Needles(Arc<Vec<Zeroizing<Vec<u8>>>>);

impl fmt::Debug for Needles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Needles({})", self.0.len())
    }
}

impl Needles {
    /// Takes each text as it is and in the encodings in which a request or an answer may hold it.
    pub(crate) fn new<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut needles: Vec<Zeroizing<Vec<u8>>> = Vec::new();
        for spelling in texts.into_iter().flat_map(spellings) {
            if !needles.contains(&spelling) {
                needles.push(spelling);
            }
        }
        Self(Arc::new(needles))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if one of them is in `text`.
    pub(crate) fn are_in(&self, text: &[u8]) -> bool {
        self.0.iter().any(|needle| memmem::find(text, needle).is_some())
    }

    /// Returns `text` with a star for each byte of them, or nothing if it has none.
    pub(crate) fn masked(&self, text: &[u8]) -> Option<Vec<u8>> {
        let mut masked = None;
        for needle in self.0.iter() {
            let mut from = 0;
            while let Some(found) = text.get(from..).and_then(|rest| memmem::find(rest, needle)) {
                let start = from + found;
                let copy = masked.get_or_insert_with(|| text.to_vec());
                copy.iter_mut().skip(start).take(needle.len()).for_each(|byte| *byte = b'*');
                // Occurrences may overlap.
                from = start + 1;
            }
        }
        masked
    }

    /// Returns the length of the longest end of `text` with which one of them begins.
    fn begun(&self, text: &[u8]) -> usize {
        let begun = |needle: &Zeroizing<Vec<u8>>| {
            let longest = needle.len().saturating_sub(1).min(text.len());
            (1..=longest).rev().find(|length| {
                let end = text.get(text.len() - length..);
                end.is_some_and(|end| needle.starts_with(end))
            })
        };
        self.0.iter().filter_map(begun).max().unwrap_or(0)
    }

    fn longest(&self) -> usize {
        self.0.iter().map(|needle| needle.len()).max().unwrap_or(0)
    }
}

/// Returns a text in its encodings: plain, in hexadecimal, percent-encoded, escaped for JSON, and in base64 at
/// each of its three alignments, without the letters at the ends that depend on what stands beside it.
fn spellings(text: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
    let mut all = vec![Zeroizing::new(text.to_vec())];
    for lower in [false, true] {
        let mut hexadecimal = Zeroizing::new(Vec::with_capacity(text.len() * 2));
        for byte in text {
            let digits = if lower { format!("{byte:02x}") } else { format!("{byte:02X}") };
            hexadecimal.extend(digits.bytes());
        }
        all.push(hexadecimal);
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    if !text.iter().all(|byte| is_plain(*byte)) {
        for lower in [false, true] {
            let mut encoded = Zeroizing::new(Vec::with_capacity(text.len() * 3));
            for byte in text {
                match (is_plain(*byte), lower) {
                    (true, _) => encoded.push(*byte),
                    (false, true) => encoded.extend(format!("%{byte:02x}").bytes()),
                    (false, false) => encoded.extend(format!("%{byte:02X}").bytes()),
                }
            }
            all.push(encoded);
        }
        for escaped in [b"\"\\".as_slice(), b"\"\\/"] {
            let mut json = Zeroizing::new(Vec::with_capacity(text.len() * 2));
            for byte in text {
                if escaped.contains(byte) {
                    json.push(b'\\');
                }
                json.push(*byte);
            }
            all.push(json);
        }
    }
    for before in 0..3_usize {
        let mut padded = Zeroizing::new(vec![0; before]);
        padded.extend_from_slice(text);
        let whole = padded.len() * 8 / 6;
        let first = (before * 8).div_ceil(6);
        for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
            let encoded = Zeroizing::new(engine.encode(&padded).into_bytes());
            let middle = encoded.get(first..whole).unwrap_or_default();
            all.push(Zeroizing::new(middle.to_vec()));
        }
    }
    all.retain(|spelling| spelling.len() >= 6);
    all
}

/// A search of a stream that only has to find: it holds nothing back.
#[derive(Debug)]
pub(crate) struct Finder {
    needles: Needles,
    /// The end of all that was searched, one byte shorter than the longest needle.
    end: Vec<u8>,
}

impl Finder {
    pub(crate) fn new(needles: Needles) -> Self {
        Self { needles, end: Vec::new() }
    }

    /// Returns true if a needle ends in `chunk`.
    pub(crate) fn finds(&mut self, chunk: &[u8]) -> bool {
        if self.needles.are_in(chunk) {
            return true;
        }
        let keep = self.needles.longest().saturating_sub(1);
        let mut seam = std::mem::take(&mut self.end);
        seam.extend_from_slice(chunk.get(..keep.min(chunk.len())).unwrap_or_default());
        if self.needles.are_in(&seam) {
            return true;
        }
        if chunk.len() >= keep {
            seam = chunk.to_vec();
        }
        self.end = seam.split_off(seam.len().saturating_sub(keep));
        false
    }
}

/// Replacement of needles in a stream by stars of the same length. Holds back only what may be the begin of one.
pub(crate) struct Scrubber {
    needles: Needles,
    /// Bytes held back as they came, and as they would be passed on.
    held: Zeroizing<Vec<u8>>,
    shown: Vec<u8>,
}

impl Scrubber {
    pub(crate) fn new(needles: Needles) -> Self {
        Self { needles, held: Zeroizing::default(), shown: Vec::new() }
    }

    /// Takes the next part of the stream; returns what may be passed on.
    pub(crate) fn pass(&mut self, chunk: Bytes) -> Bytes {
        if self.needles.is_empty() {
            return chunk;
        }
        let mut text = std::mem::take(&mut self.held);
        text.extend_from_slice(&chunk);
        let mut shown = std::mem::take(&mut self.shown);
        shown.extend_from_slice(&chunk);
        if let Some(masked) = self.needles.masked(&text) {
            // A star of an earlier part stays one.
            for (byte, masked) in shown.iter_mut().zip(masked) {
                if masked == b'*' {
                    *byte = b'*';
                }
            }
        }
        let passed = text.len() - self.needles.begun(&text);
        self.held = Zeroizing::new(text.get(passed..).unwrap_or_default().to_vec());
        self.shown = shown.split_off(passed);
        Bytes::from(shown)
    }

    /// Returns what is held at the end of the stream: the begin of a needle that did not go on.
    pub(crate) fn finish(&mut self) -> Bytes {
        self.held = Zeroizing::default();
        Bytes::from(std::mem::take(&mut self.shown))
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::{Finder, Needles, Scrubber};

    fn needles(texts: &[&str]) -> Needles {
        Needles::new(texts.iter().map(|text| text.as_bytes()))
    }

    /// Passes `text` through in parts that end at `cuts`.
    fn scrubbed(needles: &Needles, text: &[u8], cuts: &[usize]) -> Vec<u8> {
        let mut scrubber = Scrubber::new(needles.clone());
        let (mut out, mut from) = (Vec::new(), 0);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
        cuts.sort_unstable();
        for cut in cuts.into_iter().chain([text.len()]) {
            let part = text.get(from..cut).expect("a part");
            out.extend(scrubber.pass(Bytes::copy_from_slice(part)));
            from = cut;
        }
        out.extend(scrubber.finish());
        out
    }

    #[test]
    fn a_secret_is_replaced_wherever_a_stream_is_cut() {
        let needles = needles(&["s3cr3t-value/+x"]);
        let text = b"a=s3cr3t-value/+x;s3cr3t-val;ss3cr3t-value/+x";
        for cut in 0..=text.len() {
            for other in cut..=text.len() {
                let out = scrubbed(&needles, text, &[cut, other]);
                assert_eq!(out, b"a=***************;s3cr3t-val;s***************", "{cut} {other}");
            }
        }
    }

    #[test]
    fn each_encoding_of_a_secret_is_replaced() {
        let needles = needles(&["s3cr3t-value/+\"x"]);
        for before in ["", "a", "ab", "abc", "user:"] {
            let encoded = STANDARD.encode(format!("{before}s3cr3t-value/+\"x:after"));
            let out = scrubbed(&needles, encoded.as_bytes(), &[7, 20]);
            let left = out.iter().filter(|byte| **byte != b'*').count();
            assert!(encoded.len() - left >= 18, "{}", String::from_utf8_lossy(&out));
        }
        for text in [
            "s3cr3t-value%2F%2B%22x",
            "s3cr3t-value%2f%2b%22x",
            r#"s3cr3t-value\/+\"x"#,
            r#"s3cr3t-value/+\"x"#,
            "7333637233742d76616c75652f2b2278",
            "7333637233742D76616C75652F2B2278",
        ] {
            assert!(
                scrubbed(&needles, text.as_bytes(), &[5]).iter().all(|byte| *byte == b'*'),
                "{text}"
            );
        }
    }

    #[test]
    fn nothing_is_held_that_cannot_begin_a_secret() {
        let mut scrubber = Scrubber::new(needles(&["s3cr3t-value"]));
        assert_eq!(scrubber.pass(Bytes::from_static(b"data: 1\n\n")), "data: 1\n\n");
        assert_eq!(scrubber.pass(Bytes::from_static(b"x s3cr")), "x ");
        assert_eq!(scrubber.pass(Bytes::from_static(b"-")), "s3cr-");
        assert_eq!(scrubber.pass(Bytes::from_static(b"s3")), "");
        assert_eq!(scrubber.finish(), "s3");
    }

    proptest! {
        /// Scrubbing a stream in parts gives what scrubbing it whole gives, of the same length.
        #[test]
        fn parts_are_scrubbed_as_the_whole(
            text in "[ab]{0,80}", cuts in prop::collection::vec(0_usize..100, 0..12)
        ) {
            let needles = needles(&["abababa", "bbabba"]);
            let whole = needles.masked(text.as_bytes()).unwrap_or_else(|| text.clone().into_bytes());
            let out = scrubbed(&needles, text.as_bytes(), &cuts);
            prop_assert_eq!(out, whole);
        }

        /// A search in parts finds what a search of the whole finds.
        #[test]
        fn parts_are_searched_as_the_whole(
            text in "[ab]{0,60}", cuts in prop::collection::vec(0_usize..100, 0..12)
        ) {
            let needles = needles(&["abababa", "bbabba"]);
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
            cuts.sort_unstable();
            let (mut finder, mut from, mut found) = (Finder::new(needles.clone()), 0, false);
            for cut in cuts.into_iter().chain([text.len()]) {
                found |= finder.finds(text.as_bytes().get(from..cut).expect("a part"));
                from = cut;
            }
            prop_assert_eq!(found, needles.are_in(text.as_bytes()));
        }
    }
}
