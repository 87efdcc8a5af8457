//! The supervisor's loop: one thread, epoll, a table of cells and a table of calls.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::boot::Key;
use super::cells::{Cell, Maker};
use super::outbox::{Interest, Outbox};
use super::pool::Pool;
use super::running::{Progress, Ready, Running, Socket};
use super::session::Sessions;
use super::shell::{Shell, Step};
use super::start::{CellIds, Inherited};
use super::young::Growth;
use super::{Caps, bare};
use crate::cell::cgroup::Parent;
use crate::cell::measure::Operator;
use crate::cell::mounts::Slot;
use crate::cell::payload::Scratch;
use crate::cell::{Design, Shared};
use crate::outcome::{Ended, Failure, LimitKind, Outcome};
use crate::sys::process;
use crate::sys::socket::{self, Wait};
use crate::wire::{self, CallId, FRAME_BYTES, Request};

/// The supervisor while it serves.
#[derive(Debug)]
pub struct Supervisor {
    pub(super) outbox: Outbox,
    pub(super) interest: Interest,
    pub(super) epoll: Epoll,
    /// Room for a frame, which is more than any report takes.
    buffer: Vec<u8>,
    pub(super) keys: Vec<Key>,
    pub(super) shared: Shared,
    cgroups: Parent,
    operator: Operator,
    pub(super) ids: CellIds,
    pub(super) caps: Caps,
    scratch: Scratch,
    /// Jobs that wait for a cell or for room, in the order they came.
    pub(super) queue: VecDeque<Ready>,
    pub(super) calls: BTreeMap<CallId, Running>,
    pub(super) pool: Pool,
    pub(super) sessions: Sessions,
    /// Who has the cell of a slot; a slot is free again when its cell is collected.
    pub(super) slots: Vec<Option<Owner>>,
}

/// Who has a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Pool,
    Call(CallId),
    /// The session in this place; kept for it while it has no cell.
    Session(usize),
}

/// What an epoll event is about: the link, or a source of the cell in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    Link,
    Cell(Slot, Source),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Pidfd,
    Control,
    Job,
    OutOfMemory,
    /// What a session's shell tells of its call.
    Report,
}

impl Token {
    pub(super) fn encode(self) -> u64 {
        match self {
            Self::Link => 0,
            Self::Cell(slot, source) => {
                let source = match source {
                    Source::Pidfd => 1,
                    Source::Control => 2,
                    Source::Job => 3,
                    Source::OutOfMemory => 4,
                    Source::Report => 5,
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
            5 => Source::Report,
            _ => return None,
        };
        Some(Self::Cell(Slot::try_from(value >> 3).ok()?, source))
    }
}

/// Serves until the front end is gone; then every cell dies with this process.
pub fn run(supervisor: &mut Supervisor) {
    while let Ok(true) = supervisor.turn() {}
    if let Some(domain) = supervisor.shared.domain
        && let Err(errno) = bare::end_all(domain)
    {
        // Inits see the end of their sockets, and end their cells.
        tracing::error!(%errno, "cells could not be ended at once");
    }
}

impl Supervisor {
    pub fn new(inherited: Inherited, mut keys: Vec<Key>, shared: Shared) -> Result<Self, Errno> {
        let Caps { sessions, session_idle, .. } = inherited.caps;
        let sessions_from = keys.len();
        keys.extend(Sessions::keys(sessions));
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, Token::Link.encode());
        epoll.add(&inherited.link, event)?;
        Ok(Self {
            outbox: Outbox::new(inherited.link),
            interest: Interest::Requests,
            epoll,
            buffer: Vec::new(),
            pool: Pool::new(keys.len(), inherited.caps.warm),
            sessions: Sessions::new(sessions_from, sessions, session_idle),
            keys,
            shared,
            cgroups: inherited.cgroups,
            operator: inherited.operator,
            ids: inherited.ids,
            caps: inherited.caps,
            scratch: Scratch::new()?,
            queue: VecDeque::new(),
            calls: BTreeMap::new(),
            slots: vec![None; usize::from(inherited.caps.cells)],
        })
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
        self.dispatch()?;
        Ok(true)
    }

    fn timeout(&self) -> EpollTimeout {
        let calls = self.calls.values().filter_map(Running::next_deadline);
        // A look that could build nothing is no reason to wake: what makes it possible is an event.
        let refill = self.pool.refill(self.load()).filter(|_| self.can_refill());
        let sessions = self.sessions.next_deadline();
        let next = calls.chain(self.pool.next_deadline()).chain(refill).chain(sessions).min();
        let Some(next) = next else { return EpollTimeout::NONE };
        // Rounded up: a timeout of 0 would spin until the instant has come.
        let wait = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::MAX)
    }

