//! The supervisor's loop: one thread, epoll, a table of calls.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::Caps;
use super::boot::Key;
use super::cells::{Cell, Maker, clamp};
use super::handover::{Brought, FarEnds};
use super::running::{Progress, Running, Stage};
use super::start::{CellIds, Inherited};
use crate::cell::cgroup::Parent;
use crate::cell::measure::Operator;
use crate::cell::payload::Scratch;
use crate::cell::{Design, Shared};
use crate::job::Limits;
use crate::outcome::{Ended, Failure, LimitKind, Outcome};
use crate::sys::memory;
use crate::sys::socket::{self, Received, Wait};
use crate::wire::{self, Block, CallId, Event, FRAME_BYTES, Request, ScriptKind, Start, StdinKind};

/// The supervisor while it serves.
#[derive(Debug)]
pub struct Supervisor {
    link: OwnedFd,
    epoll: Epoll,
    keys: Vec<Key>,
    shared: Shared,
    cgroups: Parent,
    operator: Operator,
    ids: CellIds,
    caps: Caps,
    scratch: Scratch,
    calls: BTreeMap<CallId, Running>,
    /// Which slots have a cell; a slot is free again when its cell is collected.
    slots: Vec<Option<CallId>>,
    /// Jobs that wait for the room of a call that is told and whose cell is ending yet: the
    /// front end knows of the end and may ask for the next one at once.
    deferred: VecDeque<(Start, Received)>,
    /// Frames that the link could not take yet.
    waiting: VecDeque<Outgoing>,
    interest: EpollFlags,
}

/// A frame on its way to the front end, and the pipes that go with it.
type Outgoing = (Vec<u8>, Option<(CallId, FarEnds)>);

/// With this many frames waiting no request is read: a front end that asks and never listens
/// fills its own queue, not this process.
const MOST_WAITING: usize = 1024;

/// What an epoll event is about: the link, or a source of the cell in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Link,
    Cell(u16, Source),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Pidfd,
    Control,
    Job,
    OutOfMemory,
}

impl Token {
    fn encode(self) -> u64 {
        match self {
            Self::Link => 0,
            Self::Cell(slot, source) => {
                let source = match source {
                    Source::Pidfd => 1,
                    Source::Control => 2,
                    Source::Job => 3,
                    Source::OutOfMemory => 4,
                };
                u64::from(slot) << 3 | source
            }
        }
    }

    fn decode(value: u64) -> Option<Self> {
        let source = match value & 7 {
            0 => return Some(Self::Link),
            1 => Source::Pidfd,
            2 => Source::Control,
            3 => Source::Job,
            4 => Source::OutOfMemory,
            _ => return None,
        };
        Some(Self::Cell(u16::try_from(value >> 3).ok()?, source))
    }
}

/// Serves until the front end is gone; then every cell dies with this process.
pub fn run(supervisor: &mut Supervisor) {
    while let Ok(true) = supervisor.turn() {}
}

