//! The memory that a cell shows as its own: one `/proc/meminfo` for each slot.
//!
//! The files are part of the template, and read-only where cells have them. The supervisor holds
//! their directory by a mount of its own, and writes a file before the job of its cell starts.

use std::cell::Cell;
use std::ffi::CStr;
use std::io::Write;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::write;

use super::mounts::{HIDDEN, Slot};
use crate::sys::Result;

/// The directory of these files, in the hidden store.
pub const DIRECTORY: &str = "size";

/// What each slot's file says.
#[derive(Debug)]
pub struct Sizes {
    directory: OwnedFd,
    /// Bytes of memory, by slot: a job with its profile's limit needs no writing.
    shown: Vec<Cell<u64>>,
}

impl Sizes {
    /// The files in `directory`, one for each of `cells` slots, all with `memory` in them.
    pub fn new(directory: OwnedFd, cells: Slot, memory: u64) -> Self {
        Self { directory, shown: vec![Cell::new(memory); usize::from(cells)] }
    }

    /// Makes the cell in `slot` show `memory` bytes. Its program must not run yet.
    ///
    /// # Errors
    /// What open(2) or write(2) say; ENOENT: there is no such slot.
    pub fn show(&self, slot: Slot, memory: u64) -> Result<()> {
        let shown = self.shown.get(usize::from(slot)).ok_or(Errno::ENOENT)?;
        if shown.get() == memory {
            return Ok(());
        }
        let flags = OFlag::O_WRONLY | OFlag::O_TRUNC | OFlag::O_CLOEXEC;
        let file = openat(&self.directory, slot.to_string().as_str(), flags, Mode::empty())?;
        let text = meminfo(memory);
        if write(file, text.as_bytes())? != text.len() {
            return Err(Errno::ENOSPC);
        }
        shown.set(memory);
        Ok(())
    }
}

/// The file of `slot` as a template has it, written without allocation.
pub fn path(buffer: &mut [u8; 64], slot: Slot) -> Result<&CStr> {
    let mut rest = buffer.as_mut_slice();
    write!(rest, "{HIDDEN}/{DIRECTORY}/{slot}\0").map_err(|_| Errno::ENAMETOOLONG)?;
    CStr::from_bytes_until_nul(buffer).map_err(|_| Errno::EINVAL)
}

/// `/proc/meminfo` of a machine with `memory` bytes and nothing in them.
pub fn meminfo(memory: u64) -> String {
    let kilobytes = memory / 1024;
    let line = |name: &str, value: u64| format!("{:<16}{value:>8} kB\n", format!("{name}:"));
    [
        ("MemTotal", kilobytes),
        ("MemFree", kilobytes),
        ("MemAvailable", kilobytes),
        ("Buffers", 0),
        ("Cached", 0),
        ("SwapCached", 0),
        ("Active", 0),
        ("Inactive", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Shmem", 0),
        ("Slab", 0),
        ("SReclaimable", 0),
    ]
    .map(|(name, value)| line(name, value))
    .concat()
}
