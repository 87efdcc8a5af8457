//! Resources that only `main` can prepare on the host before the supervisor exists: ids, control
//! groups, id maps.

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

/// Directory of the instance locks; only root may write there.
const LOCKS: &str = "/run/cofferdam";
/// Maximum number of instances that root can run at once.
const MAX_INSTANCES: u32 = 64;

/// The user that starts the supervisor, and the ids it may use.
#[derive(Debug)]
pub(crate) enum Identity {
    /// An ordinary user with one id, and perhaps a block of subordinate ids.
    Ordinary { uid: u32, gid: u32, block: Option<Block> },
    /// Root with a block of ids that no other instance has, reserved by a lock.
    Root(Instance),
}

/// One of root's instances on this host.
#[derive(Debug)]
pub(crate) struct Instance {
    pub number: u32,
    /// First host id of the block, for the supervisor; cells get the following ones.
    pub first: u32,
    pub count: u32,
    /// Held as long as the process lives and released by the kernel: the confined front end could
    /// not unlock it.
    _lock: ManuallyDrop<Flock<File>>,
}

impl Identity {
    /// Returns the host id of a gateway that root starts: the last of the block, which no cell has.
    pub(crate) fn gateway_id(&self) -> Option<u32> {
        match self {
            Self::Root(instance) => instance.first.checked_add(instance.count.checked_sub(1)?),
            Self::Ordinary { .. } => None,
        }
    }

    /// Determines the user that starts the supervisor, and reserves a block of ids for root.
    pub(crate) fn find(range: IdRange) -> Result<Self, StartError> {
        let uid = geteuid().as_raw();
        let gid = getegid().as_raw();
        let map = IdMap::of_this_process().map_err(StartError::NoProc)?;
        if uid == 0
            && let Some(range) = map.usable(range, MAX_INSTANCES)
        {
            return Instance::take(range, &map).map(Self::Root);
        }
        // Root of a user namespace with one id has no more ids than an ordinary user.
        Ok(Self::Ordinary { uid, gid, block: None })
    }

