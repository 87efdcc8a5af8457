//! The cells that the gateway serves: the state of each worker, and the last tallies of cells that
//! have ended.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use model::egress::frames::{CallId, CellKey, FromGateway, SocketAnswer, decode, encode};
use model::egress::{Egress, Only};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
use sys::process;
use sys::socket::send_now;

/// Maximum number of kept tallies of ended cells.
const MAX_LAST_TALLIES: usize = 256;
/// Send buffer in bytes for answers with sockets to a worker, about thirty answers. Descriptors in
/// flight count towards the user's limit, which other programs share (unix(7), ETOOMANYREFS).
const ANSWERS_BYTES: usize = 16 << 10;

/// The call that a cell serves now, and what it may reach.
#[derive(Debug, Clone)]
pub(crate) struct CurrentCall {
    pub(crate) call: CallId,
    pub(crate) only: Option<Only>,
}

/// A cell that has a network.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) egress: Arc<Egress>,
    /// Index of the cell's profile.
    pub(crate) profile: usize,
    /// Random bytes that the cell's placeholders are made from.
    pub(crate) seed: [u8; 16],
    /// The current call. Before the first one no packet is read and there is no worker.
    pub(crate) begun: Option<CurrentCall>,
    /// Connections missing from the audit log since the last tally, as the link was full.
    pub(crate) unlisted: u64,
    pub(crate) state: State,
}

/// The gateway's end of a worker's link for sockets.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) link: OwnedFd,
    /// Answer that did not fit the link. The next request is read once it is sent.
    pub(crate) waiting: Option<(Vec<u8>, Option<OwnedFd>)>,
    /// False once the worker has closed its end.
    pub(crate) open: bool,
}

#[derive(Debug)]
pub(crate) enum State {
    /// The cell has not sent a packet yet.
    Waiting { packets: OwnedFd, lifeline: OwnedFd },
    Working {
        link: OwnedFd,
        sockets: Sockets,
        pidfd: OwnedFd,
        /// Hangs up when the cell ends, which the worker sees too; `None` once the end is known.
        lifeline: Option<OwnedFd>,
        ending: Ending,
        /// False once the worker has closed its end of the link.
        open: bool,
        /// Calls whose tally the worker was asked for and has not sent.
        open_questions: Vec<CallId>,
    },
    /// The worker died; the cell has no network any more.
    Failed,
}

/// How far the shutdown of a worker has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The worker runs. If it exits, the cell loses its network, whatever the exit code.
    No,
    /// The cell is gone and the worker has been notified. It must exit by this time, and gets no
    /// more sockets except for its last datagrams.
    By(Instant),
    /// The cell is gone, and the worker was killed.
    Killed,
}

/// Last tallies of ended cells: a cell and its worker may end before the supervisor asks.
#[derive(Debug, Default)]
pub(crate) struct LastTallies(VecDeque<(CellKey, Vec<u8>)>);

impl LastTallies {
    /// Keeps a tally frame; replaces an earlier one of the same cell.
    pub(crate) fn keep(&mut self, cell: CellKey, frame: Vec<u8>) {
        self.0.retain(|(known, _)| *known != cell);
        self.0.push_back((cell, frame));
        if self.0.len() > MAX_LAST_TALLIES {
            self.0.pop_front();
        }
    }

    /// Returns the kept tally of a call.
    pub(crate) fn get(&self, cell: CellKey, call: CallId) -> Option<&[u8]> {
        let (_, frame) = self.0.iter().find(|(known, _)| *known == cell)?;
        match decode(frame) {
            Ok(FromGateway::Tally { call: tallied, .. }) if tallied == call => Some(frame),
            Ok(_) | Err(_) => None,
        }
    }
}

/// Event that the loop wakes for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    Supervisor,
    Packet(CellKey),
    Lifeline(CellKey),
    Worker(CellKey),
    Sockets(CellKey),
    Exit(CellKey),
}

pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
}

