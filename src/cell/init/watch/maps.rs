//! Counts the mappings of a cell's processes. The kernel has an object for each mapping that it charges
//! to no process, and after forks a link for each ancestor.
//!
//! Mappings are counted by the lines of `/proc/PID/maps`, which cost the kernel a microsecond each. So a
//! process is counted again only when it had the time to make many, and a look that has used up its time
//! is continued by the next one.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::read;

use super::lineage::Depth;

/// Bytes of kernel memory for one mapping: the object (`vm_area_struct`, 192), its part of the tree of
/// mappings, and a reserve for kernels where it is larger.
const BYTES_PER_MAPPING: u64 = 256;
/// Bytes for the link of one mapping with one ancestor (`anon_vma_chain`).
const BYTES_PER_LINK: u64 = 64;
/// Maximum bytes of such objects that one processor can make in a millisecond.
const BYTES_PER_MILLISECOND: u64 = 256 << 10;
/// Factor by which links are made faster than mappings.
const LINK_SPEED_FACTOR: u32 = 4;
/// Maximum time of one look.
const BUDGET: Duration = Duration::from_micros(1500);
/// Maximum number of mappings of a process, unless the host allows more (`vm.max_map_count`).
const MAX_MAPPINGS: u64 = 65_530;
const PAGE: u64 = 4096;

/// A process whose mappings are to be counted.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    pub pid: i32,
    /// Directory in the procfs; a thread's if the first thread has ended.
    pub directory: String,
    /// Size of its mapped address space in bytes.
    pub size: u64,
    /// Number of ancestors to which the kernel may have linked each of its mappings (see `lineage`).
    pub depth: Depth,
}

/// Mappings of each process at the last look.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    processes: BTreeMap<i32, Known>,
    /// The process that was counted last.
    last: i32,
}

#[derive(Debug, Default)]
struct Known {
    depth: Depth,
    /// Mappings at the last complete count.
    counted: u64,
    /// Processor time of the process when that count began; `None` before the first one.
    since: Option<Duration>,
    unfinished: Option<Count>,
}

/// A count that a look could not finish.
#[derive(Debug)]
struct Count {
    file: OwnedFd,
    lines: u64,
    began: Option<Duration>,
}

/// Result of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    /// Some processes must still be counted.
    Unfinished,
}

impl Mappings {
    /// Returns the bytes of kernel objects for the counted mappings.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = |known: &Known| known.mappings().saturating_mul(each(known.depth.known));
        self.processes.values().map(bytes).fold(0, u64::saturating_add)
    }

    /// Returns the maximum bytes of links with ancestors that no look has found.
    pub(crate) fn possible_links(&self) -> u64 {
        let bytes = |known: &Known| {
            let unseen = known.depth.possible.saturating_sub(known.depth.known);
            known.mappings().saturating_mul(unseen.saturating_mul(BYTES_PER_LINK))
        };
        self.processes.values().map(bytes).fold(0, u64::saturating_add)
    }

    /// Returns the number of mappings of one process, as far as they were counted.
    pub(crate) fn count_of(&self, pid: i32) -> u64 {
        self.processes.get(&pid).map_or(0, Known::mappings)
    }

    /// Counts the mappings of those `processes` that may have changed by a considerable part of `room`, the
    /// bytes that the cell may still use.
    pub(crate) fn count(&mut self, proc: &OwnedFd, processes: &[Process], room: u64) -> Progress {
        let until = Instant::now() + BUDGET;
        self.processes.retain(|pid, _| processes.iter().any(|process| process.pid == *pid));
        for process in processes {
            self.processes.entry(process.pid).or_default().depth = process.depth;
        }
        let patience = patience(room, processes.len());
        let (before, after): (Vec<&Process>, Vec<&Process>) =
            processes.iter().partition(|process| process.pid <= self.last);
        for process in after.into_iter().chain(before) {
            let known = self.processes.entry(process.pid).or_default();
            let patience = match process.depth.possible {
                0 => patience,
                _ => patience / LINK_SPEED_FACTOR,
            };
            // An exiting process shows no mappings, and keeps its last count until they are gone.
            if process.size == 0 || !known.is_due(process.pid, patience) {
                continue;
            }
            if Instant::now() >= until {
                return Progress::Unfinished;
            }
            self.last = process.pid;
            if known.continue_count(proc, process, until) == Progress::Unfinished {
                // The next look continues with the same process.
                self.last = process.pid.saturating_sub(1);
                return Progress::Unfinished;
            }
        }
        Progress::Done
    }
}

