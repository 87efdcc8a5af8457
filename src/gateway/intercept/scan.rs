//! Searches streams for texts, even if a text is split over several reads.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use memchr::memmem;
use zeroize::Zeroizing;

use super::spelling::{Spelling, spellings};
use super::traces::Traces;

/// Texts to look for. They may be secrets: they are never printed, and erased on drop.
#[derive(Clone, Default)]
pub(crate) struct Needles(Arc<Vec<Zeroizing<Vec<u8>>>>);

impl fmt::Debug for Needles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Needles({})", self.0.len())
    }
}

impl Needles {
    /// Takes each text in the encodings in which a request or an answer may hold it.
    pub(crate) fn new<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut needles: Vec<Zeroizing<Vec<u8>>> = Vec::new();
        for Spelling { text, .. } in texts.into_iter().flat_map(spellings) {
            if !needles.contains(&text) {
                needles.push(text);
            }
        }
        Self(Arc::new(needles))
    }

    /// Returns true if `text` contains one of the needles.
    pub(crate) fn are_in(&self, text: &[u8]) -> bool {
        self.0.iter().any(|needle| memmem::find(text, needle).is_some())
    }

    fn longest(&self) -> usize {
        self.0.iter().map(|needle| needle.len()).max().unwrap_or(0)
    }
}

/// Searches a stream without holding anything back.
#[derive(Debug)]
pub(crate) struct Finder {
    needles: Needles,
    /// The end of what was searched, one byte shorter than the longest needle.
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

/// Replaces secrets in a stream by asterisks of the same length. Holds back only what may be the
/// beginning of a secret.
pub(crate) struct Scrubber {
    secrets: Traces,
    /// Bytes held back, as they came.
    held: Zeroizing<Vec<u8>>,
    /// The same bytes as they will be passed on.
    shown: Vec<u8>,
}

impl Scrubber {
    pub(crate) fn new(secrets: Traces) -> Self {
        Self { secrets, held: Zeroizing::default(), shown: Vec::new() }
    }

    /// Takes the next part of the stream; returns what may be passed on.
    pub(crate) fn pass(&mut self, chunk: Bytes) -> Bytes {
        if self.secrets.is_empty() {
            return chunk;
        }
        if self.held.is_empty() {
            let passed = chunk.len() - self.secrets.begun(&chunk);
            self.held = Zeroizing::new(chunk.get(passed..).unwrap_or_default().to_vec());
            let mut shown = self.secrets.masked(&chunk).map_or(chunk, Bytes::from);
            self.shown = shown.split_off(passed).to_vec();
            return shown;
        }
        let mut text = std::mem::take(&mut self.held);
        text.extend_from_slice(&chunk);
        let mut shown = std::mem::take(&mut self.shown);
        shown.extend_from_slice(&chunk);
        if let Some(masked) = self.secrets.masked(&text) {
            // A byte masked earlier stays masked.
            for (byte, masked) in shown.iter_mut().zip(masked) {
                if masked == b'*' {
                    *byte = b'*';
                }
            }
        }
        let passed = text.len() - self.secrets.begun(&text);
        self.held = Zeroizing::new(text.get(passed..).unwrap_or_default().to_vec());
        self.shown = shown.split_off(passed);
        Bytes::from(shown)
    }

    /// Returns what is held at the end of the stream: the beginning of a secret that did not
    /// continue.
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

    use super::{Finder, Needles, Scrubber, Traces};

    fn needles(texts: &[&str]) -> Needles {
        Needles::new(texts.iter().map(|text| text.as_bytes()))
    }

    fn traces(texts: &[&str]) -> Traces {
        let all: Vec<_> = texts.iter().map(|text| Traces::new(text.as_bytes())).collect();
        Traces::joined(&all)
    }

    /// Passes `text` through in parts that end at `cuts`.
    fn scrubbed(secrets: &Traces, text: &[u8], cuts: &[usize]) -> Vec<u8> {
        let mut scrubber = Scrubber::new(secrets.clone());
        let mut out = Vec::new();
        let mut from = 0;
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
        let secrets = traces(&["s3cr3t-value/+x"]);
        let text = b"a=s3cr3t-value/+x;s3cr3t-val;ss3cr3t-value/+x";
        for cut in 0..=text.len() {
            for other in cut..=text.len() {
                let out = scrubbed(&secrets, text, &[cut, other]);
                assert_eq!(out, b"a=***************;s3cr3t-val;s***************", "{cut} {other}");
            }
        }
    }

