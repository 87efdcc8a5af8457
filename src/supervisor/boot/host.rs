//! Resources that only `main` can prepare on the host before the supervisor exists: ids, cgroups, idmaps.

use std::fs::{self, File};
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{AccessFlags, access, getegid, geteuid, getgroups};

use cell::cgroup::Parent;
use cell::ids::{CellIds, HostIds, Supplementary};
use cell::measure::{NAMESPACES, Operator};
use model::receipt::Tier;

use super::container_group;
use super::control_files::{enable, own_cgroup, put};
use super::error::StartError;
use super::idmap::{HostRoot, IdMap, IdRange};
use super::subordinate::{Block, OwnIds};
use crate::rootfs::granted::Granted;
use crate::rootfs::idmapped::{self, SlotIds};

/// Directory of the locks of root's instances; only root may write there.
const LOCKS: &str = "/run/cofferdam";
/// Instances that can run at once as root.
const MOST_INSTANCES: u32 = 64;

/// The user that starts the supervisor, and the ids it may use.
#[derive(Debug)]
pub(crate) enum Identity {
    /// An ordinary user: the one id it has, and those that others may give it.
    Ordinary { uid: u32, gid: u32, own: Option<Block> },
    /// Root: a block of ids nobody else has, held by a lock.
    Root(Instance),
}

/// One of root's instances on this host.
#[derive(Debug)]
pub(crate) struct Instance {
    pub number: u32,
    /// First host id of its block; the supervisor has it, cells those after it.
    pub first: u32,
    pub count: u32,
    /// Held for as long as the process lives: the kernel lets it go, as the confined front end
    /// could not.
    _lock: ManuallyDrop<Flock<File>>,
}

impl Identity {
    /// Returns the id of the gateway where root starts it: the last of the block, which no cell has.
    pub(crate) fn gateway_id(&self) -> Option<u32> {
        match self {
            Self::Root(instance) => instance.first.checked_add(instance.count.checked_sub(1)?),
            Self::Ordinary { .. } => None,
        }
    }

    /// Finds out who we are, and as root takes a block of ids.
    pub(crate) fn find(range: IdRange) -> Result<Self, StartError> {
        let uid = geteuid().as_raw();
        let gid = getegid().as_raw();
        let map = IdMap::of_this_process().map_err(StartError::NoProc)?;
        if uid == 0
            && let Some(range) = map.usable(range, MOST_INSTANCES)
        {
            return Instance::take(range, &map).map(Self::Root);
        }
        // Root of a user namespace with one id has no more than any ordinary user.
        Ok(Self::Ordinary { uid, gid, own: None })
    }