    /// Returns this identity, or that of an ordinary user if the root of a user namespace may not
    /// show `granted` to cells under separate ids. The container's root is then treated as the user
    /// who started the container.
    ///
    /// The host's root always stays root: cells never have its id.
    pub(crate) fn for_grants<'g>(
        self,
        mut granted: impl Iterator<Item = &'g Granted>,
    ) -> Result<Self, StartError> {
        let Self::Root(instance) = &self else { return Ok(self) };
        let is_refused = |granted: &Granted| {
            let opened = granted.hold();
            opened.and_then(|file| idmapped::try_one(&file, instance.first)) == Err(Errno::EPERM)
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
        tracing::info!("this container's root may make no id-mapped mount: cells have its id");
        Ok(Self::Ordinary { uid, gid, block: None })
    }

    /// Reserves a block of subordinate ids for the cells of an ordinary user, if possible.
    pub(crate) fn with_subordinate_ids(self, wanted: OwnIds, cells: u16) -> Self {
        let Self::Ordinary { uid, gid, block: None } = self else { return self };
        if wanted == OwnIds::Unwanted || uid == 0 {
            return self;
        }
        let block = Block::take(uid, cells);
        if let Err(reason) = &block {
            tracing::info!(%reason, "cells have the id of the user");
        }
        Self::Ordinary { uid, gid, block: block.ok() }
    }

    /// Returns the maps of the supervisor's user namespace: `uid_map`, `gid_map`.
    pub(crate) fn maps(&self) -> [String; 2] {
        match self {
            Self::Ordinary { uid, gid, .. } => [format!("0 {uid} 1"), format!("0 {gid} 1")],
            Self::Root(instance) => {
                let map = format!("0 {} {}", instance.first, instance.count);
                [map.clone(), map]
            }
        }
    }

    /// Returns what happens to supplementary groups.
    pub(crate) fn supplementary(&self) -> Supplementary {
        match self {
            Self::Ordinary { .. } => Supplementary::Kept,
            Self::Root(_) => Supplementary::Dropped,
        }
    }

    /// Returns the host ids of the first `slots` cells, for mounts that show files as theirs.
    pub(crate) fn slot_ids(&self, slots: u16) -> SlotIds {
        match self {
            Self::Ordinary { .. } => SlotIds::Shared,
            Self::Root(instance) => SlotIds::Own { first: instance.first, slots },
        }
    }

    /// Returns the id of cells that share a layer, in the supervisor's map: the last but one of the
    /// block, which no slot has. `None` if all cells have the operator's id in any case.
    ///
    /// # Errors
    /// ERANGE: the block is too small for an id besides those of `cells` slots.
    pub(crate) fn layer_id(&self, cells: u16) -> Result<Option<u32>, Errno> {
        let Self::Root(instance) = self else { return Ok(None) };
        let last = instance.count.checked_sub(2).filter(|id| *id > u32::from(cells));
        last.map(Some).ok_or(Errno::ERANGE)
    }

    /// Returns the host ids for the mounts of cells that share a layer and have this id.
    pub(crate) fn layer_ids(&self, id: Option<u32>) -> SlotIds {
        match (self, id) {
            (Self::Root(instance), Some(id)) => {
                let host_id = instance.first.saturating_add(id);
                SlotIds::One { host_id, supervisor: instance.first }
            }
            (Self::Root(_) | Self::Ordinary { .. }, _) => SlotIds::Shared,
        }
    }

    /// Returns which ids cells have.
    pub(crate) fn cells(&self) -> CellIds {
        match self {
            Self::Ordinary { .. } => CellIds::Operator,
            Self::Root(_) => CellIds::BySlot,
        }
    }

    /// Returns the host ids of an ordinary user's cells, if a block was reserved.
    pub(crate) fn cell_ids(&self) -> Result<Option<[HostIds; 2]>, StartError> {
        let Self::Ordinary { block: Some(block), .. } = self else { return Ok(None) };
        let uids = IdMap::of_this_process().map_err(StartError::NoProc)?;
        let gids = IdMap::groups_of_this_process().map_err(StartError::NoProc)?;
        let [root_uid, root_gid] = host_root();
        let translate = |map: IdMap, root| move |id| map.on_the_host(id, root);
        Ok(Some(block.host_ids([translate(uids, root_uid), translate(gids, root_gid)])))
    }

    /// Returns the facts that receipts are compared with. Without namespaces the supervisor sees
    /// ids as this process does, otherwise through its maps.
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

/// Returns uid and gid of the host's root in this namespace, as the owner of sysctls, which only it
/// can own. If the namespace does not map it, the owner is shown as the overflow id.
fn host_root() -> [HostRoot; 2] {
    let metadata = fs::metadata("/proc/sys/kernel").ok();
    let [uid, gid] =
        [metadata.as_ref().map(MetadataExt::uid), metadata.as_ref().map(MetadataExt::gid)];
    [HostRoot::owner(uid, is_host_root), HostRoot::owner(gid, is_host_root)]
}

/// Asks the kernel whether this process is the host's root, whatever its id is here. Only that user
/// may write to most sysctls, and the check ignores capabilities (`test_perm` of
/// fs/proc/proc_sysctl.c). In a container sysctls are mounted read-only, which the kernel only
/// reports to users with write permission.
fn is_host_root() -> bool {
    match access("/proc/sys/kernel/panic", AccessFlags::W_OK) {
        Err(Errno::EACCES) => false,
        // Any other result is inconclusive: treat the id as root's to be safe.
        Ok(()) | Err(_) => true,
    }
}

/// Returns the first host id in the map of a supervisor started here; root's own ids are not used.
///
/// # Errors
/// `/proc` cannot be read.
pub fn first_id(range: IdRange) -> std::io::Result<u32> {
    let uid = geteuid().as_raw();
    let usable = IdMap::of_this_process()?.usable(range, MAX_INSTANCES);
    Ok(usable.filter(|_| uid == 0).map_or(uid, |range| range.first))
}

impl Instance {
    /// Reserves the first block that no other instance holds.
    fn take(range: IdRange, map: &IdMap) -> Result<Self, StartError> {
        let locks = Path::new(LOCKS);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(locks);
        made.map_err(|error| StartError::Lock { error })?;
        for number in 0..MAX_INSTANCES {
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
        Err(StartError::NoInstance { limit: MAX_INSTANCES })
    }
}

/// Locks an instance; `None` if it is running.
fn lock(number: u32) -> std::io::Result<Option<Flock<File>>> {
    let path = Path::new(LOCKS).join(format!("instance-{number}.lock"));
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// Finds control groups for the cells; [`Parent::None`] if the machine has no usable ones.
pub(crate) fn cgroups(identity: &Identity) -> Parent {
    let parent = match identity {
        Identity::Root(instance) => v2_as_root(instance).or_else(|| v1_as_root(instance)),
        Identity::Ordinary { .. } => {
            container_group::for_user(Path::new("/sys/fs/cgroup")).or_else(v2_delegated)
        }
    };
    parent.unwrap_or(Parent::None)
}

/// Uses version 2 below this process's group if it is delegated: in a scope of `systemd-run --user
/// --scope -p Delegate=yes`, or in a container that delegates its group.
fn v2_delegated() -> Option<Parent> {
    let group = own_cgroup("")?;
    let directory = Path::new("/sys/fs/cgroup").join(group.trim_start_matches('/'));
    // A group with processes cannot enable controllers for its children (cgroups(7), "no internal
    // processes"): this process moves into a leaf first, and back if that is not enough.
    let leaf = directory.join(format!("cofferdam-{}", std::process::id()));
    // Absent unless version 2 is mounted here.
    if !directory.join("cgroup.subtree_control").exists() {
        return None;
    }
    // Other processes in the group prevent it too: then nothing is moved.
    let members = fs::read_to_string(directory.join("cgroup.procs")).ok()?;
    if members.lines().any(|pid| pid != std::process::id().to_string()) {
        return None;
    }
    fs::create_dir(&leaf).ok()?;
    let moved = put(leaf.join("cgroup.procs"), "0");
    let enabled = moved.and_then(|()| enable(&directory));
    let Ok(processors) = enabled else {
        // The group cannot be divided, because other processes are in it. Restore it.
        put(directory.join("cgroup.procs"), "0").ok()?;
        fs::remove_dir(&leaf).ok()?;
        return None;
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = open(&directory, flags, Mode::empty()).ok()?;
    Some(Parent::V2 { directory, processors })
}

/// Makes this instance's directory below `parent`, removes the leftovers of a killed instance, and
/// gives it to the supervisor's host id.
fn delegate(parent: &Path, instance: &Instance, files: &[&str]) -> Option<OwnedFd> {
    let directory = parent.join(format!("cofferdam-{}", instance.number));
    clear(&directory);
    clear_after_others(parent, instance.number);
    fs::DirBuilder::new().recursive(true).create(&directory).ok()?;
    // The mode depends on the umask of this process or of the directory's creator; the supervisor
    // must be able to enter it.
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
        // EBUSY: a process is still in it; the group is reused under the same name.
        fs::remove_dir(stale.path()).unwrap_or_default();
    }
}

/// Clears the groups of other instances that no longer run: their numbers may not be reused for a
/// long time.
fn clear_after_others(parent: &Path, own_number: u32) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("cofferdam-")?.parse().ok());
        let Some(number) = number.filter(|number| *number != own_number && *number < MAX_INSTANCES)
        else {
            continue;
        };
        // Locked while its groups are removed: an instance that starts now takes another number.
        if let Ok(Some(_lock)) = lock(number) {
            clear(&entry.path());
            // EBUSY: a process is still in it; the next start tries again.
            fs::remove_dir(entry.path()).unwrap_or_default();
        }
    }
}

/// Returns true if an entry is a directory, judged by the listing itself: most entries are control
/// files.
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
    // Makes the weights of groups effective. A failure is ignored: the host may have disabled the
    // controller on purpose.
    put(root.join("cgroup.subtree_control"), "+cpu").unwrap_or_default();
    let directory_fd =
        delegate(root, instance, &["cgroup.procs", "cgroup.subtree_control", "cgroup.threads"])?;
    let directory = root.join(format!("cofferdam-{}", instance.number));
    let processors = enable(&directory).ok()?;
    // The supervisor must be below the delegated directory to move cells within it.
    let leaf = directory.join("supervisor");
    fs::DirBuilder::new().recursive(true).create(&leaf).ok()?;
    chown(leaf.join("cgroup.procs"), Some(instance.first), Some(instance.first)).ok()?;
    Some(Parent::V2 { directory: directory_fd, processors })
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
