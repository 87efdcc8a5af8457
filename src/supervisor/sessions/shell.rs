//! A session's shell: a cell with one shell in it, and the calls it runs one after the other.

mod background;
mod ending;
mod input_query;
mod reports;
mod shown;
mod stopping;

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::cpu_time::CpuTime;
use super::loops;
use super::mailbox::{CallRequest, Mailbox, PendingCall, Undelivered, Waiting};
use crate::cells::cell::Cell;
use crate::cells::cell::CellSocket;
use crate::cells::dying::DeathCheck;
use crate::cells::exit::{self, LINGER};
use crate::cells::handover;
use crate::cells::queued_job::QueuedJob;
use crate::cells::streams::FarEnds;
use cell::report::{self, FromInit, InitCounters, PayloadEnd, Ticks};
use cell::sealed::Overlays;
use cell::size::Sizes;
use cell::{Design, proc_files};
use model::call::{Argv, Cwd, Env};
use model::job::{JobMode, Limits, ListChanges, StartDirectory};
use model::outcome::{
    DeniedCall, Ended, Failure, FilesChanged, Force, Outcome, ShellAfter, Timings, Waits,
};
use model::receipt::Receipt;
use model::shells::ShellKind;
use model::wire::{Block, CallId, StdinKind};
use sys::socket::{self, PacketWait};

use background::BackgroundJob;
pub(crate) use background::MAX_JOBS;
use shown::ShownEnd;

/// The signal that ends what runs in a shell that is ended.
const KILLED: u8 = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShellStage {
    /// It waits for a call.
    Idle,
    /// A call runs.
    Running,
    /// TERM is sent to the call's processes; KILL comes next.
    Terminated,
    /// INT is sent to the shell; it comes back in time, or is killed.
    Interrupted,
    /// The shell shows the call's end; init is asked for its numbers.
    Counting,
    /// Its cell is on its way out.
    Ending,
}

/// The event that a step passes to the loop.
#[derive(Debug)]
pub(crate) enum ShellEvent {
    None,
    /// Answer to a question about the input of a call, by its number.
    Input(CallId, u32, Waits),
    /// A call runs next to the shell, which waits for the next call.
    Left {
        call: CallId,
        stdin: StdinKind,
        turn: u64,
        ends: Box<FarEnds>,
    },
    /// A call is over, and the shell waits for the next.
    Ended(CallId, Box<Ended>),
    /// The cell is collected, with the calls that ran in it.
    Gone(Vec<(CallId, Box<Ended>)>),
}

/// A cell with the shell of a session.
#[derive(Debug)]
pub(crate) struct Shell {
    pub cell: Cell,
    kind: ShellKind,
    /// Of the whole cell; time and output are each call's own.
    pub limits: Limits,
    pub receipt: Receipt,
    /// The procfs directory of its shell.
    process: OwnedFd,
    ids: ProcessIds,
    /// Of its root, which each call is shown the age of.
    sizes: Rc<Sizes>,
    /// Of its root, whose names each call looks up again.
    overlays: Rc<Overlays>,
    stage: ShellStage,
    deadline: Option<Instant>,
    /// Once it is ending: when to look whether its call can be answered before that.
    look: DeathCheck,
    /// Number of its first call on the mailbox.
    first: u64,
    current: Option<Current>,
    jobs: Vec<BackgroundJob>,
    /// Number of the last question about an input.
    questions: u32,
    /// Processor time that earlier calls have used.
    used: CpuTime,
    /// Why the shell could not start.
    exec: Option<Failure>,
    end: Option<(PayloadEnd, Vec<DeniedCall>)>,
    /// Request for a list of changes in the workspace, and the last list from init.
    changes: ListChanges,
    changed: Option<FilesChanged>,
}

/// The process ids of a shell and of its init, in the procfs of the supervisor.
#[derive(Debug)]
struct ProcessIds {
    shell: String,
    init: String,
}

impl ProcessIds {
    /// Reads them before the shell is executed (proc_pid_stat(5)): nothing of the cell has run yet.
    fn read(process: &OwnedFd) -> Result<Self, Errno> {
        let stat = proc_files::read_lossy(process, "stat")?;
        let shell = stat.split_once(' ').map(|(shell, _)| shell.to_owned());
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
        let init = fields.and_then(|fields| fields.split_ascii_whitespace().nth(1));
        let (Some(shell), Some(init)) = (shell, init) else { return Err(Errno::EPROTO) };
        Ok(Self { shell, init: init.to_owned() })
    }
}

