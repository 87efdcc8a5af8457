//! Main's side of starting the process, and the way of the process to its confinement.

use std::os::fd::{AsFd, OwnedFd};
use std::panic::AssertUnwindSafe;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use project::{Project, ProjectDirectory, WatchReport, framed};
use rustix::fs::{fstatfs, inotify};
use serde_json::{Map, Value};

use cell::fds;
use sys::fork::fork;
use sys::process::{self, ArgumentPages, Dumpable, Side};
use sys::signals;

use crate::confine;
use crate::rounds::{Notices, Rounds};

/// Kinds of file systems that other machines or programs change behind the kernel's back (statfs(2)): NFS, SMB, CIFS, FUSE,
/// 9P, Ceph, AFS, Coda, shared folders of VirtualBox.
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

/// A project that is to be watched.
#[derive(Debug)]
pub struct WatcherSpec {
    pub directory: ProjectDirectory,
    /// Lists that its `register.sh` made.
    pub lists: Option<Map<String, Value>>,
    /// The project as it was read.
    pub known: Project,
}

/// Starts the process that watches a project. Call it from `main` while there is one thread. It ends when main does, or
/// when the end of the link that is returned is closed.
///
/// # Errors
/// There can be no such process.
pub fn start(spec: WatcherSpec) -> Result<OwnedFd, Errno> {
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    match fork()? {
        Side::Child => {
            drop(ours);
            let done = std::panic::catch_unwind(AssertUnwindSafe(|| run(&theirs, spec)));
            process::exit_now(i32::from(done.is_err()));
        }
        Side::Parent(_) => Ok(ours),
    }
}

/// Runs the process to its end.
fn run(link: &OwnedFd, spec: WatcherSpec) {
    let notices = notices(&spec.directory);
    match enter(link, &spec, &notices) {
        Ok(()) => Rounds::new(spec, notices).serve(link),
        Err((step, errno)) => {
            let report = WatchReport::Unwatched(format!("{step}: {}", errno.desc()));
            if let Some(frame) = framed(&report) {
                // Where nobody reads it, the end of the link tells as much.
                nix::unistd::write(link, &frame).unwrap_or_default();
            }
        }
    }
}

/// Opens what tells of changes, if anything does.
fn notices(directory: &ProjectDirectory) -> Notices {
    let kind = fstatfs(directory).map(|found| found.f_type);
    let kind = kind.ok().and_then(|kind| u32::try_from(kind & 0xffff_ffff).ok());
    if kind.is_some_and(|kind| REMOTE.contains(&kind)) {
        let why = "the project is on a file system that other machines change";
        return Notices::None(why.to_owned());
    }
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    match inotify::init(flags) {
        Ok(queue) => Notices::Queue(queue),
        Err(errno) => Notices::None(format!("inotify: {}", std::io::Error::from(errno))),
    }
}

/// Takes the process from the clone to its confinement.
fn enter(
    link: &OwnedFd,
    spec: &WatcherSpec,
    notices: &Notices,
) -> Result<(), (&'static str, Errno)> {
    let at = |step: &'static str| move |errno: Errno| (step, errno);
    let pages = ArgumentPages::locate();
    let pages = pages.map_err(|error| ("finding the environment", cell::errno_of(&error)))?;
    // The operator's arguments and environment, which may hold secrets.
    pages.clear("cofferdam-watcher");
    // No signal from the operator's terminal reaches it.
    nix::unistd::setsid().map(drop).map_err(at("starting a session"))?;
    become_owner(&spec.directory).map_err(at("becoming the project's owner"))?;
    // After the last change of ids, which resets both.
    process::set_death_signal(Signal::SIGKILL).map_err(at("tying its life to main"))?;
    process::set_dumpable(Dumpable::No).map_err(at("becoming untraceable"))?;
    if !process::is_open(link).map_err(at("looking at the link"))? {
        return Err(("looking at the link", Errno::EPIPE));
    }
    silence().map_err(at("letting the operator's streams go"))?;
    let queue = match notices {
        Notices::Queue(queue) => Some(queue.as_fd()),
        Notices::None(_) => None,
    };
    let kept = [link.as_fd(), spec.directory.as_fd()].into_iter().chain(queue);
    fds::keep_only(kept).map_err(at("closing descriptors"))?;
    signals::default_signals().map_err(at("giving signals their default effect"))?;
    confine::confine(spec.directory.as_fd()).map_err(at("confining it"))
}

/// Gives root's ids up for those of the project's owner: without capabilities root could not read what is that user's.
fn become_owner(directory: &ProjectDirectory) -> Result<(), Errno> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = directory.owner().map_err(|error| cell::errno_of(&error))?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    if uid.is_root() {
        return Ok(());
    }
    setgroups(&[])?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)
}

/// Puts /dev/null on the three streams: a client's input would stay open otherwise.
fn silence() -> Result<(), Errno> {
    let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
    for number in 0..3 {
        process::duplicate_inheritable(&null, number)?;
    }
    Ok(())
}
