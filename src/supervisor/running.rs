//! One call's life in the supervisor: building, sealing, running, ending, gone.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::cells::{Cell, Maker};
use super::handover::{self, Brought, FarEnds};
use crate::cell::Design;
use crate::cell::report::{self, FromInit, FromPayload, PayloadEnd, REPORT_BYTES, raw};
use crate::job::{Limits, Workspace};
use crate::outcome::{DeniedCall, Ended, Failure, LimitKind, Outcome, PeakSource, Timings, Usage};
use crate::receipt::Receipt;
use crate::sys::socket::{self, Wait};
use crate::wire::{Block, Start, StdinKind};

/// Set-up that takes longer has hung: the cell is killed and the call told.
const SETUP_TIME: Duration = Duration::from_secs(10);
/// Between TERM and KILL (rulings R1).
const GRACE: Duration = Duration::from_secs(1);
/// An init that has reported its end and is still there after this is killed.
const LINGER: Duration = Duration::from_secs(2);

/// Where a call stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The cell confines itself; the payload reports when it is ready for a job.
    Building,
    /// Measured; init is becoming untraceable.
    Sealing,
    /// The job is handed over.
    Running,
    /// TERM is sent, KILL follows.
    Terminating,
    /// The end is known; init is on its way out.
    Ending,
    /// Init is collected: nothing of the cell is left.
    Gone,
}

/// One of a cell's two sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Socket {
    Control,
    Job,
}

/// What a step wants from the loop.
#[derive(Debug)]
pub enum Progress {
    None,
    Unwatch(Socket),
    Started(FarEnds, Box<Receipt>),
    Ended(Box<Ended>),
    /// The cell is collected; the end is told now if it was not before.
    Gone(Option<Box<Ended>>),
}

/// A call and its cell.
#[derive(Debug)]
pub struct Running {
    start: Start,
    pub key: usize,
    block: Block,
    brought: Brought,
    pub limits: Limits,
    pub cell: Cell,
    pub stage: Stage,
    receipt: Option<Receipt>,
    deadline: Option<Instant>,
    /// Why the supervisor ends the call; it outweighs what the program's status says.
    stopped: Option<Outcome>,
    /// Why the program could not start.
    exec: Option<Failure>,
    /// The end, kept back until the cell is collected where something outlives it.
    ended: Option<Box<Ended>>,
    told: bool,
    arrived: Instant,
    measured: Option<Instant>,
    started: Option<Instant>,
}

impl Running {
    pub fn new(
        start: Start,
        key: usize,
        block: Block,
        brought: Brought,
        limits: Limits,
        cell: Cell,
        arrived: Instant,
    ) -> Self {
        Self {
            start,
            key,
            block,
            brought,
            limits,
            cell,
            stage: Stage::Building,
            receipt: None,
            deadline: Some(arrived + SETUP_TIME),
            stopped: None,
            exec: None,
            ended: None,
            told: false,
            arrived,
            measured: None,
            started: None,
        }
    }

