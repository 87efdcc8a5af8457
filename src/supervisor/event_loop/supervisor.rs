//! All that the supervisor knows while it serves.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use nix::errno::Errno;

use super::gateway::GatewayLink;
use super::outbox::Outbox;
use crate::cells::caps::Caps;
use crate::cells::cell::Maker;
use crate::cells::key::{Key, Keys};
use crate::cells::pool::Pool;
use crate::cells::queued_job::QueuedJob;
use crate::cells::running::Running;
use crate::sessions::session::SessionTable;
use cell::Shared;
use cell::cgroup::Parent;
use cell::measure::Operator;
use cell::payload::Scratch;
use cell::sealed::Overlays;
use model::job::{ProfileName, SessionId};
use model::wire::CallId;

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
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(super) outbox: Outbox,
    /// Room for a frame, which is more than any report takes.
    pub(super) buffer: Vec<u8>,
    pub(super) keys: Keys,
    /// Overlays of the keys of boot in which a program may wait for a file of the host.
    pub(super) overlays: Vec<Rc<Overlays>>,
    pub(super) profiles: Vec<ProfileName>,
    pub(super) gateway: Option<GatewayLink>,
    pub(super) shared: Shared,
    pub(super) cgroups: Parent,
    pub(super) operator: Operator,
    pub(super) caps: Caps,
    pub(super) scratch: Scratch,
    /// Jobs that wait for a cell or for room, in the order they came.
    pub(super) queue: VecDeque<QueuedJob>,
    pub(super) calls: BTreeMap<CallId, Running>,
    pub(super) pool: Pool,
    pub(super) sessions: SessionTable,
    /// Owner of the cell in each slot; a slot is free again when its cell is collected.
    pub(super) slots: Vec<Option<Owner>>,
    /// Failures to read the link in a row.
    pub(super) unread: u8,
}

/// The owner of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Pool,
    Call(CallId),
    /// A session; kept for it while it has no cell.
    Session(SessionId),
}

impl Supervisor {
    pub(crate) fn new(parts: Parts) -> Result<Self, Errno> {
        let Parts { link, caps, cgroups, operator, keys, profiles, gateway, shared } = parts;
        let Caps { sessions, session_idle, .. } = caps;
        let roots = keys.iter().filter_map(|key| key.design.as_ref().ok()?.root().ok());
        let overlays = roots.map(|root| Rc::clone(&root.overlays));
        let overlays = overlays.filter(|overlays| overlays.next_refresh().is_some()).collect();
        Ok(Self {
            outbox: Outbox::new(link),
            buffer: Vec::new(),
            pool: Pool::new(caps.warm),
            sessions: SessionTable::new(sessions, session_idle),
            keys: keys.into_iter().collect(),
            overlays,
            profiles,
            gateway: gateway.map(GatewayLink::new),
            shared,
            cgroups,
            operator,
            caps,
            scratch: Scratch::new()?,
            queue: VecDeque::new(),
            calls: BTreeMap::new(),
            slots: vec![None; usize::from(caps.cells)],
            unread: 0,
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
        };
        (maker, &self.keys)
    }
}
