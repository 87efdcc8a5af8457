//! The process that reads the files of a listener again: tokens, keys and certificates.
//!
//! The front end parses what others send, so it can open no file. This process can open the files of a listener, and
//! nothing is sent to it but a byte that asks for all of them. It was made before any of them was read, has no link to
//! the supervisor and no client, and ends with the front end.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::stat::Mode;
use nix::unistd::{read, write};
use rlimit::Resource;
use syscalls::Sysno;

use cell::confine::{BASE, Filter, enclose, limit, one_of, unsigned};
use cell::seccomp::FSTATAT;
use cell::{StepFailed, errno_of, fds, landlock};
use config::HostContext;
use config::http::{secret, trusted};
use sys::fork::fork;
use sys::process::{self, ArgumentPages, Dumpable, Side};
use sys::signals;

/// Byte that asks for the files.
pub(super) const ASK: u8 = b'r';
/// First byte of the answer for a file that was read, and for one that could not be read.
pub(super) const READ: u8 = 1;
pub(super) const FAILED: u8 = 0;
/// Maximum size of a file in bytes.
pub(super) const MAX_BYTES: u64 = 1 << 20;
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

/// Condition under which a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FileKind {
    /// No other user may read it.
    Secret,
    /// No other user may write it, since it decides who is a client.
    Trusted,
    /// A certificate of this server, which clients verify.
    Certificate,
}

/// A file of a listener.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListenerFile {
    pub(super) path: PathBuf,
    pub(super) kind: FileKind,
}

impl ListenerFile {
    /// Reads the file. An error names the path and the reason.
    pub(super) fn read(&self, host: &HostContext) -> Result<String, String> {
        let path = self.path.as_path();
        match self.kind {
            FileKind::Secret => secret(path, host).map_err(|error| error.to_string()),
            FileKind::Trusted => trusted(path, host).map_err(|error| error.to_string()),
            FileKind::Certificate => {
                let text = certificate(path);
                text.map_err(|error| {
                    format!("{}: {}", path.display(), model::outcome::in_words(&error))
                })
            }
        }
    }
}

fn certificate(path: &Path) -> std::io::Result<String> {
    // The open of a FIFO could wait for ever, and that of a device could have an effect.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = fs::File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(Errno::EINVAL.into());
    }
    let mut text = String::new();
    let length = file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    match u64::try_from(length) {
        Ok(length) if length <= MAX_BYTES => Ok(text),
        _ => Err(Errno::EFBIG.into()),
    }
}

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

/// Starts the process. Call it while there is one thread. The process ends when this one does, or when the returned end
/// of the link is closed.
///
/// # Errors
/// If the process cannot be made.
pub(super) fn start(files: &[ListenerFile]) -> Result<OwnedFd, Errno> {
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    match fork()? {
        Side::Child => {
            drop(ours);
            let run = || enter(&theirs, files).and_then(|host| serve(&theirs, files, &host));
            let done = std::panic::catch_unwind(AssertUnwindSafe(run));
            process::exit_now(i32::from(!matches!(done, Ok(Ok(())))));
        }
        Side::Parent(_) => Ok(ours),
    }
}

/// Takes the process from the clone to its confinement.
fn enter(link: &OwnedFd, files: &[ListenerFile]) -> Result<HostContext, Errno> {
    // Erases the operator's arguments and environment, which may hold secrets.
    ArgumentPages::locate().map_err(|error| errno_of(&error))?.clear("cofferdam-reader");
    // Keeps signals of the operator's terminal away.
    nix::unistd::setsid()?;
    process::set_death_signal(Signal::SIGKILL)?;
    process::set_dumpable(Dumpable::No)?;
    if !process::is_open(link)? {
        return Err(Errno::EPIPE);
    }
    silence()?;
    fds::keep_only([link.as_fd()].into_iter())?;
    signals::default_signals()?;
    LIMITS.into_iter().try_for_each(|(resource, value)| limit(resource, value))?;
    let host = HostContext::of_this_process();
    confine(&directories(files))?;
    Ok(host)
}

/// Replaces the three standard streams by /dev/null, so that a client's input does not stay open.
fn silence() -> Result<(), Errno> {
    let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
    (0..3).try_for_each(|number| process::duplicate_inheritable(&null, number))
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
            let (first, text) = match file.read(host) {
                Ok(text) => (READ, text),
                Err(reason) => (FAILED, reason),
            };
            let length = u32::try_from(text.len()).map_err(|_| Errno::EOVERFLOW)?;
            send(link, &[&[first][..], &length.to_le_bytes(), text.as_bytes()].concat())?;
        }
    }
}

