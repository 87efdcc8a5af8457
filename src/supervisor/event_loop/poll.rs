//! The descriptors that the loop waits for, listed again for each wait (poll(2)).
//!
//! epoll(7) counts what is watched by host user, and a cell of an ordinary user has that user's count: one
//! cell could use it up, and nothing new could be watched for any other. poll(2) registers nothing, so
//! nothing can be missing when a call needs it.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::outbox::pause;
use crate::cells::cell::{Cell, CellSocket};
use crate::sessions::shell::Shell;
use cell::slot::Slot;

/// The subject of an event: the link, that to the gateway, a process that makes files of a template, or a
/// source of the cell in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    Link,
    Gateway,
    LateFiles,
    Cell(Slot, Source),
}

/// A descriptor of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Pidfd,
    Control,
    Job,
    OutOfMemory,
    /// The report of a session's shell about its call.
    Report,
}

/// The descriptors that the loop waits for.
#[derive(Debug, Default)]
pub(super) struct PollList<'a> {
    tokens: Vec<Token>,
    descriptors: Vec<PollFd<'a>>,
}

impl<'a> PollList<'a> {
    pub(super) fn add(&mut self, token: Token, fd: BorrowedFd<'a>, flags: PollFlags) {
        self.tokens.push(token);
        self.descriptors.push(PollFd::new(fd, flags));
    }

    /// Adds the descriptors of a cell; its end comes last, when all that it reported before has been read.
    pub(super) fn add_cell(&mut self, cell: &'a Cell, shell: Option<&'a Shell>) {
        let report = shell.and_then(Shell::report).map(AsFd::as_fd);
        let sources = [
            (Source::Job, cell.listens(CellSocket::Job).then(|| cell.job.as_fd())),
            (Source::OutOfMemory, cell.out_of_memory.as_ref().map(AsFd::as_fd)),
            (Source::Control, cell.listens(CellSocket::Control).then(|| cell.control.as_fd())),
            (Source::Report, report),
            (Source::Pidfd, Some(cell.pidfd().as_fd())),
        ];
        for (source, fd) in sources {
            if let Some(fd) = fd {
                self.add(Token::Cell(cell.slot, source), fd, PollFlags::POLLIN);
            }
        }
    }

    /// Waits until something happens, at most for `timeout`; returns what happened. It cannot fail: where the kernel
    /// has no memory for all descriptors, or the operator allows fewer than are open, each is polled by itself.
    pub(super) fn wait(mut self, timeout: PollTimeout) -> Vec<(Token, PollFlags)> {
        match poll(&mut self.descriptors, timeout) {
            Ok(_) => self.happened(),
            Err(Errno::EINTR) => Vec::new(),
            Err(errno) => {
                tracing::debug!(%errno, "descriptors are looked at one by one");
                self.one_by_one()
            }
        }
    }

    fn happened(&self) -> Vec<(Token, PollFlags)> {
        let flags = self.descriptors.iter().map(|one| one.revents().unwrap_or(PollFlags::empty()));
        let all = self.tokens.iter().copied().zip(flags);
        all.filter(|(_, flags)| !flags.is_empty()).collect()
    }

    /// Polls one after the other, which takes no memory of the kernel and no room below RLIMIT_NOFILE; pauses
    /// where nothing has happened.
    fn one_by_one(&mut self) -> Vec<(Token, PollFlags)> {
        for one in &mut self.descriptors {
            // A descriptor that cannot be polled now is polled in the next turn.
            poll(std::slice::from_mut(one), PollTimeout::ZERO).unwrap_or_default();
        }
        let happened = self.happened();
        if happened.is_empty() {
            pause();
        }
        happened
    }
}
