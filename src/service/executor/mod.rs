//! The executor behind the tools, one for each server: its policy, queue, link and audit log.

mod commands;
mod figures;
mod hooks;
mod jobs;
mod operator;
mod shell;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;

use crate::Caller;
use crate::audit::Audit;
use crate::cli::Declared;
use crate::cli::hooks::Answers;
use crate::cli::state::{ToolFigures, ToolState, ToolStates};
use crate::client::ClientState;
use crate::client_terms::{ClientTerms, offered_to_any, withheld};
use crate::denied::DenialReport;
use crate::host_programs::HostPrograms;
use crate::layer::{LayerAnswer, LayerLink, LayerQuery};
use crate::link::Link;
use crate::queue::Queue;
use crate::refused::{Refused, RefusedKind};
use crate::request::ExecOptions;
use crate::rules::Rules;
use crate::session::SessionActivity;
use crate::workbench::{Shared, Workbench};
use config::Loaded;
use config::policy::Principal;
use config::policy::tools::{asks_a_rule, ruled_by};
pub use figures::{ServerFigures, SupervisorState};
use model::call::in_workspace;
use model::job::{Access, ListChanges, Workspace};
use model::outcome::{DeniedCall, Failure};
use model::profile::Profile;
use model::receipt::MemoryHold;
pub use operator::{NoControl, ToolSwitch};

/// The tool that describes declared commands; it is listed if there are any.
const ABOUT_A_TOOL: &str = "get_tool_info";

/// The tools that describe a layer; they are listed if the workspace has one.
const ABOUT_A_LAYER: [&str; 2] = ["workspace_changes", "workspace_diff"];

/// Downloads for projects that run at once. They have their own turns, as a script keeps its turn while it waits.
const FETCHES: usize = 4;

/// Parameters of an executor.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Configuration in force.
    pub loaded: Loaded,
    pub workspace: Workspace,
    /// Access to the directory that is granted as `/workspace`, if one is.
    pub granted: Option<Access>,
    /// Link to the process that reads the layer of the workspace, if it has one.
    pub layer: Option<LayerLink>,
    /// Time limit of a `bash` call that names no time limit, if the operator named one.
    pub command_timeout: Option<Duration>,
    pub host_programs: HostPrograms,
    /// Declared tools whose program is missing in their cells, as found before the confinement.
    pub missing: BTreeSet<String>,
    /// Calls of a project's scripts that run at once.
    pub workers: u32,
    /// The workspace with all that is granted for reading only, if there is one.
    pub read_only: Option<Workspace>,
    /// Paths in cells that the operator granted for reading, the workspace apart.
    pub readable: Vec<PathBuf>,
    /// Path in addition to `/workspace` at which cells have the workspace, if there is one.
    pub workspace_path: Option<PathBuf>,
}

/// Runs the calls of a server's clients.
#[derive(Debug, Clone)]
pub struct Executor {
    shared: Arc<Shared>,
}

