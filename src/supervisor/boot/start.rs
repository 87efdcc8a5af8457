//! Main's side of starting the supervisor: the clone, the maps, the link.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::stat::Mode;
use nix::sys::wait::WaitPidFlag;

use super::bare::Prepared;
use super::enter::{self, Birth};
use super::host::{self, Identity};
use super::scope::{self, Asking, Pending};
use super::subordinate::{Ids, Mapping};
use crate::Caps;
use crate::KeyGrant;
use crate::Spec;
use crate::rootfs::sockets;
use cell::Clocks;
use cell::cgroup::Parent;
use cell::ids::{HostIds, Supplementary, write_map};
use cell::measure::Operator;
use model::job::{ProfileName, Workspace};
use model::outcome::in_words;
use model::receipt::Tier;
use model::wire::Scope;
use profile::{Profile, SocketName};
use sys::fork::fork;
use sys::process::{self, ArgumentPages, Side};
use sys::{signals, socket};

/// Why there is no supervisor. Each has its remedy in `cofferdam doctor`.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the supervisor must start before any thread: {threads} are running")]
    Threads { threads: usize },
    #[error("/proc cannot be read: {}", in_words(.0))]
    NoProc(#[source] std::io::Error),
    #[error("this kernel or container refuses user namespaces: {0}")]
    Clone(#[source] Errno),
    #[error("the supervisor's ids cannot be mapped: {0}")]
    Maps(#[source] Errno),
    #[error("the instance lock cannot be taken: {}", in_words(.error))]
    Lock { error: std::io::Error },
    #[error("{most} instances are running already")]
    NoInstance { most: u32 },
    #[error("{most} open files are allowed here, and {OPEN_FILES_LEAST} are needed")]
    OpenFiles { most: u64 },
    #[error("`{}` cannot be granted: {errno}", path.display())]
    Grant { path: PathBuf, errno: Errno },
    #[error("the socket `{name}` cannot be granted: {errno}")]
    Socket { name: SocketName, errno: Errno },
    #[error("signals cannot be set to what they usually do: {0}")]
    Signals(#[source] Errno),
    #[error("no private directory for cells: {}", in_words(.0))]
    Store(#[source] std::io::Error),
    #[error("the link cannot be made: {0}")]
    Link(#[source] Errno),
}

/// A supervisor on its way up. Its first frame on the link says whether it came up.
#[derive(Debug)]
pub struct Started {
    /// The front end's end of the link.
    pub link: OwnedFd,
    /// Kept for as long as the front end lives: as root it holds the instance's lock.
    pub held: Held,
}

/// Resources that must live as long as the supervisor.
#[derive(Debug)]
pub struct Held {
    _identity: Identity,
    _pidfd: OwnedFd,
}

/// State that the supervisor takes from main: a copy of main's memory, by the clone.
#[derive(Debug)]
pub struct Inherited {
    pub link: OwnedFd,
    pub profiles: Vec<Profile>,
    /// For each profile, in its order, what each of its keys has: a detached mount can be put in one template only.
    pub grants: Vec<Vec<KeyGrant>>,
    pub caps: Caps,
    pub operator: Operator,
    pub supplementary: Supplementary,
    pub cgroups: Parent,
    /// Origin of control groups that may still come.
    pub scope: Pending,
    pub pages: ArgumentPages,
    pub record: Option<Arc<OwnedFd>>,
    /// Whose ids cells have on the host.
    pub ids: Ids,
    /// Further host ids, uids and gids, if main could have them mapped.
    pub own_ids: Option<[HostIds; 2]>,
    /// The host's until the supervisor has its own.
    pub clocks: Clocks,
    /// As [`Spec::first`].
    pub first: Option<(ProfileName, Workspace)>,
    /// Preparations for the tier without namespaces; absent in the other.
    pub bare: Option<Prepared>,
}

impl Inherited {
    /// The maps have ids for cells as well.
    pub fn take_own_ids(&mut self) {
        let Some([uids, gids]) = self.own_ids.take() else { return };
        self.operator.uids.0.extend(uids.0);
        self.operator.gids.0.extend(gids.0);
        self.ids = Ids::ByGrant;
    }
}

/// No cgroup namespace: with `nsdelegate`, as systemd mounts version 2, a process may only move others
/// below the root of its own (cgroups(7)), and the cells' groups are beside the supervisor's. Each
/// cell has one. And not that of the network, which takes as long as all the others: the child makes
/// it, first of all, while main goes on (`boot`).
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

/// The least hard limit on open files: the supervisor has some for each template and each cell.
const OPEN_FILES_LEAST: u64 = 256;

/// Starts the supervisor. Call it from `main`, before any thread, runtime or secret exists.
///
/// # Errors
/// What stands in the way; a step that fails later arrives as the first frame on the link.
pub fn start(spec: Spec) -> Result<Started, StartError> {
    let identity = identity(&spec)?;
    let (link, theirs) = pair().map_err(StartError::Link)?;
    let (go, wait) = pair().map_err(StartError::Link)?;
    let bare = prepared(spec.tier, &identity)?;
    let looked = host::look(&spec.workspaces, spec.tier);
    let (cgroups, scope, asking) = held(&spec, &identity).map_err(StartError::Link)?;
    let inherited = Inherited {
        link: theirs,
        grants: grants(&spec, &looked, &identity)?,
        profiles: spec.profiles,
        record: spec.record,
        first: spec.first,
        caps: spec.caps,
        operator: identity.operator(spec.tier)?,
        supplementary: identity.supplementary(),
        cgroups,
        scope,
        pages: ArgumentPages::locate().map_err(StartError::NoProc)?,
        ids: Ids::All(identity.cells()),
        own_ids: identity.own_ids()?,
        clocks: Clocks::Host,
        bare,
    };
    let side = match spec.tier {
        Tier::Full => process::clone3(NAMESPACES, None),
        Tier::Bare => fork(),
    };
    match side.map_err(StartError::Clone)? {
        Side::Child => {
            // Main's ends of both pairs are this process's too: they go, or it would never see
            // main's death as the end of the link. Nor is a file of the host held, but by a mount.
            drop((link, go, spec.sockets, asking));
            enter::run(inherited, Birth { wait })
        }
        Side::Parent(child) => {
            if spec.tier == Tier::Full {
                host::place_supervisor(&inherited.cgroups, &identity, child.pid)
                    .map_err(|error| StartError::Maps(cell::errno_of(&error)))?;
            }
            match mapper(&identity).map_err(StartError::Clone)? {
                Some(Side::Child) => {
                    // Each of the two must see the other's end of the link close.
                    drop((link, inherited.link, inherited.scope, asking));
                    let told = admit(child.pid, spec.tier, &identity, &go);
                    process::exit_now(i32::from(told.is_err()));
                }
                Some(Side::Parent(_)) => {}
                None => admit(child.pid, spec.tier, &identity, &go)?,
            }
            if let Some(asking) = asking {
                asking.start(child.pid);
            }
            // Not freed: the two processes share these pages, and to write to one is to copy it.
            std::mem::forget(inherited.profiles);
            Ok(Started { link, held: Held { _identity: identity, _pidfd: child.pidfd } })
        }
    }
}

/// Checks that this process can start a supervisor, and finds out whose ids there are.
fn identity(spec: &Spec) -> Result<Identity, StartError> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(StartError::NoProc)?.count();
    if threads != 1 {
        return Err(StartError::Threads { threads });
    }
    // What the parent of this process left: with SIGCHLD ignored, no end of a cell would show.
    signals::usual_signals().map_err(StartError::Signals)?;
    // Descriptors for every cell, and on their way over the link: the soft limit is for select(2).
    let most = rlimit::increase_nofile_limit(u64::MAX)
        .map_err(|error| StartError::Link(cell::errno_of(&error)))?;
    if most < OPEN_FILES_LEAST {
        return Err(StartError::OpenFiles { most });
    }
    let identity = Identity::find(spec.ids)?;
    Ok(match spec.tier {
        Tier::Full => identity.with_own_ids(spec.own_ids, spec.caps.cells),
        Tier::Bare => identity,
    })
}

/// The control groups that can be had at once, and who asks for a scope where there are none: root has groups of its
/// own, and the lower tier uses none.
fn held(spec: &Spec, identity: &Identity) -> Result<(Parent, Pending, Option<Asking>), Errno> {
    let cgroups = match spec.tier {
        Tier::Full => host::cgroups(identity),
        Tier::Bare => Parent::None,
    };
    let (scope, asking) = match (spec.tier, identity) {
        (Tier::Full, Identity::Ordinary { .. }) => scope::prepare(spec.scope, &cgroups)?,
        (Tier::Bare, _) | (_, Identity::Root(_)) => (Scope::NotAsked.into(), None),
    };
    Ok((cgroups, scope, asking))
}

/// Prepares the tier without namespaces: a directory, and as root an id that nobody has.
fn prepared(tier: Tier, identity: &Identity) -> Result<Option<Prepared>, StartError> {
    if tier == Tier::Full {
        return Ok(None);
    }
    let made =
        tempfile::Builder::new().prefix("cofferdam-").tempdir().map_err(StartError::Store)?;
    let id = match identity {
        Identity::Ordinary { .. } => None,
        Identity::Root(instance) => Some(instance.first),
    };
    std::os::unix::fs::chown(made.path(), id, id).map_err(StartError::Store)?;
    // Removed by the supervisor's sweeper.
    let store = made.keep().to_string_lossy().into_owned();
    Ok(Some(Prepared { store, id }))
}

pub(super) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
}

/// Forks a child that has newuidmap(1) write the supervisor's maps while main goes on; `None` where main
/// writes them itself. Nobody waits for it: it collects itself.
fn mapper(identity: &Identity) -> Result<Option<Side>, Errno> {
    let Identity::Ordinary { own: Some(_), .. } = identity else { return Ok(None) };
    let side = fork()?;
    if let Side::Parent(child) = &side {
        signals::forget_children()?;
        // The child may have ended before that.
        let pid = nix::unistd::Pid::from_raw(child.pid);
        match nix::sys::wait::waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
            Ok(_) | Err(Errno::ECHILD) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(Some(side))
}

/// Maps the supervisor's ids and tells it.
fn admit(pid: i32, tier: Tier, identity: &Identity, go: &OwnedFd) -> Result<(), StartError> {
    let word = match tier {
        Tier::Full => map(pid, identity).map_err(StartError::Maps)?,
        Tier::Bare => enter::OPERATORS,
    };
    socket::send(go, word, &[]).map_err(StartError::Link)
}

/// Writes the supervisor's maps. Returns what it is to be told: which ids it has.
fn map(pid: i32, identity: &Identity) -> Result<&'static [u8], Errno> {
    let [uids_there, gids_there] = match identity {
        Identity::Ordinary { uid, gid, own: Some(block) } => {
            Mapping::start(block, pid, [*uid, *gid]).finish()
        }
        Identity::Ordinary { .. } | Identity::Root(_) => [false, false],
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let process = open(format!("/proc/{pid}").as_str(), flags, Mode::empty())?;
    let [uids, gids] = identity.maps();
    if !gids_there {
        if identity.supplementary() == Supplementary::Kept {
            // Without this an ordinary user may not write a gid map (user_namespaces(7)).
            write_map(process.as_fd(), "setgroups", "deny")?;
        }
        write_map(process.as_fd(), "gid_map", &gids)?;
    }
    if !uids_there {
        write_map(process.as_fd(), "uid_map", &uids)?;
    }
    Ok(if uids_there && gids_there { enter::OWN } else { enter::OPERATORS })
}

/// For each profile what its keys have: one without a grant, and one for each that it shows.
fn grants(
    spec: &Spec,
    looked: &[host::Looked],
    identity: &Identity,
) -> Result<Vec<Vec<KeyGrant>>, StartError> {
    // Mounts by id are for cells that have mounts.
    let cells = if spec.tier == Tier::Full { spec.caps.cells } else { 0 };
    let key = |profile: &Profile, workspace, directories| {
        let sockets = sockets::grants(&spec.sockets, profile, identity, cells)?;
        Ok(KeyGrant { workspace, directories, sockets })
    };
    let of_profile = |profile: &Profile| {
        let mut keys = vec![key(profile, Workspace::Fresh, None)?];
        if profile.workspace {
            let granted = host::grants(&spec.workspaces, looked, identity, cells)?;
            for (directories, index) in granted.into_iter().zip(0..) {
                keys.push(key(profile, Workspace::Granted(index), Some(directories))?);
            }
        }
        Ok(keys)
    };
    spec.profiles.iter().map(of_profile).collect()
}
