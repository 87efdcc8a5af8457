//! The cell that one call runs in, and the processes that set it up.
//!
//! Read `enter` first: it has the steps in the order in which they must come. `spec` lists the
//! parts that a cell is made from. Each layer has a file: `ids`, `proc`, `mounts`, `limits`,
//! `cgroup`, `fds`, `caps`, `landlock`, `seccomp`, `mediate`; `bare` has the tier without
//! namespaces. `init` is pid 1 of the cell, `payload` the process that becomes the program, and
//! `measure` checks both from outside. `report` defines their messages to the supervisor.
//! `kept_network` has the network namespaces that are used again. `late_files` starts the process that completes a template. `proc_files` reads procfs. `confine`
//! has the walls of our processes that run no cell, and `tied` how they end with the front end.
//!
//! *Invariant:* between clone and exec there are only system calls. Everything of variable length
//! is in the [`Design`] or [`Shared`] before the clone.

#![deny(unreachable_pub)]

pub mod bare;
pub mod buffers;
pub mod caps;
pub mod cgroup;
pub mod confine;
pub mod dying;
pub mod enter;
pub mod fds;
pub mod file_ids;
pub mod files;
pub mod ids;
pub mod init;
pub mod kept_network;
pub mod landlock;
pub mod late_files;
pub mod limits;
pub mod measure;
pub mod mediate;
pub mod mounts;
pub mod network;
pub mod payload;
pub mod proc;
pub mod proc_files;
pub mod record;
pub mod removal;
pub mod report;
pub mod sealed;
pub mod seccomp;
pub mod size;
pub mod slot;
pub mod sockets;
pub mod spec;
pub mod tied;

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use model::core_dumps::CoreHandler;
use model::job::Workspace;
use model::profile::Profile;
use model::receipt::{MemoryHold, NOT_IN_FULL};
use sys::bpf::Instruction;

/// Properties shared by all cells of one key (profile and workspace), computed once.
#[derive(Debug)]
pub struct Design {
    pub profile: Profile,
    pub workspace: Workspace,
    pub ground: Ground,
    /// A directory that cells cannot reach, with the canary in it. If there is a template, this is
    /// its directory, with the facts and the grants by slot.
    pub hidden: OwnedFd,
    /// The cells' `/dev`, where an empty input is opened.
    pub devices: OwnedFd,
    /// Calls that init mediates: they guard names that the host obeys in granted directories,
    /// unless the operator disabled that, and sockets of the host. `None` if no call is mediated.
    pub mediation: Option<mediate::Mediation>,
    /// Granted directories that the cell may write to, as paths inside the cell.
    pub writable: Vec<PathBuf>,
    /// Parts of the grants that are not guarded in full, each with the reason.
    pub notes: Vec<String>,
    /// Host ids of the cells.
    pub ids: ids::CellIds,
    pub landlock: landlock::LandlockPlan,
    /// The loopback, in cells without egress whose programs may ask for their interfaces.
    pub loopback: Option<network::LoopbackPlan>,
    /// The link to the gateway, in cells with egress.
    pub network: Option<network::NetworkPlan>,
    /// The payload's filter, in cells with a fresh network namespace each.
    pub filter: Vec<Instruction>,
    /// Use of network namespaces by one cell after the other, in cells of one call without egress.
    pub reuse: Option<kept_network::Reuse>,
    /// Calls that init records and then lets the kernel execute; empty except for `profile learn`.
    pub recorded: Vec<record::PathCall>,
    /// Numbers of the calls that the filter allows. The supervisor's filter must allow them too.
    pub allowed: Vec<u32>,
}

/// The filesystem that cells of a key run on.
#[derive(Debug)]
pub enum Ground {
    /// A separate root and namespaces.
    Root(Root),
    /// The host's tree, in the tier `landlock+seccomp`.
    Bare(bare::BareGround),
}

/// Source of the monotonic and boot clocks of cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clocks {
    /// The host's clocks, which show its uptime.
    Host,
    /// The clocks of the supervisor's time namespace.
    Own,
}

/// The root that cells of a key inherit.
#[derive(Debug)]
pub struct Root {
    /// The mount namespace that the cells' are copied from.
    pub template: OwnedFd,
    /// Files that show the size of a cell as that of the machine.
    pub sizes: Rc<size::Sizes>,
    /// Directories of the host that are shown as overlays.
    pub overlays: Rc<sealed::Overlays>,
    /// Files that are made while the first cell is built.
    pub late: Rc<late_files::LateFiles>,
    pub mounts: mounts::MountPlan,
    /// The devpts at `/dev/pts`, if a session or `run` has these cells.
    pub terminals: Option<Rc<OwnedFd>>,
}

