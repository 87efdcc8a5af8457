//! The gateway's loop: frames of the supervisor, cells that have not sent yet, and the workers of those that have.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::egress::frames::{
    CallId, CellKey, FRAME_BYTES, FromGateway, SocketAnswer, SocketRequest, ToGateway, decode,
    encode, encode_tally,
};
use model::egress::{Egress, Protocol, Tally};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use sys::fork::fork;
use sys::process::{self, Side};
use sys::socket::{PacketWait, receive, receive_into, send_now};

use crate::cells::{Cell, Ended, Ending, Links, Sockets, Source, State, is_ready, links, pair};
use crate::connector::Connector;
use crate::intercept::Prepared;
use crate::worker::Begun;
use crate::{GatewaySpec, confine, worker};

/// Most cells with a network.
const CELLS: usize = 4_096;
/// Processes that close packet sockets: each takes some 10 ms, and several at once little more.
const CLOSERS: usize = 8;
/// Most frames that wait for room on the link: a failure and a few tallies of each cell.
const PENDING: usize = 4 * CELLS;

/// Most questions that a worker may leave unanswered: more than a session has jobs.
const ASKED: usize = 64;
/// Most frames that are read of a worker that takes no question: some more than its link holds.
const FRAMES: usize = 1_024;
/// Requests of one worker that are answered in a row, before others have their turn.
const REQUESTS: usize = 16;
/// Time in which the worker of a cell that is gone must have ended; it is killed then. Longer than what it takes by
/// itself, as that begins when it reads of the end.
const ENDING: Duration = worker::LAST_WORDS.saturating_add(Duration::from_secs(1));
/// The reason for which calls of a cell end whose worker is gone.
const DIED: &str = "the worker of the cell's network has died";

/// The loop's state.
#[derive(Debug)]
struct Gateway<'a> {
    link: &'a OwnedFd,
    spec: &'a GatewaySpec,
    profiles: Vec<Arc<Egress>>,
    prepared: Prepared,
    hosts: Arc<Vec<(String, std::net::IpAddr)>>,
    connector: Connector,
    cells: HashMap<CellKey, Cell>,
    ended: Ended,
    /// Takes packet sockets that nobody needs: closing one takes 10 ms.
    closer: OwnedFd,
    /// Frames that must arrive and found the link full.
    pending: VecDeque<Vec<u8>>,
}

/// Serves until the supervisor closes its end of the link.
pub(crate) fn serve(link: &OwnedFd, spec: &GatewaySpec, prepared: Prepared) {
    let Ok(closer) = closer() else { return };
    let Ok(connector) = Connector::new(spec.resolvers.clone()) else { return };
    let Ok(up) = encode(&FromGateway::Up) else { return };
    if send_now(link, &up, &[]).is_err() {
        return;
    }
    let profiles = spec.profiles.iter().cloned().map(Arc::new).collect();
    let hosts = Arc::new(spec.hosts.clone());
    let cells = HashMap::new();
    let (ended, pending) = (Ended::default(), VecDeque::new());
    let mut gateway =
        Gateway { link, spec, profiles, prepared, hosts, connector, cells, ended, closer, pending };
    while gateway.turn().is_ok() {}
}

/// Forks the processes that close packet sockets, which share what they are sent.
fn closer() -> Result<OwnedFd, Errno> {
    let (ours, theirs) = pair()?;
    for _ in 0..CLOSERS {
        if let Side::Child = fork()? {
            drop(ours);
            let mut buffer = [0; 8];
            // Each packet's descriptors are closed as it is dropped.
            while receive(&theirs, &mut buffer, PacketWait::Yes).is_ok_and(|got| got.bytes > 0) {}
            process::exit_now(0);
        }
    }
    Ok(ours)
}

