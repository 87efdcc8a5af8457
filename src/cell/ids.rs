//! Ids: the maps of a cell's user namespace, and becoming `agent` in it.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid, write};

use super::ProcKind;
use crate::sys::Result;

/// uid and gid of `agent`, the user of every cell (rulings R5).
pub const AGENT: u32 = 1000;

/// Whether supplementary groups can be dropped: only where a privileged process wrote the maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Supplementary {
    /// `setgroups` is denied: those of the operator stay, and the receipt lists them.
    Kept,
    Dropped,
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
pub fn become_agent(supplementary: Supplementary) -> Result<()> {
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

/// What the kernel counts for the host's user too, and a cell may have of its own: the cells of a
/// server must not use up what that user has, 128 instances of inotify(7) by default.
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
pub fn forbid_nested(proc: impl AsFd, kind: ProcKind) -> Result<()> {
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
