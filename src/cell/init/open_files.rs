//! The watch over open files, whose number the kernel bounds for the whole machine (`fs.file-max`).
//!
//! RLIMIT_NOFILE bounds the descriptors of one process, and ordinary programs use many. So a cell whose processes could
//! together open more than its share is counted now and then, and ended when it has more. Descriptors are counted, not
//! files: those that processes share by fork(2) or dup(2) count once for each.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::poll::PollTimeout;
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::read;

use super::{Cause, Init, Turn};
use crate::bare::Domain;
use crate::report::OverLimit;
use sys::Result;
use sys::process::{self, End, Reaped, Used};

/// Time between two looks at a cell with so many processes that they could pass its share.
const BUSY: Duration = Duration::from_millis(250);
/// Time between two looks at another.
const QUIET: Duration = Duration::from_secs(1);
/// Links of the directory `task` of a process that are no threads.
const LINKS: i128 = 2;

/// Open files that a cell may have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Of the whole cell.
    pub share: u64,
    /// Of one process: RLIMIT_NOFILE.
    pub each: u64,
}

/// The watch over one cell's open files.
#[derive(Debug)]
pub(super) struct OpenFiles {
    bounds: Bounds,
    /// A procfs of the cell's pid namespace, once there was a look.
    proc: Option<OwnedFd>,
    /// By what the cell's processes are known, where that procfs shows others as well.
    domain: Option<Domain>,
    next: Instant,
}

impl Init<'_> {
    /// Looks at the cell's open files when it is time to.
    pub(super) fn look_at_open_files(&mut self, now: Instant) -> Result<Turn> {
        let Some(watch) = &mut self.open_files else { return Ok(Turn::Again) };
        if now < watch.next || !watch.exceeded(now)? {
            return Ok(Turn::Again);
        }
        let killed =
            Reaped { pid: self.payload.as_raw(), end: End::Signaled(9), used: Used::default() };
        Ok(Turn::End(killed, Cause::OverLimit(OverLimit::OpenFiles)))
    }
}

impl OpenFiles {
    /// Makes a watch. Without a procfs, it opens the cell's `/proc` when it looks for the first time.
    pub(super) fn new(bounds: Bounds, proc: Option<OwnedFd>, domain: Option<Domain>) -> Self {
        Self { bounds, proc, domain, next: Instant::now() + BUSY }
    }

    /// Returns how long poll(2) may wait before the next look.
    pub(super) fn timeout(&self) -> PollTimeout {
        let wait = self.next.saturating_duration_since(Instant::now());
        // Rounded up: a timeout of 0 would spin until the instant has come.
        PollTimeout::try_from(wait + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
    }

    /// Returns whether the cell has more files open than its share.
    fn exceeded(&mut self, now: Instant) -> Result<bool> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let proc = match self.proc.take() {
            Some(proc) => proc,
            None => open(c"/proc", flags, Mode::empty())?,
        };
        let (bounds, domain) = (self.bounds, self.domain);
        let cell = Tables { proc: &proc, bounds };
        let processes = cell.numbers(".", domain)?;
        let threads: Vec<(i32, u64)> =
            processes.into_iter().map(|pid| (pid, cell.threads(pid))).collect();
        let tasks: u64 = threads.iter().map(|(_, threads)| *threads).sum();
        let is_busy = tasks.saturating_mul(bounds.each) > bounds.share;
        let is_over = is_busy && cell.count(&threads) > bounds.share;
        self.next = now + if is_busy { BUSY } else { QUIET };
        self.proc = Some(proc);
        Ok(is_over)
    }
}

/// The tables of descriptors of a cell's processes.
struct Tables<'p> {
    proc: &'p OwnedFd,
    bounds: Bounds,
}

