//! `/proc` of a cell: its own processes, the facts of a machine of its size, and nothing else.
//!
//! The facts are files of the template, mounted over the entries of the same names. Then the procfs hides every
//! entry that is no process (`subset=pid` of proc(5)), and no later lookup finds one. An entry that is in use
//! at that moment stays: so do the facts, which are mount points, and two links that init holds open. Undoing
//! the option needs CAP_SYS_ADMIN in the cell's user namespace, which no process of the cell has.

use std::os::fd::OwnedFd;

use nix::fcntl::{AT_FDCWD, OFlag, open, openat};
use nix::mount::MsFlags;
use nix::sys::stat::Mode;

use super::mounts::{MountPlan, Slot, bind};
use super::size::Fact;
use super::{At, Shared, Step, StepFailed, ids, size};
use model::profile::ProcView;
use sys::Result;

/// Links into the reader's own directory, by which programs know them: `mounts` and `net`.
pub type SelfLinks = [OwnedFd; 2];

/// The option by which a procfs shows processes alone.
pub(crate) const SUBSET: &str = "subset=pid";

/// Mounts `/proc` and sets the limits of the cell's user namespace by it.
///
/// By its own procfs: in one that cells share, the kernel compares each such name with the entry of
/// every namespace that it has not taken down yet.
pub fn mount(plan: &MountPlan, shared: &Shared) -> std::result::Result<(), StepFailed> {
    match plan.proc {
        ProcView::None => ids::forbid_nested(&shared.proc, shared.proc_kind).at(Step::Nested),
        ProcView::Own => {
            procfs(MsFlags::empty(), None).at(Step::Proc)?;
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            let own = open(c"/proc", flags, Mode::empty()).at(Step::Nested)?;
            ids::forbid_nested(&own, shared.proc_kind).at(Step::Nested)
        }
    }
}

/// Puts the facts in place and hides all else but processes.
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
