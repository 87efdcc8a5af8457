//! The order of confinement: every step between clone and the wait for a job.
//!
//! Read top-down. Each step says why it cannot move; each failure ends the process
//! with a report, so that a cell is either whole or not there.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;

use super::init::unresolved;
use super::report::{self, FromInit, FromPayload};
use super::spec::{CellSpec, Prepared};
use super::{At, Ground, Root, Step, StepFailed};
use super::{
    bare, caps, cgroup, fds, ids, init, kept_network, landlock, limits, mounts, payload, proc,
};
use sys::fork::fork;
use sys::process::{self, Dumpable};
use sys::{bpf, sharing, socket};

/// Runs init, from right after the clone to the end of the cell. Never returns.
pub fn run(entry: &CellSpec<'_>, scratch: &mut payload::Scratch) -> ! {
    // A panic must not unwind into the supervisor's frames, of which this process has a copy.
    let outcome =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| confine(entry, scratch)));
    let reported = match outcome {
        Ok(Ok(ready)) => init::supervise(entry, ready),
        Ok(Err(failed)) => report::send(entry.control, &FromInit::from(failed), &[]),
        Err(_panic) => Err(Errno::ENOTRECOVERABLE),
    };
    // If even the report fails, the supervisor sees the closed socket.
    process::exit_now(i32::from(reported.is_err()));
}

fn confine(
    entry: &CellSpec<'_>,
    scratch: &mut payload::Scratch,
) -> Result<init::InitResources, StepFailed> {
    // Closed first, before the other descriptors: the steps in between may wait for other processes.
    entry.inputs.iter().try_for_each(|input| fds::close(*input)).at(Step::Descriptors)?;
    let prepared = match &entry.design.ground {
        Ground::Root(root) => prepare(entry, root)?,
        Ground::Bare(_) => bare::enter::prepare(entry)?,
    };
    // The fork comes after everything that both processes share, and before either filter:
    // init answers for the payload's listener, so it must not be bound by that filter itself.
    let forked = match &entry.design.ground {
        Ground::Root(_) => process::clone3(0, None),
        Ground::Bare(_) => fork(),
    };
    match forked.at(Step::Fork)? {
        process::Side::Parent(_) => finish_init(entry, prepared),
        process::Side::Child => shelter(entry, &prepared, scratch),
    }
}

/// Runs the process between init and payload. The payload shares this process's memory until it
/// execs. This process then frees that memory, which would delay the exec otherwise. The payload is
/// init's child.
fn shelter(entry: &CellSpec<'_>, prepared: &Prepared, scratch: &mut payload::Scratch) -> ! {
    let payload::Scratch { stack, room } = scratch;
    let reported =
        match sharing::run(stack, entry.handoff, || become_payload(entry, prepared, room)) {
            Ok(()) => Ok(()),
            Err(errno) => {
                let failed = StepFailed { step: Step::Fork, errno };
                report::send(entry.job, &FromPayload::from(failed), &[])
            }
        };
    process::exit_now(i32::from(reported.is_err()));
}

/// Runs the payload, from its first step to the exec. Returns the step that failed, after reporting it.
fn become_payload(entry: &CellSpec<'_>, prepared: &Prepared, room: &mut payload::JobRoom) {
    let reported = match finish_payload(entry, prepared) {
        Ok(payload) => payload::run(entry, payload, room),
        Err(failed) => report::send(entry.job, &FromPayload::from(failed), &[]),
    };
    process::exit_now(i32::from(reported.is_err()));
}

/// Takes the steps of init before it forks.
fn prepare(entry: &CellSpec<'_>, root: &Root) -> Result<Prepared, StepFailed> {
    let CellSpec { design, shared, slot, group, control, job, handoff, others, .. } = *entry;
    // Before anything is allocated for the cell, and while this process has the supervisor's id,
    // which the group belongs to.
    group.map_or(Ok(()), cgroup::ControlGroup::join).at(Step::Cgroup)?;
    // After joining, not by the clone: the root of the namespace is the group that its maker is in, and the
    // groups above it are the host's.
    unshare(CloneFlags::CLONE_NEWCGROUP).at(Step::Cgroup)?;
    // Early: until the maps are written this process has no uid, and the supervisor can write
    // them only while it is dumpable, which it is from the clone on.
    entry.await_maps()?;
    // A new session: kill(0) cannot reach the supervisor's process group, no terminal is left.
    nix::unistd::setsid().map(drop).at(Step::Session)?;
    // Before mounts: what the cell makes there belongs to `agent`.
    ids::become_agent(design.ids.supplementary()).at(Step::Ids)?;
    // After the last change of ids, which resets both.
    process::set_death_signal(Signal::SIGKILL).at(Step::DieWithParent)?;
    process::set_dumpable(Dumpable::Yes).at(Step::DieWithParent)?;
    // getppid() is 0 in a new pid namespace: only the link shows whether the supervisor died
    // before the signal was set.
    if !process::is_open(control).at(Step::DieWithParent)? {
        return Err(StepFailed { step: Step::DieWithParent, errno: Errno::EPIPE });
    }
    // Before the mounts cover it, and before Landlock, which allows it by a separate rule.
    let procfs = init::procfs(design, shared).at(Step::Proc)?;
    // After ids; before Landlock, which forbids mount(2). Needs CAP_SYS_RESOURCE in this user
    // namespace, and a procfs that still has all of its entries.
    proc::mount(&root.mounts, shared)?;
    // Before the mounts cover what it shows.
    let links = proc::limit(&root.mounts, slot).at(Step::Facts)?;
    mounts::enter(&root.mounts, slot)?;
    let questions = prepare_network(entry, procfs.as_ref())?;
    limits::shared(&design.profile.limits, others).at(Step::Limits)?;
    // After every step that needs the supervisor's descriptors; the others close at exec.
    let hidden = design.hidden.as_fd();
    let (ours, theirs) = handoff;
    let keep = [control, job, ours, theirs, hidden];
    let keep = keep.into_iter().chain(entry.lifeline);
    let held = [procfs.as_ref(), shared.record.as_deref()].into_iter().flatten();
    let held = held.chain(links.iter().flatten()).chain(&questions).map(AsFd::as_fd);
    fds::keep_only(keep.chain(held)).at(Step::Descriptors)?;
    // Rules name files by descriptor: build while the files can be opened, enforce later.
    let watched = procfs.as_ref().map(|fd| (fd.as_fd(), landlock::Use::Read));
    let ruleset = landlock::build(&design.landlock, watched.as_slice()).at(Step::Landlock)?;
    // After everything that needed one.
    caps::drop_all().at(Step::Capabilities)?;
    // Before Landlock and seccomp: without a capability both need it.
    process::set_no_new_privs().at(Step::NoNewPrivs)?;
    // Before Landlock: shows that the canary is there to be refused afterwards.
    landlock::open_canary(&design.hidden).at(Step::Canary)?;
    // Before the fork: the payload's own layer must lie inside this one, or init could not send
    // signals to it (Landlock scopes them), and the payload must have one that init has not.
    ruleset.restrict().at(Step::Landlock)?;
    Ok(Prepared { ruleset, procfs, links, domain: None, questions })
}

