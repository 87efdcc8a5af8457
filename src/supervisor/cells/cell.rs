//! A cell as the supervisor sees it, from the clone to the last descriptor.
//!
//! Life of a cell: *built, measured, idle → job → exec*. A cell is made for a key and gets its job
//! only once it is ready, whether the job is already waiting or not.

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
use super::networks::{KeptNetwork, Networks};
use super::streams::{Prestarted, Streams};
use cell::bare::Domain;
use cell::bare::store::Private;
use cell::cgroup::{ControlGroup, Parent};
use cell::enter;
use cell::ids::{AGENT, write_map};
use cell::measure::{self, Operator, UnfitCell};
use cell::payload::Scratch;
use cell::report::{self, Probes, Ticks, ToInit};
use cell::slot::Slot;
use cell::spec::CellSpec;
use cell::{Design, Ground, ProcKind, Shared};
use model::egress::{Egress, placeholder};
use model::job::Limits;
use model::outcome::PeakSource;
use model::receipt::{Configured, EgressReceipt, Measured, Receipt};
use sys::fork::fork;
use sys::process::{self, Child, Dumpable, Side, Used};

/// Namespaces that the floor demands, except for the cgroup namespace, which `enter` makes after
/// joining the group. A cell that is cloned into a kept network namespace makes no other.
const NAMESPACES: libc::c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

/// A cell; killed with all its processes on drop.
#[derive(Debug)]
pub(crate) struct Cell {
    child: Child,
    /// Socket to init.
    pub control: OwnedFd,
    /// Socket to the payload, until it execs.
    pub job: OwnedFd,
    pub slot: Slot,
    pub group: Option<ControlGroup>,
    /// Readable when the kernel runs out of the cell's memory (cgroup v1).
    pub out_of_memory: Option<EventFd>,
    pub crawl: CrawlWatch,
    /// Streams for the cell's job; the jobs of a shell bring their own.
    pub streams: Option<Streams>,
    /// The cell's program, if it was executed in advance.
    pub prestarted: Option<Prestarted>,
    /// The cell's network, until the gateway gets it.
    pub network: NetworkHandover,
    /// The cell's directory on the host, in the tier without mounts; released after the cell has
    /// ended.
    pub private: Option<Private>,
    /// The network namespace that the cell was cloned into, unless it has a fresh one.
    kept_network: Option<KeptNetwork>,
    /// True once init was reaped, and with it every process of the cell.
    is_reaped: bool,
    /// Ends the cell's processes in the tier where they do not end with init.
    domain: Option<Domain>,
    /// Sockets without further messages: after the other end was closed, poll(2) always reports
    /// them.
    ignored: Vec<CellSocket>,
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
            // Not reaped yet: a zombie would keep its control group and its slot. A killed cell
            // ends in a moment.
            Ok(()) => match process::wait(&self.child.pidfd) {
                // ECHILD: reaped together with all cells, in the tier without pid namespaces.
                Ok(()) | Err(Errno::ECHILD) => {}
                Err(errno) => tracing::error!(%errno, "a killed cell could not be collected"),
            },
            // Already reaped.
            Err(Errno::ESRCH) => {}
            Err(errno) => tracing::error!(%errno, "a cell could not be killed"),
        }
    }
}

/// The two descriptors with which the gateway serves a cell.
#[derive(Debug)]
pub(crate) struct NetworkEnds {
    /// Packet socket in the cell's network namespace.
    pub packets: OwnedFd,
    /// Pipe that hangs up when the cell's init has ended.
    pub lifeline: OwnedFd,
    /// Random bytes from which the cell's placeholders are derived.
    pub seed: [u8; 16],
}

/// The network of a cell during its set-up, until the gateway has it. This process must not close
/// the last copy of the packet socket, which takes 10 ms; a copy in flight to the gateway prevents
/// that.
#[derive(Debug, Default)]
pub(crate) struct NetworkHandover {
    lifeline: Option<OwnedFd>,
    packets: Option<OwnedFd>,
    seed: [u8; 16],
    /// Counters of the link, until the event loop takes them.
    pub links: Option<LinkCounters>,
}

