//! The supervisor: the one process that makes cells, and all that is decided before it starts.
//!
//! `main` calls [`start`] while it is single-threaded and small. Five folders, each of which names only
//! those after it:
//!
//! | folder | idea |
//! |---|---|
//! | `boot` | main's side (ids, grants, control groups, the clone) and the supervisor's way into its namespaces |
//! | `event_loop` | one thread: requests in, cells to jobs, events out; the one place that has all state |
//! | `sessions` | the cells that live across calls, and how a bash in them gets its calls |
//! | `cells` | one cell and the job it serves; the pool of cells that wait for one |
//! | `rootfs` | the root that the cells of one key share, and what of the host it shows |
//!
//! *Invariant:* it trusts nothing that comes over the link, and opens no path after boot.

mod boot;
mod cells;
mod event_loop;
mod rootfs;
mod sessions;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use model::job::{ProfileName, Workspace};
use model::receipt::Tier;
use profile::Profile;

pub use boot::filter;
pub use boot::requirements::OPEN_FILES_HELD;
pub use boot::scope::Wish as ScopeWish;
pub use boot::start::{StartError, Started, start};
pub use boot::subordinate::{OwnIds, Without, look as look_for_own_ids};
pub use rootfs::protect;
pub use rootfs::sockets::Socket;
pub use rootfs::synthetic::HOST_NAME;

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
    /// Choice of host ids for an ordinary user's cells.
    pub own_ids: OwnIds,
    /// By what cells are held.
    pub tier: Tier,
    /// Choice of asking for a scope where no control group is available without one.
    pub scope: ScopeWish,
    /// Memory in which inits record the paths that commands name: only for `profile learn`.
    pub record: Option<Arc<OwnedFd>>,
    /// Profile and workspace of the one call that comes at once: its cell builds itself while the
    /// supervisor greets the front end. `None` if calls come at any time.
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
    /// Path in the cell, such as `/workspace`.
    pub cell: PathBuf,
    pub access: Access,
}

/// Rights of a cell in a granted directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    /// Guarded names are read-only, and none can be made.
    ReadWrite,
    /// Guarded names that exist are read-only; any name can be made.
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

/// Parts of the host that the cells of one key have besides those of their profile.
#[derive(Debug)]
struct KeyGrant {
    workspace: Workspace,
    directories: Option<WorkspaceGrant>,
    sockets: Vec<rootfs::sockets::SocketGrant>,
}

/// Granted directories with what `main` prepared for them.
#[derive(Debug)]
struct WorkspaceGrant {
    directories: Vec<GrantedDirectory>,
}

/// Kind of file on which a mount is made.
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
    /// Guarded places in it, as `main` found them.
    found: Rc<protect::Found>,
    /// As root: one idmapped mount for each slot, made in the host's namespace. Else empty.
    by_slot: Vec<OwnedFd>,
}
