//! Parses the arguments of an attempt: numbers, texts, and buffers for the kernel.

use core::ffi::CStr;

use crate::sys;

/// Bytes at the same address in every process of the probe, as it is not relocated when it is
/// freestanding.
static SHARED_BYTES: &[u8] = b"cofferdam-probe.";

/// Memory for what arguments point to.
pub struct Room {
    // 64-bit words, for their alignment.
    room: [u64; 1024],
    used: usize,
}

impl Room {
    pub fn new() -> Self {
        Self { room: [0; 1024], used: 0 }
    }

    /// Takes the next `words` words, which are still zero.
    fn take(&mut self, words: usize) -> Option<&mut [u64]> {
        let taken = self.room.get_mut(self.used..self.used + words)?;
        self.used += words;
        Some(taken)
    }

    /// Parses an argument: a number; `s:TEXT`, the address of a text; `z:N`, N zero bytes; `v:N`,
    /// an iovec(3) of N zero bytes; `o:`, an iovec(3) of bytes that every process of the probe has
    /// at the same address; `w:1,2`, words of 32 bits; `q:1,2`, words of 64 bits; `r:N`, the answer
    /// of the Nth call.
    pub fn argument(&mut self, word: &CStr, answers: &[usize]) -> Option<usize> {
        let bytes = word.to_bytes();
        let Some((kind, rest)) = tagged(bytes) else { return number(bytes) };
        match kind {
            b's' => {
                let text = word.to_bytes_with_nul().get(2..)?;
                Some(sys::address(text))
            }
            b'z' => {
                let zeros = self.take(number(rest)?.div_ceil(8))?;
                Some(sys::address_mut(zeros))
            }
            b'v' => {
                let length = number(rest)?;
                let base = sys::address_mut(self.take(length.div_ceil(8))?);
                self.vector(base, length)
            }
            b'o' => self.vector(sys::address(SHARED_BYTES), SHARED_BYTES.len()),
            b'w' => self.words(rest, |value| u64::try_from(value & 0xffff_ffff).ok(), 2),
            b'q' => self.words(rest, |value| u64::try_from(value).ok(), 1),
            b'r' => answers.get(number(rest)?.checked_sub(1)?).copied(),
            _ => None,
        }
    }

    fn vector(&mut self, base: usize, length: usize) -> Option<usize> {
        let vector = self.take(2)?;
        for (slot, value) in vector.iter_mut().zip([base, length]) {
            *slot = u64::try_from(value).ok()?;
        }
        Some(sys::address_mut(vector))
    }

    /// Parses numbers separated by commas and packs `each` of them into a 64-bit word, lowest
    /// first.
    fn words(
        &mut self,
        list: &[u8],
        value: fn(usize) -> Option<u64>,
        each: usize,
    ) -> Option<usize> {
        let count = list.split(|byte| *byte == b',').count();
        let packed = self.take(count.div_ceil(each))?;
        for (at, item) in list.split(|byte| *byte == b',').enumerate() {
            let shift = u32::try_from(at % each).ok()? * 32;
            *packed.get_mut(at / each)? |= value(number(item)?)? << shift;
        }
        Some(sys::address_mut(packed))
    }
}

fn tagged(bytes: &[u8]) -> Option<(u8, &[u8])> {
    match bytes {
        [kind, b':', rest @ ..] => Some((*kind, rest)),
        _ => None,
    }
}

/// Parses a number: decimal, `0x…`, octal with a leading `0` as in C, or negative.
pub fn number(word: &[u8]) -> Option<usize> {
    let (negative, word) = match word {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, word),
    };
    let (base, digits) = match word {
        [b'0', b'x', rest @ ..] => (16, rest),
        [b'0', rest @ ..] if !rest.is_empty() => (8, rest),
        _ => (10, word),
    };
    let digits = core::str::from_utf8(digits).ok()?;
    let value = u64::from_str_radix(digits, base).ok()?;
    let value = usize::try_from(value).ok()?;
    Some(if negative { value.wrapping_neg() } else { value })
}
