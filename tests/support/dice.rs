//! Reproducible pseudo-random numbers (SplitMix64): the same seed gives the same numbers.
#![allow(dead_code, reason = "each test program uses its part of it")]

/// A generator of reproducible random numbers; failures print its seed.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// One time in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of these; `None` of nothing.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let count = u64::try_from(all.len()).unwrap_or(u64::MAX);
        all.get(usize::try_from(self.below(count)).unwrap_or_default())
    }

    /// Bytes, fewer than `end` of them.
    pub fn bytes(&mut self, end: u64) -> Vec<u8> {
        let count = self.below(end);
        (0..count).flat_map(|_| self.next().to_le_bytes().into_iter().next()).collect()
    }
}

/// Returns the seed of this run: `COFFERDAM_SEED`, or the time. A failure prints it.
pub fn seed() -> u64 {
    let own = std::env::var("COFFERDAM_SEED").ok().and_then(|seed| seed.parse().ok());
    own.unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(1, |since| since.as_secs())
    })
}
