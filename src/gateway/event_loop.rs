//! The gateway's event loop: frames of the supervisor, and packets and ends of cells. `workers` forks
//! the workers, and handles their frames, their requests and their exits.

mod workers;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::egress::frames::{
    CallId, CellKey, FRAME_BYTES, FromGateway, ToGateway, decode, encode, encode_tally,
};
use model::egress::{Egress, Tally};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sys::fork::fork;
use sys::process::{self, Side};
use sys::socket::{PacketWait, receive, receive_into, send_now};

use crate::cells::{Cell, CurrentCall, Ending, LastTallies, Source, State, pair};
use crate::connector::Connector;
use crate::intercept::Prepared;
use crate::{GatewaySpec, worker};

/// Maximum number of cells with a network.
const MAX_CELLS: usize = 4_096;
/// Number of processes that close packet sockets: one close takes about 10 ms, and several in
/// parallel hardly more.
const CLOSERS: usize = 8;
/// Maximum number of frames that wait for room on the link: a failure and a few tallies of each
/// cell.
const MAX_PENDING: usize = 4 * MAX_CELLS;

/// Maximum number of tallies that a worker may owe: more than a session has jobs.
const MAX_OPEN_QUESTIONS: usize = 64;
/// Maximum number of frames read from a worker whose link is full: somewhat more than the link
/// holds.
const MAX_WORKER_FRAMES: usize = 1_024;
/// Time in which the worker of an ended cell must exit before it is killed. Longer than the
/// worker's own limit, which starts later, when the worker reads of the end.
const WORKER_EXIT_TIMEOUT: Duration = worker::DRAIN_TIMEOUT.saturating_add(Duration::from_secs(1));
/// Error of calls in a cell whose worker is gone.
const WORKER_DIED: &str = "the worker of the cell's network has died";

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
    last_tallies: LastTallies,
    /// Passes unneeded packet sockets to the processes that close them: one close takes 10 ms.
    closer: OwnedFd,
    /// Frames that must arrive but found the link full.
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
    let mut gateway = Gateway {
        link,
        spec,
        profiles,
        prepared,
        hosts,
        connector,
        cells: HashMap::new(),
        last_tallies: LastTallies::default(),
        closer,
        pending: VecDeque::new(),
    };
    while gateway.turn().is_ok() {}
}

/// Forks the processes that close packet sockets. All of them read from the same link.
fn closer() -> Result<OwnedFd, Errno> {
    let (ours, theirs) = pair()?;
    for _ in 0..CLOSERS {
        if let Side::Child = fork()? {
            drop(ours);
            let mut buffer = [0; 8];
            // Dropping a received packet closes its descriptors.
            while receive(&theirs, &mut buffer, PacketWait::Yes).is_ok_and(|got| got.bytes > 0) {}
            process::exit_now(0);
        }
    }
    Ok(ours)
}

