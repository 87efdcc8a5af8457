//! One command of a session, from its start to its end, in the foreground or as a job.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot::Receiver;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::Instant;
use tracing::Instrument;

use super::feed::{Feed, FeedKind, InputEnd};
use super::input_query::InputQuery;
use super::seat::{Late, Seat};
use crate::CallReport;
use crate::watch::reported;
use audit::{LoggedCall, Story};
use capture::stream::{Follower, Stream};
use capture::tap::{Source, Tap};
use capture::{Captured, KEPT_BYTES, Meter, Produced};
use link::{Control, Running};
use model::job::{JobMode, Limits};
use model::outcome::{Ended, Failure, Waits};
use model::receipt::Receipt;

/// A command that runs or has run.
#[derive(Debug)]
pub struct Command {
    /// Handle of its job and of its output: `c1`, `c2`, …
    pub id: String,
    /// `None` for a command that had a fresh cell.
    pub session: Option<String>,
    /// First characters of its text.
    pub text: String,
    /// The directory in which it began, as the shell has it.
    pub began: String,
    pub receipt: Receipt,
    /// In the shell, or next to it.
    pub mode: JobMode,
    /// Number of the command in its shell.
    pub turn: u64,
    pub limits: Limits,
    pub clamped: bool,
    pub started: Instant,
    pub stdout: Arc<Stream>,
    pub stderr: Arc<Stream>,
    pub input: Feed,
    pub(super) query: InputQuery,
    pub control: Control,
    finished: watch::Sender<Option<Finished>>,
    /// True once no call waits for the command any more.
    job: AtomicBool,
    /// Receiver of output while a call waits for the command.
    tap: Mutex<Tap>,
}

/// End of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    pub ended: Ended,
    pub took: Duration,
}

/// Description of a command before it starts.
#[derive(Debug)]
pub struct CommandInfo {
    pub id: String,
    pub session: String,
    pub text: String,
    pub began: String,
    pub limits: Limits,
    pub clamped: bool,
    pub mode: JobMode,
    /// Bytes of its output that are kept.
    pub keep: usize,
}

/// Resources that the follower of a command holds: its seat, its line in the log, its input.
#[derive(Debug)]
pub struct Held {
    /// `None` for a command next to the shell.
    pub seat: Option<OwnedMutexGuard<Seat>>,
    pub late: Late,
    pub entry: LoggedCall,
    /// Bytes that are written to an open input first.
    pub first: Vec<u8>,
    pub kind: FeedKind,
    pub produced: Produced,
    pub tap: Tap,
}

impl Command {
    /// Starts the follower of a running command.
    pub fn follow(about: CommandInfo, running: Running, mut behind: Held) -> Arc<Self> {
        let Running { receipt, turn, stdin, stdout, stderr, control, ended, input: waits, guard } =
            running;
        let CommandInfo { id, session, text, began, limits, clamped, mode, keep } = about;
        let (input, turn_of_first) = Feed::new(stdin, behind.kind);
        let meter = Arc::new(Meter::counting(limits.output, behind.produced.clone()));
        let command = Arc::new(Self {
            id,
            session: Some(session),
            text,
            began,
            receipt,
            mode,
            turn,
            limits,
            clamped,
            started: Instant::now(),
            stdout: Stream::new(stdout, keep, Source::Stdout, &meter),
            stderr: Stream::new(stderr, KEPT_BYTES, Source::Stderr, &meter),
            input,
            query: InputQuery::new(waits),
            control,
            finished: watch::Sender::new(None),
            job: AtomicBool::new(false),
            tap: Mutex::new(std::mem::take(&mut behind.tap)),
        });
        let first = std::mem::take(&mut behind.first);
        if let Some(turn) = turn_of_first.filter(|_| command.input.is_open()) {
            let fed = Arc::clone(&command);
            tokio::spawn(async move {
                fed.input.first(&first, turn).await;
                fed.ask();
            });
        }
        let follower = Arc::clone(&command);
        let to_the_end = async move {
            // Held until the end: dropping the guard cancels the call.
            let _guard = guard;
            follower.to_the_end(ended, behind).await;
        };
        tokio::spawn(to_the_end.in_current_span());
        command
    }