impl Executor {
    /// Makes the executor of a server, whose calls run over `link` and are recorded in `audit`.
    pub fn new(setup: Setup, link: Link, audit: Audit) -> Self {
        let Setup { loaded, workspace, granted, command_timeout, host_programs, .. } = setup;
        let config = &loaded.config;
        let size = |value: u32| usize::try_from(value).unwrap_or(usize::MAX);
        let waiting = size(config.queue.value);
        let policy = loaded.policy.clone();
        let shared = Shared {
            link,
            workspace,
            queue: Queue::new(size(config.concurrency.value), waiting),
            workers: Queue::new(size(setup.workers), waiting),
            fetches: Queue::new(FETCHES, waiting),
            audit,
            clients: Arc::default(),
            changes: match config.files_changed.value {
                true => ListChanges::Yes,
                false => ListChanges::No,
            },
            read_only: setup.read_only,
            readable: setup.readable,
            workspace_path: setup.workspace_path,
            layer: setup.layer,
            granted: match workspace {
                Workspace::Fresh | Workspace::Session(_) => None,
                Workspace::Granted(_) => granted,
            },
            host_programs,
            command_timeout,
            caches: Mutex::default(),
            tools: ToolStates::of(&offered_to_any(&loaded), &setup.missing),
            answers: Answers::default(),
            switched_off: RwLock::default(),
            switches: watch::Sender::new(0),
            terms: Arc::new(ClientTerms::new(
                loaded,
                &policy,
                &Principal::local(),
                command_timeout,
            )),
            terms_of_clients: Mutex::default(),
            policy,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the figures of every declared command that is offered, by its name, for health and metrics.
    pub fn tool_figures(&self) -> BTreeMap<String, ToolFigures> {
        self.shared.tools.figures()
    }

    /// Returns true for a tool that is under `[tools] off` or was switched off since, whatever its group is.
    pub fn is_off(&self, tool: &str) -> bool {
        self.shared.terms.loaded.config.tools_off.value.contains(tool)
            || self.shared.is_switched_off(tool)
    }

    /// Makes what one client has of this executor, and registers the client, so that others leave something for it.
    pub fn scope(&self, principal: Principal) -> Scope {
        let registration = Registration::new(&self.shared, principal.clone());
        self.scope_of(principal, Some(registration))
    }

    /// Makes the scope of a client that makes no calls, so that no places are kept free for it.
    pub fn watching_scope(&self, principal: Principal) -> Scope {
        self.scope_of(principal, None)
    }

    /// Drops what is remembered of a client that was removed: results of calculations, terms, and
    /// breakers unless calls failed lately.
    pub fn forget(&self, client: &Principal) {
        let Shared { caches, terms_of_clients, tools, .. } = &*self.shared;
        caches.lock().unwrap_or_else(PoisonError::into_inner).remove(client);
        terms_of_clients.lock().unwrap_or_else(PoisonError::into_inner).remove(client);
        tools.all().for_each(|state| state.forget(client));
    }

    fn scope_of(&self, principal: Principal, registration: Option<Registration>) -> Scope {
        let workbench = Workbench::new(&self.shared, principal);
        let client = ClientState::new(&workbench.terms.exec);
        let mut caches = self.shared.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = caches.entry(workbench.principal.clone()).or_default();
        Scope { cache: Arc::clone(cache), workbench, client, _registration: registration }
    }
}

/// Registration of a client with the queues, until this is dropped.
#[derive(Debug)]
struct Registration {
    shared: Arc<Shared>,
    client: Principal,
}

impl Registration {
    fn new(shared: &Arc<Shared>, client: Principal) -> Self {
        shared.queue.register(&client);
        shared.tools.register(&client);
        Self { shared: Arc::clone(shared), client }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.queue.unregister(&self.client);
        self.shared.tools.unregister(&self.client);
    }
}

/// One client's view of an executor: its sessions and its state, over the shared queue, link and
/// audit log.
#[derive(Debug)]
pub struct Scope {
    pub(crate) cache: Arc<calc::Cache>,
    pub(crate) workbench: Workbench,
    client: ClientState,
    /// Absent for a client that makes no calls.
    _registration: Option<Registration>,
}

impl Drop for Scope {
    /// Orders the supervisor to end the client's sessions, which no call can name any more. The orders are
    /// queued, so this never waits for room on the link.
    fn drop(&mut self) {
        for session in self.workbench.sessions.numbers() {
            self.workbench.shared.link.forget(session);
        }
    }
}

impl Scope {
    /// Returns a path that names the workspace by its path on the host as one of `/workspace`, and
    /// other paths as they are. The result is not checked.
    #[must_use]
    pub fn in_workspace(&self, path: String) -> String {
        let other = self.workbench.shared.workspace_path.as_deref();
        other.and_then(|other| in_workspace(&path, other)).unwrap_or(path)
    }

    /// Returns a function that reports the use of the client's sessions: no use once the scope is gone.
    pub fn session_use(&self) -> impl Fn() -> SessionActivity + Send + Sync + 'static + use<> {
        let sessions = Arc::downgrade(&self.workbench.sessions);
        move || sessions.upgrade().map_or(SessionActivity::None, |sessions| sessions.usage())
    }

    /// Describes a refused call, with the grant that would allow it to `bash`.
    pub(crate) fn denial(&self, denied: &DeniedCall) -> DenialReport {
        match &self.workbench.terms.shell {
            Some(profile) => DenialReport::of(denied, profile),
            None => DenialReport::of(denied, &Profile::nothing()),
        }
    }

    /// Returns the client.
    pub fn principal(&self) -> &Principal {
        &self.workbench.principal
    }

    /// Returns what the client has set and done.
    pub fn state(&self) -> &ClientState {
        &self.client
    }

    /// Returns the time after which a client is not kept waiting for a command any more, where there is another way.
    pub fn yield_after(&self) -> Duration {
        self.workbench.terms.loaded.config.session_yield.value
    }

    /// Returns the number of calls that run or are queued now.
    pub fn pending(&self) -> usize {
        self.workbench.shared.queue.pending()
    }

    /// Returns the operator's settings of `bash_exec`.
    pub fn exec_options(&self) -> ExecOptions {
        self.workbench.terms.exec.clone()
    }

    /// Returns the declared commands that are offered here.
    pub fn commands(&self) -> &[Declared] {
        &self.workbench.terms.commands
    }

    /// Returns the figures of a declared command that is offered.
    pub fn tool_figures(&self, tool: &str) -> Option<ToolFigures> {
        self.workbench.shared.tools.get(tool).map(ToolState::figures)
    }

    /// Returns true if a built-in tool is listed. A call of an unlisted tool is still decided and
    /// recorded.
    pub fn lists(&self, tool: &str) -> bool {
        if ABOUT_A_LAYER.contains(&tool) && !self.has_layer() {
            return false;
        }
        if tool == ABOUT_A_TOOL && self.workbench.terms.commands.is_empty() {
            return false;
        }
        let Loaded { policy, profiles, .. } = &self.workbench.terms.loaded;
        let allowed = !asks_a_rule(tool) || policy.terms(tool, profiles).is_ok();
        allowed && self.withheld(tool).is_none()
    }

    /// Returns true if the changes of cells to the workspace are kept in a layer.
    pub fn has_layer(&self) -> bool {
        self.workbench.shared.layer.is_some()
    }

    /// Asks about the layer, if the policy lets the client read the workspace.
    ///
    /// # Errors
    /// A denial, no layer, or one that cannot be read.
    pub async fn ask_layer(
        &self,
        tool: &'static str,
        query: LayerQuery,
        caller: Caller,
    ) -> Result<LayerAnswer, Refused> {
        let Some(link) = self.workbench.shared.layer.clone() else {
            let absent = Refused::new(RefusedKind::Absent, "the workspace has no layer");
            let hint = "the operator makes one: cofferdam serve --workspace DIR:cow";
            return Err(absent.with_hint(hint));
        };
        let call = caller.named(query.call(tool)?);
        let (_, entry) = self.workbench.decide(call, self.workbench.job_context(tool))?;
        entry.answered_without_a_cell();
        let answer = tokio::select! {
            answer = link.ask(&query) => answer?,
            () = caller.cancel.cancelled() => return Err(Refused::cancelled()),
        };
        match answer {
            LayerAnswer::Refused { message, hint } => {
                Err(Refused { hint, ..Refused::failed(message) })
            }
            LayerAnswer::Changes { .. } | LayerAnswer::Diff(_) => Ok(answer),
        }
    }

    /// Returns a receiver that changes when the operator has switched a tool.
    pub fn switches(&self) -> watch::Receiver<u64> {
        self.workbench.shared.switches.subscribe()
    }

    /// Returns the reason for which an existing tool is not offered; `None` for an offered or
    /// unknown tool.
    pub fn withheld(&self, tool: &str) -> Option<Refused> {
        if [tool, ruled_by(tool)].iter().any(|name| self.workbench.shared.is_switched_off(name)) {
            let off = Refused::new(RefusedKind::Denied, format!("`{tool}` is switched off"));
            return Some(off.with_hint("the operator switched it off while the server runs"));
        }
        withheld(&self.workbench.terms.loaded, tool)
    }

    /// Records that the arguments of a call were refused, so no decision was made about the call.
    pub fn invalid(&self, tool: &str, why: &str) {
        self.workbench.audit.invalid(tool, why);
    }

    /// Resolves once the supervisor has reported which cells this host can have.
    pub async fn settled(&self) {
        // The next call reports why the supervisor failed to start; here the wait just ends.
        let failed: Option<Failure> = self.workbench.shared.link.ready().await.err();
        if let Some(failure) = failed {
            tracing::warn!(%failure, "no cell can be made");
        }
    }

    /// Returns the rules in force for an agent.
    pub fn rules(&self) -> Rules {
        let memory = self
            .workbench
            .shared
            .link
            .greeted()
            .map_or(MemoryHold::BestEffort, |ready| ready.memory);
        let nothing = Profile::nothing();
        let profile = self.workbench.terms.shell.as_ref().unwrap_or(&nothing);
        Rules::of(
            profile,
            self.workbench.shared.granted,
            profile.tier,
            memory,
            self.workbench.terms.calculator,
        )
        .with_readable(&self.workbench.shared.readable)
        .with_default_timeout(self.workbench.terms.default_timeout.map(|time| time.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests;
