//! One command of a session, from its start to its end, in the foreground or as a job.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot::Receiver;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::Instant;
use tracing::Instrument;

use super::feed::{Feed, FeedKind, InputEnd};
use super::input_query::InputQuery;
use super::state::{DrainingCommand, DrainingCommands, SessionState};
use crate::Report;
use crate::audit::LoggedCall;
use crate::capture::stream::{Follower, Stream};
use crate::capture::tap::{Source, Tap};
use crate::capture::{Captured, KEPT_BYTES, Meter, Produced};
use crate::link::{Control, Running};
use crate::report::Clamped;
use crate::watch::reported;
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
    /// Absent if it had no cell: its start failed.
    pub receipt: Option<Receipt>,
    /// In the shell, or next to it.
    pub mode: JobMode,
    /// Number of the command in its shell.
    pub turn: u64,
    pub limits: Limits,
    pub clamped: Clamped,
    pub started: Instant,
    pub stdout: Arc<Stream>,
    pub stderr: Arc<Stream>,
    pub input: Feed,
    pub(super) query: InputQuery,
    pub control: Control,
    finished: watch::Sender<Option<Arc<Ended>>>,
    /// Time that it took, once it has ended.
    took: OnceLock<Duration>,
    /// True once no call waits for the command any more.
    job: AtomicBool,
    /// Receiver of output while a call waits for the command.
    tap: Mutex<Tap>,
}

/// A command before it starts, with what its follower holds: the session's state, its line in the log, its input.
#[derive(Debug)]
pub struct NewCommand {
    pub id: String,
    pub session: String,
    pub text: String,
    /// Its report, of which nothing has run yet.
    pub report: Report,
    pub mode: JobMode,
    /// Bytes of its output that are kept.
    pub keep: usize,
    /// `None` for a command next to the shell.
    pub state: Option<OwnedMutexGuard<SessionState>>,
    pub draining: DrainingCommands,
    pub entry: LoggedCall,
    /// Bytes that are written to an open input first.
    pub first: Vec<u8>,
    pub kind: FeedKind,
    pub produced: Produced,
    pub tap: Tap,
}

impl Command {
    /// Starts the follower of a running command.
    pub fn follow(new: NewCommand, running: Running) -> Arc<Self> {
        let Running { receipt, turn, stdin, stdout, stderr, control, ended, input: waits, guard } =
            running;
        let NewCommand {
            id, session, text, report, mode, keep, state, draining, entry, first, ..
        } = new;
        let Report { cwd: began, limits, clamped, .. } = report;
        let (input, turn_of_first) = Feed::new(stdin, new.kind);
        let meter = Arc::new(Meter::counting(limits.output, new.produced));
        let command = Arc::new(Self {
            id,
            session: Some(session),
            text,
            began,
            receipt: Some(receipt),
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
            took: OnceLock::new(),
            job: AtomicBool::new(false),
            tap: Mutex::new(new.tap),
        });
        if let Some(turn) = turn_of_first.filter(|_| command.input.is_open()) {
            let fed = Arc::clone(&command);
            tokio::spawn(async move {
                fed.input.first(&first, turn).await;
                if !first.is_empty() {
                    fed.input.passed_on().await;
                }
                fed.query_input();
            });
        }
        let follower = Arc::clone(&command);
        let to_the_end = async move {
            // Held until the end: dropping the guard cancels the call.
            let _guard = guard;
            follower.to_the_end(ended, entry, state, draining).await;
        };
        tokio::spawn(to_the_end.in_current_span());
        command
    }

    /// Makes the record of a call that has ended, so that its output can be read.
    pub fn past(
        id: String,
        session: Option<String>,
        report: Report,
        control: Control,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            session,
            text: String::new(),
            began: report.cwd,
            receipt: report.receipt,
            mode: JobMode::Foreground,
            turn: 0,
            limits: report.limits,
            clamped: report.clamped,
            started: Instant::now(),
            stdout: Stream::past(report.stdout, Source::Stdout),
            stderr: Stream::past(report.stderr, Source::Stderr),
            input: Feed::new(None, FeedKind::Pipe).0,
            query: InputQuery::new(watch::channel((0, Waits::No)).1),
            control,
            finished: watch::Sender::new(Some(Arc::new(report.ended))),
            took: OnceLock::from(report.took),
            job: AtomicBool::new(false),
            tap: Mutex::default(),
        })
    }

    /// Turns the command into a job: no call waits for it any more, and it continues by itself.
    pub(crate) fn becomes_job(&self) {
        self.job.store(true, Ordering::Release);
        self.drop_tap();
    }

    /// Drops the receiver of its output.
    fn drop_tap(&self) {
        drop(std::mem::take(&mut *self.tap.lock().unwrap_or_else(PoisonError::into_inner)));
    }

    pub(crate) fn is_job(&self) -> bool {
        self.job.load(Ordering::Acquire)
    }

    /// Returns its end, once it has ended.
    pub fn finished(&self) -> Option<Arc<Ended>> {
        self.finished.borrow().clone()
    }

    /// Returns true once it has ended.
    pub fn is_over(&self) -> bool {
        self.finished.borrow().is_some()
    }

    /// Returns the time that it took, once it has ended.
    pub fn took(&self) -> Option<Duration> {
        self.took.get().copied()
    }

    /// Resolves when it has ended.
    pub async fn end(&self) -> Arc<Ended> {
        let mut finished = self.finished.subscribe();
        match finished.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone()) {
            Some(ended) => ended,
            // The sender is in `self`: this cannot be.
            None => Arc::new(Ended::failed(Failure::Supervisor)),
        }
    }

    async fn to_the_end(
        self: Arc<Self>,
        ended: Receiver<Ended>,
        entry: LoggedCall,
        state: Option<OwnedMutexGuard<SessionState>>,
        draining: DrainingCommands,
    ) {
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
        self.drop_tap();
        tracing::debug!(job = self.id, outcome = end.outcome.name(), "ended");
        entry.ended(&end, self.receipt.as_ref());
        // Unlocked before the end is reported: the receiver of the report may ask for the
        // next command.
        if let Some(mut state) = state {
            state.record_end(&end);
        }
        self.took.get_or_init(|| self.started.elapsed());
        self.finished.send_replace(Some(Arc::new(end)));
        let stdout = Arc::clone(&self.stdout);
        let stderr = Arc::clone(&self.stderr);
        let task = tokio::spawn(Arc::clone(&self).drain_late());
        draining.keep(DrainingCommand { stdout, stderr, task });
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
