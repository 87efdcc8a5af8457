//! Pid 1 of a cell: reaps children, answers mediated calls, watches memory and open files, sends
//! reports and ends the cell.
//!
//! Init never execs. When it exits, the kernel kills every other process of the pid namespace
//! (pid_namespaces(7)).

mod background;
mod children;
mod input;
mod job;
mod open_files;
mod payload;
mod tally;
pub mod unresolved;
mod watch;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::bare::Domain;
use super::files::{Files, Then};
use super::mediate::mediator::{Mediator, Memory};
use super::report::{self, First, FromInit, OverLimit, ShellLook, ShownState, ToInit};
use super::spec::CellSpec;
use super::{Design, ProcKind, Shared, limits, proc};
use model::outcome::Waits;
use model::profile::{ProcView, Profile};
use model::receipt::MemoryHold;
use sys::process::{self, Dumpable, End, Reaped, Used};
use sys::socket::{self, PacketWait};
use sys::{Result, mount};

use background::{BackgroundJobs, Job};
use children::Children;
use input::InputQueries;
use open_files::{Bounds, OpenFiles};
use payload::Payload;
use unresolved::UnresolvedNames;
use watch::Watch;

/// Maximum number of children that are reaped in one turn.
const MAX_REAPED: usize = 64;
/// Maximum time that init waits for killed processes in order to add up their usage. A process in a
/// slow system call ends late, and the client waits.
const MAX_END_WAIT: Duration = Duration::from_millis(200);
/// The same for a cell without a pid namespace, where no other process would reap them.
const MAX_DOMAIN_END_WAIT: Duration = Duration::from_secs(60);

/// Resources that the set-up of init leaves to its loop.
#[derive(Debug)]
pub struct InitResources {
    pub procfs: Option<OwnedFd>,
    /// Kept open only because the links resolve no longer than that.
    pub links: Option<proc::SelfLinks>,
    /// The Landlock domain that identifies the cell's processes, in the tier without pid
    /// namespaces.
    pub domain: Option<Domain>,
    /// Socket for questions for names, in cells where no name resolves.
    pub questions: Option<OwnedFd>,
}

/// Mounts a procfs of this cell's pid namespace outside of every mount tree, for the memory watch
/// and for mediated calls. Calls other than those about names and sockets need it only if the cell
/// has no `/proc`. Returns `None` if nothing needs it, or if a container forbids a new procfs.
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

/// Returns true if init must add up the cell's memory, because no control group limits it.
fn watches(shared: &Shared) -> bool {
    match shared.memory {
        MemoryHold::BestEffort => true,
        MemoryHold::CgroupV1 | MemoryHold::CgroupV2 => false,
    }
}

/// Returns the bounds for the watch over open files; `None` if the limits of single processes
/// already keep the cell below its share. A container's procfs shows processes of other cells too,
/// and cannot be used.
fn open_file_bounds(design: &Design, shared: &Shared) -> Option<Bounds> {
    let Profile { limits, exec, .. } = &design.profile;
    let each = u64::from(limits::open_files(limits, exec));
    let most = limits::process_count(limits).saturating_mul(each);
    let share = shared.open_files;
    // Without a user namespace RLIMIT_NPROC does not count the cell's processes separately.
    let can_exceed = most > share || shared.domain.is_some();
    match shared.proc_kind {
        ProcKind::Own => can_exceed.then_some(Bounds { share, each }),
        ProcKind::Outer => None,
    }
}

/// Makes the watch over open files, if the cell needs one.
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

/// State of the event loop.
struct Init<'a> {
    control: BorrowedFd<'a>,
    payload: Payload,
    domain: Option<Domain>,
    children: Children,
    mediator: Mediator<'a>,
    watch: Option<Watch>,
    /// Present if the limits of single processes allow more open files than the cell's share.
    open_files: Option<OpenFiles>,
    /// Inputs for which the supervisor waits until a process reads them.
    inputs: InputQueries,
    /// True if the last command of the session has failed.
    has_failed: bool,
    /// Names that programs asked for, where no name resolves.
    unresolved: UnresolvedNames,
    /// Background jobs of the session's shell.
    jobs: BackgroundJobs,
    /// Memory limit of the cell in bytes: the profile's at first, then the job's.
    memory: u64,
    /// The workspace scanner, if replies list changed files.
    files: Option<Files>,
    /// Init's end of its socket pair with the payload, which waits there for the first scan.
    handoff: BorrowedFd<'a>,
}

