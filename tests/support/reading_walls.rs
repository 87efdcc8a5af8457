//! The walls of our processes that only read: one table of what each of them can do.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc::{EACCES, EPERM};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::unistd::{execv, getppid, unlink};
use sys::process::{self, Side};

use super::child::in_child;

/// A column of the table.
#[derive(Debug, Clone, Copy)]
#[allow(dead_code, reason = "each crate has some of them")]
pub(crate) enum Reader {
    /// The process that reads the files of a listener again.
    Files,
    /// The process that reads a layer: it forks a child for each question, and reads the host's files too.
    Layer,
    /// The process that watches a project.
    Watcher,
}

/// Attempts of a process that was taken over, and the errno for each [`Reader`].
const TABLE: [(&str, [i32; 3]); 10] = [
    ("read a file of its directory", [0, 0, 0]),
    ("read another file", [EACCES, 0, EACCES]),
    ("list another directory", [EACCES, 0, EACCES]),
    ("write a file of its directory", [EACCES, EACCES, EACCES]),
    ("write another file", [EACCES, EACCES, EACCES]),
    ("remove a file", [EPERM, EPERM, EPERM]),
    ("make a socket", [EPERM, EPERM, EPERM]),
    ("signal a process", [EPERM, EPERM, EPERM]),
    ("fork", [EPERM, 0, EPERM]),
    ("execute a program", [EPERM, EPERM, EPERM]),
];

/// Opens a file by the call that the process may use.
pub(crate) type Open<'a> = &'a dyn Fn(&Path, OFlag) -> Result<(), Errno>;

/// Checks a column: each attempt works before `confine`, and has the errno of the table after it. `own` and `other`
/// are directories.
pub(crate) fn check(
    reader: Reader,
    own: &Path,
    other: &Path,
    open: Open<'_>,
    confine: impl Fn() -> Result<(), Errno>,
) {
    let write_files = || {
        for directory in [own, other] {
            fs::write(directory.join("file"), "x").expect("written");
        }
    };
    write_files();
    let unconfined = in_child(|| attempts(own, other, open));
    assert_eq!(unconfined, [0; TABLE.len()], "the control");
    write_files();
    let confined = in_child(|| match confine() {
        Ok(()) => attempts(own, other, open),
        Err(errno) => vec![Err(errno)],
    });
    let names = || TABLE.iter().map(|(name, _)| *name);
    let column = |errnos: &[i32; 3]| {
        let [files, layer, watcher] = *errnos;
        match reader {
            Reader::Files => files,
            Reader::Layer => layer,
            Reader::Watcher => watcher,
        }
    };
    let expected = TABLE.iter().map(|(_, errnos)| column(errnos));
    let seen: Vec<(&str, i32)> = names().zip(confined).collect();
    assert_eq!(seen, names().zip(expected).collect::<Vec<_>>(), "{reader:?}");
}

/// Makes the attempts of the table, in its order.
fn attempts(own: &Path, other: &Path, open: Open<'_>) -> Vec<Result<(), Errno>> {
    vec![
        open(&own.join("file"), OFlag::O_RDONLY),
        open(&other.join("file"), OFlag::O_RDONLY),
        open(other, OFlag::O_RDONLY | OFlag::O_DIRECTORY),
        open(&own.join("file"), OFlag::O_WRONLY),
        open(&other.join("file"), OFlag::O_WRONLY),
        unlink(&own.join("file")),
        socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).map(drop),
        nix::sys::signal::kill(getppid(), None),
        forked(),
        executed(),
    ]
}

fn forked() -> Result<(), Errno> {
    match sys::fork::fork()? {
        Side::Child => process::exit_now(0),
        Side::Parent(child) => process::wait(&child.pidfd),
    }
}

/// Executes a program in a child, whose place it takes without the wall.
fn executed() -> Result<(), Errno> {
    match sys::fork::fork()? {
        Side::Child => {
            let refused = execv(c"/bin/true", &[c"true"]);
            process::exit_now(refused.map_or_else(sys::raw, |never| match never {}))
        }
        Side::Parent(child) => {
            poll(&mut [PollFd::new(child.pidfd.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
            match process::collect(&child.pidfd)?.and_then(|ended| ended.code) {
                Some(0) => Ok(()),
                code => Err(Errno::from_raw(code.unwrap_or(nix::libc::EINTR))),
            }
        }
    }
}
