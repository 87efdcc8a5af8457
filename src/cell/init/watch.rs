//! The memory watch: where no cgroup holds a cell's memory, init adds it up and ends the cell.
//!
//! It is best-effort and every reply says so: growth between two looks is not seen. Kernel memory is charged by what
//! can be counted: sockets, mappings, places for descriptors. Shared memory without a file has an account of its own.

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
/// Flag of a thread that ends, in the field of flags of `/proc/PID/stat` (proc_pid_stat(5)).
const PF_EXITING: u64 = 0x4;
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
    /// Bytes charged for each socket; absent where sockets are not the cell's alone, or it has none.
    socket: Option<u64>,
    mappings: Mappings,
    shared: SharedMemory,
    /// Bytes of the host's kernel objects when all mappings were counted.
    slab: u64,
    /// Looks in a row that left it open what processes share.
    postponed: u32,
    /// Looks in a row that could not tell the memory of a living process, whichever it was.
    unclear: u32,
    /// Looks that could not tell the memory of a process, and have not seen it since.
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
            shared: SharedMemory::default(),
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
        self.slab = self.host().slab;
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
        // Without mounts of its own the cell's files are on a disk.
        let files = if self.domain.is_none() { private_files() } else { 0 };
        let kernel = files + self.sockets() + seen.iter().map(Seen::descriptors).sum::<u64>();
        let resident: u64 = seen.iter().map(|process| process.resident).sum();
        let known = kernel.saturating_add(resident).saturating_add(self.mappings.bytes());
        let processes: Vec<Process> =
            seen.iter().filter(|seen| seen.has_memory()).map(|seen| seen.process.clone()).collect();
        let room = self.limit.saturating_sub(known);
        let host = self.host();
        let progress = self.mappings.count(&self.proc, &processes, room);
        let mappings = match progress {
            Progress::Done => {
                self.slab = host.slab;
                self.mappings.bytes()
            }
            // Makers may be faster than who counts. So what is not counted yet is charged with what the host's
            // kernel has more since all was.
            Progress::Unfinished => {
                // Bytes that were counted are not charged again: another cell may have made the
                // slab grow meanwhile.
                let counted = self.mappings.bytes();
                let uncounted = maps::most(&processes).saturating_sub(counted);
                let more = host.slab.saturating_sub(self.slab).min(uncounted);
                counted.saturating_add(more)
            }
        };
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

    /// Reads the host's own memory: the procfs held here is masked by nothing.
    fn host(&self) -> Host {
        let mut buffer = [0; 4096];
        let Some(text) = self.text("meminfo", &mut buffer) else { return Host::default() };
        let field = |name: &[u8]| kilobytes(text, &[name]).saturating_mul(1024);
        let (total, available) = (field(b"MemTotal:"), field(b"MemAvailable:"));
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
                Look::Seen(Seen { is_exiting: self.has_exiting_flag(&path), ..seen })
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

    /// Returns whether the flags of a thread show that it ends.
    fn has_exiting_flag(&self, directory: &str) -> bool {
        let mut buffer = [0; 1024];
        let path = format!("{directory}/stat");
        let Some(text) = self.text(&path, &mut buffer) else { return false };
        // The name of a program may have spaces and parentheses.
        let text = String::from_utf8_lossy(text);
        let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
        let flags = fields.split_ascii_whitespace().nth(6).and_then(|flags| flags.parse().ok());
        flags.is_some_and(|flags: u64| flags & PF_EXITING != 0)
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

    /// Counts looks that could not tell the memory of a process. Returns true if there were more than an end explains.
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
            process: Process { pid, directory: directory.to_owned(), size: bytes(&[b"VmSize:"]) },
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

    /// Returns the bytes of a process, pages that it shares in full, as it is now: one that has ended since has none.
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

    /// Reads the beginning of a file of the procfs; none if it does not exist or is empty.
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
    /// Living processes whose memory could not be told.
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
    /// It lives, and its memory could not be told.
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
    /// Bytes of memory of its own, pages that it shares among them, and of page tables.
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
    let (pid, parent) = (process.process.pid, process.parent);
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

/// Returns the number behind `words`; 0 where there is none.
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
mod tests {
    use std::fs;

    use super::*;

    const MIB: u64 = 1 << 20;
    /// Above all that the filesystems of the machine that runs this may hold.
    const LIMIT: u64 = 1 << 50;

    /// A procfs of files: one process, which is this one, with mappings that take several looks to count.
    struct Procfs(tempfile::TempDir);

    impl Procfs {
        fn new(size: u64) -> std::io::Result<Self> {
            let own = Self(tempfile::tempdir()?);
            let process = own.0.path().join(std::process::id().to_string());
            fs::create_dir(&process)?;
            let status = format!("VmSize: {} kB\nFDSize: 64\nPPid: 1\nThreads: 1\n", size >> 10);
            fs::write(process.join("status"), status)?;
            // Without the end of a line, so that it takes time and counts as nothing.
            fs::File::create(process.join("maps"))?.set_len(1 << 30)?;
            own.host(16 << 30, 100 * MIB)?;
            Ok(own)
        }

        /// The host's memory: `available` of 16 GiB, and the kernel's objects.
        fn host(&self, available: u64, slab: u64) -> std::io::Result<()> {
            let (total, available, slab) = ((16_u64 << 30) >> 10, available >> 10, slab >> 10);
            let text = format!(
                "MemTotal: {total} kB\nMemAvailable: {available} kB\nSUnreclaim: {slab} kB\n"
            );
            fs::write(self.0.path().join("meminfo"), text)
        }

        fn watch(&self) -> std::io::Result<Watch> {
            let mut watch = Watch::new(fs::File::open(self.0.path())?.into(), LIMIT, None, None);
            watch.start(LIMIT);
            Ok(watch)
        }
    }

    fn look(watch: &mut Watch) -> std::io::Result<Option<OverLimit>> {
        watch.exceeded(Instant::now()).map_err(std::io::Error::from)
    }

    #[test]
    fn a_host_that_runs_out_is_told_from_a_limit() -> std::io::Result<()> {
        let procfs = Procfs::new(MIB)?;
        assert_eq!(look(&mut procfs.watch()?)?, None);
        procfs.host(MIB, 100 * MIB)?;
        assert_eq!(look(&mut procfs.watch()?)?, Some(OverLimit::HostMemory));
        let mut watch = procfs.watch()?;
        watch.limit = 0;
        watch.shared = SharedMemory::default();
        procfs.host(16 << 30, 1 << 40)?;
        assert_eq!(look(&mut watch)?, Some(OverLimit::Memory));
        Ok(())
    }

    /// A process whose first thread has ended, with `threads` that are in no list.
    fn without_first_thread(threads: u32) -> std::io::Result<Procfs> {
        let procfs = Procfs::new(MIB)?;
        let process = procfs.0.path().join(std::process::id().to_string());
        let status = format!("FDSize: 64\nPPid: 1\nThreads: {threads}\n");
        fs::write(process.join("status"), status)?;
        fs::create_dir(process.join("task"))?;
        Ok(procfs)
    }

    #[test]
    fn a_process_whose_memory_cannot_be_told_ends_the_cell_and_gives_nothing_back()
    -> std::io::Result<()> {
        let procfs = without_first_thread(2)?;
        let mut watch = procfs.watch()?;
        assert_eq!(watch.shared_objects()?, None);
        for _ in 0..UNCLEAR {
            assert_eq!(look(&mut watch)?, None);
        }
        assert_eq!(look(&mut watch)?, Some(OverLimit::Memory));
        // The control: a process that has ended, and its parent has not waited for it.
        let procfs = without_first_thread(1)?;
        let mut watch = procfs.watch()?;
        assert_eq!(watch.shared_objects()?, Some(std::collections::BTreeSet::new()));
        for _ in 0..=UNCLEAR {
            assert_eq!(look(&mut watch)?, None);
        }
        Ok(())
    }

    impl Procfs {
        fn process(&self) -> std::path::PathBuf {
            self.0.path().join(std::process::id().to_string())
        }

        /// Rewrites the status of the process, and makes a thread of each number in `threads` that ends: a flag of
        /// the kernel shows it.
        fn ends(&self, state: char, threads: &[u32]) -> std::io::Result<()> {
            let count = threads.len().max(1);
            let status = format!("State:\t{state}\nFDSize: 0\nPPid: 1\nThreads: {count}\n");
            let task = self.process().join("task");
            if task.exists() {
                fs::remove_dir_all(&task)?;
            }
            for thread in threads {
                let place = task.join(thread.to_string());
                fs::create_dir_all(&place)?;
                fs::write(place.join("status"), &status)?;
                fs::write(place.join("stat"), format!("{thread} (a) b) R 1 1 1 0 -1 4 0\n"))?;
            }
            fs::write(self.process().join("status"), status)
        }
    }

    /// A watch that has seen half of a MiB of the process.
    fn with_memory(procfs: &Procfs) -> std::io::Result<Watch> {
        let status = "State:\tR\nVmSize: 1024 kB\nRssAnon: 512 kB\nFDSize: 64\nThreads: 2\n";
        fs::write(procfs.process().join("status"), status)?;
        let mut watch = procfs.watch()?;
        look(&mut watch)?;
        Ok(watch)
    }

    /// Bytes that a look charges for processes, and the processes that it could not tell.
    fn recalled(watch: &mut Watch) -> std::io::Result<(u64, usize)> {
        let Listing { mut seen, mut unclear } = watch.processes().map_err(std::io::Error::from)?;
        unclear.extend(watch.recall(&mut seen, Instant::now()));
        Ok((seen.iter().map(|seen| seen.resident).sum(), unclear.len()))
    }

    #[test]
    fn an_ending_process_counts_until_its_memory_is_free_and_ends_no_cell() -> std::io::Result<()> {
        let procfs = Procfs::new(MIB)?;
        let mut watch = with_memory(&procfs)?;
        for threads in [&[7, 8, 9][..], &[7, 9], &[7], &[]] {
            procfs.ends('R', threads)?;
            for _ in 0..=UNCLEAR {
                assert_eq!(look(&mut watch)?, None, "{threads:?}");
                assert_eq!(recalled(&mut watch)?, (MIB / 2, 0), "{threads:?}");
            }
        }
        procfs.ends('Z', &[])?;
        assert_eq!(recalled(&mut watch)?, (0, 0), "free");
        Ok(())
    }

    #[test]
    fn a_process_that_makes_threads_does_not_end() -> std::io::Result<()> {
        let procfs = Procfs::new(MIB)?;
        let mut watch = with_memory(&procfs)?;
        procfs.ends('R', &[7, 8])?;
        assert_eq!(recalled(&mut watch)?, (MIB / 2, 0));
        for thread in 9..=9 + UNCLEAR {
            // Taken for an end each time, with a thread that was not there before.
            procfs.ends('R', &[7, thread])?;
            let ended = look(&mut watch)?.is_some();
            assert_eq!(ended, thread == 9 + UNCLEAR, "{thread}");
        }
        // More than a list shows.
        let mut watch = with_memory(&procfs)?;
        procfs.ends('R', &[7, 8])?;
        let status = "State:\tZ\nFDSize: 0\nPPid: 1\nThreads: 3\n";
        fs::write(procfs.process().join("status"), status)?;
        assert_eq!(recalled(&mut watch)?.1, 1);
        // The control: a thread that lives is no end.
        procfs.ends('R', &[7, 8])?;
        assert_eq!(recalled(&mut watch)?.1, 0);
        fs::write(procfs.process().join("task/8/stat"), "8 (a) R 1 1 1 0 -1 0 0\n")?;
        assert_eq!(recalled(&mut watch)?.1, 1);
        // Nor is one that waits for SIGTERM; one that waits for SIGKILL ends.
        let status = |set: &str| format!("State:\tS\nSigPnd:\t{set}\nShdPnd:\t0\nThreads: 2\n");
        for (set, unclear) in [("0000000000004000", 1), ("0000000000000100", 0)] {
            fs::write(procfs.process().join("task/8/status"), status(set))?;
            assert_eq!(recalled(&mut watch)?.1, unclear, "{set}");
        }
        Ok(())
    }

    #[test]
    fn an_ending_process_counts_by_what_it_shared_with_no_other() -> std::io::Result<()> {
        let procfs = Procfs::new(MIB)?;
        let mut watch = with_memory(&procfs)?;
        fs::write(procfs.process().join("smaps_rollup"), "Pss: 300 kB\nPrivate_Dirty: 100 kB\n")?;
        let seen = watch.processes().map_err(std::io::Error::from)?.seen;
        assert_eq!(watch.with_shares(0, &seen), 300 << 10);
        procfs.ends('R', &[])?;
        let Listing { mut seen, .. } = watch.processes().map_err(std::io::Error::from)?;
        watch.recall(&mut seen, Instant::now());
        assert_eq!(watch.with_shares(0, &seen), 100 << 10);
        Ok(())
    }

    /// Makes another process, of which half a MiB is in memory.
    fn another(procfs: &Procfs, shares: &str) -> std::io::Result<()> {
        let other = procfs.0.path().join("1");
        fs::create_dir(&other)?;
        fs::write(other.join("smaps_rollup"), shares)?;
        let status = "State:\tR\nVmSize: 1024 kB\nRssAnon: 512 kB\nFDSize: 64\nThreads: 1\n";
        fs::write(other.join("status"), status)
    }

    /// Bytes that a look at a time charges by shares.
    fn shared_at(watch: &mut Watch, now: Instant) -> std::io::Result<u64> {
        let Listing { mut seen, .. } = watch.processes().map_err(std::io::Error::from)?;
        watch.recall(&mut seen, now);
        Ok(watch.with_shares(0, &seen))
    }

    #[test]
    fn a_process_whose_shares_cannot_be_read_counts_whole_while_it_ends() -> std::io::Result<()> {
        let procfs = Procfs::new(MIB)?;
        another(&procfs, "Pss: 512 kB\nPrivate_Dirty: 512 kB\n")?;
        // The first has no smaps_rollup, as one that made itself non-dumpable.
        let mut watch = with_memory(&procfs)?;
        watch.limit = 64 * MIB;
        let now = Instant::now();
        assert_eq!(shared_at(&mut watch, now)?, MIB, "the control: while both live");
        procfs.ends('R', &[])?;
        assert_eq!(shared_at(&mut watch, now)?, MIB);
        Ok(())
    }

    #[test]
    fn an_end_that_lasts_counts_by_its_share_or_else_whole() -> std::io::Result<()> {
        for (share, early, late) in
            [(Some("Pss: 300 kB\nPrivate_Dirty: 100 kB\n"), 100, 300), (None, 0, 512)]
        {
            let procfs = Procfs::new(MIB)?;
            let mut watch = with_memory(&procfs)?;
            watch.limit = 64 * MIB;
            let now = Instant::now();
            if let Some(share) = share {
                fs::write(procfs.process().join("smaps_rollup"), share)?;
                assert_eq!(shared_at(&mut watch, now)?, 300 << 10);
            }
            // It may have the same pages.
            another(&procfs, "Pss: 0 kB\n")?;
            procfs.ends('R', &[])?;
            for (after, charged) in [(Duration::ZERO, early), (END_PATIENCE, late)] {
                let found = shared_at(&mut watch, now + after)?;
                assert_eq!(found, charged << 10, "{share:?} {after:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_process_is_charged_when_the_thread_that_showed_it_has_ended() -> std::io::Result<()> {
        let procfs = Procfs::new(MIB)?;
        let process = procfs.0.path().join(std::process::id().to_string());
        let status = "VmSize: 1024 kB\nRssAnon: 512 kB\nFDSize: 64\nPPid: 1\nThreads: 2\n";
        fs::write(process.join("status"), status)?;
        let watch = procfs.watch()?;
        let mut listing = watch.processes()?;
        for seen in &mut listing.seen {
            seen.process.directory.push_str("/task/1");
        }
        let charged: Vec<u64> =
            listing.seen.iter().map(|seen| watch.by_share(seen, &[]).counted).collect();
        assert_eq!(charged, [MIB / 2]);
        Ok(())
    }

    #[test]
    fn pages_that_a_process_shares_are_looked_at_unless_its_page_tables_take_too_long()
    -> std::io::Result<()> {
        let procfs = Procfs::new(MIB)?;
        let process = procfs.0.path().join(std::process::id().to_string());
        fs::write(process.join("smaps_rollup"), "Pss: 16 kB\nSwapPss: 0 kB\n")?;
        for (tables, charged) in [(1024, 1024 + 16), (1028, 4096 + 1028)] {
            let status = format!(
                "VmSize: 8192 kB\nRssShmem: 4096 kB\nVmPTE: {tables} kB\nFDSize: 64\nPPid: 1\nThreads: 1\n"
            );
            fs::write(process.join("status"), status)?;
            let mut watch = procfs.watch()?;
            watch.limit = 64 * MIB;
            let listing = watch.processes()?;
            let seen: Vec<u64> = listing
                .seen
                .iter()
                .map(|seen| watch.by_share(seen, &listing.seen).counted)
                .collect();
            assert_eq!(seen, [charged << 10], "{tables} kB of page tables");
        }
        Ok(())
    }

    /// What a look that is behind charges, where the host's kernel grew by a GiB meanwhile.
    fn charged(size: u64) -> std::io::Result<u64> {
        let procfs = Procfs::new(size)?;
        let mut watch = procfs.watch()?;
        look(&mut watch)?;
        let before = watch.peak();
        procfs.host(16 << 30, 1124 * MIB)?;
        look(&mut watch)?;
        assert!(watch.next.is_some_and(|next| next <= Instant::now()), "it is behind");
        Ok(watch.peak() - before)
    }

    #[test]
    fn what_a_neighbour_took_is_charged_up_to_the_mappings_that_a_cell_can_have()
    -> std::io::Result<()> {
        // 100 pages can be 100 mappings.
        assert!(charged(100 << 12)? < 2 * MIB);
        // The control: this one may have made all of it, as far as is known.
        assert!(charged(1 << 40)? > 10 * MIB);
        Ok(())
    }
}