/// Prepares a fresh network namespace, in which this process needs CAP_NET_ADMIN. Returns the socket for questions for
/// names, in cells that have only their loopback.
fn prepare_network(
    entry: &CellSpec<'_>,
    procfs: Option<&OwnedFd>,
) -> Result<Option<OwnedFd>, StepFailed> {
    let CellSpec { design, shared, .. } = *entry;
    if let Some(lent) = entry.network {
        // The supervisor has prepared it.
        let questions = lent.questions.map(|questions| questions.try_clone_to_owned());
        return questions.transpose().at(Step::Loopback);
    }
    // By a procfs that is not shared, as with the limits of its user namespace.
    let proc = procfs.unwrap_or(&shared.proc);
    kept_network::prepare(design, shared, proc)?;
    // After the loopback has its address, and while this process may bind to a port below 1024.
    let is_asked = unresolved::is_asked(&design.profile);
    let questions = is_asked.then(unresolved::open).transpose().at(Step::Loopback)?;
    if let Some(network) = &design.network {
        let packets = network.make(proc, shared.proc_kind).at(Step::Egress)?;
        // The socket stays open in flight. No copy may remain here: it would see the packets that the gateway
        // sees, and closing the last copy takes 10 ms.
        report::send(entry.control, &FromInit::Network, &[packets.as_fd()]).at(Step::Link)?;
    }
    Ok(questions)
}

/// Takes init's last step: loads its own filter.
fn finish_init(
    entry: &CellSpec<'_>,
    prepared: Prepared,
) -> Result<init::InitResources, StepFailed> {
    let mediation = entry.design.mediation.as_ref();
    let filter = mediation.map_or(&entry.shared.init_filter, |mediation| &mediation.init_filter);
    bpf::load(filter).at(Step::Seccomp)?;
    let Prepared { procfs, links, domain, questions, .. } = prepared;
    Ok(init::InitResources { procfs, links, domain, questions })
}

/// Takes the payload's last steps: a Landlock layer more than init, its limits, the profile's filter.
fn finish_payload(
    entry: &CellSpec<'_>,
    prepared: &Prepared,
) -> Result<payload::HeldPayload, StepFailed> {
    let CellSpec { design, shared, .. } = *entry;
    // First: init waits for it, and must know which process's end ends the cell.
    let pid = std::process::id().to_ne_bytes();
    socket::send(entry.handoff.1, &pid, &[]).at(Step::Listener)?;
    // A session apart from init's, so that signals to the program's group stay with it.
    nix::unistd::setsid().map(drop).at(Step::Session)?;
    // Before the limit on descriptors, which is below the number it stands at.
    let program = payload::hold_program(&design.profile.exec).at(Step::Program)?;
    limits::lowered(&design.profile.limits, shared.memory, entry.others).at(Step::Limits)?;
    if let Ground::Bare(_) = &design.ground {
        bare::enter::payload()?;
    }
    // Not init: its watch over memory, and the supervisor, come before what a program computes.
    process::give_way(limits::NICE).at(Step::Limits)?;
    // The layer that init is not in: no tracing of init, no signal to it.
    prepared.ruleset.restrict().at(Step::Landlock)?;
    // Last: the filter forbids all of the above. Its listener is sent to init. Our copy must be closed:
    // otherwise a notified call of this process would wait for this process to answer it.
    let filter =
        design.reuse.as_ref().map_or(design.filter.as_slice(), |it| it.filter(&design.filter));
    let listener = bpf::load_with_listener(filter).at(Step::Seccomp)?;
    socket::send(entry.handoff.1, b"l", &[listener.as_fd()]).at(Step::Listener)?;
    drop(listener);
    // After the listener was sent: descriptors in flight are counted per user and compared with this limit
    // (unix(7), ETOOMANYREFS), and those of other cells count too.
    limits::payload(&design.profile.limits, &design.profile.exec).at(Step::Limits)?;
    Ok(payload::HeldPayload { program })
}
