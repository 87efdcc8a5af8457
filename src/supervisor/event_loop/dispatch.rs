//! From a frame to a running call: jobs are checked, wait their turn, get a cell.

use std::time::Instant;

use nix::errno::Errno;

use super::gateway::Readiness;
use super::supervisor::{Owner, Supervisor};
use crate::cells::attachments;
use crate::cells::cell::{Cell, clamp};
use crate::cells::key::KeyId;
use crate::cells::pool::{Load, PoolHit, Shortage};
use crate::cells::pooled_cell::{PoolEvent, PooledCell};
use crate::cells::prestart;
use crate::cells::queued_job::QueuedJob;
use crate::cells::running::Running;
use cell::report::raw;
use cell::slot::Slot;
use model::job::{Limits, ProfileName, Workspace};
use model::outcome::{Ended, Failure, Outcome};
use model::wire::{CallId, Event, Start};
use sys::socket::Received;

/// The result of starting a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Built {
    Yes,
    /// All slots are taken.
    NoSlot,
    /// It failed, and its job has been answered.
    Failed,
}

/// Jobs that may wait for a cell: far above any concurrency that is configured.
const MAX_WAITING: usize = 1024;
/// Cells that may die before one job is handed over.
const MAX_LOST: u8 = 3;

impl Supervisor {
    /// Takes a job from the link: it waits for a cell from now on, or is refused.
    pub(super) fn take(&mut self, start: Start, received: Received) {
        let call = start.call;
        if self.knows(call) {
            // A front end that reuses a number confuses only itself: this frame is dropped.
            return;
        }
        match self.check(start, received) {
            Ok(ready) => {
                let ready = self.offer_to_shell(ready);
                self.queue.extend(ready);
            }
            Err(failure) => self.end(call, Ended::failed(failure)),
        }
    }

    /// Returns whether a call of this number waits or runs.
    pub(super) fn knows(&self, call: CallId) -> bool {
        self.calls.contains_key(&call)
            || self.queue.iter().any(|ready| ready.start.call == call)
            || self.sessions.runs(call).is_some()
    }

    fn check(&mut self, mut start: Start, received: Received) -> Result<QueuedJob, Failure> {
        let arrived = Instant::now();
        let refused = |why: String| Failure::Refused { why };
        let (block, attachments) = attachments::received(&mut start, received).map_err(refused)?;
        // The front end bounds its queue; more means that it misbehaves.
        if self.queue.len() >= MAX_WAITING {
            return Err(Failure::Busy { what: "waiting calls".to_owned() });
        }
        let key = match (start.session, start.workspace) {
            (_, Workspace::Session(id)) => self.beside_key(&mut start, id)?,
            (None, Workspace::Fresh | Workspace::Granted(_)) => {
                self.key(&start.profile, start.workspace)?
            }
            (Some(within), Workspace::Fresh | Workspace::Granted(_)) => {
                self.session_key(&start, within)?
            }
        };
        self.check_gateway(key)?;
        let design = self.keys.design(key).ok_or(Failure::Lost)?;
        if let Ok(root) = design.root() {
            // All that a failure leaves is names as they were at the last call.
            root.overlays.begin_refresh(arrived).unwrap_or_default();
            // A session's call is laid out meanwhile (`Shell::take`).
            if start.session.is_none() {
                root.overlays.end_refresh().unwrap_or_default();
            }
        }
        let limits = clamp(&design.profile.limits, &start.limits);
        if limits.memory > self.caps.memory {
            return Err(Failure::Busy { what: "memory".to_owned() });
        }
        if limits.tmpfs() > self.caps.tmpfs {
            return Err(Failure::Busy { what: "bytes of private filesystems".to_owned() });
        }
        let fits = prestart::fits(design, (&start, &block), &attachments, &limits);
        Ok(QueuedJob { start, key, block, attachments, limits, fits, arrived, lost: 0 })
    }