fn send(link: &OwnedFd, mut unsent: &[u8]) -> Result<(), Errno> {
    while !unsent.is_empty() {
        match write(link, unsent) {
            Ok(written) => unsent = unsent.get(written..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "../../../tests/support/child.rs"]
mod child;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use nix::sys::socket::socket;

    use super::*;

    /// Tries everything that a process taken over would try.
    fn attempts(own: &Path, other: &Path) -> Vec<Result<(), Errno>> {
        let opened = |path: &Path, flags| open(path, flags, Mode::empty()).map(drop);
        let forked = || match fork()? {
            Side::Child => process::exit_now(0),
            Side::Parent(child) => process::wait(&child.pidfd),
        };
        vec![
            opened(&own.join("token"), OFlag::O_RDONLY),
            opened(&own.join("token"), OFlag::O_WRONLY),
            opened(&other.join("token"), OFlag::O_RDONLY),
            nix::unistd::unlink(&own.join("token")),
            socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).map(drop),
            nix::sys::signal::kill(nix::unistd::getppid(), None),
            forked(),
        ]
    }

    #[test]
    fn the_process_reads_the_directories_of_its_files_and_does_nothing_else() {
        let [own, other] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let written = || {
            for directory in [&own, &other] {
                std::fs::write(directory.path().join("token"), "x").expect("written");
            }
        };
        written();
        let files = [ListenerFile { path: own.path().join("token"), kind: FileKind::Secret }];
        // Positive control: unconfined, each attempt works.
        assert_eq!(child::in_child(|| attempts(own.path(), other.path())), [0; 7]);
        written();
        let confined = child::in_child(|| match confine(&directories(&files)) {
            Ok(()) => attempts(own.path(), other.path()),
            Err(errno) => vec![Err(errno)],
        });
        let walled = libc::EACCES;
        let no = libc::EPERM;
        assert_eq!(confined, [0, walled, walled, no, no, no, no]);
    }

    #[test]
    fn a_file_at_the_root_opens_no_directory() {
        let file = |path: &str| ListenerFile { path: path.into(), kind: FileKind::Trusted };
        assert!(directories(&[file("/token")]).is_empty());
        assert_eq!(directories(&[file("/etc/passwd"), file("/etc/group")]).len(), 1);
    }

    #[test]
    fn each_kind_of_file_has_its_condition() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, "x").expect("written");
        let host = HostContext::of_this_process();
        let read = |mode, kind| {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("its mode");
            ListenerFile { path: path.clone(), kind }.read(&host)
        };
        assert_eq!(read(0o600, FileKind::Secret), Ok("x".to_owned()));
        assert!(read(0o640, FileKind::Secret).is_err_and(|bad| bad.contains("others can read")));
        assert_eq!(read(0o644, FileKind::Trusted), Ok("x".to_owned()));
        assert!(read(0o666, FileKind::Trusted).is_err_and(|bad| bad.contains("others can write")));
        assert_eq!(read(0o666, FileKind::Certificate), Ok("x".to_owned()));
    }

    #[test]
    fn a_fifo_and_a_file_over_its_bound_are_refused_at_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let host = HostContext::of_this_process();
        let kinds = [FileKind::Secret, FileKind::Trusted, FileKind::Certificate];
        let path = directory.path().join("file");
        let full = usize::try_from(MAX_BYTES).expect("it fits");
        for (length, is_right) in [(full, true), (full + 1, false)] {
            std::fs::write(&path, "x".repeat(length)).expect("written");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("its mode");
            for kind in kinds {
                let read = ListenerFile { path: path.clone(), kind }.read(&host);
                assert_eq!(
                    read.map(|text| text.len()).ok(),
                    is_right.then_some(length),
                    "{kind:?}"
                );
            }
        }
        std::fs::remove_file(&path).expect("removed");
        nix::unistd::mkfifo(&path, Mode::from_bits_truncate(0o600)).expect("a FIFO");
        for kind in kinds {
            assert!(ListenerFile { path: path.clone(), kind }.read(&host).is_err(), "{kind:?}");
        }
    }
}
