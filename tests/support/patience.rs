//! Time limits of tests: how long to wait for events, longer on slow machines.
//!
//! COFFERDAM_PATIENCE is the factor, from 1 to 10; without it 1, and 2 where there is one processor. It lengthens upper
//! bounds alone, never a time that is under test.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its part of what they share")]

use std::sync::OnceLock;
use std::time::Duration;

/// Time after which a test gives up: far above the time that anything should take, so that only a hang reaches it.
const LONGEST: Duration = Duration::from_secs(240);

/// Returns how long to wait for what would otherwise not come at all.
pub fn patience() -> Duration {
    LONGEST.mul_f64(factor())
}

/// Returns the bound on something that takes a moment where it works, and far longer where it does not: as much as
/// a loaded machine needs for it.
pub fn soon(seconds: u64) -> Duration {
    Duration::from_secs(seconds).mul_f64(factor())
}

fn factor() -> f64 {
    static FACTOR: OnceLock<f64> = OnceLock::new();
    *FACTOR.get_or_init(|| match std::env::var("COFFERDAM_PATIENCE") {
        Ok(given) => match given.parse::<f64>() {
            Ok(factor) if (1.0..=10.0).contains(&factor) => factor,
            Ok(_) | Err(_) => {
                panic!("COFFERDAM_PATIENCE is `{given}`; write a number from 1 to 10")
            }
        },
        Err(_) => match std::thread::available_parallelism() {
            Ok(processors) if processors.get() > 1 => 1.0,
            Ok(_) | Err(_) => 2.0,
        },
    })
}
