//! The one path by which each call of a client runs: decided by policy, recorded, queued, started in
//! a cell, captured.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::audit::{Audit, LoggedCall};
use crate::capture::KEPT_BYTES;
use crate::cli::hooks::Answers;
use crate::cli::state::ToolStates;
use crate::client_terms::ClientTerms;
use crate::host_programs::HostPrograms;
use crate::layer::LayerLink;
use crate::link::{ConnectionListener, Link};
use crate::queue::Queue;
use crate::{Caller, Refusal, Report, session, watch};
use config::Loaded;
use config::policy::flags::Changes;
use config::policy::tools::{Runs, ToolSpec};
use config::policy::{Grant, JobContext, Policy, Principal};
use model::call::Call;
use model::job::{Access, ListChanges, Workspace};
use model::outcome::{Ended, Outcome};

/// State that all clients of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) link: Link,
    pub(crate) workspace: Workspace,
    pub(crate) queue: Arc<Queue>,
    /// Second queue, for scripts of a project: they also wait in `queue`.
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
    /// Paths in cells that the operator granted for reading, the workspace apart.
    pub(crate) readable: Vec<PathBuf>,
    /// Path in addition to `/workspace` at which cells have the workspace, if there is one.
    pub(crate) workspace_path: Option<PathBuf>,
    /// Access to the directory that is granted as `/workspace`, if one is.
    pub(crate) granted: Option<Access>,
    /// Link to the process that reads the layer of the workspace, if it has one.
    pub(crate) layer: Option<LayerLink>,
    pub(crate) host_programs: HostPrograms,
    /// Time limit of a `bash` call that names no time limit, if the operator named one.
    pub(crate) command_timeout: Option<Duration>,
    /// Remembered results per client: shared ones would reveal to a client what another asked.
    pub(crate) caches: Mutex<BTreeMap<Principal, Arc<calc::Cache>>>,
    /// State that calls of declared commands share.
    pub(crate) tools: ToolStates,
    /// Answers of their hooks that are remembered.
    pub(crate) answers: Answers,
    /// Tools that the operator switched off since the start.
    pub(crate) switched_off: RwLock<BTreeSet<String>>,
    /// Number of such changes.
    pub(crate) switches: tokio::sync::watch::Sender<u64>,
    /// Rules about every client.
    pub(crate) policy: Policy,
    /// Terms of clients about which there is no rule, the operator's own among them.
    pub(crate) terms: Arc<ClientTerms>,
    /// Terms of the others, as far as they have called.
    pub(crate) terms_of_clients: Mutex<BTreeMap<Principal, Arc<ClientTerms>>>,
}

impl Shared {
    /// Returns the terms of a client.
    fn terms_of(&self, client: &Principal) -> Arc<ClientTerms> {
        if self.policy.clients().is_empty() || *client == Principal::local() {
            return Arc::clone(&self.terms);
        }
        let mut all = self.terms_of_clients.lock().unwrap_or_else(PoisonError::into_inner);
        let terms = all.entry(client.clone()).or_insert_with(|| {
            let loaded = self.terms.loaded.clone();
            Arc::new(ClientTerms::new(loaded, &self.policy, client, self.command_timeout))
        });
        Arc::clone(terms)
    }

    /// Returns true if the operator has switched the tool off since the start.
    pub(crate) fn is_switched_off(&self, tool: &str) -> bool {
        self.switched_off.read().unwrap_or_else(PoisonError::into_inner).contains(tool)
    }
}

/// How a call in a fresh cell runs.
#[derive(Debug)]
pub(crate) struct RunOptions<'w> {
    /// Workspace of the cell, and report of its changes.
    pub(crate) context: JobContext,
    /// Bytes of each stream that are kept.
    pub(crate) keep: usize,
    /// Queue in which the call waits for its turn.
    pub(crate) queue: &'w Arc<Queue>,
}

/// Runs the calls of one client. The sessions belong to the client; `shared` is the same for all clients.
#[derive(Debug)]
pub(crate) struct Workbench {
    /// The client.
    pub(crate) principal: Principal,
    pub(crate) shared: Arc<Shared>,
    /// What the configuration leaves the client.
    pub(crate) terms: Arc<ClientTerms>,
    /// Audit log, in which the lines of decisions name the client.
    pub(crate) audit: Audit,
    pub(crate) sessions: Arc<session::Sessions>,
}