    pub fn stdin_kind(&self) -> StdinKind {
        self.start.stdin
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Something from the payload: it is ready, or it cannot exec, or it has exec'd.
    pub fn read_job(&mut self, design: &Design, maker: &Maker<'_>) -> Progress {
        let mut buffer = [0; 512];
        let received = match socket::receive(&self.cell.job, &mut buffer, Wait::No) {
            Ok(received) if received.bytes > 0 => received,
            Err(Errno::EAGAIN) => return Progress::None,
            // Closed at exec, or with the payload; init tells which.
            Ok(_) | Err(_) => {
                self.started = self.started.or_else(|| Some(Instant::now()));
                return Progress::Unwatch(Socket::Job);
            }
        };
        let bytes = buffer.get(..received.bytes).unwrap_or_default();
        match report::decode::<FromPayload>(bytes) {
            Ok(FromPayload::Ready(probes)) if self.stage == Stage::Building => {
                let Some(pid) = received.pid else {
                    return self.refuse(Failure::Unmeasured { what: "its pid".to_owned() });
                };
                match maker.measure(design, pid, probes) {
                    Ok(receipt) => self.seal(receipt),
                    Err(unfit) => self.refuse(Failure::Unmeasured { what: unfit.0 }),
                }
            }
            Ok(FromPayload::Failed { step, errno }) => {
                self.refuse(Failure::Setup { step: step.name().to_owned(), errno })
            }
            Ok(FromPayload::Cwd { errno }) => {
                let path = self.block.cwd.as_str().to_owned();
                self.exec = Some(Failure::Cwd { path, errno });
                Progress::None
            }
            Ok(FromPayload::Exec { errno }) => {
                self.exec = Some(self.exec_failure(errno));
                Progress::None
            }
            Ok(FromPayload::Ready(_)) | Err(_) => {
                self.refuse(Failure::Unmeasured { what: "its payload's report".to_owned() })
            }
        }
    }

    fn exec_failure(&self, errno: i32) -> Failure {
        let program = shortened(self.block.argv.program());
        if errno == raw(Errno::ENOENT) {
            Failure::NotFound { program }
        } else {
            Failure::NotExecutable { program, errno }
        }
    }

    fn seal(&mut self, receipt: Receipt) -> Progress {
        self.receipt = Some(receipt);
        self.measured = Some(Instant::now());
        self.stage = Stage::Sealing;
        match self.cell.seal() {
            Ok(()) => Progress::None,
            Err(errno) => self.refuse(lost(errno)),
        }
    }

    /// Something from init.
    pub fn read_control(&mut self, design: &Design) -> Progress {
        let mut buffer = [0; REPORT_BYTES];
        let received = match socket::receive(&self.cell.control, &mut buffer, Wait::No) {
            Ok(received) if received.bytes > 0 => received,
            Err(Errno::EAGAIN) => return Progress::None,
            // The pidfd tells the rest.
            Ok(_) | Err(_) => return Progress::Unwatch(Socket::Control),
        };
        let bytes = buffer.get(..received.bytes).unwrap_or_default();
        match postcard::take_from_bytes::<FromInit>(bytes) {
            Ok((FromInit::Failed { step, errno }, _)) => {
                self.refuse(Failure::Setup { step: step.name().to_owned(), errno })
            }
            Ok((FromInit::Sealed, _)) if self.stage == Stage::Sealing => self.hand_over(design),
            Ok((FromInit::Ended(end), denied)) => {
                // What the payload could still say about exec was sent before it ended.
                self.last_words();
                self.end(end, denied)
            }
            Ok((FromInit::Sealed, _)) | Err(_) => {
                self.refuse(Failure::Unmeasured { what: "its init's report".to_owned() })
            }
        }
    }

    fn last_words(&mut self) {
        let mut buffer = [0; 512];
        let Ok(received) = socket::receive(&self.cell.job, &mut buffer, Wait::No) else { return };
        let bytes = buffer.get(..received.bytes).unwrap_or_default();
        match report::decode::<FromPayload>(bytes) {
            Ok(FromPayload::Exec { errno }) => self.exec = Some(self.exec_failure(errno)),
            Ok(FromPayload::Cwd { errno }) => {
                let path = self.block.cwd.as_str().to_owned();
                self.exec = Some(Failure::Cwd { path, errno });
            }
            Ok(FromPayload::Failed { step, errno }) => {
                self.exec = Some(Failure::Setup { step: step.name().to_owned(), errno });
            }
            Ok(FromPayload::Ready(_)) | Err(_) => {}
        }
    }

    fn hand_over(&mut self, design: &Design) -> Progress {
        // Cancelled while it was built: nothing must run.
        if self.stopped.is_some() {
            return Progress::None;
        }
        let Some(receipt) = self.receipt.take() else {
            return self.refuse(Failure::Unmeasured { what: "no receipt".to_owned() });
        };
        let handed = handover::hand_over(
            &self.cell,
            design,
            &self.block,
            self.start.stdin,
            &self.brought,
            &self.limits,
        );
        match handed {
            Ok(ends) => {
                let now = Instant::now();
                self.stage = Stage::Running;
                self.started = Some(now);
                self.deadline = now.checked_add(self.limits.wall);
                // The program has its own descriptors of these now.
                self.brought = Brought { script: None, stdin: None };
                Progress::Started(ends, Box::new(receipt))
            }
            Err(errno) => self.refuse(Failure::Setup {
                step: "handing over the job".to_owned(),
                errno: raw(errno),
            }),
        }
    }

    /// Ends the call from outside, at once or after a grace period.
    pub fn stop(&mut self, outcome: Outcome, now: Instant) -> Result<(), Errno> {
        if self.stopped.is_some() || matches!(self.stage, Stage::Ending | Stage::Gone) {
            return Ok(());
        }
        let gently = matches!(outcome, Outcome::Timeout | Outcome::Cancelled);
        self.stopped = Some(outcome);
        if gently && self.stage == Stage::Running {
            self.stage = Stage::Terminating;
            self.deadline = Some(now + GRACE);
            // EPIPE: init has ended; its pidfd is readable.
            return ignore(self.cell.terminate(), Errno::EPIPE);
        }
        self.kill(now)
    }

    fn kill(&mut self, now: Instant) -> Result<(), Errno> {
        self.stage = Stage::Ending;
        self.deadline = Some(now + LINGER);
        ignore(self.cell.kill(), Errno::ESRCH)
    }

    /// Does what is due.
    pub fn pass_deadline(&mut self, now: Instant) -> Result<(), Errno> {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return Ok(());
        }
        match self.stage {
            Stage::Building | Stage::Sealing => {
                self.exec = Some(Failure::Setup {
                    step: "building the cell in time".to_owned(),
                    errno: raw(Errno::ETIMEDOUT),
                });
                self.kill(now)
            }
            Stage::Running => self.stop(Outcome::Timeout, now),
            Stage::Terminating | Stage::Ending => self.kill(now),
            Stage::Gone => Ok(()),
        }
    }

