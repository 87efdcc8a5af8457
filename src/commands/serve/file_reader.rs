//! The process that reads the files of a listener again: tokens, keys and certificates.
//!
//! The front end parses what others send, so it can open no file. This process can open the files of a listener, and
//! nothing is sent to it but a byte that asks for all of them. It was made before any of them was read, has no link to
//! the supervisor and no client, and ends with the front end. Tokens stay in it: their hashes are sent.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::read;
use rlimit::Resource;
use syscalls::Sysno;

use super::file_frames;
use super::listener_file::ListenerFile;
use cell::confine::{BASE, Filter, enclose, limit, one_of, unsigned};
use cell::seccomp::FSTATAT;
use cell::tied::{self, OwnEnds, ProcessEnds};
use cell::{StepFailed, errno_of, fds, landlock};
use config::HostContext;
use sys::fork::fork;
use sys::process::{self, ArgumentPages, Dumpable, Side};
use sys::signals;

/// Byte that asks for the files.
pub(super) const ASK: u8 = b'r';
/// Limits of the process (getrlimit(2)): memory, open files, and no file output.
const LIMITS: [(Resource, u64); 3] =
    [(Resource::DATA, 256 << 20), (Resource::NOFILE, 64), (Resource::FSIZE, 0)];

/// Allowed system calls in addition to [`BASE`]: the link, and files that Landlock allows to read. `socket`, `clone`,
/// `execve`, `kill` and all calls that change files are absent on purpose.
const ALLOWED: [Sysno; 13] = [
    Sysno::read,
    Sysno::write,
    Sysno::ppoll,
    Sysno::openat,
    Sysno::fstat,
    FSTATAT,
    Sysno::statx,
    Sysno::lseek,
    Sysno::readlinkat,
    Sysno::getuid,
    Sysno::geteuid,
    Sysno::mprotect,
    Sysno::sched_yield,
];

/// Older names of the same calls.
#[cfg(target_arch = "x86_64")]
const OLDER: [Sysno; 5] = [Sysno::open, Sysno::stat, Sysno::lstat, Sysno::readlink, Sysno::poll];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: [Sysno; 0] = [];

/// Returns every call of the process, including those of its set-up.
pub(in crate::commands) fn calls() -> impl Iterator<Item = Sysno> {
    BASE.into_iter().chain(ALLOWED).chain(OLDER).chain([Sysno::fcntl])
}

fn filter() -> Filter {
    // The C library sets close-on-exec on files that it opens.
    let fcntls = [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_DUPFD_CLOEXEC];
    let fcntl = (Sysno::fcntl, one_of(1, fcntls.map(unsigned)));
    Filter::of_calls(ALLOWED.into_iter().chain(OLDER)).with([fcntl])
}

/// Starts the process. Call it while there is one thread. The process ends when this one does, or when the returned ends
/// are closed.
///
/// # Errors
/// If the process cannot be made.
pub(super) fn start(files: &[ListenerFile]) -> Result<ProcessEnds, Errno> {
    let (ours, own) = tied::ends()?;
    match fork()? {
        Side::Child => {
            drop(ours);
            let run = || {
                let host = enter(&own, files)?;
                serve(&own.link, files, &host)
            };
            let done = std::panic::catch_unwind(AssertUnwindSafe(run));
            process::exit_now(i32::from(!matches!(done, Ok(Ok(())))));
        }
        Side::Parent(_) => Ok(ours),
    }
}

/// Takes the process from the clone to its confinement.
fn enter(own: &OwnEnds, files: &[ListenerFile]) -> Result<HostContext, Errno> {
    // Erases the operator's arguments and environment, which may hold secrets.
    ArgumentPages::locate().map_err(|error| errno_of(&error))?.clear("cofferdam-reader");
    // Keeps signals of the operator's terminal away.
    nix::unistd::setsid()?;
    tied::tie_to(&own.watched)?;
    process::set_dumpable(Dumpable::No)?;
    tied::silence()?;
    fds::keep_only([own.link.as_fd(), own.watched.as_fd()].into_iter())?;
    signals::default_signals()?;
    LIMITS.into_iter().try_for_each(|(resource, value)| limit(resource, value))?;
    let host = HostContext::of_this_process();
    confine(&directories(files))?;
    Ok(host)
}

/// Confines the calling process, which has one thread, to reading below these directories.
fn confine(directories: &[OwnedFd]) -> Result<(), Errno> {
    let rules = |abi| landlock::reads(abi, directories.iter().map(AsFd::as_fd));
    enclose(rules, &filter()).map_err(|StepFailed { errno, .. }| errno)
}

/// Opens the directories of the files, and those that links lead to. Another file can take the place of one in its
/// directory. A directory that is absent has no file that could be read.
fn directories(files: &[ListenerFile]) -> Vec<OwnedFd> {
    let mut all = BTreeSet::new();
    for ListenerFile { path, .. } in files {
        let led_to = fs::canonicalize(path).ok();
        let parents = [Some(path.as_path()), led_to.as_deref()].into_iter().flatten();
        all.extend(parents.filter_map(Path::parent).map(Path::to_owned));
    }
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    // The root would be all files.
    let named = all.iter().filter(|path| path.as_os_str() != OsStr::new("/"));
    named.filter_map(|path| open(path, flags, Mode::empty()).ok()).collect()
}

/// Answers until the link ends.
fn serve(link: &OwnedFd, files: &[ListenerFile], host: &HostContext) -> Result<(), Errno> {
    loop {
        let mut asked = [0];
        match read(link, &mut asked) {
            Ok(0) => return Ok(()),
            Ok(_) if asked == [ASK] => {}
            Ok(_) => return Err(Errno::EPROTO),
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno),
        }
        for file in files {
            let frame = file_frames::encode(file.read(host)).map_err(|error| errno_of(&error))?;
            let length = u32::try_from(frame.len()).map_err(|_| Errno::EOVERFLOW)?;
            tied::send(link, &[&length.to_le_bytes(), frame.as_slice()].concat())?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::reading_walls::{self, Reader};
    use crate::commands::serve::listener_file::FileKind;

    #[test]
    fn the_process_reads_the_directories_of_its_files_and_does_nothing_else() {
        let [own, other] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let files = [ListenerFile { path: own.path().join("file"), kind: FileKind::Key }];
        let opened = |path: &Path, flags| open(path, flags, Mode::empty()).map(drop);
        let confine = || confine(&directories(&files));
        reading_walls::check(Reader::Files, own.path(), other.path(), &opened, confine);
    }

    #[test]
    fn a_file_at_the_root_opens_no_directory() {
        let file = |path: &str| ListenerFile { path: path.into(), kind: FileKind::Trusted };
        assert!(directories(&[file("/token")]).is_empty());
        assert_eq!(directories(&[file("/etc/passwd"), file("/etc/group")]).len(), 1);
    }
}
