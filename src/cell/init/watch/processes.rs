//! The processes of a cell as its procfs shows them (proc(5)).

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use super::lineage::Depth;
use super::maps::Process;
use crate::bare::Domain;
use crate::proc_files::{numbers, read_start};
use sys::Result;

/// Bytes charged for each slot in a process's table of descriptors: half of the capacity of a pipe
/// whose user has many.
const BYTES_PER_DESCRIPTOR: u64 = 4096;
/// Slots that every table has.
const MIN_DESCRIPTORS: u64 = 64;
/// Maximum number of times that a look lists the threads of a process whose first thread has ended,
/// to find one that shows its memory.
const MAX_LISTINGS: u32 = 8;
/// Flag of an exiting thread in `/proc/PID/stat` (proc_pid_stat(5)).
const PF_EXITING: u64 = 0x4;
/// Flag of a process that has executed no program since it was forked.
pub(super) const PF_FORKNOEXEC: u64 = 0x40;
/// SIGKILL in a set of signals as `/proc/PID/status` shows it.
const KILL: u64 = 1 << 8;

/// Result of one look at all processes of a cell.
#[derive(Debug)]
pub(super) struct Listing {
    pub seen: Vec<ProcessStatus>,
    /// Living processes whose memory could not be read.
    pub unclear: Vec<i32>,
}

/// A process whose threads are all exiting, but whose memory is not free yet.
#[derive(Debug, Default)]
pub(super) struct Ending {
    pub threads: BTreeSet<i32>,
    /// Bytes that it shared with no other process, if an earlier look measured them. If the end takes
    /// longer than `END_PATIENCE`: its proportional share, or all of its bytes.
    pub private: Option<u64>,
}

/// Result of reading one process.
#[derive(Debug)]
pub(super) enum Look {
    Seen(ProcessStatus),
    /// The process has ended, and has no memory.
    Gone,
    /// The process lives, but its memory could not be read.
    Unclear,
}

/// Values of a process, as its status shows them.
#[derive(Debug)]
pub(super) struct ProcessStatus {
    pub process: Process,
    /// Bytes of memory, including shared pages and page tables.
    pub resident: u64,
    /// Bytes of page tables.
    pub tables: u64,
    /// Slots in the table of descriptors.
    descriptors: u64,
    /// Pid of the parent, in the procfs's pid namespace.
    pub parent: i32,
    pub threads: u64,
    /// True if it has ended and its parent has not waited for it.
    pub is_zombie: bool,
    /// True if the thread that was read is exiting (PF_EXITING), or a SIGKILL is pending.
    pub is_exiting: bool,
    /// Present if the whole process is exiting and its memory is not free yet.
    pub ending: Option<Ending>,
}

impl ProcessStatus {
    /// Returns true if its memory counts: it has some, or is about to free it.
    pub(super) fn has_memory(&self) -> bool {
        self.process.size > 0 || self.ending.is_some()
    }

    /// Returns the bytes charged for its descriptors. None are charged to init, whose table is as large as
    /// the supervisor's was.
    pub(super) fn descriptor_bytes(&self) -> u64 {
        let slots = if self.process.pid == 1 { 0 } else { self.descriptors };
        slots.saturating_sub(MIN_DESCRIPTORS).saturating_mul(BYTES_PER_DESCRIPTOR)
    }
}

/// The procfs that shows a cell's processes.
#[derive(Debug)]
pub(super) struct CellProcfs {
    /// A procfs of the cell's pid namespace, or in the tier without one, of all processes.
    pub proc: OwnedFd,
    /// Identifies the cell's processes, where the procfs shows others too.
    pub domain: Option<Domain>,
}

