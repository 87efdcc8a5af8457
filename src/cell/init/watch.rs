//! The memory watch: where no cgroup holds a cell's memory, init adds it up and ends the cell.
//!
//! It is best-effort and every reply says so: growth between two looks is not seen. Kernel memory is charged by what
//! can be counted: sockets, mappings, places for descriptors. Shared memory without a file is counted separately.

mod lineage;
mod maps;
mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::poll::PollTimeout;
use nix::sys::stat::Mode;
use nix::sys::statfs::statfs;
use nix::unistd::read;

use super::{Cause, Init, Turn};
use crate::bare::Domain;
use crate::report::OverLimit;
use sys::Result;
use sys::process::{self, End, Reaped, Used};

use lineage::{Depth, Lineage, Relation};
use maps::{Mappings, Process, Progress};
use shared::{SharedMemory, processor_time};

/// Looks are at least this far apart, so that a large cell is not slowed by them.
const SHORTEST: Duration = Duration::from_millis(2);
/// And at most this far, so that the first look at a quick allocator comes in time.
const LONGEST: Duration = Duration::from_millis(50);
/// Growth that is expected at most: what one core can touch in a second.
const BYTES_PER_SECOND: u64 = 4 << 30;
/// Bytes charged for each place in a process's table of descriptors, half of what a pipe may hold when its
/// user has many.
const DESCRIPTOR: u64 = 4096;
/// Places that every table has.
const DESCRIPTORS: u64 = 64;
/// Mappings of a process that a look goes through for what is shared: some milliseconds.
const MAPPINGS_LOOKED_THROUGH: u64 = 8192;
/// Part of the cell's memory that the page tables of a process may be for a look to go through what it shares, and the
/// least that counts as much. A megabyte of tables takes the kernel 7 ms, in which nothing stops the cell.
const TABLES_LOOKED_THROUGH: u64 = 128;
const TABLES_OF_ANY: u64 = 1 << 20;
/// Processor time that a look may take for what processes share. Those that it does not come to count whole.
const SHARES_BUDGET: Duration = Duration::from_millis(250);
/// Looks in a row that may leave it open by how much processes share, while mappings are being counted.
const POSTPONED: u32 = 64;
/// Bytes of a connection that is gone and kept in mind (TIME_WAIT), with the port that it holds.
const CLOSED: u64 = 512;
/// Bytes charged for each inode in use of a tmpfs: the inode and its name. The kernel takes attributes of files from the
/// same account, a KiB as one inode (tmpfs(5), Linux 6.6 and later), and holds at most twice as much for them.
const INODE: u64 = 1024;
/// Times that a look lists the threads of a process whose first thread has ended, to find one that shows its memory.
const LISTINGS: u32 = 8;
/// Time that an end may take for pages that others may share to be left out. A program chooses how slow its end is:
/// SCHED_IDLE next to programs that compute leaves it hardly any processor time.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// Looks in a row that may miss the memory of a living process. With more, the cell ends: it hides what it has.
const UNCLEAR: u32 = 4;
/// Flags of a thread that ends, and of a process that has not executed a program since it was forked, in the field of
/// flags of `/proc/PID/stat` (proc_pid_stat(5)).
const PF_EXITING: u64 = 0x4;
const PF_FORKNOEXEC: u64 = 0x40;
/// SIGKILL in a set of signals as `/proc/PID/status` shows it.
const KILL: u64 = 1 << 8;

/// The watch over one cell's memory.
#[derive(Debug)]
pub(crate) struct Watch {
    /// A procfs of the cell's pid namespace.
    proc: OwnedFd,
    /// By what the cell's processes are known, where that shows others as well.
    domain: Option<Domain>,
    limit: u64,
    /// Bytes charged for each socket; absent if the cell has no sockets, or shares their count with other processes.
    socket: Option<u64>,
    mappings: Mappings,
    lineage: Lineage,
    shared: SharedMemory,
    /// Bytes of the host's kernel objects at the start.
    slab_at_start: u64,
    /// The same when all mappings were counted.
    slab: u64,
    /// Looks in a row that left it open what processes share.
    postponed: u32,
    /// Looks in a row that could not read the memory of some living process.
    unclear: u32,
    /// Looks that could not read the memory of a process, and have not seen it since.
    unclear_of: BTreeMap<i32, u32>,
    /// Each process at the last look that found its memory: what counts while it ends.
    last: BTreeMap<i32, LastKnown>,
    next: Option<Instant>,
    peak: u64,
}

