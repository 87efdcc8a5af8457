//! Limits warnings that any client can cause to a number each minute, and counts the rest.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// Warnings of one kind in a minute.
const PER_MINUTE: NonZeroU32 = NonZeroU32::new(10).expect("not zero");

/// Throttle of one kind of warning: without it a client could fill the log.
#[derive(Debug)]
pub(crate) struct LogThrottle {
    passed: DefaultDirectRateLimiter,
    left_out: AtomicU64,
}

impl Default for LogThrottle {
    fn default() -> Self {
        let passed = RateLimiter::direct(Quota::per_minute(PER_MINUTE));
        Self { passed, left_out: AtomicU64::new(0) }
    }
}

impl LogThrottle {
    /// Returns the number of warnings that were left out before this one; `None` if this one is left out too.
    pub(crate) fn passes(&self) -> Option<u64> {
        match self.passed.check() {
            Ok(()) => Some(self.left_out.swap(0, Ordering::Relaxed)),
            Err(_) => {
                self.left_out.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_warnings_is_ten_in_a_minute() {
        let throttle = LogThrottle::default();
        let passed = (0..10_000).filter(|_| throttle.passes().is_some()).count();
        assert!((10..=11).contains(&passed), "{passed}");
        assert!(throttle.left_out.load(Ordering::Relaxed) >= 9_989);
    }
}