impl Workbench {
    /// Makes the workbench of a client, without a session.
    pub(crate) fn new(shared: &Arc<Shared>, principal: Principal) -> Self {
        Self {
            audit: shared.audit.for_client(principal.clone()),
            sessions: session::Sessions::of_a_client(&shared.clients, principal.clone()),
            terms: shared.terms_of(&principal),
            shared: Arc::clone(shared),
            principal,
        }
    }

    /// Returns the context of a call in a fresh cell.
    pub(crate) fn job_context(&self, tool: &str) -> JobContext {
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
        context: JobContext,
    ) -> Result<(Grant, LoggedCall), Refusal> {
        let asked = self.audit.new_record(&call);
        let tool = call.tool.clone();
        match self.terms.loaded.policy.decide(
            &self.principal,
            call,
            &self.terms.loaded.profiles,
            context,
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

    /// Returns the options of a call in this context that waits with all others, and whose output is kept.
    pub(crate) fn options(&self, context: impl Into<JobContext>) -> RunOptions<'_> {
        let context = context.into();
        RunOptions { context, keep: KEPT_BYTES, queue: &self.shared.queue }
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
        let RunOptions { context, keep, queue } = options;
        let (grant, entry) = self.decide(caller.named(call), context)?;
        let started = Instant::now();
        let mut report = Report::of(&grant);
        match queue.turn(&self.principal, &caller.cancel).await {
            Ok(Some(_turn)) => {
                report =
                    self.in_cell(grant, connection_listener(&entry), report, (keep, caller)).await;
            }
            Ok(None) => report.ended.outcome = Outcome::Cancelled,
            Err(full) => {
                entry.refused(full.in_full());
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
        let context = self.command_in_default_workspace(&call, changes);
        let asked = self.audit.new_record(&call);
        let tool = call.tool.clone();
        let Loaded { policy, profiles, .. } = &self.terms.loaded;
        policy.decide(&self.principal, call, profiles, context).map_err(|denial| {
            self.audit.denied(&tool, asked, &denial);
            denial.into()
        })
    }

    /// Decides and records a call of a declared command, and runs nothing.
    ///
    /// # Errors
    /// The same as of [`Workbench::remembered`].
    pub(crate) fn only_decided(&self, call: Call, changes: Changes) -> Result<Grant, Refusal> {
        let context = self.command_in_default_workspace(&call, changes);
        let (grant, entry) = self.decide(call, context)?;
        entry.only_decided();
        Ok(grant)
    }

    /// Decides and records a call whose answer is remembered, without running anything.
    ///
    /// # Errors
    /// A denial by policy, or a failure to record the call where no unrecorded call is allowed.
    pub(crate) fn remembered(&self, call: Call) -> Result<(), Refusal> {
        let context = self.job_context(&call.tool);
        let (_, entry) = self.decide(call, context)?;
        entry.remembered();
        Ok(())
    }

    /// Starts the cell of a granted call, and follows it to its end.
    async fn in_cell(
        &self,
        grant: Grant,
        listener: Option<ConnectionListener>,
        report: Report,
        (keep, caller): (usize, &Caller),
    ) -> Report {
        // Cancelling does not stop this step: a cell that is being handed over must be ended by its
        // control, and the supervisor bounds the time of a start.
        let opening = self.room_for_workspace(&grant, caller).await;
        let session = match grant.job().workspace {
            Workspace::Session(id) => Some(id),
            Workspace::Fresh | Workspace::Granted(_) => None,
        };
        let begun = session.filter(|_| opening.is_some());
        if let Some(id) = begun {
            self.sessions.set_open(id, true);
        }
        let started =
            session::until_sent(opening, self.shared.link.start(grant, None, listener)).await;
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
pub(crate) fn connection_listener(entry: &LoggedCall) -> Option<ConnectionListener> {
    let log = entry.connections()?;
    Some(ConnectionListener::new(move |connection| log.closed(&connection)))
}
