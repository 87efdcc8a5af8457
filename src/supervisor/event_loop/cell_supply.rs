//! Cells for jobs: the slots and the pool that they are in, and all that is needed to make one.

use std::rc::Rc;
use std::time::Instant;

use nix::errno::Errno;

use super::gateway::GatewayLink;
use super::poll::Source;
use crate::cells::caps::Caps;
use crate::cells::cell::{Cell, Maker};
use crate::cells::key::{Key, KeyId, Keys};
use crate::cells::networks::Networks;
use crate::cells::pool::Pool;
use crate::cells::pooled_cell::{PoolEvent, PooledCell};
use crate::cells::prestart;
use cell::Shared;
use cell::cgroup::Parent;
use cell::late_files::{FileMaker, LateFiles};
use cell::measure::Operator;
use cell::payload::Scratch;
use cell::report::raw;
use cell::slot::Slot;
use model::job::SessionId;
use model::outcome::Failure;
use model::wire::CallId;

/// The owner of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Pool,
    Call(CallId),
    /// A session; kept for it while it has no cell.
    Session(SessionId),
}

/// The table of keys, the cells without a job, and the owners of all.
#[derive(Debug)]
pub(crate) struct CellSupply {
    pub keys: Keys,
    pub pool: Pool,
    /// Owner of the cell in each slot; a slot is free again when its cell is collected.
    slots: Vec<Option<Owner>>,
    pub shared: Shared,
    cgroups: Parent,
    operator: Operator,
    scratch: Scratch,
    /// Network namespaces for further cells.
    pub networks: Networks,
    /// Files of templates whose process is not reaped.
    late_files: Vec<Rc<LateFiles>>,
}

impl CellSupply {
    pub(super) fn new(
        keys: Vec<Key>,
        caps: Caps,
        shared: Shared,
        cgroups: Parent,
        operator: Operator,
    ) -> Result<Self, Errno> {
        Ok(Self {
            keys: keys.into_iter().collect(),
            pool: Pool::new(caps.warm),
            slots: vec![None; usize::from(caps.cells)],
            networks: Networks::new(caps.networks, &shared)?,
            shared,
            cgroups,
            operator,
            scratch: Scratch::new()?,
            late_files: Vec::new(),
        })
    }

    /// Borrows the parts that making and measuring cells needs, and the keys apart from them.
    pub(super) fn maker(&mut self) -> (Maker<'_>, &Keys) {
        let maker = Maker {
            shared: &self.shared,
            cgroups: &self.cgroups,
            operator: &self.operator,
            inputs: self.pool.inputs(),
            scratch: &mut self.scratch,
            networks: &mut self.networks,
        };
        (maker, &self.keys)
    }

    /// Returns the number of slots, free or not.
    pub(super) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn owner(&self, slot: Slot) -> Option<Owner> {
        self.slots.get(slot.index()).copied().flatten()
    }

    /// Changes the owner of a slot; without one it is free.
    pub(super) fn set_owner(&mut self, slot: Slot, owner: Option<Owner>) {
        if let Some(entry) = self.slots.get_mut(slot.index()) {
            *entry = owner;
        }
    }

    /// Returns the first slot without a cell that is kept for no session.
    pub(super) fn free_slot(&self) -> Option<Slot> {
        let mut slots = self.slots.iter().zip(Slot::all());
        slots.find(|(owner, _)| owner.is_none()).map(|(_, slot)| slot)
    }

    /// Returns a slot for a session: a free one, or that of an idle cell, which is ended for it.
    pub(super) fn slot_for_session(&mut self) -> Option<Slot> {
        if let Some(slot) = self.free_slot() {
            return Some(slot);
        }
        let slot = self.pool.spare(|_| true)?;
        self.pool.end(slot).then_some(slot)
    }

