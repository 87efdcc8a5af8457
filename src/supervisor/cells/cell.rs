//! One cell as the supervisor holds it: from the clone to the last descriptor.
//!
//! *Built, measured, idle → job → exec*: a cell is made for a key and knows no job until it is
//! offered, whether a job waits for it already or it is made before.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sched::{CloneFlags, setns};
use nix::sys::eventfd::EventFd;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt::PassCred,
};
use nix::sys::stat::Mode;
use nix::unistd::{pipe2, write};

use super::bare;
use super::crawl::CrawlWatch;
use super::link_counters::LinkCounters;
use super::streams::{Prestarted, Streams};
use cell::bare::Domain;
use cell::bare::store::Private;
use cell::cgroup::{ControlGroup, Parent};
use cell::enter::{self, CellSpec};
use cell::ids::{AGENT, write_map};
use cell::measure::{self, Operator, UnfitCell};
use cell::mounts::Slot;
use cell::payload::Scratch;
use cell::report::{self, Probes, Ticks, ToInit};
use cell::{Design, Ground, ProcKind, Shared};
use model::egress::{Egress, placeholder};
use model::job::Limits;
use model::receipt::{Configured, EgressReceipt, Receipt};
use sys::fork::fork;
use sys::process::{self, Child, Dumpable, Side, Used};

/// Namespaces of the floor, but for that of cgroups, which `enter` makes when its group is joined.
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

/// A cell; killed whole on drop.
#[derive(Debug)]
pub(crate) struct Cell {
    child: Child,
    /// To init.
    pub control: OwnedFd,
    /// To the payload, until it execs.
    pub job: OwnedFd,
    pub slot: Slot,
    pub group: Option<ControlGroup>,
    /// Readable when the kernel ran out of this cell's memory (cgroup v1).
    pub out_of_memory: Option<EventFd>,
    pub crawl: CrawlWatch,
    /// For its job; a shell's jobs bring their own.
    pub streams: Option<Streams>,
    /// Its program, where that is executed already.
    pub prestarted: Option<Prestarted>,
    /// Its network on the way to the gateway, if it has one.
    pub network: NetworkHandover,
    /// Its directory on the host, in the tier that has no mounts of its own; let go after its end.
    pub private: Option<Private>,
    /// Means to end its processes where the end of its init does not.
    domain: Option<Domain>,
    /// Sockets that have nothing more to say: closed, they would be readable for ever.
    done: Vec<CellSocket>,
}

impl Drop for Cell {
    fn drop(&mut self) {
        const ATTEMPTS: u8 = 3;
        let mut killed = self.try_to_kill();
        for _ in 1..ATTEMPTS {
            if matches!(killed, Ok(()) | Err(Errno::ESRCH)) {
                break;
            }
            killed = self.try_to_kill();
        }
        match killed {
            // It has not been collected: left alone it would stay a zombie of this supervisor,
            // in its control group and its slot. Killed, it ends in a moment.
            Ok(()) => match process::wait(&self.child.pidfd) {
                // ECHILD: collected with those of all cells, in the tier without pid namespaces.
                Ok(()) | Err(Errno::ECHILD) => {}
                Err(errno) => tracing::error!(%errno, "a killed cell could not be collected"),
            },
            // Collected already.
            Err(Errno::ESRCH) => {}
            Err(errno) => tracing::error!(%errno, "a cell could not be killed"),
        }
    }
}

/// The two descriptors by which the gateway serves a cell.
#[derive(Debug)]
pub(crate) struct NetworkEnds {
    /// Packet socket in the cell's network namespace.
    pub packets: OwnedFd,
    /// Pipe that hangs up when the cell's init has ended.
    pub lifeline: OwnedFd,
    /// Random text of which the cell's placeholders are made.
    pub seed: [u8; 16],
}

/// The network of a cell that is built, until the gateway has it. A packet socket must not be closed here where it is
/// the last copy, which takes 10 ms: one that is in flight to the gateway is none.
#[derive(Debug, Default)]
pub(crate) struct NetworkHandover {
    lifeline: Option<OwnedFd>,
    packets: Option<OwnedFd>,
    seed: [u8; 16],
    /// Counters of its link, until the loop has them.
    pub links: Option<LinkCounters>,
}

