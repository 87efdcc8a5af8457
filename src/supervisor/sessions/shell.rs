//! A session's shell: a cell with one shell in it, and the calls it runs one after the other.

mod background;
mod current;
mod ending;
mod input_query;
mod process;
mod shown;
mod stopping;

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::cpu_time::CpuTime;
use super::loops;
use super::mailbox::{CallRequest, Lacks, Mailbox, ShellWait, Undelivered};
use crate::cells::cell::Cell;
use crate::cells::cell_life::CellLife;
use crate::cells::handover;
use crate::cells::queued_job::QueuedJob;
use crate::cells::streams::FarEnds;
use cell::Design;
use cell::report::{self, FromInit, InitCounters};
use cell::sealed::Overlays;
use cell::size::Sizes;
use model::call::{Argv, Cwd, Env};
use model::job::{JobMode, StartDirectory, Workspace};
use model::outcome::{DeniedCall, Ended, Failure, Outcome, ShellAfter, Timings, Waits};
use model::receipt::Receipt;
use model::shells::ShellKind;
use model::wire::{Block, CallId, StdinKind};

use background::BackgroundJobs;
pub(crate) use background::MAX_JOBS;
use current::{CurrentCall, Leaving};
use process::ShellProcess;

/// The signal that ends what runs in a shell that is ended.
const SIGKILL: u8 = 9;