impl Gateway<'_> {
    /// Waits for events and handles them.
    fn turn(&mut self) -> Result<(), Errno> {
        let ready = self.ready()?;
        self.kill_late();
        // All frames before any packet: in a session a call begins before its first packet is sent.
        // In a new cell the first packet may come earlier, and waits.
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
        let mut link_events = PollFlags::POLLIN;
        link_events.set(PollFlags::POLLOUT, !self.pending.is_empty());
        let mut sources: Vec<(Source, BorrowedFd<'_>, PollFlags)> =
            vec![(Source::Supervisor, self.link.as_fd(), link_events)];
        for (key, cell) in &self.cells {
            cell.add_sources(*key, &mut sources);
        }
        let waited = sources.iter().map(|(_, fd, flags)| PollFd::new(*fd, *flags));
        let mut waited: Vec<PollFd<'_>> = waited.collect();
        loop {
            match poll(&mut waited, self.poll_timeout()) {
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        let events = waited.iter().map(|fd| fd.revents().unwrap_or(PollFlags::POLLERR));
        let ready = sources.iter().zip(events).filter(|(_, events)| !events.is_empty());
        Ok(ready.map(|((source, ..), _)| *source).collect())
    }

    /// Returns the time until the next worker must have exited.
    fn poll_timeout(&self) -> PollTimeout {
        let Some(next) = self.cells.values().filter_map(Cell::ends_by).min() else {
            return PollTimeout::NONE;
        };
        // Rounded up: a fraction of a millisecond would become zero.
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

    /// Reads a frame of the supervisor. Returns false once there are no more. An error ends the
    /// gateway: after an unreadable frame the state of the cells is unknown.
    fn frame(&mut self) -> Result<bool, Errno> {
        // Not zeroed: this runs each turn, and most turns have no frame.
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
                self.open(cell, profile, seed, fds);
            }
            ToGateway::Begin { cell, call, only } => {
                self.begin(cell, CurrentCall { call, only }, bytes);
            }
            ToGateway::Ask { cell, call } => self.ask(cell, call, bytes),
            ToGateway::Close { cell } => self.close(cell),
        }
        Ok(true)
    }

    /// Asks the worker of a cell for the tally of a call. If the worker does not take the question,
    /// it has exited or is killed; its last tally is then the answer, once it is read.
    fn ask(&mut self, key: CellKey, call: CallId, frame: &[u8]) {
        self.start_worker_if_ready(key);
        if let Some(State::Working { open_questions, .. }) =
            self.cells.get(&key).map(|cell| &cell.state)
            && open_questions.len() >= MAX_OPEN_QUESTIONS
        {
            return self.send_incomplete(key, call);
        }
        if !self.pass(key, frame) {
            // The worker may have left its last tally on the link. More frames than the link holds
            // mean that the worker does not exit.
            for _ in 0..MAX_WORKER_FRAMES {
                if !self.worker_frame(key) {
                    break;
                }
            }
            let last = self.last_tallies.get(key, call).map(<[u8]>::to_vec);
            if let Some(last) = last {
                return self.send(&last);
            }
            self.kill(key);
        }
        match self.cells.get_mut(&key).map(|cell| &mut cell.state) {
            Some(State::Working { open_questions, .. }) => open_questions.push(call),
            Some(State::Waiting { .. } | State::Failed) | None => self.answer(key, call),
        }
    }

    /// Reports that the network use of a call is not known.
    fn send_incomplete(&mut self, cell: CellKey, call: CallId) {
        let tally = Tally { incomplete: true, ..Tally::default() };
        if let Ok(frame) = encode_tally(cell, call, tally) {
            self.send(&frame);
        }
    }

    /// Sends the tally of a cell that has no worker.
    fn answer(&mut self, cell: CellKey, call: CallId) {
        if let Some(frame) = self.last_tallies.get(cell, call).map(<[u8]>::to_vec) {
            return self.send(&frame);
        }
        let known = self.cells.get(&cell);
        if known.is_none_or(|cell| matches!(cell.state, State::Failed)) {
            return self.send_incomplete(cell, call);
        }
        // Without a worker the cell has sent nothing.
        if let Ok(frame) = encode_tally(cell, call, Tally::default()) {
            self.send(&frame);
        }
    }

    fn open(
        &mut self,
        key: CellKey,
        profile: u16,
        seed: [u8; 16],
        fds: Option<(OwnedFd, OwnedFd)>,
    ) {
        let profile = usize::from(profile);
        let egress = self.profiles.get(profile).filter(|egress| egress.class.has_egress());
        let room = self.cells.len() < MAX_CELLS && !self.cells.contains_key(&key);
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

    /// Begins a call in a cell. If the worker does not take the frame, it is killed and the cell
    /// loses its network: otherwise it would still allow what an earlier call may reach.
    fn begin(&mut self, key: CellKey, begun: CurrentCall, frame: &[u8]) {
        let Some(cell) = self.cells.get_mut(&key) else {
            return self.failed(key, "the network of the cell has ended");
        };
        cell.begun = Some(begun);
        match &cell.state {
            State::Waiting { .. } => {}
            State::Working { .. } => {
                // Reported when its exit is seen.
                if !self.pass(key, frame) {
                    self.kill(key);
                }
            }
            State::Failed => self.failed(key, WORKER_DIED),
        }
    }

    /// Forwards a frame to the worker of a cell. Returns false if the cell has no worker or the
    /// link is full.
    fn pass(&self, key: CellKey, frame: &[u8]) -> bool {
        match self.cells.get(&key).map(|cell| &cell.state) {
            // A worker that does not read has died or hangs.
            Some(State::Working { link, .. }) => send_now(link, frame, &[]).is_ok(),
            Some(State::Waiting { .. } | State::Failed) | None => false,
        }
    }

    /// Ends the network of a cell that is gone.
    fn close(&mut self, key: CellKey) {
        self.start_worker_if_ready(key);
        let Some(cell) = self.cells.get_mut(&key) else { return };
        match &mut cell.state {
            State::Working { link, lifeline, ending, .. } => {
                *lifeline = None;
                // A second report of the end does not extend the deadline.
                if *ending != Ending::No {
                    return;
                }
                let notified = encode(&ToGateway::Close { cell: key })
                    .is_ok_and(|frame| send_now(&*link, &frame, &[]).is_ok());
                match Instant::now().checked_add(WORKER_EXIT_TIMEOUT).filter(|_| notified) {
                    Some(by) => *ending = Ending::By(by),
                    None => cell.kill_at_end(),
                }
            }
            State::Waiting { .. } | State::Failed => {
                if let Some(Cell { state: State::Waiting { packets, .. }, begun, .. }) =
                    self.cells.remove(&key)
                {
                    self.close_packets(&packets);
                    // A cell without a worker has sent nothing.
                    let tally =
                        |begun: CurrentCall| encode_tally(key, begun.call, Tally::default());
                    if let Some(Ok(frame)) = begun.map(tally) {
                        self.last_tallies.keep(key, frame);
                    }
                }
            }
        }
    }

    /// Has a packet socket closed by a closer process.
    fn close_packets(&self, packets: &OwnedFd) {
        // On failure the caller's drop closes it here, which only takes longer.
        send_now(&self.closer, b"x", &[packets.as_fd()]).unwrap_or_default();
    }

    fn failed(&mut self, cell: CellKey, reason: &str) {
        let frame = FromGateway::Failed { cell: Some(cell), why: reason.to_owned() };
        if let Ok(frame) = encode(&frame) {
            self.send(&frame);
        }
    }

    /// Sends a frame to the supervisor now, or as soon as the link has room.
    fn send(&mut self, frame: &[u8]) {
        if self.pending.len() < MAX_PENDING {
            self.pending.push_back(frame.to_vec());
        }
        self.send_pending();
    }

    fn send_pending(&mut self) {
        while let Some(frame) = self.pending.front() {
            // A closed link ends the loop at the next read.
            if send_now(self.link, frame, &[]).is_err() {
                return;
            }
            self.pending.pop_front();
        }
    }
}

#[cfg(test)]
#[path = "event_loop_tests.rs"]
mod tests;
