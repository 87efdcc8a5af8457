//! The supervisor's loop: one thread, poll(2), a table of cells and a table of calls.
//!
//! *Invariant:* no error of one call, cell or session ends the loop. A failure of one of them ends that
//! one, with its reason; [`Fatal`] is made of no errno by `?`, and so is never returned by accident.

use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFlags, PollTimeout};

use super::cell_supply::Owner;
use super::front_end::Incoming;
use super::outbox::Fatal;
use super::poll::{PollList, Source, Token};
use super::supervisor::Supervisor;
use crate::cells::bare;
use crate::cells::dying::TurnBudget;
use crate::cells::running::CallEvent;
use cell::slot::Slot;
use model::outcome::{Ended, Failure, LimitKind, Outcome};
use model::wire::{CallId, Request};
use sys::memory;
use sys::socket::Received;

/// Time after which the code of the start is unmapped. The front end waits as long: unmapped at once, much of the code
/// would be read again for a first call.
const START_KEPT: Duration = Duration::from_secs(1);
/// Frames of the gateway that are read in a row.
const MAX_GATEWAY_FRAMES: usize = 64;

/// Serves until the front end is gone; then every cell dies with this process.
pub(crate) fn run(supervisor: &mut Supervisor) {
    supervisor.forgets_start = Some(Instant::now() + START_KEPT);
    loop {
        match supervisor.turn() {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => break,
            Err(Fatal { what, errno }) => {
                tracing::error!(%errno, "{what}: the supervisor ends, and with it every cell");
                supervisor.front_end.outbox.add_log_lines();
                supervisor.front_end.outbox.send_early();
                break;
            }
        }
    }
    if let Some(domain) = supervisor.supply.shared.domain
        && let Err(errno) = bare::end_all(domain)
    {
        // Inits see the end of their sockets, and end their cells.
        tracing::error!(%errno, "cells could not be ended at once");
    }
}

impl Supervisor {
    /// Waits for one round of events and serves it. Breaks if the front end is gone.
    fn turn(&mut self) -> Result<ControlFlow<()>, Fatal> {
        for (token, flags) in self.wait() {
            match token {
                Token::Link => {
                    let reads = PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR;
                    if flags.intersects(reads) && self.read_link()?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Token::Gateway => self.read_gateway(),
                // The next dispatch collects it.
                Token::LateFiles => {}
                Token::Cell(slot, source) => self.cell_event(slot, source),
            }
        }
        self.pass_deadlines(Instant::now());
        self.dispatch();
        self.front_end.outbox.add_log_lines();
        self.flush()?;
        Ok(ControlFlow::Continue(()))
    }

    /// Waits until something happens or something is due; returns what happened.
    fn wait(&self) -> Vec<(Token, PollFlags)> {
        let makers: Vec<_> = self.supply.makers_of_files().collect();
        let mut list = PollList::default();
        let outbox = &self.front_end.outbox;
        list.add(Token::Link, outbox.link.as_fd(), outbox.interest());
        if let Some(link) = self.gateway.descriptor() {
            list.add(Token::Gateway, link, self.gateway.interest());
        }
        for fd in makers.iter().flat_map(|(maker, _)| maker.descriptors()) {
            list.add(Token::LateFiles, fd, PollFlags::POLLIN);
        }
        for cell in self.supply.pool.cells() {
            list.add_cell(cell, None);
        }
        for running in self.calls.values() {
            list.add_cell(&running.life.cell, None);
        }
        for shell in self.sessions.shells() {
            list.add_cell(&shell.life.cell, Some(shell));
        }
        list.wait(self.timeout())
    }

    /// Returns the time until the next deadline.
    fn timeout(&self) -> PollTimeout {
        let calls = self.calls.values().filter_map(|running| running.life.next_deadline());
        let pool = &self.supply.pool;
        // A check that could build nothing is no reason to wake: an event makes it possible.
        let refill = pool.refill(self.load()).filter(|_| self.can_refill());
        let others = [
            pool.next_deadline(),
            self.supply.networks.next_deadline(),
            refill,
            self.sessions.next_deadline(),
            self.gateway.next_deadline(),
            self.front_end.outbox.retry(),
            self.next_refresh(),
            self.forgets_start,
            self.supply.makers_of_files().filter_map(|(_, deadline)| deadline).min(),
        ];
        let Some(next) = calls.chain(others.into_iter().flatten()).min() else {
            return PollTimeout::NONE;
        };
        // Rounded up: a timeout of 0 would spin until the instant has come.
        let wait = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)
    }

