//! The executor behind the tools, one for each server: its policy, queue, link and audit log.

mod calculations;
mod commands;
mod figures;
mod files;
mod fresh;
mod hooks;
mod jobs;
mod operator;
mod projects;
mod sessions;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;

pub use self::figures::{ServerFigures, SupervisorState};
use self::jobs::end_of;
pub use self::operator::{NoControl, ToolSwitch};
use crate::cli::hooks::Answers;
use crate::cli::state::{ToolFigures, ToolState, ToolStates};
use crate::cli::{CommandTerms, Declared};
use crate::client::ClientState;
use crate::denied::DenialReport;
use crate::host_programs::HostPrograms;
use crate::queue::Queue;
use crate::refused::{Refused, RefusedKind};
use crate::report::JobEnd;
use crate::request::ExecOptions;
use crate::rules::Rules;
use crate::session::SessionActivity;
use crate::workbench::{Shared, Workbench};
use audit::Audit;
pub use audit::{CallCounts, DURATION_BOUNDS};
use config::Loaded;
use link::Link;
use model::job::{Access, ListChanges, Workspace};
use model::outcome::{DeniedCall, Failure};
use model::profile::Profile;
use model::receipt::MemoryHold;
use policy::group::ToolGroup;
use policy::tools::{NAMES, asks_a_rule, ruled_by};
use policy::{Policy, Principal, Terms};

/// The tool that describes declared commands; it is listed if there are any.
const ABOUT_A_TOOL: &str = "get_tool_info";

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
    /// Time limit of a `bash` call that asks for none, if the operator named one.
    pub command_timeout: Option<Duration>,
    pub host_programs: HostPrograms,
    /// Declared tools whose program is missing in their cells, as found before the confinement.
    pub missing: BTreeSet<String>,
    /// Calls of a project's scripts that run at once.
    pub workers: u32,
    /// The workspace with all that is granted for reading only, if there is one.
    pub read_only: Option<Workspace>,
}

/// Runs the calls of a server's clients. Where the policy has rules for some clients, each client has an executor with
/// its rules, and all of them share everything else.
#[derive(Debug)]
pub struct Executor {
    shared: Arc<Shared>,
    /// Rules about every client.
    policy: Policy,
    /// Executors of clients, where rules name any.
    of_clients: Mutex<BTreeMap<Principal, Arc<Self>>>,
    /// Time limit of a `bash` call that asks for none, if the operator named one.
    command_timeout: Option<Duration>,
    /// Time that a call waits before its command becomes a job.
    yield_after: Duration,
    /// Time limit of a `bash` call that asks for none, if less than its rule leaves it.
    default_timeout: Option<Duration>,
    /// Profile of `bash`, with the limits that its rule leaves it.
    shell: Option<Profile>,
    calculator: Duration,
    /// Access to the directory that is granted as `/workspace`, if one is.
    granted: Option<Access>,
    /// Remembered results per client: shared ones would reveal to a client what another asked.
    caches: Arc<Mutex<BTreeMap<Principal, Arc<calc::Cache>>>>,
    /// Declared commands that the operator switched on and the policy allows.
    commands: Vec<Declared>,
    /// State that calls of these commands share.
    tools: Arc<ToolStates>,
    /// Answers of their hooks that are remembered.
    answers: Arc<Answers>,
    /// Tools that the operator switched off since the start.
    switched_off: Arc<RwLock<BTreeSet<String>>>,
    /// Number of such changes.
    switches: Arc<watch::Sender<u64>>,
    exec: ExecOptions,
    host_programs: HostPrograms,
}

