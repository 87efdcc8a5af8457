//! Mounts that show files of the host as those of a cell (mount_setattr(2), "ID-mapped mounts").

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, fstat};

use cell::ids::{cell_id, write_map};
use cell::slot::Slot;
use sys::mount::{Reach, clone_held, set_idmap};
use sys::process::{self, Side};

/// Host ids of cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotIds {
    /// All cells have the operator's.
    Shared,
    /// One per slot, after `first`.
    Own { first: u32, slots: u16 },
}

impl SlotIds {
    /// Makes one mount per slot, in order; an empty list if all cells share an id.
    ///
    /// # Errors
    /// ERANGE: a slot has no id. Otherwise the errno of `make`.
    pub(crate) fn mounts(
        self,
        mut make: impl FnMut(u32) -> Result<OwnedFd, Errno>,
    ) -> Result<Vec<OwnedFd>, Errno> {
        let Self::Own { first, slots } = self else { return Ok(Vec::new()) };
        let host_id =
            |slot| cell_id(slot).and_then(|id| first.checked_add(id)).ok_or(Errno::ERANGE);
        Slot::first(slots).map(|slot| make(host_id(slot)?)).collect()
    }
}

/// User namespaces that map the owner of files on disk to host ids. Each is made once for all mounts of an owner: a
/// workspace with tool chains takes some hundreds, and a namespace takes a process.
#[derive(Debug, Default)]
pub(crate) struct OwnerMaps {
    /// The owner that the namespaces map; those of the owner before are closed.
    owner: (u32, u32),
    by_host_id: BTreeMap<u32, OwnedFd>,
}

impl OwnerMaps {
    /// Makes a detached mount show the files of `owner` as those of `host_id`, and sets `attributes` on it.
    pub(crate) fn show_as(
        &mut self,
        tree: &OwnedFd,
        owner: (u32, u32),
        host_id: u32,
        attributes: u64,
    ) -> Result<(), Errno> {
        if self.owner != owner {
            self.by_host_id.clear();
            self.owner = owner;
        }
        let map = match self.by_host_id.entry(host_id) {
            Entry::Occupied(namespace) => namespace.into_mut(),
            Entry::Vacant(entry) => entry.insert(mapping(owner.0, owner.1, host_id)?),
        };
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

/// Makes a user namespace that maps the owner on disk to a host id. Only its descriptor is needed.
fn mapping(uid: u32, gid: u32, host_id: u32) -> Result<OwnedFd, Errno> {
    match process::clone3(libc::CLONE_NEWUSER, None)? {
        Side::Child => loop {
            // Killed by the parent as soon as the namespace is open.
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
