//! Pid 1 of a cell: reaps, answers for refused calls, watches memory and open files, reports, ends the cell.
//!
//! It never execs. Its end is the cell's end: the kernel kills every other process of
//! the pid namespace with it (pid_namespaces(7)).

mod beside;
mod changes;
mod end;
mod input;
mod job;
mod open_files;
mod shown;
mod tally;
mod watch;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::bare::Domain;
use super::enter::CellSpec;
use super::files::{Files, Then};
use super::mediate::mediator::{Mediator, Memory};
use super::report::{self, First, FromInit, OverLimit, ToInit};
use super::{Design, ProcKind, Shared, limits, proc};
use model::profile::{ProcView, Profile};
use model::receipt::MemoryHold;
use sys::process::{self, Dumpable, Reaped};
use sys::socket::{self, PacketWait};
use sys::{Result, mount};

use beside::Followed;
use open_files::{Bounds, OpenFiles};
use watch::Watch;

/// Children that are reaped in one turn, at most.
const REAPED: usize = 64;

/// Resources of init once its set-up is done.
#[derive(Debug)]
pub struct InitResources {
    pub procfs: Option<OwnedFd>,
    /// Held and not used: programs find them while they are.
    pub links: Option<proc::SelfLinks>,
    /// The Landlock domain that identifies its processes, in the tier without pid namespaces.
    pub domain: Option<Domain>,
}

/// Makes a procfs of this cell's pid namespace that is mounted nowhere, for the memory watch and for mediated
/// calls. Calls other than those about names and sockets need it only if the cell has no `/proc`. Returns none
/// if neither is on, or if a container forbids a procfs.
pub fn procfs(design: &Design, shared: &Shared) -> Result<Option<OwnedFd>> {
    let mediates = design.mediation.as_ref().is_some_and(|mediation| {
        mediation.has_directory() || design.profile.proc == ProcView::None
    });
    let is_hidden = design.profile.proc == ProcView::None;
    let counts = is_hidden && open_file_bounds(design, shared).is_some();
    let wanted = watches(shared) || mediates || counts;
    match shared.proc_kind {
        ProcKind::Own if wanted => {
            mount::new_filesystem(c"proc", mount::attribute::NOEXEC).map(Some)
        }
        ProcKind::Own | ProcKind::Outer => Ok(None),
    }
}

/// Returns true if init has to sum up the cell's memory, because no cgroup bounds it.
fn watches(shared: &Shared) -> bool {
    match shared.memory {
        MemoryHold::BestEffort => true,
        MemoryHold::CgroupV1 | MemoryHold::CgroupV2 => false,
    }
}

/// Returns the bounds of open files that init has to watch: none where the limits of the cell's processes hold its share.
/// A procfs of a container shows others as well, and nothing to tell them apart by.
fn open_file_bounds(design: &Design, shared: &Shared) -> Option<Bounds> {
    let Profile { limits, exec, .. } = &design.profile;
    let each = u64::from(limits::open_files(limits, exec));
    let most = limits::process_count(limits).saturating_mul(each);
    let share = shared.open_files;
    // Without a user namespace the processes of a cell are not bounded by themselves.
    let can_exceed = most > share || shared.domain.is_some();
    match shared.proc_kind {
        ProcKind::Own => can_exceed.then_some(Bounds { share, each }),
        ProcKind::Outer => None,
    }
}

/// Makes the watch over open files, if there is something to watch.
fn watch_open_files(
    entry: &CellSpec<'_>,
    procfs: Option<&OwnedFd>,
    domain: Option<Domain>,
) -> Result<Option<OpenFiles>> {
    let Some(bounds) = open_file_bounds(entry.design, entry.shared) else { return Ok(None) };
    let proc = procfs.map(OwnedFd::try_clone).transpose();
    let proc = proc.map_err(|error| super::errno_of(&error))?;
    Ok(Some(OpenFiles::new(bounds, proc, domain)))
}

/// Everything the loop changes.
struct Init<'a> {
    control: BorrowedFd<'a>,
    payload: Pid,
    domain: Option<Domain>,
    children: SignalFd,
    mediator: Mediator<'a>,
    watch: Option<Watch>,
    /// The watch over open files, where the cell's limits leave room for more than its share.
    open_files: Option<OpenFiles>,
    /// The inputs that the supervisor asks about.
    inputs: Vec<input::Asked>,
    /// The directory of the payload in a procfs, if the supervisor has sent it.
    shell_directory: Option<OwnedFd>,
    /// The jobs beside the shell.
    jobs: Followed,
    /// More children may have ended than were reaped in one turn.
    has_unreaped: bool,
    /// Bytes of memory that the cell may use: the profile's, then the job's.
    memory: u64,
    /// The workspace, if replies report the files that changed in it.
    files: Option<Files>,
    /// Init's end of the socket by which it lets the payload continue.
    beside: BorrowedFd<'a>,
    /// Summed over every process reaped.
    user_us: u64,
    system_us: u64,
    max_rss: u64,
}

