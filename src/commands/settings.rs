//! Configuration in force with the grants of the command line, from which the supervisor and the front end start.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::CliError;
use super::grants::cache_upkeep::CacheUpkeep;
use super::grants::host_programs;
use super::layer_reader::ServedLayer;
use super::policy::agreement;
use super::serve::listener::HostGrants;
use config::json::ConfigJson;
use config::mcp_server::McpSettings;
use config::policy::flags::DeclaredCommand;
use config::policy::tools::FETCH;
use config::policy::{Effect, Principal, Profiles, Rule, Terms};
use config::server::{Config, ScopeRule};
use config::{HostContext, Loaded, ValueSource};
use model::defaults;
use model::egress::NetworkClass;
use model::job::{Access, ProfileName, Workspace};
use model::profile::{HostPath, Profile, ProfileAdditions};
use model::receipt::Tier;
use projects::GrantedDirectory;
use service::Setup;
use service::host_programs::HostPrograms;
use supervisor::{Granted, IdRange, OwnIds, PrivateCells, ScopeWish, Socket};

/// Tools whose cells have the sockets of `--nested`.
const SHELL_TOOLS: [&str; 3] = ["bash", "bash_exec", "bash_exec_stream"];

/// Number of instances of root that share the configured range of host ids.
const INSTANCES: u32 = 64;

/// Configuration in force, and what the operator granted on the command line.
#[derive(Debug, Clone)]
pub struct Settings {
    pub loaded: Loaded,
    /// Profiles for which cells are made.
    pub(super) profiles: Vec<Profile>,
    /// Sets of host directories and files that the operator granted; a job names a set by its index.
    pub(super) granted: Vec<Vec<Granted>>,
    /// The layer of the workspace, if a server has one.
    pub(super) served_layer: Option<ServedLayer>,
    /// What cells with a private workspace have of the first set.
    pub(super) private_cells: PrivateCells,
    /// Paths in cells that the operator granted for reading, the workspace apart.
    pub(super) readable: Vec<PathBuf>,
    /// Path in addition to `/workspace` at which cells have the workspace: its path on the host.
    pub(super) workspace_path: Option<PathBuf>,
    /// Descriptors, held since the sockets were examined.
    pub(super) sockets: Vec<Socket>,
    /// Cells to keep ready for a profile that is in use: a command that makes one call needs none.
    pub(super) warm: u16,
    /// Network namespaces to keep for further cells: only a server has further cells.
    pub(super) networks: u16,
    /// Number of sessions that may be opened: only a server has any.
    pub(super) sessions: u16,
    /// Choice of host ids for cells: only a server takes the time for its own.
    pub(super) own_ids: OwnIds,
    /// Profile and workspace of the only call, if there is just one.
    pub(super) first: Option<(ProfileName, Workspace)>,
    /// Tier of the cells, chosen by the operator on the command line.
    pub tier: Tier,
    /// Paths of configuration that were named on the command line.
    pub(super) named_configuration: Vec<PathBuf>,
    /// Commands for which systemd is asked for a scope.
    pub(super) scope: ScopeWish,
    /// A `config.json` that was named.
    pub json: Option<ConfigJson>,
    /// True if cells have variables that the operator typed: they can be secrets.
    has_own_env: bool,
    /// Calls of a project's scripts that run at once.
    pub(super) workers: u32,
    /// The workspace with every grant read-only.
    pub(super) read_only: Option<Workspace>,
    /// Measuring and removing of caches that is due.
    pub(super) upkeep: Option<Arc<CacheUpkeep>>,
}

impl Settings {
    fn new(loaded: Loaded, profiles: Vec<Profile>) -> Self {
        Self {
            loaded,
            profiles,
            granted: Vec::new(),
            served_layer: None,
            private_cells: PrivateCells::Bare,
            readable: Vec::new(),
            workspace_path: None,
            sockets: Vec::new(),
            warm: 0,
            networks: 0,
            sessions: 0,
            own_ids: OwnIds::Unwanted,
            first: None,
            tier: Tier::Full,
            named_configuration: Vec::new(),
            scope: ScopeWish::Never,
            json: None,
            has_own_env: false,
            workers: u32::MAX,
            read_only: None,
            upkeep: None,
        }
    }