impl Init<'_> {
    /// Looks at the cell's memory when it is time to.
    pub(super) fn look_at_memory(&mut self, now: Instant) -> Result<Turn> {
        let Some(watch) = &mut self.watch else { return Ok(Turn::Again) };
        if !watch.is_due(now) {
            return Ok(Turn::Again);
        }
        let Some(why) = watch.exceeded(now)? else { return Ok(Turn::Again) };
        // The payload itself may be waiting for a child: what counts is that the cell ends now.
        let killed =
            Reaped { pid: self.payload.as_raw(), end: End::Signaled(9), used: Used::default() };
        Ok(Turn::End(killed, Cause::OverLimit(why)))
    }
}

impl Watch {
    /// Makes a watch that looks at nothing until it is started.
    pub(crate) fn new(
        proc: OwnedFd,
        limit: u64,
        domain: Option<Domain>,
        socket: Option<u64>,
    ) -> Self {
        Self {
            proc,
            domain,
            limit,
            socket,
            mappings: Mappings::default(),
            lineage: Lineage::default(),
            shared: SharedMemory::default(),
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

    /// Starts looking, with the limit the job has.
    pub(crate) fn start(&mut self, limit: u64) {
        self.limit = self.limit.min(limit);
        self.slab_at_start = self.host().slab;
        self.slab = self.slab_at_start;
        self.next = Some(Instant::now() + SHORTEST);
    }

    /// Returns how long poll(2) may wait before the next look.
    pub(crate) fn timeout(&self) -> PollTimeout {
        let Some(next) = self.next else { return PollTimeout::NONE };
        let wait = next.saturating_duration_since(Instant::now());
        // Rounded up: a timeout of 0 would spin until the instant has come.
        PollTimeout::try_from(wait + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| next <= now)
    }

    /// Takes in that a process of the cell asks to be the parent of orphans.
    pub(super) fn expect_subreaper(&mut self) {
        self.lineage.expect_subreaper();
    }

    /// Returns the most that was seen, in bytes.
    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    /// Adds up the cell's memory. Returns why the cell must end, if it must.
    pub(crate) fn exceeded(&mut self, now: Instant) -> Result<Option<OverLimit>> {
        let Listing { mut seen, mut unclear } = self.processes()?;
        unclear.extend(self.recall(&mut seen, now));
        let is_whole = unclear.is_empty();
        let hides = self.hides(&unclear, &seen);
        // Without its own mounts the cell's files are on a disk.
        let files = if self.domain.is_none() { private_files() } else { 0 };
        let kernel = files + self.sockets() + seen.iter().map(Seen::descriptors).sum::<u64>();
        let resident: u64 = seen.iter().map(|process| process.resident).sum();
        let known = kernel.saturating_add(resident).saturating_add(self.mappings.bytes());
        let processes = self.with_depths(&seen);
        let room = self.limit.saturating_sub(known);
        let host = self.host();
        let progress = self.mappings.count(&self.proc, &processes, room);
        let mappings = self.of_mappings(progress, &processes, host.slab);
        let kernel = kernel.saturating_add(mappings);
        let mut used = kernel.saturating_add(resident);
        if progress == Progress::Done {
            self.postponed = 0;
        }
        if used > self.limit && kernel <= self.limit {
            // Going through a process with many mappings takes long: first it is known who has them.
            if progress == Progress::Unfinished && self.postponed < POSTPONED {
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
            Progress::Done if !is_whole => SHORTEST,
            Progress::Done => Duration::from_micros(micros).clamp(SHORTEST, LONGEST),
            // poll(2) waits a millisecond all the same.
            Progress::Unfinished => Duration::ZERO,
        };
        self.next = Some(now + wait);
        Ok(match used > self.limit || hides {
            true => Some(OverLimit::Memory),
            false => host.is_short.then_some(OverLimit::HostMemory),
        })
    }

    /// Returns the bytes to charge for mappings after a count of them, where the host's kernel objects have `slab` bytes.
    fn of_mappings(&mut self, progress: Progress, processes: &[Process], slab: u64) -> u64 {
        let counted = self.mappings.bytes();
        // Ancestors that no look has found may never have been: what the host's kernel has not got for them is not charged.
        let grown = slab.saturating_sub(self.slab_at_start).saturating_sub(counted);
        let counted = counted.saturating_add(self.mappings.possible_links().min(grown));
        match progress {
            Progress::Done => {
                self.slab = slab;
                counted
            }
            // Makers may be faster than who counts. So what is not counted yet is charged with what the host's
            // kernel has more since all was.
            Progress::Unfinished => {
                // Bytes that were counted are not charged again: another cell may have made the
                // slab grow meanwhile.
                let uncounted = maps::most(processes).saturating_sub(counted);
                counted.saturating_add(slab.saturating_sub(self.slab).min(uncounted))
            }
        }
    }

    /// Reads the host's own memory: the procfs held here is masked by nothing.
    fn host(&self) -> Host {
        let mut buffer = [0; 4096];
        let Some(text) = self.text("meminfo", &mut buffer) else { return Host::default() };
        let field = |name: &[u8]| kilobytes(text, &[name]).saturating_mul(1024);
        let total = field(b"MemTotal:");
        let available = field(b"MemAvailable:");
        Host { is_short: available < total / 16, slab: field(b"SUnreclaim:") }
    }

    /// Returns the bytes that the cell's sockets may hold.
    ///
    /// Each is charged what a Unix or datagram socket may send or receive at first, which the filter does not let it
    /// change. One that is full holds at most three times as much: a last packet, and both directions of TCP.
    fn sockets(&self) -> u64 {
        let Some(each) = self.socket else { return 0 };
        let mut buffer = [0; 512];
        // Of init's own network namespace.
        let Some(text) = self.text("1/net/sockstat", &mut buffer) else { return 0 };
        let text = String::from_utf8_lossy(text);
        let sockets = number_after(&text, "sockets: used ");
        let closed = number_after(&text, " tw ");
        sockets.saturating_mul(each).saturating_add(closed.saturating_mul(CLOSED))
    }

    /// Returns all processes of the cell.
    fn processes(&self) -> Result<Listing> {
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

    /// Reads the status of a process. If its first thread has ended and others continue, only their status
    /// shows the memory.
    fn process(&self, pid: i32, directory: &str) -> Look {
        for _ in 0..LISTINGS {
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
                return Look::Seen(Seen { ending, ..seen });
            }
            let threads = self.threads(directory);
            // Listed last is what was made last, and lives most likely.
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
                return Look::Seen(Seen {
                    ending: Some(Ending { threads, ..Ending::default() }),
                    ..seen
                });
            }
            // A thread that was listed has made another before it ended: that one is in the next list.
        }
        Look::Unclear
    }

    /// Lists the threads of a process in the order in which they were made. One that ends meanwhile may cut the list short.
    fn threads(&self, directory: &str) -> Vec<i32> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let path = format!("{directory}/task");
        let opened = Dir::openat(&self.proc, path.as_str(), flags, Mode::empty());
        let Ok(threads) = opened else { return Vec::new() };
        let number = |entry: nix::Result<nix::dir::Entry>| {
            entry.ok()?.file_name().to_str().ok()?.parse().ok()
        };
        threads.into_iter().filter_map(number).collect()
    }

    fn thread(&self, pid: i32, directory: &str, thread: i32) -> Look {
        let path = format!("{directory}/task/{thread}");
        match self.status(pid, &path) {
            Look::Seen(seen) if seen.process.size == 0 && !seen.is_exiting => {
                Look::Seen(Seen { is_exiting: self.is_exiting(&path), ..seen })
            }
            other @ (Look::Seen(_) | Look::Gone | Look::Unclear) => other,
        }
    }

    /// Returns true if a process has no other threads than those of a list: an end makes no more, and the kernel's count
    /// shows a list that was cut short.
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

    /// Returns the processes with memory, each with its depth.
    fn with_depths(&mut self, seen: &[Seen]) -> Vec<Process> {
        let relation = |seen: &Seen| Relation { pid: seen.process.pid, parent: seen.parent };
        let mut lineage = std::mem::take(&mut self.lineage);
        // Of its first thread, also where that has ended: every other is made with the flag. One that shows none counts as
        // if it had executed nothing.
        lineage.update(seen.iter().map(relation).collect(), |pid| {
            let flags = self.flags(&format!("{pid}/task/{pid}"));
            flags.is_some_and(|flags| flags & PF_FORKNOEXEC == 0)
        });
        self.lineage = lineage;
        let with_memory = seen.iter().filter(|seen| seen.has_memory());
        let process = |seen: &Seen| Process {
            depth: self.lineage.of(seen.process.pid),
            ..seen.process.clone()
        };
        with_memory.map(process).collect()
    }

    /// Returns whether the flags of a thread show that it ends.
    fn is_exiting(&self, directory: &str) -> bool {
        self.flags(directory).is_some_and(|flags| flags & PF_EXITING != 0)
    }

    /// Returns the kernel's flags of a thread.
    fn flags(&self, directory: &str) -> Option<u64> {
        let mut buffer = [0; 1024];
        let text = self.text(&format!("{directory}/stat"), &mut buffer)?;
        // The name of a program may have spaces and parentheses.
        let text = String::from_utf8_lossy(text);
        let (_, fields) = text.rsplit_once(')')?;
        fields.split_ascii_whitespace().nth(6)?.parse().ok()
    }

    /// Charges each ending process with what it had when its memory was seen last, and remembers the others. Returns
    /// the processes that were taken for ending ones and have made threads since.
    fn recall(&mut self, seen: &mut [Seen], now: Instant) -> Vec<i32> {
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

    /// Counts looks that could not read the memory of a process. Returns true if there were more than its end explains.
    fn hides(&mut self, unclear: &[i32], seen: &[Seen]) -> bool {
        self.unclear = if unclear.is_empty() { 0 } else { self.unclear.saturating_add(1) };
        // Threads that hide are taken for an end now and then: that does not begin the count of a process again.
        let is_ending =
            |pid: &i32| seen.iter().any(|seen| seen.process.pid == *pid && seen.ending.is_some());
        self.unclear_of.retain(|pid, _| unclear.contains(pid) || is_ending(pid));
        for pid in unclear {
            let looks = self.unclear_of.entry(*pid).or_default();
            *looks = looks.saturating_add(1);
        }
        self.unclear > UNCLEAR || self.unclear_of.values().any(|looks| *looks > UNCLEAR)
    }

    fn status(&self, pid: i32, directory: &str) -> Look {
        let mut buffer = [0; 4096];
        let text = match self.read_text(&format!("{directory}/status"), &mut buffer) {
            Ok(text) => text,
            Err(Errno::ENOENT | Errno::ESRCH) => return Look::Gone,
            Err(_) => return Look::Unclear,
        };
        let bytes = |names: &[&[u8]]| kilobytes(text, names).saturating_mul(1024);
        Look::Seen(Seen {
            process: Process {
                pid,
                directory: directory.to_owned(),
                size: bytes(&[b"VmSize:"]),
                depth: Depth::default(),
            },
            resident: bytes(&[b"RssAnon:", b"RssShmem:", b"VmPTE:", b"VmSwap:"]),
            tables: bytes(&[b"VmPTE:"]),
            places: kilobytes(text, &[b"FDSize:"]),
            parent: i32::try_from(kilobytes(text, &[b"PPid:"])).unwrap_or(0),
            threads: kilobytes(text, &[b"Threads:"]),
            is_zombie: [b"State:\tZ", b"State:\tX"].iter().any(|state| has_line(text, *state)),
            is_exiting: has_pending_kill(text),
            ending: None,
        })
    }

    /// Returns the bytes of kernel memory and of processes, pages that several of these share counted once. Stops once the
    /// sum exceeds the limit.
    fn with_shares(&mut self, kernel: u64, seen: &[Seen]) -> u64 {
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

    /// Returns the bytes of a process, pages that it shares by its part of them.
    ///
    /// Refused where the process made itself non-dumpable, and too slow where it has many mappings or page tables: then
    /// its whole size counts. Page tables are no share of anything: each process has its own.
    fn by_share(&self, process: &Seen, seen: &[Seen]) -> Share {
        let Process { pid, directory, .. } = &process.process;
        let tables = (self.limit / TABLES_LOOKED_THROUGH).max(TABLES_OF_ANY);
        if self.mappings.of(*pid) > MAPPINGS_LOOKED_THROUGH || process.tables > tables {
            return self.whole(process, seen);
        }
        let mut buffer = [0; 4096];
        let Some(text) = self.text(&format!("{directory}/smaps_rollup"), &mut buffer) else {
            return self.whole(process, seen);
        };
        let bytes = |names: &[&[u8]]| {
            kilobytes(text, names).saturating_mul(1024).saturating_add(process.tables)
        };
        let private = bytes(&[b"Private_Dirty:", b"SwapPss:"]);
        Share { counted: bytes(&[b"Pss:", b"SwapPss:"]), private: Some(private) }
    }

    /// Returns the current bytes of a process, with shared pages in full; 0 for one that has ended.
    fn whole(&self, process: &Seen, seen: &[Seen]) -> Share {
        let pid = process.process.pid;
        let counted = match self.process(pid, &pid.to_string()) {
            // It has begun to end since: what it shares is the others' by now.
            Look::Seen(now) if now.ending.is_some() => return by_last_look(process, seen),
            Look::Seen(now) => now.resident,
            Look::Gone => 0,
            Look::Unclear => process.resident,
        };
        // It counts as much while it ends: else one whose shares are never looked at hid its memory by ending slowly.
        Share { counted, private: Some(counted) }
    }

    /// Reads the beginning of a file of the procfs; `None` if it does not exist or is empty.
    fn text<'b>(&self, path: &str, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        self.read_text(path, buffer).ok().filter(|text| !text.is_empty())
    }

    /// Reads the beginning of a file of the procfs. It is bytes: a program names itself as it likes.
    fn read_text<'b>(&self, path: &str, buffer: &'b mut [u8]) -> Result<&'b [u8]> {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let fd = openat(self.proc.as_fd(), path, flags, Mode::empty())?;
        let length = read(&fd, buffer)?;
        Ok(buffer.get(..length).unwrap_or_default())
    }
}

