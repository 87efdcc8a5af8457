//! The gateway's loop: frames of the supervisor, cells that have not sent yet, and the workers of those that have.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use model::egress::frames::{
    CallId, CellKey, FRAME_BYTES, FromGateway, ToGateway, decode, encode, encode_tally,
};
use model::egress::{Egress, Tally};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use sys::fork::fork;
use sys::process::{self, Side};
use sys::socket::{PacketWait, receive, send_now};

use crate::intercept::Prepared;
use crate::worker::Begun;
use crate::{GatewaySpec, confine, worker};

/// Most cells with a network.
const CELLS: usize = 4_096;
/// Processes that close packet sockets: each takes some 10 ms, and several at once little more.
const CLOSERS: usize = 8;
/// Most tallies that are kept of cells that are gone.
const ENDED: usize = 256;
/// Most frames that wait for room on the link: a failure and a few tallies of each cell.
const PENDING: usize = 4 * CELLS;

/// A cell that has a network.
#[derive(Debug)]
struct Cell {
    egress: Arc<Egress>,
    /// Index of its profile, and the text of its placeholders.
    profile: usize,
    seed: [u8; 16],
    /// The call that runs, for a worker that is not there yet.
    begun: Option<Begun>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// It has not sent a packet.
    Waiting { packets: OwnedFd, lifeline: OwnedFd },
    Working {
        link: OwnedFd,
        pidfd: OwnedFd,
        /// True once the worker was told that the cell is gone, or has ended by itself.
        ending: bool,
        /// False once the worker has closed its end of the link.
        open: bool,
        /// Calls about which it was asked and has not answered.
        asked: Vec<CallId>,
    },
    /// Its worker died; it has no network any more.
    Failed,
}

/// Last tallies of cells that are gone: a cell may end, and its worker with it, before the supervisor asks.
#[derive(Debug, Default)]
struct Ended(VecDeque<(CellKey, Vec<u8>)>);

impl Ended {
    /// Keeps a frame, in place of one of the same cell.
    fn keep(&mut self, cell: CellKey, frame: Vec<u8>) {
        self.0.retain(|(known, _)| *known != cell);
        self.0.push_back((cell, frame));
        if self.0.len() > ENDED {
            self.0.pop_front();
        }
    }

    /// Returns the tally of a call, if it is one of these.
    fn of(&self, cell: CellKey, call: CallId) -> Option<&[u8]> {
        let (_, frame) = self.0.iter().find(|(known, _)| *known == cell)?;
        match decode(frame) {
            Ok(FromGateway::Tally { call: told, .. }) if told == call => Some(frame),
            Ok(_) | Err(_) => None,
        }
    }
}

/// Event that the loop wakes for.
#[derive(Debug, Clone, Copy)]
enum Source {
    Supervisor,
    Packet(CellKey),
    Lifeline(CellKey),
    Worker(CellKey),
    Exit(CellKey),
}

/// The loop's state.
#[derive(Debug)]
struct Gateway<'a> {
    link: &'a OwnedFd,
    spec: &'a GatewaySpec,
    profiles: Vec<Arc<Egress>>,
    prepared: Prepared,
    hosts: Arc<Vec<(String, std::net::IpAddr)>>,
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
    let Ok(up) = encode(&FromGateway::Up) else { return };
    if send_now(link, &up, &[]).is_err() {
        return;
    }
    let profiles = spec.profiles.iter().cloned().map(Arc::new).collect();
    let hosts = Arc::new(spec.hosts.clone());
    let cells = HashMap::new();
    let (ended, pending) = (Ended::default(), VecDeque::new());
    let mut gateway =
        Gateway { link, spec, profiles, prepared, hosts, cells, ended, closer, pending };
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

fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
}