    /// Returns the key of boot that a frame names.
    pub(super) fn key(
        &self,
        profile: &ProfileName,
        workspace: Workspace,
    ) -> Result<KeyId, Failure> {
        let Some(id) = self.keys.find(profile, workspace) else {
            let why = format!("no profile `{profile}` with that workspace");
            return Err(Failure::Refused { why });
        };
        let unusable = self.keys.get(id).and_then(|key| key.design.as_ref().err());
        match unusable {
            None => Ok(id),
            Some(unusable) => Err(match &unusable.missing_program {
                Some(program) => Failure::NotFound { program: program.clone() },
                None => Failure::Refused {
                    why: format!("profile `{profile}` cannot be used here: {}", unusable.why),
                },
            }),
        }
    }

    /// Ends a call from outside: one that runs, or one that waits.
    pub(super) fn stop(&mut self, call: CallId, outcome: Outcome) {
        if let Some(running) = self.calls.get_mut(&call) {
            return running.stop(outcome, Instant::now());
        }
        let session = self.sessions.runs(call);
        if let Some(shell) = session.and_then(|id| self.sessions.shell_mut(id)) {
            return shell.stop(call, outcome, Instant::now());
        }
        let Some(place) = self.queue.iter().position(|ready| ready.start.call == call) else {
            // It has ended meanwhile.
            return;
        };
        drop(self.queue.remove(place));
        self.end(call, Ended::new(outcome));
    }

    pub(super) fn end(&mut self, call: CallId, ended: Ended) {
        if let Outcome::Failed(Failure::Setup { step, errno }) = &ended.outcome {
            tracing::warn!(errno = %Errno::from_raw(*errno), "a call failed: {step}");
        }
        if let Some(ended) = self.ask_network(call, ended) {
            self.tell_end(call, ended);
        }
    }

    /// Reports the complete end of a call to the front end.
    pub(super) fn tell_end(&mut self, call: CallId, ended: Ended) {
        let ended = Ended { pool: self.pool.counts, ..ended };
        self.tell(&Event::Ended { call, ended }, None);
    }

    /// Gives cells to the jobs that wait, in their order, and builds what is missing.
    ///
    /// Cells that are ending still hold what they hold, so a front end that keeps to the configured
    /// concurrency can meet a cap for a moment: then waiting is the answer, not a refusal.
    pub(super) fn dispatch(&mut self) {
        let mut place = 0;
        while let Some(ready) = self.queue.get(place) {
            let key = ready.key;
            let limits = ready.limits;
            let fits = ready.fits;
            if !self.has_room(&[limits]) {
                break;
            }
            if self.readiness(key) == Readiness::Starting {
                place += 1;
                continue;
            }
            match self.pool.idle(key, fits) {
                Some(slot) => self.hand_over(place, slot),
                // The session's last cell may take long to leave the slot: others do not wait for it.
                None if self.waits_for_its_slot(key) => place += 1,
                None => break,
            }
        }
        self.build_for_waiting();
        if self.can_refill()
            && let Some(want) = self.pool.wants(Instant::now(), self.load())
        {
            match want {
                Shortage::Cell(key) => drop(self.build(key)),
                Shortage::Program(slot) => self.execute_ahead(slot),
            }
        }
    }

    /// Returns whether cells may be made in advance: jobs that wait go before, and each takes a slot.
    pub(super) fn can_refill(&self) -> bool {
        self.queue.is_empty() && self.slots.contains(&None)
    }

    /// Returns whether programs run, from which making cells would take a processor.
    pub(super) fn load(&self) -> Load {
        if self.calls.values().all(Running::is_over) { Load::Rest } else { Load::Busy }
    }

    /// Returns whether the caps over all cells leave room for more jobs with these limits.
    pub(super) fn has_room(&self, more: &[Limits]) -> bool {
        let calls = self.calls.values().map(|running| &running.limits);
        let all = || calls.clone().chain(self.sessions.limits()).chain(more);
        let memory = all().map(|limits| limits.memory).fold(0, u64::saturating_add);
        let tmpfs = all().map(Limits::tmpfs).fold(0, u64::saturating_add);
        memory <= self.caps.memory && tmpfs <= self.caps.tmpfs
    }

