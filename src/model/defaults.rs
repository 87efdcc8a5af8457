//! Default values and bounds, one constant each: code, `sandbox_rules`, README and `doctor` print these.

use std::sync::OnceLock;
use std::time::Duration;

/// One kibibyte, mebibyte and gibibyte in bytes.
pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Wall time of a call whose profile and rule name none.
pub const TIMEOUT: Duration = Duration::from_secs(600);
/// Wall time of `bash_exec` when the caller asks for none, and the most it may ask for.
pub const EXEC_TIMEOUT: Duration = Duration::from_secs(30);
pub const EXEC_MAX_TIMEOUT: Duration = Duration::from_secs(300);
/// Commands that a server remembers, and the most that it may be told to.
pub const HISTORY: usize = 100;
pub const HISTORY_MAX: usize = 1000;
/// Wall time of one calculation, all its evaluations together.
pub const CALCULATOR_TIMEOUT: Duration = Duration::from_secs(30);
/// Time from TERM until the cell is killed.
pub const GRACE: Duration = Duration::from_secs(1);

/// Sessions at once, and how long one is kept that nobody uses.
pub const SESSIONS: u32 = 8;
pub const SESSION_IDLE: Duration = Duration::from_secs(30 * 60);
/// How long a call waits before its command becomes a job.
pub const SESSION_YIELD: Duration = Duration::from_secs(45);

/// Bytes of memory of a cell.
pub const MEMORY: u64 = GIB;
/// Bytes that the cache of a workspace may have when cofferdam starts.
pub const CACHE: u64 = 4 * GIB;
/// Least memory that a cell can have: twice what the smallest shell was seen to start with.
pub const LEAST_MEMORY: u64 = 8 * MIB;
/// Processes and threads of a cell.
pub const PROCESSES: u32 = 256;
/// Open descriptors of one process.
pub const OPEN_FILES: u32 = 1024;
/// Bytes of the largest file a process may write.
pub const FILE_SIZE: u64 = 512 * MIB;
/// Bytes of a private `/workspace`.
pub const WORKSPACE_BYTES: u64 = 384 * MIB;
/// Bytes of `/tmp`.
pub const TMP_BYTES: u64 = 128 * MIB;
/// Bytes of `/dev/shm`.
pub const SHM_BYTES: u64 = 64 * MIB;
/// Inodes of each of these three.
pub const INODES: u32 = 100_000;

/// Characters of output in a reply, over both streams.
pub const INLINE_CHARACTERS: usize = 30_000;
/// Bytes over both streams at which a call is ended.
pub const OUTPUT_BYTES: u64 = 256 * MIB;

/// Calls that wait for a cell; one more is answered with an error that says so.
pub const QUEUE: u32 = 256;
/// Calls that run at once, at least.
pub const CONCURRENCY_MIN: u32 = 4;

/// Lowest Landlock ABI of the floor.
pub const LANDLOCK_ABI: u32 = 2;

/// Calls that run at once on a machine with `cores` processors: twice as many, four at least.
#[must_use]
pub fn concurrency(cores: u32) -> u32 {
    cores.saturating_mul(2).max(CONCURRENCY_MIN)
}

/// Processors this process may run on, or as many as its control group gives it the time of. Looked up once, for this
/// process and for the supervisor that is cloned from it: it takes some twenty system calls.
#[must_use]
pub fn processors() -> usize {
    static FOUND: OnceLock<usize> = OnceLock::new();
    *FOUND.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrency_is_twice_the_cores_and_never_under_four() {
        assert_eq!([0, 1, 2, 3, 64].map(concurrency), [4, 4, 4, 6, 128]);
    }
}