    /// Adds the directory of configuration that was named.
    fn named(mut self, directory: Option<&Path>) -> Self {
        self.named_configuration.extend(directory.map(Path::to_owned));
        self
    }

    /// Sets the tier that the operator asked for.
    #[must_use]
    pub fn in_tier(mut self, tier: Option<Tier>) -> Self {
        self.tier = tier.unwrap_or_default();
        self.loaded.profiles = self.loaded.profiles.in_tier(self.tier);
        let profiles = self.profiles.into_iter();
        self.profiles = profiles.map(|profile| profile.in_tier(self.tier)).collect();
        self
    }

    /// Gives the shell the profile `nested` in place of `bash`, for `--nested`.
    ///
    /// # Errors
    /// A policy that gives the shell another profile.
    pub(super) fn nested(mut self) -> Result<Self, CliError> {
        let refused = |what: &str| {
            CliError::new(format!("--nested: {what}"))
                .with_hint("let the rule of `bash` name `nested` or one like it, and use --socket")
        };
        let name = |text: &str| ProfileName::new(text).ok_or_else(|| refused("no profile"));
        let nested = name("nested")?;
        let policy = &self.loaded.policy;
        self.loaded.policy = policy.with_profile(&SHELL_TOOLS, &name("bash")?, &nested);
        let is_other = |rule: &&Rule| match &rule.effect {
            Effect::Allow { profile, .. } => *profile != nested && rule.matches("bash"),
            Effect::Deny => false,
        };
        if let Some(rule) = self.loaded.policy.rules().iter().find(is_other) {
            return Err(refused(&format!("rule `{}` gives `bash` another profile", rule.id)));
        }
        self.profiles = profiles_of_calls(&self.loaded);
        Ok(self)
    }

    /// Sets when to ask for a scope, unless the configuration or a profile asks for more.
    #[must_use]
    pub fn scoped(mut self, wish: ScopeWish) -> Self {
        let mut profiles = self.profiles.iter();
        let required = profiles
            .any(|profile| profile.requires.memory_cgroup || profile.limits.processors.is_some());
        self.scope = match (self.loaded.config.scope.value, wish) {
            (ScopeRule::Off, _) => ScopeWish::Never,
            (ScopeRule::Auto | ScopeRule::Always, _) if required => ScopeWish::Needed,
            (ScopeRule::Always, ScopeWish::Never) => ScopeWish::Needed,
            (ScopeRule::Auto | ScopeRule::Always, wish) => wish,
        };
        self
    }

    /// Applies the operator's additions to profiles. A cell that may use more memory than by default raises
    /// what all cells may use together, unless the configuration says that.
    pub(super) fn add(&mut self, additions: &ProfileAdditions) {
        self.has_own_env |= !additions.env.is_empty();
        self.loaded.profiles.add(additions);
        self.profiles.iter_mut().for_each(|profile| profile.add(additions));
        let all = &mut self.loaded.config.memory;
        if let (Some(memory), ValueSource::Default) = (additions.memory, &all.source) {
            let cells = all.value / defaults::MEMORY;
            all.value = all.value.max(memory.saturating_mul(cells.max(1)));
        }
    }

    /// Adds profiles to those for which cells are made.
    pub(super) fn add_profiles(&mut self, names: &[ProfileName]) {
        for name in names {
            let is_used = self.profiles.iter().any(|profile| profile.name == *name);
            let loaded = self.loaded.profiles.get(name);
            self.profiles.extend(loaded.filter(|_| !is_used).cloned());
        }
    }

