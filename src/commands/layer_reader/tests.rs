//! Tests of the walls of the process that reads a layer.

use std::path::Path;

use nix::sys::socket::socket;
use nix::unistd::execv;

use super::*;
use crate::commands::child;

/// Tries everything that a process taken over would try.
fn attempts(own: &Path, other: &Path) -> Vec<Result<(), Errno>> {
    let opened = |path: &Path, flags| open(path, flags, Mode::empty()).map(drop);
    let forked = || match fork()? {
        Side::Child => process::exit_now(0),
        Side::Parent(child) => process::wait(&child.pidfd),
    };
    // In a child: without the wall the program takes its place.
    let executed = || match fork()? {
        Side::Child => {
            let refused = execv(c"/bin/true", &[c"true"]);
            process::exit_now(refused.map_or_else(sys::raw, |never| match never {}))
        }
        Side::Parent(child) => {
            poll(&mut [PollFd::new(child.pidfd.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
            match process::collect(&child.pidfd)?.and_then(|ended| ended.code) {
                Some(0) => Ok(()),
                code => Err(Errno::from_raw(code.unwrap_or(libc::EINTR))),
            }
        }
    };
    vec![
        opened(&own.join("file"), OFlag::O_RDONLY),
        opened(&other.join("file"), OFlag::O_RDONLY),
        forked(),
        opened(&own.join("file"), OFlag::O_WRONLY),
        opened(&other.join("file"), OFlag::O_WRONLY),
        nix::unistd::unlink(&own.join("file")),
        socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).map(drop),
        nix::sys::signal::kill(nix::unistd::getppid(), None),
        executed(),
    ]
}

#[test]
fn the_process_reads_files_and_changes_or_reaches_nothing() {
    let [own, other] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let written = || {
        for directory in [&own, &other] {
            std::fs::write(directory.path().join("file"), "x").expect("written");
        }
    };
    written();
    let layer = OwnedFd::from(File::open(own.path()).expect("the directory"));
    // Positive control: unconfined, each attempt works.
    assert_eq!(child::in_child(|| attempts(own.path(), other.path())), [0; 9]);
    written();
    let confined = child::in_child(|| match confine(&layer) {
        Ok(()) => attempts(own.path(), other.path()),
        Err(errno) => vec![Err(errno)],
    });
    let walled = libc::EACCES;
    let no = libc::EPERM;
    assert_eq!(confined, [0, 0, 0, walled, walled, no, no, no, no]);
}
