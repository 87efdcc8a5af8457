//! The cells that the gateway serves: the worker of each, how far its end has come, and the last words of those that
//! are gone.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use model::egress::Egress;
use model::egress::frames::{CallId, CellKey, FromGateway, SocketAnswer, decode, encode};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
use sys::process;
use sys::socket::send_now;

use crate::worker::Begun;

/// Most tallies that are kept of cells that are gone.
const ENDED: usize = 256;
/// Bytes that may wait on the way to a worker with sockets: some thirty answers. Descriptors on their way count for the
/// user, whose other programs need some too (unix(7), ETOOMANYREFS).
const ANSWERS_BYTES: usize = 16 << 10;

/// A cell that has a network.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) egress: Arc<Egress>,
    /// Index of its profile, and the text of its placeholders.
    pub(crate) profile: usize,
    pub(crate) seed: [u8; 16],
    /// The call that began last. Without one no packet is read, and no worker is there.
    pub(crate) begun: Option<Begun>,
    /// Connections of which the supervisor could not be told since its last tally.
    pub(crate) unlisted: u64,
    pub(crate) state: State,
}

/// The gateway's end of a worker's link for sockets.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) link: OwnedFd,
    /// Answer for which the link had no room. No request is read before it is sent.
    pub(crate) waiting: Option<(Vec<u8>, Option<OwnedFd>)>,
    /// False once the worker has closed its end.
    pub(crate) open: bool,
}

#[derive(Debug)]
pub(crate) enum State {
    /// It has not sent a packet.
    Waiting { packets: OwnedFd, lifeline: OwnedFd },
    Working {
        link: OwnedFd,
        sockets: Sockets,
        pidfd: OwnedFd,
        /// Hangs up when the cell ends, which its worker sees too; nothing once that is known.
        lifeline: Option<OwnedFd>,
        ending: Ending,
        /// False once the worker has closed its end of the link.
        open: bool,
        /// Calls about which it was asked and has not answered.
        asked: Vec<CallId>,
    },
    /// Its worker died; it has no network any more.
    Failed,
}

/// How far the end of a worker has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It works. Its exit is the end of the cell's network, however it exits.
    No,
    /// Its cell is gone, and it was told; it must end by then, and gets no more sockets but for its last datagrams.
    By(Instant),
    /// Its cell is gone, and it was killed.
    Killed,
}

/// Last tallies of cells that are gone: a cell may end, and its worker with it, before the supervisor asks.
#[derive(Debug, Default)]
pub(crate) struct Ended(VecDeque<(CellKey, Vec<u8>)>);

impl Ended {
    /// Keeps a frame, in place of one of the same cell.
    pub(crate) fn keep(&mut self, cell: CellKey, frame: Vec<u8>) {
        self.0.retain(|(known, _)| *known != cell);
        self.0.push_back((cell, frame));
        if self.0.len() > ENDED {
            self.0.pop_front();
        }
    }

    /// Returns the tally of a call, if it is one of these.
    pub(crate) fn of(&self, cell: CellKey, call: CallId) -> Option<&[u8]> {
        let (_, frame) = self.0.iter().find(|(known, _)| *known == cell)?;
        match decode(frame) {
            Ok(FromGateway::Tally { call: told, .. }) if told == call => Some(frame),
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

/// The two links between the gateway and a worker: for frames, and for sockets.
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
    /// Sends the answer that waits. Returns false where there is no room for it.
    pub(crate) fn send_waiting(&mut self) -> bool {
        let Some((answer, socket)) = &self.waiting else { return true };
        let fds: Vec<BorrowedFd<'_>> = socket.iter().map(AsFd::as_fd).collect();
        match send_now(&self.link, answer, &fds) {
            Ok(()) => self.waiting = None,
            Err(Errno::EAGAIN) => return false,
            // The user has as many descriptors on their way as may be, or the worker is gone: told as a failure.
            Err(errno) => {
                let failed = SocketAnswer::Failed { errno: sys::raw(errno) };
                self.waiting = encode(&failed).ok().map(|answer| (answer, None));
                let sent =
                    self.waiting.as_ref().map(|(answer, _)| send_now(&self.link, answer, &[]));
                match sent {
                    Some(Err(Errno::EAGAIN)) => return false,
                    // A link that takes nothing is closed, as reading it tells.
                    Some(Ok(()) | Err(_)) | None => self.waiting = None,
                }
            }
        }
        true
    }
}

impl Cell {
    /// Adds what is waited for of the cell.
    pub(crate) fn add_sources<'a>(
        &'a self,
        key: CellKey,
        sources: &mut Vec<(Source, BorrowedFd<'a>, PollFlags)>,
    ) {
        let mut add = |source, fd: &'a OwnedFd, flags| sources.push((source, fd.as_fd(), flags));
        match &self.state {
            State::Waiting { packets, lifeline } => {
                // Packets that come before a call has begun wait, and go nowhere.
                if self.begun.is_some() {
                    add(Source::Packet(key), packets, PollFlags::POLLIN);
                }
                add(Source::Lifeline(key), lifeline, PollFlags::POLLIN);
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

    /// Returns the time by which its worker must have ended, if its cell is gone.
    pub(crate) fn ends_by(&self) -> Option<Instant> {
        match &self.state {
            State::Working { ending: Ending::By(by), .. } => Some(*by),
            State::Working { ending: Ending::No | Ending::Killed, .. }
            | State::Waiting { .. }
            | State::Failed => None,
        }
    }

    /// Kills its worker, whose end nobody needs to be told: the cell is gone.
    pub(crate) fn kill_at_end(&mut self) {
        if let State::Working { pidfd, ending, .. } = &mut self.state {
            *ending = Ending::Killed;
            // It may have ended already.
            process::signal(&*pidfd, Signal::SIGKILL).unwrap_or_default();
        }
    }
}

/// Returns true if there is something to read, or the other end has hung up. A descriptor that cannot be looked at
/// tells nothing.
pub(crate) fn is_ready(fd: &OwnedFd) -> bool {
    let mut waited = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut waited, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