impl Executor {
    /// Makes the executor of a server, whose calls run over `link` and are recorded in `audit`.
    pub fn new(setup: Setup, link: Link, audit: Audit) -> Self {
        let Setup { loaded, workspace, granted, command_timeout, host_programs, missing, .. } =
            setup;
        let workers = setup.workers;
        let read_only = setup.read_only;
        let config = &loaded.config;
        let size = |value: u32| usize::try_from(value).unwrap_or(usize::MAX);
        let changes = match config.files_changed.value {
            true => ListChanges::Yes,
            false => ListChanges::No,
        };
        let waiting = size(config.queue.value);
        let queue = Queue::new(size(config.concurrency.value), waiting);
        let policy = loaded.policy.clone();
        let all = offered_to_any(&loaded);
        let shared = Shared {
            link,
            loaded: of_client(loaded, &policy, &Principal::local()),
            workspace,
            queue: Arc::new(queue),
            workers: Arc::new(Queue::new(size(workers), waiting)),
            fetches: Arc::new(Queue::new(FETCHES, waiting)),
            audit,
            clients: Arc::default(),
            changes,
            read_only,
        };
        let tools = Arc::new(ToolStates::of(&all, &missing));
        let derived = Derived::of(&shared.loaded, command_timeout);
        let Derived { default_timeout, shell, calculator, commands, exec } = derived;
        Self {
            yield_after: shared.loaded.config.session_yield.value,
            policy,
            of_clients: Mutex::default(),
            command_timeout,
            default_timeout,
            shell,
            calculator,
            granted: match workspace {
                Workspace::Fresh | Workspace::Session(_) => None,
                Workspace::Granted(_) => granted,
            },
            caches: Arc::default(),
            tools,
            answers: Arc::default(),
            switched_off: Arc::default(),
            switches: Arc::new(watch::Sender::new(0)),
            commands,
            exec,
            host_programs,
            shared: Arc::new(shared),
        }
    }

    /// Returns the executor under the rules of a client.
    fn of_client(self: &Arc<Self>, client: &Principal) -> Arc<Self> {
        if self.policy.clients().is_empty() || *client == Principal::local() {
            return Arc::clone(self);
        }
        let mut all = self.of_clients.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(client.clone()).or_insert_with(|| Arc::new(self.under(client))))
    }

    fn under(&self, client: &Principal) -> Self {
        let of = &self.shared;
        let shared = Shared {
            link: of.link.clone(),
            loaded: of_client(of.loaded.clone(), &self.policy, client),
            workspace: of.workspace,
            queue: Arc::clone(&of.queue),
            workers: Arc::clone(&of.workers),
            fetches: Arc::clone(&of.fetches),
            audit: of.audit.for_client(client.clone()),
            clients: Arc::clone(&of.clients),
            changes: of.changes,
            read_only: of.read_only,
        };
        let derived = Derived::of(&shared.loaded, self.command_timeout);
        let Derived { default_timeout, shell, calculator, commands, exec } = derived;
        Self {
            shared: Arc::new(shared),
            policy: self.policy.clone(),
            of_clients: Mutex::default(),
            command_timeout: self.command_timeout,
            yield_after: self.yield_after,
            default_timeout,
            shell,
            calculator,
            granted: self.granted,
            caches: Arc::clone(&self.caches),
            commands,
            tools: Arc::clone(&self.tools),
            answers: Arc::clone(&self.answers),
            switched_off: Arc::clone(&self.switched_off),
            switches: Arc::clone(&self.switches),
            exec,
            host_programs: self.host_programs.clone(),
        }
    }

    /// Returns the figures of every declared command that is offered, by its name, for health and metrics.
    pub fn tool_figures(&self) -> BTreeMap<String, ToolFigures> {
        self.tools.figures()
    }

    /// Returns true for a tool that is under `[tools] off` or was switched off since, whatever its group is.
    pub fn is_off(&self, tool: &str) -> bool {
        self.shared.loaded.config.tools_off.value.contains(tool) || self.is_switched_off(tool)
    }

    /// Makes what one client has of this executor. From now on others leave something for it.
    pub fn scope(self: &Arc<Self>, principal: Principal) -> Scope {
        self.shared.queue.know(&principal);
        self.tools.know(&principal);
        self.watching_scope(principal)
    }

    /// Makes what a client has of this executor that calls nothing: others need leave nothing for it.
    pub fn watching_scope(self: &Arc<Self>, principal: Principal) -> Scope {
        let executor = self.of_client(&principal);
        let workbench = Workbench::new(&executor.shared, principal);
        let client = ClientState::new(&executor.exec);
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = caches.entry(workbench.principal.clone()).or_default();
        Scope { cache: Arc::clone(cache), executor, workbench, client }
    }
}

/// One client's view of an executor: its sessions and its state, over the shared queue, link and
/// audit log.
#[derive(Debug)]
pub struct Scope {
    executor: Arc<Executor>,
    cache: Arc<calc::Cache>,
    workbench: Workbench,
    client: ClientState,
}

impl Drop for Scope {
    /// Orders the supervisor to end the client's sessions, which no call can name any more. The orders are
    /// queued, so this never waits for room on the link.
    fn drop(&mut self) {
        for session in self.workbench.sessions.numbers() {
            self.executor.shared.link.forget(session);
        }
    }
}