/// The stage of a shell whose cell is not ending.
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
    /// The cell, with limits for all calls; time and output are limited for each call.
    pub life: CellLife,
    kind: ShellKind,
    pub receipt: Receipt,
    process: ShellProcess,
    /// Facts of its root, whose age is updated for each call.
    sizes: Rc<Sizes>,
    /// Overlays of its root, whose names each call looks up again.
    overlays: Rc<Overlays>,
    stage: ShellStage,
    /// Number of its first call on the mailbox.
    first: u64,
    current: Option<CurrentCall>,
    jobs: BackgroundJobs,
    /// Number of the last question about an input.
    questions: u32,
    /// Processor time that earlier calls have used.
    used: CpuTime,
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
        let root = match design.root() {
            Ok(root) => root,
            Err(errno) => return Err(Box::new((errno, cell))),
        };
        let kind = ready.start.session.map_or_else(ShellKind::default, |within| within.shell);
        let begun = ShellProcess::read(process).and_then(|process| {
            let block = block(kind, first)?;
            handover::shell(&cell, design, &block, ready)?;
            process.show_init(&cell, design)?;
            Ok((process, block))
        });
        let (process, block) = match begun {
            Ok(begun) => begun,
            Err(errno) => return Err(Box::new((errno, cell))),
        };
        // Kept for the next shell, unless the workspace is a granted directory.
        let workspace = match (ready.start.session, ready.start.workspace) {
            (Some(within), Workspace::Fresh) => Workspace::Session(within.session),
            (_, workspace) => workspace,
        };
        Ok(Self {
            life: CellLife::new(cell, block, ready.limits, ready.start.changes, workspace),
            kind,
            receipt,
            process,
            sizes: Rc::clone(&root.sizes),
            overlays: Rc::clone(&root.overlays),
            stage: ShellStage::Idle,
            first,
            current: None,
            jobs: BackgroundJobs::default(),
            questions: 0,
            used: CpuTime::default(),
        })
    }

    /// Returns the stage; `None` if the cell is ending.
    fn stage(&self) -> Option<ShellStage> {
        (!self.life.is_ending()).then_some(self.stage)
    }

    /// Returns whether a call can be handed to it now.
    pub(crate) fn is_idle(&self) -> bool {
        self.stage() == Some(ShellStage::Idle)
    }

    /// Returns whether a call runs in the shell or next to it, or the shell is ending.
    pub(crate) fn is_used(&self) -> bool {
        !self.is_idle() || !self.jobs.is_empty()
    }

    /// Returns whether commands have left processes behind.
    pub(crate) fn has_children(&self, proc: &OwnedFd) -> bool {
        self.process.has_children(proc)
    }

    /// Returns whether no more jobs may run next to the shell.
    pub(crate) fn is_full(&self) -> bool {
        self.jobs.is_full()
    }

    /// Returns whether it takes no more calls.
    pub(crate) fn is_ending(&self) -> bool {
        self.life.is_ending()
    }

    /// Returns whether a call runs in the shell or next to it.
    pub(crate) fn runs(&self, call: CallId) -> bool {
        self.current.as_ref().is_some_and(|current| current.call == call) || self.jobs.has(call)
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.life.next_deadline().into_iter().chain(self.jobs.next_deadline()).min()
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
        // The shell has seen nothing yet.
        let undelivered =
            |errno| Undelivered { errno, lacks: Lacks::File, shell: ShellWait::ForNextCall };
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
        self.sizes.age(self.life.cell.slot).map_err(undelivered)?;
        let (pending, ends) =
            mailbox.deliver(&order, || self.overlays.end_refresh().unwrap_or_default())?;
        let started = Instant::now();
        let (begun, leaving) = match mode {
            JobMode::Foreground => (Some((turn, ends)), None),
            JobMode::Background => (None, Some(Leaving { turn, ends, stdin })),
        };
        let handed_over = started.saturating_duration_since(ready.arrived).saturating_sub(built);
        let timings = Timings { built, handed_over, ..Timings::default() };
        self.current =
            Some(CurrentCall::new(ready.start.call, pending, began, started, timings, leaving));
        self.stage = ShellStage::Running;
        self.life.deadline = started.checked_add(ready.limits.wall);
        if self.jobs.is_empty() {
            self.life.cell.crawl.begin(started, self.life.limits.memory);
        }
        Ok(begun)
    }

    /// Reads a message of the payload: either it cannot exec, or it has.
    pub(crate) fn read_job(&mut self) -> ShellEvent {
        self.life.read_job();
        ShellEvent::None
    }

    /// Reads a message of init into `buffer`, which fits the longest report.
    pub(crate) fn read_control(
        &mut self,
        buffer: &mut Vec<u8>,
        mailbox: &mut Mailbox,
    ) -> ShellEvent {
        match self.life.receive(buffer) {
            // If no call waits for the counters any more, they are ignored.
            Some((FromInit::Counted(counts), rest))
                if self.stage() == Some(ShellStage::Counting) =>
            {
                self.counted(counts, report::denials(rest, counts.denied), mailbox)
            }
            Some((FromInit::Confirmed { is_ending }, _)) => self.confirmed(is_ending, mailbox),
            Some((FromInit::Shown { number, shell }, _)) => {
                self.shown(number, shell, Instant::now())
            }
            Some((FromInit::Input { number, waits }, _)) => self.answered(number, waits),
            Some((FromInit::JobEnded(job), denied)) => {
                let denials = report::denials(denied, job.counts.denied);
                let ended = self.jobs.remove(job.pid);
                ended.map_or(ShellEvent::None, |ended| {
                    // Its time is in the account of the cell from now on, and of no later call.
                    self.used = self.used.plus(CpuTime::counted(&job.counts));
                    ended.reaped(&job, denials, &self.life, mailbox)
                })
            }
            Some((
                FromInit::Counted(_)
                | FromInit::Ended(_)
                | FromInit::Failed { .. }
                | FromInit::Sealed
                | FromInit::Network,
                _,
            ))
            | None => ShellEvent::None,
        }
    }

    /// Asks whether a call waits for its input.
    pub(crate) fn ask_input(&mut self, call: CallId, number: u32) {
        let current = self.current.as_mut().filter(|current| current.call == call);
        let query = match current {
            Some(current) => Some(&mut current.input_query),
            None => self.jobs.find(call).map(|job| &mut job.input_query),
        };
        if let Some(query) = query {
            query.ask(number);
        }
        self.ask_next();
    }

    /// Sends the questions about inputs that init can be sent.
    fn ask_next(&mut self) {
        let cell = &self.life.cell;
        if self.stage() == Some(ShellStage::Running)
            && let Some(current) = &mut self.current
        {
            current.input_query.send_next(&current.pending, cell, &mut self.questions);
        }
        for job in self.jobs.iter_mut() {
            job.input_query.send_next(&job.pending, cell, &mut self.questions);
        }
    }

    /// Handles init's answer, or its report that a process waits for input now.
    fn answered(&mut self, number: u32, waits: Waits) -> ShellEvent {
        let current = self.current.iter_mut();
        let current = current.map(|current| (current.call, &mut current.input_query));
        let jobs = self.jobs.iter_mut().map(|job| (job.call, &mut job.input_query));
        let mut all = current.chain(jobs);
        let about = all.find_map(|(call, query)| Some((call, query.answered(number)?)));
        let Some((call, number)) = about else { return ShellEvent::None };
        self.ask_next();
        ShellEvent::Input(call, number, waits)
    }

    /// Takes the counters at the end of a call. An interrupt for it may be on its way to init: until init has sent
    /// it, the shell is not known to survive it.
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
        if let Err(errno) = self.life.cell.send(&report::ToInit::Confirm) {
            tracing::debug!(%errno, "a session's cell could not be asked");
        }
        ShellEvent::None
    }

    /// Ends the call, unless the interrupt ends the shell as well. fish takes its time to end by one.
    fn confirmed(&mut self, is_ending: bool, mailbox: &mut Mailbox) -> ShellEvent {
        let is_counting = self.stage() == Some(ShellStage::Counting);
        let current = self.current.as_mut().filter(|_| is_counting);
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
        let CurrentCall {
            call,
            pending,
            reported,
            took,
            mut stopped,
            started,
            timings,
            force,
            leaving,
            ..
        } = current;
        if leaving.is_some() {
            let step = "starting a process beside the shell".to_owned();
            let failure = Failure::Setup { step, errno: report::raw(Errno::EAGAIN) };
            stopped.get_or_insert(Outcome::Failed(failure));
        }
        let Some(reported) = reported else { return ShellEvent::None };
        let wall = took.unwrap_or_else(|| started.elapsed());
        mailbox.clear_up(pending);
        self.stage = ShellStage::Idle;
        self.life.deadline = None;
        let total = CpuTime::counted(&counts);
        let usage = self.usage(total, counts.max_rss, wall);
        let ended = Ended {
            usage,
            denials,
            timings: Timings { run: wall, ..timings },
            shell: ShellAfter::Kept { cwd: reported.cwd },
            force,
            files_changed: self.life.files_changed(),
            network: self.life.unreached(),
            full: counts.full,
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