    /// Returns whether the key is a session's, whose slot has another cell of it yet.
    fn waits_for_its_slot(&self, key: KeyId) -> bool {
        let session = self.sessions.of_key(key).and_then(|id| self.sessions.get(id));
        session.is_some_and(|session| session.shell.is_some())
    }

    /// Gives the cell in `slot` to the waiting job at `place` of the queue.
    fn hand_over(&mut self, place: usize, slot: Slot) {
        let Some(ready) = self.queue.remove(place) else { return };
        let call = ready.start.call;
        let Some(pooled) = self.pool.take(slot) else {
            return self.end(call, Ended::failed(Failure::Lost));
        };
        let key = pooled.key;
        let measured = pooled.measured.unwrap_or(pooled.born);
        if let Some(session) = self.sessions.of_key(key) {
            return self.open_shell(session, pooled, ready);
        }
        let stdin = ready.start.stdin.kind();
        let got = match (measured < ready.arrived, &pooled.cell.prestarted) {
            (true, Some(_)) => PoolHit::Program,
            (true, None) => PoolHit::Warm,
            (false, _) => PoolHit::Cold,
        };
        let fits = ready.fits;
        let only = ready.start.only.clone();
        // Killed and collected where it stands: its slot is free again.
        let (Some((cell, mut receipt)), Some(design)) = (pooled.offer(), self.keys.design(key))
        else {
            self.release(slot);
            return self.end(call, Ended::failed(Failure::Lost));
        };
        receipt.configured.memory_bytes = ready.limits.memory;
        receipt.configured.processes = ready.limits.processes;
        match Running::begin(ready, cell, design, measured) {
            Ok((running, ends)) => {
                self.own(slot, Owner::Call(call));
                self.calls.insert(call, running);
                self.pool.called(key, fits, Instant::now());
                self.pool.got(got);
                self.tell(&Event::Started { call, stdin, receipt, turn: 0 }, Some((call, ends)));
                // After the job, which need not wait for it: until then the gateway reads no packet of the cell, whose first
                // call this is.
                if let Err(failure) = self.begin_network(slot, call, only) {
                    self.stop(call, Outcome::Failed(failure));
                }
            }
            Err(refused) => {
                let (errno, ready, cell) = *refused;
                self.give_up(key, slot, cell, ready, errno)
            }
        }
    }

    /// Handles a job that its cell did not take. The cell is ended in the pool, because only the pool
    /// frees its slot. If the cell had died and its event was not read yet, the job gets another cell,
    /// unless the job's own limits are the cause.
    pub(super) fn give_up(
        &mut self,
        key: KeyId,
        slot: Slot,
        cell: Cell,
        ready: QueuedJob,
        errno: Errno,
    ) {
        let mut pooled = PooledCell::new(key, cell);
        pooled.end();
        self.pool.put(slot, pooled);
        let died = matches!(errno, Errno::EPIPE | Errno::ECONNRESET | Errno::ESRCH | Errno::ENOENT);
        if died && ready.lost < MAX_LOST {
            self.queue.push_front(QueuedJob { lost: ready.lost + 1, ..ready });
            return;
        }
        let step = "handing over the job".to_owned();
        let failure = Failure::Setup { step, errno: raw(errno) };
        self.end(ready.start.call, Ended::failed(failure));
    }

    /// Makes the idle cell in `slot` execute its program. If that fails the cell ends, and the next job reports
    /// the reason from a new cell.
    fn execute_ahead(&mut self, slot: Slot) {
        let Some(mut pooled) = self.pool.take(slot) else { return };
        let done = match self.keys.design(pooled.key) {
            Some(design) => prestart::execute(&mut pooled.cell, design),
            None => Ok(()),
        };
        if pooled.cell.prestarted.is_none() {
            self.pool.leave_empty(pooled.key);
        }
        let event = match done {
            Ok(()) => PoolEvent::None,
            Err(errno) => {
                tracing::debug!(%errno, "a program could not be executed ahead");
                pooled.end();
                PoolEvent::Died
            }
        };
        self.after_pool_event(slot, pooled, event);
    }

