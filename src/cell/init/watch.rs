//! The memory watch: where no cgroup holds a cell's memory, init adds it up and ends the cell.
//!
//! It is best-effort and every reply says so: growth between two looks is not seen. Kernel memory is charged by what
//! can be counted: sockets, mappings, places for descriptors. Shared memory without a file has an account of its own.

mod maps;
mod shared;

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
use crate::report::OverMemory;
use sys::Result;
use sys::process::{self, End, Reaped, Used};

use maps::{Mappings, Process, Progress};
use shared::SharedMemory;

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
/// Looks in a row that may leave it open by how much processes share, while mappings are being counted.
const POSTPONED: u32 = 64;
/// Bytes of a connection that is gone and kept in mind (TIME_WAIT), with the port that it holds.
const CLOSED: u64 = 512;
/// Times that a look lists the threads of a process whose first thread has ended, to find one that shows its memory.
const LISTINGS: u32 = 8;
/// Looks in a row that may miss the memory of a living process. With more, the cell ends: it hides what it has.
const UNCLEAR: u32 = 4;

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
    /// Looks in a row that could not tell the memory of a living process.
    unclear: u32,
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
        Ok(Turn::End(killed, Cause::OverMemory(why)))
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
    pub(crate) fn exceeded(&mut self, now: Instant) -> Result<Option<OverMemory>> {
        let Listing { seen, is_whole } = self.processes()?;
        self.unclear = if is_whole { 0 } else { self.unclear.saturating_add(1) };
        // Without mounts of its own the cell's files are on a disk.
        let files = if self.domain.is_none() { private_files() } else { 0 };
        let kernel = files + self.sockets() + seen.iter().map(Seen::descriptors).sum::<u64>();
        let resident: u64 = seen.iter().map(|process| process.resident).sum();
        let known = kernel.saturating_add(resident).saturating_add(self.mappings.bytes());
        let processes: Vec<Process> = seen.iter().map(|seen| seen.process.clone()).collect();
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
        Ok(match used > self.limit || self.unclear > UNCLEAR {
            true => Some(OverMemory::Limit),
            false => host.is_short.then_some(OverMemory::Host),
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
        let mut list = Dir::openat(&self.proc, ".", flags, Mode::empty())?;
        let mut listing = Listing { seen: Vec::new(), is_whole: true };
        for entry in list.iter() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name.iter().all(u8::is_ascii_digit) {
                let directory = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
                let pid = directory.parse().unwrap_or(0);
                if self.domain.is_none_or(|domain| domain.has(pid)) {
                    match self.process(pid, directory) {
                        Look::Seen(seen) => listing.seen.push(seen),
                        Look::Gone => {}
                        Look::Unclear => listing.is_whole = false,
                    }
                }
            }
        }
        Ok(listing)
    }

    /// Reads the status of a process. If its first thread has ended and others go on, only their status
    /// shows the memory.
    fn process(&self, pid: i32, directory: &str) -> Look {
        for _ in 0..LISTINGS {
            let seen = match self.status(pid, directory) {
                Look::Seen(seen) => seen,
                other @ (Look::Gone | Look::Unclear) => return other,
            };
            if seen.has_told_all() {
                return Look::Seen(seen);
            }
            if let Some(seen) = self.thread_with_memory(pid, directory) {
                return Look::Seen(seen);
            }
            // Every thread that was listed has ended meanwhile: those that they made are in the next list.
        }
        Look::Unclear
    }

    /// Returns a process as one of its threads shows it, if one does.
    fn thread_with_memory(&self, pid: i32, directory: &str) -> Option<Seen> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let path = format!("{directory}/task");
        let mut threads = Dir::openat(&self.proc, path.as_str(), flags, Mode::empty()).ok()?;
        let names = threads.iter().filter_map(|entry| {
            let entry = entry.ok()?;
            entry.file_name().to_str().ok().map(|name| format!("{path}/{name}"))
        });
        names.into_iter().find_map(|name| match self.status(pid, &name) {
            Look::Seen(seen) if seen.process.size > 0 => Some(seen),
            Look::Seen(_) | Look::Gone | Look::Unclear => None,
        })
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
        })
    }

    /// Returns the bytes of kernel memory and of processes, pages that several of these share counted once. Ends as
    /// soon as the sum is above the limit: nobody needs to know by how much.
    fn with_shares(&self, kernel: u64, seen: &[Seen]) -> u64 {
        let mut used = kernel;
        for process in seen {
            if used > self.limit {
                break;
            }
            if !has_memory_of_parent(process, seen) {
                used = used.saturating_add(self.by_share(process));
            }
        }
        used
    }

    /// Returns the bytes of a process, pages that it shares by its part of them.
    ///
    /// Refused where the process made itself non-dumpable, and too slow where it has many mappings: then its
    /// whole size counts, as it is now: a process that has ended since has none. Page tables are no share of
    /// anything: each process has its own.
    fn by_share(&self, seen: &Seen) -> u64 {
        let Process { pid, directory, .. } = &seen.process;
        let whole = || match self.process(*pid, &pid.to_string()) {
            Look::Seen(now) => now.resident,
            Look::Gone => 0,
            Look::Unclear => seen.resident,
        };
        if self.mappings.of(*pid) > MAPPINGS_LOOKED_THROUGH {
            return whole();
        }
        let shares = self.fields(directory, "smaps_rollup", &[b"Pss:", b"SwapPss:"]);
        shares.map_or_else(whole, |shares| shares.saturating_add(seen.tables))
    }

    /// Sums up `wanted` lines, given in kB, of a file of one process, in bytes.
    fn fields(&self, pid: &str, file: &str, wanted: &[&[u8]]) -> Option<u64> {
        let mut buffer = [0; 4096];
        let text = self.text(&format!("{pid}/{file}"), &mut buffer)?;
        Some(kilobytes(text, wanted).saturating_mul(1024))
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
    /// False where the memory of a living process could not be told.
    is_whole: bool,
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
}

