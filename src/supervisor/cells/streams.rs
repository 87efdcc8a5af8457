//! The streams of a cell's program, both ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::pipe2;

use cell::Design;

/// The front end's ends of a job's pipes.
#[derive(Debug)]
pub(crate) struct FarEnds {
    pub stdin: Option<OwnedFd>,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

impl FarEnds {
    /// Lists the descriptors in the order of the frame.
    pub(crate) fn list(&self) -> Vec<BorrowedFd<'_>> {
        let stdin = self.stdin.iter().map(AsFd::as_fd);
        stdin.chain([self.stdout.as_fd(), self.stderr.as_fd()]).collect()
    }
}

/// The streams of a future job, made while its cell is being set up.
#[derive(Debug)]
pub(crate) struct Streams {
    /// The front end's end first.
    pub stdout: (OwnedFd, OwnedFd),
    pub stderr: (OwnedFd, OwnedFd),
    /// An empty input, for a job without one.
    pub empty: OwnedFd,
}

impl Streams {
    /// Makes the streams.
    ///
    /// # Errors
    /// What pipe2(2) or openat(2) say.
    pub(crate) fn new(design: &Design) -> Result<Self, Errno> {
        let empty = null(design, OFlag::O_RDONLY)?;
        Ok(Self { stdout: output()?, stderr: output()?, empty })
    }
}

/// Makes a pipe that the program can reopen for writing, for example as /dev/stdout, although its
/// uid may differ from this process's. No process can reopen it for reading.
fn output() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (read, write) = pipe()?;
    fchmod(&write, Mode::S_IWUSR | Mode::S_IWGRP | Mode::S_IWOTH)?;
    Ok((read, write))
}

/// A program that waits for its input.
#[derive(Debug)]
pub(crate) struct Prestarted {
    /// The pipe that it reads from, and the ends of its output.
    pub input: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    /// True once the payload is known to have become the program.
    pub execed: bool,
}

impl Prestarted {
    /// Returns the input pipe, which a cell cloned meanwhile must close at once: the program sees
    /// the end of its input only when all copies are closed.
    pub(crate) fn input(&self) -> BorrowedFd<'_> {
        self.input.as_fd()
    }
}

pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    pipe2(OFlag::O_CLOEXEC)
}

/// Opens the template's /dev/null. Each caller gets a separate open file description, whose flags a
/// program could otherwise change for others. For reading it is an empty input.
pub(crate) fn null(design: &Design, access: OFlag) -> Result<OwnedFd, Errno> {
    openat(&design.devices, "null", access | OFlag::O_CLOEXEC, Mode::empty())
}
