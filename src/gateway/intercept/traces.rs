//! Searches answers for a secret and for parts of it, as a server may shorten what it quotes.
//!
//! Each run of eight bytes of a secret is looked for, in each spelling. A text that holds one holds
//! four of its letters at an offset divisible by four, so only every fourth offset is looked up, in
//! a bit table that few texts pass.

use std::fmt;
use std::sync::Arc;

use memchr::memmem;
use zeroize::Zeroizing;

use super::spelling::{Spelling, spellings};

/// Number of bytes of a secret that give it away.
const WINDOW: usize = 8;
/// Length from which parts of a secret are looked for; of a shorter one only the whole is.
const MIN_SPLIT: usize = 16;
/// Minimum number of different bytes in a window; with fewer it could be a line of dashes or zeros,
/// as in any text.
const MIN_DISTINCT: usize = 4;
/// Number of letters that are looked up at once, and distance between two lookups.
const GRAM: usize = 4;
/// Size of the table, as a power of two.
const TABLE_BITS: u32 = 16;
/// Prefixes that services publish for their keys. They give nothing away.
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

/// The texts by which one secret shows. Never printed, and erased on drop.
struct Trace {
    /// All spellings, each followed by a zero.
    texts: Zeroizing<Vec<u8>>,
    /// Offset and length in `texts` of the parts to replace, sorted by offset.
    windows: Vec<(usize, usize)>,
    /// Offset and length in `texts` of the whole spellings.
    wholes: Vec<(usize, usize)>,
    /// Four letters in the upper half and their offset in the lower, sorted.
    grams: Zeroizing<Vec<u64>>,
    table: Zeroizing<Vec<u64>>,
    /// Length of the longest window that is not a whole spelling.
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
    pub(crate) fn new(secret: &[u8]) -> Self {
        Self(vec![Arc::new(Trace::new(secret))])
    }

    /// Joins the traces of several secrets.
    pub(crate) fn joined<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        Self(all.into_iter().flat_map(|one| one.0.iter().cloned()).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if `text` holds a part of a secret.
    pub(crate) fn are_in(&self, text: &[u8]) -> bool {
        self.masked(text).is_some()
    }

    /// Returns `text` with an asterisk for each byte of a secret; `None` if it holds no part of
    /// one.
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

    /// Returns the length of the longest suffix of `text` that may be the beginning of something to
    /// replace.
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
        // Reserved in advance: a buffer that grows leaves copies behind that are not erased.
        let size = all.iter().map(|spelling| spelling.text.len() + 1).sum();
        trace.texts.reserve_exact(size);
        trace.grams.reserve_exact(size);
        for spelling in &all {
            trace.add(secret, public, spelling);
        }
        trace.windows.sort_unstable();
        for index in 0..trace.texts.len() {
            let Some(gram) = gram(&trace.texts, index).filter(|gram| !gram.contains(&0)) else {
                continue;
            };
            let gram = u32::from_le_bytes(gram);
            if let Some(word) = trace.table.get_mut(slot(gram) >> 6) {
                *word |= 1 << (slot(gram) & 63);
            }
            trace.grams.push(u64::from(gram) << 32 | u64::try_from(index).unwrap_or_default());
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

    /// Calls `report` with offset and length of each part of the secret in `text`.
    fn find(&self, text: &[u8], mut report: impl FnMut(usize, usize)) {
        // Matching runs so far: the offset in the text minus that in the spellings, and the end in
        // the text.
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (number, gram) in text.chunks_exact(GRAM).enumerate() {
            let Ok(gram) = <[u8; GRAM]>::try_from(gram) else { continue };
            let gram = u32::from_le_bytes(gram);
            let word = self.table.get(slot(gram) >> 6).copied().unwrap_or_default();
            if word >> (slot(gram) & 63) & 1 == 0 {
                continue;
            }
            let offset = number * GRAM;
            runs.retain(|(_, end)| *end > offset);
            let first = self.grams.partition_point(|known| known >> 32 < u64::from(gram));
            let known = self.grams.iter().skip(first);
            for known in known.take_while(|known| **known >> 32 == u64::from(gram)) {
                let index = usize::try_from(known & u64::from(u32::MAX)).unwrap_or_default();
                let distance = offset.wrapping_sub(index);
                if runs.iter().any(|(seen, _)| *seen == distance) {
                    continue;
                }
                let (start, end) = self.run(text, offset, index);
                runs.push((distance, offset + (end - index)));
                let first = self.windows.partition_point(|(from, _)| *from < start);
                let inside = self.windows.iter().skip(first).take_while(|(from, _)| *from < end);
                for (from, length) in inside.filter(|(from, length)| from + length <= end) {
                    report(from.wrapping_add(distance), *length);
                }
            }
        }
    }

    /// Returns the range in `texts` of the longest match around `index` with the text around `at`.
    fn run(&self, text: &[u8], at: usize, index: usize) -> (usize, usize) {
        let is_equal = |(one, other): &(&u8, &u8)| one == other && **one != 0;
        let texts = self.texts.split_at_checked(index).unwrap_or_default();
        let text = text.split_at_checked(at).unwrap_or_default();
        let before = texts.0.iter().rev().zip(text.0.iter().rev()).take_while(is_equal).count();
        let after = texts.1.iter().zip(text.1).take_while(is_equal).count();
        (index - before, index + after)
    }

    /// Returns the length of the longest suffix of `text` that may continue as a window.
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

/// Returns how many bytes at the beginning of a secret are public: the prefix of its service, or
/// all but the signature of a JSON web token.
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

fn gram(text: &[u8], index: usize) -> Option<[u8; GRAM]> {
    text.get(index..index.checked_add(GRAM)?)?.try_into().ok()
}

/// Returns the bit in the table for four letters.
fn slot(gram: u32) -> usize {
    let mixed = gram.wrapping_mul(0x9e37_79b1) >> (u32::BITS - TABLE_BITS);
    usize::try_from(mixed).unwrap_or_default()
}