/// The cell's memory as init accounts for it.
struct Account<'w> {
    limit: u64,
    watch: Option<&'w mut Watch>,
}

impl Memory for Account<'_> {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn grant_shared(&mut self, thread: i32, length: u64) -> Result<bool> {
        // The filter asks only in cells that have a watch.
        self.watch.as_mut().map_or(Ok(false), |watch| watch.grants(thread, length))
    }
}

/// Result of one round of the loop.
enum Turn {
    Again,
    /// Report this and end the cell.
    End(Reaped, Cause),
    /// The supervisor is gone: end the cell without a report.
    Alone,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Program,
    OverLimit(OverLimit),
}

/// Serves the cell until its payload has ended; returns when the end is reported.
pub(crate) fn supervise(entry: &CellSpec<'_>, ready: InitResources) -> Result<()> {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.thread_block()?;
    let children = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let InitResources { procfs, links: _links, domain } = ready;
    let watched = match &procfs {
        Some(procfs) if watches(entry.shared) => {
            Some(procfs.try_clone().map_err(|error| super::errno_of(&error))?)
        }
        Some(_) | None => None,
    };
    let counted = watch_open_files(entry, procfs.as_ref(), domain)?;
    let mediator = Mediator::new(entry.design, entry.shared, procfs)?;
    let mut init = Init {
        control: entry.control,
        // Set by `meet`.
        payload: Pid::from_raw(0),
        domain,
        children,
        memory: entry.design.profile.limits.memory,
        files: None,
        beside: entry.handoff.0,
        mediator,
        inputs: Vec::new(),
        shell_directory: None,
        jobs: Followed::default(),
        has_unreaped: false,
        watch: watched.map(|proc| {
            let profile = &entry.design.profile;
            // In the host's network namespace sockets are not the cell's alone.
            let has_sockets = domain.is_none() && !profile.families.is_empty();
            let socket = has_sockets.then_some(entry.shared.socket_bytes);
            Watch::new(proc, profile.limits.memory, domain, socket)
        }),
        open_files: counted,
        user_us: 0,
        system_us: 0,
        max_rss: 0,
    };
    // The payload sends its listener before any call that needs an answer, or closes its end.
    init.meet(entry)?;
    init.rehearse()?;
    loop {
        match init.turn()? {
            Turn::Again => {}
            Turn::End(reaped, cause) => {
                init.end_others()?;
                init.last_look(cause)?;
                init.report(reaped, cause)?;
                return init.end_domain();
            }
            Turn::Alone => return init.end_domain(),
        }
    }
}

