//! The process that measures a workspace's cache and removes old ones, while the start continues.
//!
//! Both take as long as the files that cells have left there. So the process has a budget and a low priority, can reach
//! the directory of the caches only, and ends with the start. A later start continues unfinished work.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::time::SystemTime;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat};
use nix::sys::stat::{Mode, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, pipe2, unlinkat};
use rlimit::Resource;
use syscalls::Sysno;

use cell::confine::{Filter, enclose, limit};
use cell::removal::{open_with_access, put_aside, remove_all};
use cell::seccomp::FSTATAT;
use cell::{StepFailed, c_path, errno_of, fds, landlock, tied};
use sys::fork::fork;
use sys::mount::open_resolved;
use sys::process::{self, Dumpable, Side};
use sys::signals;

/// Directory among the caches with those that are to be removed.
const GONE: &str = ".gone";
/// Maximum number of files: a cache with more is emptied.
const MAX_FILES: u32 = 1_000_000;
/// Maximum levels of directories: a cache with more is emptied.
const MAX_DEPTH: u8 = 100;
/// Lowest priority (setpriority(2)).
const NICE: i32 = 19;
/// Budget of the process: seconds of a processor, bytes of memory. No file is written.
const LIMITS: [(Resource, u64); 3] =
    [(Resource::CPU, 30), (Resource::DATA, 256 << 20), (Resource::FSIZE, 1 << 10)];
pub(crate) const DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// System calls of the process in addition to those of each confined process: to list, count, rename
/// and remove.
const ALLOWED: [Sysno; 17] = [
    Sysno::openat,
    Sysno::getdents64,
    Sysno::fstat,
    FSTATAT,
    Sysno::statx,
    Sysno::lseek,
    Sysno::fcntl,
    Sysno::mkdirat,
    Sysno::unlinkat,
    Sysno::renameat,
    Sysno::renameat2,
    Sysno::fchmodat,
    Sysno::flock,
    Sysno::ftruncate,
    Sysno::utimensat,
    Sysno::geteuid,
    Sysno::mprotect,
];

/// Result of the last time that a cache was measured, stored as the length of its lock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measured {
    Never,
    Fits,
    TooLarge,
}

impl Measured {
    pub(crate) fn from_length(length: u64) -> Self {
        match length {
            0 => Self::Never,
            1 => Self::Fits,
            _ => Self::TooLarge,
        }
    }

    /// Stores the result, with the time.
    pub(crate) fn store(self, lock: &File) -> Result<(), Errno> {
        let length = match self {
            Self::Never => 0,
            Self::Fits => 1,
            Self::TooLarge => 2,
        };
        let stored = lock.set_len(length).and_then(|()| lock.set_modified(SystemTime::now()));
        stored.map_err(|error| errno_of(&error))
    }
}

/// A cache that is to be measured.
#[derive(Debug)]
pub(crate) struct Unmeasured {
    pub name: String,
    /// Maximum size in bytes.
    pub max_bytes: u64,
}

/// Work that is due among the caches. Holds no descriptor, which the supervisor would inherit.
#[derive(Debug)]
pub(crate) struct CacheUpkeep {
    caches: PathBuf,
    unmeasured: Option<Unmeasured>,
}

