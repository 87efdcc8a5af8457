//! Preparations that only `main` can make on the host before the supervisor exists: ids, cgroups,
//! idmaps.

use std::fs::{self, File};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, open};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::{getegid, geteuid, getgroups};

use crate::Access;
use crate::Granted;
use crate::GrantedDirectory;
use crate::IdRange;
use crate::Kind;
use crate::WorkspaceGrant;
use crate::Workspaces;
use cell::cgroup::{Parent, Processors};
use cell::ids::{CellIds, HostIds, Supplementary, cell_id, write_map};
use cell::measure::{NAMESPACES, Operator};
use cell::{c_path, errno_of};
use model::receipt::Tier;
use sys::mount::{Reach, attribute, clone_tree, set_attributes, set_idmap};
use sys::process::{self, Side};

use super::idmap::IdMap;
use super::start::StartError;
use super::subordinate::{Block, OwnIds};
use crate::rootfs::protect::{self, Found};

/// Directory of the locks of root's instances; only root may write there.
const LOCKS: &str = "/run/cofferdam";
/// Instances that can run at once as root.
const MOST_INSTANCES: u32 = 64;

/// User who starts the supervisor, and the ids that it may use.
#[derive(Debug)]
pub enum Identity {
    /// An ordinary user: the one id it has, and those that others may give it.
    Ordinary { uid: u32, gid: u32, own: Option<Block> },
    /// Root: a block of ids nobody else has, held by a lock.
    Root(Instance),
}

/// One of root's instances on this host.
#[derive(Debug)]
pub struct Instance {
    pub number: u32,
    /// First host id of its block; the supervisor has it, cells those after it.
    pub first: u32,
    pub count: u32,
    /// Held for as long as the process lives: the kernel lets it go, as the confined front end
    /// could not.
    _lock: ManuallyDrop<Flock<File>>,
}

impl Identity {
    /// Finds out who we are, and as root takes a block of ids.
    pub fn find(range: IdRange) -> Result<Self, StartError> {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let map = IdMap::of_this_process().map_err(StartError::NoProc)?;
        if uid == 0
            && let Some(range) = map.usable(range, MOST_INSTANCES)
        {
            return Instance::take(range, &map).map(Self::Root);
        }
        // Root of a user namespace with one id has no more than any ordinary user.
        Ok(Self::Ordinary { uid, gid, own: None })
    }

