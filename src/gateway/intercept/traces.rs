//! Search of answers for a secret, also for parts of it: a server may shorten what it quotes.
//!
//! Each run of eight bytes of a secret is looked for, in each spelling. A text that holds one holds four of its letters at
//! a place that four divides, so every fourth place is looked at, by a table of bits that few texts pass.

use std::fmt;
use std::sync::Arc;

use memchr::memmem;
use zeroize::Zeroizing;

use super::scan::{Spelling, spellings};

/// Bytes of a secret that give it away together. Of a secret shorter than twice as many only the whole is looked for.
const WINDOW: usize = 8;
const MIN_SPLIT: usize = 16;
/// Different bytes of a window; with fewer it is a line of dashes, or zeros, as any text may hold.
const MIN_DISTINCT: usize = 4;
/// Letters that are looked up at once, and places between two looks.
const GRAM: usize = 4;
/// Bits of the table.
const TABLE_BITS: u32 = 16;
/// Begins of keys that their services publish. A part of one gives nothing away.
const PUBLIC: [&str; 13] = [
    "sk-ant-api03-",
    "sk-ant-admin01-",
    "sk-svcacct-",
    "sk-proj-",
    "sk-or-v1-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "rk_test_",
    "github_pat_",
    "dckr_pat_",
    "pypi-AgEIcHlwaS5vcmc",
    "glpat-",
];

/// The texts by which one secret shows. Nothing prints them, and they are erased when dropped.
struct Trace {
    /// All spellings, a zero after each.
    texts: Zeroizing<Vec<u8>>,
    /// Places in `texts` of what is replaced, with its length, by their place.
    windows: Vec<(usize, usize)>,
    /// Places of the whole spellings.
    wholes: Vec<(usize, usize)>,
    /// Four letters in the upper half and their place in the lower, in order.
    grams: Zeroizing<Vec<u64>>,
    table: Zeroizing<Vec<u64>>,
    /// Letters of the longest window that is not a whole.
    longest: usize,
}

/// The traces of all secrets that an answer may hold.
#[derive(Clone, Default)]
pub(crate) struct Traces(Vec<Arc<Trace>>);

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Traces({})", self.0.len())
    }
}

impl Traces {
    pub(crate) fn of(secret: &[u8]) -> Self {
        Self(vec![Arc::new(Trace::new(secret))])
    }

    /// Joins the traces of several secrets.
    pub(crate) fn joined<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        Self(all.into_iter().flat_map(|one| one.0.iter().cloned()).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if a part of a secret is in `text`.
    pub(crate) fn are_in(&self, text: &[u8]) -> bool {
        self.masked(text).is_some()
    }

    /// Returns `text` with a star for each byte of a secret, or nothing if it has no part of one.
    pub(crate) fn masked(&self, text: &[u8]) -> Option<Vec<u8>> {
        let mut masked: Option<Vec<u8>> = None;
        for trace in &self.0 {
            trace.find(text, |start, length| {
                let copy = masked.get_or_insert_with(|| text.to_vec());
                copy.iter_mut().skip(start).take(length).for_each(|byte| *byte = b'*');
            });
        }
        masked
    }

    /// Returns the length of the longest end of `text` with which something that is replaced may begin.
    pub(super) fn begun(&self, text: &[u8]) -> usize {
        self.0.iter().map(|trace| trace.begun(text)).max().unwrap_or(0)
    }
}

impl Trace {
    fn new(secret: &[u8]) -> Self {
        let public = public(secret);
        let mut trace = Self {
            texts: Zeroizing::default(),
            windows: Vec::new(),
            wholes: Vec::new(),
            grams: Zeroizing::default(),
            table: Zeroizing::new(vec![0; 1 << (TABLE_BITS - 6)]),
            longest: 0,
        };
        let all = spellings(secret);
        // So that no buffer grows: a copy that was left behind would not be erased.
        let size = all.iter().map(|spelling| spelling.text.len() + 1).sum();
        trace.texts.reserve_exact(size);
        trace.grams.reserve_exact(size);
        for spelling in &all {
            trace.add(secret, public, spelling);
        }
        trace.windows.sort_unstable();
        for place in 0..trace.texts.len() {
            let Some(gram) = gram(&trace.texts, place).filter(|gram| !gram.contains(&0)) else {
                continue;
            };
            let gram = u32::from_le_bytes(gram);
            if let Some(word) = trace.table.get_mut(slot(gram) >> 6) {
                *word |= 1 << (slot(gram) & 63);
            }
            trace.grams.push(u64::from(gram) << 32 | u64::try_from(place).unwrap_or_default());
        }
        trace.grams.sort_unstable();
        trace
    }

