//! Starts the supervisor from main: the clone, the maps, the link.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::sys::wait::WaitPidFlag;

use super::enter::{self, GoSignal};
use super::error::{MIN_OPEN_FILES, StartError};
use super::host::{self, Identity};
use super::inherited::{Inherited, Prepared};
use super::requirements::core_handler;
use super::scope::{self, Asking, Pending};
use super::spec::{PrivateCells, Spec};
use super::streams::silence;
use super::subordinate::{Ids, Mapping};
use crate::cells::cell::packets;
use crate::rootfs::error::GrantError;
use crate::rootfs::granted::Granted;
use crate::rootfs::grants::{self, KeyGrant};
use crate::rootfs::layers;
use crate::rootfs::protect::GuardedPaths;
use crate::rootfs::slot_mounts::{self, SlotMounts};
use crate::rootfs::sockets;
use cell::Clocks;
use cell::cgroup::Parent;
use cell::ids::{Supplementary, write_map};
use model::job::{GrantId, Workspace};
use model::profile::Profile;
use model::receipt::Tier;
use model::wire::ScopeResult;
use sys::fork::fork;
use sys::process::{self, ArgumentPages, Side};
use sys::{signals, socket};

/// A starting supervisor. Its first frame on the link says whether it came up.
#[derive(Debug)]
pub struct Started {
    /// The front end's end of the link.
    pub link: OwnedFd,
    /// Kept as long as the front end lives: for root it holds the instance's lock.
    pub held: HeldResources,
    /// The socket of [`Spec::listening`], which only the caller has now.
    pub listening: Option<OwnedFd>,
}

/// Resources that must live as long as the supervisor.
#[derive(Debug)]
pub struct HeldResources {
    _identity: Identity,
    _pidfd: OwnedFd,
}

/// Without a cgroup namespace: with `nsdelegate`, as systemd mounts version 2, a process can only
/// move others below the root of its cgroup namespace (cgroups(7)), and the cells' groups are
/// siblings of the supervisor's. Each cell has its own cgroup namespace. Without a network
/// namespace too, which takes as long as all the others: the child makes it while main
/// continues (`boot_with_namespaces`).
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

/// Starts the supervisor. Must be called from `main`, before any thread, runtime or secret exists.
///
/// # Errors
/// The reason why it cannot start. A later failure arrives as the first frame on the link.
pub fn start(spec: Spec) -> Result<Started, StartError> {
    start_with_gateway(spec, |_, _| Ok(None))
}

/// Starts like [`start`], after a gateway. `gateway` gets the host id for the gateway, if root
/// starts this instance, and the profiles, whose cells may have to trust it. It returns the
/// supervisor's end of the link.
///
/// # Errors
/// Those of [`start`], and the errors of `gateway`.
pub fn start_with_gateway(
    mut spec: Spec,
    gateway: impl FnOnce(Option<u32>, &mut [Profile]) -> Result<Option<OwnedFd>, String>,
) -> Result<Started, StartError> {
    let identity = identity(&spec)?;
    // First: the gateway inherits nothing of the supervisor.
    let gateway =
        gateway(identity.gateway_id(), &mut spec.profiles).map_err(StartError::Gateway)?;
    let (link, theirs) = packets().map_err(StartError::Link)?;
    let (go, wait) = packets().map_err(StartError::Link)?;
    let bare = prepared(spec.tier, &identity)?;
    let guarded = grants::find_guarded(&spec.granted, spec.tier)?;
    let (cgroups, scope, asking) = control_groups(&spec, &identity).map_err(StartError::Link)?;
    let layer_id = layer_id(&spec, &identity)?;
    let inherited = Inherited {
        link: theirs,
        layers: layers::prepare(&spec.granted, identity.layer_ids(layer_id))?,
        grants: key_grants(&spec, &guarded, &identity, layer_id)?,
        profiles: spec.profiles,
        record: spec.record,
        gateway: gateway.map(Arc::new),
        first: spec.first,
        caps: spec.caps,
        operator: identity.operator(spec.tier)?,
        supplementary: identity.supplementary(),
        cgroups,
        scope,
        pages: ArgumentPages::locate().map_err(StartError::NoProc)?,
        ids: Ids::All(identity.cells()),
        cell_ids: identity.cell_ids()?,
        clocks: Clocks::Host,
        cores: core_handler(),
        bare,
    };
    match cloned(spec.tier).map_err(StartError::Clone)? {
        Side::Child => {
            // Close the copies of main's ends, or main's death would not end the link. Close the
            // granted sockets and the caller's too: from here on only mounts hold files of the host.
            drop((link, go, spec.sockets, spec.listening, asking));
            enter::run(inherited, GoSignal { wait })
        }
        Side::Parent(child) => {
            // The supervisor alone reads the signal: a process that sends it must learn that the supervisor has ended.
            drop(wait);
            place_supervisor(spec.tier, &inherited.cgroups, &identity, child.pid)?;
            let task = BackgroundTask::find(&identity, &inherited);
            if task != BackgroundTask::Maps {
                admit(child.pid, spec.tier, &identity, &go)?;
            }
            if task != BackgroundTask::None
                && let Side::Child = background().map_err(StartError::Clone)?
            {
                // Each of the two processes must see the other close the link.
                drop((link, inherited.link, inherited.scope, asking, inherited.gateway));
                drop((spec.sockets, spec.listening, child.pidfd));
                let is_done = match task {
                    BackgroundTask::None => true,
                    BackgroundTask::Maps => admit(child.pid, spec.tier, &identity, &go).is_ok(),
                    // The client must see the front end close its streams.
                    BackgroundTask::Mounts => silence()
                        .and_then(|()| {
                            slot_mounts::send(grants::slot_mounts(&inherited.grants), &go)
                        })
                        .is_ok(),
                };
                process::exit_now(i32::from(!is_done));
            }
            if let Some(asking) = asking {
                asking.start(child.pid);
            }
            // Leaked on purpose: freeing these shared pages would write to them and copy them.
            std::mem::forget(inherited.profiles);
            let held = HeldResources { _identity: identity, _pidfd: child.pidfd };
            Ok(Started { link, held, listening: spec.listening })
        }
    }
}