    /// This one, with ids for the cells of an ordinary user where they can be had.
    pub fn with_own_ids(self, wanted: OwnIds, cells: u16) -> Self {
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
    pub fn maps(&self) -> [String; 2] {
        match self {
            Self::Ordinary { uid, gid, .. } => [format!("0 {uid} 1"), format!("0 {gid} 1")],
            Self::Root(instance) => {
                let map = format!("0 {} {}", instance.first, instance.count);
                [map.clone(), map]
            }
        }
    }

    /// Returns the treatment of supplementary groups.
    pub fn supplementary(&self) -> Supplementary {
        match self {
            Self::Ordinary { .. } => Supplementary::Kept,
            Self::Root(_) => Supplementary::Dropped,
        }
    }

    /// Whose ids cells have.
    pub fn cells(&self) -> CellIds {
        match self {
            Self::Ordinary { .. } => CellIds::Operator,
            Self::Root(_) => CellIds::BySlot,
        }
    }

    /// Returns the host ids of an ordinary user's cells, if they get their own.
    pub fn own_ids(&self) -> Result<Option<[HostIds; 2]>, StartError> {
        let Self::Ordinary { own: Some(block), .. } = self else { return Ok(None) };
        let uids = IdMap::of_this_process().map_err(StartError::NoProc)?;
        let gids = IdMap::groups_of_this_process().map_err(StartError::NoProc)?;
        let [root_uid, root_gid] = host_root();
        let of = |map: IdMap, root| move |id| map.on_the_host(id, root);
        Ok(Some(block.host_ids([of(uids, root_uid), of(gids, root_gid)])))
    }

    /// What the receipt compares with. In the tier without namespaces the supervisor sees ids as this
    /// process does; in the other by its map.
    pub fn operator(&self, tier: Tier) -> Result<Operator, StartError> {
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
        let (uids, gids) = (HostIds(vec![uids]), HostIds(gids));
        Ok(Operator { namespaces, time: Operator::time(), uids, gids, supplementary_groups })
    }
}

/// The ids that the host's root has here, uid and gid: of what only it can own, sysctls. Where it has
/// none, the owner shows as the overflow id.
fn host_root() -> [Option<u32>; 2] {
    let of = fs::metadata("/proc/sys/kernel").ok();
    [of.as_ref().map(MetadataExt::uid), of.as_ref().map(MetadataExt::gid)]
}

impl Instance {
    /// The host id of the cell in `slot`.
    pub fn cell(&self, slot: u16) -> Result<u32, Errno> {
        cell_id(slot).and_then(|id| self.first.checked_add(id)).ok_or(Errno::ERANGE)
    }

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
pub fn cgroups(identity: &Identity) -> Parent {
    let found = match identity {
        Identity::Root(instance) => v2_as_root(instance).or_else(|| v1_as_root(instance)),
        Identity::Ordinary { .. } => v2_delegated(),
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

/// Has the groups below `directory` hold memory and processes, and share out the processors where that
/// is ours to say: not every delegation has that controller.
pub(super) fn enable(directory: &Path) -> std::io::Result<Processors> {
    let control = directory.join("cgroup.subtree_control");
    put(&control, "+memory +pids")?;
    Ok(put(&control, "+cpu").map_or(Processors::NotOurs, |()| Processors::Shared))
}

/// Writes to a control file, which must be there: made anew it would be a file that controls nothing.
pub(super) fn put(file: impl AsRef<Path>, text: impl AsRef<[u8]>) -> std::io::Result<()> {
    use std::io::Write;
    File::options().write(true).open(file)?.write_all(text.as_ref())
}

/// The cgroup of this process for one entry of `/proc/self/cgroup` (cgroups(7)).
pub(super) fn own_cgroup(controller: &str) -> Option<String> {
    let table = fs::read_to_string("/proc/self/cgroup").ok()?;
    table.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, names, path) = (parts.next()?, parts.next()?, parts.next()?);
        names.split(',').any(|name| name == controller).then(|| path.to_owned())
    })
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

/// Returns true for a directory, by the listing itself: most entries are control files.
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
    put(root.join("cgroup.subtree_control"), "+memory +pids").ok()?;
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
pub fn place_supervisor(parent: &Parent, identity: &Identity, pid: i32) -> std::io::Result<()> {
    match (parent, identity) {
        (Parent::V2 { .. }, Identity::Root(instance)) => {
            let number = instance.number;
            let file = format!("/sys/fs/cgroup/cofferdam-{number}/supervisor/cgroup.procs");
            put(file, pid.to_string())
        }
        (Parent::V2 { .. } | Parent::V1 { .. } | Parent::None, _) => Ok(()),
    }
}

/// Prepares granted directories: as root each gets one idmapped mount for every slot, so that the
/// cell's own host id owns what the directory's owner owns (mount_setattr(2), "ID-mapped mounts").
pub fn grants(
    workspaces: &[Workspaces],
    looked: &[Looked],
    identity: &Identity,
    slots: u16,
) -> Result<Vec<WorkspaceGrant>, StartError> {
    let both = workspaces.iter().zip(looked);
    both.map(|(workspace, looked)| {
        let directories = workspace.directories.iter().zip(looked);
        let directories =
            directories.map(|(granted, found)| grant(granted, found, identity, slots));
        Ok(WorkspaceGrant { directories: directories.collect::<Result<_, _>>()? })
    })
    .collect()
}

/// Guarded places in each directory of a granted set.
pub type Looked = Vec<Rc<Found>>;

/// Looks at what the host obeys in every granted directory, once for all profiles and cells. Cells of
/// the lower tier write to none.
pub fn look(workspaces: &[Workspaces], tier: Tier) -> Vec<Looked> {
    let each = |workspace: &Workspaces| match tier {
        Tier::Full => protect::scan(workspace).into_iter().map(Rc::new).collect(),
        Tier::Bare => vec![Rc::default(); workspace.directories.len()],
    };
    workspaces.iter().map(each).collect()
}

fn grant(
    granted: &Granted,
    found: &Rc<Found>,
    identity: &Identity,
    slots: u16,
) -> Result<GrantedDirectory, StartError> {
    let failed = |errno| StartError::Grant { path: granted.host.clone(), errno };
    let metadata = fs::metadata(&granted.host).map_err(|error| failed(errno_of(&error)))?;
    let by_slot = match identity {
        Identity::Ordinary { .. } => Vec::new(),
        Identity::Root(instance) => (0..slots)
            .map(|slot| idmapped(granted, &metadata, instance.cell(slot)?))
            .collect::<Result<_, Errno>>()
            .map_err(failed)?,
    };
    Ok(GrantedDirectory {
        host: granted.host.clone(),
        cell: granted.cell.clone(),
        access: granted.access,
        kind: if metadata.is_dir() { Kind::Directory } else { Kind::File },
        found: Rc::clone(found),
        by_slot,
    })
}

fn idmapped(granted: &Granted, owner: &fs::Metadata, host_id: u32) -> Result<OwnedFd, Errno> {
    let tree = clone_tree(&c_path(&granted.host)?)?;
    show_as(&tree, (owner.uid(), owner.gid()), host_id)?;
    let flags = attribute::NOSUID
        | attribute::NODEV
        | if granted.access == Access::ReadOnly { attribute::RDONLY } else { 0 };
    set_attributes(&tree, flags, Reach::Recursive)?;
    Ok(tree)
}

/// Has a detached mount show what belongs to `owner` as `host_id`'s.
pub fn show_as(tree: &OwnedFd, owner: (u32, u32), host_id: u32) -> Result<(), Errno> {
    set_idmap(tree, mapping(owner.0, owner.1, host_id)?, Reach::Recursive)
}

/// A user namespace that maps an owner on disk to a host id: it exists only to be named.
fn mapping(uid: u32, gid: u32, host_id: u32) -> Result<OwnedFd, Errno> {
    match process::clone3(libc::CLONE_NEWUSER, None)? {
        Side::Child => loop {
            // Killed by the parent as soon as the namespace is held.
            nix::unistd::pause();
        },
        Side::Parent(child) => {
            let held = hold_mapped(child.pid, uid, gid, host_id);
            process::signal(&child.pidfd, Signal::SIGKILL)?;
            nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(child.pid), None)?;
            held
        }
    }
}

fn hold_mapped(pid: i32, uid: u32, gid: u32, host_id: u32) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let process = open(format!("/proc/{pid}").as_str(), flags, Mode::empty())?;
    write_map(process.as_fd(), "gid_map", &format!("{gid} {host_id} 1"))?;
    write_map(process.as_fd(), "uid_map", &format!("{uid} {host_id} 1"))?;
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    nix::fcntl::openat(process, "ns/user", flags, Mode::empty())
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
