//! The memory watch: where no cgroup holds a cell's memory, init adds it up and ends the cell.
//!
//! The watch is best-effort, and every reply says so: growth between two looks is not seen. Kernel
//! memory is charged by what can be counted: sockets, mappings, slots for descriptors. Shared memory
//! without a file and segments of System V are counted separately (`shared`, `segments`).
//!
//! `processes` reads what the procfs shows of each process, `maps` counts mappings, `lineage` knows
//! which processes were forked without an exec, and `files` adds up private filesystems.

mod files;
mod lineage;
mod maps;
mod processes;
mod segments;
mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::poll::PollTimeout;

use super::timeout_until;
use crate::bare::Domain;
use crate::report::OverLimit;
use sys::Result;
use sys::process;

use files::private_files;
use lineage::{Lineage, Relation};
use maps::{Mappings, Process, Progress};
use processes::{CellProcfs, Listing, Look, PF_FORKNOEXEC, ProcessStatus, kilobytes};
use segments::Segments;
use shared::{SharedMemory, processor_time};

/// Minimum time between two looks, so that they do not slow a large cell.
const MIN_INTERVAL: Duration = Duration::from_millis(2);
/// Maximum time between two looks, so that the first look at a quick allocator comes in time.
const MAX_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum expected growth: the bytes that one core can touch in a second.
const BYTES_PER_SECOND: u64 = 4 << 30;
/// Maximum number of mappings of a process whose shared pages are measured, which takes some
/// milliseconds.
const MAX_MEASURED_MAPPINGS: u64 = 8192;
/// Maximum size of the page tables of a process whose shared pages are measured: the cell's limit divided
/// by this, but at least a megabyte. A megabyte of tables takes the kernel 7 ms, in which nothing stops the
/// cell.
const MEASURED_TABLES_DIVISOR: u64 = 128;
const MIN_MEASURED_TABLES: u64 = 1 << 20;
/// Maximum processor time of a look for measuring shared pages. The remaining processes count in full.
const SHARES_BUDGET: Duration = Duration::from_millis(250);
/// Maximum number of looks in a row that postpone measuring shared pages, while mappings are being
/// counted.
const MAX_POSTPONED: u32 = 64;
/// Bytes charged for a closed connection in TIME_WAIT, with its port.
const BYTES_PER_CLOSED: u64 = 512;
/// Time for which the shared pages of an exiting process are not charged to it. A program can make its
/// exit slow: with SCHED_IDLE next to busy programs it gets hardly any processor time.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of looks in a row that cannot read the memory of a living process. After that the cell
/// ends, because it hides memory.
const MAX_UNCLEAR: u32 = 4;
/// The watch over one cell's memory.
#[derive(Debug)]
pub(crate) struct Watch {
    procfs: CellProcfs,
    limit: u64,
    /// Bytes charged for each socket; absent if the cell has no sockets, or shares their count with other processes.
    socket: Option<u64>,
    mappings: Mappings,
    lineage: Lineage,
    shared: SharedMemory,
    segments: Segments,
    /// Bytes of the host's kernel objects at the start.
    slab_at_start: u64,
    /// The same at the last complete count of mappings.
    slab: u64,
    /// Looks in a row that postponed measuring shared pages.
    postponed: u32,
    /// Looks in a row that could not read the memory of some living process.
    unclear: u32,
    /// For each process, the looks that could not read its memory, since the last one that could.
    unclear_of: BTreeMap<i32, u32>,
    /// Each process at the last look that read its memory, which is charged while it exits.
    last: BTreeMap<i32, LastKnown>,
    next: Option<Instant>,
    peak: u64,
}

impl Watch {
    /// Makes a watch that does nothing until it is started.
    pub(crate) fn new(
        proc: OwnedFd,
        limit: u64,
        domain: Option<Domain>,
        socket: Option<u64>,
    ) -> Self {
        Self {
            procfs: CellProcfs { proc, domain },
            limit,
            socket,
            mappings: Mappings::default(),
            lineage: Lineage::default(),
            shared: SharedMemory::default(),
            segments: Segments::default(),
            slab_at_start: 0,
            slab: 0,
            postponed: 0,
            unclear: 0,
            unclear_of: BTreeMap::new(),
            last: BTreeMap::new(),
            next: None,
            peak: 0,
        }
    }

    /// Starts looking, with the job's limit.
    pub(crate) fn start(&mut self, limit: u64) {
        self.limit = self.limit.min(limit);
        self.slab_at_start = self.host().slab;
        self.slab = self.slab_at_start;
        self.next = Some(Instant::now() + MIN_INTERVAL);
    }

