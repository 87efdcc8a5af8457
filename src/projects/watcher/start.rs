//! Starts the watcher from main, and takes the new process to its confinement.

use std::os::fd::AsFd;
use std::panic::AssertUnwindSafe;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::fs::{fstatfs, inotify};

use cell::fds;
use cell::tied::{self, OwnEnds, ProcessEnds};
use sys::fork::fork;
use sys::process::{self, ArgumentPages, Dumpable, Side};
use sys::signals;

use super::confine;
use super::reports::{WatchReport, framed};
use super::rounds::{Notices, Rounds, WatcherSpec};
use crate::ProjectDirectory;

/// File systems that other machines or programs change without the kernel's knowledge (statfs(2)):
/// NFS, SMB, CIFS, FUSE, 9P, Ceph, AFS, Coda, VirtualBox shared folders.
const REMOTE: [u32; 10] = [
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x6573_5546,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
    0x7375_7245,
    0x786f_4256,
];

/// Starts the process that watches a project. Call it from `main` while there is one thread. The
/// process ends when main does, or when the returned ends are closed.
///
/// # Errors
/// If the process cannot be made.
pub fn start(spec: WatcherSpec) -> Result<ProcessEnds, Errno> {
    let (ours, own) = tied::ends()?;
    match fork()? {
        Side::Child => {
            drop(ours);
            let done = std::panic::catch_unwind(AssertUnwindSafe(|| run(&own, spec)));
            process::exit_now(i32::from(done.is_err()));
        }
        Side::Parent(_) => Ok(ours),
    }
}

/// Runs the process to its end.
fn run(own: &OwnEnds, spec: WatcherSpec) {
    // First: the project may be on a file system that does not answer.
    if tied::tie_to(&own.watched).is_err() {
        return;
    }
    let notices = notices(&spec.directory);
    match enter(own, &spec, &notices) {
        Ok(()) => Rounds::new(spec, notices).serve(&own.link),
        Err((step, errno)) => {
            let report = WatchReport::Unwatched(format!("{step}: {}", errno.desc()));
            if let Some(frame) = framed(&report) {
                // Without a reader, the closed link itself reports the failure.
                tied::send(&own.link, &frame).unwrap_or_default();
            }
        }
    }
}

/// Opens an inotify queue, if changes are notified for this file system.
fn notices(directory: &ProjectDirectory) -> Notices {
    let kind = fstatfs(directory).map(|status| status.f_type);
    let kind = kind.ok().and_then(|kind| u32::try_from(kind & 0xffff_ffff).ok());
    if kind.is_some_and(|kind| REMOTE.contains(&kind)) {
        let reason = "the project is on a file system that other machines change";
        return Notices::None(reason.to_owned());
    }
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    match inotify::init(flags) {
        Ok(queue) => Notices::Queue(queue),
        Err(errno) => Notices::None(format!("inotify: {}", std::io::Error::from(errno))),
    }
}

/// Takes the process from the clone to its confinement.
fn enter(
    own: &OwnEnds,
    spec: &WatcherSpec,
    notices: &Notices,
) -> Result<(), (&'static str, Errno)> {
    let at = |step: &'static str| move |errno: Errno| (step, errno);
    let pages = ArgumentPages::locate();
    let pages = pages.map_err(|error| ("finding the environment", cell::errno_of(&error)))?;
    // Erases the operator's arguments and environment, which may hold secrets.
    pages.clear("cofferdam-watcher");
    // Keeps signals of the operator's terminal away.
    nix::unistd::setsid().map(drop).map_err(at("starting a session"))?;
    become_owner(&spec.directory).map_err(at("becoming the project's owner"))?;
    // After the last change of ids, which resets both; the tie to the pipe stays.
    process::set_death_signal(Signal::SIGKILL).map_err(at("tying its life to main"))?;
    process::set_dumpable(Dumpable::No).map_err(at("becoming untraceable"))?;
    tied::silence().map_err(at("letting the operator's streams go"))?;
    let queue = match notices {
        Notices::Queue(queue) => Some(queue.as_fd()),
        Notices::None(_) => None,
    };
    let kept = [own.link.as_fd(), own.watched.as_fd(), spec.directory.as_fd()];
    let kept = kept.into_iter().chain(queue);
    fds::keep_only(kept).map_err(at("closing descriptors"))?;
    signals::default_signals().map_err(at("giving signals their default effect"))?;
    confine::confine(spec.directory.as_fd()).map_err(at("confining it"))
}

/// Switches from root's ids to those of the project's owner: without capabilities root could not
/// read that user's files.
fn become_owner(directory: &ProjectDirectory) -> Result<(), Errno> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = directory.owner().map_err(|error| cell::errno_of(&error))?;
    let uid = Uid::from_raw(uid);
    let gid = Gid::from_raw(gid);
    if uid.is_root() {
        return Ok(());
    }
    setgroups(&[])?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)
}