impl NetworkHandover {
    /// Returns the variables of the cell that hold placeholders, with these.
    pub(crate) fn placeholders<'a>(
        &'a self,
        egress: &'a Egress,
    ) -> impl Iterator<Item = (&'a str, String)> {
        let secrets = egress.rules.iter().filter_map(|rule| rule.secret.as_ref());
        secrets.map(|secret| (secret.env.as_str(), placeholder(&secret.name, &self.seed)))
    }

    /// Keeps the packet socket that init has sent.
    pub(crate) fn got(&mut self, packets: Option<OwnedFd>) {
        self.packets = packets;
    }

    /// Returns true if init must send a packet socket, and has not.
    pub(crate) fn is_awaited(&self) -> bool {
        self.lifeline.is_some()
    }

    /// Takes out both descriptors once init has sent its own.
    pub(crate) fn take_whole(&mut self) -> Option<NetworkEnds> {
        let packets = self.packets.take()?;
        Some(NetworkEnds { packets, lifeline: self.lifeline.take()?, seed: self.seed })
    }
}

/// Draws the random text of a cell, if a rule of its profile has a secret.
fn seed(design: &Design) -> Result<[u8; 16], Errno> {
    let mut seed = [0; 16];
    if design.profile.egress.rules.iter().any(|rule| rule.secret.is_some()) {
        let drawn = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
        let drawn = drawn.map_err(|errno| Errno::from_raw(errno.raw_os_error()))?;
        if drawn != seed.len() {
            return Err(Errno::EIO);
        }
    }
    Ok(seed)
}

/// One of a cell's two sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CellSocket {
    Control,
    Job,
}

/// Everything that making a cell needs besides its design.
#[derive(Debug)]
pub(crate) struct Maker<'a> {
    pub shared: &'a Shared,
    pub cgroups: &'a Parent,
    pub operator: &'a Operator,
    /// Of programs that wait: a new cell lets them go.
    pub inputs: Vec<BorrowedFd<'a>>,
    pub scratch: &'a mut Scratch,
}

/// Makes a pair of connected sockets that keep the bounds of what is sent.
pub(crate) fn packets() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
}