/// Returns the maximum bytes of kernel objects for the mappings of `processes`.
pub(crate) fn max_bytes(processes: &[Process]) -> u64 {
    let bytes =
        |process: &Process| max_mappings(process).saturating_mul(each(process.depth.possible));
    processes.iter().map(bytes).fold(0, u64::saturating_add)
}

/// Returns the maximum number of mappings of a process: one for each page.
fn max_mappings(process: &Process) -> u64 {
    (process.size / PAGE).min(MAX_MAPPINGS)
}

/// Returns the bytes for one mapping with links to this number of ancestors.
fn each(ancestors: u64) -> u64 {
    ancestors.saturating_mul(BYTES_PER_LINK).saturating_add(BYTES_PER_MAPPING)
}

/// Returns the processor time in which this number of processes together can use up an eighth of `room`.
fn patience(room: u64, processes: usize) -> Duration {
    let share = room / 8 / u64::try_from(processes).unwrap_or(u64::MAX).max(1);
    Duration::from_micros(share.saturating_mul(1000) / BYTES_PER_MILLISECOND)
}

impl Known {
    fn mappings(&self) -> u64 {
        let so_far = self.unfinished.as_ref().map_or(0, |count| count.lines);
        self.counted.max(so_far)
    }

    /// Returns true if the process has used more processor time than `patience` since it was counted.
    fn is_due(&self, pid: i32, patience: Duration) -> bool {
        if self.unfinished.is_some() {
            return true;
        }
        match (self.since, processor_time(pid)) {
            (Some(since), Some(now)) if now >= since => now - since > patience,
            // Either another process has the pid now, or the process is new and may have the mappings of its
            // parent.
            (Some(_) | None, Some(_)) => true,
            // The process has ended.
            (_, None) => false,
        }
    }