/// The processes of a cell as a look found them.
#[derive(Debug)]
struct Listing {
    seen: Vec<Seen>,
    /// Living processes whose memory could not be read.
    unclear: Vec<i32>,
}

/// Memory of a process at the last look that found it.
#[derive(Debug, Default)]
struct LastKnown {
    /// Bytes, pages that it shared among them.
    resident: u64,
    /// Its bytes where others share its pages, if that was looked at.
    share: Option<Share>,
    /// When a look first took it for an ending process.
    ending_since: Option<Instant>,
    /// Its threads at a look that took it for an ending process.
    threads: Option<BTreeSet<i32>>,
}

/// An end of a process: all its threads end, and its memory is not free yet.
#[derive(Debug, Default)]
struct Ending {
    threads: BTreeSet<i32>,
    /// Bytes that it shared with no other process, if that was looked at before. After [`END_PATIENCE`] those of its
    /// share, or all.
    private: Option<u64>,
}

/// One process in a look.
#[derive(Debug)]
enum Look {
    Seen(Seen),
    /// It has ended, and has no memory.
    Gone,
    /// It lives, and its memory could not be read.
    Unclear,
}

/// Findings of one look that concern the host.
#[derive(Debug, Default)]
struct Host {
    /// It is about to run out: less than a sixteenth of its memory is left.
    ///
    /// Memory that no process maps is not in a cell's sum (shared pages let go, epoll items). Without a
    /// cgroup, this check alone bounds it.
    is_short: bool,
    /// Bytes of the kernel's own objects that it cannot do without.
    slab: u64,
}