    /// Returns how long poll(2) may wait before the next look.
    pub(crate) fn timeout(&self) -> PollTimeout {
        self.next.map_or(PollTimeout::NONE, timeout_until)
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| next <= now)
    }

    /// Records that a process of the cell becomes the parent of orphans.
    pub(super) fn expect_subreaper(&mut self) {
        self.lineage.expect_subreaper();
    }

    /// Returns the highest sum so far, in bytes.
    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    /// Adds up the cell's memory. Returns the exceeded limit, if there is one.
    pub(crate) fn exceeded(&mut self, now: Instant) -> Result<Option<OverLimit>> {
        let Listing { mut seen, mut unclear } = self.procfs.processes()?;
        unclear.extend(self.recall(&mut seen, now));
        let is_whole = unclear.is_empty();
        let hides = self.hides(&unclear, &seen);
        // Without its own mounts the cell's files are on a disk.
        let files = if self.procfs.domain.is_none() { private_files() } else { 0 };
        let kernel =
            files + self.sockets() + seen.iter().map(ProcessStatus::descriptor_bytes).sum::<u64>();
        let resident: u64 = seen.iter().map(|process| process.resident).sum();
        let known = kernel.saturating_add(resident).saturating_add(self.mappings.bytes());
        let processes = self.with_depths(&seen);
        let room = self.limit.saturating_sub(known);
        let host = self.host();
        let progress = self.mappings.count(&self.procfs.proc, &processes, room);
        let mappings = self.mapping_bytes(progress, &processes, host.slab);
        let kernel = kernel.saturating_add(mappings);
        let mut used = kernel.saturating_add(resident);
        if progress == Progress::Done {
            self.postponed = 0;
        }
        if used > self.limit && kernel <= self.limit {
            // Measuring a process with many mappings takes long: count mappings first, to know which have many.
            if progress == Progress::Unfinished && self.postponed < MAX_POSTPONED {
                self.postponed += 1;
                used = self.limit;
            } else {
                used = self.with_shares(kernel, &seen);
            }
        }
        self.peak = self.peak.max(used);
        let room = self.limit.saturating_sub(used);
        let micros = room.saturating_mul(1_000_000) / BYTES_PER_SECOND;
        let wait = match progress {
            Progress::Done if !is_whole => MIN_INTERVAL,
            Progress::Done => Duration::from_micros(micros).clamp(MIN_INTERVAL, MAX_INTERVAL),
            // poll(2) waits a millisecond in any case.
            Progress::Unfinished => Duration::ZERO,
        };
        self.next = Some(now + wait);
        Ok(match used > self.limit || hides {
            true => Some(OverLimit::Memory),
            false => host.is_short.then_some(OverLimit::HostMemory),
        })
    }

    /// Returns the bytes to charge for mappings after a count of them, given the size of the host's kernel
    /// objects.
    fn mapping_bytes(&mut self, progress: Progress, processes: &[Process], slab: u64) -> u64 {
        let counted = self.mappings.bytes();
        // Ancestors that no look has found may never have existed: at most the growth of the host's kernel
        // objects is charged for them.
        let grown = slab.saturating_sub(self.slab_at_start).saturating_sub(counted);
        let counted = counted.saturating_add(self.mappings.possible_links().min(grown));
        match progress {
            Progress::Done => {
                self.slab = slab;
                counted
            }
            // The cell may make mappings faster than they are counted. So the uncounted ones are charged with
            // the growth of the host's kernel objects since the last complete count.
            Progress::Unfinished => {
                // Not more than the cell can have: another cell may have made the slab grow.
                let uncounted = maps::max_bytes(processes).saturating_sub(counted);
                counted.saturating_add(slab.saturating_sub(self.slab).min(uncounted))
            }
        }
    }

    /// Reads the host's memory. No mount masks parts of this procfs.
    fn host(&self) -> Host {
        let mut buffer = [0; 4096];
        let Some(text) = self.procfs.text("meminfo", &mut buffer) else { return Host::default() };
        let field = |name: &[u8]| kilobytes(text, &[name]).saturating_mul(1024);
        let total = field(b"MemTotal:");
        let available = field(b"MemAvailable:");
        Host { is_short: available < total / 16, slab: field(b"SUnreclaim:") }
    }

    /// Returns the bytes that the cell's sockets may hold.
    ///
    /// Each is charged the default buffer size of a Unix or datagram socket, which the filter does not allow
    /// to change. A full socket holds at most three times as much: a last packet, and both directions of TCP.
    fn sockets(&self) -> u64 {
        let Some(each) = self.socket else { return 0 };
        let mut buffer = [0; 512];
        // For init's network namespace.
        let Some(text) = self.procfs.text("1/net/sockstat", &mut buffer) else { return 0 };
        let text = String::from_utf8_lossy(text);
        let sockets = number_after(&text, "sockets: used ");
        let closed = number_after(&text, " tw ");
        sockets.saturating_mul(each).saturating_add(closed.saturating_mul(BYTES_PER_CLOSED))
    }

    /// Returns the processes with memory, each with its depth.
    fn with_depths(&mut self, seen: &[ProcessStatus]) -> Vec<Process> {
        let relation =
            |seen: &ProcessStatus| Relation { pid: seen.process.pid, parent: seen.parent };
        let mut lineage = std::mem::take(&mut self.lineage);
        // Reads the flags of the first thread, even if it has ended: all other threads are made with the flag. A
        // process without readable flags counts as one that has executed nothing.
        lineage.update(seen.iter().map(relation).collect(), |pid| {
            let flags = self.procfs.flags(&format!("{pid}/task/{pid}"));
            flags.is_some_and(|flags| flags & PF_FORKNOEXEC == 0)
        });
        self.lineage = lineage;
        let with_memory = seen.iter().filter(|seen| seen.has_memory());
        let process = |seen: &ProcessStatus| Process {
            depth: self.lineage.depth_of(seen.process.pid),
            ..seen.process.clone()
        };
        with_memory.map(process).collect()
    }

    /// Charges each exiting process with its memory at the last look that read it, and remembers the memory
    /// of the others. Returns the processes that seemed to exit but have made threads since.
    fn recall(&mut self, seen: &mut [ProcessStatus], now: Instant) -> Vec<i32> {
        let mut before = std::mem::take(&mut self.last);
        let mut mistaken = Vec::new();
        for one in seen {
            let pid = one.process.pid;
            let last = before.remove(&pid);
            if let Some(ending) = &mut one.ending {
                let last = last.unwrap_or_default();
                if last.threads.is_some_and(|threads| !ending.threads.is_subset(&threads)) {
                    mistaken.push(pid);
                }
                one.resident = last.resident;
                let since = last.ending_since.unwrap_or(now);
                ending.private = match now.duration_since(since) < END_PATIENCE {
                    true => last.share.and_then(|share| share.private),
                    false => last.share.map(|share| share.counted).or(Some(last.resident)),
                };
                let threads = Some(ending.threads.clone());
                self.last.insert(pid, LastKnown { threads, ending_since: Some(since), ..last });
            } else if one.process.size > 0 {
                let resident = one.resident;
                self.last.insert(pid, LastKnown { resident, ..LastKnown::default() });
            }
        }
        mistaken
    }

    /// Counts the looks that could not read the memory of a process. Returns true if there were more than an
    /// exit can explain.
    fn hides(&mut self, unclear: &[i32], seen: &[ProcessStatus]) -> bool {
        self.unclear = if unclear.is_empty() { 0 } else { self.unclear.saturating_add(1) };
        // A process that hides may look like an exiting one at times, which must not reset its count.
        let is_ending =
            |pid: &i32| seen.iter().any(|seen| seen.process.pid == *pid && seen.ending.is_some());
        self.unclear_of.retain(|pid, _| unclear.contains(pid) || is_ending(pid));
        for pid in unclear {
            let looks = self.unclear_of.entry(*pid).or_default();
            *looks = looks.saturating_add(1);
        }
        self.unclear > MAX_UNCLEAR || self.unclear_of.values().any(|looks| *looks > MAX_UNCLEAR)
    }

    /// Returns the bytes of kernel memory and of processes, and counts pages once that several processes
    /// share. Stops once the sum exceeds the limit.
    fn with_shares(&mut self, kernel: u64, seen: &[ProcessStatus]) -> u64 {
        let mut used = kernel;
        let until = processor_time().map(|now| now + SHARES_BUDGET);
        for process in seen {
            if used > self.limit {
                break;
            }
            let pid = process.process.pid;
            let share = if process.ending.is_some() {
                by_last_look(process, seen)
            } else if has_memory_of_parent(process, seen) {
                Share { counted: 0, private: Some(0) }
            } else if until.is_ok_and(|until| processor_time().is_ok_and(|now| now >= until)) {
                self.whole(process, seen)
            } else {
                self.by_share(process, seen)
            };
            used = used.saturating_add(share.counted);
            if let Some(last) = self.last.get_mut(&pid).filter(|_| process.ending.is_none()) {
                last.share = Some(share);
            }
        }
        used
    }

    /// Returns the bytes of a process, with its proportional share of shared pages and all of its page
    /// tables. Returns the whole size if the process is not dumpable, so that its shares cannot be
    /// read, or if that would take too long.
    fn by_share(&self, process: &ProcessStatus, seen: &[ProcessStatus]) -> Share {
        let Process { pid, directory, .. } = &process.process;
        let tables = (self.limit / MEASURED_TABLES_DIVISOR).max(MIN_MEASURED_TABLES);
        if self.mappings.count_of(*pid) > MAX_MEASURED_MAPPINGS || process.tables > tables {
            return self.whole(process, seen);
        }
        let mut buffer = [0; 4096];
        let Some(text) = self.procfs.text(&format!("{directory}/smaps_rollup"), &mut buffer) else {
            return self.whole(process, seen);
        };
        let bytes = |names: &[&[u8]]| {
            kilobytes(text, names).saturating_mul(1024).saturating_add(process.tables)
        };
        let private = bytes(&[b"Private_Dirty:", b"SwapPss:"]);
        Share { counted: bytes(&[b"Pss:", b"SwapPss:"]), private: Some(private) }
    }

    /// Returns the current bytes of a process, with shared pages in full; 0 for one that has ended.
    fn whole(&self, process: &ProcessStatus, seen: &[ProcessStatus]) -> Share {
        let pid = process.process.pid;
        let counted = match self.procfs.process(pid, &pid.to_string()) {
            // The process has begun to exit since: the other processes are charged for shared pages now.
            Look::Seen(now) if now.ending.is_some() => return by_last_look(process, seen),
            Look::Seen(now) => now.resident,
            Look::Gone => 0,
            Look::Unclear => process.resident,
        };
        // The whole is charged while it exits too: otherwise a process whose shares cannot be read could hide
        // its memory by exiting slowly.
        Share { counted, private: Some(counted) }
    }
}

