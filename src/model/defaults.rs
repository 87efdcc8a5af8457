//! Default values and limits, one constant each: code, `sandbox_rules`, README and `doctor` print
//! these.

use std::sync::OnceLock;
use std::time::Duration;

/// One kibibyte, mebibyte and gibibyte in bytes.
pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Wall time of a call if neither profile nor rule states one.
pub const TIMEOUT: Duration = Duration::from_secs(600);
/// Wall time of `bash_exec` unless the caller requests another, and the maximum it may request.
pub const EXEC_TIMEOUT: Duration = Duration::from_secs(30);
pub const EXEC_MAX_TIMEOUT: Duration = Duration::from_secs(300);
/// Number of commands in the history, and its maximum.
pub const HISTORY: usize = 100;
pub const HISTORY_MAX: usize = 1000;
/// Wall time of one calculation, over all its evaluations.
pub const CALCULATOR_TIMEOUT: Duration = Duration::from_secs(30);
/// Time from SIGTERM until the cell is killed.
pub const GRACE: Duration = Duration::from_secs(1);

/// Maximum number of sessions, and how long an unused one is kept.
pub const SESSIONS: u32 = 8;
pub const SESSION_IDLE: Duration = Duration::from_secs(30 * 60);
/// Time after which a command becomes a background job.
pub const SESSION_YIELD: Duration = Duration::from_secs(45);

/// Bytes of memory of a cell.
pub const MEMORY: u64 = GIB;
/// Size in bytes above which the cache of a workspace is pruned when cofferdam starts.
pub const CACHE: u64 = 4 * GIB;
/// Size of a layer, and number of files in it, from which on it gets no more cells.
pub const LAYER_BYTES: u64 = 16 * GIB;
pub const LAYER_FILES: u32 = 1_000_000;
/// Minimum memory of a cell: twice what the smallest shell uses when it starts.
pub const MIN_MEMORY: u64 = 8 * MIB;
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
/// Output in bytes, over both streams, at which a call is ended.
pub const OUTPUT_BYTES: u64 = 256 * MIB;

/// Maximum number of calls that wait for a cell; further ones are refused.
pub const QUEUE: u32 = 256;
/// Minimum number of calls that may run at the same time.
pub const CONCURRENCY_MIN: u32 = 4;

/// Minimum Landlock ABI.
pub const LANDLOCK_ABI: u32 = 2;

/// Returns how many calls run at the same time on a machine with `cores` processors: twice as many,
/// but at least four.
#[must_use]
pub fn concurrency(cores: u32) -> u32 {
    cores.saturating_mul(2).max(CONCURRENCY_MIN)
}

/// Returns the number of processors that this process may use, by affinity and control group.
/// Computed once, for this process and the supervisor that is cloned from it: it takes about twenty
/// system calls.
#[must_use]
pub fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS
        .get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrency_is_twice_the_cores_and_never_under_four() {
        assert_eq!([0, 1, 2, 3, 64].map(concurrency), [4, 4, 4, 6, 128]);
    }
}
