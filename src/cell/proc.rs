//! `/proc` of a cell: its processes, facts of a machine of the cell's size, and no other entries.
//!
//! The facts are files of the template, and a directory that covers `/proc/sys`, mounted over the
//! entries of the same names. Then the procfs
//! hides every entry that is not a process (`subset=pid` of proc(5)), so that later lookups fail.
//! Entries in use at that moment remain: the facts, which are mount points, and two links that init
//! holds open. Undoing the option needs CAP_SYS_ADMIN in the cell's user namespace, which no
//! process of the cell has.

use std::os::fd::OwnedFd;

use nix::fcntl::{AT_FDCWD, OFlag, open, openat};
use nix::mount::MsFlags;
use nix::sys::stat::Mode;

use super::mounts::{MountPlan, bind};
use super::size::Fact;
use super::slot::Slot;
use super::{At, Shared, Step, StepFailed, ids, size};
use model::profile::ProcView;
use sys::Result;

/// The links `mounts` and `net`, which programs expect in `/proc`; they lead into the reader's
/// directory.
pub type SelfLinks = [OwnedFd; 2];

/// The option by which a procfs shows only processes.
pub(crate) const SUBSET: &str = "subset=pid";

/// Mounts `/proc`, and sets the limits of the cell's user namespace through it.
///
/// Each cell has a separate procfs: in a shared one, the kernel compares each of these names with
/// entries of every namespace that still exists.
pub fn mount(plan: &MountPlan, shared: &Shared) -> std::result::Result<(), StepFailed> {
    match plan.proc {
        ProcView::None => ids::forbid_nested(&shared.proc, shared.proc_kind).at(Step::Nested),
        ProcView::Own => {
            procfs(MsFlags::empty(), None).at(Step::Proc)?;
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            let proc = open(c"/proc", flags, Mode::empty()).at(Step::Nested)?;
            ids::forbid_nested(&proc, shared.proc_kind).at(Step::Nested)
        }
    }
}

/// Mounts the facts, and hides everything except processes.
pub fn limit(plan: &MountPlan, slot: Slot) -> Result<Option<SelfLinks>> {
    match plan.proc {
        ProcView::None => Ok(None),
        ProcView::Own => {
            for (cover, entry) in &plan.facts {
                bind(cover, entry)?;
            }
            let mut path = [0_u8; 64];
            bind(size::path(&mut path, slot, Fact::Memory)?, c"/proc/meminfo")?;
            bind(size::path(&mut path, slot, Fact::Uptime)?, c"/proc/uptime")?;
            let link = |path| {
                let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                openat(AT_FDCWD, path, flags, Mode::empty())
            };
            let links = [link(c"/proc/mounts")?, link(c"/proc/net")?];
            procfs(MsFlags::MS_REMOUNT, Some(SUBSET))?;
            Ok(Some(links))
        }
    }
}

fn procfs(how: MsFlags, options: Option<&str>) -> Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    nix::mount::mount(Some("proc"), "/proc", Some("proc"), flags | how, options)
}