impl Maker<'_> {
    /// Clones a cell of `design` and lets it build itself. It reports on its two sockets.
    ///
    /// # Errors
    /// The errno of the call that failed; nothing is left then.
    pub(crate) fn clone_cell(&mut self, design: &Design, slot: Slot) -> Result<Cell, Errno> {
        let (control, control_theirs) = packets()?;
        let (job, job_theirs) = packets()?;
        let handoff = packets()?;
        // The payload's first packet tells its pid in this namespace (unix(7), SO_PASSCRED).
        setsockopt(&job, PassCred, &true)?;
        let group = self.cgroups.make(u64::from(slot.number()), &design.profile.limits)?;
        let out_of_memory =
            group.as_ref().map(|it| it.out_of_memory_event()).transpose()?.flatten();
        let (private, others) = match &design.ground {
            Ground::Root(root) => {
                // The cell mounts it.
                root.sizes.age(slot)?;
                setns(&root.template, CloneFlags::CLONE_NEWNS)?;
                (None, 0)
            }
            Ground::Bare(ground) => (Some(ground.store.make()?), bare::others(&self.shared.proc)?),
        };
        let lifeline = design.network.as_ref().map(|_| pipe2(OFlag::O_CLOEXEC)).transpose()?;
        let entry = CellSpec {
            design,
            shared: self.shared,
            slot,
            inputs: &self.inputs,
            private: private.as_ref(),
            others,
            group: group.as_ref(),
            control: control_theirs.as_fd(),
            job: job_theirs.as_fd(),
            lifeline: lifeline.as_ref().map(|(_, theirs)| theirs.as_fd()),
            handoff: (handoff.0.as_fd(), handoff.1.as_fd()),
        };
        let child = clone_dumpable(&entry, self.scratch)?;
        let domain = self.shared.domain;
        let streams = None;
        let prestarted = None;
        let mut cell = Cell {
            child,
            control,
            job,
            slot,
            group,
            out_of_memory,
            crawl: CrawlWatch::default(),
            streams,
            prestarted,
            network: NetworkHandover {
                lifeline: lifeline.map(|(ours, _)| ours),
                packets: None,
                seed: seed(design)?,
                links: None,
            },
            private,
            domain,
            done: Vec::new(),
        };
        self.mapped(&cell, design, slot)?;
        // While it builds itself.
        cell.streams = Some(Streams::new(design)?);
        Ok(cell)
    }

    /// Maps the ids of a new cell and tells it, where it has ids of its own.
    fn mapped(&self, cell: &Cell, design: &Design, slot: Slot) -> Result<(), Errno> {
        match &design.ground {
            Ground::Root(root) => self.admit(cell, design.ids.of_slot(root.mounts.id_slot(slot))?),
            Ground::Bare(_) => report::send(&cell.control, &ToInit::Mapped, &[]),
        }
    }

    /// Does what only the parent can do for a new cell: ids, cgroup, its place before the OOM killer.
    fn admit(&self, cell: &Cell, outside: u32) -> Result<(), Errno> {
        let process = self.procfs(cell.child.pid, Some(&cell.child.pidfd))?;
        // If the host runs out of memory, cells go first.
        first_to_go(&process)?;
        let map = format!("{AGENT} {outside} 1");
        write_map(&process, "gid_map", &map)?;
        write_map(&process, "uid_map", &map)?;
        report::send(&cell.control, &ToInit::Mapped, &[])
    }

    /// The procfs directory of a process of ours, held so that its pid cannot become another's.
    pub(crate) fn procfs(&self, pid: i32, pidfd: Option<&OwnedFd>) -> Result<OwnedFd, Errno> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let proc = &self.shared.proc;
        let pid = match (self.shared.proc_kind, pidfd) {
            (ProcKind::Own, _) => pid,
            (ProcKind::Outer, Some(pidfd)) => outer_pid(proc, pidfd)?,
            (ProcKind::Outer, None) => {
                let opened = process::open_pidfd(pid)?;
                outer_pid(proc, &opened)?
            }
        };
        openat(proc, pid.to_string().as_str(), flags, Mode::empty())
    }

    /// Looks at the payload from outside and judges what its probes met.
    ///
    /// # Errors
    /// The first thing that is not as the floor demands.
    pub(crate) fn measure(
        &self,
        design: &Design,
        payload: i32,
        probes: Probes,
    ) -> Result<MeasuredCell, UnfitCell> {
        let process = self.procfs(payload, None)?;
        let Design { profile, .. } = design;
        if let Ground::Bare(_) = &design.ground {
            // If the host runs out of memory, programs go before their init, which ends the rest.
            first_to_go(&process)?;
        }
        let receipt = Receipt {
            profile: profile.name.to_string(),
            tier: profile.tier,
            measured: measure::payload(&process, design, self.operator)?,
            probed: measure::probes(probes, design)?,
            configured: Configured {
                landlock_abi: self.shared.landlock_abi,
                network: profile.egress.class.name().to_owned(),
                proc: profile.proc.name().to_owned(),
                memory: self.shared.memory,
                memory_bytes: profile.limits.memory,
                processes: profile.limits.processes,
                workspace: design.workspace_name(),
                unix_sockets: profile.sockets_text(),
                host_name: match &design.ground {
                    Ground::Root(_) => crate::rootfs::synthetic::HOST_NAME.to_owned(),
                    Ground::Bare(_) => "the host's".to_owned(),
                },
                core_handler: self.shared.cores,
                egress: EgressReceipt::new(&profile.egress),
            },
        };
        // Without them the gateway is asked about each call.
        let links = design.network.as_ref().and_then(|_| LinkCounters::open(&process).ok());
        Ok(MeasuredCell { receipt, links })
    }
}

