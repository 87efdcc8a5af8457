//! Reads the memory use of this process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a page of memory, the unit of statm.
const PAGE_BYTES: u64 = 4096;

/// Reader of this process's memory use, opened before the process is confined.
#[derive(Debug)]
pub struct OwnMemory(File);

impl OwnMemory {
    /// Opens `/proc/self/statm`.
    ///
    /// # Errors
    /// No `/proc` here.
    pub fn open() -> io::Result<Self> {
        File::open("/proc/self/statm").map(Self)
    }

    /// Returns the bytes that are resident now (proc_pid_statm(5)).
    pub(crate) fn resident(&self) -> Option<u64> {
        let mut text = [0; 128];
        let length = self.0.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(text.get(..length)?).ok()?;
        let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
        pages.checked_mul(PAGE_BYTES)
    }
}