    /// Serves one frame of the front end. Breaks if it is gone.
    fn read_link(&mut self) -> Result<ControlFlow<()>, Fatal> {
        match self.front_end.read(&mut self.buffer)? {
            Incoming::Nothing => {}
            Incoming::Gone => return Ok(ControlFlow::Break(())),
            Incoming::Request(request, received) => self.serve(request, received),
            Incoming::CutOff(call) => {
                if !self.knows(call) {
                    let failure = Failure::Busy { what: "descriptors".to_owned() };
                    self.end(call, Ended::failed(failure));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn serve(&mut self, request: Request, received: Received) {
        match request {
            Request::Start(start) => self.take(start, received),
            Request::Cancel { call } => self.stop(call, Outcome::Cancelled),
            Request::OutputLimit { call } => self.stop(call, Outcome::Limit(LimitKind::Output)),
            Request::Signal { call, signal } => self.signal(call, signal),
            Request::AskInput { call, number } => {
                if let Some(shell) = self.sessions.shell_of_call(call) {
                    shell.ask_input(call, number);
                }
            }
            Request::Restart { session } => {
                if let Some(shell) = self.sessions.shell_mut(session) {
                    shell.end(Instant::now());
                }
            }
            Request::Forget { session } => self.forget(session),
            Request::MakeRoom { number, profile, workspace, from } => {
                self.make_room(number, &profile, workspace, &from);
            }
        }
    }

    /// Reads what the gateway has sent.
    fn read_gateway(&mut self) {
        // Bounded: a cell that is denied much, or a worker that was taken over, must not keep all others waiting.
        for _ in 0..MAX_GATEWAY_FRAMES {
            let read = self.gateway.read(&mut self.buffer, &mut self.front_end.outbox);
            let ControlFlow::Continue(over) = read else { break };
            if let Some((call, ended)) = over {
                self.report_end(call, ended);
            }
        }
        self.stop_without_network();
        self.refuse_without_gateway();
    }

    /// Ends the calls that have lost their network.
    fn stop_without_network(&mut self) {
        for (call, why) in self.gateway.take_lost() {
            self.stop(call, Outcome::Failed(Failure::Network { why }));
        }
    }

    fn cell_event(&mut self, slot: Slot, source: Source) {
        match self.supply.owner(slot) {
            Some(Owner::Pool) => {
                let read = self.supply.read_pooled(slot, source, &mut self.gateway);
                if let Some((pooled, event)) = read {
                    self.after_pool_event(pooled, event);
                }
            }
            Some(Owner::Call(call)) => self.call_event(call, source),
            Some(Owner::Session(id)) => self.shell_event(id, source),
            // The cell was collected earlier in this round.
            None => {}
        }
    }

    fn call_event(&mut self, call: CallId, source: Source) {
        let Some(running) = self.calls.get_mut(&call) else { return };
        let event = match source {
            Source::Control => running.read_control(&mut self.buffer),
            Source::Job => running.read_job(),
            Source::Pidfd => running.collect(),
            Source::OutOfMemory => running.out_of_memory(),
            // Only the shell of a session has one.
            Source::Report => CallEvent::None,
        };
        match event {
            CallEvent::None => {}
            // Before all else: the caller waits.
            CallEvent::Ended(ended) => self.end(call, *ended),
            CallEvent::Gone(ended) => {
                let gone = self.calls.remove(&call);
                if let Some(ended) = ended {
                    self.end(call, *ended);
                }
                if let Some(mut gone) = gone {
                    self.supply.take_network_back(&mut gone.life.cell);
                    self.release(gone.life.cell.slot);
                }
                self.close_leaving_sessions();
            }
        }
    }

    /// Answers the callers whose cells take their time to end.
    fn answer_for_the_dying(&mut self, now: Instant) {
        let mut ended_calls = Vec::new();
        let budget = TurnBudget::begin();
        let shared = &self.supply.shared;
        for (call, running) in &mut self.calls {
            let ended = running.answer_dying(shared, now, budget);
            ended_calls.extend(ended.map(|ended| (*call, ended)));
        }
        ended_calls.extend(self.sessions.answer_dying(shared, now, budget));
        ended_calls.into_iter().for_each(|(call, ended)| self.end(call, *ended));
    }

    /// Does everything that is due.
    fn pass_deadlines(&mut self, now: Instant) {
        if self.forgets_start.take_if(|due| *due <= now).is_some()
            && let Err(errno) = memory::forget_code()
        {
            tracing::debug!(%errno, "the code of the start stays mapped");
        }
        if self.next_refresh().is_some_and(|next| next <= now) {
            for overlays in &self.overlays {
                // A failure leaves only names as they were.
                overlays.begin_refresh(now).unwrap_or_default();
            }
        }
        for running in self.calls.values_mut() {
            running.pass_deadline(now);
        }
        self.pass_session_deadlines(now);
        self.answer_for_the_dying(now);
        self.pass_gateway_deadlines(now);
        self.supply.networks.expire(now);
        for slot in self.supply.pool.due(now) {
            if let Some(mut pooled) = self.supply.pool.take(slot) {
                if pooled.is_idle() {
                    self.supply.pool.counts.unwanted += 1;
                }
                let event = pooled.pass_deadline(now);
                self.after_pool_event(pooled, event);
            }
        }
    }

    /// Answers for the calls whose tally did not come in time.
    fn pass_gateway_deadlines(&mut self, now: Instant) {
        self.gateway.send_waiting();
        let over = self.gateway.overdue(now);
        over.into_iter().for_each(|(call, ended)| self.report_end(call, ended));
        self.stop_without_network();
        if self.gateway.descriptor().is_none() {
            self.refuse_without_gateway();
        }
    }
}