    /// Continues a count or begins one, until it is complete or `until` has come.
    fn continue_count(&mut self, proc: &OwnedFd, process: &Process, until: Instant) -> Progress {
        let began = processor_time(process.pid);
        let path = format!("{}/maps", process.directory);
        let count = match self.unfinished.take() {
            Some(count) => Ok(count),
            None => openat(proc, path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
                .map(|file| Count { file, lines: 0, began }),
        };
        let Ok(mut count) = count else {
            // The process made itself unreadable, or has ended: then this look is the last to see it.
            self.counted = max_mappings(process);
            self.since = began;
            return Progress::Done;
        };
        let mut buffer = [0; 8192];
        loop {
            // The rest is empty if the process has ended.
            let length = read(&count.file, &mut buffer).unwrap_or(0);
            if length == 0 {
                // An empty file of a process with memory: the thread that was read has ended.
                let is_complete = count.lines > 0 || process.size == 0;
                self.counted = if is_complete { count.lines } else { max_mappings(process) };
                self.since = count.began;
                return Progress::Done;
            }
            let text = buffer.get(..length).unwrap_or_default();
            let lines = text.iter().filter(|byte| **byte == b'\n').count();
            count.lines = count.lines.saturating_add(u64::try_from(lines).unwrap_or(0));
            if Instant::now() >= until {
                self.unfinished = Some(count);
                return Progress::Unfinished;
            }
        }
    }
}

/// Returns the processor time of a process with all its threads; `None` if it has ended.
fn processor_time(pid: i32) -> Option<Duration> {
    // CPUCLOCK_SCHED of the process, as clock_getcpuclockid(3) makes it.
    let clock = ClockId::from_raw((!pid) << 3 | 2);
    clock_gettime(clock).ok().map(Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> OwnedFd {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        nix::fcntl::open("/proc", flags, Mode::empty()).unwrap_or_else(|errno| panic!("{errno}"))
    }

    fn this_process() -> Process {
        let pid = i32::try_from(std::process::id()).unwrap_or_default();
        Process { pid, directory: "self".to_owned(), size: 1 << 30, depth: Depth::default() }
    }

    fn lines() -> u64 {
        let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        u64::try_from(text.lines().count()).unwrap_or_default()
    }

    #[test]
    fn a_process_is_charged_for_each_of_its_mappings() {
        let mut mappings = Mappings::default();
        let proc = here();
        while mappings.count(&proc, &[this_process()], 0) == Progress::Unfinished {}
        let counted = mappings.bytes() / BYTES_PER_MAPPING;
        // Other tests of this process come and go.
        assert!(counted > 10 && counted.abs_diff(lines()) < 200, "{counted}");
    }

    #[test]
    fn a_process_that_can_have_made_few_since_is_not_counted_again() {
        let mut mappings = Mappings::default();
        let proc = here();
        while mappings.count(&proc, &[this_process()], 0) == Progress::Unfinished {}
        let unreadable = Process { directory: "none".to_owned(), ..this_process() };
        let counted = mappings.bytes();
        assert_eq!(
            mappings.count(&proc, std::slice::from_ref(&unreadable), u64::MAX),
            Progress::Done
        );
        assert_eq!(mappings.bytes(), counted, "it has not run for so long");
        // The control: it has run for a moment.
        while mappings.count(&proc, std::slice::from_ref(&unreadable), 0) == Progress::Unfinished {}
        assert_ne!(mappings.bytes(), counted);
    }

    #[test]
    fn a_process_that_cannot_be_read_counts_as_if_each_page_were_a_mapping() {
        let mut mappings = Mappings::default();
        let proc = here();
        let unreadable = |size| Process { directory: "none".to_owned(), size, ..this_process() };
        while mappings.count(&proc, &[unreadable(40 << 12)], 0) == Progress::Unfinished {}
        assert_eq!(mappings.bytes(), 40 * BYTES_PER_MAPPING);
        let mut mappings = Mappings::default();
        while mappings.count(&proc, &[unreadable(1 << 40)], 0) == Progress::Unfinished {}
        assert_eq!(mappings.bytes(), MAX_MAPPINGS * BYTES_PER_MAPPING);
    }

    #[test]
    fn a_process_that_shows_no_mapping_counts_as_if_each_page_were_one() -> std::io::Result<()> {
        let directory = tempfile::tempdir()?;
        std::fs::write(directory.path().join("maps"), "")?;
        let proc = OwnedFd::from(std::fs::File::open(directory.path())?);
        let empty = |size| Process { directory: ".".to_owned(), size, ..this_process() };
        let counted = |process: Process| {
            let mut mappings = Mappings::default();
            while mappings.count(&proc, std::slice::from_ref(&process), 0) == Progress::Unfinished {
            }
            mappings.bytes()
        };
        assert_eq!(counted(empty(40 << 12)), 40 * BYTES_PER_MAPPING);
        // The control: one that has no memory.
        assert_eq!(counted(empty(0)), 0);
        Ok(())
    }

    #[test]
    fn an_ended_process_is_forgotten() {
        let mut mappings = Mappings::default();
        let proc = here();
        while mappings.count(&proc, &[this_process()], 0) == Progress::Unfinished {}
        assert_eq!(mappings.count(&proc, &[], 0), Progress::Done);
        assert_eq!(mappings.bytes(), 0);
    }
}
