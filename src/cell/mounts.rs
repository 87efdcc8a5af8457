//! Mounts of one cell, on top of the tree it inherits from its template.
//!
//! The template already has the minimal root, read-only. A cell adds what must be
//! its own: `/tmp`, `/dev/shm`, `/workspace`, and `/proc`, which `proc` has.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::Mode;

use super::sockets::Sockets;
use super::{At, Step, StepFailed};
use model::job::Limits;
use profile::{ProcView, Profile};
use sys::Result;

/// The template's own things: canary, facts of `/proc`, grants by slot. It lies under `/tmp`, which every
/// cell covers with its own tmpfs, so that no program ever sees it.
pub const HIDDEN: &str = "/tmp/.template";
/// Place of the writable mount of the desk, in a session's mount namespace: hidden as well.
pub const HIDDEN_DESK: &str = "/tmp/.template/desk";
/// Place of the writable mount of its terminals, a directory to which nothing else can be added.
pub const HIDDEN_TERMINALS: &str = "/tmp/.template/desk/pts";
/// Place of the desk in a session's cell, read-only.
pub const DESK: &CStr = c"/dev/session";

/// Mounts that every cell of one key makes, in order.
#[derive(Debug, Clone)]
pub struct Plan {
    pub proc: ProcView,
    /// Entries of `/proc` to cover: what with, and which.
    pub facts: Vec<(CString, CString)>,
    pub tmpfs: Vec<Tmpfs>,
    /// The slot whose host id the cells have, where not each has its own: that of the session whose
    /// workspace they share.
    pub host_slot: Option<Slot>,
    /// Directories to mount by slot, where main had to prepare one mount for each host uid.
    pub by_slot: Vec<CString>,
    /// Sockets of the host that were granted.
    pub sockets: Sockets,
}

impl Plan {
    /// Returns the slot whose host id a cell has.
    pub fn id_slot(&self, slot: Slot) -> Slot {
        self.host_slot.unwrap_or(slot)
    }
}

/// A private tmpfs of the cell.
#[derive(Debug, Clone)]
pub struct Tmpfs {
    pub target: &'static CStr,
    /// Size, inodes and mode, as tmpfs(5) takes them.
    pub options: CString,
}

/// Place of the workspace, private or granted.
pub const WORKSPACE: &CStr = c"/workspace";

impl Tmpfs {
    /// Returns true for the private `/workspace`.
    pub fn is_workspace(&self) -> bool {
        self.target == WORKSPACE
    }
}

/// Number of a cell's host uid among those of its supervisor; also which prepared mount is its.
pub type Slot = u16;

/// Options of a tmpfs for `owner`, an id of the user namespace that mounts it.
fn options(bytes: u64, inodes: u32, mode: u32, owner: u32) -> CString {
    let text = format!("size={bytes},nr_inodes={inodes},mode={mode:04o},uid={owner},gid={owner}");
    // Digits and names only: there is no NUL in it.
    CString::new(text).unwrap_or_default()
}

/// Returns the private filesystems of a cell. `/tmp` comes last: it covers [`HIDDEN`], which the steps before
/// it still need.
pub fn tmpfs(profile: &Profile, granted: &[PathBuf]) -> Vec<Tmpfs> {
    let Limits { inodes, tmp_bytes, shm_bytes, .. } = profile.limits;
    let agent = super::ids::AGENT;
    let options = |bytes| options(bytes, inodes, 0o1777, agent);
    let mut all = vec![Tmpfs { target: c"/dev/shm", options: options(shm_bytes) }];
    if profile.workspace
        && !granted.iter().any(|path| path.as_os_str().as_bytes() == WORKSPACE.to_bytes())
    {
        all.push(workspace(profile, agent));
    }
    all.push(Tmpfs { target: c"/tmp", options: options(tmp_bytes) });
    all
}

/// Returns a private `/workspace` that belongs to `owner`.
pub fn workspace(profile: &Profile, owner: u32) -> Tmpfs {
    let Limits { inodes, workspace_bytes, .. } = profile.limits;
    Tmpfs { target: WORKSPACE, options: options(workspace_bytes, inodes, 0o755, owner) }
}

const NONE: Option<&CStr> = None;

/// Makes the cell's own mounts but `/proc`, in the mount namespace the process was cloned into.
pub fn enter(plan: &Plan, slot: Slot) -> std::result::Result<(), StepFailed> {
    grants(plan, plan.id_slot(slot)).at(Step::Workspace)?;
    plan.sockets.find(slot).at(Step::Sockets)?;
    for Tmpfs { target, options } in &plan.tmpfs {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some(c"tmpfs"), *target, Some(c"tmpfs"), flags, Some(options.as_c_str()))
            .at(Step::Tmpfs)?;
    }
    plan.sockets.show().at(Step::Sockets)?;
    // HOME of every cell; it belongs to `agent`, as this process is `agent` already.
    nix::unistd::mkdir(c"/tmp/home", Mode::from_bits_truncate(0o755)).at(Step::Tmpfs)
}

/// Mounts the directories that were prepared for this cell's host uid.
fn grants(plan: &Plan, slot: Slot) -> Result<()> {
    for (index, target) in plan.by_slot.iter().enumerate() {
        let mut path = [0_u8; 64];
        bind(slot_path(&mut path, slot, index)?, target)?;
    }
    Ok(())
}

/// Returns the template's place for the mount of grant `index` for `slot`, written without allocation.
pub fn slot_path(buffer: &mut [u8; 64], slot: Slot, index: usize) -> Result<&CStr> {
    use std::io::Write;
    let mut rest = buffer.as_mut_slice();
    write!(rest, "{HIDDEN}/slot/{slot}-{index}\0").map_err(|_| Errno::ENAMETOOLONG)?;
    CStr::from_bytes_until_nul(buffer).map_err(|_| Errno::EINVAL)
}

/// Mounts what is at `source` at `target` as well.
pub fn bind(source: &CStr, target: &CStr) -> Result<()> {
    mount(Some(source), target, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)
}