    /// The kernel ran out of this cell's memory.
    pub fn out_of_memory(&mut self) -> Progress {
        match self.stop(Outcome::Limit(LimitKind::Memory), Instant::now()) {
            Ok(()) => Progress::None,
            Err(errno) => self.refuse(lost(errno)),
        }
    }

    /// Destroys a cell that cannot be used; its end carries the reason.
    fn refuse(&mut self, failure: Failure) -> Progress {
        self.exec = Some(failure);
        // A cell that cannot even be killed has ended.
        if self.kill(Instant::now()).is_err() {
            self.stage = Stage::Ending;
        }
        Progress::None
    }

    /// The end as init reported it.
    fn as_reported(&mut self, end: PayloadEnd, denied: &[u8]) -> Ended {
        Ended {
            outcome: self.outcome(&end),
            usage: Usage {
                user: Duration::from_micros(end.user_us),
                system: Duration::from_micros(end.system_us),
                ..self.usage(end.max_rss)
            },
            denials: denials(denied, end.denied),
            timings: self.timings(),
        }
    }

    /// What the supervisor itself knows the cell used; `largest` where nothing counts its memory.
    fn usage(&self, largest: u64) -> Usage {
        let peak = self.cell.peak_memory();
        Usage {
            wall: self.started.map_or(Duration::ZERO, |started| started.elapsed()),
            peak_memory: peak.unwrap_or(largest),
            peak_source: match peak {
                Some(_) => PeakSource::Cgroup,
                None => PeakSource::LargestProcess,
            },
            ..Usage::default()
        }
    }

    /// Init has reported: the answer goes out, or waits for the cell's last breath.
    fn end(&mut self, end: PayloadEnd, denied: &[u8]) -> Progress {
        let ended = self.as_reported(end, denied);
        self.stage = Stage::Ending;
        self.deadline = Some(Instant::now() + LINGER);
        // A granted directory outlives the cell: the answer waits until nothing can write to it.
        if self.start.workspace == Workspace::Fresh {
            self.told = true;
            Progress::Ended(Box::new(ended))
        } else {
            self.ended = Some(Box::new(ended));
            Progress::Unwatch(Socket::Control)
        }
    }