    /// Takes one frame. `Ok(false)`: the link is closed.
    fn read_link(&mut self) -> Result<bool, Errno> {
        let mut buffer = self.room();
        let open = self.read_frame(&mut buffer);
        self.buffer = buffer;
        open
    }

    /// The room for a frame or a report, out of `self` for as long as it is read.
    fn room(&mut self) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.reserve_exact(FRAME_BYTES);
        buffer
    }

    fn read_frame(&mut self, buffer: &mut Vec<u8>) -> Result<bool, Errno> {
        let received = match socket::receive_into(&self.outbox.link, buffer, Wait::No) {
            Err(Errno::EAGAIN) => return Ok(true),
            // A front end that died with frames unread resets the link (unix(7)).
            Err(Errno::ECONNRESET) => return Ok(false),
            result => result?,
        };
        if received.bytes == 0 {
            // The end, or a frame with nothing in it: recvmsg(2) says the same of both.
            return process::is_open(&self.outbox.link);
        }
        if received.cut {
            return self.cut(buffer).map(|()| true);
        }
        match wire::decode::<Request>(buffer) {
            Ok(Request::Start(start)) => self.take(start, received)?,
            Ok(Request::Cancel { call }) => self.stop(call, Outcome::Cancelled)?,
            Ok(Request::OutputLimit { call }) => {
                self.stop(call, Outcome::Limit(LimitKind::Output))?;
            }
            Ok(Request::Signal { call, signal }) => self.signal(call, signal)?,
            Ok(Request::AskInput { call, number }) => self.ask_input(call, number)?,
            Ok(Request::Restart { session }) => self.restart(session)?,
            Ok(Request::Forget { session }) => self.forget(session)?,
            // A frame that is none has no call to answer.
            Err(_) => {}
        }
        Ok(true)
    }

    /// A frame that did not come whole; its descriptors are closed. A job that came whole without
    /// them, for want of free numbers in this process, is answered: its caller waits.
    fn cut(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        match wire::decode::<Request>(bytes) {
            Ok(Request::Start(start)) if !self.knows(start.call) => {
                let failure = Failure::Busy { what: "descriptors".to_owned() };
                self.end(start.call, Ended::failed(failure))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// What making and measuring cells needs, and the keys, each borrowed apart.
    pub(super) fn maker(&mut self) -> (Maker<'_>, &[Key]) {
        let maker = Maker {
            shared: &self.shared,
            cgroups: &self.cgroups,
            ids: self.ids,
            operator: &self.operator,
            inputs: self.pool.inputs(),
            scratch: &mut self.scratch,
        };
        (maker, &self.keys)
    }

    /// Listens to a new cell.
    pub(super) fn watch(&self, cell: &Cell) -> Result<(), Errno> {
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

    /// Listens to what a session's shell tells of the call that it was given.
    pub(super) fn watch_report(&self, place: usize, slot: Slot) -> Result<(), Errno> {
        let shell = self.sessions.get(place).and_then(|session| session.shell.as_ref());
        let Some(report) = shell.and_then(Shell::report) else { return Ok(()) };
        let token = Token::Cell(slot, Source::Report).encode();
        self.epoll.add(report, EpollEvent::new(EpollFlags::EPOLLIN, token))
    }

    /// Stops listening to a socket that has nothing more to say; closed, it would be readable for
    /// ever.
    pub(super) fn unwatch(&self, cell: &Cell, which: Socket) -> Result<(), Errno> {
        let fd = match which {
            Socket::Control => &cell.control,
            Socket::Job => &cell.job,
        };
        match self.epoll.delete(fd) {
            // Taken out before.
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn cell_event(&mut self, slot: Slot, source: Source) -> Result<(), Errno> {
        match self.slots.get(usize::from(slot)).copied().flatten() {
            Some(Owner::Pool) => self.young_event(slot, source),
            Some(Owner::Call(call)) => self.call_event(call, source),
            Some(Owner::Session(place)) => self.shell_event(place, |shell, desk| match source {
                Source::Control => shell.read_control(desk),
                Source::Job => Ok(shell.read_job()),
                Source::Pidfd => shell.collect(desk),
                Source::Report => shell.read_report(Instant::now()),
                Source::OutOfMemory => shell.out_of_memory().map(|()| Step::None),
            }),
            // The cell was collected earlier in this round.
            None => Ok(()),
        }
    }

    fn young_event(&mut self, slot: Slot, source: Source) -> Result<(), Errno> {
        let Some(mut young) = self.pool.take(slot) else { return Ok(()) };
        let growth = match source {
            Source::Control => young.read_control(self.pool.keep()),
            Source::Pidfd => young.collect(),
            Source::Job => {
                let (maker, keys) = self.maker();
                match design_of(keys, young.key) {
                    Some(design) => young.read_job(design, &maker),
                    None => Growth::None,
                }
            }
            Source::OutOfMemory => young.out_of_memory(),
            // Before a job there is nobody to tell of a call.
            Source::Report => Growth::None,
        };
        if !young.is_alive() && !matches!(growth, Growth::Gone) {
            // A dead cell's sockets have nothing more to say; its pidfd has.
            self.unwatch(&young.cell, Socket::Job)?;
            self.unwatch(&young.cell, Socket::Control)?;
        }
        self.grown(slot, young, growth)
    }

    fn call_event(&mut self, call: CallId, source: Source) -> Result<(), Errno> {
        let Some(mut running) = self.calls.remove(&call) else { return Ok(()) };
        let progress = match source {
            Source::Control => {
                let mut room = self.room();
                let progress = running.read_control(&mut room);
                self.buffer = room;
                progress
            }
            Source::Job => running.read_job(),
            Source::Pidfd => running.collect(),
            Source::OutOfMemory => {
                running.out_of_memory()?;
                Progress::None
            }
            // Only the shell of a session has one.
            Source::Report => Progress::None,
        };
        match progress {
            Progress::None => {}
            Progress::Unwatch(which) => self.unwatch(&running.cell, which)?,
            Progress::Ended(ended) => {
                // Before all else: the caller waits.
                self.end(call, *ended)?;
                self.unwatch(&running.cell, Socket::Control)?;
            }
            Progress::Gone(ended) => {
                if let Some(ended) = ended {
                    self.end(call, *ended)?;
                }
                self.release(running.cell.slot);
                return self.close_left();
            }
        }
        self.calls.insert(call, running);
        Ok(())
    }

    fn pass_deadlines(&mut self, now: Instant) -> Result<(), Errno> {
        for running in self.calls.values_mut() {
            running.pass_deadline(now)?;
        }
        self.pass_session_deadlines(now)?;
        for slot in self.pool.due(now) {
            if let Some(mut young) = self.pool.take(slot) {
                if young.is_idle() {
                    self.pool.counts.unwanted += 1;
                }
                let growth = young.pass_deadline(now);
                self.grown(slot, young, growth)?;
            }
        }
        Ok(())
    }
}

/// The design of a key, where it can be used here.
pub(super) fn design_of(keys: &[Key], index: usize) -> Option<&Design> {
    keys.get(index).and_then(|key| key.design.as_ref().ok())
}
