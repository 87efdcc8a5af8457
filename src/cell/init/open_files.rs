//! Watches the number of open files of a cell, which the kernel limits only for the whole machine
//! (`fs.file-max`).
//!
//! RLIMIT_NOFILE limits the descriptors of one process, and ordinary programs use many. So init
//! regularly counts a cell whose processes could together exceed its share, and ends it if they do.
//! Descriptors are counted instead of files: those shared by fork(2) or dup(2) count once for each
//! process or number.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::fcntl::AtFlags;
use nix::poll::PollTimeout;
use nix::sys::stat::fstatat;

use super::timeout_until;
use crate::bare::Domain;
use crate::proc_files::{numbers, open_proc, read_start};
use sys::{Result, process};

/// Time between two counts if the cell has so many processes that they could exceed its share.
const BUSY_INTERVAL: Duration = Duration::from_millis(250);
/// Time between two counts otherwise.
const QUIET_INTERVAL: Duration = Duration::from_secs(1);
/// Links of a process's `task` directory other than those of its threads.
const DIRECTORY_LINKS: i128 = 2;

/// Limits for the open files of a cell.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Limit for the whole cell.
    pub share: u64,
    /// Limit for one process: RLIMIT_NOFILE.
    pub each: u64,
}

/// The watch over one cell's open files.
#[derive(Debug)]
pub(super) struct OpenFiles {
    bounds: Bounds,
    /// A procfs of the cell's pid namespace; opened by the first count.
    proc: Option<OwnedFd>,
    /// Identifies the cell's processes, if that procfs shows others as well.
    domain: Option<Domain>,
    next: Instant,
}

impl OpenFiles {
    /// Makes a watch. Without a procfs, the first count opens the cell's `/proc`.
    pub(super) fn new(bounds: Bounds, proc: Option<OwnedFd>, domain: Option<Domain>) -> Self {
        Self { bounds, proc, domain, next: Instant::now() + BUSY_INTERVAL }
    }

    /// Returns how long poll(2) may wait before the next count.
    pub(super) fn timeout(&self) -> PollTimeout {
        timeout_until(self.next)
    }

    /// Returns true if it is time to count.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// Returns true if the cell has more open files than its share.
    pub(super) fn exceeded(&mut self, now: Instant) -> Result<bool> {
        let proc = match self.proc.take() {
            Some(proc) => proc,
            None => open_proc()?,
        };
        let bounds = self.bounds;
        let cell = DescriptorTables { proc: &proc, bounds };
        let mut processes: Vec<i32> = numbers(&proc, ".")?;
        processes.retain(|pid| self.domain.is_none_or(|domain| domain.has(*pid)));
        let threads: Vec<(i32, u64)> =
            processes.into_iter().map(|pid| (pid, cell.threads(pid))).collect();
        let tasks: u64 = threads.iter().map(|(_, threads)| *threads).sum();
        let is_busy = tasks.saturating_mul(bounds.each) > bounds.share;
        let is_over = is_busy && cell.count(&threads) > bounds.share;
        self.next = now + if is_busy { BUSY_INTERVAL } else { QUIET_INTERVAL };
        self.proc = Some(proc);
        Ok(is_over)
    }
}

/// Counts the descriptors of a cell's processes.
struct DescriptorTables<'p> {
    proc: &'p OwnedFd,
    bounds: Bounds,
}