impl Design {
    /// Returns the root of the cells.
    ///
    /// # Errors
    /// EOPNOTSUPP in the tier without a root.
    pub fn root(&self) -> Result<&Root, Errno> {
        match &self.ground {
            Ground::Root(root) => Ok(root),
            Ground::Bare(_) => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Returns true if names that the host obeys cannot be made.
    pub(crate) fn guards_names(&self) -> bool {
        self.mediation.as_ref().is_some_and(|mediation| mediation.probe.is_some())
    }

    /// Describes the cell's workspace for people.
    pub fn workspace_name(&self) -> String {
        let name = match (self.profile.workspace, self.workspace) {
            (false, _) => "none",
            (true, Workspace::Fresh) => "fresh",
            (true, Workspace::Session(_)) => "of a session",
            (true, Workspace::Granted(_)) if self.writable.is_empty() => "granted, read-only",
            (true, Workspace::Granted(_)) if !self.guards_names() => {
                "granted, read-write, names unguarded"
            }
            (true, Workspace::Granted(_)) => "granted, read-write, names guarded",
        };
        match self.notes.as_slice() {
            [] => name.to_owned(),
            notes => format!("{name}{NOT_IN_FULL}{}", notes.join("; ")),
        }
    }
}

/// Properties shared by all cells of a supervisor.
#[derive(Debug)]
pub struct Shared {
    /// The filter of cell inits.
    pub init_filter: Vec<Instruction>,
    pub landlock_abi: u32,
    pub memory: MemoryHold,
    /// Minimum memory of a socket in bytes: the default size of its send or receive buffer.
    pub socket_bytes: u64,
    /// Open files that a cell may have: its share of the machine's.
    pub open_files: u64,
    /// A procfs, and its kind.
    pub proc: OwnedFd,
    pub proc_kind: ProcKind,
    pub clocks: Clocks,
    /// Consumer of the memory of a crashing process.
    pub cores: CoreHandler,
    /// The Landlock domain that confines signals of this supervisor, in the tier without pid namespaces.
    pub domain: Option<bare::Domain>,
    /// File in which inits record the paths that commands name; `None` except for `profile learn`.
    pub record: Option<Arc<OwnedFd>>,
}

/// The procfs that the supervisor reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcKind {
    /// One of the supervisor's pid namespace.
    Own,
    /// The outer one: a container masks parts of its /proc, and the kernel then refuses to mount a
    /// new one.
    Outer,
}

/// A setup step, named in errors and replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    Link,
    Cgroup,
    Maps,
    Ids,
    DieWithParent,
    Proc,
    Facts,
    Tmpfs,
    Workspace,
    Sockets,
    Loopback,
    Egress,
    Buffers,
    Nested,
    Limits,
    Descriptors,
    Capabilities,
    NoNewPrivs,
    Landlock,
    Fork,
    Seccomp,
    Listener,
    Canary,
    Program,
    Session,
}

impl Step {
    /// Describes the step for error messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Link => "talking to the supervisor",
            Self::Cgroup => "joining its control group",
            Self::Maps => "writing the id maps",
            Self::Ids => "changing ids",
            Self::DieWithParent => "tying its life to the supervisor",
            Self::Proc => "mounting its own /proc",
            Self::Facts => "limiting /proc",
            Self::Tmpfs => "mounting /tmp, /dev/shm and /workspace",
            Self::Workspace => "mounting the granted directory",
            Self::Sockets => "mounting the granted sockets",
            Self::Loopback => "bringing up loopback",
            Self::Egress => "making the link to the gateway",
            Self::Buffers => "bounding what connections hold",
            Self::Nested => "forbidding nested user namespaces",
            Self::Limits => "setting limits",
            Self::Descriptors => "closing descriptors",
            Self::Capabilities => "dropping capabilities",
            Self::NoNewPrivs => "setting no_new_privs",
            Self::Landlock => "restricting with Landlock",
            Self::Fork => "forking the payload",
            Self::Seccomp => "loading the system call filter",
            Self::Listener => "handing over the listener",
            Self::Canary => "opening the canary before Landlock",
            Self::Program => "opening the one program it may execute",
            Self::Session => "starting a new session",
        }
    }
}

/// A step that failed, with the errno it failed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}: {errno}", step.name())]
pub struct StepFailed {
    pub step: Step,
    pub errno: Errno,
}

/// Names the step of a result.
pub trait At<T> {
    /// Returns the value, or the error with the step it happened at.
    fn at(self, step: Step) -> Result<T, StepFailed>;
}

impl<T> At<T> for Result<T, Errno> {
    fn at(self, step: Step) -> Result<T, StepFailed> {
        self.map_err(|errno| StepFailed { step, errno })
    }
}

impl<T> At<T> for std::io::Result<T> {
    fn at(self, step: Step) -> Result<T, StepFailed> {
        self.map_err(|error| StepFailed { step, errno: errno_of(&error) })
    }
}

/// Returns the errno behind an I/O error.
pub fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Converts a path to a C string. Paths with a NUL were refused at load.
pub fn c_path(path: &std::path::Path) -> Result<CString, Errno> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}