/// Memory of a process at the last look that found it.
#[derive(Debug, Default)]
struct LastKnown {
    /// Bytes, including shared pages.
    resident: u64,
    /// Share of the shared pages, if it was measured.
    share: Option<Share>,
    /// Time of the first look at which it was exiting.
    ending_since: Option<Instant>,
    /// Threads at a look at which it was exiting.
    threads: Option<BTreeSet<i32>>,
}

/// Memory of the host at one look.
#[derive(Debug, Default)]
struct Host {
    /// True if less than a sixteenth of its memory is available.
    ///
    /// Memory that no process maps is not in a cell's sum (unmapped shared pages, epoll items). Without a
    /// cgroup, only this check bounds it.
    is_short: bool,
    /// Bytes of kernel objects that cannot be reclaimed.
    slab: u64,
}

/// Bytes of a process that shares pages with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    counted: u64,
    /// Bytes that it shares with no other process, if known.
    private: Option<u64>,
}

/// Returns the bytes of an exiting process that it shared with no other. If they were never measured, up
/// to the size of the largest other process may be shared, and is not counted.
fn by_last_look(process: &ProcessStatus, seen: &[ProcessStatus]) -> Share {
    let private = process.ending.as_ref().and_then(|ending| ending.private);
    let others = seen.iter().filter(|other| other.process.pid != process.process.pid);
    let largest = others.map(|other| other.resident).max().unwrap_or(0);
    let counted = private.unwrap_or_else(|| process.resident.saturating_sub(largest));
    Share { counted, private }
}

/// Returns true if a process shares its parent's memory, which is counted there: a child of vfork(2) does
/// so until it execs. Returns false if the kernel does not answer.
fn has_memory_of_parent(process: &ProcessStatus, seen: &[ProcessStatus]) -> bool {
    let pid = process.process.pid;
    let parent = process.parent;
    seen.iter().any(|other| other.process.pid == parent)
        && process::have_one_memory(pid, parent).unwrap_or(false)
}

/// Returns the number after `words`; 0 if it is missing.
fn number_after(text: &str, words: &str) -> u64 {
    let behind = text.split_once(words).map_or("", |(_, behind)| behind);
    let digits = behind.split(|letter: char| !letter.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
