//! The process that reads the layer of a served workspace, to show an agent what `cofferdam review` lists.
//!
//! The front end parses what others send, so it can open no file. `main` makes this process before the
//! front end has a client; a server without a layer starts no such process. It waits for questions and forks a child
//! for each: the child looks at what the host obeys in the directory, confines itself as a review does
//! to reading the directory and the layer ([`crate::commands::review::confine`]), and only then parses
//! the question and opens what cells wrote ([`answer`]). This process passes bytes on, within bounds of
//! length and time, and starts nothing else. It can read files and never write one.
//!
//! The host's files are read with the rights that cells have, so that no diff shows what a cell could
//! not read. For other users than root these are the rights of this process, supplementary groups
//! included. If root starts the server, the child takes the owner and the group of the directory, which
//! are what the cells' mounts map. The files of
//! the layer belong to root then; an id-mapped mount shows them as the owner's.

mod answer;

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{pipe2, read};
use rlimit::Resource;
use syscalls::Sysno;

use crate::commands::layers::files::DIRECTORY;
use crate::commands::layers::layer::{Base, Layer};
use cell::confine::{Filter, enclose, limit, narrow};
use cell::seccomp::FSTATAT;
use cell::tied::{self, OwnEnds, ProcessEnds};
use cell::{StepFailed, c_path, caps, errno_of, fds, landlock};
use service::layer::{ANSWERED, FAILED, MAX_ANSWER_BYTES, MAX_QUERY_BYTES};
use supervisor::FileId;
use sys::fork::fork;
use sys::mount::open_resolved;
use sys::process::{self, ArgumentPages, Dumpable, Side};
use sys::signals;

/// Time for one answer: a walk through the directory and through the layer.
const MAX_TIME: Duration = Duration::from_secs(60);
/// Nice value, so that long lists cost calls little.
const NICE: i32 = 10;
/// Limits of the processes (getrlimit(2)): memory for the longest list, directories in each other, and
/// no file output.
const LIMITS: [(Resource, u64); 3] =
    [(Resource::DATA, 1 << 30), (Resource::NOFILE, 1024), (Resource::FSIZE, 0)];
/// Variables by which the configuration of git is found.
const KEPT_VARIABLES: [&str; 4] =
    ["HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"];

/// System calls of the two processes until the child confines itself: what they need to fork, to pass
/// bytes on, and to search the directory for what the host obeys. Calls that change files, run
/// programs or reach other processes are absent on purpose.
const ALLOWED: [Sysno; 54] = [
    Sysno::read,
    Sysno::write,
    Sysno::ppoll,
    Sysno::pipe2,
    Sysno::clone,
    Sysno::waitid,
    Sysno::pidfd_send_signal,
    Sysno::close_range,
    Sysno::socketpair,
    Sysno::sendto,
    Sysno::recvfrom,
    Sysno::openat,
    Sysno::openat2,
    Sysno::getdents64,
    Sysno::fstat,
    FSTATAT,
    Sysno::statx,
    Sysno::fstatfs,
    Sysno::statfs,
    Sysno::lseek,
    Sysno::readlinkat,
    Sysno::faccessat,
    Sysno::faccessat2,
    Sysno::fgetxattr,
    Sysno::fcntl,
    Sysno::flock,
    Sysno::ioctl,
    Sysno::dup,
    Sysno::dup3,
    Sysno::getuid,
    Sysno::geteuid,
    Sysno::getgid,
    Sysno::getegid,
    Sysno::getppid,
    Sysno::gettid,
    Sysno::getgroups,
    Sysno::setgroups,
    Sysno::setresgid,
    Sysno::setresuid,
    Sysno::setfsgid,
    Sysno::setfsuid,
    Sysno::capget,
    Sysno::capset,
    Sysno::prctl,
    Sysno::prlimit64,
    Sysno::seccomp,
    Sysno::landlock_create_ruleset,
    Sysno::landlock_add_rule,
    Sysno::landlock_restrict_self,
    Sysno::mprotect,
    Sysno::sched_yield,
    Sysno::sched_getaffinity,
    Sysno::clock_nanosleep,
    Sysno::set_robust_list,
];