/// The call that runs.
#[derive(Debug)]
struct Current {
    call: CallId,
    pending: PendingCall,
    /// Bytes of its report that have not come whole yet: of a background call alone.
    report: Vec<u8>,
    /// Bytes of its report that were read.
    rung: usize,
    /// Its end, once the shell shows it.
    reported: Option<ShownEnd>,
    looking: shown::Looking,
    /// Counters at its end, while init confirms that it has sent an interrupt.
    counted: Option<(InitCounters, Vec<DeniedCall>)>,
    /// How long it took until then; what init looks at after that is not the command's time.
    took: Option<Duration>,
    /// Why the supervisor ends it; it outweighs what the shell says.
    stopped: Option<Outcome>,
    /// True if the shell was sent an INT for it.
    is_interrupted: bool,
    asking: input_query::InputQuery,
    force: Force,
    /// When it began, in the unit of its processes' start times.
    began: Ticks,
    started: Instant,
    timings: Timings,
    /// Present until a background call runs in its copy of the shell.
    leaving: Option<Leaving>,
}

/// A background call before its process is known.
#[derive(Debug)]
struct Leaving {
    /// Number of the call in its shell.
    turn: u64,
    ends: FarEnds,
    stdin: StdinKind,
}

impl Shell {
    /// Starts the shell that the job asks for in a cell that is offered.
    ///
    /// # Errors
    /// The step that failed, with the cell, which is killed and known by its slot.
    pub(crate) fn begin(
        mut cell: Cell,
        design: &Design,
        ready: &QueuedJob,
        receipt: Receipt,
        process: OwnedFd,
        first: u64,
    ) -> Result<Self, Box<(Errno, Cell)>> {
        // Each of its jobs brings streams.
        cell.streams = None;
        let (sizes, overlays) = match design.root() {
            Ok(root) => (Rc::clone(&root.sizes), Rc::clone(&root.overlays)),
            Err(errno) => return Err(Box::new((errno, cell))),
        };
        let ids = match ProcessIds::read(&process) {
            Ok(ids) => ids,
            Err(errno) => return Err(Box::new((errno, cell))),
        };
        let kind = ready.start.session.map_or_else(ShellKind::default, |within| within.shell);
        let begun =
            block(kind, first).and_then(|block| handover::shell(&cell, design, &block, ready));
        let begun = begun.and_then(|()| shown::show_init(&cell, design, &process));
        if let Err(errno) = begun {
            return Err(Box::new((errno, cell)));
        }
        Ok(Self {
            cell,
            kind,
            limits: ready.limits,
            receipt,
            process,
            ids,
            sizes,
            overlays,
            stage: ShellStage::Idle,
            deadline: None,
            look: DeathCheck::default(),
            first,
            current: None,
            jobs: Vec::new(),
            questions: 0,
            used: CpuTime::default(),
            exec: None,
            end: None,
            changes: ready.start.changes,
            changed: None,
        })
    }

    /// Returns whether a call can be handed to it now.
    pub(crate) fn is_idle(&self) -> bool {
        self.stage == ShellStage::Idle
    }

    /// Returns whether a call runs in the shell or next to it, or the shell is ending.
    pub(crate) fn is_used(&self) -> bool {
        !self.is_idle() || self.has_jobs()
    }

    /// Returns whether commands have left processes behind: children of the shell, or of init, which takes
    /// those whose parents have ended. True where the kernel does not list children (proc_pid_task(5)).
    pub(crate) fn has_children(&self, proc: &OwnedFd) -> bool {
        let ProcessIds { shell, init } = &self.ids;
        let children = |pid| proc_files::read_lossy(proc, &format!("{pid}/task/{pid}/children"));
        match (children(shell), children(init)) {
            (Ok(shells), Ok(inits)) => !shells.trim().is_empty() || inits.trim() != shell,
            (_, _) => true,
        }
    }

    /// Returns whether it takes no more calls.
    pub(crate) fn is_ending(&self) -> bool {
        self.stage == ShellStage::Ending
    }

    /// Returns whether a call runs in the shell or next to it.
    pub(crate) fn runs(&self, call: CallId) -> bool {
        let current = self.current.iter().map(|current| current.call);
        current.chain(self.jobs.iter().map(|job| job.call)).any(|one| one == call)
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let jobs = self.jobs.iter().filter_map(|job| job.deadline);
        let crawl = self.cell.crawl.at().filter(|_| self.stage != ShellStage::Ending);
        [self.deadline, self.look.at(), crawl].into_iter().flatten().chain(jobs).min()
    }