impl NetworkHandover {
    /// Returns the cell's environment variables with placeholders, and their values.
    pub(crate) fn placeholders<'a>(
        &'a self,
        egress: &'a Egress,
    ) -> impl Iterator<Item = (&'a str, String)> {
        let secrets = egress.rules.iter().filter_map(|rule| rule.secret.as_ref());
        secrets.map(|secret| (secret.env.as_str(), placeholder(&secret.name, &self.seed)))
    }

    /// Stores the packet socket that init has sent.
    pub(crate) fn set_packets(&mut self, packets: Option<OwnedFd>) {
        self.packets = packets;
    }

    /// Returns true if init must still send a packet socket.
    pub(crate) fn is_awaited(&self) -> bool {
        self.lifeline.is_some()
    }

    /// Takes both descriptors once init has sent the packet socket.
    pub(crate) fn take_whole(&mut self) -> Option<NetworkEnds> {
        let packets = self.packets.take()?;
        Some(NetworkEnds { packets, lifeline: self.lifeline.take()?, seed: self.seed })
    }
}

/// Draws random bytes for a cell if a rule of its profile has a secret.
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

/// One of the supervisor's two sockets to a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CellSocket {
    Control,
    Job,
}

/// Everything needed to make a cell, except for its design.
#[derive(Debug)]
pub(crate) struct Maker<'a> {
    pub shared: &'a Shared,
    pub cgroups: &'a Parent,
    pub operator: &'a Operator,
    /// Input pipes of programs that were executed in advance: a new cell closes its copies.
    pub inputs: Vec<BorrowedFd<'a>>,
    pub scratch: &'a mut Scratch,
    pub networks: &'a mut Networks,
}

/// Makes a pair of connected sockets that preserve message boundaries.
pub(crate) fn packets() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
}

