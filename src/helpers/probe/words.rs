//! Arguments of an attempt as they are written: numbers, texts, and buffers for the kernel.

use core::ffi::CStr;

use crate::sys;

/// Bytes of every process of the helper, as it is not moved about when it is freestanding.
static OWN: &[u8] = b"cofferdam-probe.";

/// Room for what arguments point to.
pub struct Room {
    // Words, for their alignment.
    room: [u64; 1024],
    used: usize,
}

impl Room {
    pub fn new() -> Self {
        Self { room: [0; 1024], used: 0 }
    }

    /// Takes the next `words` words, still zero.
    fn take(&mut self, words: usize) -> Option<&mut [u64]> {
        let place = self.room.get_mut(self.used..self.used + words)?;
        self.used += words;
        Some(place)
    }

    /// Parses an argument: a number; `s:TEXT`, its address; `z:N`, N zero bytes; `v:N`, an iovec(3) of N zero
    /// bytes; `o:`, one of bytes that each process of the helper has at this address; `w:1,2`, words of 32
    /// bits; `q:1,2`, words of 64; `r:N`, the answer of the Nth call.
    pub fn argument(&mut self, word: &CStr, answers: &[usize]) -> Option<usize> {
        let bytes = word.to_bytes();
        let Some((kind, rest)) = tagged(bytes) else { return number(bytes) };
        match kind {
            b's' => {
                let text = word.to_bytes_with_nul().get(2..)?;
                Some(sys::address(text))
            }
            b'z' => {
                let place = self.take(number(rest)?.div_ceil(8))?;
                Some(sys::place(place))
            }
            b'v' => {
                let length = number(rest)?;
                let base = sys::place(self.take(length.div_ceil(8))?);
                self.vector(base, length)
            }
            b'o' => self.vector(sys::address(OWN), OWN.len()),
            b'w' => self.words(rest, |value| u64::try_from(value & 0xffff_ffff).ok(), 2),
            b'q' => self.words(rest, |value| u64::try_from(value).ok(), 1),
            b'r' => answers.get(number(rest)?.checked_sub(1)?).copied(),
            _ => None,
        }
    }

    fn vector(&mut self, base: usize, length: usize) -> Option<usize> {
        let vector = self.take(2)?;
        for (place, value) in vector.iter_mut().zip([base, length]) {
            *place = u64::try_from(value).ok()?;
        }
        Some(sys::place(vector))
    }

    /// Numbers with commas between them, `each` to a word of 64 bits, lowest first.
    fn words(
        &mut self,
        list: &[u8],
        value: fn(usize) -> Option<u64>,
        each: usize,
    ) -> Option<usize> {
        let count = list.split(|byte| *byte == b',').count();
        let place = self.take(count.div_ceil(each))?;
        for (at, item) in list.split(|byte| *byte == b',').enumerate() {
            let shift = u32::try_from(at % each).ok()? * 32;
            *place.get_mut(at / each)? |= value(number(item)?)? << shift;
        }
        Some(sys::place(place))
    }
}

fn tagged(bytes: &[u8]) -> Option<(u8, &[u8])> {
    match bytes {
        [kind, b':', rest @ ..] => Some((*kind, rest)),
        _ => None,
    }
}

/// Parses a number: decimal, `0x…`, `0…` in octal as C has it, or negative.
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
