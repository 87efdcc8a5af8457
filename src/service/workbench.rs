//! The one path by which each call of a client runs: decided by policy, recorded, queued, started in
//! a cell, captured.

use std::sync::Arc;
use std::time::Instant;

use crate::queue::{Queue, Turn};
use crate::{Caller, Refusal, Report, session, watch};
use audit::{Audit, LoggedCall};
use capture::KEPT_BYTES;
use config::Loaded;
use link::{ConnectionListener, Link};
use model::call::Call;
use model::job::{ListChanges, Workspace};
use model::outcome::{Ended, Outcome};
use policy::flags::Changes;
use policy::tools::{Runs, ToolSpec};
use policy::{Grant, JobContext, Principal};

/// State that all clients of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) link: Link,
    /// Configuration in force, with policy and profiles.
    pub(crate) loaded: Loaded,
    pub(crate) workspace: Workspace,
    pub(crate) queue: Arc<Queue>,
    /// Turns of a project's scripts, which wait in the queue too.
    pub(crate) workers: Arc<Queue>,
    /// Downloads for a project, which wait in no other queue.
    pub(crate) fetches: Arc<Queue>,
    pub(crate) audit: Audit,
    /// Sessions of every client.
    pub(crate) clients: Arc<session::Clients>,
    /// Report of changes in the workspace, for tools that run commands.
    pub(crate) changes: ListChanges,
    /// The workspace as a read-only grant, if projects have one.
    pub(crate) read_only: Option<Workspace>,
}

/// How a call in a fresh cell runs.
#[derive(Debug)]
pub(crate) struct RunOptions<'w> {
    /// Workspace of the cell, and report of its changes.
    pub(crate) surroundings: JobContext,
    /// Bytes of each stream that are kept.
    pub(crate) keep: usize,
    /// Queue in which the call waits for its turn.
    pub(crate) queue: &'w Queue,
}

/// Runs the calls of one client over what all clients share. Its sessions are its own.
#[derive(Debug)]
pub(crate) struct Workbench {
    /// The client.
    pub(crate) principal: Principal,
    pub(crate) shared: Arc<Shared>,
    /// Audit log, in which the lines of decisions name the client.
    pub(crate) audit: Audit,
    pub(crate) sessions: Arc<session::Sessions>,
}

impl Workbench {
    /// Makes that of a client, which has no session yet.
    pub(crate) fn new(shared: &Arc<Shared>, principal: Principal) -> Self {
        Self {
            audit: shared.audit.for_client(principal.clone()),
            sessions: session::Sessions::of_a_client(&shared.clients, principal.clone()),
            shared: Arc::clone(shared),
            principal,
        }
    }

    /// Returns the context of a call in a fresh cell.
    pub(crate) fn surroundings(&self, tool: &str) -> JobContext {
        let runs = ToolSpec::named(tool).map(|tool| tool.runs);
        let changes = match runs == Some(Runs::FreshCell(ListChanges::Yes)) {
            true => self.shared.changes,
            false => ListChanges::No,
        };
        JobContext { workspace: self.shared.workspace, owner: None, changes }
    }

    /// Asks policy about a call, and records the answer.
    pub(crate) fn decide(
        &self,
        call: Call,
        surroundings: JobContext,
    ) -> Result<(Grant, LoggedCall), Refusal> {
        let asked = self.audit.new_record(&call);
        let tool = call.tool.clone();
        match self.shared.loaded.policy.decide(
            &self.principal,
            call,
            &self.shared.loaded.profiles,
            surroundings,
        ) {
            Ok(grant) => {
                let entry = self.audit.granted(tool, asked, &grant)?;
                let profile = grant.job().profile.to_string();
                tracing::debug!(rule = grant.rule(), profile, "granted");
                Ok((grant, entry))
            }
            Err(denial) => {
                self.audit.denied(&tool, asked, &denial);
                tracing::debug!(rule = denial.rule, "denied");
                Err(denial.into())
            }
        }
    }