    /// Returns this one, or that of an ordinary user where a user namespace's root may not show `granted` to cells with
    /// ids of their own: the container's root is then the user who started the container.
    ///
    /// The host's own root stays root: cells never have its id.
    pub(crate) fn for_grants<'g>(
        self,
        mut granted: impl Iterator<Item = &'g Granted>,
    ) -> Result<Self, StartError> {
        let Self::Root(instance) = &self else { return Ok(self) };
        let is_refused = |granted: &Granted| {
            let held = granted.hold();
            held.and_then(|held| idmapped::try_one(&held, instance.first)) == Err(Errno::EPERM)
        };
        let uid = geteuid().as_raw();
        let gid = getegid().as_raw();
        let [root_uid, root_gid] = host_root();
        let uids = IdMap::of_this_process().map_err(StartError::NoProc)?;
        let gids = IdMap::groups_of_this_process().map_err(StartError::NoProc)?;
        let is_host_root =
            uids.on_the_host(uid, root_uid) == 0 || gids.on_the_host(gid, root_gid) == 0;
        if is_host_root || !granted.any(is_refused) {
            return Ok(self);
        }
        tracing::info!("this container's root may make no id-mapped mount: cells have its own id");
        Ok(Self::Ordinary { uid, gid, own: None })
    }

    /// This one, with ids for the cells of an ordinary user where they can be had.
    pub(crate) fn with_own_ids(self, wanted: OwnIds, cells: u16) -> Self {
        let Self::Ordinary { uid, gid, own: None } = self else { return self };
        if wanted == OwnIds::Unwanted || uid == 0 {
            return self;
        }
        let own = Block::take(uid, cells);
        if let Err(why) = &own {
            tracing::info!(%why, "cells have the id of the user");
        }
        Self::Ordinary { uid, gid, own: own.ok() }
    }

    /// The maps of the supervisor's user namespace: `uid_map`, `gid_map`.
    pub(crate) fn maps(&self) -> [String; 2] {
        match self {
            Self::Ordinary { uid, gid, .. } => [format!("0 {uid} 1"), format!("0 {gid} 1")],
            Self::Root(instance) => {
                let map = format!("0 {} {}", instance.first, instance.count);
                [map.clone(), map]
            }
        }
    }

    /// Returns whether supplementary groups are dropped.
    pub(crate) fn supplementary(&self) -> Supplementary {
        match self {
            Self::Ordinary { .. } => Supplementary::Kept,
            Self::Root(_) => Supplementary::Dropped,
        }
    }

    /// Host ids of the first `slots` cells, for mounts that show files as theirs.
    pub(crate) fn slot_ids(&self, slots: u16) -> SlotIds {
        match self {
            Self::Ordinary { .. } => SlotIds::Shared,
            Self::Root(instance) => SlotIds::Own { first: instance.first, slots },
        }
    }

    /// Whose ids cells have.
    pub(crate) fn cells(&self) -> CellIds {
        match self {
            Self::Ordinary { .. } => CellIds::Operator,
            Self::Root(_) => CellIds::BySlot,
        }
    }

    /// Returns the host ids of an ordinary user's cells, if they get any.
    pub(crate) fn own_ids(&self) -> Result<Option<[HostIds; 2]>, StartError> {
        let Self::Ordinary { own: Some(block), .. } = self else { return Ok(None) };
        let uids = IdMap::of_this_process().map_err(StartError::NoProc)?;
        let gids = IdMap::groups_of_this_process().map_err(StartError::NoProc)?;
        let [root_uid, root_gid] = host_root();
        let of = |map: IdMap, root| move |id| map.on_the_host(id, root);
        Ok(Some(block.host_ids([of(uids, root_uid), of(gids, root_gid)])))
    }

    /// Returns the facts that the receipt is compared with. In the tier without namespaces the supervisor sees ids as this
    /// process does; in the other by its map.
    pub(crate) fn operator(&self, tier: Tier) -> Result<Operator, StartError> {
        let namespaces = NAMESPACES
            .iter()
            .map(|name| {
                let link = fs::read_link(format!("/proc/self/ns/{name}"));
                link.map(|link| link.to_string_lossy().into_owned())
            })
            .collect::<std::io::Result<_>>()
            .map_err(StartError::NoProc)?;
        let [root_uid, root_gid] = host_root();
        let uid_map = IdMap::of_this_process().map_err(StartError::NoProc)?;
        let gid_map = IdMap::groups_of_this_process().map_err(StartError::NoProc)?;
        let (uid, gid, count, groups) = match self {
            Self::Ordinary { uid, gid, .. } => (*uid, *gid, 1, getgroups().unwrap_or_default()),
            Self::Root(instance) => (instance.first, instance.first, instance.count, Vec::new()),
        };
        let host_uid = uid_map.on_the_host(uid, root_uid);
        let host_gid = |gid| gid_map.on_the_host(gid, root_gid);
        let others = groups.iter().map(|group| group.as_raw()).filter(|id| *id != gid);
        let others: Vec<u32> = others.collect();
        let (uids, mut gids) = match tier {
            Tier::Full => ((0, host_uid, count), vec![(0, host_gid(gid), count)]),
            Tier::Bare => ((uid, host_uid, 1), vec![(gid, host_gid(gid), 1)]),
        };
        if tier == Tier::Bare {
            gids.extend(others.iter().map(|group| (*group, host_gid(*group), 1)));
        }
        let supplementary_groups = others.into_iter().map(host_gid).collect();
        let uids = HostIds(vec![uids]);
        let gids = HostIds(gids);
        Ok(Operator { namespaces, time: Operator::time(), uids, gids, supplementary_groups })
    }
}