impl CellProcfs {
    /// Reads all processes of the cell.
    pub(super) fn processes(&self) -> Result<Listing> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let list = Dir::openat(&self.proc, ".", flags, Mode::empty())?;
        let mut listing = Listing { seen: Vec::new(), unclear: Vec::new() };
        for entry in list {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name.iter().all(u8::is_ascii_digit) {
                let directory = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
                let pid = directory.parse().unwrap_or(0);
                if self.domain.is_none_or(|domain| domain.has(pid)) {
                    match self.process(pid, directory) {
                        Look::Seen(seen) => listing.seen.push(seen),
                        Look::Gone => {}
                        Look::Unclear => listing.unclear.push(pid),
                    }
                }
            }
        }
        Ok(listing)
    }

    /// Reads the status of a process. If its first thread has ended, only the status of the other
    /// threads shows its memory.
    pub(super) fn process(&self, pid: i32, directory: &str) -> Look {
        for _ in 0..MAX_LISTINGS {
            let seen = match self.status(pid, directory) {
                Look::Seen(seen) => seen,
                other @ (Look::Gone | Look::Unclear) => return other,
            };
            if seen.process.size > 0 {
                return Look::Seen(seen);
            }
            if seen.threads < 2 {
                // The kernel frees the memory of a process before it makes a zombie of it.
                let threads = BTreeSet::from([pid]);
                let ending = (!seen.is_zombie).then_some(Ending { threads, ..Ending::default() });
                return Look::Seen(ProcessStatus { ending, ..seen });
            }
            let threads = self.threads(directory);
            // The last in the list was made last, and most likely still lives.
            let looks = threads.iter().rev().map(|thread| self.thread(pid, directory, *thread));
            let mut are_ending = true;
            for look in looks {
                match look {
                    Look::Seen(seen) if seen.process.size > 0 => return Look::Seen(seen),
                    Look::Seen(seen) => are_ending &= seen.is_exiting,
                    Look::Gone => {}
                    Look::Unclear => are_ending = false,
                }
            }
            if are_ending && self.has_no_other(pid, directory, &threads) {
                let threads = threads.into_iter().collect();
                return Look::Seen(ProcessStatus {
                    ending: Some(Ending { threads, ..Ending::default() }),
                    ..seen
                });
            }
            // A listed thread made another one before it ended. The next list has that one.
        }
        Look::Unclear
    }

    /// Lists the threads of a process in the order in which they were made. A thread that ends meanwhile
    /// may cut the list short.
    fn threads(&self, directory: &str) -> Vec<i32> {
        numbers(&self.proc, &format!("{directory}/task")).unwrap_or_default()
    }

    /// Reads the status of one thread.
    fn thread(&self, pid: i32, directory: &str, thread: i32) -> Look {
        let path = format!("{directory}/task/{thread}");
        match self.status(pid, &path) {
            Look::Seen(seen) if seen.process.size == 0 && !seen.is_exiting => {
                Look::Seen(ProcessStatus { is_exiting: self.is_exiting(&path), ..seen })
            }
            other @ (Look::Seen(_) | Look::Gone | Look::Unclear) => other,
        }
    }

    /// Returns true if a process has no threads except those of a list. An exiting process makes no more,
    /// and the kernel's count shows whether the list was cut short.
    fn has_no_other(&self, pid: i32, directory: &str, listed: &[i32]) -> bool {
        let now = self.threads(directory);
        let count = match self.status(pid, directory) {
            Look::Seen(seen) => seen.threads,
            Look::Gone => 0,
            Look::Unclear => return false,
        };
        now.iter().all(|thread| listed.contains(thread))
            && u64::try_from(now.len()).is_ok_and(|length| count <= length)
    }

    /// Returns true if a thread has PF_EXITING.
    fn is_exiting(&self, directory: &str) -> bool {
        self.flags(directory).is_some_and(|flags| flags & PF_EXITING != 0)
    }

    /// Returns the kernel's flags of a thread.
    pub(super) fn flags(&self, directory: &str) -> Option<u64> {
        let mut buffer = [0; 1024];
        let text = self.text(&format!("{directory}/stat"), &mut buffer)?;
        // The name of a program may have spaces and parentheses.
        let text = String::from_utf8_lossy(text);
        let (_, fields) = text.rsplit_once(')')?;
        fields.split_ascii_whitespace().nth(6)?.parse().ok()
    }

    /// Reads the status of a process or thread, given its directory in the procfs.
    pub(super) fn status(&self, pid: i32, directory: &str) -> Look {
        let mut buffer = [0; 4096];
        let text = match read_start(&self.proc, &format!("{directory}/status"), &mut buffer) {
            Ok(text) => text,
            Err(Errno::ENOENT | Errno::ESRCH) => return Look::Gone,
            Err(_) => return Look::Unclear,
        };
        let bytes = |names: &[&[u8]]| kilobytes(text, names).saturating_mul(1024);
        Look::Seen(ProcessStatus {
            process: Process {
                pid,
                directory: directory.to_owned(),
                size: bytes(&[b"VmSize:"]),
                depth: Depth::default(),
            },
            resident: bytes(&[b"RssAnon:", b"RssShmem:", b"VmPTE:", b"VmSwap:"]),
            tables: bytes(&[b"VmPTE:"]),
            descriptors: kilobytes(text, &[b"FDSize:"]),
            parent: i32::try_from(kilobytes(text, &[b"PPid:"])).unwrap_or(0),
            threads: kilobytes(text, &[b"Threads:"]),
            is_zombie: [b"State:\tZ", b"State:\tX"].iter().any(|state| has_line(text, *state)),
            is_exiting: has_pending_kill(text),
            ending: None,
        })
    }

    /// Reads the beginning of a file of the procfs; `None` if it does not exist or is empty.
    pub(super) fn text<'b>(&self, path: &str, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        read_start(&self.proc, path, buffer).ok().filter(|text| !text.is_empty())
    }
}

/// Returns true if a line of `text` starts with `beginning`.
fn has_line(text: &[u8], beginning: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').any(|line| line.starts_with(beginning))
}

/// Returns true if a `/proc/PID/status` shows a pending SIGKILL, of the thread or of its process.
fn has_pending_kill(text: &[u8]) -> bool {
    let lines = text.split(|byte| *byte == b'\n');
    let mut sets = lines.filter_map(|line| {
        let set = line.strip_prefix(b"SigPnd:\t").or_else(|| line.strip_prefix(b"ShdPnd:\t"))?;
        u64::from_str_radix(std::str::from_utf8(set).ok()?, 16).ok()
    });
    sets.any(|set| set & KILL != 0)
}

/// Adds up the numbers in the lines that begin with one of `wanted`.
pub(super) fn kilobytes(text: &[u8], wanted: &[&[u8]]) -> u64 {
    let lines = text.split(|byte| *byte == b'\n');
    let numbers = lines.filter(|line| wanted.iter().any(|name| line.starts_with(name)));
    let second =
        |line| std::str::from_utf8(line).ok()?.split_ascii_whitespace().nth(1)?.parse::<u64>().ok();
    numbers.filter_map(second).sum::<u64>()
}