impl Supervisor {
    pub fn new(inherited: Inherited, keys: Vec<Key>, shared: Shared) -> Result<Self, Errno> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Token::Link.encode());
        epoll.add(&inherited.link, event)?;
        Ok(Self {
            link: inherited.link,
            epoll,
            keys,
            shared,
            cgroups: inherited.cgroups,
            operator: inherited.operator,
            ids: inherited.ids,
            caps: inherited.caps,
            scratch: Scratch::new(),
            calls: BTreeMap::new(),
            slots: vec![None; usize::from(inherited.caps.cells)],
            deferred: VecDeque::new(),
            waiting: VecDeque::new(),
            interest: EpollFlags::EPOLLIN,
        })
    }

    /// Sends the first frame.
    pub fn greet(&self, event: &Event) -> Result<(), Errno> {
        let frame = wire::encode(event).map_err(|_| Errno::EMSGSIZE)?;
        socket::send(&self.link, &frame, &[])
    }

    /// Waits for one round of events and serves it. `Ok(false)`: the front end is gone.
    fn turn(&mut self) -> Result<bool, Errno> {
        let mut events = [EpollEvent::empty(); 32];
        let count = match self.epoll.wait(&mut events, self.timeout()) {
            Err(Errno::EINTR) => 0,
            result => result?,
        };
        for event in events.iter().take(count) {
            match Token::decode(event.data()) {
                Some(Token::Link) => {
                    if event.events().contains(EpollFlags::EPOLLOUT) {
                        self.flush()?;
                    }
                    if event.events().intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP)
                        && !self.read_link()?
                    {
                        return Ok(false);
                    }
                }
                Some(Token::Cell(slot, source)) => self.cell_event(slot, source)?,
                None => {}
            }
        }
        self.pass_deadlines(Instant::now())?;
        Ok(true)
    }

    fn timeout(&self) -> EpollTimeout {
        let next = self.calls.values().filter_map(Running::next_deadline).min();
        let Some(next) = next else { return EpollTimeout::NONE };
        // Rounded up: a timeout of 0 would spin until the instant has come.
        let wait = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::MAX)
    }

    /// Takes one frame. `Ok(false)`: the link is closed.
    fn read_link(&mut self) -> Result<bool, Errno> {
        let mut buffer = vec![0; FRAME_BYTES];
        let received = match socket::receive(&self.link, &mut buffer, Wait::No) {
            Err(Errno::EAGAIN) => return Ok(true),
            // A front end that died with frames unread resets the link (unix(7)).
            Err(Errno::ECONNRESET) => return Ok(false),
            result => result?,
        };
        if received.bytes == 0 {
            return Ok(false);
        }
        let bytes = buffer.get(..received.bytes).unwrap_or_default();
        if received.cut {
            // Its descriptors close here. A job whose frame came whole without them, for want of
            // free numbers in this process, is answered: its caller waits.
            return match wire::decode::<Request>(bytes) {
                Ok(Request::Start(start)) if !self.calls.contains_key(&start.call) => {
                    let failure = Failure::Busy { what: "descriptors".to_owned() };
                    let ended = Ended::failed(failure);
                    self.tell(&Event::Ended { call: start.call, ended }, None).map(|()| true)
                }
                Ok(_) | Err(_) => Ok(true),
            };
        }
        match wire::decode::<Request>(bytes) {
            Ok(Request::Start(start)) => self.start(start, received)?,
            Ok(Request::Cancel { call }) => self.stop(call, Outcome::Cancelled)?,
            Ok(Request::OutputLimit { call }) => {
                self.stop(call, Outcome::Limit(LimitKind::Output))?;
            }
            // A frame that is none has no call to answer.
            Err(_) => {}
        }
        Ok(true)
    }

    fn stop(&mut self, call: CallId, outcome: Outcome) -> Result<(), Errno> {
        match self.calls.get_mut(&call) {
            Some(running) => running.stop(outcome, Instant::now()),
            None => {
                let Some(place) = self.deferred.iter().position(|(start, _)| start.call == call)
                else {
                    // It has ended meanwhile.
                    return Ok(());
                };
                drop(self.deferred.remove(place));
                let ended = Ended { outcome, ..Ended::failed(Failure::Lost) };
                self.tell(&Event::Ended { call, ended }, None)
            }
        }
    }

    /// Takes a job: makes its cell, or tells why not.
    fn start(&mut self, start: Start, received: Received) -> Result<(), Errno> {
        let call = start.call;
        if self.calls.contains_key(&call)
            || self.deferred.iter().any(|(start, _)| start.call == call)
        {
            // A front end that reuses a number confuses only itself: this frame is dropped.
            return Ok(());
        }
        if self.deferred.len() < self.slots.len() && self.must_wait(&start) {
            self.deferred.push_back((start, received));
            return Ok(());
        }
        match self.prepare(start, received) {
            Ok(running) => {
                if let Some(slot) = self.slots.get_mut(usize::from(running.cell.slot)) {
                    *slot = Some(call);
                }
                self.calls.insert(call, running);
                Ok(())
            }
            Err(failure) => self.tell(&Event::Ended { call, ended: Ended::failed(failure) }, None),
        }
    }

    fn prepare(&mut self, start: Start, received: Received) -> Result<Running, Failure> {
        let arrived = Instant::now();
        let refused = |why: String| Failure::Refused { why };
        let (block, brought) = take(&start, received).map_err(refused)?;
        if start.session.is_some() {
            return Err(refused("sessions are not offered yet".to_owned()));
        }
        let (index, limits) = {
            let (index, design) = self.design(&start)?;
            (index, clamp(&design.profile.limits, &start.limits))
        };
        self.room(&limits)?;
        let slot = self
            .slots
            .iter()
            .position(Option::is_none)
            .and_then(|slot| u16::try_from(slot).ok())
            .ok_or_else(|| Failure::Busy { what: "cells".to_owned() })?;
        let cell = self.make(index, slot).map_err(|errno| Failure::Setup {
            step: "cloning the cell".to_owned(),
            errno: crate::cell::report::raw(errno),
        })?;
        let running = Running::new(start, index, block, brought, limits, cell, arrived);
        // ENOSPC: another process of our uid has used up its share of epoll (epoll(7)). That
        // costs this call its cell, and no other call anything.
        self.watch(&running).map_err(|errno| Failure::Setup {
            step: "watching the cell".to_owned(),
            errno: crate::cell::report::raw(errno),
        })?;
        Ok(running)
    }

    fn design(&self, start: &Start) -> Result<(usize, &Design), Failure> {
        let found = self
            .keys
            .iter()
            .enumerate()
            .find(|(_, key)| key.profile == start.profile && key.workspace == start.workspace);
        let Some((index, key)) = found else {
            let why = format!("no profile `{}` with that workspace", start.profile);
            return Err(Failure::Refused { why });
        };
        match &key.design {
            Ok(design) => Ok((index, design)),
            Err(unusable) => Err(match &unusable.missing_program {
                Some(program) => Failure::NotFound { program: program.clone() },
                None => Failure::Refused {
                    why: format!("profile `{}` cannot be used here: {}", key.profile, unusable.why),
                },
            }),
        }
    }

    /// Whether there is no room now and will be in a moment, when a cell that is ending is gone.
    fn must_wait(&self, start: &Start) -> bool {
        let Ok((_, design)) = self.design(start) else { return false };
        let limits = clamp(&design.profile.limits, &start.limits);
        let full = self.room(&limits).is_err() || self.slots.iter().all(Option::is_some);
        full && self.calls.values().any(|running| running.stage == Stage::Ending)
    }

    /// Starts what waited for the room of a cell that is gone now.
    fn start_deferred(&mut self) -> Result<(), Errno> {
        while let Some((start, _)) = self.deferred.front() {
            if self.must_wait(start) {
                return Ok(());
            }
            if let Some((start, received)) = self.deferred.pop_front() {
                self.start(start, received)?;
            }
        }
        Ok(())
    }

    /// Whether the caps over all cells leave room for one more.
    fn room(&self, limits: &Limits) -> Result<(), Failure> {
        let memory: u64 = self.calls.values().map(|running| running.limits.memory).sum();
        if memory.saturating_add(limits.memory) > self.caps.memory {
            return Err(Failure::Busy { what: "memory".to_owned() });
        }
        let tmpfs: u64 = self.calls.values().map(|running| running.limits.tmpfs()).sum();
        if tmpfs.saturating_add(limits.tmpfs()) > self.caps.tmpfs {
            return Err(Failure::Busy { what: "bytes of private filesystems".to_owned() });
        }
        Ok(())
    }

    fn make(&mut self, index: usize, slot: u16) -> Result<Cell, Errno> {
        let design = self.keys.get(index).and_then(|key| key.design.as_ref().ok());
        let design = design.ok_or(Errno::EINVAL)?;
        let mut maker = Maker {
            shared: &self.shared,
            cgroups: &self.cgroups,
            ids: self.ids,
            operator: &self.operator,
            scratch: &mut self.scratch,
        };
        maker.clone_cell(design, slot)
    }

    fn watch(&self, running: &Running) -> Result<(), Errno> {
        let cell = &running.cell;
        let add = |fd: &dyn AsFd, source| {
            let token = Token::Cell(cell.slot, source).encode();
            self.epoll.add(fd.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, token))
        };
        add(cell.pidfd(), Source::Pidfd)?;
        add(&cell.control, Source::Control)?;
        add(&cell.job, Source::Job)?;
        match &cell.out_of_memory {
            Some(event) => add(event, Source::OutOfMemory),
            None => Ok(()),
        }
    }

    fn cell_event(&mut self, slot: u16, source: Source) -> Result<(), Errno> {
        let call = self.slots.get(usize::from(slot)).copied().flatten();
        let Some((call, mut running)) =
            call.and_then(|call| Some((call, self.calls.remove(&call)?)))
        else {
            return Ok(());
        };
        let progress = self.advance(&mut running, source);
        self.progress(call, running, progress)
    }

    fn advance(&mut self, running: &mut Running, source: Source) -> Progress {
        let design = self.keys.get(running.key).and_then(|key| key.design.as_ref().ok());
        let Some(design) = design else { return Progress::None };
        let maker = Maker {
            shared: &self.shared,
            cgroups: &self.cgroups,
            ids: self.ids,
            operator: &self.operator,
            scratch: &mut self.scratch,
        };
        match source {
            Source::Control => running.read_control(design),
            Source::Job => running.read_job(design, &maker),
            Source::Pidfd => running.collect(),
            Source::OutOfMemory => running.out_of_memory(),
        }
    }

    /// Does what a step of a call asks for, and keeps the call unless it is over.
    fn progress(
        &mut self,
        call: CallId,
        mut running: Running,
        progress: Progress,
    ) -> Result<(), Errno> {
        match progress {
            Progress::None => {}
            Progress::Unwatch(source) => self.unwatch(&running, source)?,
            Progress::Started(ends, receipt) => {
                let stdin = running.stdin_kind();
                let started = Event::Started { call, stdin, receipt: *receipt };
                self.calls.insert(call, running);
                return self.tell(&started, Some((call, ends)));
            }
            Progress::Ended(ended) => {
                self.unwatch(&running, super::running::Socket::Control)?;
                self.tell(&Event::Ended { call, ended: *ended }, None)?;
            }
            Progress::Gone(ended) => {
                if let Some(ended) = ended {
                    self.tell(&Event::Ended { call, ended: *ended }, None)?;
                }
                if let Some(slot) = self.slots.get_mut(usize::from(running.cell.slot)) {
                    *slot = None;
                }
                running.stage = Stage::Gone;
                drop(running);
                return self.start_deferred();
            }
        }
        self.calls.insert(call, running);
        Ok(())
    }

    /// Stops listening to a socket that has nothing more to say; closed, it would be readable for ever.
    fn unwatch(&self, running: &Running, source: super::running::Socket) -> Result<(), Errno> {
        let fd = match source {
            super::running::Socket::Control => &running.cell.control,
            super::running::Socket::Job => &running.cell.job,
        };
        match self.epoll.delete(fd) {
            // Taken out before.
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn pass_deadlines(&mut self, now: Instant) -> Result<(), Errno> {
        for running in self.calls.values_mut() {
            running.pass_deadline(now)?;
        }
        Ok(())
    }

    /// Sends a frame, or keeps it until the link can take it. Order is kept.
    fn tell(&mut self, event: &Event, ends: Option<(CallId, FarEnds)>) -> Result<(), Errno> {
        let frame = wire::encode(event).map_err(|_| Errno::EMSGSIZE)?;
        self.waiting.push_back((frame, ends));
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Errno> {
        while let Some((frame, ends)) = self.waiting.front() {
            let fds = ends.as_ref().map(|(_, ends)| ends.list()).unwrap_or_default();
            match socket::send_now(&self.link, frame, &fds) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(Errno::EAGAIN) => break,
                // The front end is gone; the link's end of file is read next.
                Err(Errno::EPIPE | Errno::ECONNRESET) => self.waiting.clear(),
                Err(errno) => match self.waiting.pop_front() {
                    // ETOOMANYREFS: a cell of our uid has as many descriptors on their way as the
                    // user may have (unix(7)). The call whose pipes cannot be sent ends; the others go on.
                    Some((_, Some((call, _ends)))) => self.stop(call, undelivered(errno))?,
                    Some((_, None)) | None => return Err(errno),
                },
            }
        }
        self.listen()
    }

    /// Asks epoll for what the link's queue allows.
    fn listen(&mut self) -> Result<(), Errno> {
        let mut interest = EpollFlags::empty();
        interest.set(EpollFlags::EPOLLOUT, !self.waiting.is_empty());
        interest.set(EpollFlags::EPOLLIN, self.waiting.len() < MOST_WAITING);
        if self.interest == interest {
            return Ok(());
        }
        self.interest = interest;
        self.epoll.modify(&self.link, &mut EpollEvent::new(interest, Token::Link.encode()))
    }
}

fn undelivered(errno: Errno) -> Outcome {
    Outcome::Failed(Failure::Setup {
        step: "sending the program's streams".to_owned(),
        errno: crate::cell::report::raw(errno),
    })
}

/// Takes the descriptors of a job and checks that each is what it must be.
fn take(start: &Start, received: Received) -> Result<(Block, Brought), String> {
    let got = received.fds.iter().flatten().count();
    if got != start.descriptors() {
        return Err(wire::WireError::Descriptors { got, want: start.descriptors() }.to_string());
    }
    let mut fds = received.fds.into_iter().flatten();
    let block = fds.next().ok_or_else(|| "no block".to_owned())?;
    let block = Block::open(block).map_err(|error| error.to_string())?;
    let mut sealed = |wanted: bool| match wanted {
        false => Ok(None),
        true => {
            let fd = fds.next().filter(|fd| memory::is_sealed(fd).unwrap_or(false));
            fd.map(Some).ok_or_else(|| wire::WireError::NotSealed.to_string())
        }
    };
    let script = sealed(start.script == ScriptKind::Bytes)?;
    let stdin = sealed(start.stdin == StdinKind::Bytes)?;
    Ok((block, Brought { script, stdin }))
}