impl DescriptorTables<'_> {
    /// Returns the number of threads of a process from the link count of its `task` directory,
    /// without listing it; 0 if the process has ended.
    fn threads(&self, pid: i32) -> u64 {
        let status = fstatat(self.proc, format!("{pid}/task").as_str(), AtFlags::empty());
        // The link count is a u64 or a u32, depending on the architecture.
        let threads = status.map_or(0, |status| i128::from(status.st_nlink) - DIRECTORY_LINKS);
        u64::try_from(threads).unwrap_or(0)
    }

    /// Adds up the descriptors of processes, each with its number of threads.
    fn count(&self, processes: &[(i32, u64)]) -> u64 {
        let mut sum = 0_u64;
        for (pid, threads) in processes {
            let more = match *threads {
                0 | 1 => self.count_in(&pid.to_string()),
                _ => self.count_threads(*pid),
            };
            sum = sum.saturating_add(more);
            if sum > self.bounds.share {
                break;
            }
        }
        sum
    }

    /// Adds up the descriptors of a process's threads. They nearly always share one table. A thread
    /// is assumed to have a separate table if this cannot be known because the process is not
    /// dumpable.
    fn count_threads(&self, pid: i32) -> u64 {
        // A process that has ended meanwhile has no descriptors.
        let threads = numbers(self.proc, &format!("{pid}/task")).unwrap_or_default();
        let mut sum = 0_u64;
        let mut first = None;
        for thread in threads {
            let is_shared =
                first.is_some_and(|first| process::have_one_table(first, thread).unwrap_or(false));
            if is_shared {
                continue;
            }
            let count = self.count_in(&format!("{pid}/task/{thread}"));
            // A thread that has ended has no table, and cannot be compared.
            if count > 0 {
                first = first.or(Some(thread));
            }
            sum = sum.saturating_add(count);
        }
        sum
    }

    /// Returns the number of descriptors of the process or thread with this procfs directory; 0 if
    /// it has ended.
    fn count_in(&self, directory: &str) -> u64 {
        let path = format!("{directory}/fd");
        let Ok(status) = fstatat(self.proc, path.as_str(), AtFlags::empty()) else { return 0 };
        match u64::try_from(status.st_size) {
            Ok(count) if count > 0 => count,
            // Before Linux 6.2 the directory has no size: the table's size is used, which is never
            // smaller.
            _ if !self.has_sizes() => self.table_size(directory),
            _ => 0,
        }
    }

    /// Returns true if the kernel shows descriptor counts. Checked on this process, which always
    /// has descriptors.
    fn has_sizes(&self) -> bool {
        let own_descriptors = fstatat(self.proc, "self/fd", AtFlags::empty());
        own_descriptors.is_ok_and(|status| status.st_size > 0)
    }

    /// Returns the size of a descriptor table, but at most RLIMIT_NOFILE.
    fn table_size(&self, directory: &str) -> u64 {
        let mut buffer = [0; 4096];
        let text = read_start(self.proc, &format!("{directory}/status"), &mut buffer);
        let text = String::from_utf8_lossy(text.unwrap_or_default());
        let field = text.lines().find_map(|line| line.strip_prefix("FDSize:"));
        let size = field.and_then(|field| field.trim().parse().ok()).unwrap_or(0_u64);
        size.min(self.bounds.each)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io;

    use super::*;

    const PROCESSES: u64 = 4;

    /// Makes a fake procfs: processes with one thread and this many descriptors each.
    fn procfs(descriptors: u64, has_sizes: bool) -> io::Result<tempfile::TempDir> {
        let directory = tempfile::tempdir()?;
        let shown = |count| if has_sizes { count } else { 0 };
        for name in (2..2 + PROCESSES).map(|pid| pid.to_string()).chain(["self".to_owned()]) {
            let process = directory.path().join(&name);
            fs::create_dir_all(process.join("task/1"))?;
            // The size is the number of descriptors, as in a real procfs.
            fs::File::create(process.join("fd"))?.set_len(shown(descriptors))?;
            let table = descriptors.next_power_of_two().max(64);
            fs::write(process.join("status"), format!("Name:\ta\nFDSize:\t{table}\n"))?;
        }
        Ok(directory)
    }

    fn count(directory: &tempfile::TempDir, bounds: Bounds) -> io::Result<(bool, Duration)> {
        let proc = fs::File::open(directory.path())?.into();
        let mut watch = OpenFiles::new(bounds, Some(proc), None);
        let now = Instant::now();
        let is_over = watch.exceeded(now).map_err(io::Error::from)?;
        Ok((is_over, watch.next - now))
    }

    #[test]
    fn a_cell_is_over_its_share_by_the_sum_of_its_descriptors() -> io::Result<()> {
        let bounds = Bounds { share: 400, each: 1024 };
        assert_eq!(count(&procfs(100, true)?, bounds)?, (false, BUSY_INTERVAL));
        assert_eq!(count(&procfs(101, true)?, bounds)?, (true, BUSY_INTERVAL));
        Ok(())
    }

    #[test]
    fn processes_that_cannot_pass_the_share_are_not_counted() -> io::Result<()> {
        let bounds = Bounds { share: 400, each: 100 };
        assert_eq!(count(&procfs(1000, true)?, bounds)?, (false, QUIET_INTERVAL));
        Ok(())
    }

    #[test]
    fn a_kernel_that_shows_no_count_shows_the_size_of_the_table() -> io::Result<()> {
        let bounds = |share| Bounds { share, each: 100 };
        assert_eq!(count(&procfs(65, false)?, bounds(399))?, (true, BUSY_INTERVAL));
        assert_eq!(count(&procfs(64, false)?, bounds(256))?, (false, BUSY_INTERVAL));
        assert_eq!(count(&procfs(64, false)?, bounds(255))?, (true, BUSY_INTERVAL));
        Ok(())
    }

    #[test]
    fn threads_with_one_table_count_once() -> io::Result<()> {
        let proc: OwnedFd = fs::File::open("/proc")?.into();
        let pid = i32::try_from(std::process::id()).unwrap_or_default();
        let tables =
            DescriptorTables { proc: &proc, bounds: Bounds { share: 1 << 40, each: 1 << 20 } };
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
