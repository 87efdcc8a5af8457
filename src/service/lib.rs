//! Tools that an agent can call, and the one path by which each call runs: decided by policy,
//! queued, started in a cell, captured, reported.

#![deny(unreachable_pub)]

mod backend;
pub mod calculate;
pub mod cli;
pub mod client;
pub mod denied;
pub mod executor;
pub mod files;
pub mod history;
pub mod inspect;
pub mod macros;
pub mod refused;
pub mod report;
pub mod request;
pub mod rules;
pub mod session;
pub mod shell;
mod watch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use audit::{Audit, Entry, Story, Unrecorded};
use capture::tap::Tap;
use capture::{Captured, KEPT_BYTES, Produced};
use link::Link;
use model::call::{Call, Cwd};
use model::job::{Limits, ListChanges, Workspace};
use model::outcome::{DeniedCall, Ended, Failure, FilesChanged, Outcome, Timings, Usage};
use model::receipt::Receipt;
use policy::flags::Changes;
use policy::tools::{Runs, ToolSpec};
use policy::{Denial, Grant, Policy, Principal, Profiles, Surroundings};

pub use backend::Backend;
pub use executor::{Executor, Scope, Setup};

/// The waiting side of a call: its means to cancel the call, and to count and read output
/// meanwhile.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    /// Tripped when the client cancels the call, or the server ends.
    pub cancel: CancellationToken,
    /// Counter of output bytes, updated as they arrive.
    pub produced: Produced,
    /// Receiver of a one-shot cell's output as it is printed.
    pub tap: Tap,
}

/// Reason why a call was not run at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Denied(#[from] Denial),
    /// The audit log cannot be written, and the operator allows no unrecorded call.
    #[error(transparent)]
    Unrecorded(#[from] Unrecorded),
    /// The server runs and queues as many calls as it may.
    #[error(
        "the queue is full: {running} calls run and {waiting} wait\nhint: call again when one has ended"
    )]
    QueueFull { running: usize, waiting: usize },
    /// The named session cannot take a command.
    #[error(transparent)]
    Session(#[from] session::SessionError),
    /// The named job does not exist.
    #[error(transparent)]
    Job(#[from] session::NoJob),
}

/// Report of one call, with everything a reply is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallReport {
    pub outcome: Outcome,
    pub usage: Usage,
    pub denials: Vec<DeniedCall>,
    pub timings: Timings,
    /// Absent if no cell was made: the start failed, or the call was cancelled while it waited.
    pub receipt: Option<Receipt>,
    pub stdout: Captured,
    pub stderr: Captured,
    pub files_changed: Option<FilesChanged>,
    /// Directory in which the program started.
    pub cwd: Cwd,
    /// Limits in force, wall time among them.
    pub limits: Limits,
    /// True if the call had asked for more time than it got.
    pub clamped: bool,
    /// Time from the grant to the end of the output, waiting included.
    pub duration: Duration,
}

impl CallReport {
    fn story(&self) -> Story<'_> {
        Story {
            outcome: &self.outcome,
            usage: &self.usage,
            timings: &self.timings,
            denials: &self.denials,
            receipt: self.receipt.as_ref(),
        }
    }
}

/// Runs calls: the link to the supervisor, with the policy, queue and audit log that govern its
/// use.
#[derive(Debug)]
pub struct Workbench {
    /// Client whose calls these are.
    principal: Principal,
    link: Link,
    policy: Arc<Policy>,
    profiles: Arc<Profiles>,
    workspace: Workspace,
    queue: Arc<Queue>,
    audit: Audit,
    clients: Arc<session::Clients>,
    sessions: Arc<session::Sessions>,
    changes: ListChanges,
}

impl Workbench {
    /// Runs up to `concurrency` calls at once; up to `waiting` more are queued, in order.
    pub fn new(
        link: Link,
        policy: Arc<Policy>,
        profiles: Arc<Profiles>,
        workspace: Workspace,
        concurrency: usize,
        waiting: usize,
    ) -> Self {
        let clients = Arc::new(session::Clients::default());
        let sessions = session::Sessions::of_a_client(&clients);
        Self {
            principal: Principal::local(),
            link,
            policy,
            profiles,
            workspace,
            queue: Arc::new(Queue::new(concurrency, waiting)),
            audit: Audit::off(),
            clients,
            sessions,
            changes: ListChanges::No,
        }
    }

    /// Makes that of one client: it shares the queue, the link and the audit log, and no session.
    #[must_use]
    pub(crate) fn of_a_client(&self, principal: Principal) -> Self {
        Self {
            principal,
            link: self.link.clone(),
            policy: Arc::clone(&self.policy),
            profiles: Arc::clone(&self.profiles),
            workspace: self.workspace,
            queue: Arc::clone(&self.queue),
            audit: self.audit.clone(),
            clients: Arc::clone(&self.clients),
            sessions: session::Sessions::of_a_client(&self.clients),
            changes: self.changes,
        }
    }

    /// Records every call in `audit`.
    #[must_use]
    pub fn recorded(self, audit: Audit) -> Self {
        Self { audit, ..self }
    }