    /// Adds a spelling with its windows.
    fn add(&mut self, secret: &[u8], public: usize, spelling: &Spelling) {
        let base = self.texts.len();
        self.texts.extend_from_slice(&spelling.text);
        self.texts.push(0);
        self.windows.push((base, spelling.text.len()));
        self.wholes.push((base, spelling.text.len()));
        if secret.len() < MIN_SPLIT {
            return;
        }
        for (first, window) in secret.windows(WINDOW).enumerate() {
            if first + WINDOW <= public || distinct(window) < MIN_DISTINCT {
                continue;
            }
            let Some(range) = spelling.range(first, first + WINDOW) else { continue };
            self.longest = self.longest.max(range.len());
            self.windows.push((base + range.start, range.len()));
        }
    }

    /// Calls `found` with place and length of each part of the secret in `text`.
    fn find(&self, text: &[u8], mut found: impl FnMut(usize, usize)) {
        // Runs of letters that were gone through: the distance of text and spelling, and the end in the text.
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (number, gram) in text.chunks_exact(GRAM).enumerate() {
            let Ok(gram) = <[u8; GRAM]>::try_from(gram) else { continue };
            let gram = u32::from_le_bytes(gram);
            let word = self.table.get(slot(gram) >> 6).copied().unwrap_or_default();
            if word >> (slot(gram) & 63) & 1 == 0 {
                continue;
            }
            let at = number * GRAM;
            runs.retain(|(_, end)| *end > at);
            let first = self.grams.partition_point(|known| known >> 32 < u64::from(gram));
            let known = self.grams.iter().skip(first);
            for known in known.take_while(|known| **known >> 32 == u64::from(gram)) {
                let place = usize::try_from(known & u64::from(u32::MAX)).unwrap_or_default();
                let distance = at.wrapping_sub(place);
                if runs.iter().any(|(seen, _)| *seen == distance) {
                    continue;
                }
                let (start, end) = self.run(text, at, place);
                runs.push((distance, at + (end - place)));
                let first = self.windows.partition_point(|(from, _)| *from < start);
                let inside = self.windows.iter().skip(first).take_while(|(from, _)| *from < end);
                for (from, length) in inside.filter(|(from, length)| from + length <= end) {
                    found(from.wrapping_add(distance), *length);
                }
            }
        }
    }

    /// Returns begin and end in `texts` of the longest run around `place` that the text has around `at`.
    fn run(&self, text: &[u8], at: usize, place: usize) -> (usize, usize) {
        let is_equal = |(one, other): &(&u8, &u8)| one == other && **one != 0;
        let texts = self.texts.split_at_checked(place).unwrap_or_default();
        let text = text.split_at_checked(at).unwrap_or_default();
        let before = texts.0.iter().rev().zip(text.0.iter().rev()).take_while(is_equal).count();
        let after = texts.1.iter().zip(text.1).take_while(is_equal).count();
        (place - before, place + after)
    }

    /// Returns the length of the longest end of `text` that may go on as a window.
    fn begun(&self, text: &[u8]) -> usize {
        let whole = |(base, length): &(usize, usize)| {
            let spelling = self.texts.get(*base..base + length).unwrap_or_default();
            let longest = spelling.len().saturating_sub(1).min(text.len());
            (1..=longest).rev().find(|length| {
                let end = text.get(text.len() - length..);
                end.is_some_and(|end| spelling.starts_with(end))
            })
        };
        let whole = self.wholes.iter().filter_map(whole).max().unwrap_or(0);
        let longest = self.longest.saturating_sub(1).min(text.len());
        let is_part = |length: &usize| {
            let end = text.get(text.len() - length..).unwrap_or_default();
            !end.contains(&0) && memmem::find(&self.texts, end).is_some()
        };
        (1..=longest).take_while(is_part).last().unwrap_or(0).max(whole)
    }
}

/// Returns how many bytes at the begin of a secret are public: the mark of its service, or of a JSON web token what is not
/// its signature.
fn public(secret: &[u8]) -> usize {
    let is_token =
        secret.starts_with(b"eyJ") && secret.iter().filter(|byte| **byte == b'.').count() == 2;
    if is_token {
        return secret.iter().rposition(|byte| *byte == b'.').map_or(0, |dot| dot + 1);
    }
    let known = PUBLIC.iter().filter(|begin| secret.starts_with(begin.as_bytes()));
    known.map(|begin| begin.len()).max().unwrap_or(0)
}

fn distinct(window: &[u8]) -> usize {
    let mut bytes = window.to_vec();
    bytes.sort_unstable();
    bytes.dedup();
    bytes.len()
}

fn gram(text: &[u8], place: usize) -> Option<[u8; GRAM]> {
    text.get(place..place.checked_add(GRAM)?)?.try_into().ok()
}

/// Returns the bit of the table for four letters.
fn slot(gram: u32) -> usize {
    let mixed = gram.wrapping_mul(0x9e37_79b1) >> (u32::BITS - TABLE_BITS);
    usize::try_from(mixed).unwrap_or_default()
}
