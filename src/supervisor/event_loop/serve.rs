//! The supervisor's loop: one thread, poll(2), a table of cells and a table of calls.
//!
//! *Invariant:* no error of one call, cell or session ends the loop. A failure of one of them ends that
//! one, with its reason; [`Fatal`] is made of no errno by `?`, and so is never returned by accident.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFlags, PollTimeout};

use super::gateway::GatewayLink;
use super::outbox::{Fatal, MAX_FAILURES, pause};
use super::poll::{Source, Token};
use super::supervisor::{Owner, Supervisor};
use crate::cells::bare;
use crate::cells::dying::TurnBudget;
use crate::cells::pooled_cell::{PoolEvent, PooledCell};
use crate::cells::running::{CallEvent, Running};
use crate::sessions::shell::Shell;
use cell::report::raw;
use cell::slot::Slot;
use model::outcome::{Ended, Failure, LimitKind, Outcome};
use model::wire::{self, CallId, FRAME_BYTES, Request};
use sys::process;
use sys::socket::{self, PacketWait};

/// The state of the front end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrontEnd {
    There,
    Gone,
}

/// Serves until the front end is gone; then every cell dies with this process.
pub(crate) fn run(supervisor: &mut Supervisor) {
    loop {
        match supervisor.turn() {
            Ok(FrontEnd::There) => {}
            Ok(FrontEnd::Gone) => break,
            Err(Fatal { what, errno }) => {
                tracing::error!(%errno, "{what}: the supervisor ends, and with it every cell");
                supervisor.last_lines();
                break;
            }
        }
    }
    if let Some(domain) = supervisor.shared.domain
        && let Err(errno) = bare::end_all(domain)
    {
        // Inits see the end of their sockets, and end their cells.
        tracing::error!(%errno, "cells could not be ended at once");
    }
}

impl Supervisor {
    /// Waits for one round of events and serves it.
    fn turn(&mut self) -> Result<FrontEnd, Fatal> {
        for (token, flags) in self.wait() {
            match token {
                Token::Link => {
                    let reads = PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR;
                    if flags.intersects(reads) && self.read_link()? == FrontEnd::Gone {
                        return Ok(FrontEnd::Gone);
                    }
                }
                Token::Gateway => self.read_gateway(),
                Token::Cell(slot, source) => self.cell_event(slot, source),
            }
        }
        self.pass_deadlines(Instant::now());
        self.dispatch();
        self.tell_lines();
        self.flush()?;
        Ok(FrontEnd::There)
    }

