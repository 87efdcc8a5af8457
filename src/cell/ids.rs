//! Ids: the maps of a cell's user namespace, and becoming `agent` in it.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid, write};

use super::ProcKind;
use super::mounts::Slot;
use sys::Result;

/// uid and gid of `agent`, the user of every cell.
pub const AGENT: u32 = 1000;

/// Permission to drop supplementary groups: only if a privileged process wrote the maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Supplementary {
    /// `setgroups` is denied: those of the operator stay, and the receipt lists them.
    Kept,
    Dropped,
}

/// The ids that cells of one design have on the host, as the supervisor's map has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellIds {
    /// The operator's own, 0 in the map.
    Operator,
    /// One for each slot, which no other cell and no user has.
    BySlot,
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
        }
    }

    /// Returns whether supplementary groups go. A directory that was granted is the operator's as much by a
    /// group as by the uid: cells with that uid keep the groups.
    pub fn supplementary(self) -> Supplementary {
        match self {
            Self::Operator => Supplementary::Kept,
            Self::BySlot => Supplementary::Dropped,
        }
    }
}

/// Returns the id of the cell in `slot`, as the supervisor's map has it: 0 is the supervisor's own.
pub fn cell_id(slot: Slot) -> Option<u32> {
    u32::from(slot.number()).checked_add(1)
}

/// Host ids of the supervisor's user namespace: first id inside, first id on the host, count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostIds(pub Vec<(u32, u32, u32)>);

impl HostIds {
    /// Returns the host's id; `None` for one that the namespace has no name for.
    pub fn of(&self, id: u32) -> Option<u32> {
        self.0.iter().find_map(|(inside, host, length)| {
            let offset = id.checked_sub(*inside)?;
            (offset < *length).then(|| host.checked_add(offset))?
        })
    }

    /// Returns true where the namespace has a name for this id of the host.
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

/// Takes on uid and gid `agent` and drops supplementary groups where that is possible.
///
/// Groups first: after the uid is changed there would be no right to.
pub(crate) fn become_agent(supplementary: Supplementary) -> Result<()> {
    become_id(AGENT, supplementary)
}

/// Takes on `id` as uid and gid, real, effective and saved.
pub fn become_id(id: u32, supplementary: Supplementary) -> Result<()> {
    if supplementary == Supplementary::Dropped {
        setgroups(&[])?;
    }
    let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)
}

/// Takes on `real` as real uid, which the kernel counts by, and stays 0 in all else: what is the
/// operator's opens to this process as before.
pub fn become_real(real: u32) -> Result<()> {
    let (uid, root, group) = (Uid::from_raw(real), Uid::from_raw(0), Gid::from_raw(0));
    setresgid(group, group, group)?;
    setresuid(uid, root, root)
}

/// Counts that the kernel keeps per host user, and of which a cell can have its own: the cells of a server must
/// not use up that user's share, 128 instances of inotify(7) by default.
const COUNTED: [(&str, &[u8]); 3] = [
    ("sys/user/max_user_namespaces", b"0"),
    ("sys/user/max_inotify_instances", b"4"),
    ("sys/user/max_inotify_watches", b"8192"),
];

/// Sets limits of the caller's own user namespace (user_namespaces(7)) by the procfs `proc`: no user namespace in it, and
/// few instances of inotify.
///
/// In a container whose /proc is read-only this cannot be; the filter forbids the calls all the
/// same, and the payload's probe shows it.
pub(crate) fn forbid_nested(proc: impl AsFd, kind: ProcKind) -> Result<()> {
    for (path, most) in COUNTED {
        let opened = openat(&proc, path, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty());
        match (opened, kind) {
            (Ok(fd), ProcKind::Own | ProcKind::Outer) => write(&fd, most).map(drop)?,
            (Err(Errno::EROFS), ProcKind::Outer) => {}
            // A kernel without inotify.
            (Err(Errno::ENOENT), _) if most != b"0" => {}
            (Err(errno), ProcKind::Own | ProcKind::Outer) => return Err(errno),
        }
    }
    Ok(())
}
