//! Mounts that show files of the host as those of a cell (mount_setattr(2), "ID-mapped mounts").

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};

use cell::ids::{cell_id, write_map};
use cell::slot::Slot;
use sys::mount::{Reach, clone_held, set_idmap};
use sys::sharing::NamespaceHolder;

/// Host ids of cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotIds {
    /// All cells have the operator's.
    Shared,
    /// One per slot, after `first`.
    Own { first: u32, slots: u16 },
    /// One for all cells of a key. `supervisor` is the host id of the supervisor.
    One { host_id: u32, supervisor: u32 },
}

impl SlotIds {
    /// Returns the host ids of all slots, in order; an empty list if all cells share an id.
    ///
    /// # Errors
    /// ERANGE: a slot has no id.
    pub(crate) fn host_ids(self) -> Result<Vec<u32>, Errno> {
        let (first, slots) = match self {
            Self::Shared => return Ok(Vec::new()),
            Self::One { host_id, .. } => return Ok(vec![host_id]),
            Self::Own { first, slots } => (first, slots),
        };
        let host_id =
            |slot| cell_id(slot).and_then(|id| first.checked_add(id)).ok_or(Errno::ERANGE);
        Slot::first(slots).map(host_id).collect()
    }
}

/// User namespaces that map the owner of files on disk to host ids. Each is made once for all mounts of an owner: a
/// workspace with tool chains takes some hundreds, and a namespace takes a process.
#[derive(Debug, Default)]
pub(crate) struct OwnerMaps {
    /// The owner that the namespaces map; those of the owner before are closed.
    owner: (u32, u32),
    by_host_id: BTreeMap<u32, OwnedFd>,
    /// Processes that the namespaces were made with and that were killed. They end while mounts are made.
    ending: Vec<NamespaceHolder>,
}

impl OwnerMaps {
    /// Makes the missing namespaces for `owner` and these host ids.
    pub(crate) fn prepare(&mut self, owner: (u32, u32), host_ids: &[u32]) -> Result<(), Errno> {
        if self.owner != owner {
            self.by_host_id.clear();
            // Waits for their ends, so that mounts of many owners do not add up processes.
            self.ending.clear();
            self.owner = owner;
        }
        let is_missing = |host_id: &u32| !self.by_host_id.contains_key(host_id);
        let missing: Vec<u32> = host_ids.iter().copied().filter(is_missing).collect();
        let made = self.mappings(&missing)?;
        self.by_host_id.extend(missing.into_iter().zip(made));
        Ok(())
    }

    /// Makes a user namespace for each host id, which maps the owner on disk to it. Only the descriptors are needed.
    fn mappings(&mut self, host_ids: &[u32]) -> Result<Vec<OwnedFd>, Errno> {
        let owner = self.owner;
        let mut holders = Vec::with_capacity(host_ids.len());
        let mapping = |host_id: &u32| {
            let holder = NamespaceHolder::start()?;
            let held = hold_mapped(holder.pid(), owner, *host_id);
            holders.push(holder);
            held
        };
        let held: Result<Vec<OwnedFd>, Errno> = host_ids.iter().map(mapping).collect();
        // All of them first: waiting for one after the other would take longer than all the rest.
        let killed: Result<(), Errno> = holders.iter().try_for_each(NamespaceHolder::kill);
        self.ending.extend(holders);
        killed?;
        held
    }

    /// Makes a detached mount show the files of `owner` as those of `host_id`, and sets `attributes` on it.
    pub(crate) fn show_as(
        &mut self,
        tree: &OwnedFd,
        owner: (u32, u32),
        host_id: u32,
        attributes: u64,
    ) -> Result<(), Errno> {
        self.prepare(owner, &[host_id])?;
        let map = self.by_host_id.get(&host_id).ok_or(Errno::ENOENT)?;
        set_idmap(tree, map, attributes, Reach::Recursive)
    }
}

/// Tries to make such a mount of an open directory, and discards it.
///
/// # Errors
/// EPERM: the caller has no rights over this filesystem, usually in a container. EINVAL: the
/// filesystem does not support id-mapped mounts.
pub(crate) fn try_one(held: &OwnedFd, host_id: u32) -> Result<(), Errno> {
    let owner = fstat(held)?;
    let owner = (owner.st_uid, owner.st_gid);
    OwnerMaps::default().show_as(&clone_held(held)?, owner, host_id, 0)
}

/// Makes a detached mount show the files of `owner` as those of `host_id`, and lets the supervisor make
/// files in it, which keep its id.
pub(crate) fn show_with_supervisor(
    tree: &OwnedFd,
    owner: (u32, u32),
    host_id: u32,
    supervisor: u32,
) -> Result<(), Errno> {
    let holder = NamespaceHolder::start()?;
    let map = |id: u32| format!("{id} {host_id} 1\n{supervisor} {supervisor} 1");
    let held = hold_maps(holder.pid(), &map(owner.0), &map(owner.1));
    holder.kill()?;
    set_idmap(tree, held?, 0, Reach::Recursive)
}

/// Makes a detached mount of a directory that shows the files of one owner as those of another: user and
/// group of each.
///
/// # Errors
/// EPERM: the caller is not root. EINVAL: the filesystem does not support id-mapped mounts.
pub fn shown_as(held: &OwnedFd, owner: (u32, u32), shown: (u32, u32)) -> Result<OwnedFd, Errno> {
    let tree = clone_held(held)?;
    let holder = NamespaceHolder::start()?;
    let uids = format!("{} {} 1", owner.0, shown.0);
    let gids = format!("{} {} 1", owner.1, shown.1);
    let map = hold_maps(holder.pid(), &uids, &gids);
    holder.kill()?;
    set_idmap(&tree, map?, 0, Reach::Recursive)?;
    Ok(tree)
}

fn hold_mapped(pid: i32, (uid, gid): (u32, u32), host_id: u32) -> Result<OwnedFd, Errno> {
    hold_maps(pid, &format!("{uid} {host_id} 1"), &format!("{gid} {host_id} 1"))
}

/// Writes the maps of a process's user namespace, and opens it.
fn hold_maps(pid: i32, uid_map: &str, gid_map: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let process = open(format!("/proc/{pid}").as_str(), flags, Mode::empty())?;
    write_map(process.as_fd(), "gid_map", gid_map)?;
    write_map(process.as_fd(), "uid_map", uid_map)?;
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    nix::fcntl::openat(process, "ns/user", flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_the_owner_before_have_ended() -> Result<(), Errno> {
        // Only root can map two host ids.
        if !nix::unistd::geteuid().is_root() {
            return Ok(());
        }
        let mut maps = OwnerMaps::default();
        for owner in 1..=3 {
            maps.prepare((owner, owner), &[70_000, 70_001])?;
            assert_eq!((maps.by_host_id.len(), maps.ending.len()), (2, 2), "{owner}");
        }
        Ok(())
    }
}