    pub(super) fn timeout(&self) -> PollTimeout {
        let calls = self.calls.values().filter_map(Running::next_deadline);
        // A look that could build nothing is no reason to wake: what makes it possible is an event.
        let refill = self.pool.refill(self.load()).filter(|_| self.can_refill());
        let sessions = self.sessions.next_deadline();
        let gateway = self.gateway.as_ref().and_then(GatewayLink::next_deadline);
        let others = self.pool.next_deadline().into_iter().chain(self.outbox.retry());
        let others = others.chain(gateway).chain(self.next_refresh());
        let next = calls.chain(others).chain(refill).chain(sessions).min();
        let Some(next) = next else { return PollTimeout::NONE };
        // Rounded up: a timeout of 0 would spin until the instant has come.
        let wait = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)
    }

    /// Takes one frame.
    fn read_link(&mut self) -> Result<FrontEnd, Fatal> {
        let mut buffer = self.room();
        let read = self.read_frame(&mut buffer);
        self.buffer = buffer;
        match read {
            Ok(there) => {
                self.unread = 0;
                Ok(there)
            }
            Err(errno) if self.unread >= MAX_FAILURES => {
                Err(Fatal { what: "the link cannot be read", errno })
            }
            Err(errno) => {
                self.unread += 1;
                tracing::warn!(%errno, "the link could not be read");
                pause();
                Ok(FrontEnd::There)
            }
        }
    }

    /// Takes the buffer for a frame or a report out of `self`. The caller puts it back.
    pub(super) fn room(&mut self) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.reserve_exact(FRAME_BYTES);
        buffer
    }

    /// Takes one frame; fails where the link does, for no call is to blame for that.
    fn read_frame(&mut self, buffer: &mut Vec<u8>) -> Result<FrontEnd, Errno> {
        let received = match socket::receive_into(&self.outbox.link, buffer, PacketWait::No) {
            Err(Errno::EAGAIN) => return Ok(FrontEnd::There),
            // A front end that died with frames unread resets the link (unix(7)).
            Err(Errno::ECONNRESET) => return Ok(FrontEnd::Gone),
            result => result?,
        };
        if received.bytes == 0 {
            // The end, or a frame with nothing in it: recvmsg(2) says the same of both.
            let open = process::is_open(&self.outbox.link)?;
            return Ok(if open { FrontEnd::There } else { FrontEnd::Gone });
        }
        if received.cut {
            self.cut(buffer);
            return Ok(FrontEnd::There);
        }
        match wire::decode::<Request>(buffer) {
            Ok(Request::Start(start)) => self.take(start, received),
            Ok(Request::Cancel { call }) => self.stop(call, Outcome::Cancelled),
            Ok(Request::OutputLimit { call }) => {
                self.stop(call, Outcome::Limit(LimitKind::Output));
            }
            Ok(Request::Signal { call, signal }) => self.signal(call, signal),
            Ok(Request::AskInput { call, number }) => self.ask_input(call, number),
            Ok(Request::Restart { session }) => self.restart(session),
            Ok(Request::Forget { session }) => self.forget(session),
            Ok(Request::MakeRoom { number, profile, workspace, from }) => {
                self.make_room(number, &profile, workspace, &from);
            }
            // An undecodable frame names no call: drop it.
            Err(_) => {}
        }
        Ok(FrontEnd::There)
    }

    /// Handles a truncated frame, whose descriptors are closed. If only descriptors are missing, because
    /// this process has no free numbers, the job is answered with a failure, as its caller waits.
    fn cut(&mut self, bytes: &[u8]) {
        if let Ok(Request::Start(start)) = wire::decode::<Request>(bytes)
            && !self.knows(start.call)
        {
            let failure = Failure::Busy { what: "descriptors".to_owned() };
            self.end(start.call, Ended::failed(failure));
        }
    }

    fn cell_event(&mut self, slot: Slot, source: Source) {
        match self.slots.get(slot.index()).copied().flatten() {
            Some(Owner::Pool) => self.pooled_cell_event(slot, source),
            Some(Owner::Call(call)) => self.call_event(call, source),
            Some(Owner::Session(id)) => {
                let mut room = self.room();
                self.shell_event(id, |shell, mailbox| match source {
                    Source::Control => shell.read_control(&mut room, mailbox),
                    Source::Job => shell.read_job(),
                    Source::Pidfd => shell.collect(mailbox),
                    Source::Report => shell.read_report(Instant::now()),
                    Source::OutOfMemory => shell.out_of_memory(),
                });
                self.buffer = room;
            }
            // The cell was collected earlier in this round.
            None => {}
        }
    }

    fn pooled_cell_event(&mut self, slot: Slot, source: Source) {
        let Some(mut pooled) = self.pool.take(slot) else { return };
        let event = match source {
            Source::Control => pooled.read_control(self.pool.keep()),
            Source::Pidfd => pooled.collect(),
            Source::Job => {
                let (maker, keys) = self.maker();
                match keys.design(pooled.key) {
                    Some(design) => pooled.read_job(design, &maker),
                    None => PoolEvent::None,
                }
            }
            Source::OutOfMemory => pooled.out_of_memory(),
            // Before a job there is no call to report.
            Source::Report => PoolEvent::None,
        };
        let event = self.with_network(slot, &mut pooled, event);
        self.after_pool_event(slot, pooled, event);
    }

    /// Gives the gateway the network that a new cell has reported.
    fn with_network(&mut self, slot: Slot, pooled: &mut PooledCell, event: PoolEvent) -> PoolEvent {
        if let (Some(links), Some(gateway)) = (pooled.cell.network.links.take(), &mut self.gateway)
        {
            gateway.links.insert(slot.number(), links);
        }
        let Some(ends) = pooled.cell.network.take_whole() else { return event };
        match self.open_network(slot, pooled.key, &ends) {
            Ok(()) => event,
            Err(errno) => {
                let step = "giving the gateway its network".to_owned();
                pooled.fail(Failure::Setup { step, errno: raw(errno) })
            }
        }
    }

    fn call_event(&mut self, call: CallId, source: Source) {
        let Some(mut running) = self.calls.remove(&call) else { return };
        let progress = match source {
            Source::Control => {
                let mut room = self.room();
                let progress = running.read_control(&mut room);
                self.buffer = room;
                progress
            }
            Source::Job => running.read_job(),
            Source::Pidfd => running.collect(),
            Source::OutOfMemory => running.out_of_memory(),
            // Only the shell of a session has one.
            Source::Report => CallEvent::None,
        };
        match progress {
            CallEvent::None => {}
            // Before all else: the caller waits.
            CallEvent::Ended(ended) => self.end(call, *ended),
            CallEvent::Gone(ended) => {
                if let Some(ended) = ended {
                    self.end(call, *ended);
                }
                self.release(running.cell.slot);
                return self.close_left();
            }
        }
        self.calls.insert(call, running);
    }

    /// Answers the callers whose cells take their time to end.
    fn answer_for_the_dying(&mut self, now: Instant) {
        let mut ended_calls = Vec::new();
        let budget = TurnBudget::begin();
        for (call, running) in &mut self.calls {
            let ended = running.answer_dying(&self.shared, now, budget);
            ended_calls.extend(ended.map(|ended| (*call, ended)));
        }
        ended_calls.extend(self.sessions.answer_dying(&self.shared, now, budget));
        ended_calls.into_iter().for_each(|(call, ended)| self.end(call, *ended));
    }

    /// Returns when an overlay is to be refreshed for a program that runs.
    fn next_refresh(&self) -> Option<Instant> {
        let next = self.overlays.iter().filter_map(|overlays| overlays.next_refresh()).min()?;
        let runs = !self.calls.is_empty() || self.sessions.shells().any(Shell::is_used);
        runs.then_some(next)
    }

    fn pass_deadlines(&mut self, now: Instant) {
        if self.next_refresh().is_some_and(|next| next <= now) {
            for overlays in &self.overlays {
                // All that a failure leaves is names as they were.
                overlays.begin_refresh(now).unwrap_or_default();
            }
        }
        for running in self.calls.values_mut() {
            running.pass_deadline(now);
        }
        self.pass_session_deadlines(now);
        self.answer_for_the_dying(now);
        self.pass_gateway_deadlines(now);
        for slot in self.pool.due(now) {
            if let Some(mut pooled) = self.pool.take(slot) {
                if pooled.is_idle() {
                    self.pool.counts.unwanted += 1;
                }
                let event = pooled.pass_deadline(now);
                self.after_pool_event(slot, pooled, event);
            }
        }
    }
}
