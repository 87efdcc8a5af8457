//! Grants System V shared memory (shmget(2)) up to the cell's limit, together with shared memory
//! without a file.
//!
//! A segment remains without any process that has attached it. The kernel counts the pages of all
//! segments of the cell's IPC namespace, so that a grant is only counted here until its thread has
//! left the call.

use super::Watch;
use super::shared::{PAGE, Reservation};
use sys::{Result, memory};

/// The segments of a cell.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    /// Grants of threads that may not have made their segment yet.
    granted: Vec<Reservation>,
    /// True after the first grant: before it there are no segments.
    has_granted: bool,
}

impl Watch {
    /// Grants a segment of `length` bytes to a thread, if the cell has room for it.
    pub(in super::super) fn grants_segment(&mut self, thread: i32, length: u64) -> Result<bool> {
        let bytes = length.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX).max(PAGE);
        let granted = &mut self.segments.granted;
        // The thread's previous call is over.
        granted.retain(|reservation| reservation.thread != thread);
        let used = self.segment_bytes()?;
        let has_room = used.saturating_add(self.shared.sum()).saturating_add(bytes) <= self.limit;
        if has_room {
            self.segments.granted.push(Reservation { thread, bytes });
            self.segments.has_granted = true;
        }
        Ok(has_room)
    }

    /// Returns the bytes of all segments, and of grants that may become some.
    pub(super) fn segment_bytes(&mut self) -> Result<u64> {
        if !self.segments.has_granted {
            return Ok(0);
        }
        let mut granted = std::mem::take(&mut self.segments.granted);
        // Before the kernel's count: a thread that has left the call by now has made its segment.
        granted.retain(|reservation| !self.is_elsewhere(reservation.thread, libc::SYS_shmget));
        let reserved = granted.iter().map(|reservation| reservation.bytes);
        let reserved = reserved.fold(0, u64::saturating_add);
        self.segments.granted = granted;
        Ok(memory::segment_bytes()?.saturating_add(reserved))
    }
}