    /// Starts a cell of `key` in a free slot. It is in the pool until it is ready for a job.
    ///
    /// # Errors
    /// The reason for which no cell of this key can be made now.
    pub(super) fn start_cell(&mut self, key: KeyId, slot: Slot) -> Result<(), Failure> {
        let (mut maker, keys) = self.maker();
        let design = keys.design(key).ok_or(Failure::Lost)?;
        let cell = maker.clone_cell(design, slot).map_err(|errno| {
            let step = "cloning the cell".to_owned();
            Failure::Setup { step, errno: raw(errno) }
        })?;
        self.set_owner(slot, Some(Owner::Pool));
        self.pool.put(PooledCell::new(key, cell));
        // After the clone: both processes work at the same time.
        self.begin_late_files(key);
        Ok(())
    }

    /// Starts the process that makes the late files of a key's template, if they are missing and no
    /// other process makes them.
    fn begin_late_files(&mut self, key: KeyId) {
        let root = self.keys.design(key).and_then(|design| design.root().ok());
        let Some(late) = root.map(|root| &root.late) else { return };
        late.begin(Instant::now());
        let is_known = self.late_files.iter().any(|known| Rc::ptr_eq(known, late));
        if late.process().is_some() && !is_known {
            self.late_files.push(Rc::clone(late));
        }
    }

    /// Returns the processes that make files of templates, with the time at which each is killed.
    pub(super) fn makers_of_files(&self) -> impl Iterator<Item = (FileMaker, Option<Instant>)> {
        self.late_files.iter().filter_map(|late| late.process())
    }

    /// Reaps the processes that have ended, and kills those whose time is over.
    pub(super) fn settle_late_files(&mut self, now: Instant) {
        self.late_files.retain(|late| match late.settle(now) {
            Ok(is_reaped) => !is_reaped,
            Err(errno) => {
                tracing::warn!(%errno, "the process that makes files of a template is lost");
                false
            }
        });
    }

    /// Returns true while files are missing that the jobs of a key wait for.
    pub(super) fn lacks_files(&self, key: KeyId) -> bool {
        let root = self.keys.design(key).and_then(|design| design.root().ok());
        let is_of = |late: &Rc<LateFiles>| root.is_some_and(|root| Rc::ptr_eq(&root.late, late));
        self.late_files.iter().filter(|late| late.are_awaited()).any(is_of)
    }

    /// Takes back the network namespace of a cell that was reaped.
    pub(super) fn take_network_back(&mut self, cell: &mut Cell) {
        if let Some(network) = cell.take_network() {
            self.networks.take_back(network, Instant::now());
        }
    }

    /// Reads what the cell in a slot of the pool has sent. Gives the gateway the network that a new cell reports.
    pub(super) fn read_pooled(
        &mut self,
        slot: Slot,
        source: Source,
        gateway: &mut GatewayLink,
    ) -> Option<(PooledCell, PoolEvent)> {
        let mut pooled = self.pool.take(slot)?;
        let event = match source {
            Source::Control => pooled.read_control(),
            Source::Pidfd => pooled.collect(),
            Source::Job => {
                let (mut maker, keys) = self.maker();
                match keys.design(pooled.key) {
                    Some(design) => pooled.read_job(design, &mut maker),
                    None => PoolEvent::None,
                }
            }
            Source::OutOfMemory => pooled.out_of_memory(),
            // Before a job there is no call to report.
            Source::Report => PoolEvent::None,
        };
        let profile = self.keys.get(pooled.key).map(|key| &key.profile);
        let event = match gateway.take_network(&mut pooled.cell, profile) {
            Ok(()) => event,
            Err(errno) => {
                let step = "giving the gateway its network".to_owned();
                pooled.fail(Failure::Setup { step, errno: raw(errno) })
            }
        };
        Some((pooled, event))
    }

    /// Makes the idle cell in `slot` execute its program. If that fails the cell ends, and the next job reports
    /// the reason from a new cell.
    pub(super) fn execute_ahead(&mut self, slot: Slot) -> Option<(PooledCell, PoolEvent)> {
        let mut pooled = self.pool.take(slot)?;
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
        Some((pooled, event))
    }
}
