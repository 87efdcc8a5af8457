//! The process that measures a workspace's cache and removes what was put aside, while the start goes on.
//!
//! What cells have left decides how long both take. So it is a process with a budget, which gives way to others, reaches
//! the directory of the caches and nothing else, and ends with the start. What it leaves undone, a later start does.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::time::SystemTime;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, getpid, getppid, unlinkat};
use rlimit::Resource;
use syscalls::Sysno;

use cell::limits::no_core_dumps;
use cell::removal::{opened_up, put_aside, remove_all};
use cell::seccomp::{Action, FSTATAT, compile_for_ours, number};
use cell::{c_path, caps, errno_of, fds, landlock};
use model::profile::condition::Verdict;
use sys::bpf;
use sys::fork::fork;
use sys::mount::open_resolved;
use sys::process::{self, Dumpable, Side};
use sys::signals;

/// Directory among the caches with what is to be removed.
const GONE: &str = ".gone";
/// Files that are counted: with more a cache is emptied.
const MAX_FILES: u32 = 1_000_000;
/// Levels of directories that are measured: with more it is emptied.
const DEEPEST: u8 = 100;
/// Steps of priority by which it gives way to others.
const NICE: i32 = 19;
/// Its budget: seconds of a processor, bytes of memory. It writes to no file.
const LIMITS: [(Resource, u64); 3] =
    [(Resource::CPU, 30), (Resource::DATA, 256 << 20), (Resource::FSIZE, 1 << 10)];
pub(super) const DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Its system calls: what it takes to list, count, rename and remove.
const ALLOWED: [Sysno; 33] = [
    Sysno::openat,
    Sysno::close,
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
    Sysno::getpid,
    Sysno::futex,
    Sysno::mmap,
    Sysno::munmap,
    Sysno::mremap,
    Sysno::mprotect,
    Sysno::madvise,
    Sysno::brk,
    Sysno::rt_sigaction,
    Sysno::rt_sigprocmask,
    Sysno::rt_sigreturn,
    Sysno::sigaltstack,
    Sysno::getrandom,
    Sysno::clock_gettime,
    Sysno::restart_syscall,
    Sysno::exit_group,
];

/// What was found the last time that a cache was measured, as the length of its lock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measured {
    Never,
    Fits,
    TooLarge,
}

impl Measured {
    pub(super) fn of(length: u64) -> Self {
        match length {
            0 => Self::Never,
            1 => Self::Fits,
            _ => Self::TooLarge,
        }
    }

    /// Writes it down, with the time.
    pub(super) fn note(self, lock: &File) -> Result<(), Errno> {
        let length = match self {
            Self::Never => 0,
            Self::Fits => 1,
            Self::TooLarge => 2,
        };
        let noted = lock.set_len(length).and_then(|()| lock.set_modified(SystemTime::now()));
        noted.map_err(|error| errno_of(&error))
    }
}

/// A cache that is to be measured.
#[derive(Debug)]
pub(super) struct Unmeasured {
    pub name: String,
    /// Bytes that it may have.
    pub most: u64,
}

/// What there is to do among the caches. It holds none of them: the supervisor would too.
#[derive(Debug)]
pub(super) struct CacheUpkeep {
    caches: PathBuf,
    unmeasured: Option<Unmeasured>,
}