/// Returns the ids that the host's root has here, uid and gid: of what only it can own, sysctls. If it has
/// none, the owner shows as the overflow id.
fn host_root() -> [HostRoot; 2] {
    let of = fs::metadata("/proc/sys/kernel").ok();
    let [uid, gid] = [of.as_ref().map(MetadataExt::uid), of.as_ref().map(MetadataExt::gid)];
    [HostRoot::owner(uid, is_host_root), HostRoot::owner(gid, is_host_root)]
}

/// Asks the kernel if this process is the host's root, whatever that is called here: only that user may write to most
/// sysctls, and no capability is looked at (`test_perm` of fs/proc/proc_sysctl.c). A container has them mounted
/// read-only, which the kernel says only to those who might write otherwise.
fn is_host_root() -> bool {
    match access("/proc/sys/kernel/panic", AccessFlags::W_OK) {
        Err(Errno::EACCES) => false,
        // Any other answer is none: then the id counts as root's.
        Ok(()) | Err(_) => true,
    }
}

/// Returns the first host id of the map that a supervisor started here would have: root's own are not used.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn first_id(range: IdRange) -> std::io::Result<u32> {
    let uid = geteuid().as_raw();
    let usable = IdMap::of_this_process()?.usable(range, MOST_INSTANCES);
    Ok(usable.filter(|_| uid == 0).map_or(uid, |range| range.first))
}

impl Instance {
    /// Takes the first block that no other instance holds.
    fn take(range: IdRange, map: &IdMap) -> Result<Self, StartError> {
        let locks = Path::new(LOCKS);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(locks);
        made.map_err(|error| StartError::Lock { error })?;
        for number in 0..MOST_INSTANCES {
            let Some(first) =
                number.checked_mul(range.count).and_then(|offset| range.first.checked_add(offset))
            else {
                break;
            };
            if !map.covers(first, range.count) {
                break;
            }
            if let Some(lock) = lock(number).map_err(|error| StartError::Lock { error })? {
                let _lock = ManuallyDrop::new(lock);
                return Ok(Self { number, first, count: range.count, _lock });
            }
        }
        Err(StartError::NoInstance { most: MOST_INSTANCES })
    }
}

