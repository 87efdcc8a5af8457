//! Settings of command-line tools that neither a call nor the tool's own file decides.

use super::settings::{BytesValue, Kind, Optional, PeriodValue, WholeValue, settings};
use crate::document::{Item, Read, ReadError};
use crate::policy::conduct::{
    BreakerLimits, CONCURRENCY, FAILURES, MAX_CONCURRENCY, MAX_FAILURES, MAX_RECOVERY, RECOVERY,
};
use model::defaults::{KIB, MIB, MIN_MEMORY};

/// Maximum number of characters of a result's streams. As many are shown unless the file says less.
const STDOUT: u64 = MIB;
const STDERR: u64 = 256 * KIB;
/// Maximum number of bytes of `extra_args`: `crate::policy::flags::MAX_BYTES`.
const MAX_ARGUMENTS: u64 = 2048;

settings! {
/// Values of `[commands]`, each with where it came from.
pub struct CommandSettings {
    /// Settings of command-line tools, unless a call or the `[[tool]]` table has its own.
    commands {
        /// Timeout of a call if neither the call nor the tool sets one; the rule and the profile
        /// can lower it.
        ///
        /// Default: the value of the profile. Example: `"60s"`.
        timeout: Optional<PeriodValue<0, 3600>> = None,
        /// Calls of one tool that run at the same time.
        ///
        /// Default: `2`. Example: `4`.
        concurrency: WholeValue<1, MAX_CONCURRENCY> = CONCURRENCY,
        /// Consecutive failures that open a circuit breaker; 1 to 10.
        ///
        /// Default: `5`. Example: `3`.
        failures: WholeValue<1, MAX_FAILURES> = FAILURES,
        /// Time during which an open breaker refuses calls; at most one hour.
        ///
        /// Default: `"60s"`. Example: `"2m"`.
        recovery: PeriodValue<0, { MAX_RECOVERY.as_secs() }> = RECOVERY,
        /// Maximum size of `extra_args` in bytes; at most 2048.
        ///
        /// Default: `2048`. Example: `512`.
        max_args: ArgumentBytes = MAX_ARGUMENTS,
        /// Maximum number of characters of standard output in a result; at most `1M`.
        ///
        /// Default: `"1M"`. Example: `"64K"`.
        max_stdout: BytesValue<1, STDOUT> = STDOUT,
        /// Maximum number of characters of standard error in a result; at most `256K`.
        ///
        /// Default: `"256K"`. Example: `"16K"`.
        max_stderr: BytesValue<1, STDERR> = STDERR,
        /// Memory of a cell, if its profile allows more; at least 8M.
        ///
        /// Default: the value of the profile. Example: `"256M"`.
        memory: Optional<BytesValue<MIN_MEMORY, { u64::MAX }>> = None,
    }
}
}

impl CommandSettings {
    /// Returns the limits of a breaker whose tool says nothing.
    pub fn breaker(&self) -> BreakerLimits {
        BreakerLimits { failures: self.failures.value, recovery: self.recovery.value }
    }
}

/// Number of bytes of `extra_args`.
pub struct ArgumentBytes;

impl Kind for ArgumentBytes {
    type Value = u64;
    type Written = u64;

    fn read(item: Item<'_>) -> Result<u64, ReadError> {
        match u64::read(item)? {
            bytes if bytes > MAX_ARGUMENTS => {
                Err(item.error(format!("must be {MAX_ARGUMENTS} at most")))
            }
            bytes => Ok(bytes),
        }
    }

    fn show(bytes: &u64) -> String {
        bytes.to_string()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn arguments_have_the_same_limit_in_the_file_and_in_a_call() {
        assert_eq!(usize::try_from(super::MAX_ARGUMENTS), Ok(crate::policy::flags::MAX_BYTES));
    }
}