impl Gateway<'_> {
    /// Waits for something to happen, and does what it asks for.
    fn turn(&mut self) -> Result<(), Errno> {
        let ready = self.ready()?;
        self.kill_late();
        // All of them before any packet: in a session a call is begun before its first packet is sent. In a new cell it may be
        // begun after it, which waits.
        while self.frame()? {}
        self.send_pending();
        for source in ready {
            match source {
                Source::Supervisor => {}
                Source::Packet(cell) => self.first_packet(cell),
                Source::Lifeline(cell) => self.close(cell),
                Source::Worker(cell) => drop(self.worker_frame(cell)),
                Source::Sockets(cell) => self.serve_sockets(cell),
                Source::Exit(cell) => self.exited(cell),
            }
        }
        Ok(())
    }

    fn ready(&self) -> Result<Vec<Source>, Errno> {
        let mut of_link = PollFlags::POLLIN;
        of_link.set(PollFlags::POLLOUT, !self.pending.is_empty());
        let mut sources: Vec<(Source, BorrowedFd<'_>, PollFlags)> =
            vec![(Source::Supervisor, self.link.as_fd(), of_link)];
        for (key, cell) in &self.cells {
            cell.add_sources(*key, &mut sources);
        }
        let waited = sources.iter().map(|(_, fd, flags)| PollFd::new(*fd, *flags));
        let mut waited: Vec<PollFd<'_>> = waited.collect();
        loop {
            match poll(&mut waited, self.patience()) {
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        let events = waited.iter().map(|fd| fd.revents().unwrap_or(PollFlags::POLLERR));
        let ready = sources.iter().zip(events).filter(|(_, events)| !events.is_empty());
        Ok(ready.map(|((source, ..), _)| *source).collect())
    }

    /// Returns the time until the next worker must have ended.
    fn patience(&self) -> PollTimeout {
        let Some(next) = self.cells.values().filter_map(Cell::ends_by).min() else {
            return PollTimeout::NONE;
        };
        // A millisecond more, as a part of one would be none.
        let left = next.saturating_duration_since(Instant::now()).as_millis().saturating_add(1);
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    }

    /// Kills the workers that have not ended in time.
    fn kill_late(&mut self) {
        let now = Instant::now();
        for cell in self.cells.values_mut() {
            if cell.ends_by().is_some_and(|by| by <= now) {
                cell.kill_at_end();
            }
        }
    }

    /// Reads a frame of the supervisor. An error ends the gateway: one that cannot be read leaves cells whose state
    /// nobody knows. Returns false once there are no more.
    fn frame(&mut self) -> Result<bool, Errno> {
        // Not zeroed: this is asked at each turn, and there is hardly ever a frame.
        let mut buffer = Vec::with_capacity(FRAME_BYTES);
        let mut received = match receive_into(self.link, &mut buffer, PacketWait::No) {
            Ok(received) => received,
            Err(Errno::EAGAIN) => return Ok(false),
            Err(errno) => return Err(errno),
        };
        if received.bytes == 0 {
            return Err(Errno::EPIPE);
        }
        let bytes = buffer.as_slice();
        let frame = decode::<ToGateway>(bytes).map_err(|_| Errno::EPROTO)?;
        match frame {
            ToGateway::Open { cell, profile, seed } => {
                let fds = match &mut received.fds {
                    [packets, lifeline, ..] if !received.cut => packets.take().zip(lifeline.take()),
                    _ => None,
                };
                self.open(cell, (profile, seed), fds);
            }
            ToGateway::Begin { cell, call, only } => {
                self.begin(cell, Begun { call, only }, bytes);
            }
            ToGateway::Ask { cell, call } => self.ask(cell, call, bytes),
            ToGateway::Close { cell } => self.close(cell),
        }
        Ok(true)
    }

    /// Asks the worker of a cell for the tally of a call. One that does not take the question has ended, or is ended:
    /// its last words are then the answer, once they are read.
    fn ask(&mut self, key: CellKey, call: CallId, frame: &[u8]) {
        self.heed_first_packet(key);
        if let Some(State::Working { asked, .. }) = self.cells.get(&key).map(|cell| &cell.state)
            && asked.len() >= ASKED
        {
            return self.tell_incomplete(key, call);
        }
        if !self.pass(key, frame) {
            // It may have left its last words, which are then the answer. More than its link holds would be a worker that
            // does not end.
            for _ in 0..FRAMES {
                if !self.worker_frame(key) {
                    break;
                }
            }
            let last = self.ended.of(key, call).map(<[u8]>::to_vec);
            if let Some(last) = last {
                return self.tell(&last);
            }
            self.kill(key);
        }
        match self.cells.get_mut(&key).map(|cell| &mut cell.state) {
            Some(State::Working { asked, .. }) => asked.push(call),
            Some(State::Waiting { .. } | State::Failed) | None => self.answer(key, call),
        }
    }

    /// Tells that what a call did is not known.
    fn tell_incomplete(&mut self, cell: CellKey, call: CallId) {
        let tally = Tally { incomplete: true, ..Tally::default() };
        if let Ok(frame) = encode_tally(cell, call, tally) {
            self.tell(&frame);
        }
    }

    /// Tells the tally of a cell without a worker.
    fn answer(&mut self, cell: CellKey, call: CallId) {
        if let Some(frame) = self.ended.of(cell, call).map(<[u8]>::to_vec) {
            return self.tell(&frame);
        }
        let known = self.cells.get(&cell);
        if known.is_none_or(|cell| matches!(cell.state, State::Failed)) {
            return self.tell_incomplete(cell, call);
        }
        // A cell that never sent has nothing to tell.
        if let Ok(frame) = encode_tally(cell, call, Tally::default()) {
            self.tell(&frame);
        }
    }

    fn open(
        &mut self,
        key: CellKey,
        (profile, seed): (u16, [u8; 16]),
        fds: Option<(OwnedFd, OwnedFd)>,
    ) {
        let profile = usize::from(profile);
        let egress = self.profiles.get(profile).filter(|egress| egress.class.has_egress());
        let room = self.cells.len() < CELLS && !self.cells.contains_key(&key);
        match (egress, fds) {
            (Some(egress), Some((packets, lifeline))) if room => {
                let state = State::Waiting { packets, lifeline };
                let egress = Arc::clone(egress);
                self.cells
                    .insert(key, Cell { egress, profile, seed, begun: None, unlisted: 0, state });
            }
            (_, fds) => {
                if let Some((packets, _)) = fds {
                    self.close_packets(&packets);
                }
                self.failed(key, "the cell's network cannot be opened");
            }
        }
    }

    /// Begins a call in a cell. One whose worker does not take it has no network, and is told so: the worker would let
    /// its packets out by what an earlier call may reach.
    fn begin(&mut self, key: CellKey, begun: Begun, frame: &[u8]) {
        let Some(cell) = self.cells.get_mut(&key) else {
            return self.failed(key, "the network of the cell has ended");
        };
        cell.begun = Some(begun);
        match &cell.state {
            State::Waiting { .. } => {}
            State::Working { .. } => {
                // Its end is told once it is seen.
                if !self.pass(key, frame) {
                    self.kill(key);
                }
            }
            State::Failed => self.failed(key, DIED),
        }
    }

    /// Sends a frame on to the worker of a cell. Returns false if there is none.
    fn pass(&self, key: CellKey, frame: &[u8]) -> bool {
        match self.cells.get(&key).map(|cell| &cell.state) {
            // A worker that does not read is one that has died, or is about to be found out.
            Some(State::Working { link, .. }) => send_now(link, frame, &[]).is_ok(),
            Some(State::Waiting { .. } | State::Failed) | None => false,
        }
    }

    /// Forks the worker of a cell whose first packet has come and not been seen yet.
    fn heed_first_packet(&mut self, key: CellKey) {
        if let Some(Cell { state: State::Waiting { packets, .. }, .. }) = self.cells.get(&key)
            && is_ready(packets)
        {
            self.first_packet(key);
        }
    }

    /// Forks the worker of a cell that has sent its first packet.
    fn first_packet(&mut self, key: CellKey) {
        let Some(cell) = self.cells.get_mut(&key) else { return };
        let Some(begun) = cell.begun.clone() else { return };
        let state = std::mem::replace(&mut cell.state, State::Failed);
        let State::Waiting { packets, lifeline } = state else { return };
        let ours = lifeline.try_clone().map_err(|error| cell::errno_of(&error));
        let made = ours.and_then(|ours| links().map(|links| (ours, links)));
        match made.and_then(|made| fork().map(|side| (made, side))) {
            Ok(((lifeline_here, Links { ours, theirs: (theirs, sockets) }), Side::Child)) => {
                drop((lifeline_here, ours));
                let egress = Arc::clone(&cell.egress);
                let reads = egress.rules.iter().any(model::egress::EgressRule::intercepts);
                let requests = self.prepared.of_cell(cell.profile, cell.seed, reads);
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
                    // Before its first packet: a call that is narrowed must not be so too late.
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
                    asked: Vec::new(),
                };
            }
            Err(_) => {
                self.close_packets(&packets);
                self.failed(key, "no worker can be made");
            }
        }
    }

    /// Turns this process, which was just forked, into a worker. Nothing of other cells stays in it.
    fn become_worker(&mut self, parts: worker::Parts) -> ! {
        self.cells.clear();
        self.profiles.clear();
        (self.ended, self.pending) = (Ended::default(), VecDeque::new());
        // The other end of the supervisor's link must not outlive the gateway in a worker, which asks for routes and sockets.
        let own = [self.link.as_fd(), self.closer.as_fd(), self.connector.routes.as_fd()];
        let closed = own.into_iter().try_for_each(cell::fds::close);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            closed.and_then(|()| run_worker(parts))
        }));
        process::exit_now(i32::from(!matches!(ended, Ok(Ok(())))));
    }

    /// Passes on a frame of a worker, which may speak of its own cell only. Returns false if there was none.
    fn worker_frame(&mut self, key: CellKey) -> bool {
        let Some(Cell { state: State::Working { link, open, asked, .. }, unlisted, .. }) =
            self.cells.get_mut(&key)
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
                // For the log alone, which does without where the link is full, and is told how many.
                if send_now(self.link, bytes, &[]).is_err() {
                    *unlisted = unlisted.saturating_add(1);
                }
            }
            // Once for each question: tallies wait for room on the link, and must not crowd out those of other cells.
            Ok(FromGateway::Tally { cell, call, mut tally })
                if cell == key && take(asked, call) =>
            {
                tally.unlisted = tally.unlisted.saturating_add(std::mem::take(unlisted));
                if let Ok(frame) = encode_tally(cell, call, tally) {
                    self.tell(&frame);
                }
            }
            Ok(FromGateway::Last { cell, call, mut tally }) if cell == key => {
                let at = asked.iter().position(|asked| *asked == call);
                let is_asked = at.map(|at| asked.remove(at)).is_some();
                tally.unlisted = tally.unlisted.saturating_add(std::mem::take(unlisted));
                if let Ok(frame) = encode_tally(cell, call, tally) {
                    if is_asked {
                        self.tell(&frame);
                    }
                    self.ended.keep(key, frame);
                }
            }
            // A worker says nothing else, unless it is not one any more.
            Ok(_) | Err(_) => self.kill(key),
        }
        true
    }

    /// Answers requests of a worker for sockets.
    fn serve_sockets(&mut self, key: CellKey) {
        for _ in 0..REQUESTS {
            match self.serve_socket(key) {
                Ok(true) => {}
                Ok(false) => return,
                // It says what no worker says, or nothing any more.
                Err(_) => return self.kill(key),
            }
        }
    }

    /// Answers one request. Returns false where there is none, or no room for an answer.
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
            // Lets the last datagrams of a cell arrive, as they would without one.
            (Ending::No | Ending::By(_), _) => self.connector.answer(&cell.egress, only, request),
        };
        sockets.waiting = Some((encode(&answer).map_err(|_| Errno::EPROTO)?, socket));
        Ok(sockets.send_waiting())
    }

    fn kill(&self, key: CellKey) {
        if let Some(Cell { state: State::Working { pidfd, .. }, .. }) = self.cells.get(&key) {
            // It may have ended already, which `exited` then tells.
            process::signal(pidfd, Signal::SIGKILL).unwrap_or_default();
        }
    }

    /// Reaps a worker. One that ended before its cell is told, also where it says that all is well: a call would go on
    /// without a network, and nobody would know.
    fn exited(&mut self, key: CellKey) {
        let Some(cell) = self.cells.get(&key) else { return };
        let State::Working { pidfd, lifeline, .. } = &cell.state else { return };
        let well = match process::collect(pidfd) {
            Ok(None) => return,
            Ok(Some(collected)) => collected.well,
            Err(_) => false,
        };
        // The worker may have seen the end of the cell before this loop does.
        let is_over = lifeline.as_ref().is_none_or(is_ready);
        // Its last words are still to be read.
        while self.worker_frame(key) {}
        let Some(cell) = self.cells.get_mut(&key) else { return };
        let State::Working { ending, asked, .. } = &mut cell.state else { return };
        let (ending, asked) = (*ending, std::mem::take(asked));
        if ending != Ending::No || (well && is_over) {
            self.cells.remove(&key);
        } else {
            cell.state = State::Failed;
            self.failed(key, DIED);
        }
        asked.into_iter().for_each(|call| self.answer(key, call));
    }

    /// Ends the network of a cell that is gone.
    fn close(&mut self, key: CellKey) {
        self.heed_first_packet(key);
        let Some(cell) = self.cells.get_mut(&key) else { return };
        match &mut cell.state {
            State::Working { link, lifeline, ending, .. } => {
                *lifeline = None;
                // A second word of the end gives no more time.
                if *ending != Ending::No {
                    return;
                }
                let told = encode(&ToGateway::Close { cell: key })
                    .is_ok_and(|frame| send_now(&*link, &frame, &[]).is_ok());
                match Instant::now().checked_add(ENDING).filter(|_| told) {
                    Some(by) => *ending = Ending::By(by),
                    None => cell.kill_at_end(),
                }
            }
            State::Waiting { .. } | State::Failed => {
                if let Some(Cell { state: State::Waiting { packets, .. }, begun, .. }) =
                    self.cells.remove(&key)
                {
                    self.close_packets(&packets);
                    // It has sent nothing.
                    let tally = |begun: Begun| encode_tally(key, begun.call, Tally::default());
                    if let Some(Ok(frame)) = begun.map(tally) {
                        self.ended.keep(key, frame);
                    }
                }
            }
        }
    }

    /// Has a packet socket closed by another process.
    fn close_packets(&self, packets: &OwnedFd) {
        // Where it cannot be sent, it is closed here, which takes longer.
        send_now(&self.closer, b"x", &[packets.as_fd()]).unwrap_or_default();
    }

    fn failed(&mut self, cell: CellKey, why: &str) {
        let frame = FromGateway::Failed { cell: Some(cell), why: why.to_owned() };
        if let Ok(frame) = encode(&frame) {
            self.tell(&frame);
        }
    }

    /// Sends a frame to the supervisor, at once or as soon as the link has room.
    fn tell(&mut self, frame: &[u8]) {
        if self.pending.len() < PENDING {
            self.pending.push_back(frame.to_vec());
        }
        self.send_pending();
    }

    fn send_pending(&mut self) {
        while let Some(frame) = self.pending.front() {
            // A link that is closed ends the loop when it is read.
            if send_now(self.link, frame, &[]).is_err() {
                return;
            }
            self.pending.pop_front();
        }
    }
}

/// Takes a question about a call out of those that are open, and those before it: a worker answers in their order, and what
/// it could not send is not sent later. Returns false if there is none.
fn take(asked: &mut Vec<CallId>, call: CallId) -> bool {
    let at = asked.iter().position(|asked| *asked == call);
    at.map(|at| asked.drain(..=at)).is_some()
}

fn run_worker(parts: worker::Parts) -> Result<(), Errno> {
    process::set_death_signal(Signal::SIGKILL)?;
    let seed = worker::seed()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| cell::errno_of(&error))?;
    confine::worker(parts.most_descriptors())?;
    runtime.block_on(worker::serve(parts, seed))
}

#[cfg(test)]
#[path = "gateway_tests.rs"]
mod tests;