    /// Returns the options of a call in these surroundings that waits with all others, and whose output is kept.
    pub(crate) fn options(&self, surroundings: impl Into<JobContext>) -> RunOptions<'_> {
        let surroundings = surroundings.into();
        RunOptions { surroundings, keep: KEPT_BYTES, queue: &self.shared.queue }
    }

    /// Decides, records and runs one call. Dropping the future cancels it.
    ///
    /// # Errors
    /// A denial by policy, or a full queue: nothing ran.
    pub(crate) async fn run(
        &self,
        call: Call,
        options: RunOptions<'_>,
        caller: &Caller,
    ) -> Result<Report, Refusal> {
        let RunOptions { surroundings, keep, queue } = options;
        let (grant, entry) = self.decide(caller.named(call), surroundings)?;
        let started = Instant::now();
        let mut report = Report::of(&grant);
        match queue.turn(&self.principal, &caller.cancel).await {
            Ok(Turn::Yours(_turn)) => {
                report = self.in_cell(grant, heard(&entry), report, (keep, caller)).await;
            }
            Ok(Turn::Cancelled) => report.ended.outcome = Outcome::Cancelled,
            Err(full) => {
                entry.refused(full.to_string());
                return Err(full);
            }
        }
        report.took = started.elapsed();
        tracing::debug!(outcome = report.ended.outcome.name(), "ended");
        entry.ended(&report.ended, report.receipt.as_ref());
        Ok(report)
    }

    /// Asks policy about a call of a declared command before anything of it runs. A denial is recorded; a grant is when
    /// the call is made.
    ///
    /// # Errors
    /// A denial by policy.
    pub(crate) fn may_call(&self, call: Call, changes: Changes) -> Result<Grant, Refusal> {
        let surroundings = self.command_beside_the_default(&call, changes);
        let asked = self.audit.new_record(&call);
        let tool = call.tool.clone();
        let Loaded { policy, profiles, .. } = &self.shared.loaded;
        policy.decide(&self.principal, call, profiles, surroundings).map_err(|denial| {
            self.audit.denied(&tool, asked, &denial);
            denial.into()
        })
    }

    /// Decides and records a call of a declared command, and runs nothing.
    ///
    /// # Errors
    /// The same as of [`Workbench::remembered`].
    pub(crate) fn only_decided(&self, call: Call, changes: Changes) -> Result<Grant, Refusal> {
        let surroundings = self.command_beside_the_default(&call, changes);
        let (grant, entry) = self.decide(call, surroundings)?;
        entry.only_decided();
        Ok(grant)
    }

    /// Decides and records a call whose answer is remembered, without running anything.
    ///
    /// # Errors
    /// A denial by policy, or a failure to record the call where no unrecorded call is allowed.
    pub(crate) fn remembered(&self, call: Call) -> Result<(), Refusal> {
        let surroundings = self.surroundings(&call.tool);
        let (_, entry) = self.decide(call, surroundings)?;
        entry.remembered();
        Ok(())
    }

    /// Starts the cell of a granted call, and follows it to its end.
    async fn in_cell(
        &self,
        grant: Grant,
        heard: Option<ConnectionListener>,
        report: Report,
        (keep, caller): (usize, &Caller),
    ) -> Report {
        // Cancelling does not stop this step: a cell that is being handed over must be ended by its
        // control, and the supervisor bounds the time of a start.
        let opening = self.open_beside(&grant, caller).await;
        let session = match grant.job().workspace {
            Workspace::Session(id) => Some(id),
            Workspace::Fresh | Workspace::Granted(_) => None,
        };
        let begun = session.filter(|_| opening.is_some());
        if let Some(id) = begun {
            self.sessions.set_open(id, true);
        }
        let started =
            session::until_sent(opening, self.shared.link.start(grant, None, heard)).await;
        if let (Some(id), Err(_)) = (begun, &started) {
            self.sessions.set_open(id, false);
        }
        match started {
            Err(failure) => Report { ended: Ended::failed(failure), ..report },
            Ok(running) => watch::to_the_end(running, report, keep, caller).await,
        }
    }
}

/// Returns what records the connections of a call, where there is a log.
pub(crate) fn heard(entry: &LoggedCall) -> Option<ConnectionListener> {
    let log = entry.connections()?;
    Some(ConnectionListener::new(move |connection| log.closed(&connection)))
}