/// The memory limit and watch that answers to mediated calls depend on.
struct Account<'w> {
    limit: u64,
    watch: Option<&'w mut Watch>,
}

impl Memory for Account<'_> {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn grant_shared(&mut self, thread: i32, length: u64) -> Result<bool> {
        // The filter sends these calls to init only in cells that have a watch.
        self.watch.as_mut().map_or(Ok(false), |watch| watch.grants(thread, length))
    }

    fn grant_segment(&mut self, thread: i32, length: u64) -> Result<bool> {
        self.watch.as_mut().map_or(Ok(false), |watch| watch.grants_segment(thread, length))
    }

    fn expect_subreaper(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.expect_subreaper();
        }
    }
}

/// Result of one round of the loop.
enum Turn {
    Again,
    /// Report this and end the cell.
    End(Reaped, Cause),
    /// The supervisor has closed its socket, or demands the end: end the cell without a report.
    SupervisorGone,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Program,
    OverLimit(OverLimit),
}

/// Runs the event loop until the payload has ended and its end is reported.
pub(crate) fn supervise(entry: &CellSpec<'_>, ready: InitResources) -> Result<()> {
    let children = Children::new()?;
    let InitResources { procfs, links: _links, domain, questions } = ready;
    let watched = match &procfs {
        Some(procfs) if watches(entry.shared) => {
            Some(procfs.try_clone().map_err(|error| super::errno_of(&error))?)
        }
        Some(_) | None => None,
    };
    let counted = watch_open_files(entry, procfs.as_ref(), domain)?;
    let mediator = Mediator::new(entry, procfs)?;
    let mut init = Init {
        control: entry.control,
        // Set by `meet`.
        payload: Payload::default(),
        domain,
        children,
        memory: entry.design.profile.limits.memory,
        files: None,
        handoff: entry.handoff.0,
        mediator,
        inputs: InputQueries::default(),
        has_failed: false,
        unresolved: UnresolvedNames::new(questions),
        jobs: BackgroundJobs::default(),
        watch: watched.map(|proc| {
            let profile = &entry.design.profile;
            // In the host's network namespace, sockets of other processes would be counted too.
            let has_sockets = domain.is_none() && !profile.families.is_empty();
            let socket = has_sockets.then_some(entry.shared.socket_bytes);
            Watch::new(proc, profile.limits.memory, domain, socket)
        }),
        open_files: counted,
    };
    // The payload sends its listener before its first call that needs an answer, or closes its end.
    init.meet(entry)?;
    init.rehearse()?;
    loop {
        match init.turn()? {
            Turn::Again => {}
            Turn::End(reaped, cause) => {
                init.children.end_within(MAX_END_WAIT)?;
                // Only init is left in the cell. Skipped for a cell that must end at once.
                let changed = match cause {
                    Cause::Program => init.files.as_mut().map(Files::last),
                    Cause::OverLimit(_) => None,
                };
                init.report(reaped, cause, changed.as_ref())?;
                break;
            }
            Turn::SupervisorGone => break,
        }
    }
    // In the tier without pid namespaces, the kernel does not end the other processes with init.
    match init.domain {
        None => Ok(()),
        Some(_) => init.children.end_within(MAX_DOMAIN_END_WAIT),
    }
}

