//! Caps over all cells together.

use std::time::Duration;

/// Caps over all cells together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Cells alive at once, those that are ending included.
    pub cells: u16,
    /// Bytes: the memory limits of all cells added up.
    pub memory: u64,
    /// Bytes: the private filesystems of all cells added up.
    pub tmpfs: u64,
    /// Processes of all cells.
    pub processes: u64,
    /// Cells kept ready for a profile that is in use; 0: none is made in advance.
    pub warm: u16,
    /// Sessions at once; 0: none.
    pub sessions: u16,
    /// How long a session is kept that nobody uses.
    pub session_idle: Duration,
}
