//! The sandbox of the watcher: Landlock allows it to read one directory, and the filter leaves no
//! way to anything else.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use model::profile::condition::{Op, Test, Verdict, Width};
use nix::errno::Errno;
use nix::libc;
use rlimit::Resource;
use syscalls::Sysno;

use cell::seccomp::{Action, FSTATAT, compile_for_ours, number};
use cell::{caps, landlock};
use sys::bpf::{self, Instruction};
use sys::process::{self, Dumpable};

/// Nice value, so that a storm of changes costs calls little.
const NICE: i32 = 10;

/// Maximum private memory in bytes: enough for the longest report with the lists it is made from
/// and the previous ones.
pub(crate) const MAX_DATA_BYTES: u64 = 1 << 30;
/// Limits of the process (getrlimit(2)): memory, open files, and no file output.
const LIMITS: [(Resource, u64); 3] =
    [(Resource::DATA, MAX_DATA_BYTES), (Resource::NOFILE, 64), (Resource::FSIZE, 0)];

/// Allowed system calls: the link, files below the project, watches, memory, time. `socket`,
/// `clone`, `execve`, `kill` and all calls that write files are absent on purpose. The flags of
/// `openat2` are behind a pointer, but Landlock restricts it.
const ALLOWED: [Sysno; 33] = [
    Sysno::read,
    Sysno::write,
    Sysno::close,
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
    Sysno::clock_nanosleep,
    Sysno::sched_yield,
    Sysno::getpid,
    Sysno::restart_syscall,
    Sysno::exit,
    Sysno::exit_group,
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
    ALLOWED.into_iter().chain(OLDER).chain(before)
}

/// Compiles the filter of the process.
///
/// # Errors
/// E2BIG: the filter itself is wrong.
pub fn program() -> Result<Vec<Instruction>, Errno> {
    let plain = ALLOWED.into_iter().chain(OLDER);
    let mut verdicts: BTreeMap<u32, Verdict> =
        plain.map(|call| (number(call), Verdict::Allow)).collect();
    // The library sets close-on-exec on directories that it reads, and queries their flags.
    let fcntls = [libc::F_GETFD, libc::F_GETFL, libc::F_DUPFD_CLOEXEC];
    let fcntl = fcntls.map(|operation| {
        let value = u64::from(operation.unsigned_abs());
        vec![Test { argument: 1, width: Width::Low32, op: Op::Eq, value }]
    });
    verdicts.insert(number(Sysno::fcntl), Verdict::AllowIf(fcntl.into_iter().collect()));
    compile_for_ours(&verdicts, Action::Errno(libc::EPERM))
}

/// Confines the calling process, which has one thread, to reading below `directory`.
///
/// # Errors
/// The errno of the step that failed; the process must then exit.
pub(crate) fn confine(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    process::give_way(NICE)?;
    bound()?;
    cell::limits::no_core_dumps()?;
    process::set_dumpable(Dumpable::No)?;
    // Emptying the bounding set needs a capability, which only root has here.
    if nix::unistd::geteuid().is_root() {
        caps::drop_bounding(&[])?;
    }
    caps::clear_current()?;
    process::set_no_new_privs()?;
    let abi = landlock::kernel_abi();
    // Without Landlock no profile can be used, so the watcher has nothing to watch for.
    if abi > 0 {
        landlock::reads(abi, directory)?.restrict()?;
    }
    bpf::load(&program()?)
}