    /// Makes the record of a call in a fresh cell that has ended, so that its output can be read.
    pub fn past(id: String, report: &CallReport, receipt: Receipt, control: Control) -> Arc<Self> {
        let ended = Ended {
            outcome: report.outcome.clone(),
            usage: report.usage,
            denials: report.denials.clone(),
            timings: report.timings,
            files_changed: report.files_changed.clone(),
            network: report.network.clone(),
            ..Ended::failed(Failure::Lost)
        };
        let finished = Finished { ended, took: report.duration };
        Arc::new(Self {
            id,
            session: None,
            text: String::new(),
            began: report.cwd.as_str().to_owned(),
            receipt,
            mode: JobMode::Foreground,
            turn: 0,
            limits: report.limits,
            clamped: report.clamped,
            started: Instant::now(),
            stdout: Stream::past(report.stdout.clone(), Source::Stdout),
            stderr: Stream::past(report.stderr.clone(), Source::Stderr),
            input: Feed::new(None, FeedKind::Pipe).0,
            query: InputQuery::new(watch::channel((0, Waits::No)).1),
            control,
            finished: watch::Sender::new(Some(finished)),
            job: AtomicBool::new(false),
            tap: Mutex::default(),
        })
    }

    /// Turns the command into a job: no call waits for it any more, and it continues by itself.
    pub(crate) fn becomes_job(&self) {
        self.job.store(true, Ordering::Release);
        self.hush();
    }

    /// Drops the receiver of its output.
    fn hush(&self) {
        drop(std::mem::take(&mut *self.tap.lock().unwrap_or_else(PoisonError::into_inner)));
    }

    pub(crate) fn is_job(&self) -> bool {
        self.job.load(Ordering::Acquire)
    }

    /// Returns its end, once it has ended.
    pub fn finished(&self) -> Option<Finished> {
        self.finished.borrow().clone()
    }

    /// Resolves when it has ended.
    pub async fn end(&self) -> Finished {
        let mut finished = self.finished.subscribe();
        loop {
            if let Some(finished) = finished.borrow_and_update().clone() {
                return finished;
            }
            if finished.changed().await.is_err() {
                // The sender is in `self`: this cannot be.
                return Finished {
                    ended: Ended::failed(Failure::Supervisor),
                    took: Duration::ZERO,
                };
            }
        }
    }

    async fn to_the_end(self: Arc<Self>, ended: Receiver<Ended>, behind: Held) {
        let Held { seat, late, entry, .. } = behind;
        let mut reported = pin!(reported(ended, &self.limits, &self.control));
        let end = loop {
            tokio::select! {
                biased;
                end = &mut reported => break end,
                () = self.stdout.readable() => drop(self.stdout.look(&self)),
                () = self.stderr.readable() => drop(self.stderr.look(&self)),
            }
        };
        self.input.shut(InputEnd::Over);
        self.stdout.seal(&*self);
        self.stderr.seal(&*self);
        self.hush();
        tracing::debug!(job = self.id, outcome = end.outcome.name(), "ended");
        entry.ended(&Story {
            outcome: &end.outcome,
            usage: &end.usage,
            timings: &end.timings,
            denials: &end.denials,
            receipt: Some(&self.receipt),
            network: end.network.as_ref(),
        });
        // The seat is freed before the end is reported: the receiver of the report may ask for the
        // next command.
        if let Some(mut seat) = seat {
            seat.after(&end);
        }
        let finished = Finished { ended: end, took: self.started.elapsed() };
        self.finished.send_replace(Some(finished));
        let reader = tokio::spawn(Arc::clone(&self).drain_late());
        late.keep(Arc::clone(&self), reader);
    }

    /// Reads later output of background processes, so that they never block on a full pipe.
    async fn drain_late(self: Arc<Self>) {
        tokio::join!(self.stdout.to_the_end(&self), self.stderr.to_the_end(&self));
    }

    /// Returns the kept part of both streams.
    pub fn output(&self) -> (Captured, Captured) {
        (self.stdout.captured(), self.stderr.captured())
    }
}

impl Follower for Command {
    fn received(&self, source: Source, bytes: &[u8]) {
        // The tap is not held beyond this call: its receiver waits until every holder has dropped
        // it.
        self.tap.lock().unwrap_or_else(PoisonError::into_inner).pass(source, bytes);
    }

    fn over(&self) {
        self.control.output_limit();
    }
}