impl Scope {
    /// Returns a function that reports the use of the client's sessions: no use once the scope is gone.
    pub fn session_use(&self) -> impl Fn() -> SessionActivity + Send + Sync + 'static + use<> {
        let sessions = Arc::downgrade(&self.workbench.sessions);
        move || sessions.upgrade().map_or(SessionActivity::None, |sessions| sessions.usage())
    }

    /// Describes a refused call, with the grant that would allow it to `bash`.
    fn denial(&self, denied: &DeniedCall) -> DenialReport {
        match &self.executor.shell {
            Some(profile) => DenialReport::of(denied, profile),
            None => DenialReport::of(denied, &Profile::nothing()),
        }
    }
}

/// Configuration with the rules of one client.
fn of_client(loaded: Loaded, policy: &Policy, client: &Principal) -> Loaded {
    Loaded { policy: policy.for_client(client), ..loaded }
}

/// Everything that follows from the rules of a client.
struct Derived {
    default_timeout: Option<Duration>,
    shell: Option<Profile>,
    calculator: Duration,
    commands: Vec<Declared>,
    exec: ExecOptions,
}

impl Derived {
    fn of(loaded: &Loaded, command_timeout: Option<Duration>) -> Self {
        let effective = |tool| effective(loaded, tool);
        let shell = effective("bash");
        Self {
            default_timeout: command_timeout
                .map(|time| shell.as_ref().map_or(time, |shell| time.min(shell.limits.wall))),
            shell,
            calculator: effective("calculate")
                .map_or(Duration::ZERO, |profile| profile.limits.wall),
            commands: offered(loaded),
            exec: exec_options(loaded),
        }
    }
}

/// Returns the declared commands that some client is offered.
fn offered_to_any(loaded: &Loaded) -> Vec<Declared> {
    let mut all: BTreeMap<String, Declared> = BTreeMap::new();
    for policy in loaded.policy.per_client() {
        for declared in offered(&Loaded { policy, ..loaded.clone() }) {
            all.entry(declared.command.name.clone()).or_insert(declared);
        }
    }
    all.into_values().collect()
}

/// Returns the settings of `bash_exec` within the limits of its rule, so that its description is
/// exact.
fn exec_options(loaded: &Loaded) -> ExecOptions {
    let exec = &loaded.config.exec;
    let rule = loaded.policy.terms("bash_exec", &loaded.profiles);
    let bound = rule.as_ref().map_or(Duration::MAX, |terms| terms.limits.wall);
    let most = bound.min(exec.max_timeout.value);
    let own = |terms: &Terms<'_>| {
        let names = [&terms.profile.name].into_iter().chain(terms.choice.iter().copied());
        names.map(ToString::to_string).collect()
    };
    let profiles = rule.as_ref().map_or(Vec::new(), own);
    ExecOptions {
        default_timeout: exec.default_timeout.value.min(most),
        max_timeout: most,
        working_dir: exec.working_dir.value.clone(),
        history: exec.history.value,
        profiles,
    }
}

/// Returns the declared commands that `[tools] on` names, `[tools] off` does not name, and a rule
/// allows.
fn offered(loaded: &Loaded) -> Vec<Declared> {
    let Loaded { policy, config, .. } = loaded;
    if config.tools_on.value.is_empty() {
        return Vec::new();
    }
    let commands = policy.commands().iter();
    let on = commands.filter(|command| withheld(loaded, &command.name).is_none());
    on.filter_map(|command| {
        let profile = effective(loaded, &command.name)?;
        let terms = CommandTerms::of(&command.conduct, &config.commands, &profile);
        Some(Declared { command: command.clone(), profile, terms })
    })
    .collect()
}

/// Returns the reason why an existing tool is not offered.
fn withheld(loaded: &Loaded, tool: &str) -> Option<Refused> {
    let Loaded { config, policy, profiles, .. } = loaded;
    let declared = policy.declares(tool);
    if !declared && !NAMES.contains(&tool) {
        return None;
    }
    let off = || Refused::new(RefusedKind::Denied, format!("`{tool}` is switched off"));
    let names = [tool, ruled_by(tool)];
    if names.iter().any(|name| config.tools_off.value.contains(*name)) {
        return Some(off().with_hint("it is under `[tools] off` in the operator's cofferdam.toml"));
    }
    if let Some(group) =
        ToolGroup::of_tool(tool).filter(|group| !config.tools_groups.value.contains(group))
    {
        let hint = group.remedy(&config.tools_groups.value);
        return Some(off().with_hint(hint));
    }
    if declared && !config.tools_on.value.contains(tool) {
        let hint = "the operator can switch it on with `[tools] on` in cofferdam.toml";
        return Some(off().with_hint(hint));
    }
    // A call of a built-in tool that no rule allows is decided like any other, and recorded.
    let denied = declared.then(|| policy.terms(tool, profiles).err()).flatten();
    denied.map(Refused::from)
}

