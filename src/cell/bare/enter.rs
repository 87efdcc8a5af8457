//! The order of confinement in the tier `landlock+seccomp`: as `cell::enter`, without namespaces.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;

use super::Domain;
use crate::enter::{CellSpec, Prepared, await_maps};
use crate::{At, Step, StepFailed, caps, fds, landlock, limits, payload};
use sys::Result;
use sys::process::{self, Dumpable};

/// Processes and threads of the user that may be started while a cell is built: by the cells that are built beside it, and
/// by the front end. RLIMIT_NPROC counts them all. The program's own limit is set later, without them.
const MEANWHILE: u64 = 32;

/// Takes the steps of init before it forks.
pub(crate) fn prepare(entry: &CellSpec<'_>) -> std::result::Result<Prepared, StepFailed> {
    let CellSpec { design, shared, control, job, handoff, .. } = *entry;
    // No maps here: the supervisor says that it has seen to what only it can do.
    await_maps(control)?;
    // A new session: kill(0) cannot reach the supervisor's process group, no terminal is left.
    nix::unistd::setsid().map(drop).at(Step::Session)?;
    // The supervisor measures the payload, which it cannot look into otherwise.
    process::set_dumpable(Dumpable::Yes).at(Step::DieWithParent)?;
    // A process whose parent ends becomes init's child, which must reap it.
    nix::sys::prctl::set_child_subreaper(true).at(Step::Session)?;
    // No signal on the supervisor's death: one that ends init would leave the rest of the cell. Init
    // sees the end of its socket instead.
    if !process::is_open(control).at(Step::DieWithParent)? {
        return Err(StepFailed { step: Step::DieWithParent, errno: Errno::EPIPE });
    }
    // Before Landlock, which allows it to init by a rule of its own.
    let procfs = procfs(&shared.proc).at(Step::Proc)?;
    let private = entry.private.ok_or(Errno::ENOENT).at(Step::Workspace)?;
    let private = private.open().at(Step::Workspace)?;
    let others = entry.others.saturating_add(MEANWHILE);
    limits::shared(&design.profile.limits, others).at(Step::Limits)?;
    let hidden = design.hidden.as_fd();
    let keep = [control, job, handoff.0, handoff.1, hidden, procfs.as_fd(), private.as_fd()];
    fds::keep_only(keep.into_iter()).at(Step::Descriptors)?;
    let write = (private.as_fd(), landlock::Use::Write);
    let read = (procfs.as_fd(), landlock::Use::Read);
    let outer = landlock::build(&design.landlock, &[write, read]).at(Step::Landlock)?;
    let ruleset = landlock::build(&design.landlock, &[write]).at(Step::Landlock)?;
    // The bounding set is emptied by who has a capability for it; no_new_privs makes it moot.
    caps::clear_current().at(Step::Capabilities)?;
    process::set_no_new_privs().at(Step::NoNewPrivs)?;
    // Before Landlock: shows that the canary is there to be refused afterwards.
    payload::open_canary(&design.hidden).at(Step::Canary)?;
    outer.restrict().at(Step::Landlock)?;
    // Before the fork: nobody runs in a cell whose processes init could not end.
    let domain = Domain::prove(nix::unistd::getppid().as_raw()).at(Step::Landlock)?;
    Ok(Prepared { ruleset, procfs: Some(procfs), links: None, domain: Some(domain) })
}

/// Opens the host's procfs: pids there are the cell's own too.
fn procfs(proc: &OwnedFd) -> Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    openat(proc, ".", flags, Mode::empty())
}

/// Ties the payload's life to its init, before its second Landlock layer; init's end is the end of the rest of
/// the cell in any case.
pub fn payload() -> std::result::Result<(), StepFailed> {
    process::set_death_signal(Signal::SIGKILL).at(Step::DieWithParent)
}
