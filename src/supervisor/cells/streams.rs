//! The streams of a cell's program, both ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::pipe2;

use cell::Design;

/// The far ends of a job's pipes, for the front end.
#[derive(Debug)]
pub(crate) struct FarEnds {
    pub stdin: Option<OwnedFd>,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

impl FarEnds {
    /// In the order of the frame.
    pub(crate) fn list(&self) -> Vec<BorrowedFd<'_>> {
        let stdin = self.stdin.iter().map(AsFd::as_fd);
        stdin.chain([self.stdout.as_fd(), self.stderr.as_fd()]).collect()
    }
}

/// The streams of a job to come, made while its cell is: then there is time.
#[derive(Debug)]
pub(crate) struct Streams {
    /// The end of the front end first.
    pub stdout: (OwnedFd, OwnedFd),
    pub stderr: (OwnedFd, OwnedFd),
    /// An input that ends at once, for a job that brings none.
    pub empty: OwnedFd,
}

impl Streams {
    /// # Errors
    /// What pipe2(2) or openat(2) say.
    pub(crate) fn new(design: &Design) -> Result<Self, Errno> {
        let empty = null(design, OFlag::O_RDONLY)?;
        Ok(Self { stdout: output()?, stderr: output()?, empty })
    }
}

/// Makes a pipe that the program can open anew for writing, as /dev/stdout: it may have another uid than this process. Nobody can open it for reading.
fn output() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (read, write) = pipe()?;
    fchmod(&write, Mode::S_IWUSR | Mode::S_IWGRP | Mode::S_IWOTH)?;
    Ok((read, write))
}

/// A program that waits for its input.
#[derive(Debug)]
pub(crate) struct Prestarted {
    /// Pipe that it reads from, and the ends of its output.
    pub input: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    /// True once the payload is known to have become it.
    pub execed: bool,
}

impl Prestarted {
    /// Returns the end that a cell which is cloned meanwhile must let go at once: the input ends when nobody has it.
    pub(crate) fn input(&self) -> BorrowedFd<'_> {
        self.input.as_fd()
    }
}

pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    pipe2(OFlag::O_CLOEXEC)
}

/// /dev/null of the template, opened anew, as what a program sets on a description is shared by all
/// who have it. For reading it is an input that ends at once.
pub(crate) fn null(design: &Design, access: OFlag) -> Result<OwnedFd, Errno> {
    openat(&design.devices, "null", access | OFlag::O_CLOEXEC, Mode::empty())
}