/// What was seen of a cell from outside.
#[derive(Debug)]
pub(crate) struct MeasuredCell {
    pub receipt: Receipt,
    /// Counters of its link, in cells with egress.
    pub links: Option<LinkCounters>,
}

/// Has the kernel end a process before all others where the host's memory runs out.
fn first_to_go(process: &OwnedFd) -> Result<(), Errno> {
    let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let score = openat(process, "oom_score_adj", flags, Mode::empty())?;
    write(score, b"1000").map(drop)
}

/// The pid of a process in the outer pid namespace: a procfs shows the pids of its own (pidfd_open(2)).
fn outer_pid(proc: &OwnedFd, pidfd: &OwnedFd) -> Result<i32, Errno> {
    use std::os::fd::AsRawFd;
    let info = measure::read_all(proc, &format!("self/fdinfo/{}", pidfd.as_raw_fd()))?;
    info.lines()
        .find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok())
        .filter(|pid| *pid > 0)
        .ok_or(Errno::ESRCH)
}

/// Clones with the dumpable flag on, which the child needs while its maps are written, and the
/// supervisor must not have: on for the length of one system call.
fn clone_dumpable(entry: &CellSpec<'_>, scratch: &mut Scratch) -> Result<Child, Errno> {
    process::set_dumpable(Dumpable::Yes)?;
    let cgroup = entry.group.and_then(ControlGroup::clone_into);
    let side = match &entry.design.ground {
        Ground::Root(_) => process::clone3(NAMESPACES, cgroup),
        Ground::Bare(_) => fork(),
    };
    if matches!(side, Ok(Side::Child)) {
        enter::run(entry, scratch);
    }
    become_untraceable();
    match side? {
        Side::Parent(child) => Ok(child),
        Side::Child => Err(Errno::ENOTRECOVERABLE),
    }
}

/// Lets no other process of this uid look into this one again. If that cannot be had, nothing is safe
/// that is here: the process ends.
fn become_untraceable() {
    const ATTEMPTS: u8 = 3;
    if (0..ATTEMPTS).all(|_| process::set_dumpable(Dumpable::No).is_err()) {
        process::exit_now(1);
    }
}

impl Cell {
    /// The receipt, with where the cell works if that is no place of its own root.
    pub(crate) fn told_in(&self, mut receipt: Receipt) -> Receipt {
        if let Some(private) = &self.private {
            receipt.configured.workspace = format!("fresh, at {}", private.host_path("/workspace"));
        }
        receipt
    }

    pub(crate) fn pidfd(&self) -> &OwnedFd {
        &self.child.pidfd
    }

    /// The number of its init in the procfs that this supervisor looks into.
    ///
    /// # Errors
    /// EOPNOTSUPP in the tier without pid namespaces, where init is not above all of its processes.
    pub(crate) fn init_in(&self, shared: &Shared) -> Result<i32, Errno> {
        match (shared.proc_kind, self.domain) {
            (_, Some(_)) => Err(Errno::EOPNOTSUPP),
            (ProcKind::Own, None) => Ok(self.child.pid),
            (ProcKind::Outer, None) => outer_pid(&shared.proc, &self.child.pidfd),
        }
    }

    /// Returns whether a socket may have something to say.
    pub(crate) fn listens(&self, to: CellSocket) -> bool {
        !self.done.contains(&to)
    }

    /// Listens to a socket no more.
    pub(crate) fn stop_listening(&mut self, to: CellSocket) {
        if self.listens(to) {
            self.done.push(to);
        }
    }

    /// Ends the cell as [`Cell::try_to_kill`] does. One that could not be killed is tried again when its
    /// deadline comes, and the others go on.
    pub(crate) fn kill(&self) {
        match self.try_to_kill() {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => tracing::error!(%errno, "a cell could not be killed"),
        }
    }