impl Seen {
    /// Returns whether its memory is known. A first thread that has ended shows none of what the others have.
    fn has_told_all(&self) -> bool {
        self.process.size > 0 || self.threads < 2
    }

    /// Returns the bytes charged for what its descriptors may hold. Init's table is as large as the supervisor's
    /// was.
    fn descriptors(&self) -> u64 {
        let places = if self.process.pid == 1 { 0 } else { self.places };
        places.saturating_sub(DESCRIPTORS).saturating_mul(DESCRIPTOR)
    }
}

/// Returns true if a process shares its parent's memory, which is counted there: a child of vfork(2) does so
/// until it execs. If the kernel does not say, it does not.
fn has_memory_of_parent(process: &Seen, seen: &[Seen]) -> bool {
    let (pid, parent) = (process.process.pid, process.parent);
    seen.iter().any(|other| other.process.pid == parent)
        && process::have_one_memory(pid, parent).unwrap_or(false)
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

/// Returns the bytes in the cell's private filesystems, which are memory too.
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
            Some(used.saturating_mul(size))
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

    fn look(watch: &mut Watch) -> std::io::Result<Option<OverMemory>> {
        watch.exceeded(Instant::now()).map_err(std::io::Error::from)
    }

    #[test]
    fn a_host_that_runs_out_is_told_from_a_limit() -> std::io::Result<()> {
        let procfs = Procfs::new(MIB)?;
        assert_eq!(look(&mut procfs.watch()?)?, None);
        procfs.host(MIB, 100 * MIB)?;
        assert_eq!(look(&mut procfs.watch()?)?, Some(OverMemory::Host));
        let mut watch = procfs.watch()?;
        watch.limit = 0;
        watch.shared = SharedMemory::default();
        procfs.host(16 << 30, 1 << 40)?;
        assert_eq!(look(&mut watch)?, Some(OverMemory::Limit));
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
        assert_eq!(look(&mut watch)?, Some(OverMemory::Limit));
        // The control: a process that has ended, and its parent has not waited for it.
        let procfs = without_first_thread(1)?;
        let mut watch = procfs.watch()?;
        assert_eq!(watch.shared_objects()?, Some(std::collections::BTreeSet::new()));
        for _ in 0..=UNCLEAR {
            assert_eq!(look(&mut watch)?, None);
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
        let charged: Vec<u64> = listing.seen.iter().map(|seen| watch.by_share(seen)).collect();
        assert_eq!(charged, [MIB / 2]);
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