impl Init<'_> {
    /// Receives the payload's pid and its listener.
    fn meet(&mut self, entry: &CellSpec<'_>) -> Result<()> {
        let CellSpec { handoff, job, .. } = *entry;
        let (ours, theirs) = handoff;
        // Once these copies are closed, the closing of the payload's end is visible here and to the
        // supervisor, which interprets it as the exec.
        super::fds::close(theirs)?;
        super::fds::close(job)?;
        self.payload.pid = payload_pid(ours)?;
        let mut buffer = [0; 8];
        let mut received = socket::receive(ours, &mut buffer, PacketWait::Yes)?;
        self.mediator.attach(received.fds.first_mut().and_then(Option::take));
        Ok(())
    }

    /// Waits for events and handles one round of them.
    fn turn(&mut self) -> Result<Turn> {
        let timeout = self.timeout();
        // poll(2) ignores negative descriptors, but nix cannot express one: the control socket,
        // polled for no events, takes the listener's place.
        let listener = self.mediator.listener().unwrap_or(self.control);
        let questions = self.unresolved.socket().unwrap_or(self.control);
        let always = [self.control, self.children.signals.as_fd(), listener, questions];
        let mut events: Vec<_> = always.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).into();
        let waited = self.mediator.waited();
        events.extend(waited.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLOUT)));
        match poll(&mut events, timeout) {
            Err(Errno::EINTR) => return Ok(Turn::Again),
            result => result?,
        };
        let mut received =
            events.into_iter().map(|event| event.revents().unwrap_or(PollFlags::empty()));
        let [control, children, notified, asked] =
            std::array::from_fn(|_| received.next().unwrap_or(PollFlags::empty()));
        let is_woken = received.any(|events| !events.is_empty());
        let mut account = Account { limit: self.memory, watch: self.watch.as_mut() };
        self.mediator.serve(notified, &mut account)?;
        self.mediator.retry(is_woken)?;
        if !asked.is_empty() {
            self.unresolved.answer();
        }
        if !control.is_empty()
            && let Turn::SupervisorGone = self.obey()?
        {
            return Ok(Turn::SupervisorGone);
        }
        if (!children.is_empty() || self.children.has_unreaped)
            && let Some(reaped) = self.reap()?
        {
            return Ok(Turn::End(reaped, Cause::Program));
        }
        self.continue_scan()?;
        let now = Instant::now();
        for number in self.inputs.take_answered(now) {
            self.send(FromInit::Input { number, waits: Waits::Yes })?;
        }
        Ok(match self.exceeded(now)? {
            None => Turn::Again,
            Some(limit) => {
                // The payload itself may be waiting for a child. The cell ends in any case.
                let pid = self.payload.pid.as_raw();
                let killed = Reaped { pid, end: End::Signaled(9), used: Used::default() };
                Turn::End(killed, Cause::OverLimit(limit))
            }
        })
    }

    /// Looks at the cell's memory and open files where a look is due. Returns the exceeded limit, if
    /// there is one.
    fn exceeded(&mut self, now: Instant) -> Result<Option<OverLimit>> {
        if let Some(watch) = &mut self.watch
            && watch.is_due(now)
            && let Some(limit) = watch.exceeded(now)?
        {
            return Ok(Some(limit));
        }
        let Some(files) = self.open_files.as_mut().filter(|files| files.is_due(now)) else {
            return Ok(None);
        };
        Ok(files.exceeded(now)?.then_some(OverLimit::OpenFiles))
    }

    /// Returns the maximum time for poll(2) to wait.
    fn timeout(&self) -> PollTimeout {
        if self.children.has_unreaped || self.files.as_ref().is_some_and(Files::is_under_way) {
            return PollTimeout::ZERO;
        }
        let watch = self.watch.as_ref().map_or(PollTimeout::NONE, Watch::timeout);
        let inputs = self.inputs.timeout();
        let again = self.mediator.pending_timeout().map_or(PollTimeout::NONE, |time| {
            // Rounded up: a wait that ends too early would cause a turn without work.
            let time = time.saturating_add(Duration::from_micros(999));
            PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO)
        });
        // No timeout is -1, which would win the minimum.
        let open_files = self.open_files.as_ref().map_or(PollTimeout::NONE, OpenFiles::timeout);
        let some = [watch, inputs, again, open_files].into_iter();
        some.filter(|one| *one != PollTimeout::NONE).min().unwrap_or(PollTimeout::NONE)
    }

    /// Executes one order of the supervisor.
    fn obey(&mut self) -> Result<Turn> {
        let mut buffer = [0; 512];
        let mut received = socket::receive(self.control, &mut buffer, PacketWait::No)?;
        if received.bytes == 0 {
            return Ok(Turn::SupervisorGone);
        }
        let bytes = buffer.get(..received.bytes).unwrap_or_default();
        match report::decode::<ToInit>(bytes)? {
            ToInit::Seal => {
                process::set_dumpable(Dumpable::No)?;
                // Denials of the probes do not belong to the job.
                self.mediator.forget_refusals();
                report::send(self.control, &FromInit::Sealed, &[])?;
            }
            ToInit::Watch { memory } => {
                self.memory = self.memory.min(memory);
                if let Some(watch) = &mut self.watch {
                    watch.start(memory);
                }
            }
            // ESRCH: the payload has ended, and its report comes next.
            ToInit::Terminate => sent(kill(Pid::from_raw(-1), Signal::SIGTERM))?,
            ToInit::End => return Ok(Turn::SupervisorGone),
            ToInit::Interrupt { since } => self.payload.interrupt_command(since)?,
            ToInit::Signal { signal, since } => self.payload.signal_command(signal, since)?,
            ToInit::Look(first) => {
                let files = self.files.insert(Files::new(self.memory));
                if first == First::Something {
                    files.begin(Then::Begin);
                }
            }
            ToInit::LookAtShell(look) => self.look_at_shell(&look)?,
            ToInit::Confirm => {
                let is_ending = self.payload.is_ending();
                report::send(self.control, &FromInit::Confirmed { is_ending }, &[])?;
            }
            ToInit::ShellDirectory => {
                self.payload.directory = received.fds.first_mut().and_then(Option::take);
            }
            ToInit::Follow { pid, input } => {
                if let Some(ended) = self.jobs.follow(pid, input) {
                    self.report_job(&ended)?;
                }
            }
            ToInit::SignalJob { signal, pid } => {
                self.jobs.signal(signal, pid, self.payload.number())?;
            }
            ToInit::AskInput { number, input } => {
                let waits = self.inputs.add(number, input);
                self.send(FromInit::Input { number, waits })?;
            }
            ToInit::AskTerminal { number, call } => {
                let waits = input::waits_for_terminal(call);
                self.send(FromInit::Input { number, waits })?;
            }
            ToInit::Mapped => return Err(Errno::EPROTO),
        }
        Ok(Turn::Again)
    }

    /// Reaps children that have ended; the payload's end is the end of the cell. At most
    /// [`MAX_REAPED`] per turn: a flood of short-lived processes must not keep init from its orders
    /// and from watching memory.
    fn reap(&mut self) -> Result<Option<Reaped>> {
        self.children.clear_signals()?;
        for _ in 0..MAX_REAPED {
            let Some(reaped) = self.children.reap()? else { break };
            if reaped.pid == self.payload.pid.as_raw() {
                return Ok(Some(reaped));
            }
            self.jobs.record_reaped(reaped);
        }
        for ended in self.jobs.take_ended(self.payload.number()) {
            self.report_job(&ended)?;
        }
        Ok(None)
    }

    /// Reports the end of a background job, and drops the request about its input.
    fn report_job(&mut self, ended: &Job) -> Result<()> {
        self.inputs.remove(ended.input);
        self.send(FromInit::JobEnded(ended.report(self.counts().denied)))
    }

    /// Reports whether the shell shows the end of a call, and the counters if it does.
    fn look_at_shell(&mut self, look: &ShellLook) -> Result<()> {
        let state = self.payload.shown(look);
        self.send(FromInit::Shown { number: look.number, shell: state })?;
        match state {
            ShownState::Runs { .. } | ShownState::Unseen { .. } => Ok(()),
            ShownState::Over { status } => {
                self.has_failed = status != 0;
                self.inputs.remove(look.input);
                match &mut self.files {
                    Some(files) => {
                        files.begin(Then::Count);
                        Ok(())
                    }
                    None => self.report_counts(None),
                }
            }
        }
    }

    /// Takes one step of the running scan of the workspace. When the scan is complete, sends the
    /// message that waited for it.
    fn continue_scan(&mut self) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        let Some((then, changed)) = files.step() else { return Ok(()) };
        match then {
            Then::Begin => match socket::send(self.handoff, b"l", &[]) {
                // The payload's end is the next event.
                Ok(()) | Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(()),
                Err(errno) => Err(errno),
            },
            Then::Count => self.report_counts(Some(&changed)),
        }
    }
}

/// Returns the timeout for a poll(2) that ends at `instant`, rounded up: 0 would spin until then.
fn timeout_until(instant: Instant) -> PollTimeout {
    let wait = instant.saturating_duration_since(Instant::now());
    PollTimeout::try_from(wait + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
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

/// Ignores ESRCH: the processes that the signal was meant for have all ended.
fn sent(result: Result<()>) -> Result<()> {
    match result {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => Err(errno),
    }
}