impl Tables<'_> {
    /// Lists the processes of a procfs, or the threads of one.
    fn numbers(&self, path: &str, domain: Option<Domain>) -> Result<Vec<i32>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut numbers = Vec::new();
        for entry in Dir::openat(self.proc, path, flags, Mode::empty())? {
            let name = entry?;
            let number = name.file_name().to_str().ok().and_then(|name| name.parse().ok());
            numbers.extend(number.filter(|pid| domain.is_none_or(|domain| domain.has(*pid))));
        }
        Ok(numbers)
    }

    /// Returns the number of threads of a process, without reading a list; 0 where it has ended.
    fn threads(&self, pid: i32) -> u64 {
        let status = fstatat(self.proc, format!("{pid}/task").as_str(), AtFlags::empty());
        // Links are a u64 or a u32, by the architecture.
        let threads = status.map_or(0, |status| i128::from(status.st_nlink) - LINKS);
        u64::try_from(threads).unwrap_or(0)
    }

    /// Adds up the descriptors of processes, each with its number of threads.
    fn count(&self, processes: &[(i32, u64)]) -> u64 {
        let mut sum = 0_u64;
        for (pid, threads) in processes {
            let more = match *threads {
                0 | 1 => self.of(&pid.to_string()),
                _ => self.of_threads(*pid),
            };
            sum = sum.saturating_add(more);
            if sum > self.bounds.share {
                break;
            }
        }
        sum
    }

    /// Adds up the descriptors of the threads of a process. Nearly always they have one table. A thread counts as one with
    /// a table by itself where that cannot be known: the process made itself unreadable.
    fn of_threads(&self, pid: i32) -> u64 {
        let threads = self.numbers(&format!("{pid}/task"), None).unwrap_or_default();
        let mut sum = 0_u64;
        let mut first = None;
        for thread in threads {
            let is_shared =
                first.is_some_and(|first| process::have_one_table(first, thread).unwrap_or(false));
            if is_shared {
                continue;
            }
            let count = self.of(&format!("{pid}/task/{thread}"));
            // One that has ended has no table, and shares none.
            if count > 0 {
                first = first.or(Some(thread));
            }
            sum = sum.saturating_add(count);
        }
        sum
    }

    /// Returns the number of descriptors of the process or thread whose directory this is; 0 where it has ended.
    fn of(&self, directory: &str) -> u64 {
        let path = format!("{directory}/fd");
        let Ok(status) = fstatat(self.proc, path.as_str(), AtFlags::empty()) else { return 0 };
        match u64::try_from(status.st_size) {
            Ok(count) if count > 0 => count,
            // Before Linux 6.2 no directory has a size: then the size of the table, which is no less.
            _ if !self.has_sizes() => self.places(directory),
            _ => 0,
        }
    }

    /// Returns whether the kernel shows a count of descriptors: this process has some.
    fn has_sizes(&self) -> bool {
        let own = fstatat(self.proc, "self/fd", AtFlags::empty());
        own.is_ok_and(|status| status.st_size > 0)
    }

    /// Returns the places in a table of descriptors, at most as many as RLIMIT_NOFILE lets be used.
    fn places(&self, directory: &str) -> u64 {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let path = format!("{directory}/status");
        let opened = openat(self.proc.as_fd(), path.as_str(), flags, Mode::empty());
        let mut buffer = [0; 4096];
        let length = opened.and_then(|file| read(&file, &mut buffer)).unwrap_or(0);
        let text = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
        let field = text.lines().find_map(|line| line.strip_prefix("FDSize:"));
        let places = field.and_then(|field| field.trim().parse().ok()).unwrap_or(0_u64);
        places.min(self.bounds.each)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io;

    use super::*;

    const PROCESSES: u64 = 4;

    /// Makes a procfs of files: processes with one thread and so many descriptors each.
    fn procfs(descriptors: u64, has_sizes: bool) -> io::Result<tempfile::TempDir> {
        let place = tempfile::tempdir()?;
        let shown = |count| if has_sizes { count } else { 0 };
        for name in (2..2 + PROCESSES).map(|pid| pid.to_string()).chain(["self".to_owned()]) {
            let process = place.path().join(&name);
            fs::create_dir_all(process.join("task/1"))?;
            // Its size is the count, as that of the directory in a procfs.
            fs::File::create(process.join("fd"))?.set_len(shown(descriptors))?;
            let table = descriptors.next_power_of_two().max(64);
            fs::write(process.join("status"), format!("Name:\ta\nFDSize:\t{table}\n"))?;
        }
        Ok(place)
    }

    fn look(place: &tempfile::TempDir, bounds: Bounds) -> io::Result<(bool, Duration)> {
        let proc = fs::File::open(place.path())?.into();
        let mut watch = OpenFiles::new(bounds, Some(proc), None);
        let now = Instant::now();
        let is_over = watch.exceeded(now).map_err(io::Error::from)?;
        Ok((is_over, watch.next - now))
    }

    #[test]
    fn a_cell_is_over_its_share_by_the_sum_of_its_descriptors() -> io::Result<()> {
        let bounds = Bounds { share: 400, each: 1024 };
        assert_eq!(look(&procfs(100, true)?, bounds)?, (false, BUSY));
        assert_eq!(look(&procfs(101, true)?, bounds)?, (true, BUSY));
        Ok(())
    }

    #[test]
    fn processes_that_cannot_pass_the_share_are_not_counted() -> io::Result<()> {
        let bounds = Bounds { share: 400, each: 100 };
        assert_eq!(look(&procfs(1000, true)?, bounds)?, (false, QUIET));
        Ok(())
    }

    #[test]
    fn a_kernel_that_shows_no_count_shows_the_size_of_the_table() -> io::Result<()> {
        let bounds = |share| Bounds { share, each: 100 };
        assert_eq!(look(&procfs(65, false)?, bounds(399))?, (true, BUSY));
        assert_eq!(look(&procfs(64, false)?, bounds(256))?, (false, BUSY));
        assert_eq!(look(&procfs(64, false)?, bounds(255))?, (true, BUSY));
        Ok(())
    }

    #[test]
    fn threads_with_one_table_count_once() -> io::Result<()> {
        let proc: OwnedFd = fs::File::open("/proc")?.into();
        let pid = i32::try_from(std::process::id()).unwrap_or_default();
        let tables = Tables { proc: &proc, bounds: Bounds { share: 1 << 40, each: 1 << 20 } };
        let files =
            (0..500).map(|_| fs::File::open("/dev/null")).collect::<io::Result<Vec<_>>>()?;
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || receive.recv());
        let threads = tables.threads(pid);
        let counted = tables.count(&[(pid, threads)]);
        drop(send);
        let _ended = thread.join();
        assert!(threads >= 2, "{threads}");
        assert!((500..900).contains(&counted), "{counted}");
        drop(files);
        Ok(())
    }
}