impl Maker<'_> {
    /// Clones a cell of `design`, which then sets itself up and reports on its two sockets.
    ///
    /// # Errors
    /// The errno of the failed call; no process is left in that case.
    pub(crate) fn clone_cell(&mut self, design: &Design, slot: Slot) -> Result<Cell, Errno> {
        let (control, control_theirs) = packets()?;
        let (job, job_theirs) = packets()?;
        let handoff = packets()?;
        // The payload's first packet carries its pid in this namespace (unix(7), SO_PASSCRED).
        setsockopt(&job, PassCred, &true)?;
        let group = self.cgroups.make(u64::from(slot.number()), &design.profile.limits)?;
        let out_of_memory =
            group.as_ref().map(|it| it.out_of_memory_event()).transpose()?.flatten();
        let (private, others) = match &design.ground {
            Ground::Root(root) => {
                // The cell mounts the file with its uptime.
                root.sizes.age(slot)?;
                setns(&root.template, CloneFlags::CLONE_NEWNS)?;
                (None, 0)
            }
            Ground::Bare(ground) => {
                (Some(ground.store.make()?), bare::count_threads(&self.shared.proc)?)
            }
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
            network: None,
        };
        // After every socket of the cell was made, which belongs to the network namespace of its maker.
        let kept = self.networks.clone_into(design, self.shared, |network| {
            let entry = CellSpec { network: Some(network), ..entry };
            clone_dumpable(&entry, self.scratch)
        })?;
        let (child, kept_network) = match kept {
            Some((child, network)) => (child, Some(network)),
            None => {
                let cloned = clone_dumpable(&entry, self.scratch);
                if matches!(cloned, Err(Errno::ENOSPC)) {
                    self.networks.keep_no_more();
                }
                (cloned?, None)
            }
        };
        let mut cell = Cell {
            child,
            control,
            job,
            slot,
            group,
            out_of_memory,
            crawl: CrawlWatch::default(),
            streams: None,
            prestarted: None,
            network: NetworkHandover {
                lifeline: lifeline.map(|(ours, _)| ours),
                packets: None,
                seed: seed(design)?,
                links: None,
            },
            private,
            kept_network,
            is_reaped: false,
            domain: self.shared.domain,
            ignored: Vec::new(),
        };
        self.map_ids(&cell, design, slot)?;
        // Made while the cell sets itself up.
        cell.streams = Some(Streams::new(design)?);
        Ok(cell)
    }

    /// Maps the ids of a new cell if it has a user namespace, and lets its init continue.
    fn map_ids(&self, cell: &Cell, design: &Design, slot: Slot) -> Result<(), Errno> {
        match &design.ground {
            Ground::Root(root) => self.admit(cell, design.ids.of_slot(root.mounts.id_slot(slot))?),
            Ground::Bare(_) => report::send(&cell.control, &ToInit::Mapped, &[]),
        }
    }

    /// Takes the steps that only the parent can: the OOM score and the id maps.
    fn admit(&self, cell: &Cell, outside: u32) -> Result<(), Errno> {
        let process = self.procfs(cell.child.pid, Some(&cell.child.pidfd))?;
        // If the host runs out of memory, the kernel should kill cells first.
        prefer_for_oom_kill(&process)?;
        let map = format!("{AGENT} {outside} 1");
        write_map(&process, "gid_map", &map)?;
        write_map(&process, "uid_map", &map)?;
        report::send(&cell.control, &ToInit::Mapped, &[])
    }

    /// Opens the procfs directory of a child. Held open, it cannot become that of a later process
    /// with the same pid.
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

    /// Measures the payload from outside, and checks the results of its probes.
    ///
    /// # Errors
    /// The first value that differs from what the floor demands.
    pub(crate) fn measure(
        &mut self,
        design: &Design,
        payload: i32,
        probes: Probes,
        cell: &Cell,
    ) -> Result<MeasuredCell, UnfitCell> {
        let process = self.procfs(payload, None)?;
        let Design { profile, .. } = design;
        let measured = match &design.ground {
            Ground::Root(_) => {
                let measured = measure::payload(&process, design, self.operator)?;
                let network = cell.kept_network.as_ref();
                let network_namespace = Some(self.networks.check(cell.slot, &process, network)?);
                Measured { network_namespace, ..measured }
            }
            Ground::Bare(_) => {
                // If the host runs out of memory, the kernel should kill programs before their
                // init, which ends the rest.
                prefer_for_oom_kill(&process)?;
                cell::bare::measure::payload(&process, design, self.operator)?
            }
        };
        let receipt = Receipt {
            profile: profile.name.to_string(),
            tier: profile.tier,
            measured,
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
        // Without the counters, the gateway is asked about each call.
        let links = design.network.as_ref().and_then(|_| LinkCounters::open(&process).ok());
        Ok(MeasuredCell { receipt, links })
    }
}

/// Results of measuring a cell.
#[derive(Debug)]
pub(crate) struct MeasuredCell {
    pub receipt: Receipt,
    /// Counters of the cell's link, in cells with egress.
    pub links: Option<LinkCounters>,
}

/// Makes the kernel kill a process before others if the host runs out of memory.
fn prefer_for_oom_kill(process: &OwnedFd) -> Result<(), Errno> {
    let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let score = openat(process, "oom_score_adj", flags, Mode::empty())?;
    write(score, b"1000").map(drop)
}

/// Returns the pid of a process in the outer pid namespace, which an outer procfs shows
/// (pidfd_open(2)).
fn outer_pid(proc: &OwnedFd, pidfd: &OwnedFd) -> Result<i32, Errno> {
    use std::os::fd::AsRawFd;
    let info = cell::proc_files::read_all(proc, &format!("self/fdinfo/{}", pidfd.as_raw_fd()))?;
    info.lines()
        .find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok())
        .filter(|pid| *pid > 0)
        .ok_or(Errno::ESRCH)
}

