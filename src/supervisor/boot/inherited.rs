//! The state that main hands to the supervisor through the clone.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::scope::Pending;
use super::subordinate::Ids;
use crate::cells::caps::Caps;
use crate::rootfs::grants::KeyGrant;
use crate::rootfs::layers::UnmountedLayer;
use cell::Clocks;
use cell::cgroup::Parent;
use cell::ids::{HostIds, Supplementary};
use cell::measure::Operator;
use model::core_dumps::CoreHandler;
use model::job::{ProfileName, Workspace};
use model::profile::Profile;
use sys::process::ArgumentPages;

/// Everything that the supervisor takes from main, as a copy of main's memory.
#[derive(Debug)]
pub(crate) struct Inherited {
    pub link: OwnedFd,
    pub profiles: Vec<Profile>,
    /// The grants of each key, per profile: a detached mount can be attached in one template only.
    pub grants: Vec<Vec<KeyGrant>>,
    /// Layers among the grants, until they are mounted.
    pub layers: Vec<UnmountedLayer>,
    pub caps: Caps,
    pub operator: Operator,
    pub supplementary: Supplementary,
    pub cgroups: Parent,
    /// The scope, if control groups are still awaited from it.
    pub scope: Pending,
    pub pages: ArgumentPages,
    pub record: Option<Arc<OwnedFd>>,
    /// Link to the gateway, if one was started.
    pub gateway: Option<Arc<OwnedFd>>,
    /// Which host ids cells have.
    pub ids: Ids,
    /// Host ids of the block for cells, uids and gids, if main could reserve one.
    pub cell_ids: Option<[HostIds; 2]>,
    /// The host's until the supervisor enters its time namespace.
    pub clocks: Clocks,
    /// Consumer of the memory of a crashing process when the supervisor started.
    pub cores: CoreHandler,
    /// See [`super::spec::Spec::first`].
    pub first: Option<(ProfileName, Workspace)>,
    /// Resources of the tier without namespaces; `None` in the other tier.
    pub bare: Option<Prepared>,
}

impl Inherited {
    /// Adds the ids of the block for cells, after the maps were written with them.
    pub(crate) fn add_cell_ids(&mut self) {
        let Some([uids, gids]) = self.cell_ids.take() else { return };
        self.operator.uids.0.extend(uids.0);
        self.operator.gids.0.extend(gids.0);
        self.ids = Ids::ByGrant;
    }
}

/// Resources that main prepares for the tier without namespaces.
#[derive(Debug, Clone)]
pub(crate) struct Prepared {
    /// Directory for the cells' private directories, owned by their user.
    pub store: String,
    /// The uid and gid to change to; `None` to keep the operator's.
    pub id: Option<u32>,
}
