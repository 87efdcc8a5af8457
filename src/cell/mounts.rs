//! Mounts that a cell makes on top of the tree inherited from its template.
//!
//! The template has the minimal root, read-only. A cell adds its private mounts: `/tmp`,
//! `/dev/shm`, `/workspace`, and `/proc`, which the module `proc` mounts.

use std::ffi::{CStr, CString};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;

use super::slot::Slot;
use super::sockets::Sockets;
use super::{At, Step, StepFailed};
use model::job::Limits;
use model::profile::{ProcView, Profile};
use sys::Result;
use sys::mount::{attach_held, clone_tree, open_resolved};

/// The template's hidden directory: canary, facts of `/proc`, grants by slot. Every cell mounts its
/// own tmpfs over `/tmp`, so that no program can reach it.
pub const HIDDEN: &str = "/tmp/.template";
/// Mount point of the writable mailbox in a session's mount namespace; hidden as well.
pub const HIDDEN_MAILBOX: &str = "/tmp/.template/mailbox";
/// Mount point of the devpts in which programs of a session or of `run` make pseudo-terminals.
pub const TERMINALS: &str = "/dev/pts";
/// The part of the mailbox that the cell sees.
pub const SHOWN_MAILBOX: &str = "/tmp/.template/mailbox/shown";
/// Mount point of the mailbox in a session's cell, read-only.
pub const MAILBOX: &str = "/dev/session";

/// Mounts that every cell of one key makes, in order.
#[derive(Debug, Clone)]
pub struct MountPlan {
    pub proc: ProcView,
    /// Files to mount over entries of `/proc`: source and entry.
    pub facts: Vec<(CString, CString)>,
    /// `/dev/shm` and `/tmp`.
    pub tmpfs: Vec<Tmpfs>,
    pub workspace: WorkspaceMounts,
    /// Slot whose host id all cells have, if not each has a separate one: that of the session whose
    /// workspace they share.
    pub host_slot: Option<Slot>,
    /// Granted sockets of the host.
    pub sockets: Sockets,
}

/// Mounts of a cell's workspace and grants that the cell makes. Others are inherited: a grant that
/// is equal for all cells is in the template, and a session's workspace in the session's copy of
/// the template.
#[derive(Debug, Clone)]
pub struct WorkspaceMounts {
    /// The private `/workspace`; `None` if it is granted, belongs to a session, or does not exist.
    pub private: Option<Tmpfs>,
    /// Granted directories to mount by slot, for which `main` prepared one mount per host uid.
    pub by_slot: Vec<CString>,
}

impl MountPlan {
    /// Returns the slot whose host id a cell has.
    pub fn id_slot(&self, slot: Slot) -> Slot {
        self.host_slot.unwrap_or(slot)
    }

    /// Returns the mount points of the cell's private filesystems.
    pub fn private(&self) -> Vec<CString> {
        let all = self.tmpfs.iter().chain(&self.workspace.private);
        all.map(|tmpfs| tmpfs.target.to_owned()).collect()
    }
}

/// A private tmpfs of the cell.
#[derive(Debug, Clone)]
pub struct Tmpfs {
    target: &'static CStr,
    /// Size, inodes and mode, in the format of tmpfs(5).
    options: CString,
}

/// Mount point of the workspace, private or granted.
pub const WORKSPACE: &CStr = c"/workspace";

impl Tmpfs {
    /// Mounts the filesystem in the caller's mount namespace.
    ///
    /// # Errors
    /// The errno of mount(2).
    pub fn mount(&self) -> Result<()> {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some(c"tmpfs"), self.target, Some(c"tmpfs"), flags, Some(self.options.as_c_str()))
    }
}

/// Formats the options of a tmpfs for `owner`, an id of the user namespace that mounts it.
fn options(bytes: u64, inodes: u32, mode: u32, owner: u32) -> CString {
    let text = format!("size={bytes},nr_inodes={inodes},mode={mode:04o},uid={owner},gid={owner}");
    // Digits and names only: the text has no NUL.
    CString::new(text).unwrap_or_default()
}

/// Returns the private filesystems of every cell. `/tmp` comes last, because it covers [`HIDDEN`],
/// which the steps before it still need.
pub fn tmpfs(profile: &Profile) -> Vec<Tmpfs> {
    let Limits { inodes, tmp_bytes, shm_bytes, .. } = profile.limits;
    let options = |bytes| options(bytes, inodes, 0o1777, super::ids::AGENT);
    vec![
        Tmpfs { target: c"/dev/shm", options: options(shm_bytes) },
        Tmpfs { target: c"/tmp", options: options(tmp_bytes) },
    ]
}

impl WorkspaceMounts {
    /// Returns the mounts of cells: those of `by_slot`, and a private workspace if no directory is
    /// granted as the workspace.
    pub fn new(profile: &Profile, is_granted: bool, by_slot: Vec<CString>) -> Self {
        let has_private = profile.workspace && !is_granted;
        Self { private: has_private.then(|| workspace(profile, super::ids::AGENT)), by_slot }
    }

    /// Makes the mounts for a cell with the host id of `slot`.
    fn enter(&self, slot: Slot) -> std::result::Result<(), StepFailed> {
        for (index, target) in self.by_slot.iter().enumerate() {
            let mut path = [0_u8; 64];
            let source = slot_path(&mut path, slot, index).at(Step::Workspace)?;
            // A grant inside another is reached through files that cells can write: links must not
            // be followed.
            let target = open_resolved(target).at(Step::Workspace)?;
            clone_tree(source).and_then(|tree| attach_held(tree, target)).at(Step::Workspace)?;
        }
        self.private.as_ref().map_or(Ok(()), Tmpfs::mount).at(Step::Tmpfs)
    }
}

/// Returns a private `/workspace` that belongs to `owner`.
pub fn workspace(profile: &Profile, owner: u32) -> Tmpfs {
    let Limits { inodes, workspace_bytes, .. } = profile.limits;
    Tmpfs { target: WORKSPACE, options: options(workspace_bytes, inodes, 0o755, owner) }
}

const NONE: Option<&CStr> = None;

/// Makes the cell's mounts except for `/proc`, in the mount namespace that the process was cloned
/// into.
pub fn enter(plan: &MountPlan, slot: Slot) -> std::result::Result<(), StepFailed> {
    // A fresh cell in the workspace of a session has the session's host id, and so the session's
    // mounts of what is granted.
    let id_slot = plan.id_slot(slot);
    plan.workspace.enter(id_slot)?;
    plan.sockets.find(id_slot).at(Step::Sockets)?;
    plan.tmpfs.iter().try_for_each(Tmpfs::mount).at(Step::Tmpfs)?;
    plan.sockets.show().at(Step::Sockets)?;
    // HOME of every cell; belongs to `agent`, whose ids this process already has.
    nix::unistd::mkdir(c"/tmp/home", Mode::from_bits_truncate(0o755)).at(Step::Tmpfs)
}

/// Writes the path of the template's mount of grant `index` for `slot`, without allocation.
pub fn slot_path(buffer: &mut [u8; 64], slot: Slot, index: usize) -> Result<&CStr> {
    use std::io::Write;
    let mut rest = buffer.as_mut_slice();
    write!(rest, "{HIDDEN}/slot/{slot}-{index}\0").map_err(|_| Errno::ENAMETOOLONG)?;
    CStr::from_bytes_until_nul(buffer).map_err(|_| Errno::EINVAL)
}

/// Bind-mounts `source` at `target`.
pub fn bind(source: &CStr, target: &CStr) -> Result<()> {
    mount(Some(source), target, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)
}