impl Init<'_> {
    /// Receives the payload's pid and its listener.
    fn meet(&mut self, entry: &CellSpec<'_>) -> Result<()> {
        let CellSpec { handoff, job, .. } = *entry;
        let (ours, theirs) = handoff;
        // With these copies closed, the end of the payload's side shows here, and to the supervisor,
        // which takes it for the exec.
        super::fds::close(theirs)?;
        super::fds::close(job)?;
        self.payload = payload_pid(ours)?;
        let mut buffer = [0; 8];
        let mut received = socket::receive(ours, &mut buffer, PacketWait::Yes)?;
        self.mediator.attach(received.fds.first_mut().and_then(Option::take));
        Ok(())
    }

    /// Waits for one round of events and serves it.
    fn turn(&mut self) -> Result<Turn> {
        let timeout = self.timeout();
        // A negative descriptor is ignored by poll(2); nix has no such value, so the control
        // socket stands in, asked for nothing.
        let listener = self.mediator.listener().unwrap_or(self.control);
        let own = [self.control, self.children.as_fd(), listener];
        let mut events: Vec<_> = own.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).into();
        let waited = self.mediator.waited();
        events.extend(waited.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLOUT)));
        match poll(&mut events, timeout) {
            Err(Errno::EINTR) => return Ok(Turn::Again),
            result => result?,
        };
        let mut happened =
            events.into_iter().map(|event| event.revents().unwrap_or(PollFlags::empty()));
        let [control, children, notified] =
            std::array::from_fn(|_| happened.next().unwrap_or(PollFlags::empty()));
        let is_woken = happened.any(|events| !events.is_empty());
        let mut account = Account { limit: self.memory, watch: self.watch.as_mut() };
        self.mediator.serve(notified, &mut account)?;
        self.mediator.retry(is_woken)?;
        if !control.is_empty()
            && let Turn::Alone = self.obey()?
        {
            return Ok(Turn::Alone);
        }
        if (!children.is_empty() || self.has_unreaped)
            && let Some(reaped) = self.reap()?
        {
            return Ok(Turn::End(reaped, Cause::Program));
        }
        self.look_further()?;
        let now = Instant::now();
        self.look_at_inputs(now)?;
        match self.look_at_memory(now)? {
            Turn::Again => self.look_at_open_files(now),
            end @ (Turn::End(..) | Turn::Alone) => Ok(end),
        }
    }

    /// Returns the longest time that poll(2) may wait.
    fn timeout(&self) -> PollTimeout {
        if self.has_unreaped || self.files.as_ref().is_some_and(Files::is_under_way) {
            return PollTimeout::ZERO;
        }
        let watch = self.watch.as_ref().map_or(PollTimeout::NONE, Watch::timeout);
        let inputs = self.inputs.iter().map(input::Asked::timeout);
        let again = self.mediator.pending_timeout().map_or(PollTimeout::NONE, |time| {
            // Rounded up: a shorter wait would come too early, and turn for nothing.
            let time = time.saturating_add(Duration::from_micros(999));
            PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO)
        });
        // No timeout is -1, which would count as less.
        let open_files = self.open_files.as_ref().map_or(PollTimeout::NONE, OpenFiles::timeout);
        let some = [watch, again, open_files].into_iter().filter(|one| *one != PollTimeout::NONE);
        some.chain(inputs).min().unwrap_or(PollTimeout::NONE)
    }

    fn obey(&mut self) -> Result<Turn> {
        let mut buffer = [0; 512];
        let mut received = socket::receive(self.control, &mut buffer, PacketWait::No)?;
        if received.bytes == 0 {
            return Ok(Turn::Alone);
        }
        let bytes = buffer.get(..received.bytes).unwrap_or_default();
        match report::decode::<ToInit>(bytes)? {
            ToInit::Seal => {
                process::set_dumpable(Dumpable::No)?;
                // Denials of the probes are not the job's.
                self.mediator.forget_refusals();
                report::send(self.control, &FromInit::Sealed, &[])?;
            }
            ToInit::Watch { memory } => {
                self.memory = self.memory.min(memory);
                if let Some(watch) = &mut self.watch {
                    watch.start(memory);
                }
            }
            // ESRCH: the payload has ended and its report is next.
            ToInit::Terminate => sent(kill(Pid::from_raw(-1), Signal::SIGTERM))?,
            ToInit::End => return Ok(Turn::Alone),
            ToInit::Interrupt { since } => self.interrupt(since)?,
            ToInit::Signal { signal, since } => self.signal_job(signal, since)?,
            ToInit::Look(first) => {
                let files = self.files.insert(Files::new(self.memory));
                if first == First::Something {
                    files.begin(Then::Begin);
                }
            }
            ToInit::LookAtShell(look) => self.look_at_shell(&look)?,
            ToInit::Confirm => {
                let is_ending = self.is_shell_ending();
                report::send(self.control, &FromInit::Confirmed { is_ending }, &[])?;
            }
            ToInit::ShellDirectory => {
                self.shell_directory = received.fds.first_mut().and_then(Option::take);
            }
            ToInit::Follow { pid, input } => self.follow(pid, input)?,
            ToInit::SignalJob { signal, pid } => self.signal_beside(signal, pid)?,
            ToInit::AskInput { number, input } => self.asked(number, input)?,
            ToInit::Mapped => return Err(Errno::EPROTO),
        }
        Ok(Turn::Again)
    }

    /// Reaps children that have ended; the payload's end is the cell's. Those beyond the first [`REAPED`] wait for the next
    /// turn: programs that make and leave processes all the time must not keep init from orders and from the memory.
    fn reap(&mut self) -> Result<Option<Reaped>> {
        while self.children.read_signal()?.is_some() {}
        self.has_unreaped = true;
        for _ in 0..REAPED {
            match process::reap() {
                Ok(Some(reaped)) => {
                    self.add(&reaped);
                    if reaped.pid == self.payload.as_raw() {
                        return Ok(Some(reaped));
                    }
                    self.job_reaped(reaped);
                }
                Ok(None) | Err(Errno::ECHILD) => {
                    self.has_unreaped = false;
                    break;
                }
                Err(errno) => return Err(errno),
            }
        }
        self.jobs_over()?;
        Ok(None)
    }
}

/// Receives the payload's pid, its first message.
fn payload_pid(handoff: BorrowedFd<'_>) -> Result<Pid> {
    let mut buffer = [0; 4];
    let received = socket::receive(handoff, &mut buffer, PacketWait::Yes)?;
    match received.bytes {
        4 => Ok(Pid::from_raw(i32::from_ne_bytes(buffer))),
        _ => Err(Errno::ECHILD),
    }
}

/// Ignores ESRCH: every process that the signal was meant for has ended.
fn sent(result: Result<()>) -> Result<()> {
    match result {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => Err(errno),
    }
}
