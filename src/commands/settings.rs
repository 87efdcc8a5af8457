//! Configuration and grants for the command line.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use crate::commands::error::CliError;
use crate::commands::grants::cache::WorkspaceCache;
use crate::commands::grants::cache_upkeep::CacheUpkeep;
use crate::commands::grants::config_paths::{self, Exposure, HostTree};
use crate::commands::grants::lookup::{self, Flag, GrantRequest, ResolvedGrant};
use crate::commands::grants::tier;
use crate::commands::grants::{git_identity, host_programs};
use crate::commands::policy::agreement;
use crate::commands::run::arguments::MountRequest;
use crate::commands::serve::listener::HostGrants;
use config::json::ConfigJson;
use config::mcp_server::McpSettings;
use config::server::{ScopeRule, ValueSource};
use config::{HostContext, Loaded};
use model::call::Call;
use model::defaults;
use model::egress::NetworkClass;
use model::job::{Access, GrantId, ProfileName, Workspace};
use model::outcome::in_words;
use model::profile::{
    HostPath, PATH, PathKind, Presence, Profile, ProfileAdditions, SCRIPT_PROGRAMS, TerminalSize,
};
use model::receipt::Tier;
use policy::flags::DeclaredCommand;
use policy::group::ToolGroup;
use policy::tools::FETCH;
use policy::{Effect, Grant, Policy, Principal, Profiles, Terms};
use project::{GrantedDirectory, Project, ProjectSettings};
use service::Setup;
use service::host_programs::HostPrograms;
use supervisor::{Granted, OwnIds, ScopeWish, Socket};

/// Configuration in force, and what the operator granted on the command line.
#[derive(Debug, Clone)]
pub struct Settings {
    pub loaded: Loaded,
    /// Profiles for which cells are made.
    pub(super) profiles: Vec<Profile>,
    /// Sets of host directories and files that the operator granted; a job names a set by its index.
    pub(super) granted: Vec<Vec<Granted>>,
    /// Descriptors, held since the sockets were examined.
    pub(super) sockets: Vec<Socket>,
    /// Cells to keep ready for a profile that is in use: a command that makes one call needs none.
    pub(super) warm: u16,
    /// Number of sessions that may be opened: only a server has any.
    pub(super) sessions: u16,
    /// Choice of host ids for cells: only a server takes the time for its own.
    pub(super) own_ids: OwnIds,
    /// Profile and workspace of the only call, if there is just one.
    pub(super) first: Option<(ProfileName, Workspace)>,
    /// Tier of the cells, chosen by the operator on the command line.
    pub tier: Tier,
    /// Paths of configuration that were named on the command line.
    named_configuration: Vec<PathBuf>,
    /// Commands for which systemd is asked for a scope.
    pub(super) scope: ScopeWish,
    /// A `config.json` that was named.
    pub json: Option<ConfigJson>,
    /// True if cells have variables that the operator typed: they can be secrets.
    has_own_env: bool,
    /// Calls of a project's scripts that run at once.
    workers: u32,
    /// The workspace with every grant read-only.
    read_only: Option<Workspace>,
    /// Measuring and removing of caches that is due.
    pub(super) upkeep: Option<Arc<CacheUpkeep>>,
}