    /// Returns a profile, with the additions of the command line.
    ///
    /// # Errors
    /// An unknown profile.
    pub(super) fn profile(&self, name: &ProfileName) -> Result<&Profile, CliError> {
        let used = self.profiles.iter().find(|profile| profile.name == *name);
        used.or_else(|| self.loaded.profiles.get(name)).ok_or_else(|| {
            let error = CliError::new(format!("--profile: no profile `{name}`"));
            match self.loaded.profiles.nearest(name.as_str()) {
                Some(nearest) => error.with_hint(format!("did you mean `{nearest}`?")),
                None => error.with_hint("bash and bc are built in"),
            }
        })
    }

    /// Returns whether cells have anything of the host that a client without a token must not reach.
    #[must_use]
    pub fn host_grants(&self) -> HostGrants {
        let shipped = Profiles::compiled_in();
        let shipped: Vec<&Profile> = shipped.names().filter_map(|name| shipped.get(name)).collect();
        let is_shipped = |path: &HostPath| {
            shipped.iter().flat_map(|profile| &profile.paths).any(|known| known.host == path.host)
        };
        let is_usual = |(name, value): (&String, &String)| {
            shipped.iter().any(|profile| profile.env.get(name) == Some(value))
        };
        let inside = |profile: &Profile| {
            profile.egress.class <= NetworkClass::Loopback
                && profile.script_sdk.is_empty()
                && profile.paths.iter().all(is_shipped)
                && profile.env.iter().all(is_usual)
        };
        // Without namespaces cells are ordinary processes of the operator, which is a grant in itself.
        let is_full = self.tier == Tier::Full;
        let no_grants = self.granted.is_empty() && self.sockets.is_empty() && !self.has_own_env;
        match is_full && no_grants && self.profiles.iter().all(inside) {
            true => HostGrants::None,
            false => HostGrants::Some,
        }
    }

    /// Returns the settings of an executor.
    pub fn executor(self, workspace: Workspace, host_programs: HostPrograms) -> Setup {
        Setup {
            workspace,
            granted: self.access(),
            host_programs,
            command_timeout: self.json.as_ref().and_then(|json| json.command_timeout),
            missing: self.missing(),
            workers: self.workers,
            read_only: self.read_only,
            readable: self.readable,
            workspace_path: self.workspace_path,
            // Opened once there is a runtime.
            layer: None,
            loaded: self.loaded,
        }
    }

    /// Finds the declared tools that are on and whose program is missing in their cells.
    fn missing(&self) -> BTreeSet<String> {
        let Loaded { policy, profiles, config, .. } = &self.loaded;
        let on = &config.tools_on.value;
        if on.is_empty() {
            return BTreeSet::new();
        }
        let missing = |command: &&DeclaredCommand| {
            let terms = policy.terms(&command.name, profiles);
            let has =
                |terms: Terms<'_>| host_programs::is_in_cells(&command.program, terms.profile);
            on.contains(&command.name) && !terms.map_or(true, has)
        };
        let missing = policy.commands().iter().filter(missing);
        missing.map(|command| command.name.clone()).collect()
    }

    /// Finds programs of the operator's PATH that commands of `bash` do not have.
    pub fn host_programs(&self) -> HostPrograms {
        let policy = self.loaded.policy.for_client(&Principal::local());
        let terms = policy.terms("bash", &self.loaded.profiles);
        let granted = self.granted.iter().flatten();
        let granted: Vec<PathBuf> = granted.map(|granted| granted.cell.clone()).collect();
        terms.map_or_else(
            |_| HostPrograms::default(),
            |terms| host_programs::find(terms.profile, &granted),
        )
    }

    /// Returns a copy without the parts that only the supervisor needs.
    #[must_use]
    pub fn for_the_front_end(&self) -> Self {
        Self {
            granted: self.granted.clone(),
            readable: self.readable.clone(),
            workspace_path: self.workspace_path.clone(),
            tier: self.tier,
            json: self.json.clone(),
            workers: self.workers,
            read_only: self.read_only,
            ..Self::new(self.loaded.clone(), Vec::new())
        }
    }

