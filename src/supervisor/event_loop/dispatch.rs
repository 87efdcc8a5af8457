//! From a frame to a running call: jobs are checked, wait their turn, get a cell.

use std::time::Instant;

use nix::errno::Errno;

use super::cell_supply::Owner;
use super::gateway::Readiness;
use super::supervisor::Supervisor;
use crate::cells::attachments;
use crate::cells::cell::{Cell, clamp};
use crate::cells::key::KeyId;
use crate::cells::pool::{PoolHit, Shortage};
use crate::cells::pooled_cell::{PoolEvent, PooledCell};
use crate::cells::prestart;
use crate::cells::queued_job::QueuedJob;
use crate::cells::running::Running;
use cell::report::raw;
use cell::slot::Slot;
use model::job::{ProfileName, Workspace};
use model::outcome::{Ended, Failure, Outcome};
use model::wire::{Event, Start};
use sys::socket::Received;

/// The result of starting a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Built {
    Yes,
    /// All slots are taken.
    NoSlot,
    /// It failed, and its job has been answered.
    Failed,
}

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
                if let Some(ready) = self.offer_to_shell(ready) {
                    self.queue.push(ready);
                }
            }
            Err(failure) => self.end(call, Ended::failed(failure)),
        }
    }

    fn check(&mut self, mut start: Start, received: Received) -> Result<QueuedJob, Failure> {
        let arrived = Instant::now();
        let refused = |why: String| Failure::Refused { why };
        let (block, attachments) = attachments::received(&mut start, received).map_err(refused)?;
        if self.queue.is_full() {
            return Err(Failure::Busy { what: "waiting calls".to_owned() });
        }
        let key = match (start.session, start.workspace) {
            (_, Workspace::Session(id)) => self.one_shot_key(&mut start, id)?,
            (None, Workspace::Fresh | Workspace::Granted(_)) => {
                self.supply.keys.usable(&start.profile, start.workspace)?
            }
            (Some(within), Workspace::Fresh | Workspace::Granted(_)) => {
                self.session_key(&start, within)?
            }
        };
        let design = self.supply.keys.design(key);
        self.gateway.check(design)?;
        let design = design.ok_or(Failure::Lost)?;
        if let Ok(root) = design.root() {
            // A failure leaves only names as they were at the last call.
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

    /// Gives cells to the jobs that wait, in their order, and builds what is missing.
    ///
    /// Cells that are ending still hold what they hold, so a front end that keeps to the configured
    /// concurrency can meet a cap for a moment: then waiting is the answer, not a refusal.
    pub(super) fn dispatch(&mut self) {
        self.supply.settle_late_files(Instant::now());
        let mut index = 0;
        while let Some(ready) = self.queue.get(index) {
            let key = ready.key;
            let fits = ready.fits;
            if !self.has_room(&[ready.limits]) {
                break;
            }
            if self.gateway.readiness(self.supply.keys.design(key)) == Readiness::Starting {
                index += 1;
                continue;
            }
            match self.supply.pool.idle(key, fits) {
                Some(_) if self.supply.lacks_files(key) => index += 1,
                Some(slot) => self.hand_over(index, slot),
                // The session's last cell may take long to leave the slot: others do not wait for it.
                None if self.waits_for_its_slot(key) => index += 1,
                None => break,
            }
        }
        self.build_for_waiting();
        if self.can_refill()
            && let Some(want) = self.supply.pool.wants(Instant::now(), self.load())
        {
            match want {
                Shortage::Cell(key) => drop(self.build(key)),
                Shortage::Program(slot) => {
                    if let Some((pooled, event)) = self.supply.execute_ahead(slot) {
                        self.after_pool_event(pooled, event);
                    }
                }
            }
        }
    }

    /// Builds a cell for each waiting job, in the order of the jobs, while there are slots. A slot that
    /// was freed for the first job must not be given to another.
    fn build_for_waiting(&mut self) {
        let mut freed_soon = self.supply.pool.dying();
        let mut index = 0;
        while let Some(key) = self.queue.get(index).map(|ready| ready.key) {
            if self.queue.is_short(index, &self.supply.pool) {
                match self.build(key) {
                    Built::Yes => {}
                    // Its job has been answered; the jobs behind it move up.
                    Built::Failed => continue,
                    // The session's last cell is about to leave the slot.
                    Built::NoSlot if self.sessions.of_key(key).is_some() => {}
                    Built::NoSlot if freed_soon > 0 => freed_soon -= 1,
                    Built::NoSlot if self.queue.evict(index, &mut self.supply.pool) => {}
                    Built::NoSlot => return,
                }
            }
            index += 1;
        }
    }

    /// Returns whether the key is a session's, whose slot still has another cell of it.
    fn waits_for_its_slot(&self, key: KeyId) -> bool {
        self.sessions.of_key(key).is_some_and(|session| session.shell.is_some())
    }

    /// Gives the cell in `slot` to the waiting job at `index` of the queue.
    fn hand_over(&mut self, index: usize, slot: Slot) {
        let Some(ready) = self.queue.remove(index) else { return };
        let call = ready.start.call;
        let Some(pooled) = self.supply.pool.take(slot) else {
            return self.end(call, Ended::failed(Failure::Lost));
        };
        let key = pooled.key;
        let measured = pooled.measured.unwrap_or(pooled.born);
        if let Some(session) = self.sessions.of_key(key).map(|session| session.id) {
            return self.open_shell(session, pooled, ready);
        }
        let stdin = ready.start.stdin.kind();
        let hit = match (measured < ready.arrived, &pooled.cell.prestarted) {
            (true, Some(_)) => PoolHit::Program,
            (true, None) => PoolHit::Warm,
            (false, _) => PoolHit::Cold,
        };
        let fits = ready.fits;
        let only = ready.start.only.clone();
        // Without one of them the cell is killed and collected here: its slot is free again.
        let (Some((cell, receipt)), Some(design)) =
            (pooled.offer(&ready.limits), self.supply.keys.design(key))
        else {
            self.release(slot);
            return self.end(call, Ended::failed(Failure::Lost));
        };
        match Running::begin(ready, cell, design, measured) {
            Ok((running, ends)) => {
                self.supply.set_owner(slot, Some(Owner::Call(call)));
                self.calls.insert(call, running);
                self.supply.pool.called(key, fits, Instant::now());
                self.supply.pool.count_hit(hit);
                self.send(&Event::Started { call, stdin, receipt, turn: 0 }, Some((call, ends)));
                // After the job, which need not wait for it: until then the gateway reads no packet of the
                // cell, whose first call this is.
                if let Err(failure) = self.gateway.begin(slot, call, only) {
                    self.stop(call, Outcome::Failed(failure));
                }
            }
            Err(refused) => {
                let (errno, ready, cell) = *refused;
                self.give_up(key, cell, ready, errno)
            }
        }
    }

    /// Handles a job that its cell did not take. The cell is ended in the pool, because only the pool
    /// frees its slot. If the cell had died and its event was not read yet, the job gets another cell,
    /// unless the job's own limits are the cause.
    pub(super) fn give_up(&mut self, key: KeyId, cell: Cell, ready: QueuedJob, errno: Errno) {
        let mut pooled = PooledCell::new(key, cell);
        pooled.end();
        self.supply.pool.put(pooled);
        let died = matches!(errno, Errno::EPIPE | Errno::ECONNRESET | Errno::ESRCH | Errno::ENOENT);
        if died && ready.lost < MAX_LOST {
            self.queue.push_front(QueuedJob { lost: ready.lost + 1, ..ready });
            return;
        }
        let step = "handing over the job".to_owned();
        let failure = Failure::Setup { step, errno: raw(errno) };
        self.end(ready.start.call, Ended::failed(failure));
    }

    /// Starts the cell of a call that is known to come. If that fails, the call reports the reason from a new
    /// cell.
    pub(crate) fn build_first(&mut self, profile: &ProfileName, workspace: Workspace) {
        if let Some(key) = self.supply.keys.find(profile, workspace) {
            self.build(key);
        }
    }

    /// Starts a cell of `key` in a free slot; for a session, in the slot that it owns.
    fn build(&mut self, key: KeyId) -> Built {
        let slot = match self.sessions.of_key(key) {
            None => self.supply.free_slot(),
            Some(session) => {
                let owner = self.supply.owner(session.slot);
                let is_free = session.shell.is_none() && owner == Some(Owner::Session(session.id));
                is_free.then_some(session.slot)
            }
        };
        let Some(slot) = slot else { return Built::NoSlot };
        match self.supply.start_cell(key, slot) {
            Ok(()) => Built::Yes,
            Err(failure) => {
                self.failed(key, failure);
                Built::Failed
            }
        }
    }

    /// Acts on an event of a cell that was taken from the pool, and puts the cell back unless it is gone.
    pub(super) fn after_pool_event(&mut self, mut pooled: PooledCell, event: PoolEvent) {
        let key = pooled.key;
        if let PoolEvent::Gone = event {
            self.supply.take_network_back(&mut pooled.cell);
        }
        let pool = &mut self.supply.pool;
        match event {
            PoolEvent::None => pool.put(pooled),
            PoolEvent::Ready => {
                pool.put(pooled);
                pool.ready(key, Instant::now());
            }
            PoolEvent::Died => {
                pool.put(pooled);
                pool.counts.died += 1;
                pool.give_up(key);
            }
            PoolEvent::Failed(failure) => {
                pool.put(pooled);
                pool.counts.failed += 1;
                self.failed(key, failure);
            }
            PoolEvent::Gone => {
                let slot = pooled.cell.slot;
                let is_unexpected = pooled.is_alive() && !pooled.is_idle();
                drop(pooled);
                self.release(slot);
                self.close_leaving_sessions();
                if is_unexpected {
                    self.failed(key, Failure::Lost);
                }
            }
        }
    }

    /// Handles a cell of `key` that could not be made: answers its job, and makes no cell in advance until the
    /// next call.
    fn failed(&mut self, key: KeyId, failure: Failure) {
        let pool = &mut self.supply.pool;
        pool.give_up(key);
        // Not a job for which another cell is there already.
        let lacks_cell =
            |ready: &QueuedJob| ready.key == key && pool.idle(key, ready.fits).is_none();
        match self.queue.remove_first(lacks_cell) {
            Some(ready) => self.end(ready.start.call, Ended::failed(failure)),
            // No call waits: the next one reports the reason from a new cell.
            None => tracing::debug!("a cell in advance failed: {failure}"),
        }
    }

    /// Refuses the jobs that wait for cells with egress, if the gateway is dead.
    pub(super) fn refuse_without_gateway(&mut self) {
        let mut index = 0;
        while let Some(ready) = self.queue.get(index) {
            let call = ready.start.call;
            match self.gateway.check(self.supply.keys.design(ready.key)) {
                Ok(()) => index += 1,
                Err(failure) => {
                    drop(self.queue.remove(index));
                    self.end(call, Ended::failed(failure));
                }
            }
        }
    }
}