/// Returns the profile of a tool with the limits that its rule leaves, as a call of it would get.
fn effective(loaded: &Loaded, tool: &str) -> Option<Profile> {
    let terms = loaded.policy.terms(tool, &loaded.profiles).ok()?;
    let mut profile = Profile { limits: terms.limits, ..terms.profile.clone() };
    if let Some(rules) = terms.egress {
        let rules: Vec<String> = rules.into_iter().map(str::to_owned).collect();
        profile.egress = profile.egress.narrowed(&rules);
    }
    Some(profile)
}

impl Scope {
    /// Returns what the client has set and done.
    pub fn state(&self) -> &ClientState {
        &self.client
    }

    /// Returns the time after which a client is not kept waiting for a command any more, where there is another way.
    pub fn yield_after(&self) -> Duration {
        self.executor.yield_after
    }

    /// Returns the number of calls that run or are queued now.
    pub fn pending(&self) -> usize {
        self.executor.shared.queue.pending()
    }

    /// Returns the operator's settings of `bash_exec`.
    pub fn exec_options(&self) -> ExecOptions {
        self.executor.exec.clone()
    }

    /// Returns the declared commands that are offered here.
    pub fn commands(&self) -> &[Declared] {
        &self.executor.commands
    }

    /// Returns the figures of a declared command that is offered.
    pub fn tool_figures(&self, tool: &str) -> Option<ToolFigures> {
        self.executor.tools.get(tool).map(ToolState::figures)
    }

    /// Returns true if a built-in tool is listed. A call of an unlisted tool is still decided and
    /// recorded.
    pub fn lists(&self, tool: &str) -> bool {
        if tool == ABOUT_A_TOOL && self.executor.commands.is_empty() {
            return false;
        }
        let Loaded { policy, profiles, .. } = &self.executor.shared.loaded;
        let allowed = !asks_a_rule(tool) || policy.terms(tool, profiles).is_ok();
        allowed && self.withheld(tool).is_none()
    }

    /// Returns a receiver that changes when the operator has switched a tool.
    pub fn switches(&self) -> watch::Receiver<u64> {
        self.executor.switches.subscribe()
    }

    /// Returns the reason for which an existing tool is not offered; `None` for an offered or
    /// unknown tool.
    pub fn withheld(&self, tool: &str) -> Option<Refused> {
        if [tool, ruled_by(tool)].iter().any(|name| self.executor.is_switched_off(name)) {
            let off = Refused::new(RefusedKind::Denied, format!("`{tool}` is switched off"));
            return Some(off.with_hint("the operator switched it off while the server runs"));
        }
        withheld(&self.executor.shared.loaded, tool)
    }

    /// Returns a future that resolves at the end of a job, or `None` where there is no such job.
    pub fn end_of(&self, job: &str) -> Option<Pin<Box<dyn Future<Output = JobEnd> + Send>>> {
        let command = self.workbench.command(job)?;
        Some(Box::pin(end_of(command)))
    }

    /// Records that the arguments of a call were refused, so no decision was made about the call.
    pub fn invalid(&self, tool: &str, why: &str) {
        self.workbench.audit.invalid(tool, why);
    }

    /// Resolves once the supervisor has reported which cells this host can have.
    pub async fn settled(&self) {
        // The next call reports why the supervisor failed to start; here the wait just ends.
        let failed: Option<Failure> = self.executor.shared.link.ready().await.err();
        if let Some(failure) = failed {
            tracing::warn!(%failure, "no cell can be made");
        }
    }

    /// Returns the rules in force for an agent.
    pub fn rules(&self) -> Rules {
        let memory = self
            .executor
            .shared
            .link
            .greeted()
            .map_or(MemoryHold::BestEffort, |ready| ready.memory);
        let nothing = Profile::nothing();
        let profile = self.executor.shell.as_ref().unwrap_or(&nothing);
        Rules::of(profile, self.executor.granted, profile.tier, memory, self.executor.calculator)
            .with_default_timeout(self.executor.default_timeout.map(|time| time.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests;