/// Older names of the same calls.
#[cfg(target_arch = "x86_64")]
const OLDER: [Sysno; 7] = [
    Sysno::open,
    Sysno::stat,
    Sysno::lstat,
    Sysno::readlink,
    Sysno::poll,
    Sysno::dup2,
    Sysno::access,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: [Sysno; 0] = [];

/// The layer of the workspace that a server takes.
#[derive(Debug, Clone)]
pub(crate) struct ServedLayer {
    id: String,
    /// Path without links.
    path: PathBuf,
    file: FileId,
    base: Base,
}

impl ServedLayer {
    pub(crate) fn of(layer: &Layer, file: FileId) -> Self {
        let Layer { id, path, base, .. } = layer;
        Self { id: id.clone(), path: path.clone(), file, base: base.clone() }
    }

    /// Opens the layer; nothing is locked.
    ///
    /// # Errors
    /// ESTALE: another directory is at its path.
    fn open(&self) -> Result<OpenLayer, Errno> {
        let held = open_resolved(&c_path(&self.path)?)?;
        if FileId::of_file(&held)? != self.file {
            return Err(Errno::ESTALE);
        }
        let directory = openat(&held, ".", DIRECTORY, Mode::empty())?;
        let status = fstat(&directory)?;
        let on_disk = (status.st_uid, status.st_gid);
        let takes_ids = self.base.owner.ids();
        let directory = match takes_ids {
            Some(ids) => supervisor::shown_as(&directory, on_disk, ids)?,
            None => directory,
        };
        let Self { id, path, base, .. } = self.clone();
        Ok(OpenLayer {
            layer: Layer { id, path, directory, base, lock: None, applying: None },
            takes_ids,
        })
    }
}

/// The layer as the child reads it.
#[derive(Debug)]
struct OpenLayer {
    layer: Layer,
    /// Ids of the directory's owner, if root takes them.
    takes_ids: Option<(u32, u32)>,
}

/// Starts the process. Call it while there is one thread. The process ends when this one does, or when the returned ends
/// are closed.
///
/// # Errors
/// If the layer cannot be opened, or the process cannot be made.
pub(crate) fn start(layer: &ServedLayer) -> Result<ProcessEnds, Errno> {
    let opened = layer.open()?;
    let (ours, own) = tied::ends()?;
    match fork()? {
        Side::Child => {
            drop(ours);
            let run = || {
                enter(&own, &opened)?;
                serve(&own.link, &opened)
            };
            let done = std::panic::catch_unwind(AssertUnwindSafe(run));
            process::exit_now(i32::from(!matches!(done, Ok(Ok(())))));
        }
        Side::Parent(_) => Ok(ours),
    }
}

/// Takes the process from the clone to its confinement.
fn enter(own: &OwnEnds, opened: &OpenLayer) -> Result<(), Errno> {
    let pages = ArgumentPages::locate().map_err(|error| errno_of(&error))?;
    // Erases the operator's arguments and environment, which may hold secrets.
    pages.clear_but("cofferdam-layer", &KEPT_VARIABLES);
    // Keeps signals of the operator's terminal away.
    nix::unistd::setsid()?;
    // It ends also while it waits for a child.
    tied::tie_to(&own.watched)?;
    process::set_dumpable(Dumpable::No)?;
    tied::silence()?;
    let kept = [own.link.as_fd(), own.watched.as_fd(), opened.layer.directory.as_fd()];
    fds::keep_only(kept.into_iter())?;
    signals::default_signals()?;
    process::give_way(NICE)?;
    LIMITS.into_iter().try_for_each(|(resource, value)| limit(resource, value))?;
    confine(&opened.layer.directory)
}

/// Confines the calling process, which has one thread, to reading files.
fn confine(layer: &OwnedFd) -> Result<(), Errno> {
    let root = open("/", OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    // The mount of the layer is attached nowhere.
    let rules = |abi| landlock::reads(abi, [root.as_fd(), layer.as_fd()]);
    let filter = Filter::of_calls(calls());
    let done = match nix::unistd::geteuid().is_root() {
        // Until a child takes the ids of the owner, it reads root's own configuration as a review does.
        true => {
            caps::keep_readers()?;
            process::set_no_new_privs()?;
            narrow(rules, &filter)
        }
        false => enclose(rules, &filter),
    };
    done.map_err(|StepFailed { errno, .. }| errno)
}

/// Returns every call of the process after its set-up, in addition to those of each confined process.
pub(in crate::commands) fn calls() -> impl Iterator<Item = Sysno> {
    ALLOWED.into_iter().chain(OLDER)
}

/// Answers until the link ends.
fn serve(link: &OwnedFd, opened: &OpenLayer) -> Result<(), Errno> {
    while let Some(query) = next_query(link)? {
        let (first, bytes) = match ask_child(link, opened, &query) {
            Ok(answer) => (ANSWERED, answer),
            Err(reason) => (FAILED, reason.into_bytes()),
        };
        let length = u32::try_from(bytes.len()).map_err(|_| Errno::EOVERFLOW)?;
        tied::send(link, &[&[first][..], &length.to_le_bytes(), &bytes].concat())?;
    }
    Ok(())
}

/// Receives the bytes of a question; `None` at the end of the link.
fn next_query(link: &OwnedFd) -> Result<Option<Vec<u8>>, Errno> {
    let mut head = [0; 4];
    if !fill(link, &mut head)? {
        return Ok(None);
    }
    let length = usize::try_from(u32::from_le_bytes(head)).map_err(|_| Errno::EPROTO)?;
    if length > MAX_QUERY_BYTES {
        return Err(Errno::EPROTO);
    }
    let mut query = vec![0; length];
    Ok(fill(link, &mut query)?.then_some(query))
}

/// Fills `bytes`; returns false at the end of the link.
fn fill(link: &OwnedFd, mut bytes: &mut [u8]) -> Result<bool, Errno> {
    while !bytes.is_empty() {
        match read(link, bytes) {
            Ok(0) => return Ok(false),
            Ok(length) => bytes = bytes.get_mut(length..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

/// Has a child answer a question. The child is killed in any case: the front end refuses an incomplete
/// answer.
fn ask_child(link: &OwnedFd, opened: &OpenLayer, query: &[u8]) -> Result<Vec<u8>, String> {
    let failed = |errno: Errno| format!("the layer cannot be read: {}", errno.desc());
    let (ours, theirs) = pipe2(OFlag::O_CLOEXEC).map_err(failed)?;
    let child = match fork().map_err(failed)? {
        Side::Child => {
            drop(ours);
            let run = || answer_alone(link, &theirs, opened, query);
            let done = std::panic::catch_unwind(AssertUnwindSafe(run));
            process::exit_now(i32::from(!matches!(done, Ok(Ok(())))));
        }
        Side::Parent(child) => child,
    };
    drop(theirs);
    let answer = collect(&File::from(ours));
    // It may have ended by itself.
    let killed = process::signal(&child.pidfd, Signal::SIGKILL);
    let waited = process::wait(&child.pidfd);
    if killed.is_err_and(|errno| errno != Errno::ESRCH) || waited.is_err() {
        return Err("the layer cannot be read: a process does not end".to_owned());
    }
    answer
}

/// Answers in the child.
fn answer_alone(
    link: &OwnedFd,
    to: &OwnedFd,
    opened: &OpenLayer,
    query: &[u8],
) -> Result<(), Errno> {
    process::set_death_signal(Signal::SIGKILL)?;
    if !process::is_open(link)? {
        return Err(Errno::EPIPE);
    }
    fds::close(link.as_fd())?;
    let answer = answer::to(opened, query);
    let bytes = serde_json::to_vec(&answer).map_err(|_| Errno::EINVAL)?;
    tied::send(to, &bytes)
}

/// Receives what the child writes until its end.
fn collect(from: &File) -> Result<Vec<u8>, String> {
    let end = Instant::now() + MAX_TIME;
    let mut answer = Vec::new();
    let mut part = [0; 64 << 10];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(from.as_fd(), PollFlags::POLLIN)], left) {
            Ok(0) => {
                return Err(format!(
                    "the layer could not be read within {} s: name a `path` to read less of it",
                    MAX_TIME.as_secs()
                ));
            }
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno.desc().to_owned()),
        }
        let mut from = from;
        let length = from.read(&mut part).map_err(|error| errno_of(&error).desc().to_owned())?;
        if length == 0 {
            break;
        }
        answer.extend_from_slice(part.get(..length).unwrap_or_default());
        if answer.len() > MAX_ANSWER_BYTES {
            return Err("the answer about the layer is too long".to_owned());
        }
    }
    match answer.is_empty() {
        true => Err("the layer could not be read: the process for it ended".to_owned()),
        false => Ok(answer),
    }
}

#[cfg(test)]
mod tests;