/// A process as a look found it.
#[derive(Debug)]
struct Seen {
    process: Process,
    /// Bytes of its memory, including shared pages, and of its page tables.
    resident: u64,
    /// Bytes of page tables.
    tables: u64,
    /// Size of its table of descriptors.
    places: u64,
    /// Its parent, in the numbers of the procfs.
    parent: i32,
    threads: u64,
    /// It has ended, and its parent has not waited for it.
    is_zombie: bool,
    /// The thread that was read ends: PF_EXITING, or a SIGKILL that is pending.
    is_exiting: bool,
    /// Present where the whole process ends and its memory is not free yet.
    ending: Option<Ending>,
}

impl Seen {
    fn has_memory(&self) -> bool {
        self.process.size > 0 || self.ending.is_some()
    }

    /// Returns the bytes charged for what its descriptors may hold. Init's table is as large as the supervisor's
    /// was.
    fn descriptors(&self) -> u64 {
        let places = if self.process.pid == 1 { 0 } else { self.places };
        places.saturating_sub(DESCRIPTORS).saturating_mul(DESCRIPTOR)
    }
}

/// Bytes of a process where others share its pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    counted: u64,
    /// Bytes that it shares with no other process, where that is known.
    private: Option<u64>,
}

/// Returns the bytes of an ending process: what it shared with no other. Where that was never looked at, the others may
/// have as much of it as the largest of them has.
fn by_last_look(process: &Seen, seen: &[Seen]) -> Share {
    let private = process.ending.as_ref().and_then(|ending| ending.private);
    let others = seen.iter().filter(|other| other.process.pid != process.process.pid);
    let largest = others.map(|other| other.resident).max().unwrap_or(0);
    let counted = private.unwrap_or_else(|| process.resident.saturating_sub(largest));
    Share { counted, private }
}