    /// Returns the directories and files that cells are granted.
    pub fn granted_directories(&self) -> Vec<GrantedDirectory> {
        let granted = self.granted.iter().take(1).flatten();
        let directory = |granted: &Granted| GrantedDirectory {
            host: granted.host.clone(),
            cell: granted.cell.clone(),
        };
        granted.map(directory).collect()
    }

    /// Returns the access of calls to the granted workspace; `None` if none is granted.
    fn access(&self) -> Option<Access> {
        self.granted.first()?.first().map(|granted| granted.access)
    }
}

/// Returns the range of host ids that is configured for root's instances, with the share of one.
pub(super) fn id_range(config: &Config) -> IdRange {
    IdRange { first: config.uid_base.value, count: config.uid_count.value / INSTANCES }
}

/// Reads the configuration: the first directory found, as a whole, else the built-in one.
///
/// # Errors
/// A file that is broken, missing although it was named, or writable by others.
pub fn load(directory: Option<&Path>) -> Result<Settings, CliError> {
    load_with(directory, &McpSettings::default(), &[])
}

/// Reads the configuration as [`load`] does, with the settings of a server that are in variables, and switches these
/// tools on.
///
/// # Errors
/// The errors of [`load`], or a setting that names no tool.
pub fn load_with(
    directory: Option<&Path>,
    mcp: &McpSettings,
    on: &[String],
) -> Result<Settings, CliError> {
    let mut loaded = config::load(directory, &HostContext::of_this_process())
        .map_err(|error| CliError::new(error.to_string()))?;
    // Reading the shipped tools takes longer than the rest of a start, and few servers use them.
    let commands = if mcp.names_tools() { loaded.policy.commands() } else { &[] };
    let declared: Vec<&str> = commands.iter().map(|command| command.name.as_str()).collect();
    mcp.apply(&mut loaded.config, &declared).map_err(|error| CliError::new(error.to_string()))?;
    if !on.is_empty() {
        let setting = &mut loaded.config.tools_on;
        setting.value.extend(on.iter().cloned());
        setting.source = ValueSource::Given("--on");
    }
    agreement::check_tools(&loaded)?;
    agreement::check_clients(&loaded)?;
    let profiles = profiles_of_calls(&loaded);
    Ok(Settings::new(loaded, profiles).named(directory))
}

/// Returns the profiles of the calls that clients can make.
fn profiles_of_calls(loaded: &Loaded) -> Vec<Profile> {
    // Each profile needs a template for each workspace. So profiles of commands that are not offered are left out, and
    // that of a project's downloads too.
    let offered = |tool: &str| {
        tool != FETCH
            && (!loaded.policy.declares(tool) || loaded.config.tools_on.value.contains(tool))
    };
    let names = used(loaded, offered);
    names.filter_map(|name| loaded.profiles.get(name)).cloned().collect()
}

/// Returns the names of the profiles under which a rule allows one of these tools.
pub(super) fn used<'l>(
    loaded: &'l Loaded,
    is_wanted: impl Fn(&str) -> bool + 'l,
) -> impl Iterator<Item = &'l ProfileName> {
    loaded.profiles.names().filter(move |name| {
        loaded.policy.rules().iter().any(|rule| {
            let Effect::Allow { profile, choice, .. } = &rule.effect else { return false };
            (profile == *name || choice.contains(*name))
                && rule.tools.iter().any(|tool| is_wanted(tool))
        })
    })
}

/// Reads the configuration that one call of the operator needs.
///
/// # Errors
/// The errors of [`load`].
pub fn load_one(directory: Option<&Path>) -> Result<Settings, CliError> {
    let loaded = config::load_one(directory, &HostContext::of_this_process())
        .map_err(|error| CliError::new(error.to_string()))?;
    agreement::check_tools(&loaded)?;
    Ok(Settings::new(loaded, Vec::new()).named(directory))
}