/// Clones with the dumpable flag set, which the child needs while its maps are written. The
/// supervisor must not be dumpable, and is so only during this system call.
fn clone_dumpable(entry: &CellSpec<'_>, scratch: &mut Scratch) -> Result<Child, Errno> {
    process::set_dumpable(Dumpable::Yes)?;
    let cgroup = entry.group.and_then(ControlGroup::clone_into);
    let namespaces = match entry.network {
        None => NAMESPACES,
        Some(_) => NAMESPACES & !libc::CLONE_NEWNET,
    };
    let side = match &entry.design.ground {
        Ground::Root(_) => process::clone3(namespaces, cgroup),
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

/// Makes this process undumpable again, so that no other process of this uid can read it. If that
/// fails, the process exits, as its secrets are no longer safe.
fn become_untraceable() {
    const ATTEMPTS: u8 = 3;
    if (0..ATTEMPTS).all(|_| process::set_dumpable(Dumpable::No).is_err()) {
        process::exit_now(1);
    }
}

impl Cell {
    /// Adds the directory where the cell works to its receipt, if that is on the host.
    pub(crate) fn with_workspace(&self, mut receipt: Receipt) -> Receipt {
        if let Some(private) = &self.private {
            receipt.configured.workspace = format!("fresh, at {}", private.host_path("/workspace"));
        }
        receipt
    }

    pub(crate) fn pidfd(&self) -> &OwnedFd {
        &self.child.pidfd
    }

    /// Returns init's pid in the procfs that this supervisor reads.
    ///
    /// # Errors
    /// EOPNOTSUPP in the tier without pid namespaces, where not all processes of the cell descend
    /// from init.
    pub(crate) fn init_in(&self, shared: &Shared) -> Result<i32, Errno> {
        match (shared.proc_kind, self.domain) {
            (_, Some(_)) => Err(Errno::EOPNOTSUPP),
            (ProcKind::Own, None) => Ok(self.child.pid),
            (ProcKind::Outer, None) => outer_pid(&shared.proc, &self.child.pidfd),
        }
    }

    /// Returns true if a socket may still carry messages.
    pub(crate) fn listens(&self, to: CellSocket) -> bool {
        !self.ignored.contains(&to)
    }

    /// Ignores a socket from now on.
    pub(crate) fn stop_listening(&mut self, to: CellSocket) {
        if self.listens(to) {
            self.ignored.push(to);
        }
    }

    /// Ends the cell like [`Cell::try_to_kill`]. A failure is logged, and retried at the next
    /// deadline.
    pub(crate) fn kill(&self) {
        match self.try_to_kill() {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => tracing::error!(%errno, "a cell could not be killed"),
        }
    }

    /// Kills the cell's init, and with it all its processes. If the control group can be killed,
    /// that happens first, so that a fork bomb cannot keep forking.
    ///
    /// In the tier without pid namespaces init is asked to end the other processes, which would
    /// outlive it.
    fn try_to_kill(&self) -> Result<(), Errno> {
        if self.domain.is_some() {
            return match report::send_now(&self.control, &ToInit::End) {
                // Init has ended, with or without unread messages.
                Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(()),
                // Init does not read: its processes end with those of all cells when it is reaped.
                Err(Errno::EAGAIN) => process::signal(&self.child.pidfd, Signal::SIGKILL),
                sent => sent,
            };
        }
        if let Some(Err(errno)) = self.group.as_ref().map(ControlGroup::kill) {
            // The signal below kills the cell anyway.
            tracing::debug!(%errno, "a control group could not be killed at once");
        }
        process::signal(&self.child.pidfd, Signal::SIGKILL)
    }

    /// Sends an order to init without blocking: this process serves all cells, and waits for none. A cell is killed if its
    /// init reads no orders, or cannot be sent one twice: its calls would not end.
    pub(crate) fn send(&self, order: &ToInit) -> Result<(), Errno> {
        let mut sent = report::send_now(&self.control, order);
        if !matches!(sent, Ok(()) | Err(Errno::EAGAIN | Errno::EPIPE | Errno::ECONNRESET)) {
            sent = report::send_now(&self.control, order);
        }
        match sent {
            Ok(()) | Err(Errno::EPIPE | Errno::ECONNRESET) => sent,
            Err(_) => self.try_to_kill(),
        }
    }

    /// Sends TERM to every process of the cell, by its init.
    pub(crate) fn terminate(&self) -> Result<(), Errno> {
        self.send(&ToInit::Terminate)
    }

    /// Sends INT to the payload's process group, except to processes of commands that began before
    /// `since`.
    pub(crate) fn interrupt(&self, since: Ticks) -> Result<(), Errno> {
        self.send(&ToInit::Interrupt { since })
    }

    /// Asks init to make itself untraceable; it answers when it is.
    pub(crate) fn seal(&self) -> Result<(), Errno> {
        self.send(&ToInit::Seal)
    }

    /// Lowers the limits that can be lowered from outside, and sends init the memory limit, which
    /// it shows in sysinfo(2). Without a control group init starts its memory watch.
    pub(crate) fn limit(&self, configured: &Limits, lowered: &Limits) -> Result<(), Errno> {
        let watch = || self.send(&ToInit::Watch { memory: lowered.memory });
        match &self.group {
            Some(_) if configured == lowered => Ok(()),
            Some(group) => {
                group.limit(lowered)?;
                if configured.memory == lowered.memory { Ok(()) } else { watch() }
            }
            None => watch(),
        }
    }

    /// Reaps the cell's init if it has ended; the cell is then gone entirely.
    pub(crate) fn collect(&mut self) -> Option<Used> {
        let collected = match process::collect(&self.child.pidfd) {
            Ok(collected) => collected?,
            // ECHILD is impossible: init is our child and is reaped once. The cell is gone in either
            // case.
            Err(_) => return Some(Used::default()),
        };
        self.is_reaped = true;
        if let Some(domain) = self.domain.filter(|_| !collected.is_success) {
            // No other process ends this cell's processes, and their pids are not known here: all
            // cells of this supervisor must end.
            tracing::error!("an init did not end its cell: every cell ends");
            if let Err(errno) = bare::end_all(domain) {
                tracing::error!(%errno, "cells could not be ended at once");
            }
        }
        Some(collected.used)
    }

    /// Takes the network namespace of a cell that is gone, if it is to be kept.
    pub(crate) fn take_network(&mut self) -> Option<KeptNetwork> {
        self.kept_network.take().filter(|_| self.is_reaped)
    }

    /// Returns the cell's peak memory as its control group counts it, and otherwise `largest`, that
    /// of a process.
    pub(crate) fn peak_memory(&self, largest: u64) -> (u64, PeakSource) {
        match self.group.as_ref().and_then(ControlGroup::peak) {
            Some(peak) => (peak, PeakSource::Cgroup),
            None => (largest, PeakSource::LargestProcess),
        }
    }

    /// Consumes the event that the kernel ran out of this cell's memory. Returns false if there is
    /// none: the notification was for an earlier cell in this slot.
    pub(crate) fn took_out_of_memory(&self) -> bool {
        self.out_of_memory.as_ref().is_some_and(|event| event.read().is_ok())
    }

    /// Checks, if a check is due, whether the cell thrashes. Returns true if its programs make no
    /// progress for lack of memory.
    pub(crate) fn crawls(&mut self, now: Instant) -> bool {
        self.crawl.check(self.group.as_ref(), now)
    }

    /// Returns true if the kernel has killed a process because of this cell's memory limit.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        self.group.as_ref().is_some_and(ControlGroup::ran_out_of_memory)
    }
}

/// Returns the limits of a job: the profile's, lowered to those that the front end sent.
pub(crate) fn clamp(own: &Limits, asked: &Limits) -> Limits {
    own.lowered(&model::call::Asked {
        wall: Some(asked.wall),
        memory: Some(asked.memory),
        processes: Some(asked.processes),
        output: asked.output,
    })
}