    /// Reports changes in the workspace for tools that run commands.
    #[must_use]
    pub(crate) fn with_changes(self, changes: ListChanges) -> Self {
        Self { changes, ..self }
    }

    pub fn profiles(&self) -> &Profiles {
        &self.profiles
    }

    pub fn workspace(&self) -> Workspace {
        self.workspace
    }

    /// Returns the number of calls that run or are queued now.
    pub fn pending(&self) -> usize {
        self.queue.pending()
    }

    /// Returns what a call of a tool gets in a cell of its own.
    fn surroundings(&self, tool: &str) -> Surroundings {
        let runs = ToolSpec::named(tool).map(|tool| tool.runs);
        let changes = match runs == Some(Runs::FreshCell(ListChanges::Yes)) {
            true => self.changes,
            false => ListChanges::No,
        };
        Surroundings { workspace: self.workspace, owner: None, changes }
    }

    /// Asks policy about a call, and records the answer.
    fn decide(&self, call: Call, surroundings: Surroundings) -> Result<(Grant, Entry), Refusal> {
        let asked = self.audit.asked(&call);
        match self.policy.decide(&self.principal, call, &self.profiles, surroundings) {
            Ok(grant) => {
                let entry = self.audit.granted(asked, &grant)?;
                let profile = grant.job().profile.to_string();
                tracing::debug!(rule = grant.rule(), profile, "granted");
                Ok((grant, entry))
            }
            Err(denial) => {
                self.audit.denied(asked, &denial);
                tracing::debug!(rule = denial.rule, "denied");
                Err(denial.into())
            }
        }
    }

    /// Decides and runs one call. Dropping the future cancels it.
    ///
    /// # Errors
    /// A denial by policy, or a full queue: nothing ran.
    pub async fn call(&self, call: Call, caller: &Caller) -> Result<CallReport, Refusal> {
        self.call_keeping(call, KEPT_BYTES, caller).await
    }

    /// Runs a call as [`Workbench::call`] does, and keeps so many bytes of each stream.
    async fn call_keeping(
        &self,
        call: Call,
        keep: usize,
        caller: &Caller,
    ) -> Result<CallReport, Refusal> {
        let surroundings = self.surroundings(&call.tool);
        let (grant, entry) = self.decide(call, surroundings)?;
        self.recorded_run(grant, entry, keep, caller).await
    }

    /// Runs a call as [`Workbench::call`] does, on the private workspace of the default session if
    /// that has one, and has the call's profile.
    ///
    /// # Errors
    /// The same as of [`Workbench::call`].
    pub(crate) async fn call_beside(
        &self,
        call: Call,
        caller: &Caller,
    ) -> Result<CallReport, Refusal> {
        let surroundings = self.beside_the_default(&call);
        let (grant, entry) = self.decide(call, surroundings)?;
        self.recorded_run(grant, entry, KEPT_BYTES, caller).await
    }

    /// Runs a declared command as [`Workbench::call`] does, on the private workspace of the default
    /// session if there is one or the command may change files.
    ///
    /// # Errors
    /// The same as of [`Workbench::call`].
    pub(crate) async fn call_command(
        &self,
        call: Call,
        changes: Changes,
        caller: &Caller,
    ) -> Result<CallReport, Refusal> {
        let surroundings = self.command_beside_the_default(&call, changes);
        let (grant, entry) = self.decide(call, surroundings)?;
        self.recorded_run(grant, entry, KEPT_BYTES, caller).await
    }

    async fn recorded_run(
        &self,
        grant: Grant,
        entry: Entry,
        keep: usize,
        caller: &Caller,
    ) -> Result<CallReport, Refusal> {
        let done = self.run(grant, keep, caller).await;
        match &done {
            Ok(told) => {
                tracing::debug!(outcome = told.outcome.name(), "ended");
                entry.ended(&told.story());
            }
            Err(refusal) => entry.refused(refusal.to_string()),
        }
        done
    }

    /// Decides and records a call whose answer is known already: nothing runs.
    ///
    /// # Errors
    /// A denial by policy, or a failure to record the call where no unrecorded call is allowed.
    pub fn remembered(&self, call: Call) -> Result<(), Refusal> {
        let asked = self.audit.asked(&call);
        let surroundings = self.surroundings(&call.tool);
        match self.policy.decide(&self.principal, call, &self.profiles, surroundings) {
            Ok(grant) => self.audit.granted(asked, &grant)?.remembered(),
            Err(denial) => {
                self.audit.denied(asked, &denial);
                return Err(denial.into());
            }
        }
        Ok(())
    }

    /// Runs a granted and recorded call.
    ///
    /// # Errors
    /// A full queue: nothing ran.
    async fn run(&self, grant: Grant, keep: usize, caller: &Caller) -> Result<CallReport, Refusal> {
        let started = Instant::now();
        let (limits, cwd) = (grant.job().limits, grant.job().cwd.clone());
        let clamped = grant.clamped();
        let seen = match self.queue.turn(&caller.cancel).await? {
            Turn::Yours(_turn) => self.seen(grant, &limits, keep, caller).await,
            Turn::Cancelled => Observed::nothing(Outcome::Cancelled),
        };
        Ok(CallReport {
            outcome: seen.ended.outcome,
            usage: seen.ended.usage,
            denials: seen.ended.denials,
            timings: seen.ended.timings,
            receipt: seen.receipt,
            stdout: seen.stdout,
            stderr: seen.stderr,
            files_changed: seen.ended.files_changed,
            cwd,
            limits,
            clamped,
            duration: started.elapsed(),
        })
    }

