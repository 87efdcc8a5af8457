//! The id maps of a cell's user namespace, and the change of ids to `agent`.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid, write};

use super::ProcKind;
use super::slot::Slot;
use sys::Result;

/// uid and gid of `agent`, the user in every cell.
pub const AGENT: u32 = 1000;

/// Fate of supplementary groups: they can be dropped only if a privileged process wrote the maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Supplementary {
    /// `setgroups` is denied: the operator's groups remain, and the receipt lists them.
    Kept,
    Dropped,
}

/// Host ids of the cells of one design, as ids of the supervisor's user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellIds {
    /// The operator's id, 0 in the supervisor's map.
    Operator,
    /// One id per slot, which no other cell and no user has.
    BySlot,
    /// One id for all cells of the design, which no other cell and no user has: they share the
    /// files of a layer.
    One(u32),
}

impl CellIds {
    /// Returns the id of the cell in `slot`.
    ///
    /// # Errors
    /// ERANGE beyond the last id.
    pub fn of_slot(self, slot: Slot) -> Result<u32> {
        match self {
            Self::Operator => Ok(0),
            Self::BySlot => cell_id(slot).ok_or(Errno::ERANGE),
            Self::One(id) => Ok(id),
        }
    }

    /// Returns what happens to supplementary groups. The operator may own a granted directory
    /// through a group instead of the uid, so cells with the operator's uid keep the groups.
    pub fn supplementary(self) -> Supplementary {
        match self {
            Self::Operator => Supplementary::Kept,
            Self::BySlot | Self::One(_) => Supplementary::Dropped,
        }
    }
}

/// Returns the id of the cell in `slot` in the supervisor's map; 0 is the supervisor's id.
pub fn cell_id(slot: Slot) -> Option<u32> {
    u32::from(slot.number()).checked_add(1)
}

/// Host ids of the supervisor's user namespace: first id inside, first id on the host, count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostIds(pub Vec<(u32, u32, u32)>);

impl HostIds {
    /// Translates an id to the host's; `None` if the namespace does not map it.
    pub fn host_id(&self, id: u32) -> Option<u32> {
        self.0.iter().find_map(|(inside, host, length)| {
            let offset = id.checked_sub(*inside)?;
            (offset < *length).then(|| host.checked_add(offset))?
        })
    }

    /// Returns true if the namespace maps this id of the host.
    pub fn names(&self, wanted: u32) -> bool {
        let within = |(_, host, length): &(u32, u32, u32)| {
            wanted.checked_sub(*host).is_some_and(|offset| offset < *length)
        };
        self.0.iter().any(within)
    }
}

/// Writes one map file (`uid_map`, `gid_map`) of the process whose procfs directory is `process`.
///
/// The process must be dumpable at that moment, or the open fails with EACCES.
pub fn write_map(process: impl AsFd, file: &str, map: &str) -> Result<()> {
    let fd = openat(process, file, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    // A map is taken whole by one write, or not at all.
    let written = write(&fd, map.as_bytes())?;
    if written == map.len() { Ok(()) } else { Err(Errno::EIO) }
}

/// Changes uid and gid to those of `agent`, and drops supplementary groups if possible.
///
/// Groups first: changing the uid gives up the right to drop them.
pub(crate) fn become_agent(supplementary: Supplementary) -> Result<()> {
    become_id(AGENT, supplementary)
}

/// Sets the real, effective and saved uid and gid to `id`.
pub fn become_id(id: u32, supplementary: Supplementary) -> Result<()> {
    if supplementary == Supplementary::Dropped {
        setgroups(&[])?;
    }
    let uid = Uid::from_raw(id);
    let gid = Gid::from_raw(id);
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)
}

/// Sets the real uid, which the kernel uses for its counts, and keeps 0 as effective and saved uid,
/// so that this process can still open the operator's files.
pub fn become_real(real: u32) -> Result<()> {
    let uid = Uid::from_raw(real);
    let root = Uid::from_raw(0);
    let group = Gid::from_raw(0);
    setresgid(group, group, group)?;
    setresuid(uid, root, root)
}

/// Resources that the kernel counts per host user, with limits for a single cell: the cells of a
/// server must not use up that user's share, by default 128 inotify(7) instances.
const USER_LIMITS: [(&str, &[u8]); 3] = [
    ("sys/user/max_user_namespaces", b"0"),
    ("sys/user/max_inotify_instances", b"4"),
    ("sys/user/max_inotify_watches", b"8192"),
];

/// Limits resources of the caller's user namespace (user_namespaces(7)) through the procfs `proc`:
/// no nested user namespace, and few inotify instances.
///
/// In a container whose /proc is read-only this fails silently. The filter refuses the calls in any
/// case, and the payload's probe checks it.
pub(crate) fn forbid_nested(proc: impl AsFd, kind: ProcKind) -> Result<()> {
    for (path, limit) in USER_LIMITS {
        let opened = openat(&proc, path, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty());
        match (opened, kind) {
            (Ok(fd), ProcKind::Own | ProcKind::Outer) => write(&fd, limit).map(drop)?,
            (Err(Errno::EROFS), ProcKind::Outer) => {}
            // A kernel without inotify.
            (Err(Errno::ENOENT), _) if limit != b"0" => {}
            (Err(errno), ProcKind::Own | ProcKind::Outer) => return Err(errno),
        }
    }
    Ok(())
}