    /// Returns the report FIFO of the running call, to be polled.
    pub(crate) fn report(&self) -> Option<&OwnedFd> {
        self.current.as_ref().map(|current| &current.pending.end)
    }

    /// Delivers a call to the shell. Returns its sequence number and the far ends of its streams; a background
    /// call has no ends yet, as it begins with [`ShellEvent::Left`].
    ///
    /// # Errors
    /// An error of the mailbox; nothing ran.
    pub(crate) fn take(
        &mut self,
        ready: &QueuedJob,
        mailbox: &mut Mailbox,
        built: Duration,
    ) -> Result<Option<(u64, FarEnds)>, Undelivered> {
        // Nothing is laid out yet.
        let undelivered = |errno| Undelivered { errno, shell: Waiting::Here };
        let directory = ready.start.session.map(|within| within.directory);
        let mode = ready.start.session.map_or(JobMode::Foreground, |within| within.mode);
        let stdin = ready.start.stdin.kind();
        let order = CallRequest {
            script: ready.attachments.script.as_ref().ok_or(Errno::EBADF).map_err(undelivered)?,
            input: ready.attachments.stdin.as_ref(),
            env: &ready.block.env,
            cwd: (directory == Some(StartDirectory::Given)).then_some(&ready.block.cwd),
            stdin,
            mode,
            shell: self.kind,
        };
        let turn = mailbox.next().saturating_sub(self.first).saturating_add(1);
        // Before the shell continues, and may start a process.
        let began = stopping::ticks().map_err(undelivered)?;
        self.sizes.age(self.cell.slot).map_err(undelivered)?;
        let (pending, ends) =
            mailbox.deliver(&order, || self.overlays.end_refresh().unwrap_or_default())?;
        let started = Instant::now();
        let (begun, leaving) = match mode {
            JobMode::Foreground => (Some((turn, ends)), None),
            JobMode::Background => (None, Some(Leaving { turn, ends, stdin })),
        };
        let handed_over = started.saturating_duration_since(ready.arrived).saturating_sub(built);
        self.current = Some(Current {
            call: ready.start.call,
            pending,
            report: Vec::new(),
            rung: 0,
            reported: None,
            looking: shown::Looking::default(),
            counted: None,
            took: None,
            stopped: None,
            is_interrupted: false,
            asking: input_query::InputQuery::default(),
            force: Force::None,
            began,
            started,
            timings: Timings { built, handed_over, ..Timings::default() },
            leaving,
        });
        self.stage = ShellStage::Running;
        self.deadline = started.checked_add(ready.limits.wall);
        if !self.has_jobs() {
            self.cell.crawl.begin(started, self.limits.memory);
        }
        Ok(begun)
    }

    /// Reads a message of the payload: either it cannot exec, or it has.
    pub(crate) fn read_job(&mut self) -> ShellEvent {
        match self.read_exec_failure() {
            Ok(()) | Err(Errno::EAGAIN) => {}
            Err(_) => self.cell.stop_listening(CellSocket::Job),
        }
        ShellEvent::None
    }

    /// Reads a message that the shell may have sent about its exec.
    fn read_exec_failure(&mut self) -> Result<(), Errno> {
        let failure = exit::read_failure(&self.cell, self.kind.name(), &Cwd::workspace())?;
        self.exec = failure.or(self.exec.take());
        Ok(())
    }

