//! The operator's decisions with which the supervisor is started.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use model::job::{ProfileName, Workspace};
use model::profile::Profile;
use model::receipt::Tier;

use super::idmap::IdRange;
use super::scope::Wish;
use super::subordinate::OwnIds;
use crate::cells::caps::Caps;
use crate::rootfs::granted::Granted;
use crate::rootfs::sockets::Socket;

/// Grants of cells with a private workspace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PrivateCells {
    /// Nothing of the host.
    #[default]
    Bare,
    /// The first granted set, which has no directory for `/workspace`. No call names this set.
    WithFirstSet,
}

/// Everything the supervisor is configured with: decided by the operator, before any call.
#[derive(Debug)]
pub struct Spec {
    pub profiles: Vec<Profile>,
    /// Sets of host directories, for `/workspace` and other paths; a job names a set by its index.
    pub granted: Vec<Vec<Granted>>,
    /// What cells with a private workspace have of the first set.
    pub private_cells: PrivateCells,
    /// Granted sockets, for the profiles that use them.
    pub sockets: Vec<Socket>,
    pub caps: Caps,
    pub ids: IdRange,
    /// Request for separate host ids for an ordinary user's cells.
    pub own_ids: OwnIds,
    /// Isolation tier: which mechanisms confine cells.
    pub tier: Tier,
    /// Request for a scope, if no control group is available without one.
    pub scope: Wish,
    /// File in which inits record the paths that commands name; only for `profile learn`.
    pub record: Option<Arc<OwnedFd>>,
    /// Profile and workspace of a call that follows at once: its cell is built while the supervisor
    /// reports to the front end. `None` if calls may come at any time.
    pub first: Option<(ProfileName, Workspace)>,
    /// Socket that the caller listens on. The supervisor closes its copy, and the caller gets it back.
    pub listening: Option<OwnedFd>,
}