impl Settings {
    fn new(loaded: Loaded, profiles: Vec<Profile>) -> Self {
        Self {
            loaded,
            profiles,
            granted: Vec::new(),
            sockets: Vec::new(),
            warm: 0,
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

    /// Adds the work that is due for the workspace's cache.
    #[must_use]
    pub(super) fn with_upkeep(self, cache: Option<&mut WorkspaceCache>) -> Self {
        Self { upkeep: cache.and_then(|cache| cache.upkeep.take()).map(Arc::new), ..self }
    }

    /// Adds further files that configure rights: directories that contain one are not granted for writing.
    #[must_use]
    pub fn with_files(mut self, files: Vec<PathBuf>) -> Self {
        self.named_configuration.extend(files);
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

    /// Adapts the settings to a command that makes one call: it has one cell, which is built at once.
    #[must_use]
    pub fn for_one_call(mut self, profile: &ProfileName, workspace: Workspace) -> Self {
        // A root directory, and for root each grant, is otherwise made for the maximum number of
        // cells.
        self.loaded.config.cells.value = 1;
        self.first = Some((profile.clone(), workspace));
        self
    }

    /// Adapts the settings to a server: cells are made in advance, as `[pool] warm` configures.
    #[must_use]
    pub fn serving(self) -> Self {
        let warm = u16::try_from(self.loaded.config.warm.value).unwrap_or(u16::MAX);
        let sessions = u16::try_from(self.loaded.config.sessions.value).unwrap_or(u16::MAX);
        let profiles = self.loaded.profiles.unaccounted();
        let own_ids = OwnIds::Wanted;
        Self { warm, sessions, own_ids, loaded: Loaded { profiles, ..self.loaded }, ..self }
    }

    /// Lets one session be opened.
    #[must_use]
    pub fn with_a_session(self) -> Self {
        Self { sessions: 1, ..self }
    }

    /// Gives cells other host ids than the operator's, as on a server.
    #[must_use]
    pub fn with_own_ids(self) -> Self {
        Self { own_ids: OwnIds::Wanted, ..self }
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
    #[must_use]
    pub fn adding(mut self, additions: &ProfileAdditions) -> Self {
        self.has_own_env |= !additions.env.is_empty();
        self.loaded.profiles.add(additions);
        self.profiles.iter_mut().for_each(|profile| profile.add(additions));
        let all = &mut self.loaded.config.memory;
        if let (Some(memory), ValueSource::Default) = (additions.memory, &all.source) {
            let cells = all.value / defaults::MEMORY;
            all.value = all.value.max(memory.saturating_mul(cells.max(1)));
        }
        self
    }

    /// Gives the only call a terminal of this size.
    #[must_use]
    pub fn at_terminal(mut self, size: Option<TerminalSize>) -> Self {
        self.profiles.iter_mut().for_each(|profile| profile.terminal = size);
        self
    }

    /// Gives cells the operator's identity for commits, if a directory that they may write to is a repository.
    #[must_use]
    pub fn with_git_identity(mut self) -> Self {
        if !self.loaded.config.git_identity.value {
            return self;
        }
        let is_repository = |granted: &&Granted| {
            granted.access != Access::ReadOnly && granted.host.join(".git").is_dir()
        };
        let repository = self.granted.iter().flatten().find(is_repository);
        let identity = repository.and_then(|granted| git_identity::read(&granted.host));
        if identity.is_none() {
            return self;
        }
        for profile in self.profiles.iter_mut().filter(|profile| profile.workspace) {
            profile.git_identity.clone_from(&identity);
            // A git that is not the distribution's has another default path.
            let file = ("GIT_CONFIG_SYSTEM".to_owned(), "/etc/gitconfig".to_owned());
            profile.env.extend([file]);
        }
        self
    }

    /// Gives cells with a workspace the functions for the scripts of a project and its `jq`, this program by
    /// another name, if a project is served.
    ///
    /// # Errors
    /// A program that was removed since it was started.
    pub fn with_script_sdk(mut self, project: Option<&String>) -> Result<Self, CliError> {
        if project.is_none() {
            return Ok(self);
        }
        let program = std::env::current_exe().and_then(std::fs::canonicalize).map_err(|error| {
            CliError::new(format!("the file of this program: {}", in_words(&error)))
                .with_hint("start it again from where it is installed")
        })?;
        for profile in self.profiles.iter_mut().filter(|profile| profile.workspace) {
            profile.script_sdk = project::SDK;
            profile.paths.push(HostPath {
                host: program.clone(),
                cell: Path::new(SCRIPT_PROGRAMS).join("jq"),
                kind: PathKind::Tree,
                presence: Presence::Required,
            });
            // Last in PATH: a jq of the host is preferred, if there is one.
            let path = profile.environment().get("PATH").copied().unwrap_or(PATH).to_owned();
            profile.env.insert("PATH".to_owned(), format!("{path}:{SCRIPT_PROGRAMS}"));
        }
        Ok(self)
    }

    /// Applies the operator's settings of the project that is served. Its downloads have a profile only if a host is
    /// granted.
    ///
    /// # Errors
    /// A malformed host.
    pub fn with_project(mut self, project: &ProjectSettings) -> Result<Self, CliError> {
        self.workers = project.workers;
        let rule = |host: &String| {
            profile::egress::host(host).map_err(|error| {
                CliError::new(format!("hosts of projects: {error}")).with_hint(
                    "[project] hosts, MCPBASH_HTTPS_ALLOW_HOSTS, MCPBASH_GIT_ALLOW_HOSTS",
                )
            })
        };
        let rules = project.hosts.iter().map(rule).collect::<Result<Vec<_>, CliError>>()?;
        let Some(name) = ProfileName::new(FETCH) else { return Ok(self) };
        if !rules.is_empty() {
            self.loaded.profiles.add_egress(&name, &rules);
        }
        let reaches = |name: &ProfileName| {
            self.loaded.profiles.get(name).is_some_and(|profile| !profile.egress.rules.is_empty())
        };
        let names: Vec<ProfileName> = used(&self.loaded, |tool| tool == FETCH)
            .filter(|name| reaches(name))
            .cloned()
            .collect();
        Ok(with_profiles(self, &names))
    }

    /// Adds the grants of a project once more, read-only: for tools whose metadata declares that they change no file.
    #[must_use]
    pub fn with_read_only_tools(mut self, project: Option<&Project>) -> Self {
        let is_writable = |granted: &Granted| granted.access != Access::ReadOnly;
        let read_only = |granted: &Granted| Granted { access: Access::ReadOnly, ..granted.clone() };
        let Some(grants) = self.granted.first().filter(|_| project.is_some()) else { return self };
        if !grants.iter().any(is_writable) {
            return self;
        }
        let grants: Vec<Granted> = grants.iter().map(read_only).collect();
        if let Ok(number) = u16::try_from(self.granted.len()) {
            self.read_only = Some(Workspace::Granted(GrantId(number)));
            self.granted.push(grants);
        }
        self
    }

    /// Sets the groups of tools that `serve` was given.
    #[must_use]
    pub fn with_tool_groups(mut self, groups: Option<BTreeSet<ToolGroup>>) -> Self {
        if let Some(groups) = groups {
            self.loaded.config.tools_groups.value = groups;
        }
        self
    }

    /// Applies a `config.json`.
    ///
    /// # Errors
    /// A file that cannot be used, or one that forbids the server to start.
    pub fn with_config_json(self, file: Option<&Path>) -> Result<Self, CliError> {
        let Some(file) = file else { return Ok(self) };
        let json = config::json::read(file, &HostContext::of_this_process())
            .map_err(|error| CliError::new(format!("--config-json: {error}")))?;
        Ok(Self { json: Some(json), ..self }.named(Some(file)))
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
        setting.source = ValueSource::Said("--on");
    }
    agreement::check_tools(&loaded)?;
    agreement::check_clients(&loaded)?;
    // Each profile needs a template for each workspace. So profiles of commands that are not offered are left out, and
    // that of a project's downloads too.
    let offered = |tool: &str| {
        tool != FETCH
            && (!loaded.policy.declares(tool) || loaded.config.tools_on.value.contains(tool))
    };
    let names = used(&loaded, offered);
    let profiles = names.filter_map(|name| loaded.profiles.get(name)).cloned().collect();
    Ok(Settings::new(loaded, profiles).named(directory))
}

/// Returns the names of the profiles under which a rule allows one of these tools.
fn used<'l>(
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

/// Adds the named profiles to those that the policy uses, for `doctor`, which tries them all.
pub fn with_profiles(mut settings: Settings, names: &[ProfileName]) -> Settings {
    for name in names {
        let is_used = settings.profiles.iter().any(|profile| profile.name == *name);
        let loaded = settings.loaded.profiles.get(name);
        settings.profiles.extend(loaded.filter(|_| !is_used).cloned());
    }
    settings
}

/// Selects one profile and adds the operator's mounts; a path of `--rw` is the workspace.
///
/// # Errors
/// An unknown profile, a path that does not exist, or one that is never granted.
pub fn with_mounts(
    settings: Settings,
    name: &ProfileName,
    mounts: &[MountRequest],
) -> Result<(Settings, Workspace), CliError> {
    let profile = profile(&settings, name)?.clone();
    let requests: Vec<GrantRequest> = mounts.iter().map(GrantRequest::by_access).collect();
    let directories = granted(&settings, &requests)?;
    if directories.is_empty() {
        return Ok((Settings { profiles: vec![profile], ..settings }, Workspace::Fresh));
    }
    if !profile.workspace {
        return Err(CliError::new(format!("--ro, --rw: profile `{name}` has no workspace"))
            .with_hint("use --profile bash, or one with a `workspace`"));
    }
    let granted = vec![directories];
    Ok((Settings { profiles: vec![profile], granted, ..settings }, Workspace::Granted(GrantId(0))))
}

fn profile<'s>(settings: &'s Settings, name: &ProfileName) -> Result<&'s Profile, CliError> {
    let used = settings.profiles.iter().find(|profile| profile.name == *name);
    used.or_else(|| settings.loaded.profiles.get(name)).ok_or_else(|| {
        let error = CliError::new(format!("--profile: no profile `{name}`"));
        match settings.loaded.profiles.nearest(name.as_str()) {
            Some(nearest) => error.with_hint(format!("did you mean `{nearest}`?")),
            None => error.with_hint("bash and bc are built in"),
        }
    })
}

/// Adds the grants of `serve`, which are for every call. The workspace comes first.
///
/// # Errors
/// A path that does not exist, or one that is never granted.
pub fn with_grants(
    settings: Settings,
    mounts: &[MountRequest],
) -> Result<(Settings, Workspace), CliError> {
    if mounts.is_empty() {
        return Ok((settings, Workspace::Fresh));
    }
    let mut requests: Vec<GrantRequest> = mounts.iter().map(GrantRequest::by_access).collect();
    if let Some(first) = requests.first_mut() {
        first.flag = Flag::Workspace;
    }
    let granted = vec![granted(&settings, &requests)?];
    Ok((Settings { granted, ..settings }, Workspace::Granted(GrantId(0))))
}

/// Resolves and checks the operator's grants.
fn granted(settings: &Settings, requests: &[GrantRequest]) -> Result<Vec<Granted>, CliError> {
    let names = &settings.loaded.config.guard_names.value;
    let also: Rc<[Vec<u8>]> = names.iter().map(|name| name.clone().into_bytes()).collect();
    let mut all = Vec::new();
    for grant in lookup::resolve_all(requests)? {
        let GrantRequest { flag, mount } = grant.request;
        if flag != Flag::Ro {
            check_writable(settings, &grant)?;
        }
        let MountRequest { cell, access, .. } = mount.clone();
        let also = Rc::clone(&also);
        let granted = Granted { host: grant.host, file: grant.file, cell, access, also };
        all.push(match flag {
            Flag::Workspace => tier::workspace(settings.tier, granted)?,
            Flag::Ro | Flag::Rw | Flag::Cache => tier::granted(settings.tier, granted)?,
        });
    }
    Ok(all)
}

/// Checks a directory that cells may write to: it must not contain the configuration of cofferdam itself.
fn check_writable(settings: &Settings, grant: &ResolvedGrant) -> Result<(), CliError> {
    let bad = |fault: &str| CliError::new(format!("{} {fault}", grant.request));
    if !grant.is_directory {
        return Err(bad("is not a directory").with_hint("grant the directory it is in"));
    }
    let tree =
        HostTree::examine(&grant.host).map_err(|error| bad(&in_words(&error).to_string()))?;
    match tree.reaches(&configuration_paths(settings)) {
        None => Ok(()),
        Some((path, Exposure::Through)) => {
            let path = path.display();
            Err(bad("holds cofferdam's own configuration").with_hint(format!(
                "an agent must not be able to change its own limits, and `{path}` leads there"
            )))
        }
        Some((path, Exposure::Linked)) => {
            let path = path.display();
            Err(bad("may hold cofferdam's own configuration").with_hint(format!(
                "`{path}` has another name as well (a hard link): put a copy in its place"
            )))
        }
    }
}

/// Returns every path that configures cofferdam now, or would if it were created.
fn configuration_paths(settings: &Settings) -> Vec<PathBuf> {
    let Settings { loaded, named_configuration, .. } = settings;
    let in_force = loaded.origin.directory().map(Path::to_owned);
    let log = loaded.config.audit_file.value.clone();
    let named = named_configuration.iter().cloned().chain(in_force).chain(log).collect();
    config_paths::all(named, &HostContext::of_this_process())
}

/// Grants the operator's request on the command line under a profile.
///
/// # Errors
/// An unknown profile.
pub fn operator_grant(
    settings: &Settings,
    name: &ProfileName,
    call: Call,
    workspace: Workspace,
) -> Result<Grant, CliError> {
    Ok(Policy::operator(call, profile(settings, name)?, workspace))
}

/// Returns the profile of the operator's grant, with the command line's additions.
///
/// # Errors
/// An unknown profile.
pub fn profile_in_force(settings: &Settings, name: &ProfileName) -> Result<Profile, CliError> {
    profile(settings, name).cloned()
}
