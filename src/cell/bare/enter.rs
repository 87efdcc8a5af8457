//! The steps of confinement in the tier `landlock+seccomp`: those of `cell::enter`, without
//! namespaces.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;

use super::Domain;
use crate::spec::{CellSpec, Prepared};
use crate::{At, Step, StepFailed, caps, fds, landlock, limits};
use sys::Result;
use sys::process::{self, Dumpable};

/// How many other processes and threads of the user may start while a cell is built: those of cells
/// that are built at the same time, of the front end, and what else the user starts, such as a build.
/// RLIMIT_NPROC counts all of them. The program's own limit is set later and does not include them.
const MEANWHILE: u64 = 1024;

/// Takes the steps of init before it forks.
pub(crate) fn prepare(entry: &CellSpec<'_>) -> std::result::Result<Prepared, StepFailed> {
    let CellSpec { design, shared, control, job, handoff, .. } = *entry;
    // There are no maps to write here: the message means that the supervisor has finished the steps
    // that only it can do.
    entry.await_maps()?;
    // A new session: kill(0) cannot reach the supervisor's process group, no terminal is left.
    nix::unistd::setsid().map(drop).at(Step::Session)?;
    // The supervisor cannot read the payload's /proc entries otherwise, and it measures them.
    process::set_dumpable(Dumpable::Yes).at(Step::DieWithParent)?;
    // Orphaned processes of the cell become children of init, which reaps them.
    nix::sys::prctl::set_child_subreaper(true).at(Step::Session)?;
    // No signal on the supervisor's death: ending init would leave the other processes of the cell
    // running. Init sees the end of its socket instead.
    if !process::is_open(control).at(Step::DieWithParent)? {
        return Err(StepFailed { step: Step::DieWithParent, errno: Errno::EPIPE });
    }
    // Before Landlock; a rule gives init access to it.
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
    // Emptying the bounding set needs a capability that this process may lack; no_new_privs makes
    // the set irrelevant.
    caps::clear_current().at(Step::Capabilities)?;
    process::set_no_new_privs().at(Step::NoNewPrivs)?;
    // Before Landlock: proves that the canary exists, so that a refusal afterwards means something.
    landlock::open_canary(&design.hidden).at(Step::Canary)?;
    outer.restrict().at(Step::Landlock)?;
    // Before the fork: a cell must not run anything that init could not end.
    let domain = Domain::prove(nix::unistd::getppid().as_raw()).at(Step::Landlock)?;
    Ok(Prepared {
        ruleset,
        procfs: Some(procfs),
        links: None,
        domain: Some(domain),
        questions: None,
    })
}

/// Opens the host's procfs, whose pids are valid for the cell too.
fn procfs(proc: &OwnedFd) -> Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    openat(proc, ".", flags, Mode::empty())
}

/// Ends the payload with its init, before its second Landlock layer. Init ends the rest of the cell
/// in any case.
pub fn payload() -> std::result::Result<(), StepFailed> {
    process::set_death_signal(Signal::SIGKILL).at(Step::DieWithParent)
}