/// Clones the supervisor's process.
fn cloned(tier: Tier) -> Result<Side, Errno> {
    match tier {
        Tier::Full => process::clone3(NAMESPACES, None),
        Tier::Bare => fork(),
    }
}

/// Moves the supervisor to the parent of its cells' control groups.
fn place_supervisor(
    tier: Tier,
    cgroups: &Parent,
    identity: &Identity,
    pid: i32,
) -> Result<(), StartError> {
    if tier == Tier::Bare {
        return Ok(());
    }
    host::place_supervisor(cgroups, identity, pid)
        .map_err(|error| StartError::Maps(cell::errno_of(&error)))
}

/// Checks that this process can start a supervisor, and determines the ids to use.
fn identity(spec: &Spec) -> Result<Identity, StartError> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(StartError::NoProc)?.count();
    if threads != 1 {
        return Err(StartError::Threads { threads });
    }
    // The parent may have changed signal dispositions: with SIGCHLD ignored, ends of cells would go
    // unnoticed.
    signals::usual_signals().map_err(StartError::Signals)?;
    // Before any process is made, which inherits it: the supervisor's filter forbids changing it
    // later.
    cell::limits::no_core_dumps().map_err(StartError::CoreLimit)?;
    // Every cell needs descriptors, also while they are in flight over the link; the soft limit
    // only exists for select(2).
    let limit = rlimit::increase_nofile_limit(u64::MAX)
        .map_err(|error| StartError::Link(cell::errno_of(&error)))?;
    if limit < MIN_OPEN_FILES {
        return Err(StartError::OpenFiles { limit });
    }
    let identity = Identity::find(spec.ids)?;
    Ok(match spec.tier {
        Tier::Full => {
            let identity = identity.for_grants(spec.granted.iter().flatten())?;
            identity.with_subordinate_ids(spec.own_ids, spec.caps.cells)
        }
        Tier::Bare => identity,
    })
}

/// Returns the control groups that are available at once. Without any, also returns the
/// request for a scope, which root does not need and the lower tier does not use.
fn control_groups(
    spec: &Spec,
    identity: &Identity,
) -> Result<(Parent, Pending, Option<Asking>), Errno> {
    let cgroups = match spec.tier {
        Tier::Full => host::cgroups(identity),
        Tier::Bare => Parent::None,
    };
    let (scope, asking) = match (spec.tier, identity) {
        (Tier::Full, Identity::Ordinary { .. }) => scope::prepare(spec.scope, &cgroups)?,
        (Tier::Bare, _) | (_, Identity::Root(_)) => (ScopeResult::NotAsked.into(), None),
    };
    Ok((cgroups, scope, asking))
}

/// Prepares the tier without namespaces: a directory, and for root an id that no other process has.
fn prepared(tier: Tier, identity: &Identity) -> Result<Option<Prepared>, StartError> {
    if tier == Tier::Full {
        return Ok(None);
    }
    let directory =
        tempfile::Builder::new().prefix("cofferdam-").tempdir().map_err(StartError::Store)?;
    let id = match identity {
        Identity::Ordinary { .. } => None,
        Identity::Root(instance) => Some(instance.first),
    };
    std::os::unix::fs::chown(directory.path(), id, id).map_err(StartError::Store)?;
    // Removed by the supervisor's sweeper.
    let store = directory.keep().to_string_lossy().into_owned();
    Ok(Some(Prepared { store, id }))
}

/// A step of the start that a child takes while main continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BackgroundTask {
    None,
    /// Having newuidmap(1) write the supervisor's maps.
    Maps,
    /// Making the mounts of grants for all slots but the first.
    Mounts,
}