/// Returns true if a process shares its parent's memory, which is counted there: a child of vfork(2) does so
/// until it execs. If the kernel does not say, it does not.
fn has_memory_of_parent(process: &Seen, seen: &[Seen]) -> bool {
    let pid = process.process.pid;
    let parent = process.parent;
    seen.iter().any(|other| other.process.pid == parent)
        && process::have_one_memory(pid, parent).unwrap_or(false)
}

fn has_line(text: &[u8], beginning: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').any(|line| line.starts_with(beginning))
}

/// Returns whether a `/proc/PID/status` shows a pending SIGKILL, of the thread or of its process.
fn has_pending_kill(text: &[u8]) -> bool {
    let lines = text.split(|byte| *byte == b'\n');
    let mut sets = lines.filter_map(|line| {
        let set = line.strip_prefix(b"SigPnd:\t").or_else(|| line.strip_prefix(b"ShdPnd:\t"))?;
        u64::from_str_radix(std::str::from_utf8(set).ok()?, 16).ok()
    });
    sets.any(|set| set & KILL != 0)
}

/// Sums up the numbers of the lines that begin with one of `wanted`.
fn kilobytes(text: &[u8], wanted: &[&[u8]]) -> u64 {
    let lines = text.split(|byte| *byte == b'\n');
    let numbers = lines.filter(|line| wanted.iter().any(|name| line.starts_with(name)));
    let second =
        |line| std::str::from_utf8(line).ok()?.split_ascii_whitespace().nth(1)?.parse::<u64>().ok();
    numbers.filter_map(second).sum::<u64>()
}

/// Returns the number after `words`; 0 if it is missing.
fn number_after(text: &str, words: &str) -> u64 {
    let behind = text.split_once(words).map_or("", |(_, behind)| behind);
    let digits = behind.split(|letter: char| !letter.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Returns the bytes in the cell's private filesystems, which are memory too, and those of their inodes.
fn private_files() -> u64 {
    ["/tmp", "/dev/shm", "/workspace"]
        .into_iter()
        .filter_map(|path| {
            let filesystem = statfs(path).ok()?;
            // A granted directory is on a disk: only tmpfs is memory.
            if filesystem.filesystem_type() != nix::sys::statfs::TMPFS_MAGIC {
                return None;
            }
            let used = filesystem.blocks().saturating_sub(filesystem.blocks_free());
            let size = u64::try_from(filesystem.block_size()).ok()?;
            let inodes = filesystem.files().saturating_sub(filesystem.files_free());
            Some(used.saturating_mul(size).saturating_add(inodes.saturating_mul(INODE)))
        })
        .sum()
}

#[cfg(test)]
mod tests;