    fn outcome(&mut self, end: &PayloadEnd) -> Outcome {
        if let Some(failure) = self.exec.take() {
            return Outcome::Failed(failure);
        }
        if let Some(stopped) = self.stopped.take() {
            return stopped;
        }
        if end.over_memory || self.cell.ran_out_of_memory() {
            return Outcome::Limit(LimitKind::Memory);
        }
        let used = Duration::from_micros(end.user_us + end.system_us);
        // The limit is set in whole seconds, and the kernel looks at every tick.
        let cpu = Duration::from_secs(self.limits.cpu.as_secs().max(1));
        let cpu = cpu.saturating_sub(Duration::from_millis(20));
        let Some(signal) = end.status.checked_sub(256) else {
            return Outcome::Exited { code: u8::try_from(end.status).unwrap_or(u8::MAX) };
        };
        match i32::from(signal) {
            // Sent by the kernel at the limit, or by the program to itself before it.
            libc::SIGXCPU if used >= cpu => Outcome::Limit(LimitKind::Cpu),
            libc::SIGXFSZ => Outcome::Limit(LimitKind::FileSize),
            libc::SIGKILL if used >= cpu => Outcome::Limit(LimitKind::Cpu),
            _ => Outcome::Signaled { signal: u8::try_from(signal).unwrap_or(u8::MAX) },
        }
    }

    fn timings(&self) -> Timings {
        let since = |from: Option<Instant>, to: Option<Instant>| {
            from.zip(to).map_or(Duration::ZERO, |(from, to)| to.saturating_duration_since(from))
        };
        Timings {
            built: since(Some(self.arrived), self.measured),
            handed_over: since(self.measured, self.started),
        }
    }

    /// The cell's init may have ended.
    pub fn collect(&mut self) -> Progress {
        // ECHILD cannot be: the child is ours and collected once. The cell is gone either way.
        if self.cell.collect() == Ok(false) {
            return Progress::None;
        }
        if self.told {
            return Progress::Gone(None);
        }
        // The report may have come in the same round of events.
        if self.ended.is_none() {
            self.ended = self.late_report();
        }
        let ended = self.ended.take().unwrap_or_else(|| Box::new(self.unreported()));
        Progress::Gone(Some(ended))
    }

    fn late_report(&mut self) -> Option<Box<Ended>> {
        let mut buffer = [0; REPORT_BYTES];
        loop {
            let received = socket::receive(&self.cell.control, &mut buffer, Wait::No).ok()?;
            if received.bytes == 0 {
                return None;
            }
            let bytes = buffer.get(..received.bytes).unwrap_or_default();
            match postcard::take_from_bytes::<FromInit>(bytes) {
                Ok((FromInit::Ended(end), denied)) => {
                    self.last_words();
                    return Some(Box::new(self.as_reported(end, denied)));
                }
                Ok((FromInit::Failed { step, errno }, _)) => {
                    self.exec = Some(Failure::Setup { step: step.name().to_owned(), errno });
                }
                Ok((FromInit::Sealed, _)) | Err(_) => {}
            }
        }
    }

    /// The end of a cell whose init could not report it.
    fn unreported(&mut self) -> Ended {
        self.last_words();
        let outcome = if let Some(failure) = self.exec.take() {
            Outcome::Failed(failure)
        } else if let Some(stopped) = self.stopped.take() {
            stopped
        } else if self.cell.ran_out_of_memory() {
            Outcome::Limit(LimitKind::Memory)
        } else {
            Outcome::Failed(Failure::Lost)
        };
        Ended { outcome, usage: self.usage(0), denials: Vec::new(), timings: self.timings() }
    }
}

/// Pairs of a number (u16) and a count (u32), as init packs them.
fn denials(bytes: &[u8], count: u16) -> Vec<DeniedCall> {
    bytes
        .chunks_exact(6)
        .take(usize::from(count))
        .filter_map(|pair| {
            let (number, count) = pair.split_first_chunk::<2>()?;
            Some(DeniedCall {
                number: u32::from(u16::from_le_bytes(*number)),
                count: u32::from_le_bytes(*count.first_chunk::<4>()?),
            })
        })
        .collect()
}

/// A result in which one errno is what was expected.
fn ignore(result: Result<(), Errno>, expected: Errno) -> Result<(), Errno> {
    match result {
        Err(errno) if errno == expected => Ok(()),
        result => result,
    }
}

/// A program's name as a frame can carry it: argv may hold more than a frame does.
fn shortened(name: &str) -> String {
    const MOST: usize = 255;
    match name.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", name.get(..end).unwrap_or_default()),
        None => name.to_owned(),
    }
}

fn lost(errno: Errno) -> Failure {
    Failure::Setup { step: "talking to the cell".to_owned(), errno: raw(errno) }
}
