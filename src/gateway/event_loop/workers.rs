//! The workers of cells: their start, their frames and socket requests, and their exit.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use model::egress::Protocol;
use model::egress::frames::{
    CallId, CellKey, FRAME_BYTES, FromGateway, SocketAnswer, SocketRequest, decode, encode,
    encode_tally,
};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use sys::fork::fork;
use sys::process::{self, Side};
use sys::socket::{PacketWait, receive, receive_into, send_now};

use super::{Gateway, WORKER_DIED};
use crate::cells::{Cell, Ending, LastTallies, Links, Sockets, State, is_ready, links};
use crate::{confine, worker};

/// Socket requests of one worker that are answered in a row before other events have their turn.
const REQUESTS_IN_A_ROW: usize = 16;

impl Gateway<'_> {
    /// Forks the worker of a cell if its first packet has come but was not handled yet.
    pub(super) fn start_worker_if_ready(&mut self, key: CellKey) {
        if let Some(Cell { state: State::Waiting { packets, .. }, .. }) = self.cells.get(&key)
            && is_ready(packets)
        {
            self.first_packet(key);
        }
    }

    /// Forks the worker of a cell that has sent its first packet.
    pub(super) fn first_packet(&mut self, key: CellKey) {
        let Some(cell) = self.cells.get_mut(&key) else { return };
        let Some(begun) = cell.begun.clone() else { return };
        let state = std::mem::replace(&mut cell.state, State::Failed);
        let State::Waiting { packets, lifeline } = state else {
            // A frame of this turn has started the worker already.
            cell.state = state;
            return;
        };
        let ours = lifeline.try_clone().map_err(|error| cell::errno_of(&error));
        let made = ours.and_then(|ours| links().map(|links| (ours, links)));
        match made.and_then(|made| fork().map(|side| (made, side))) {
            Ok(((lifeline_here, Links { ours, theirs: (theirs, sockets) }), Side::Child)) => {
                drop((lifeline_here, ours));
                let egress = Arc::clone(&cell.egress);
                let intercepts = egress.rules.iter().any(model::egress::EgressRule::intercepts);
                let requests = self.prepared.take_for_cell(cell.profile, cell.seed, intercepts);
                self.become_worker(worker::Parts {
                    requests,
                    cell: key,
                    packets,
                    lifeline,
                    gateway: theirs,
                    sockets,
                    egress,
                    resolvers: u8::try_from(self.spec.resolvers.len()).unwrap_or(u8::MAX),
                    hosts: Arc::clone(&self.hosts),
                    // Set before the first packet, so that a narrowed call is narrowed from the
                    // start.
                    begun,
                })
            }
            Ok(((lifeline, Links { ours: (link, sockets), .. }), Side::Parent(child))) => {
                cell.state = State::Working {
                    link,
                    sockets: Sockets { link: sockets, waiting: None, open: true },
                    pidfd: child.pidfd,
                    lifeline: Some(lifeline),
                    ending: Ending::No,
                    open: true,
                    open_questions: Vec::new(),
                };
            }
            Err(_) => {
                self.close_packets(&packets);
                self.failed(key, "no worker can be made");
            }
        }
    }

    /// Turns this freshly forked process into a worker and drops the state of other cells.
    fn become_worker(&mut self, parts: worker::Parts) -> ! {
        self.cells.clear();
        self.profiles.clear();
        self.last_tallies = LastTallies::default();
        self.pending = VecDeque::new();
        // A worker must not keep the supervisor's link open after the gateway has died, nor hold the
        // routing socket.
        let gateway_fds = [self.link.as_fd(), self.closer.as_fd(), self.connector.routes.as_fd()];
        let closed = gateway_fds.into_iter().try_for_each(cell::fds::close);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            closed.and_then(|()| run_worker(parts))
        }));
        process::exit_now(i32::from(!matches!(ended, Ok(Ok(())))));
    }

    /// Forwards a frame of a worker, which may speak of its cell only. Returns false if there is no
    /// frame.
    pub(super) fn worker_frame(&mut self, key: CellKey) -> bool {
        let Some(Cell {
            state: State::Working { link, open, open_questions, .. }, unlisted, ..
        }) = self.cells.get_mut(&key)
        else {
            return false;
        };
        let mut buffer = Vec::with_capacity(FRAME_BYTES);
        match receive_into(&*link, &mut buffer, PacketWait::No) {
            Ok(received) if received.bytes > 0 => {}
            Err(Errno::EAGAIN) => return false,
            Ok(_) | Err(_) => {
                *open = false;
                return false;
            }
        }
        let bytes = buffer.as_slice();
        match decode::<FromGateway>(bytes) {
            Ok(FromGateway::Connection { cell, .. }) if cell == key => {
                // Only for the audit log, which may miss a line if the link is full; the tally
                // reports how many.
                if send_now(self.link, bytes, &[]).is_err() {
                    *unlisted = unlisted.saturating_add(1);
                }
            }
            // One tally for each question: tallies wait for room on the link, and must not crowd
            // out those of other cells.
            Ok(FromGateway::Tally { cell, call, mut tally })
                if cell == key && take_question(open_questions, call) =>
            {
                tally.unlisted = tally.unlisted.saturating_add(std::mem::take(unlisted));
                if let Ok(frame) = encode_tally(cell, call, tally) {
                    self.send(&frame);
                }
            }
            Ok(FromGateway::Last { cell, call, mut tally }) if cell == key => {
                let index = open_questions.iter().position(|question| *question == call);
                let is_asked = index.map(|index| open_questions.remove(index)).is_some();
                tally.unlisted = tally.unlisted.saturating_add(std::mem::take(unlisted));
                if let Ok(frame) = encode_tally(cell, call, tally) {
                    if is_asked {
                        self.send(&frame);
                    }
                    self.last_tallies.keep(key, frame);
                }
            }
            // An honest worker sends nothing else: this one has been taken over.
            Ok(_) | Err(_) => self.kill(key),
        }
        true
    }

    /// Answers socket requests of a worker.
    pub(super) fn serve_sockets(&mut self, key: CellKey) {
        for _ in 0..REQUESTS_IN_A_ROW {
            match self.serve_socket(key) {
                Ok(true) => {}
                Ok(false) => return,
                // A malformed request, or the link is broken.
                Err(_) => return self.kill(key),
            }
        }
    }

    /// Answers one request. Returns false if there is no request, or no room for the answer.
    fn serve_socket(&mut self, key: CellKey) -> Result<bool, Errno> {
        let Some(cell) = self.cells.get_mut(&key) else { return Ok(false) };
        let State::Working { sockets, ending, .. } = &mut cell.state else { return Ok(false) };
        if !sockets.send_waiting() {
            return Ok(false);
        }
        let mut buffer = [0; 4_096];
        let received = match receive(&sockets.link, &mut buffer, PacketWait::No) {
            Ok(received) if received.bytes > 0 => received,
            Err(Errno::EAGAIN) => return Ok(false),
            Ok(_) | Err(_) => {
                sockets.open = false;
                return Ok(false);
            }
        };
        let bytes = buffer.get(..received.bytes).unwrap_or_default();
        let request = decode::<SocketRequest>(bytes).map_err(|_| Errno::EPROTO)?;
        let only = cell.begun.as_ref().and_then(|begun| begun.only.as_ref());
        let (answer, socket) = match (ending, &request) {
            (Ending::Killed, _)
            | (
                Ending::By(_),
                SocketRequest::Destination { protocol: Protocol::Tcp, .. }
                | SocketRequest::Resolver { .. },
            ) => (SocketAnswer::Failed { errno: sys::raw(Errno::ETIMEDOUT) }, None),
            // Lets the last datagrams of an ended cell go out.
            (Ending::No | Ending::By(_), _) => self.connector.answer(&cell.egress, only, request),
        };
        sockets.waiting = Some((encode(&answer).map_err(|_| Errno::EPROTO)?, socket));
        Ok(sockets.send_waiting())
    }

    /// Kills the worker of a cell; its exit is reported later.
    pub(super) fn kill(&self, key: CellKey) {
        if let Some(Cell { state: State::Working { pidfd, .. }, .. }) = self.cells.get(&key) {
            // Fails only if the worker has exited already, which `exited` then reports.
            process::signal(pidfd, Signal::SIGKILL).unwrap_or_default();
        }
    }

    /// Reaps a worker. If it exited before its cell, the supervisor is notified even if the exit
    /// code is 0: the call would otherwise continue without a network, unnoticed.
    pub(super) fn exited(&mut self, key: CellKey) {
        let Some(cell) = self.cells.get(&key) else { return };
        let State::Working { pidfd, lifeline, .. } = &cell.state else { return };
        let is_success = match process::collect(pidfd) {
            Ok(None) => return,
            Ok(Some(collected)) => collected.is_success,
            Err(_) => false,
        };
        // The worker may have seen the end of the cell before this loop does.
        let is_over = lifeline.as_ref().is_none_or(is_ready);
        // Frames that the worker left on the link.
        while self.worker_frame(key) {}
        let Some(cell) = self.cells.get_mut(&key) else { return };
        let State::Working { ending, open_questions, .. } = &mut cell.state else { return };
        let ending = *ending;
        let open_questions = std::mem::take(open_questions);
        if ending != Ending::No || (is_success && is_over) {
            self.cells.remove(&key);
        } else {
            cell.state = State::Failed;
            self.failed(key, WORKER_DIED);
        }
        open_questions.into_iter().for_each(|call| self.answer(key, call));
    }
}

/// Removes a call from the open questions, and all asked before it: a worker answers in order, and
/// an answer it could not send does not come later. Returns false if the call is not among them.
fn take_question(open_questions: &mut Vec<CallId>, call: CallId) -> bool {
    let index = open_questions.iter().position(|question| *question == call);
    index.map(|index| open_questions.drain(..=index)).is_some()
}

/// Runs a worker in this process until its cell or the gateway ends.
fn run_worker(parts: worker::Parts) -> Result<(), Errno> {
    process::set_death_signal(Signal::SIGKILL)?;
    let seed = worker::seed()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| cell::errno_of(&error))?;
    confine::worker(parts.max_descriptors())?;
    runtime.block_on(worker::serve(parts, seed))
}