impl Gateway<'_> {
    /// Waits for something to happen, and does what it asks for.
    fn turn(&mut self) -> Result<(), Errno> {
        let ready = self.ready()?;
        // All of them before any packet: a call was begun before its first packet was sent.
        while self.frame()? {}
        self.send_pending();
        for source in ready {
            match source {
                Source::Supervisor => {}
                Source::Packet(cell) => self.first_packet(cell),
                Source::Lifeline(cell) => self.close(cell),
                Source::Worker(cell) => drop(self.worker_frame(cell)),
                Source::Exit(cell) => self.exited(cell),
            }
        }
        Ok(())
    }

    fn ready(&self) -> Result<Vec<Source>, Errno> {
        let mut sources: Vec<(Source, BorrowedFd<'_>)> =
            vec![(Source::Supervisor, self.link.as_fd())];
        for (key, cell) in &self.cells {
            match &cell.state {
                State::Waiting { packets, lifeline } => {
                    sources.push((Source::Packet(*key), packets.as_fd()));
                    sources.push((Source::Lifeline(*key), lifeline.as_fd()));
                }
                State::Working { link, pidfd, open, .. } => {
                    if *open {
                        sources.push((Source::Worker(*key), link.as_fd()));
                    }
                    sources.push((Source::Exit(*key), pidfd.as_fd()));
                }
                State::Failed => {}
            }
        }
        let mut waited: Vec<PollFd<'_>> =
            sources.iter().map(|(_, fd)| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        if let Some(link) = waited.first_mut().filter(|_| !self.pending.is_empty()) {
            link.set_events(PollFlags::POLLIN | PollFlags::POLLOUT);
        }
        loop {
            match poll(&mut waited, PollTimeout::NONE) {
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        let events = waited.iter().map(|fd| fd.revents().unwrap_or(PollFlags::POLLERR));
        let ready = sources.iter().zip(events).filter(|(_, events)| !events.is_empty());
        Ok(ready.map(|((source, _), _)| *source).collect())
    }

    /// Reads a frame of the supervisor. An error ends the gateway: one that cannot be read leaves cells whose state
    /// nobody knows. Returns false once there are no more.
    fn frame(&mut self) -> Result<bool, Errno> {
        let mut buffer = vec![0; FRAME_BYTES];
        let mut received = match receive(self.link, &mut buffer, PacketWait::No) {
            Ok(received) => received,
            Err(Errno::EAGAIN) => return Ok(false),
            Err(errno) => return Err(errno),
        };
        if received.bytes == 0 {
            return Err(Errno::EPIPE);
        }
        let bytes = buffer.get(..received.bytes).unwrap_or_default();
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
                self.pass(cell, bytes);
                if let Some(known) = self.cells.get_mut(&cell) {
                    known.begun = Some(Begun { call, only });
                }
            }
            ToGateway::Ask { cell, call } => {
                let passed = self.pass(cell, bytes);
                if let Some(State::Working { asked, .. }) =
                    self.cells.get_mut(&cell).map(|cell| &mut cell.state).filter(|_| passed)
                {
                    asked.push(call);
                } else {
                    self.answer(cell, call);
                }
            }
            ToGateway::Close { cell } => self.close(cell),
        }
        Ok(true)
    }

    /// Tells the tally of a cell without a worker.
    fn answer(&mut self, cell: CellKey, call: CallId) {
        if let Some(frame) = self.ended.of(cell, call).map(<[u8]>::to_vec) {
            return self.tell(&frame);
        }
        let known = self.cells.get(&cell);
        let failed = known.is_none_or(|cell| matches!(cell.state, State::Failed));
        // A cell that never sent has nothing to tell.
        let tally = Tally { incomplete: failed, ..Tally::default() };
        if let Ok(frame) = encode_tally(cell, call, tally) {
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
                self.cells.insert(key, Cell { egress, profile, seed, begun: None, state });
            }
            (_, fds) => {
                if let Some((packets, _)) = fds {
                    self.close_packets(&packets);
                }
                self.failed(key, "the cell's network cannot be opened");
            }
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

    /// Forks the worker of a cell that has sent its first packet.
    fn first_packet(&mut self, key: CellKey) {
        let Some(cell) = self.cells.get_mut(&key) else { return };
        let state = std::mem::replace(&mut cell.state, State::Failed);
        let State::Waiting { packets, lifeline } = state else { return };
        let begun = cell.begun.take();
        let forked = pair().and_then(|pair| fork().map(|side| (pair, side)));
        match forked {
            Ok(((link, theirs), Side::Child)) => {
                drop(link);
                let egress = Arc::clone(&cell.egress);
                let reads = egress.rules.iter().any(model::egress::EgressRule::intercepts);
                let requests = self.prepared.of_cell(cell.profile, cell.seed, reads);
                self.become_worker(worker::Parts {
                    requests,
                    cell: key,
                    packets,
                    lifeline,
                    gateway: theirs,
                    egress,
                    resolvers: self.spec.resolvers.clone(),
                    hosts: Arc::clone(&self.hosts),
                    // Before its first packet: a call that is narrowed must not be so too late.
                    begun,
                })
            }
            Ok(((link, _), Side::Parent(child))) => {
                let pidfd = child.pidfd;
                let asked = Vec::new();
                cell.state = State::Working { link, pidfd, ending: false, open: true, asked };
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
        // The other end of the supervisor's link must not outlive the gateway in a worker.
        let closed =
            [self.link.as_fd(), self.closer.as_fd()].into_iter().try_for_each(cell::fds::close);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            closed.and_then(|()| run_worker(parts))
        }));
        process::exit_now(i32::from(!matches!(ended, Ok(Ok(())))));
    }

    /// Passes on a frame of a worker, which may speak of its own cell only. Returns false if there was none.
    fn worker_frame(&mut self, key: CellKey) -> bool {
        let Some(Cell { state: State::Working { link, open, asked, .. }, .. }) =
            self.cells.get_mut(&key)
        else {
            return false;
        };
        let mut buffer = vec![0; FRAME_BYTES];
        let received = match receive(&*link, &mut buffer, PacketWait::No) {
            Ok(received) if received.bytes > 0 => received,
            Err(Errno::EAGAIN) => return false,
            Ok(_) | Err(_) => {
                *open = false;
                return false;
            }
        };
        let bytes = buffer.get(..received.bytes).unwrap_or_default();
        match decode::<FromGateway>(bytes) {
            Ok(FromGateway::Connection { cell, .. }) if cell == key => {
                // For the log alone, which does without where the link is full.
                send_now(self.link, bytes, &[]).unwrap_or_default();
            }
            // Once for each question: tallies wait for room on the link, and must not crowd out those of other cells.
            Ok(FromGateway::Tally { cell, call, .. }) if cell == key && asked.contains(&call) => {
                asked.retain(|asked| *asked != call);
                self.tell(bytes);
            }
            Ok(FromGateway::Last { cell, call, tally }) if cell == key => {
                if let Ok(frame) = encode_tally(cell, call, tally) {
                    self.ended.keep(key, frame);
                }
            }
            // A worker says nothing else, unless it is not one any more.
            Ok(_) | Err(_) => self.kill(key),
        }
        true
    }

    fn kill(&self, key: CellKey) {
        if let Some(Cell { state: State::Working { pidfd, .. }, .. }) = self.cells.get(&key) {
            // It may have ended already, which `exited` then tells.
            process::signal(pidfd, Signal::SIGKILL).unwrap_or_default();
        }
    }

    /// Reaps a worker. One that did not end as it should is told.
    fn exited(&mut self, key: CellKey) {
        let Some(cell) = self.cells.get(&key) else { return };
        let State::Working { pidfd, .. } = &cell.state else { return };
        let well = match process::collect(pidfd) {
            Ok(None) => return,
            Ok(Some(collected)) => collected.well,
            Err(_) => false,
        };
        // Its last words are still to be read.
        while self.worker_frame(key) {}
        let Some(cell) = self.cells.get_mut(&key) else { return };
        let State::Working { ending, asked, .. } = &mut cell.state else { return };
        let (ending, asked) = (*ending, std::mem::take(asked));
        if ending || well {
            self.cells.remove(&key);
        } else {
            cell.state = State::Failed;
            self.failed(key, "the worker of the cell's network has died");
        }
        asked.into_iter().for_each(|call| self.answer(key, call));
    }

    /// Ends the network of a cell that is gone.
    fn close(&mut self, key: CellKey) {
        let Some(cell) = self.cells.get_mut(&key) else { return };
        match &mut cell.state {
            State::Working { link, ending, pidfd, .. } => {
                *ending = true;
                let told = encode(&ToGateway::Close { cell: key })
                    .is_ok_and(|frame| send_now(&*link, &frame, &[]).is_ok());
                if !told {
                    process::signal(&*pidfd, Signal::SIGKILL).unwrap_or_default();
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

fn run_worker(parts: worker::Parts) -> Result<(), Errno> {
    process::set_death_signal(Signal::SIGKILL)?;
    let ports = confine::ports(&parts.egress, &parts.resolvers);
    let prepared = worker::prepare()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| cell::errno_of(&error))?;
    confine::worker(ports.as_deref())?;
    runtime.block_on(worker::serve(parts, prepared))
}

#[cfg(test)]
mod tests {
    use model::egress::{Connection, ConnectionEnd, Protocol};

    use super::*;

    const KEY: CellKey = CellKey { slot: 1, generation: 4 };

    /// Gives the frames to a gateway as those of a worker that has been asked about call 9; returns what the supervisor
    /// gets, and if the worker was killed.
    fn said(frames: &[FromGateway]) -> (Vec<FromGateway>, bool) {
        let (supervisor, link) = pair().expect("a pair");
        let (theirs, ours) = pair().expect("a pair");
        let Side::Parent(worker) = fork().expect("a child") else {
            std::thread::sleep(std::time::Duration::from_secs(60));
            process::exit_now(0);
        };
        let pidfd = worker.pidfd.try_clone().expect("a copy");
        let state = State::Working { link: ours, pidfd, ending: false, open: true, asked: vec![9] };
        let egress = Arc::new(Egress::default());
        let cell = Cell { egress, profile: 0, seed: [0; 16], begun: None, state };
        let spec = GatewaySpec {
            profiles: Vec::new(),
            resolvers: Vec::new(),
            hosts: Vec::new(),
            roots: Vec::new(),
            secrets: Vec::new(),
            id: None,
        };
        let mut gateway = Gateway {
            link: &link,
            spec: &spec,
            profiles: Vec::new(),
            prepared: Prepared::new(&spec).expect("nothing to prepare"),
            hosts: Arc::default(),
            cells: HashMap::from([(KEY, cell)]),
            ended: Ended::default(),
            closer: closer().expect("a closer"),
            pending: VecDeque::new(),
        };
        for frame in frames {
            send_now(&theirs, &encode(frame).expect("it fits"), &[]).expect("sent");
            gateway.worker_frame(KEY);
        }
        let mut buffer = vec![0; FRAME_BYTES];
        let mut got = Vec::new();
        while let Ok(received) = receive(&supervisor, &mut buffer, PacketWait::No) {
            got.push(decode(buffer.get(..received.bytes).expect("read")).expect("a frame"));
        }
        let mut waited = [PollFd::new(worker.pidfd.as_fd(), PollFlags::POLLIN)];
        let killed = poll(&mut waited, PollTimeout::from(200_u16)).expect("waited") == 1;
        process::signal(&worker.pidfd, Signal::SIGKILL).unwrap_or_default();
        process::wait(&worker.pidfd).expect("its end");
        (got, killed)
    }

    #[test]
    fn a_worker_says_what_it_was_asked_of_its_own_cell_and_nothing_else() {
        let tally = |cell, call| FromGateway::Tally { cell, call, tally: Tally::default() };
        let connection = |cell| FromGateway::Connection {
            cell,
            call: 9,
            connection: Connection {
                protocol: Protocol::Tcp,
                name: None,
                address: ([203, 0, 113, 1], 80).into(),
                rule: None,
                sent: 0,
                received: 0,
                milliseconds: 0,
                end: ConnectionEnd::Relayed,
                request: None,
            },
        };
        let own = [connection(KEY), tally(KEY, 9), connection(KEY)];
        assert_eq!(said(&own), (own.to_vec(), false));
        let other = CellKey { slot: 2, ..KEY };
        for hostile in [
            vec![tally(KEY, 8)],
            vec![tally(other, 9)],
            vec![connection(other)],
            vec![FromGateway::Up],
            vec![FromGateway::Failed { cell: Some(other), why: String::new() }],
        ] {
            assert_eq!(said(&hostile), (Vec::new(), true), "{hostile:?}");
        }
        // A second answer to one question is none.
        let twice = [tally(KEY, 9), tally(KEY, 9)];
        assert_eq!(said(&twice), (vec![tally(KEY, 9)], true));
    }
}
