//! Ends, streams and life of our processes that the front end starts and that serve it apart.
//!
//! Such a process has a link to the front end and the read end of a pipe to which nothing is written.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::stat::Mode;
use nix::unistd::{pipe2, write};

use sys::{Result, process, signals};

/// The front end's ends of a process.
#[derive(Debug)]
pub struct ProcessEnds {
    /// Link for questions and answers.
    pub link: OwnedFd,
    /// End of a pipe to which nothing is written. The process ends when it is closed.
    pub life: OwnedFd,
}

/// The ends that the process itself holds.
#[derive(Debug)]
pub struct OwnEnds {
    pub link: OwnedFd,
    /// Read end of the pipe.
    pub watched: OwnedFd,
}

/// Makes the ends of a process.
///
/// # Errors
/// The errno of socketpair(2) or pipe2(2).
pub fn ends() -> Result<(ProcessEnds, OwnEnds)> {
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    let (watched, life) = pipe2(OFlag::O_CLOEXEC)?;
    Ok((ProcessEnds { link: ours, life }, OwnEnds { link: theirs, watched }))
}

/// Has the kernel kill this process when the front end ends, also while it waits for a file of a slow file system and
/// reads no link.
///
/// # Errors
/// EPIPE: the front end has ended already.
pub fn tie_to(watched: &OwnedFd) -> Result<()> {
    // Not enough alone: the kernel sends it with the credentials of the parent, and where Landlock scopes signals, the
    // front end can send none to a process outside of its domain.
    process::set_death_signal(Signal::SIGKILL)?;
    signals::kill_at_event(watched)?;
    if process::is_open(watched)? { Ok(()) } else { Err(Errno::EPIPE) }
}

/// Replaces the three standard streams by /dev/null, so that a client's input does not stay open.
///
/// # Errors
/// The errno of open(2) or dup2(2).
pub fn silence() -> Result<()> {
    let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
    (0..3).try_for_each(|number| process::duplicate_inheritable(&null, number))
}

/// Sends all bytes.
///
/// # Errors
/// The errno of write(2): EPIPE if the reader has ended.
pub fn send(link: &OwnedFd, mut unsent: &[u8]) -> Result<()> {
    while !unsent.is_empty() {
        match write(link, unsent) {
            Ok(written) => unsent = unsent.get(written..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
