//! Main's side of starting the supervisor: the clone, the maps, the link.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::wait::WaitPidFlag;

use super::enter::{self, GoSignal};
use super::error::{OPEN_FILES_LEAST, StartError};
use super::host::{self, Identity};
use super::inherited::{Inherited, Prepared};
use super::requirements::core_handler;
use super::scope::{self, Asking, Pending};
use super::spec::Spec;
use super::subordinate::{Ids, Mapping};
use crate::cells::cell::packets;
use crate::rootfs::grants::{self, KeyGrant};
use crate::rootfs::protect::GuardedPaths;
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

/// A supervisor on its way up. Its first frame on the link says whether it came up.
#[derive(Debug)]
pub struct Started {
    /// The front end's end of the link.
    pub link: OwnedFd,
    /// Kept for as long as the front end lives: as root it holds the instance's lock.
    pub held: HeldResources,
}

/// Resources that must live as long as the supervisor.
#[derive(Debug)]
pub struct HeldResources {
    _identity: Identity,
    _pidfd: OwnedFd,
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

/// Starts the supervisor. Call it from `main`, before any thread, runtime or secret exists.
///
/// # Errors
/// What stands in the way; a step that fails later arrives as the first frame on the link.
pub fn start(spec: Spec) -> Result<Started, StartError> {
    start_beside(spec, |_, _| Ok(None))
}

/// Starts as [`start`] does, after a gateway. `gateway` is given the host id that this instance has for it,
/// as root, and the profiles, whose cells may have to trust it. It returns the supervisor's end of the link.
///
/// # Errors
/// As of [`start`]; what `gateway` says.
pub fn start_beside(
    mut spec: Spec,
    gateway: impl FnOnce(Option<u32>, &mut [Profile]) -> Result<Option<OwnedFd>, String>,
) -> Result<Started, StartError> {
    let identity = identity(&spec)?;
    // First: nothing of the supervisor's is in it.
    let gateway =
        gateway(identity.gateway_id(), &mut spec.profiles).map_err(StartError::Gateway)?;
    let (link, theirs) = packets().map_err(StartError::Link)?;
    let (go, wait) = packets().map_err(StartError::Link)?;
    let bare = prepared(spec.tier, &identity)?;
    let looked = grants::look(&spec.granted, spec.tier)?;
    let (cgroups, scope, asking) = held(&spec, &identity).map_err(StartError::Link)?;
    let inherited = Inherited {
        link: theirs,
        grants: key_grants(&spec, &looked, &identity)?,
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
        own_ids: identity.own_ids()?,
        clocks: Clocks::Host,
        cores: core_handler(),
        bare,
    };
    match cloned(spec.tier).map_err(StartError::Clone)? {
        Side::Child => {
            // Main's ends of both pairs are this process's too: they go, or it would never see
            // main's death as the end of the link. Nor is a file of the host held, but by a mount.
            drop((link, go, spec.sockets, asking));
            enter::run(inherited, GoSignal { wait })
        }
        Side::Parent(child) => {
            place(spec.tier, &inherited.cgroups, &identity, child.pid)?;
            match mapper(&identity).map_err(StartError::Clone)? {
                Some(Side::Child) => {
                    // Each of the two must see the other's end of the link close.
                    drop((link, inherited.link, inherited.scope, asking, inherited.gateway));
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
            Ok(Started { link, held: HeldResources { _identity: identity, _pidfd: child.pidfd } })
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

/// Puts the supervisor beside the control groups of its cells.
fn place(tier: Tier, cgroups: &Parent, identity: &Identity, pid: i32) -> Result<(), StartError> {
    if tier == Tier::Bare {
        return Ok(());
    }
    host::place_supervisor(cgroups, identity, pid)
        .map_err(|error| StartError::Maps(cell::errno_of(&error)))
}

/// Checks that this process can start a supervisor, and finds out whose ids there are.
fn identity(spec: &Spec) -> Result<Identity, StartError> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(StartError::NoProc)?.count();
    if threads != 1 {
        return Err(StartError::Threads { threads });
    }
    // The parent of this process may have left others: with SIGCHLD ignored, no end of a cell would show.
    signals::usual_signals().map_err(StartError::Signals)?;
    // Before any process is made, which has it then: the supervisor's filter lets nobody set it.
    cell::limits::no_core_dumps().map_err(StartError::CoreLimit)?;
    // Descriptors for every cell, and on their way over the link: the soft limit is for select(2).
    let most = rlimit::increase_nofile_limit(u64::MAX)
        .map_err(|error| StartError::Link(cell::errno_of(&error)))?;
    if most < OPEN_FILES_LEAST {
        return Err(StartError::OpenFiles { most });
    }
    let identity = Identity::find(spec.ids)?;
    Ok(match spec.tier {
        Tier::Full => {
            let identity = identity.for_grants(spec.granted.iter().flatten())?;
            identity.with_own_ids(spec.own_ids, spec.caps.cells)
        }
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
        (Tier::Bare, _) | (_, Identity::Root(_)) => (ScopeResult::NotAsked.into(), None),
    };
    Ok((cgroups, scope, asking))
}

/// Prepares the resources of the tier without namespaces: a directory, and as root an id that nobody has.
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

/// Forks a child that has newuidmap(1) write the supervisor's maps while main goes on; `None` where main
/// writes them itself. Nobody waits for it: it collects itself.
fn mapper(identity: &Identity) -> Result<Option<Side>, Errno> {
    let Identity::Ordinary { own: Some(_), .. } = identity else { return Ok(None) };
    let side = fork()?;
    if let Side::Parent(child) = &side {
        signals::forget_children()?;
        // In case it ended before that.
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
fn key_grants(
    spec: &Spec,
    looked: &[Vec<Rc<GuardedPaths>>],
    identity: &Identity,
) -> Result<Vec<Vec<KeyGrant>>, StartError> {
    // Mounts by id are for cells that have mounts.
    let cells = if spec.tier == Tier::Full { spec.caps.cells } else { 0 };
    let ids = identity.slot_ids(cells);
    let key = |profile: &Profile, workspace, directories| -> Result<KeyGrant, StartError> {
        let sockets = sockets::grants(&spec.sockets, profile, ids)?;
        Ok(KeyGrant { workspace, directories, sockets })
    };
    let of_profile = |profile: &Profile| {
        let mut keys = vec![key(profile, Workspace::Fresh, Vec::new())?];
        if profile.workspace {
            for ((granted, looked), index) in spec.granted.iter().zip(looked).zip(0..) {
                let directories = grants::grants(granted, looked, ids)?;
                keys.push(key(profile, Workspace::Granted(GrantId(index)), directories)?);
            }
        }
        Ok(keys)
    };
    spec.profiles.iter().map(of_profile).collect()
}