    /// Ends the cell: its init is killed, and the kernel kills all else with it. A control group that
    /// can be killed is, first: a fork bomb has no time left to fork.
    ///
    /// In the tier without pid namespaces init is told to end all else, as its own end would not.
    fn try_to_kill(&self) -> Result<(), Errno> {
        if self.domain.is_some() {
            return match report::send_now(&self.control, &ToInit::End) {
                // It has ended, with or without something unread.
                Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(()),
                // It reads nothing: its processes end when it is collected, with those of all cells.
                Err(Errno::EAGAIN) => process::signal(&self.child.pidfd, Signal::SIGKILL),
                told => told,
            };
        }
        if let Some(Err(errno)) = self.group.as_ref().map(ControlGroup::kill) {
            // The signal below kills all the same.
            tracing::debug!(%errno, "a control group could not be killed at once");
        }
        process::signal(&self.child.pidfd, Signal::SIGKILL)
    }

    /// Tells init something. An init that has not read a socket full of orders reads no more: its cell is
    /// killed, and this process, which has every other cell to serve, never waits for it.
    pub(crate) fn tell(&self, order: &ToInit) -> Result<(), Errno> {
        match report::send_now(&self.control, order) {
            Err(Errno::EAGAIN) => self.try_to_kill(),
            told => told,
        }
    }

    /// Sends TERM to every process of the cell, by its init.
    pub(crate) fn terminate(&self) -> Result<(), Errno> {
        self.tell(&ToInit::Terminate)
    }

    /// Sends INT to the payload's process group, but to no process of an earlier command than the one that began then.
    pub(crate) fn interrupt(&self, since: Ticks) -> Result<(), Errno> {
        self.tell(&ToInit::Interrupt { since })
    }

    /// Makes init untraceable; it answers when it is.
    pub(crate) fn seal(&self) -> Result<(), Errno> {
        self.tell(&ToInit::Seal)
    }

    /// Lowers what can be lowered from outside, and tells init, which answers sysinfo(2) by it. If
    /// no control group holds the cell's memory, init starts its watch.
    pub(crate) fn limit(&self, own: &Limits, lowered: &Limits) -> Result<(), Errno> {
        let tell = || self.tell(&ToInit::Watch { memory: lowered.memory });
        match &self.group {
            Some(_) if own == lowered => Ok(()),
            Some(group) => {
                group.limit(lowered)?;
                if own.memory == lowered.memory { Ok(()) } else { tell() }
            }
            None => tell(),
        }
    }

    /// Collects the cell's init if it has ended; then nothing of the cell is left.
    pub(crate) fn collect(&self) -> Result<Option<Used>, Errno> {
        let Some(collected) = process::collect(&self.child.pidfd)? else { return Ok(None) };
        if let Some(domain) = self.domain.filter(|_| !collected.is_success) {
            // Nobody ends its processes any more, and which they are is not known here: all cells
            // of this supervisor end.
            tracing::error!("an init did not end its cell: every cell ends");
            if let Err(errno) = bare::end_all(domain) {
                tracing::error!(%errno, "cells could not be ended at once");
            }
        }
        Ok(Some(collected.used))
    }

    /// The most memory the cell had, where its cgroup counts it.
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        self.group.as_ref().and_then(ControlGroup::peak)
    }

    /// Takes the event that the kernel ran out of this cell's memory; false where there is none to
    /// take: it was of a cell that had this slot before.
    pub(crate) fn took_out_of_memory(&self) -> bool {
        self.out_of_memory.as_ref().is_some_and(|event| event.read().is_ok())
    }

    /// Looks if it is time to. Returns true if its programs no longer get on for want of the cell's memory.
    pub(crate) fn crawls(&mut self, now: Instant) -> bool {
        self.crawl.look(self.group.as_ref(), now)
    }

    /// Returns whether the kernel has killed a process of this cell for want of the cell's memory.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        self.group.as_ref().is_some_and(ControlGroup::ran_out_of_memory)
    }
}

/// The limits that a job gets: the profile's, lowered by what the front end sent.
pub(crate) fn clamp(own: &Limits, asked: &Limits) -> Limits {
    own.lowered(&model::call::Asked {
        wall: Some(asked.wall),
        memory: Some(asked.memory),
        processes: Some(asked.processes),
        output: asked.output,
    })
}