impl CacheUpkeep {
    /// Returns what there is to do in the directory of the caches, which is held, if anything.
    pub(super) fn due(
        held: &OwnedFd,
        caches: PathBuf,
        unmeasured: Option<Unmeasured>,
    ) -> Option<Self> {
        let is_left = fstatat(held, GONE, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok();
        (is_left || unmeasured.is_some()).then_some(Self { caches, unmeasured })
    }

    /// Starts the process. Called once this one waits for no child any more.
    pub(super) fn start(&self) {
        let parent = getpid();
        match signals::forget_children().and_then(|()| fork()) {
            Ok(Side::Child) => {
                let done = std::panic::catch_unwind(AssertUnwindSafe(|| {
                    process::set_death_signal(Signal::SIGKILL)?;
                    // Ended before that: the signal is not sent again.
                    if getppid() == parent { self.run() } else { Err(Errno::ESRCH) }
                }));
                process::exit_now(i32::from(!matches!(done, Ok(Ok(())))));
            }
            Ok(Side::Parent(_)) => {}
            Err(errno) => tracing::info!(%errno, "the caches are measured and emptied later"),
        }
    }

    fn run(&self) -> Result<(), Errno> {
        let caches = open_resolved(&c_path(&self.caches)?)?;
        let caches = owned(openat(caches, ".", DIRECTORY, Mode::empty())?)?;
        let flags = OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = |unmeasured: &Unmeasured| {
            openat(&caches, lock_name(&unmeasured.name).as_str(), flags, Mode::empty())
        };
        let note = self.unmeasured.as_ref().map(opened).transpose()?.map(File::from);
        confine(&caches, note.as_ref())?;
        // One process at a time, of all starts: others wait, and find less to do.
        let own = openat(&caches, ".", DIRECTORY, Mode::empty())?;
        let lock = Flock::lock(own, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
        if let (Some(Unmeasured { name, most }), Some(note)) = (&self.unmeasured, &note) {
            let is_larger = is_larger(&caches, name, *most);
            let measured = if is_larger { Measured::TooLarge } else { Measured::Fits };
            measured.note(note)?;
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

/// Gives up all but the two files that it holds and what lies in the directory of the caches.
fn confine(caches: &OwnedFd, note: Option<&File>) -> Result<(), Errno> {
    process::give_way(NICE)?;
    process::set_dumpable(Dumpable::No)?;
    fds::keep_only(std::iter::once(caches.as_fd()).chain(note.map(AsFd::as_fd)))?;
    for (resource, most) in LIMITS {
        let (_, hard) = rlimit::getrlimit(resource).map_err(|error| errno_of(&error))?;
        let most = most.min(hard);
        rlimit::setrlimit(resource, most, most).map_err(|error| errno_of(&error))?;
    }
    no_core_dumps()?;
    // Emptying the bounding set takes a capability, which only root has here.
    if nix::unistd::geteuid().is_root() {
        caps::drop_bounding(&[])?;
    }
    caps::clear_current()?;
    process::set_no_new_privs()?;
    landlock::removes(landlock::kernel_abi(), caches.as_fd())?.restrict()?;
    let verdicts: BTreeMap<u32, Verdict> =
        ALLOWED.into_iter().map(|call| (number(call), Verdict::Allow)).collect();
    bpf::load(&compile_for_ours(&verdicts, Action::Errno(libc::EPERM))?)
}

/// Returns the name of the lock of a cache.
pub(super) fn lock_name(cache: &str) -> String {
    format!("{cache}.lock")
}

/// Refuses a directory that others can change.
pub(super) fn owned(held: OwnedFd) -> Result<OwnedFd, Errno> {
    let found = fstat(&held)?;
    let is_own = found.st_uid == nix::unistd::geteuid().as_raw() && found.st_mode & 0o022 == 0;
    if is_own { Ok(held) } else { Err(Errno::EPERM) }
}

/// Holds the directory with what is to be removed.
fn gone(caches: &OwnedFd) -> Result<OwnedFd, Errno> {
    opened_up(caches, &c_path(GONE.as_ref())?)?;
    openat(caches, GONE, DIRECTORY, Mode::empty())
}

/// Puts a cache aside, to be removed. This takes as long with a large one.
pub(super) fn put_away(caches: &OwnedFd, name: &str) -> Result<(), Errno> {
    // The directory is removed when it is empty, also by the process of another start.
    for _ in 0..100 {
        match mkdirat(caches, GONE, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        let moved = gone(caches)
            .and_then(|gone| put_aside((caches, &c_path(name.as_ref())?), (&gone, ""), &mut 0));
        if moved != Err(Errno::ENOENT) {
            return moved;
        }
    }
    Err(Errno::ENOENT)
}

/// Returns whether a directory has more bytes, files or levels than it may, or cannot be measured.
fn is_larger(parent: &OwnedFd, name: &str, most: u64) -> bool {
    let mut left = Left { bytes: most, files: MAX_FILES };
    let opened = Dir::openat(parent, name, DIRECTORY, Mode::empty());
    opened.and_then(|directory| left.take(directory, DEEPEST)).is_err()
}

/// Part of the allowance that has not been counted yet.
struct Left {
    bytes: u64,
    files: u32,
}

impl Left {
    /// Counts all in a directory. It holds one directory for each level and no path, so that a cell cannot make it large.
    fn take(&mut self, mut directory: Dir, levels: u8) -> Result<(), Errno> {
        let levels = levels.checked_sub(1).ok_or(Errno::EFBIG)?;
        let held = directory.as_fd().try_clone_to_owned().map_err(|error| errno_of(&error))?;
        for entry in directory.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            // Cells may have removed or replaced it since it was listed.
            let found = match fstatat(&held, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                Err(Errno::ENOENT) => continue,
                found => found?,
            };
            let bytes = u64::try_from(found.st_blocks).unwrap_or(0).saturating_mul(512);
            self.bytes = self.bytes.checked_sub(bytes).ok_or(Errno::EFBIG)?;
            self.files = self.files.checked_sub(1).ok_or(Errno::EFBIG)?;
            if found.st_mode & libc::S_IFMT == libc::S_IFDIR {
                match Dir::openat(&held, name, DIRECTORY, Mode::empty()) {
                    Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
                    opened => self.take(opened?, levels)?,
                }
            }
        }
        Ok(())
    }
}