    /// Starts the cell of a call that is known to come. If that fails, the call reports the reason from a new
    /// cell.
    pub(crate) fn build_first(&mut self, profile: &ProfileName, workspace: Workspace) {
        if let Some(key) = self.keys.find(profile, workspace) {
            self.build(key);
        }
    }

    /// Starts a cell of `key`.
    pub(super) fn build(&mut self, key: KeyId) -> Built {
        let Some(slot) = self.slot_for(key) else { return Built::NoSlot };
        let (mut maker, keys) = self.maker();
        let Some(design) = keys.design(key) else {
            self.failed(key, Failure::Lost);
            return Built::Failed;
        };
        match maker.clone_cell(design, slot) {
            Ok(cell) => {
                self.own(slot, Owner::Pool);
                self.pool.put(slot, PooledCell::new(key, cell));
                Built::Yes
            }
            Err(errno) => {
                let step = "cloning the cell".to_owned();
                self.failed(key, Failure::Setup { step, errno: raw(errno) });
                Built::Failed
            }
        }
    }

    /// Returns a free slot; for a session, the slot that it owns.
    fn slot_for(&self, key: KeyId) -> Option<Slot> {
        let is_free = |owner: &Option<Owner>, slot| match self.sessions.of_key(key) {
            None => owner.is_none(),
            Some(id) => {
                let session = self.sessions.get(id);
                *owner == Some(Owner::Session(id))
                    && session.is_some_and(|one| one.slot == slot && one.shell.is_none())
            }
        };
        let mut slots = self.slots.iter().zip(Slot::all());
        slots.find(|(owner, slot)| is_free(owner, *slot)).map(|(_, slot)| slot)
    }

    pub(super) fn own(&mut self, slot: Slot, owner: Owner) {
        if let Some(place) = self.slots.get_mut(slot.index()) {
            *place = Some(owner);
        }
    }

    /// Does what became of a cell in the pool asks for.
    pub(super) fn after_pool_event(&mut self, slot: Slot, pooled: PooledCell, event: PoolEvent) {
        let key = pooled.key;
        match event {
            PoolEvent::None => self.pool.put(slot, pooled),
            PoolEvent::Ready => {
                self.pool.put(slot, pooled);
                self.pool.ready(key, Instant::now());
            }
            PoolEvent::Died => {
                self.pool.put(slot, pooled);
                self.pool.counts.died += 1;
                self.pool.give_up(key);
            }
            PoolEvent::Failed(failure) => {
                self.pool.put(slot, pooled);
                self.pool.counts.failed += 1;
                self.failed(key, failure);
            }
            PoolEvent::Gone => {
                let unexpected = pooled.is_alive() && !pooled.is_idle();
                drop(pooled);
                self.release(slot);
                self.left(slot);
                self.close_left();
                if unexpected {
                    self.failed(key, Failure::Lost);
                }
            }
        }
    }

    /// Handles a cell of `key` that could not be made: answers its job, and makes no cell in advance until the
    /// next call.
    fn failed(&mut self, key: KeyId, failure: Failure) {
        self.pool.give_up(key);
        // Not a job for which another cell is there already.
        let lacks = |ready: &QueuedJob| self.pool.idle(key, ready.fits).is_none();
        let place = self.queue.iter().position(|ready| ready.key == key && lacks(ready));
        match place.and_then(|place| self.queue.remove(place)) {
            Some(ready) => self.end(ready.start.call, Ended::failed(failure)),
            // No call waits: the next one reports the reason from a new cell.
            None => tracing::debug!("a cell in advance failed: {failure}"),
        }
    }
}