impl BackgroundTask {
    fn find(identity: &Identity, inherited: &Inherited) -> Self {
        match identity {
            Identity::Ordinary { block: Some(_), .. } => Self::Maps,
            _ if grants::slot_mounts(&inherited.grants).any(SlotMounts::are_due) => Self::Mounts,
            Identity::Ordinary { block: None, .. } | Identity::Root(_) => Self::None,
        }
    }
}

/// Forks the child for a task, which ends with this process. It is not waited for: the kernel reaps it.
fn background() -> Result<Side, Errno> {
    let parent = nix::unistd::getpid();
    let side = fork()?;
    match &side {
        Side::Child => {
            let tied = process::set_death_signal(Signal::SIGKILL);
            if tied.is_err() || nix::unistd::getppid() != parent {
                process::exit_now(1);
            }
        }
        Side::Parent(child) => {
            signals::forget_children()?;
            // In case it ended before SIGCHLD was ignored.
            let pid = nix::unistd::Pid::from_raw(child.pid);
            match nix::sys::wait::waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
                Ok(_) | Err(Errno::ECHILD) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(side)
}

/// Writes the supervisor's maps and sends it the go signal.
fn admit(pid: i32, tier: Tier, identity: &Identity, go: &OwnedFd) -> Result<(), StartError> {
    let message = match tier {
        Tier::Full => map(pid, identity).map_err(StartError::Maps)?,
        Tier::Bare => enter::OPERATOR_IDS,
    };
    socket::send(go, message, &[]).map_err(StartError::Link)
}

/// Writes the supervisor's maps. Returns the message that says which ids it has.
fn map(pid: i32, identity: &Identity) -> Result<&'static [u8], Errno> {
    let [uids_written, gids_written] = match identity {
        Identity::Ordinary { uid, gid, block: Some(block) } => {
            Mapping::start(block, pid, [*uid, *gid]).finish()
        }
        Identity::Ordinary { .. } | Identity::Root(_) => [false, false],
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let process = open(format!("/proc/{pid}").as_str(), flags, Mode::empty())?;
    let [uids, gids] = identity.maps();
    if !gids_written {
        if identity.supplementary() == Supplementary::Kept {
            // Required before an ordinary user may write a gid map (user_namespaces(7)).
            write_map(process.as_fd(), "setgroups", "deny")?;
        }
        write_map(process.as_fd(), "gid_map", &gids)?;
    }
    if !uids_written {
        write_map(process.as_fd(), "uid_map", &uids)?;
    }
    Ok(if uids_written && gids_written { enter::CELL_IDS } else { enter::OPERATOR_IDS })
}

/// Returns the id of cells that share a layer, if there is a layer and cells have ids by slot.
fn layer_id(spec: &Spec, identity: &Identity) -> Result<Option<u32>, StartError> {
    let Some(layer) = spec.granted.iter().flatten().find(|granted| granted.layer.is_some()) else {
        return Ok(None);
    };
    let failed = |errno| GrantError::IdMapped { path: layer.host.clone(), errno };
    Ok(identity.layer_id(spec.caps.cells).map_err(failed)?)
}

/// Returns the grants of each profile's keys: one key for a private workspace, and one for each
/// granted set that the profile shows.
fn key_grants(
    spec: &Spec,
    guarded: &[Vec<Rc<GuardedPaths>>],
    identity: &Identity,
    layer_id: Option<u32>,
) -> Result<Vec<Vec<KeyGrant>>, StartError> {
    // Id-mapped mounts only exist for cells with mounts.
    let cells = if spec.tier == Tier::Full { spec.caps.cells } else { 0 };
    let ids = identity.slot_ids(cells);
    // Cells that share a layer share an id, and everything that is granted to them is mapped to it.
    let layer_of = |granted: &[Granted]| {
        layer_id.filter(|_| granted.iter().any(|granted| granted.layer.is_some()))
    };
    let key = |profile: &Profile, workspace, granted: &[Granted], guarded: &[Rc<GuardedPaths>]| {
        let layer_id = layer_of(granted);
        let ids = if layer_id.is_some() { identity.layer_ids(layer_id) } else { ids };
        let directories = grants::grants(granted, guarded, ids)?;
        let sockets = sockets::grants(&spec.sockets, profile, ids)?;
        Ok::<KeyGrant, StartError>(KeyGrant { workspace, directories, sockets, layer_id })
    };
    let of_profile = |profile: &Profile| {
        let mut sets = spec.granted.iter().zip(guarded).zip(0..);
        let of_private = match spec.private_cells {
            PrivateCells::WithFirstSet => sets.next().filter(|_| profile.workspace),
            PrivateCells::Bare => None,
        };
        let (granted, guarded) =
            of_private.map_or((&[][..], &[][..]), |((granted, guarded), _)| (granted, guarded));
        let mut keys = vec![key(profile, Workspace::Fresh, granted, guarded)?];
        if profile.workspace {
            for ((granted, guarded), index) in sets {
                let workspace = Workspace::Granted(GrantId(index));
                keys.push(key(profile, workspace, granted, guarded)?);
            }
        }
        Ok(keys)
    };
    spec.profiles.iter().map(of_profile).collect()
}
