//! The supervisor: the one process that makes cells, and all that is decided before it starts.
//!
//! `main` calls [`start`] while it is single-threaded and small. `start` holds main's side
//! (ids, grants, cgroups, the clone), `boot` the supervisor's own way into its namespaces,
//! `template` the roots, `serve` the loop, `young` and `pool` the cells
//! that wait for a job, `ahead` a program that waits there for its input, `dispatch` the way of a job
//! to its cell, `waiting` what is built for it, `running` its life there.
//! `sources` lists what the loop waits for. `sessions` has the cells that live across jobs: `shell` one job after the other, `desk` and
//! `driver` how a bash gets them.
//!
//! *Invariant:* it trusts nothing that comes over the link, and opens no path after boot.

mod account;
mod ahead;
mod bare;
mod beside;
mod boot;
mod brought;
mod cells;
mod clerk;
mod clocks;
mod desk;
mod dispatch;
mod driver;
mod dying;
mod ends;
pub mod filter;
mod handover;
mod host;
mod idmap;
mod outbox;
mod phases;
mod pieces;
mod placing;
mod pool;
mod program;
pub mod protect;
mod running;
mod scope;
mod serve;
mod session;
mod sessions;
mod shell;
mod sockets;
mod sources;
mod start;
mod subordinate;
mod synthetic;
mod telling;
mod template;
mod terminal;
mod usable;
mod waiting;
mod young;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use model::job::{ProfileName, Workspace};
use model::receipt::Tier;
use profile::Profile;

pub use scope::Wish as ScopeWish;
pub use sockets::Socket;
pub use start::{OPEN_FILES_HELD, StartError, Started, start};
pub use subordinate::{OwnIds, Without, look as look_for_own_ids};
pub use synthetic::HOST_NAME;

/// Everything the supervisor will ever know: decided by the operator, before any call.
#[derive(Debug, Clone)]
pub struct Spec {
    pub profiles: Vec<Profile>,
    /// Directories of the host for `/workspace` and beside it; a job names one by its index.
    pub workspaces: Vec<Workspaces>,
    /// Sockets for the profiles that take them.
    pub sockets: Vec<Socket>,
    pub caps: Caps,
    pub ids: IdRange,
    /// Whether an ordinary user's cells are to have ids of their own.
    pub own_ids: OwnIds,
    /// By what cells are held.
    pub tier: Tier,
    /// Whether a scope is asked for where no control group is had without.
    pub scope: ScopeWish,
    /// Where inits record the paths that commands name: only for `profile learn`.
    pub record: Option<Arc<OwnedFd>>,
    /// What the one call that comes at once asks for: its cell builds itself while the supervisor
    /// greets the front end. `None` where calls come when they like.
    pub first: Option<(ProfileName, Workspace)>,
}

/// One granted set of paths, as the operator gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspaces {
    pub directories: Vec<Granted>,
}

/// A host directory, or a single file, that cells may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    pub host: PathBuf,
    /// Where the cell has it, such as `/workspace`.
    pub cell: PathBuf,
    pub access: Access,
}

/// What a cell may do with a granted directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    /// What the host obeys is read-only, and no such name can be made.
    ReadWrite,
    /// What the host obeys and is there is read-only; any name can be made.
    Unguarded,
}

/// Caps over all cells together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Cells alive at once, those that are ending included.
    pub cells: u16,
    /// Bytes: the memory limits of all cells added up.
    pub memory: u64,
    /// Bytes: the private filesystems of all cells added up.
    pub tmpfs: u64,
    /// Processes of all cells.
    pub processes: u64,
    /// Cells kept ready for a profile that is in use; 0: none is made in advance.
    pub warm: u16,
    /// Sessions at once; 0: none.
    pub sessions: u16,
    /// How long a session is kept that nobody uses.
    pub session_idle: Duration,
}

/// Host ids for a supervisor that root starts: itself and each cell have one of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    pub first: u32,
    /// Ids for one instance; several instances take one such block each.
    pub count: u32,
}

/// What the cells of one key have of the host besides what their profile lists.
#[derive(Debug)]
struct KeyGrant {
    workspace: Workspace,
    directories: Option<WorkspaceGrant>,
    sockets: Vec<sockets::SocketGrant>,
}

/// Granted directories with what `main` prepared for them.
#[derive(Debug)]
struct WorkspaceGrant {
    directories: Vec<GrantedDirectory>,
}

/// What a mount is made on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
}

#[derive(Debug)]
struct GrantedDirectory {
    host: PathBuf,
    cell: PathBuf,
    access: Access,
    kind: Kind,
    /// What the host obeys in it, as `main` found it.
    found: Rc<protect::Found>,
    /// As root: one idmapped mount for each slot, made in the host's namespace. Else empty.
    by_slot: Vec<OwnedFd>,
}
