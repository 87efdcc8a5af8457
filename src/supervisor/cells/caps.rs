//! Limits for all cells of a supervisor together.

use std::time::Duration;

/// Limits for all cells of a supervisor together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Maximum number of cells alive at once, including those that are ending.
    pub cells: u16,
    /// Maximum sum of the cells' memory limits, in bytes.
    pub memory: u64,
    /// Maximum sum of the cells' private filesystems, in bytes.
    pub tmpfs: u64,
    /// Maximum number of processes of all cells.
    pub processes: u64,
    /// Cells kept ready for a profile that is in use; 0 disables the pool.
    pub warm: u16,
    /// Maximum number of network namespaces that are kept for further cells; 0: each cell has a fresh one.
    pub networks: u16,
    /// Maximum number of concurrent sessions; 0 disables them.
    pub sessions: u16,
    /// How long an unused session is kept.
    pub session_idle: Duration,
}