/// The two links between the gateway and a worker: one for frames, one for sockets.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) ours: (OwnedFd, OwnedFd),
    pub(crate) theirs: (OwnedFd, OwnedFd),
}

pub(crate) fn links() -> Result<Links, Errno> {
    let (frames, their_frames) = pair()?;
    let (sockets, their_sockets) = pair()?;
    setsockopt(&sockets, sockopt::SndBuf, &ANSWERS_BYTES)?;
    Ok(Links { ours: (frames, sockets), theirs: (their_frames, their_sockets) })
}

impl Sockets {
    /// Sends the waiting answer. Returns false if the link has no room.
    pub(crate) fn send_waiting(&mut self) -> bool {
        let Some((answer, socket)) = &self.waiting else { return true };
        let fds: Vec<BorrowedFd<'_>> = socket.iter().map(AsFd::as_fd).collect();
        match send_now(&self.link, answer, &fds) {
            Ok(()) => self.waiting = None,
            Err(Errno::EAGAIN) => return false,
            // The user has too many descriptors in flight, or the worker is gone: report a failure.
            Err(errno) => {
                let failed = SocketAnswer::Failed { errno: sys::raw(errno) };
                self.waiting = encode(&failed).ok().map(|answer| (answer, None));
                let sent =
                    self.waiting.as_ref().map(|(answer, _)| send_now(&self.link, answer, &[]));
                match sent {
                    Some(Err(Errno::EAGAIN)) => return false,
                    // The link is closed; the next read finds out.
                    Some(Ok(()) | Err(_)) | None => self.waiting = None,
                }
            }
        }
        true
    }
}

impl Cell {
    /// Adds the descriptors to poll for this cell.
    pub(crate) fn add_sources<'a>(
        &'a self,
        key: CellKey,
        sources: &mut Vec<(Source, BorrowedFd<'a>, PollFlags)>,
    ) {
        let mut add = |source, fd: &'a OwnedFd, flags| sources.push((source, fd.as_fd(), flags));
        match &self.state {
            State::Waiting { packets, lifeline } => {
                // Before a call has begun, its packets wait in the socket, and so does the end of the cell: a program
                // may have ended before the frame that begins its call is read. The supervisor closes every cell.
                if self.begun.is_some() {
                    add(Source::Packet(key), packets, PollFlags::POLLIN);
                    add(Source::Lifeline(key), lifeline, PollFlags::POLLIN);
                }
            }
            State::Working { link, sockets, pidfd, lifeline, open, .. } => {
                if let Some(lifeline) = lifeline {
                    add(Source::Lifeline(key), lifeline, PollFlags::POLLIN);
                }
                if *open {
                    add(Source::Worker(key), link, PollFlags::POLLIN);
                }
                if sockets.open {
                    let flags = match sockets.waiting {
                        Some(_) => PollFlags::POLLOUT,
                        None => PollFlags::POLLIN,
                    };
                    add(Source::Sockets(key), &sockets.link, flags);
                }
                add(Source::Exit(key), pidfd, PollFlags::POLLIN);
            }
            State::Failed => {}
        }
    }

    /// Returns the deadline for the worker's exit if the cell is gone.
    pub(crate) fn ends_by(&self) -> Option<Instant> {
        match &self.state {
            State::Working { ending: Ending::By(by), .. } => Some(*by),
            State::Working { ending: Ending::No | Ending::Killed, .. }
            | State::Waiting { .. }
            | State::Failed => None,
        }
    }

    /// Kills the worker of a cell that is gone.
    pub(crate) fn kill_at_end(&mut self) {
        if let State::Working { pidfd, ending, .. } = &mut self.state {
            *ending = Ending::Killed;
            // Fails only if the worker has exited already, which its pidfd reports.
            process::signal(&*pidfd, Signal::SIGKILL).unwrap_or_default();
        }
    }
}

/// Returns true if there is something to read or the other end has hung up. A failed poll counts as
/// not ready.
pub(crate) fn is_ready(fd: &OwnedFd) -> bool {
    let mut waited = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut waited, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
