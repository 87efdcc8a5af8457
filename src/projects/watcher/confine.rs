//! The sandbox of the watcher: Landlock allows it to read one directory, and the filter leaves no
//! way to anything else.

use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::libc;
use rlimit::Resource;
use syscalls::Sysno;

use cell::confine::{BASE, Filter, enclose, limit, one_of, unsigned};
use cell::seccomp::FSTATAT;
use cell::{StepFailed, landlock};
use sys::bpf::Instruction;
use sys::process::{self, Dumpable};

/// Nice value, so that a storm of changes costs calls little.
const NICE: i32 = 10;

/// Maximum private memory in bytes: enough for the longest report with the lists it is made from
/// and the previous ones.
pub(crate) const MAX_DATA_BYTES: u64 = 1 << 30;
/// Limits of the process (getrlimit(2)): memory, open files, and no file output.
const LIMITS: [(Resource, u64); 3] =
    [(Resource::DATA, MAX_DATA_BYTES), (Resource::NOFILE, 64), (Resource::FSIZE, 0)];

/// Allowed system calls in addition to [`BASE`]: the link, files below the project, watches. `socket`,
/// `clone`, `execve`, `kill` and all calls that write files are absent on purpose. The flags of
/// `openat2` are behind a pointer, but Landlock restricts it.
const ALLOWED: [Sysno; 17] = [
    Sysno::read,
    Sysno::write,
    Sysno::ppoll,
    Sysno::openat2,
    Sysno::getdents64,
    Sysno::fstat,
    FSTATAT,
    Sysno::statx,
    Sysno::lseek,
    Sysno::fchdir,
    Sysno::inotify_add_watch,
    Sysno::inotify_rm_watch,
    Sysno::geteuid,
    Sysno::mprotect,
    Sysno::clock_nanosleep,
    Sysno::sched_yield,
    Sysno::exit,
];

/// Older names of the same calls.
#[cfg(target_arch = "x86_64")]
const OLDER: [Sysno; 1] = [Sysno::poll];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: [Sysno; 0] = [];

/// Returns every call of the process, including those that set up watches before the filter is
/// loaded.
pub fn calls() -> impl Iterator<Item = Sysno> {
    let before = [Sysno::inotify_init1, Sysno::fstatfs, Sysno::fcntl];
    BASE.into_iter().chain(ALLOWED).chain(OLDER).chain(before)
}

fn filter() -> Filter {
    // The library sets close-on-exec on directories that it reads, and queries their flags.
    let fcntls = [libc::F_GETFD, libc::F_GETFL, libc::F_DUPFD_CLOEXEC];
    let fcntl = (Sysno::fcntl, one_of(1, fcntls.map(unsigned)));
    Filter::of_calls(ALLOWED.into_iter().chain(OLDER)).with([fcntl])
}

/// Compiles the filter of the process.
///
/// # Errors
/// E2BIG: the filter itself is wrong.
pub fn program() -> Result<Vec<Instruction>, Errno> {
    filter().compile()
}

/// Confines the calling process, which has one thread, to reading below `directory`.
///
/// # Errors
/// The errno of the step that failed; the process must then exit.
pub(crate) fn confine(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    process::give_way(NICE)?;
    LIMITS.into_iter().try_for_each(|(resource, value)| limit(resource, value))?;
    process::set_dumpable(Dumpable::No)?;
    enclose(|abi| landlock::reads(abi, [directory]), &filter())
        .map_err(|StepFailed { errno, .. }| errno)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;

    use nix::fcntl::{OFlag, open};
    use nix::sys::stat::Mode;
    use rustix::fs::{Mode as OpenMode, OFlags, ResolveFlags, openat2};

    use super::*;
    use crate::ProjectDirectory;
    use crate::watcher::child::in_child;
    use crate::watcher::reading_walls::{self, Reader};

    /// Opens a file as the process may.
    fn opened(project: &ProjectDirectory, path: &Path, flags: OFlag) -> Result<(), Errno> {
        let flags = OFlags::from_bits_retain(flags.bits().cast_unsigned()) | OFlags::CLOEXEC;
        let done = openat2(project, path, flags, OpenMode::empty(), ResolveFlags::empty());
        done.map(drop).map_err(|errno| Errno::from_raw(errno.raw_os_error()))
    }

    #[test]
    fn the_process_reads_one_directory_and_has_no_other_file_process_or_socket() {
        let [own, other] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let project = ProjectDirectory::open(own.path()).expect("a directory");
        let open = |path: &Path, flags| opened(&project, path, flags);
        let confine = || confine(project.as_fd());
        reading_walls::check(Reader::Watcher, own.path(), other.path(), &open, confine);
    }

    #[test]
    fn the_process_has_bounded_memory_and_opens_by_the_call_that_can_refuse_links() {
        let directory = tempfile::tempdir().expect("a directory");
        let project = ProjectDirectory::open(directory.path()).expect("a directory");
        // Addresses matter here, not the contents.
        let taken = |bytes: u64| {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| Errno::ENOMEM)
        };
        let attempts = || {
            vec![
                project.folder(".").map(drop).map_err(|error| cell::errno_of(&error)),
                taken(MAX_DATA_BYTES / 2),
                taken(MAX_DATA_BYTES * 2),
                open(directory.path(), OFlag::O_RDONLY, Mode::empty()).map(drop),
            ]
        };
        // Positive control: unconfined, each attempt works.
        assert_eq!(in_child(attempts), [0; 4]);
        let confined = in_child(|| match confine(project.as_fd()) {
            Ok(()) => attempts(),
            Err(errno) => vec![Err(errno)],
        });
        assert_eq!(confined, [0, 0, libc::ENOMEM, libc::EPERM]);
    }
}
