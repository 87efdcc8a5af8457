//! The state that main hands to the supervisor, by the clone.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::scope::Pending;
use super::subordinate::Ids;
use crate::cells::caps::Caps;
use crate::rootfs::grants::KeyGrant;
use cell::Clocks;
use cell::cgroup::Parent;
use cell::ids::{HostIds, Supplementary};
use cell::measure::Operator;
use model::core_dumps::CoreHandler;
use model::job::{ProfileName, Workspace};
use model::profile::Profile;
use sys::process::ArgumentPages;

/// Everything the supervisor takes from main: a copy of main's memory, by the clone.
#[derive(Debug)]
pub(crate) struct Inherited {
    pub link: OwnedFd,
    pub profiles: Vec<Profile>,
    /// For each profile, in its order, what each of its keys has: a detached mount can be put in one template only.
    pub grants: Vec<Vec<KeyGrant>>,
    pub caps: Caps,
    pub operator: Operator,
    pub supplementary: Supplementary,
    pub cgroups: Parent,
    /// Source of control groups that are still awaited.
    pub scope: Pending,
    pub pages: ArgumentPages,
    pub record: Option<Arc<OwnedFd>>,
    /// Link to the gateway, if one was started.
    pub gateway: Option<Arc<OwnedFd>>,
    /// Whose ids cells have on the host.
    pub ids: Ids,
    /// Host ids of further ids of the cells, uids and gids, where main could have them mapped.
    pub own_ids: Option<[HostIds; 2]>,
    /// The host's until the supervisor has its own.
    pub clocks: Clocks,
    /// Taker of the memory of a process that crashes, as it was at the start.
    pub cores: CoreHandler,
    /// As [`super::spec::Spec::first`].
    pub first: Option<(ProfileName, Workspace)>,
    /// Resources of the tier without namespaces; absent in the other.
    pub bare: Option<Prepared>,
}

impl Inherited {
    /// The maps have ids for cells as well.
    pub(crate) fn take_own_ids(&mut self) {
        let Some([uids, gids]) = self.own_ids.take() else { return };
        self.operator.uids.0.extend(uids.0);
        self.operator.gids.0.extend(gids.0);
        self.ids = Ids::ByGrant;
    }
}

/// Resources that main prepares for the tier without namespaces.
#[derive(Debug, Clone)]
pub(crate) struct Prepared {
    /// A directory of the cells' user, for their private ones.
    pub store: String,
    /// The uid and gid to take; absent where the operator's own are kept.
    pub id: Option<u32>,
}
