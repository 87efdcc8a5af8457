//! The decisions of the operator before any call, as the supervisor is started with it.

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

/// Everything the supervisor will ever know: decided by the operator, before any call.
#[derive(Debug, Clone)]
pub struct Spec {
    pub profiles: Vec<Profile>,
    /// Sets of host directories for `/workspace` and beside it; a job names a set by its index.
    pub granted: Vec<Vec<Granted>>,
    /// Sockets for the profiles that take them.
    pub sockets: Vec<Socket>,
    pub caps: Caps,
    pub ids: IdRange,
    /// Request for host ids of their own for an ordinary user's cells.
    pub own_ids: OwnIds,
    /// By what cells are held.
    pub tier: Tier,
    /// Request for a scope where no control group can be had without one.
    pub scope: Wish,
    /// File in which inits record the paths that commands name: only for `profile learn`.
    pub record: Option<Arc<OwnedFd>>,
    /// Profile and workspace of the one call that comes at once: its cell builds itself while the supervisor
    /// greets the front end. `None` where calls come when they like.
    pub first: Option<(ProfileName, Workspace)>,
}
