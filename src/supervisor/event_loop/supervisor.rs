//! All that the supervisor knows while it serves, and the two acts that any part of the loop may need: to end a
//! call, and to report it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;

use super::cell_supply::CellSupply;
use super::front_end::FrontEnd;
use super::gateway::GatewayLink;
use super::job_queue::JobQueue;
use super::outbox::{Fatal, Flushed};
use crate::cells::caps::Caps;
use crate::cells::key::Key;
use crate::cells::pool::Load;
use crate::cells::running::Running;
use crate::cells::streams::FarEnds;
use crate::sessions::session::SessionTable;
use crate::sessions::shell::Shell;
use cell::Shared;
use cell::cgroup::Parent;
use cell::measure::Operator;
use cell::sealed::Overlays;
use model::job::{JobSignal, Limits, ProfileName};
use model::outcome::{Ended, Failure, Outcome};
use model::wire::{CallId, Event, FRAME_BYTES};

/// Everything that the loop starts with.
#[derive(Debug)]
pub(crate) struct Parts {
    pub link: OwnedFd,
    pub caps: Caps,
    pub cgroups: Parent,
    pub operator: Operator,
    pub keys: Vec<Key>,
    /// Names of all profiles, in the order in which the gateway has them too.
    pub profiles: Vec<ProfileName>,
    /// Link to the gateway, if one was started.
    pub gateway: Option<Arc<OwnedFd>>,
    pub shared: Shared,
}

/// The supervisor while it serves.
///
/// Each part has its own methods. Those here are for what takes several parts.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(super) front_end: FrontEnd,
    pub(super) gateway: GatewayLink,
    pub(super) supply: CellSupply,
    /// Jobs that wait for a cell or for room.
    pub(super) queue: JobQueue,
    /// One-shot calls that have a cell.
    pub(super) calls: BTreeMap<CallId, Running>,
    pub(super) sessions: SessionTable,
    /// Overlays of the keys of boot in which a program may wait for a file of the host.
    pub(super) overlays: Vec<Rc<Overlays>>,
    pub(super) caps: Caps,
    /// When the code of the start is unmapped.
    pub(super) forgets_start: Option<Instant>,
    /// Room for one frame, which is more than any report takes.
    pub(super) buffer: Vec<u8>,
}

impl Supervisor {
    pub(crate) fn new(parts: Parts) -> Result<Self, Errno> {
        let Parts { link, caps, cgroups, operator, keys, profiles, gateway, shared } = parts;
        let Caps { sessions, session_idle, .. } = caps;
        let roots = keys.iter().filter_map(|key| key.design.as_ref().ok()?.root().ok());
        let overlays = roots.map(|root| Rc::clone(&root.overlays));
        let overlays = overlays.filter(|overlays| overlays.next_refresh().is_some()).collect();
        Ok(Self {
            front_end: FrontEnd::new(link),
            gateway: GatewayLink::new(gateway, profiles),
            supply: CellSupply::new(keys, caps, shared, cgroups, operator)?,
            queue: JobQueue::default(),
            calls: BTreeMap::new(),
            sessions: SessionTable::new(sessions, session_idle),
            overlays,
            caps,
            forgets_start: None,
            buffer: Vec::with_capacity(FRAME_BYTES),
        })
    }

    /// Reports an event, with the pipes of the call it starts. It is sent in this turn, or when the link has
    /// room for it.
    pub(crate) fn send(&mut self, event: &Event, ends: Option<(CallId, FarEnds)>) {
        self.front_end.outbox.send(event, ends);
    }

    /// Ends a call: its report is sent, now or with the tally of its network.
    pub(super) fn end(&mut self, call: CallId, ended: Ended) {
        if let Outcome::Failed(Failure::Setup { step, errno }) = &ended.outcome {
            tracing::warn!(errno = %Errno::from_raw(*errno), "a call failed: {step}");
        }
        if let Some(ended) = self.gateway.ask(call, ended) {
            self.report_end(call, ended);
        }
    }

    /// Reports the complete end of a call to the front end.
    pub(super) fn report_end(&mut self, call: CallId, ended: Ended) {
        let ended = Ended { pool: self.supply.pool.counts, ..ended };
        self.send(&Event::Ended { call, ended }, None);
    }

    /// Ends a call from outside: one that runs, or one that waits.
    pub(super) fn stop(&mut self, call: CallId, outcome: Outcome) {
        if let Some(running) = self.calls.get_mut(&call) {
            return running.stop(outcome, Instant::now());
        }
        if let Some(shell) = self.sessions.shell_of_call(call) {
            return shell.stop(call, outcome, Instant::now());
        }
        // Otherwise it has ended meanwhile.
        if self.queue.remove_call(call) {
            self.end(call, Ended::new(outcome));
        }
    }

    /// Signals the processes of a session's call; another call is ended as by a cancel.
    pub(super) fn signal(&mut self, call: CallId, signal: JobSignal) {
        match self.sessions.shell_of_call(call) {
            Some(shell) => shell.signal(call, signal, Instant::now()),
            None => self.stop(call, Outcome::Cancelled),
        }
    }

    /// Sends the frames that wait, as far as the link takes them, and ends each call whose start cannot be sent.
    ///
    /// # Errors
    /// The link takes nothing, although there is room: no call could be answered any more.
    pub(super) fn flush(&mut self) -> Result<(), Fatal> {
        while let Flushed::Undeliverable(call, failure) = self.front_end.outbox.flush()? {
            self.stop(call, Outcome::Failed(failure));
        }
        Ok(())
    }

    /// Returns whether a call of this number waits or runs.
    pub(super) fn knows(&self, call: CallId) -> bool {
        self.calls.contains_key(&call) || self.queue.has_call(call) || self.sessions.runs(call)
    }

    /// Returns whether programs run, from which making cells would take a processor.
    pub(super) fn load(&self) -> Load {
        // The processes of a cell that is ending do not compete for processors.
        let is_at_rest = self.calls.values().all(|running| running.life.is_ending());
        if is_at_rest { Load::Rest } else { Load::Busy }
    }

    /// Returns whether cells may be made in advance: jobs that wait have precedence, and each takes a slot.
    pub(super) fn can_refill(&self) -> bool {
        self.queue.is_empty() && self.supply.free_slot().is_some()
    }

    /// Returns whether the caps over all cells leave room for more jobs with these limits.
    pub(super) fn has_room(&self, more: &[Limits]) -> bool {
        let calls = self.calls.values().map(|running| &running.life.limits);
        let all = || calls.clone().chain(self.sessions.limits()).chain(more);
        let memory = all().map(|limits| limits.memory).fold(0, u64::saturating_add);
        let tmpfs = all().map(Limits::tmpfs).fold(0, u64::saturating_add);
        memory <= self.caps.memory && tmpfs <= self.caps.tmpfs
    }

    /// Returns when an overlay is to be refreshed for a program that runs.
    pub(super) fn next_refresh(&self) -> Option<Instant> {
        let next = self.overlays.iter().filter_map(|overlays| overlays.next_refresh()).min()?;
        let runs = !self.calls.is_empty() || self.sessions.shells().any(Shell::is_used);
        runs.then_some(next)
    }
}
