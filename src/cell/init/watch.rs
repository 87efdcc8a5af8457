//! The memory watch: where no cgroup holds a cell's memory, init adds it up and ends the cell.
//!
//! It is best-effort and every reply says so: memory that no process maps (a memfd let go,
//! full socket buffers) is not seen, and growth between two looks is not either.

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
use crate::cell::bare::Domain;
use crate::sys::Result;
use crate::sys::process::{End, Reaped, Used};

/// Looks are at least this far apart, so that a large cell is not slowed by them.
const SHORTEST: Duration = Duration::from_millis(2);
/// And at most this far, so that the first look at a quick allocator comes in time.
const LONGEST: Duration = Duration::from_millis(50);
/// Growth that is expected at most: what one core can touch in a second.
const BYTES_PER_SECOND: u64 = 4 << 30;

/// The watch over one cell's memory.
#[derive(Debug)]
pub struct Watch {
    /// A procfs of the cell's pid namespace.
    proc: OwnedFd,
    /// By what the cell's processes are known, where that shows others as well.
    domain: Option<Domain>,
    limit: u64,
    next: Option<Instant>,
    peak: u64,
}

impl Init<'_> {
    /// Looks at the cell's memory when it is time to.
    pub(super) fn look_at_memory(&mut self, now: Instant) -> Result<Turn> {
        let Some(watch) = &mut self.watch else { return Ok(Turn::Again) };
        if !watch.is_due(now) || !watch.exceeded(now)? {
            return Ok(Turn::Again);
        }
        // The payload itself may be waiting for a child: what counts is that the cell ends now.
        let killed =
            Reaped { pid: self.payload.as_raw(), end: End::Signaled(9), used: Used::default() };
        Ok(Turn::End(killed, Cause::OverMemory))
    }
}

impl Watch {
    /// A watch that looks at nothing until it is started.
    pub fn new(proc: OwnedFd, limit: u64, domain: Option<Domain>) -> Self {
        Self { proc, domain, limit, next: None, peak: 0 }
    }

    /// Starts looking, with the limit the job has.
    pub fn start(&mut self, limit: u64) {
        self.limit = self.limit.min(limit);
        self.next = Some(Instant::now() + SHORTEST);
    }

    /// How long poll(2) may wait before the next look.
    pub fn timeout(&self) -> PollTimeout {
        let Some(next) = self.next else { return PollTimeout::NONE };
        let wait = next.saturating_duration_since(Instant::now());
        // Rounded up: a timeout of 0 would spin until the instant has come.
        PollTimeout::try_from(wait + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
    }

    pub fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| next <= now)
    }

    /// The most that was seen, in bytes.
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// Adds up the cell's memory and says whether it is above the limit.
    pub fn exceeded(&mut self, now: Instant) -> Result<bool> {
        // Without mounts of its own the cell's files are on a disk.
        let files = if self.domain.is_none() { private_files() } else { 0 };
        let mut used = files + self.processes(Sum::Resident)?;
        if used > self.limit {
            // Pages that processes share were counted once for each: count them by share.
            used = files + self.processes(Sum::Proportional)?;
        }
        self.peak = self.peak.max(used);
        if self.host_is_short() {
            return Ok(true);
        }
        let room = self.limit.saturating_sub(used);
        let micros = room.saturating_mul(1_000_000) / BYTES_PER_SECOND;
        self.next = Some(now + Duration::from_micros(micros).clamp(SHORTEST, LONGEST));
        Ok(used > self.limit)
    }

    /// Whether the host itself is about to run out: less than a sixteenth of its memory is left.
    ///
    /// What no process maps is not in the sum above (shared pages let go, full sockets, epoll
    /// items). That this is bounded at all where no cgroup can be had, is the work of this line.
    fn host_is_short(&self) -> bool {
        // The procfs held here is masked by nothing: its meminfo is the host's.
        let field = |name| self.fields(".", "meminfo", &[name]);
        let (total, available) = (field("MemTotal:"), field("MemAvailable:"));
        total.zip(available).is_some_and(|(total, available)| available < total / 16)
    }

    fn processes(&self, sum: Sum) -> Result<u64> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut list = Dir::openat(&self.proc, ".", flags, Mode::empty())?;
        let mut total = 0_u64;
        for entry in list.iter() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name.iter().all(u8::is_ascii_digit) {
                let directory = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
                let is_ours = |domain: Domain| domain.has(directory.parse().unwrap_or(0));
                if !self.domain.is_none_or(is_ours) {
                    continue;
                }
                total = total.saturating_add(self.process(directory, sum));
            }
        }
        Ok(total)
    }

    /// Bytes of one process; one that has just ended has none.
    fn process(&self, pid: &str, sum: Sum) -> u64 {
        let by_share = match sum {
            Sum::Resident => None,
            // Refused where the process made itself non-dumpable: then its whole size counts.
            // Page tables are no share of anything: each process has its own.
            Sum::Proportional => self
                .fields(pid, "smaps_rollup", &["Pss:", "SwapPss:"])
                .zip(self.fields(pid, "status", &["VmPTE:"]))
                .map(|(shares, tables)| shares.saturating_add(tables)),
        };
        by_share
            .or_else(|| self.fields(pid, "status", &["RssAnon:", "RssShmem:", "VmPTE:", "VmSwap:"]))
            .unwrap_or(0)
    }

    /// The sum of `wanted` lines, given in kB, of a file of one process.
    fn fields(&self, pid: &str, file: &str, wanted: &[&str]) -> Option<u64> {
        let mut buffer = [0; 4096];
        let path = format!("{pid}/{file}");
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let fd = openat(self.proc.as_fd(), path.as_str(), flags, Mode::empty()).ok()?;
        let length = read(&fd, &mut buffer).ok()?;
        let text = std::str::from_utf8(buffer.get(..length)?).ok()?;
        let kilobytes: u64 = text
            .lines()
            .filter(|line| wanted.iter().any(|name| line.starts_with(name)))
            .filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok())
            .sum();
        (length > 0).then_some(kilobytes.saturating_mul(1024))
    }
}

/// How pages that several processes share are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sum {
    /// Once for each process: quick, and never too little.
    Resident,
    /// In parts: exact, and slower.
    Proportional,
}

/// Bytes in the cell's private filesystems, which are memory too.
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