/// The lock of an instance; `None` where that one runs.
fn lock(number: u32) -> std::io::Result<Option<Flock<File>>> {
    let path = Path::new(LOCKS).join(format!("instance-{number}.lock"));
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// Finds control groups for the cells; what cannot be had is [`Parent::None`].
pub(crate) fn cgroups(identity: &Identity) -> Parent {
    let found = match identity {
        Identity::Root(instance) => v2_as_root(instance).or_else(|| v1_as_root(instance)),
        Identity::Ordinary { .. } => {
            container_group::of_user(Path::new("/sys/fs/cgroup")).or_else(v2_delegated)
        }
    };
    found.unwrap_or(Parent::None)
}

/// Version 2 below our own group, where that is delegated to us: in a scope of
/// `systemd-run --user --scope -p Delegate=yes`, or a container that gives its group away.
fn v2_delegated() -> Option<Parent> {
    let own = own_cgroup("")?;
    let directory = Path::new("/sys/fs/cgroup").join(own.trim_start_matches('/'));
    // A group with processes in it gives no controller to its children (cgroups(7), "no internal
    // processes"): we go into a leaf of our own first, and back if it is not enough.
    let leaf = directory.join(format!("cofferdam-{}", std::process::id()));
    // Absent where version 2 is not what is mounted there.
    if !directory.join("cgroup.subtree_control").exists() {
        return None;
    }
    // Nor does it while others live in it: then nothing is moved at all.
    let members = fs::read_to_string(directory.join("cgroup.procs")).ok()?;
    if members.lines().any(|pid| pid != std::process::id().to_string()) {
        return None;
    }
    fs::create_dir(&leaf).ok()?;
    let moved = put(leaf.join("cgroup.procs"), "0");
    let enabled = moved.and_then(|()| enable(&directory));
    let Ok(processors) = enabled else {
        // Not ours to arrange: others live in this group. Leave it as it was.
        put(directory.join("cgroup.procs"), "0").ok()?;
        fs::remove_dir(&leaf).ok()?;
        return None;
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = open(&directory, flags, Mode::empty()).ok()?;
    Some(Parent::V2 { directory, processors })
}

/// A directory of our own below `parent`, emptied of what a killed instance left, and given to
/// the supervisor's host id.
fn delegate(parent: &Path, instance: &Instance, files: &[&str]) -> Option<OwnedFd> {
    let directory = parent.join(format!("cofferdam-{}", instance.number));
    clear(&directory);
    clear_after_others(parent, instance.number);
    fs::DirBuilder::new().recursive(true).create(&directory).ok()?;
    // Its mode is our umask's, or that of whoever made it: the supervisor must enter.
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).ok()?;
    chown(&directory, Some(instance.first), Some(instance.first)).ok()?;
    for file in files {
        chown(directory.join(file), Some(instance.first), Some(instance.first)).ok()?;
    }
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    open(&directory, flags, Mode::empty()).ok()
}

/// Removes the groups below `directory` that a killed instance left.
fn clear(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for stale in entries.filter(is_directory) {
        // EBUSY: somebody is in it yet; it is used again under the same name.
        fs::remove_dir(stale.path()).unwrap_or_default();
    }
}

/// The same for every other instance that no longer runs: its number may not be taken again for long.
fn clear_after_others(parent: &Path, own: u32) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("cofferdam-")?.parse().ok());
        let Some(number) = number.filter(|number| *number != own && *number < MOST_INSTANCES)
        else {
            continue;
        };
        // Held while its groups go: who starts now takes another number.
        if let Ok(Some(_lock)) = lock(number) {
            clear(&entry.path());
            fs::remove_dir(entry.path()).unwrap_or_default();
        }
    }
}

/// Returns whether an entry is a directory, by what the listing itself says: most entries are control files.
fn is_directory(entry: &fs::DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_dir())
}

fn v1_as_root(instance: &Instance) -> Option<Parent> {
    let tree = |controller: &str| {
        let path = own_cgroup(controller)?;
        let directory = PathBuf::from(format!("/sys/fs/cgroup/{controller}{path}"));
        delegate(&directory, instance, &["cgroup.procs", "tasks"])
    };
    Some(Parent::V1 { memory: tree("memory")?, pids: tree("pids")? })
}

fn v2_as_root(instance: &Instance) -> Option<Parent> {
    let root = Path::new("/sys/fs/cgroup");
    container_group::divide(root).ok()?;
    // So that our groups weigh at all; a host that has it off may have its reason.
    put(root.join("cgroup.subtree_control"), "+cpu").unwrap_or_default();
    let held =
        delegate(root, instance, &["cgroup.procs", "cgroup.subtree_control", "cgroup.threads"])?;
    let directory = root.join(format!("cofferdam-{}", instance.number));
    let processors = enable(&directory).ok()?;
    // The supervisor must be below the delegated directory to move its cells about in it.
    let leaf = directory.join("supervisor");
    fs::DirBuilder::new().recursive(true).create(&leaf).ok()?;
    chown(leaf.join("cgroup.procs"), Some(instance.first), Some(instance.first)).ok()?;
    Some(Parent::V2 { directory: held, processors })
}

/// Moves the supervisor below the delegated directory of version 2.
pub(crate) fn place_supervisor(
    parent: &Parent,
    identity: &Identity,
    pid: i32,
) -> std::io::Result<()> {
    match (parent, identity) {
        (Parent::V2 { .. }, Identity::Root(instance)) => {
            let number = instance.number;
            let file = format!("/sys/fs/cgroup/cofferdam-{number}/supervisor/cgroup.procs");
            put(file, pid.to_string())
        }
        (Parent::V2 { .. } | Parent::V1 { .. } | Parent::None, _) => Ok(()),
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