impl CacheUpkeep {
    /// Returns the work that is due in the directory of the caches, if there is any.
    pub(crate) fn due(
        directory: &OwnedFd,
        caches: PathBuf,
        unmeasured: Option<Unmeasured>,
    ) -> Option<Self> {
        let is_left = fstatat(directory, GONE, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok();
        (is_left || unmeasured.is_some()).then_some(Self { caches, unmeasured })
    }

    /// Starts the process. Must be called when this process waits for no child any more. The process ends when this one
    /// does, or when the returned end of a pipe is closed.
    pub(crate) fn start(&self) -> Option<OwnedFd> {
        let started = signals::forget_children().and_then(|()| {
            let (watched, life) = pipe2(OFlag::O_CLOEXEC)?;
            match fork()? {
                Side::Child => {
                    drop(life);
                    let done = std::panic::catch_unwind(AssertUnwindSafe(|| self.run(&watched)));
                    process::exit_now(i32::from(!matches!(done, Ok(Ok(())))));
                }
                Side::Parent(_) => Ok(life),
            }
        });
        let later =
            |errno: &Errno| tracing::info!(%errno, "the caches are measured and emptied later");
        started.inspect_err(later).ok()
    }

    fn run(&self, watched: &OwnedFd) -> Result<(), Errno> {
        tied::tie_to(watched)?;
        let caches = open_resolved(&c_path(&self.caches)?)?;
        let caches = owned(openat(caches, ".", DIRECTORY, Mode::empty())?)?;
        let flags = OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = |unmeasured: &Unmeasured| {
            openat(&caches, lock_name(&unmeasured.name).as_str(), flags, Mode::empty())
        };
        let note = self.unmeasured.as_ref().map(opened).transpose()?.map(File::from);
        confine(watched, &caches, note.as_ref())?;
        // One process at a time, of all starts: the others wait, and have less to do then.
        let directory = openat(&caches, ".", DIRECTORY, Mode::empty())?;
        let lock = Flock::lock(directory, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
        if let (Some(Unmeasured { name, max_bytes }), Some(note)) = (&self.unmeasured, &note) {
            let is_larger = is_larger(&caches, name, *max_bytes);
            let measured = if is_larger { Measured::TooLarge } else { Measured::Fits };
            measured.store(note)?;
        }
        match gone(&caches) {
            Ok(gone) => remove_all(&gone, "")?,
            Err(Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        let removed = unlinkat(&caches, GONE, UnlinkatFlags::RemoveDir);
        drop(lock);
        removed
    }
}

/// Confines this process to its descriptors and to the files below the directory of the caches.
fn confine(watched: &OwnedFd, caches: &OwnedFd, note: Option<&File>) -> Result<(), Errno> {
    process::give_way(NICE)?;
    process::set_dumpable(Dumpable::No)?;
    let kept = [watched.as_fd(), caches.as_fd()];
    fds::keep_only(kept.into_iter().chain(note.map(AsFd::as_fd)))?;
    LIMITS.into_iter().try_for_each(|(resource, value)| limit(resource, value))?;
    if landlock::kernel_abi() == 0 {
        return Err(Errno::ENOSYS);
    }
    let rules = |abi| landlock::removes(abi, caches.as_fd());
    enclose(rules, &Filter::of_calls(ALLOWED)).map_err(|StepFailed { errno, .. }| errno)
}

/// Returns the name of the lock of a cache.
pub(crate) fn lock_name(cache: &str) -> String {
    format!("{cache}.lock")
}

/// Refuses a directory that others can change.
pub(crate) fn owned(directory: OwnedFd) -> Result<OwnedFd, Errno> {
    let status = fstat(&directory)?;
    let is_private =
        status.st_uid == nix::unistd::geteuid().as_raw() && status.st_mode & 0o022 == 0;
    if is_private { Ok(directory) } else { Err(Errno::EPERM) }
}

/// Opens the directory with the caches that are to be removed.
fn gone(caches: &OwnedFd) -> Result<OwnedFd, Errno> {
    open_with_access(caches, &c_path(GONE.as_ref())?)?;
    openat(caches, GONE, DIRECTORY, Mode::empty())
}

/// Moves a cache to those that are to be removed. Takes the same time for caches of any size.
pub(crate) fn put_away(caches: &OwnedFd, name: &str) -> Result<(), Errno> {
    // The directory is removed when it is empty, also by the process of another start.
    for _ in 0..100 {
        match mkdirat(caches, GONE, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        let moved = gone(caches)
            .and_then(|gone| put_aside(caches, &c_path(name.as_ref())?, &gone, "", &mut 0));
        if moved != Err(Errno::ENOENT) {
            return moved;
        }
    }
    Err(Errno::ENOENT)
}

/// Returns true if a directory has more bytes, files or levels than it may, or cannot be measured.
fn is_larger(parent: &OwnedFd, name: &str, max_bytes: u64) -> bool {
    let mut allowance = Allowance { bytes: max_bytes, files: MAX_FILES };
    let opened = Dir::openat(parent, name, DIRECTORY, Mode::empty());
    opened.and_then(|directory| allowance.subtract(directory, MAX_DEPTH)).is_err()
}

/// Bytes and files that a cache may have in addition to those that were counted.
struct Allowance {
    bytes: u64,
    files: u32,
}

impl Allowance {
    /// Counts everything in a directory. Needs one descriptor a level and no paths, so that cells cannot make this process
    /// use much memory.
    fn subtract(&mut self, mut directory: Dir, levels: u8) -> Result<(), Errno> {
        let levels = levels.checked_sub(1).ok_or(Errno::EFBIG)?;
        let parent = directory.as_fd().try_clone_to_owned().map_err(|error| errno_of(&error))?;
        for entry in directory.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            // Cells may have removed or replaced the entry since it was listed.
            let status = match fstatat(&parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                Err(Errno::ENOENT) => continue,
                status => status?,
            };
            let bytes = u64::try_from(status.st_blocks).unwrap_or(0).saturating_mul(512);
            self.bytes = self.bytes.checked_sub(bytes).ok_or(Errno::EFBIG)?;
            self.files = self.files.checked_sub(1).ok_or(Errno::EFBIG)?;
            if status.st_mode & libc::S_IFMT == libc::S_IFDIR {
                match Dir::openat(&parent, name, DIRECTORY, Mode::empty()) {
                    Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
                    opened => self.subtract(opened?, levels)?,
                }
            }
        }
        Ok(())
    }
}