/// Sets the limits, or keeps lower ones that the operator has set.
fn bound() -> Result<(), Errno> {
    for (resource, most) in LIMITS {
        let (_, hard) = rlimit::getrlimit(resource).map_err(|error| cell::errno_of(&error))?;
        let most = most.min(hard);
        rlimit::setrlimit(resource, most, most).map_err(|error| cell::errno_of(&error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;

    use crate::ProjectDirectory;
    use nix::fcntl::{OFlag, open};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::signal::Signal;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    use nix::sys::stat::Mode;
    use sys::process::Side;

    use super::*;

    /// Runs `act` in a child process; returns the errno of each result, 0 for success.
    ///
    /// A forked copy of a process with threads may hold an allocator lock for ever: a child that
    /// does not answer is killed, and another is made.
    fn in_child(act: impl Fn() -> Vec<Result<(), Errno>>) -> Vec<i32> {
        let answers = (0..5).find_map(|_| of_one_child(&act));
        answers.expect("one of five children answers")
    }

    fn of_one_child(act: impl Fn() -> Vec<Result<(), Errno>>) -> Option<Vec<i32>> {
        let (read, write) = nix::unistd::pipe().expect("a pipe");
        match sys::fork::fork().expect("a child") {
            Side::Child => {
                let results = act().into_iter();
                let bytes: Vec<u8> = results
                    .flat_map(|result| result.err().map_or(0, sys::raw).to_ne_bytes())
                    .collect();
                let written = nix::unistd::write(&write, &bytes);
                process::exit_now(i32::from(written.is_err()));
            }
            Side::Parent(child) => {
                drop(write);
                let mut ready = [PollFd::new(read.as_fd(), PollFlags::POLLIN)];
                if poll(&mut ready, PollTimeout::from(20_000_u16)).expect("poll") == 0 {
                    process::signal(&child.pidfd, Signal::SIGKILL).expect("killed");
                }
                let mut bytes = [0; 256];
                let length = nix::unistd::read(&read, &mut bytes).expect("its results");
                process::wait(&child.pidfd).expect("its end");
                let (numbers, _) = bytes.get(..length).expect("read").as_chunks::<4>();
                let errnos = numbers.iter().map(|number| i32::from_ne_bytes(*number)).collect();
                (length > 0).then_some(errnos)
            }
        }
    }

    /// Tries everything that a project which took over the process would try.
    fn attempts(
        project: &ProjectDirectory,
        project_path: &Path,
        other: &Path,
    ) -> Vec<Result<(), Errno>> {
        use rustix::fs::{Mode as OpenMode, OFlags, ResolveFlags, openat2};
        let opened = |path: &Path, flags: OFlags| {
            let done = openat2(
                project,
                path,
                flags | OFlags::CLOEXEC,
                OpenMode::empty(),
                ResolveFlags::empty(),
            );
            done.map(drop).map_err(|errno| Errno::from_raw(errno.raw_os_error()))
        };
        let forked = || match sys::fork::fork()? {
            Side::Child => process::exit_now(0),
            Side::Parent(child) => process::wait(&child.pidfd),
        };
        // Addresses matter here, not the contents.
        let taken = |bytes: u64| {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| Errno::ENOMEM)
        };
        vec![
            opened(Path::new("file"), OFlags::RDONLY),
            taken(MAX_DATA_BYTES / 2),
            taken(MAX_DATA_BYTES * 2),
            project.folder(".").map(drop).map_err(|error| cell::errno_of(&error)),
            opened(&project_path.join("file"), OFlags::WRONLY),
            opened(&other.join("file"), OFlags::RDONLY),
            opened(other, OFlags::RDONLY | OFlags::DIRECTORY),
            open(other, OFlag::O_RDONLY, Mode::empty()).map(drop),
            nix::unistd::unlink(&other.join("file")),
            socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).map(drop),
            nix::sys::signal::kill(nix::unistd::getppid(), None),
            forked(),
        ]
    }

    #[test]
    fn the_process_reads_one_directory_and_has_no_other_file_process_or_socket() {
        let [project_dir, other_dir] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let write = || {
            for dir in [&project_dir, &other_dir] {
                std::fs::write(dir.path().join("file"), "x").expect("written");
            }
        };
        write();
        let project = ProjectDirectory::open(project_dir.path()).expect("a directory");
        let try_all = || attempts(&project, project_dir.path(), other_dir.path());
        // Positive control: unconfined, each attempt works.
        assert_eq!(in_child(try_all), [0; 12]);
        write();
        let confined = in_child(|| match confine(project.as_fd()) {
            Ok(()) => try_all(),
            Err(errno) => vec![Err(errno)],
        });
        let no = libc::EPERM;
        let walled = libc::EACCES;
        let full = libc::ENOMEM;
        assert_eq!(confined, [0, 0, full, 0, walled, walled, walled, no, no, no, no, no]);
    }
}
