//! The memory and uptime that a cell shows as those of its machine: one `/proc/meminfo` and one
//! `/proc/uptime` per slot.
//!
//! The files belong to the template, and are read-only in cells. The supervisor holds the
//! template's root through a separate mount, and writes a file before the job of its cell starts.

use std::cell::Cell;
use std::ffi::CStr;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::write;

use super::Clocks;
use super::mounts::HIDDEN;
use super::slot::Slot;
use sys::Result;

/// Name of the directory with these files, in the hidden store.
pub const DIRECTORY: &str = "size";

/// The file of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    Memory,
    Uptime,
}

impl Fact {
    /// Returns the end of the file's name, after the slot.
    fn suffix(self) -> &'static str {
        match self {
            Self::Memory => "",
            Self::Uptime => "-uptime",
        }
    }
}

/// The content of each slot's files.
#[derive(Debug)]
pub struct Sizes {
    /// The root of the template, writable.
    root: Rc<OwnedFd>,
    /// Bytes of memory by slot: a job with its profile's limit needs no rewrite.
    shown: Vec<Cell<u64>>,
    clocks: Clocks,
}

impl Sizes {
    /// Describes the files below `root`: one `meminfo` for each of `cells` slots, all written for
    /// `memory` bytes.
    pub fn new(root: Rc<OwnedFd>, cells: u16, memory: u64, clocks: Clocks) -> Self {
        Self { root, shown: vec![Cell::new(memory); usize::from(cells)], clocks }
    }

    /// Sets the memory that the cell in `slot` shows, in bytes. Its program must not run yet.
    ///
    /// # Errors
    /// The errno of open(2) or write(2); ENOENT: the slot does not exist.
    pub fn show(&self, slot: Slot, memory: u64) -> Result<()> {
        let shown = self.shown.get(slot.index()).ok_or(Errno::ENOENT)?;
        if shown.get() == memory {
            return Ok(());
        }
        self.write(slot, Fact::Memory, OFlag::O_TRUNC, &meminfo(memory))?;
        shown.set(memory);
        Ok(())
    }

    /// Sets the uptime that the cell in `slot` shows to that of its clocks. Creates the file if it
    /// is missing, as most slots are never used.
    ///
    /// # Errors
    /// The errno of open(2), write(2) or clock_gettime(2).
    pub fn age(&self, slot: Slot) -> Result<()> {
        let age = age(self.clocks)?;
        let seconds = age.tv_sec();
        let hundredths = age.tv_nsec() / 10_000_000;
        let uptime = format!("{seconds}.{hundredths:02}");
        // Not truncated first: the text never gets shorter, and a concurrent reader must see it
        // complete.
        self.write(slot, Fact::Uptime, OFlag::O_CREAT, &format!("{uptime} {uptime}\n"))
    }

    fn write(&self, slot: Slot, fact: Fact, how: OFlag, text: &str) -> Result<()> {
        let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC | how;
        let hidden = HIDDEN.trim_start_matches('/');
        let path = format!("{hidden}/{DIRECTORY}/{slot}{}", fact.suffix());
        let file = openat(&*self.root, path.as_str(), flags, Mode::from_bits_truncate(0o644))?;
        if write(file, text.as_bytes())? != text.len() {
            return Err(Errno::ENOSPC);
        }
        Ok(())
    }
}

/// Returns the uptime of a cell's machine according to its clocks.
///
/// # Errors
/// The errno of clock_gettime(2).
pub fn age(clocks: Clocks) -> Result<TimeSpec> {
    match clocks {
        Clocks::Own => clock_gettime(ClockId::CLOCK_BOOTTIME),
        Clocks::Host => Ok(TimeSpec::new(1, 0)),
    }
}

/// Returns the time at which a cell's machine was started, in seconds since 1970. ps(1) and its like
/// add the start of a process by the boot clock (proc_pid_stat(5)). With the host's clocks that time
/// would be the host's: it is made up.
///
/// # Errors
/// The errno of clock_gettime(2).
pub fn boot_time(clocks: Clocks) -> Result<i64> {
    match clocks {
        Clocks::Own => {
            let now = clock_gettime(ClockId::CLOCK_REALTIME)?;
            Ok((now - clock_gettime(ClockId::CLOCK_BOOTTIME)?).tv_sec())
        }
        Clocks::Host => Ok(1),
    }
}

/// Writes the path of the file of `slot` in the template, without allocation.
pub fn path(buffer: &mut [u8; 64], slot: Slot, fact: Fact) -> Result<&CStr> {
    let mut rest = buffer.as_mut_slice();
    write!(rest, "{HIDDEN}/{DIRECTORY}/{slot}{}\0", fact.suffix())
        .map_err(|_| Errno::ENAMETOOLONG)?;
    CStr::from_bytes_until_nul(buffer).map_err(|_| Errno::EINVAL)
}

/// Formats `/proc/meminfo` of a machine with `memory` bytes, all of them free.
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