    /// Reads a message of init into `room`, which fits the longest report.
    pub(crate) fn read_control(&mut self, room: &mut Vec<u8>, mailbox: &mut Mailbox) -> ShellEvent {
        match socket::receive_into(&self.cell.control, room, PacketWait::No) {
            Ok(received) if received.bytes > 0 => {}
            Err(Errno::EAGAIN) => return ShellEvent::None,
            // The pidfd reports the end.
            Ok(_) | Err(_) => {
                self.cell.stop_listening(CellSocket::Control);
                return ShellEvent::None;
            }
        };
        match postcard::take_from_bytes::<FromInit>(room) {
            Ok((FromInit::Counted(counts), rest)) => {
                let (denials, changed) = report::appended(rest, counts.denied);
                self.changed = changed;
                // Otherwise an answer that no call waits for any more.
                if self.stage == ShellStage::Counting {
                    return self.counted(counts, denials, mailbox);
                }
            }
            Ok((FromInit::Confirmed { is_ending }, _)) => {
                return self.confirmed(is_ending, mailbox);
            }
            Ok((FromInit::Ended(end), rest)) => {
                self.take_end(end, rest);
                self.stage = ShellStage::Ending;
                let now = Instant::now();
                self.deadline = Some(now + LINGER);
                self.look.begin(now);
            }
            Ok((FromInit::Failed { step, errno }, _)) => {
                self.exec = Some(Failure::Setup { step: step.name().to_owned(), errno });
            }
            Ok((FromInit::Shown { number, shell }, _)) => {
                return self.shown(number, shell, Instant::now());
            }
            Ok((FromInit::Input { number, waits }, _)) => return self.answered(number, waits),
            Ok((FromInit::JobEnded(job), denied)) => {
                return self.job_ended(&job, denied, mailbox);
            }
            Ok((FromInit::Sealed | FromInit::Network, _)) | Err(_) => {}
        }
        ShellEvent::None
    }

    /// Takes the end of the cell as init reported it.
    fn take_end(&mut self, end: PayloadEnd, rest: &[u8]) {
        let (denials, changed) = report::appended(rest, end.counts.denied);
        self.end = Some((end, denials));
        self.changed = changed.or(self.changed.take());
    }

    /// Takes the counters at the end of a call. An interrupt for it may be on its way to init: until it has been sent, the
    /// shell is not known to outlast it.
    fn counted(
        &mut self,
        counts: InitCounters,
        denials: Vec<DeniedCall>,
        mailbox: &mut Mailbox,
    ) -> ShellEvent {
        let Some(current) = &mut self.current else { return ShellEvent::None };
        if !current.is_interrupted {
            return self.over(counts, denials, mailbox);
        }
        current.counted = Some((counts, denials));
        // Init is gone, which its pidfd reports.
        if let Err(errno) = self.cell.tell(&report::ToInit::Confirm) {
            tracing::debug!(%errno, "a session's cell could not be asked");
        }
        ShellEvent::None
    }

    /// Ends the call, unless the interrupt ends the shell as well. fish takes its time to end by one.
    fn confirmed(&mut self, is_ending: bool, mailbox: &mut Mailbox) -> ShellEvent {
        let current = self.current.as_mut().filter(|_| self.stage == ShellStage::Counting);
        match current.and_then(|current| current.counted.take()) {
            Some(_) if is_ending || self.kind == ShellKind::Fish => {
                self.kill(Instant::now());
                ShellEvent::None
            }
            Some((counts, denials)) => self.over(counts, denials, mailbox),
            None => ShellEvent::None,
        }
    }

    /// Ends the call: the shell waits.
    fn over(
        &mut self,
        counts: InitCounters,
        denials: Vec<DeniedCall>,
        mailbox: &mut Mailbox,
    ) -> ShellEvent {
        let Some(current) = self.current.take() else { return ShellEvent::None };
        let Current { call, pending, reported, took, mut stopped, started, timings, force, .. } =
            current;
        if current.leaving.is_some() {
            let step = "starting a process beside the shell".to_owned();
            let failure = Failure::Setup { step, errno: report::raw(Errno::EAGAIN) };
            stopped.get_or_insert(Outcome::Failed(failure));
        }
        let Some(reported) = reported else { return ShellEvent::None };
        let wall = took.unwrap_or_else(|| started.elapsed());
        mailbox.clear_up(pending);
        self.stage = ShellStage::Idle;
        self.deadline = None;
        let total = CpuTime::of(&counts);
        let usage = self.usage(total, counts.max_rss, wall);
        let ended = Ended {
            usage,
            denials,
            timings: Timings { run: wall, ..timings },
            shell: ShellAfter::Kept { cwd: reported.cwd },
            force,
            files_changed: self.files_changed(),
            ..Ended::new(stopped.unwrap_or(Outcome::Exited { code: reported.status }))
        };
        ShellEvent::Ended(call, Box::new(ended))
    }
}

/// Returns the program that a session's cell executes.
fn block(shell: ShellKind, first: u64) -> Result<Block, Errno> {
    let argv = Argv::new(loops::program(shell, first)).map_err(|_| Errno::EINVAL)?;
    Ok(Block { argv, env: Env::default(), cwd: Cwd::workspace() })
}