    async fn seen(&self, grant: Grant, limits: &Limits, keep: usize, caller: &Caller) -> Observed {
        // Cancelling does not stop this step: a cell that is being handed over must be ended by its
        // control, and the supervisor bounds the time of a start.
        match self.link.start(grant).await {
            Err(failure) => Observed::nothing(Outcome::Failed(failure)),
            Ok(running) => watch::to_the_end(running, limits, keep, caller).await,
        }
    }
}

/// Observations of a call that had its turn.
#[derive(Debug, PartialEq, Eq)]
struct Observed {
    ended: Ended,
    receipt: Option<Receipt>,
    stdout: Captured,
    stderr: Captured,
}

impl Observed {
    fn story(&self) -> Story<'_> {
        Story {
            outcome: &self.ended.outcome,
            usage: &self.ended.usage,
            timings: &self.ended.timings,
            denials: &self.ended.denials,
            receipt: self.receipt.as_ref(),
        }
    }

    /// Makes the observations of a call of which nothing ran.
    fn nothing(outcome: Outcome) -> Self {
        let ended = Ended { outcome, ..Ended::failed(Failure::Supervisor) };
        Self { ended, receipt: None, stdout: Captured::of(b""), stderr: Captured::of(b"") }
    }
}

/// Bounds the number of running and queued calls; first come, first served.
#[derive(Debug)]
struct Queue {
    /// A place for each call that runs or waits: taken at once or refused.
    places: Semaphore,
    /// A turn for each running call: waited for.
    turns: Semaphore,
    concurrency: usize,
    waiting: usize,
}

/// Result of waiting in the queue.
enum Turn<'queue> {
    /// The call may run; dropping these permits gives the turn to the next.
    Yours((SemaphorePermit<'queue>, SemaphorePermit<'queue>)),
    Cancelled,
}

impl Queue {
    fn new(concurrency: usize, waiting: usize) -> Self {
        let concurrency = concurrency.clamp(1, Semaphore::MAX_PERMITS / 2);
        let waiting = waiting.min(Semaphore::MAX_PERMITS / 2);
        let places = Semaphore::new(concurrency + waiting);
        Self { places, turns: Semaphore::new(concurrency), concurrency, waiting }
    }

    fn pending(&self) -> usize {
        (self.concurrency + self.waiting).saturating_sub(self.places.available_permits())
    }

    /// Takes a place among the running and waiting calls.
    fn place(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        self.places.try_acquire().map_err(|_| self.full())
    }

    fn full(&self) -> Refusal {
        Refusal::QueueFull { running: self.concurrency, waiting: self.waiting }
    }

    async fn turn(&self, cancel: &CancellationToken) -> Result<Turn<'_>, Refusal> {
        let (place, full) = (self.place()?, self.full());
        tokio::select! {
            biased;
            () = cancel.cancelled() => Ok(Turn::Cancelled),
            // The semaphore is never closed; if it were, refusing is the safe answer.
            turn = self.turns.acquire() => turn.map(|turn| Turn::Yours((place, turn))).map_err(|_| full),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_queue_is_refused_at_once_and_a_place_comes_free() {
        let (queue, never) = (Queue::new(1, 1), CancellationToken::new());
        let running = queue.turn(&never).await;
        assert!(matches!(running, Ok(Turn::Yours(_))));
        let mut waiting = Box::pin(queue.turn(&never));
        assert!(glance(&mut waiting).await.is_none(), "the second call waits");
        assert_eq!(queue.pending(), 2);
        let refused = queue.turn(&never).await.map(|_| ());
        assert_eq!(refused, Err(Refusal::QueueFull { running: 1, waiting: 1 }));
        drop(running);
        assert!(matches!(waiting.await, Ok(Turn::Yours(_))));
        assert_eq!(queue.pending(), 0);
    }

    #[tokio::test]
    async fn a_call_that_waits_can_be_taken_back() {
        let (queue, cancel) = (Queue::new(1, 1), CancellationToken::new());
        let running = queue.turn(&CancellationToken::new()).await;
        let mut waiting = Box::pin(queue.turn(&cancel));
        assert!(glance(&mut waiting).await.is_none());
        cancel.cancel();
        assert!(matches!(waiting.await, Ok(Turn::Cancelled)));
        assert_eq!(queue.pending(), 1);
        drop(running);
    }

    /// Polls a future once: its value, if it is ready.
    async fn glance<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        tokio::select! { biased; value = future => Some(value), () = std::future::ready(()) => None }
    }

    #[test]
    fn a_full_queue_says_so() {
        assert_eq!(
            Refusal::QueueFull { running: 4, waiting: 256 }.to_string(),
            "the queue is full: 4 calls run and 256 wait\nhint: call again when one has ended"
        );
    }
}