    #[test]
    fn each_encoding_of_a_secret_is_replaced() {
        let secrets = traces(&["s3cr3t-value/+\"x"]);
        for before in ["", "a", "ab", "abc", "user:"] {
            let encoded = STANDARD.encode(format!("{before}s3cr3t-value/+\"x:after"));
            let out = scrubbed(&secrets, encoded.as_bytes(), &[7, 20]);
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
                scrubbed(&secrets, text.as_bytes(), &[5]).iter().all(|byte| *byte == b'*'),
                "{text}"
            );
        }
    }

    #[test]
    fn only_what_may_begin_a_secret_is_held_back() {
        let mut scrubber = Scrubber::new(traces(&["s3cr3t-value"]));
        assert_eq!(scrubber.pass(Bytes::from_static(b"data: 1\n\n")), "data: 1\n\n");
        assert_eq!(scrubber.pass(Bytes::from_static(b"x s3cr")), "x ");
        assert_eq!(scrubber.pass(Bytes::from_static(b"-")), "s3cr-");
        assert_eq!(scrubber.pass(Bytes::from_static(b"s3")), "");
        assert_eq!(scrubber.finish(), "s3");
    }

    #[test]
    fn a_part_of_eight_bytes_is_replaced_in_each_spelling_and_wherever_it_is_cut() {
        let secret = "S3cret/Value+42-abXY";
        let secrets = traces(&[secret]);
        for first in 0..=secret.len() - 8 {
            for end in first + 8..=secret.len() {
                let part = secret.get(first..end).expect("a part");
                let text = format!("<{part}>");
                for cut in 0..text.len() {
                    let out = scrubbed(&secrets, text.as_bytes(), &[cut]);
                    assert_eq!(out, format!("<{}>", "*".repeat(part.len())).into_bytes(), "{part}");
                }
                let hexadecimal: String = part.bytes().map(|byte| format!("{byte:02x}")).collect();
                let percent = part.replace('/', "%2F").replace('+', "%2B");
                for text in [hexadecimal, percent, part.replace('/', "\\/")] {
                    let out = scrubbed(&secrets, text.as_bytes(), &[5]);
                    assert!(out.iter().all(|byte| *byte == b'*'), "{text}");
                }
                for before in ["", "a", "ab"] {
                    let encoded = STANDARD.encode(format!("{before}{part}"));
                    let out = scrubbed(&secrets, encoded.as_bytes(), &[7]);
                    assert!(out.iter().filter(|byte| **byte == b'*').count() >= 10, "{encoded}");
                }
            }
        }
        // Seven bytes are too short for a part; of a secret shorter than sixteen bytes only the
        // whole counts.
        assert_eq!(scrubbed(&secrets, b"S3cret/ Value+4", &[]), b"S3cret/ Value+4");
        assert_eq!(
            scrubbed(&traces(&["S3cret/Value+42"]), b"S3cret/Value+4", &[]),
            b"S3cret/Value+4"
        );
    }

    #[test]
    fn common_text_is_not_taken_for_part_of_a_secret() {
        for (secret, text) in [
            ("sk-ant-api03-Zk4Qw8Rt2Yp6", "keys begin with sk-ant-api03-"),
            ("R4nd0m--------------Zk4Qw8", "a line: ----------------------"),
            (
                "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.Zk4Qw8Rt2Yp6",
                "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.other",
            ),
        ] {
            let secrets = traces(&[secret]);
            assert_eq!(scrubbed(&secrets, text.as_bytes(), &[9]), text.as_bytes(), "{secret}");
            // The whole secret is replaced, and so is its end.
            let whole = scrubbed(&secrets, secret.as_bytes(), &[9, 20]);
            assert!(whole.iter().all(|byte| *byte == b'*'), "{secret}");
        }
    }

    proptest! {
        /// Scrubbing a stream in parts gives what scrubbing it whole gives, of the same length.
        #[test]
        fn parts_are_scrubbed_as_the_whole(
            text in "([ab]{0,40}|[abcd]{0,30}|abacabadbbac(abdc)?)*", cuts in prop::collection::vec(0_usize..100, 0..12)
        ) {
            let secrets = traces(&["ababababa", "bbabbabb", "abacabadbbacabdc"]);
            let whole = secrets.masked(text.as_bytes()).unwrap_or_else(|| text.clone().into_bytes());
            let out = scrubbed(&secrets, text.as_bytes(), &cuts);
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
            let mut finder = Finder::new(needles.clone());
            let mut from = 0;
            let mut found = false;
            for cut in cuts.into_iter().chain([text.len()]) {
                found |= finder.finds(text.as_bytes().get(from..cut).expect("a part"));
                from = cut;
            }
            prop_assert_eq!(found, needles.are_in(text.as_bytes()));
        }
    }
}
