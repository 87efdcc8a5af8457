//! `cofferdam serve`: MCP on standard input and output.

pub mod exec_options;
pub mod listener;
mod metrics;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::task::JoinHandle;

use crate::commands::error::CliError;
use crate::commands::format::plain;
use crate::commands::grants::cache::WorkspaceCache;
use crate::commands::grants::toolchains::FoundToolchains;
use crate::commands::launch::{self, Launched, Plans};
use crate::commands::policy::agreement;
use crate::commands::project::ServedProject;
use crate::commands::run::arguments::{self, MountRequest};
use crate::commands::settings::Settings;
use crate::commands::streams::Streams;
use crate::commands::{project, settings, start};
use ::project::{KEPT, ProjectDirectory};
use config::HostContext;
use config::mcp_server::McpSettings;
use exec_options::ExecFlags;
use http::Scopes;
use http::serve::Front;
use http::tcp::LineListener;
use link::Link;
use listener::{HttpFlags, HttpPlan, Opened, TcpPlan};
use mcp::gate::RemoteSecret;
use mcp::lines::Ends;
use mcp::projects::CurrentProject;
use mcp::serve::{self, Offer, ServeError, Watch};
use model::accounts;
use model::job::{Access, Workspace};
use model::outcome::{Failure, in_words};
use model::profile::ProfileAdditions;
use model::receipt::Tier;
use model::units::Size;
use policy::Principal;
use policy::group::ToolGroup;
use profile::toolchains::ToolchainChoice;
use service::Executor;
use supervisor::ScopeWish;
use sys::memory;
use watcher::WatcherSpec;

/// Explanation for a person who typed the command; a client never has a terminal for it.
const ON_A_TERMINAL: &str =
    "cofferdam: an MCP server, which a client starts; ^D ends it (a shell: cofferdam run bash)";

/// Place of the workspace in a cell.
const WORKSPACE: &str = "/workspace";

/// As typed.
#[derive(Debug, Clone, Default, Args)]
#[command(after_help = "Examples:\n  \
    cofferdam serve\n  \
    cofferdam serve --workspace ~/project\n  \
    cofferdam serve --workspace ~/project:ro\n  \
    cofferdam serve --workspace ~/project --ro ~/models --env RUST_LOG=debug --memory 4G\n  \
    cofferdam serve --tools calc,exec,info\n  \
    claude mcp add --scope user cofferdam -- cofferdam serve")]
pub struct ServeArguments {
    /// Grant a host directory as /workspace of every call; with :ro, for reading only
    #[arg(long, value_name = "PATH[:ro]")]
    pub workspace: Option<OsString>,
    /// Serve the script tools of a project, which calls have as /workspace, read-only without :rw; built-in tools are
    /// shown besides where --tools names groups
    #[arg(long, value_name = "DIR[:rw]", conflicts_with_all = ["workspace"])]
    pub project: Option<String>,
    /// Run the project's own hooks (register.sh, env.sh, policy.sh), in cells without a network
    #[arg(long, requires = "project")]
    pub project_hooks: bool,
    /// Grant a host path read-only to every call, at CELL or else at /mnt/NAME
    #[arg(long, value_name = "HOST[:CELL]")]
    pub ro: Vec<OsString>,
    /// Grant a host directory to every call for reading and writing, at CELL or else as the workspace
    #[arg(long, value_name = "HOST[:CELL]")]
    pub rw: Vec<OsString>,
    /// Let names that the host obeys (.git, .envrc, .vscode, …) be made in what is granted for writing
    #[arg(long)]
    pub unguarded: bool,
    /// Set a variable in every cell that has a workspace
    #[arg(long, value_name = "K=V")]
    pub env: Vec<String>,
    /// Let cells that have a workspace reach a host, a network or a preset (cargo, debian, git-https, go, npm, python)
    #[arg(long, value_name = "HOST:PORT|PRESET")]
    pub egress: Vec<String>,
    /// Switch on tools that are off until they are named, beside those of `[tools] on`: cli_nmap,cli_ping,…
    #[arg(long, value_name = "TOOL,…", value_delimiter = ',')]
    pub on: Vec<String>,
    /// Memory of each cell that has a workspace, more or less than its profile has: 512M, 4G
    #[arg(long, value_name = "SIZE", value_parser = clap::value_parser!(Size))]
    pub memory: Option<Size>,
    /// Read commandTimeout, enabled and network from a config.json; none is read that is not named here
    #[arg(long, value_name = "FILE")]
    pub config_json: Option<PathBuf>,
    /// Grant a Unix socket of the host, as /tmp/mcp-sockets/NAME.sock, to profiles with `unix_sockets`
    #[arg(long, value_name = "NAME=PATH")]
    pub socket: Vec<String>,
    /// By what cells are held: namespaces+landlock+seccomp, or landlock+seccomp where user namespaces
    /// are refused; it is weaker, and every receipt says what it lacks
    #[arg(long, value_name = "TIER")]
    pub tier: Option<Tier>,
    /// Grant tool chains of the home, read-only at their own paths: auto, none, or names (rust,nvm,pyenv,…);
    /// without it, auto where a workspace is granted
    #[arg(long, value_name = "auto|none|NAME,…", value_parser = clap::value_parser!(ToolchainChoice))]
    pub toolchains: Option<ToolchainChoice>,
    /// Show these groups of tools: calc, math, shell, exec, info, history, files; without it `[tools] groups`, else calc,shell
    #[arg(long, value_name = "GROUP,…", value_delimiter = ',')]
    pub tools: Option<Vec<ToolGroup>>,
    #[command(flatten)]
    pub exec: ExecFlags,
    #[command(flatten)]
    pub listener: HttpFlags,
}

/// Time in which a client opens its session; the code of that is not needed again.
const OPENED: Duration = Duration::from_secs(1);

/// Runs the command: 0 if it ended as requested.
pub fn main(typed: &ServeArguments, config: Option<&Path>) -> Result<u8, CliError> {
    let (typed, mcp) = &with_mcp_settings(typed)?;
    // With a listener, a terminal is no client.
    let at_terminal = std::io::stdin().is_terminal();
    if at_terminal && typed.listener.http.is_none() && typed.listener.tcp.is_none() {
        eprintln!("{ON_A_TERMINAL}");
    }
    let settings = settings::load_with(config, mcp, &typed.on)?;
    let project = read_project(typed, config, &settings)?;
    let (settings, workspace, _cache) = granted(typed, settings, project.as_ref(), mcp)?;
    let (offer, watcher) = offer(typed, project, &settings)?;
    let plan =
        HttpPlan::check(&typed.listener, &settings.loaded.config.http, || settings.host_grants())?;
    let json = settings.json.as_ref().and_then(|json| json.network.as_ref());
    let tcp = TcpPlan::check(&typed.listener, json, || settings.host_grants())?;
    let plans = Plans { http: plan, tcp, watcher };
    let serving = settings.for_the_front_end();
    let host_programs = settings.host_programs();
    let Launched { link, audit, streams, http, tcp, watched } = launch::listening(settings, plans)?;
    start::conducted(link, async |socket| {
        let link = Link::attach(socket).map_err(|error| {
            CliError::new(format!("no link to the supervisor: {}", in_words(&error)))
        })?;
        let executor =
            Executor::new(serving.executor(workspace, host_programs), link.clone(), audit);
        let executor = Arc::new(executor);
        let supervisor = link.clone();
        let signals = [
            tokio::spawn(metrics::at_signal(link.clone(), Arc::clone(&executor))),
            tokio::spawn(metrics::reset_at_signal(Arc::clone(&executor))),
        ];
        let following = follow(&offer, watched);
        let gone = async move {
            // Each call reports a supervisor that failed to start, with the remedy.
            match link.ready().await {
                Ok(_) => {
                    started();
                    tokio::select! {
                        () = link.closed() => {}
                        () = tokio::time::sleep(OPENED) => {
                            started();
                            link.closed().await;
                        }
                    }
                }
                Err(_) => std::future::pending().await,
            }
        };
        let streams = (!at_terminal || (http.is_none() && tcp.is_none())).then_some(streams);
        let served = doors(executor, offer, (http, tcp), streams, gone).await;
        served.map_err(|error| CliError::new(format!("serve: {error}")))?;
        signals.iter().chain(&following).for_each(JoinHandle::abort);
        tracing::info!(metrics = ?supervisor.metrics(), "calls");
        // Without a supervisor no call could run: the client may start the server again.
        match supervisor.greeted().is_some() && supervisor.is_closed() {
            true => Err(Failure::Supervisor.into()),
            false => Ok(0),
        }
    })
}

/// Reads the settings of the reference implementation of command-line tools. An address of theirs counts where none
/// is typed, under the same conditions.
///
/// # Errors
/// The setting, or the file, that cannot be used.
fn with_mcp_settings(typed: &ServeArguments) -> Result<(ServeArguments, McpSettings), CliError> {
    let mcp = McpSettings::read(|name| std::env::var_os(name), &HostContext::of_this_process())
        .map_err(|error| CliError::new(error.to_string()))?;
    for told in &mcp.told {
        tracing::warn!(what = plain(told), "config.clamped");
    }
    let http = typed.listener.http.clone().or_else(|| mcp.http());
    let listener = HttpFlags { http, ..typed.listener.clone() };
    let project = typed.project.clone().or_else(|| match typed.workspace {
        // A flag goes before a variable.
        Some(_) => None,
        None => std::env::var(PROJECT_ROOT).ok().filter(|root| !root.is_empty()),
    });
    Ok((ServeArguments { listener, project, ..typed.clone() }, mcp))
}

/// Adds what is granted and set on the command line to the configuration. The cache is held while it is used.
///
/// # Errors
/// A file that cannot be used, or the flag, with a hint.
fn granted(
    typed: &ServeArguments,
    settings: Settings,
    served: Option<&ServedProject>,
    mcp: &McpSettings,
) -> Result<(Settings, Workspace, Option<WorkspaceCache>), CliError> {
    let home = accounts::home();
    let project = served.map(|served| &served.project);
    let mut mounts = mounts(typed, home.as_deref())?;
    let mut additions = additions(typed)?;
    let mut settings = settings.in_tier(typed.tier).serving();
    if let Some(project) = project {
        settings = settings.with_project(&project.settings)?;
    }
    let configured_egress = arguments::egress(&settings.loaded.config.egress.value)
        .map_err(|error| error.with_hint("`[server] egress` in cofferdam.toml"))?;
    additions.egress.splice(0..0, configured_egress);
    agreement::check_egress(&settings.loaded, &additions.egress)?;
    let configured = &settings.loaded.config.toolchains.value;
    add_toolchains(typed, configured, &mut mounts, &mut additions)?;
    let mut cache = WorkspaceCache::prepare(
        typed.toolchains.as_ref(),
        &settings.loaded.config,
        &mounts,
        typed.tier,
    );
    if let Some(cache) = &cache {
        mounts.extend(cache.mounts.iter().cloned());
        add_env(cache.env.clone(), &mut additions);
    }
    let groups = typed.tools.as_ref().map(|groups| groups.iter().copied().collect::<BTreeSet<_>>());
    settings = settings.with_tool_groups(groups);
    let said = settings.loaded.config.exec.clone();
    settings.loaded.config.exec = exec_options::in_force(said, &typed.exec, std::env::var_os)?;
    let settings = settings.with_config_json(typed.config_json.as_deref())?;
    let files = listener::files(&typed.listener, &settings.loaded.config.http);
    let settings = settings.with_files(files.into_iter().chain(mcp.file.clone()).collect());
    let (settings, workspace) = settings::with_grants(settings.adding(&additions), &mounts)?;
    let settings = settings.with_upkeep(cache.as_mut()).with_read_only_tools(project);
    let settings = settings.with_script_sdk(typed.project.as_ref())?.with_git_identity();
    let settings = settings.with_sockets(&typed.socket)?.scoped(ScopeWish::Optional);
    Ok((settings, workspace, cache))
}

/// Begins to take changes of the project, if it is watched.
fn follow(offer: &Offer, watched: Option<OwnedFd>) -> Option<JoinHandle<()>> {
    let (Offer::Project(project) | Offer::Both(project)) = offer else { return None };
    let stream = UnixStream::from(watched?);
    Some(tokio::spawn(Arc::clone(project).follow(stream)))
}

/// Serves at each door: standard input and output, a listener, or both. The end of standard input ends its own door
/// only, where there is another.
async fn doors(
    executor: Arc<Executor>,
    offer: Offer,
    (http, tcp): (Option<Opened>, Option<LineListener>),
    streams: Option<Streams>,
    gone: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let ends = Ends::default();
    let watch = Watch::begin(&ends, gone)?;
    let is_only = http.is_none() && tcp.is_none();
    let local = streams.map(|streams| streams_door(streams, &executor, &offer, &ends, is_only));
    let lines = tcp.map(|listener| lines_door(listener, &executor, &offer, &ends));
    let listened = http.map(|opened| http_door(opened, executor, offer, &ends));
    let served = async |door: Option<Door>| match door {
        Some(door) => door.await,
        None => Ok(()),
    };
    let (local, listened, lines) = tokio::join!(served(local), served(listened), served(lines));
    drop(watch);
    local.and(listened).and(lines)
}

/// A door that is served. It is behind a pointer, and each kind is made in a function that is never inlined: the stack
/// of a start would otherwise have room for all of them, some hundred kilobytes whose pages are touched.
type Door = Pin<Box<dyn Future<Output = Result<(), ServeError>>>>;

#[inline(never)]
fn streams_door(
    streams: Streams,
    executor: &Arc<Executor>,
    offer: &Offer,
    ends: &Ends,
    is_only: bool,
) -> Door {
    let (reader, writer) = streams.opened();
    let ends = match is_only {
        false => ends.of_a_connection(reader.quiet()),
        true => Ends { quiet: reader.quiet(), ..ends.clone() },
    };
    let backend = executor.scope(Principal::local());
    Box::pin(serve::streams((backend, offer.clone()), reader, writer, ends))
}

#[inline(never)]
fn lines_door(
    listener: LineListener,
    executor: &Arc<Executor>,
    offer: &Offer,
    ends: &Ends,
) -> Door {
    let served = http::tcp::serve(listener, Arc::clone(executor), offer.clone(), ends.clone());
    Box::pin(async { served.await.map_err(ServeError::Listener) })
}

#[inline(never)]
fn http_door(opened: Opened, executor: Arc<Executor>, offer: Offer, ends: &Ends) -> Door {
    let Opened { access, listener, tls, limits, memory, run_root } = opened;
    let secret = RemoteSecret::of(&offer).map(Arc::new);
    let kill = ends.kill.clone();
    let handlers = Scopes { executor, offer, secret, kill, memory, run_root };
    let front = Front { handlers, access, listener, tls, limits };
    let served = http::serve::serve(front, ends.clone());
    Box::pin(async { served.await.map_err(ServeError::Listener) })
}

/// Reads the project that is to be served, and says on standard error what of it is not.
///
/// # Errors
/// A project that cannot be used.
fn read_project(
    typed: &ServeArguments,
    config: Option<&Path>,
    settings: &Settings,
) -> Result<Option<ServedProject>, CliError> {
    let Some(asked) = &typed.project else { return Ok(None) };
    let (directory, access) = granted_as(asked);
    let keys = &settings.loaded.config.project;
    let served = project::with_hooks(directory, access, typed.project_hooks, config, keys)?;
    for told in &served.project.settings.told {
        tracing::warn!(what = plain(told), "config.clamped");
    }
    for mistake in &served.project.mistakes {
        tracing::warn!("project: {}", plain(&mistake.to_string()));
    }
    Ok(Some(served))
}

/// Returns the directory of a project, and what scripts may do with it.
fn granted_as(asked: &str) -> (&str, Access) {
    match asked.strip_suffix(":rw") {
        Some(directory) => (directory, Access::ReadWrite),
        None => (asked, Access::ReadOnly),
    }
}

/// Returns the tools that are offered, and how their project is watched; a project learns where its cells have what is
/// granted.
///
/// # Errors
/// A root that is not granted, or a directory that cannot be opened any more.
fn offer(
    typed: &ServeArguments,
    served: Option<ServedProject>,
    settings: &Settings,
) -> Result<(Offer, Option<WatcherSpec>), CliError> {
    let Some(ServedProject { mut project, lists }) = served else {
        return Ok((Offer::BuiltIn, None));
    };
    let roots: Vec<PathBuf> =
        roots().iter().filter_map(|root| Path::new(root).canonicalize().ok()).collect();
    project.grant(settings.granted_directories(), &roots).map_err(|root| {
        CliError::new(format!("{ROOTS}: `{}` is granted to no cell", root.display()))
    })?;
    let asked = typed.project.as_deref().unwrap_or_default();
    let (directory, access) = granted_as(asked);
    let opened = ProjectDirectory::open(Path::new(directory))
        .map_err(|error| CliError::new(format!("project {directory}: {error}")))?;
    let directory = match access {
        Access::ReadOnly => opened,
        Access::ReadWrite | Access::Unguarded | Access::Cache => opened.written_by_scripts(),
    };
    let watcher = WatcherSpec { directory, lists, known: project.clone() };
    let project = Arc::new(CurrentProject::new(project));
    let offer = match typed.tools {
        None => Offer::Project(project),
        Some(_) => Offer::Both(project),
    };
    Ok((offer, Some(watcher)))
}

/// Variable with a project's directory, where neither `--project` nor `--workspace` is given.
const PROJECT_ROOT: &str = "MCPBASH_PROJECT_ROOT";
/// Variable with the directories in which scripts of a project work, separated by colons.
const ROOTS: &str = "MCPBASH_ROOTS";

/// Reads them.
fn roots() -> Vec<OsString> {
    let roots = std::env::var_os(ROOTS).unwrap_or_default().into_vec();
    let roots = roots.split(|byte| *byte == b':').filter(|root| !root.is_empty());
    roots.map(|root| OsString::from_vec(root.to_owned())).collect()
}

/// Returns what grants them for reading, but for those that the project's directory holds.
fn granted_roots(project: &str) -> Vec<OsString> {
    let project = project.strip_suffix(":rw").unwrap_or(project);
    let directory = Path::new(project).canonicalize();
    let is_inside = |root: &OsString| {
        let root = Path::new(root).canonicalize();
        matches!((&root, &directory), (Ok(root), Ok(project)) if root.starts_with(project))
    };
    roots().into_iter().filter(|root| !is_inside(root)).collect()
}

/// Returns what grants a project as the workspace, read-only unless that is asked for.
fn project_workspace(asked: &str) -> String {
    match asked.strip_suffix(":rw") {
        Some(directory) => directory.to_owned(),
        None => format!("{asked}:ro"),
    }
}

/// Makes a folder that is kept, which belongs to the project's owner.
fn make_kept(directory: &Path, name: &str) -> std::io::Result<()> {
    let owner = std::fs::metadata(directory)?;
    let place = directory.join(name);
    std::fs::DirBuilder::new().mode(0o755).create(&place)?;
    std::os::unix::fs::lchown(&place, Some(owner.uid()), Some(owner.gid()))
}

/// Returns what keeps the scripts, the metadata and the hooks of a project that is granted for writing as they are: a
/// script that could change another tool would have what that tool has.
///
/// # Errors
/// A folder that is absent, which a script could make, and cannot be made here; or a link or a file in its place, which a
/// script could exchange.
pub(crate) fn kept(asked: &str) -> Result<Vec<MountRequest>, CliError> {
    let Some(directory) = asked.strip_suffix(":rw") else { return Ok(Vec::new()) };
    let directory = std::path::absolute(directory)
        .map_err(|error| CliError::new(format!("--project: {}", in_words(&error))))?;
    // A named path may be a link, but nothing below it.
    let is_folder = |place: &Path| place.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    for name in KEPT.into_iter().filter(|name| !is_folder(&directory.join(name))) {
        make_kept(&directory, name).map_err(|error| {
            let why = format!("--project: {name} cannot be made: {}", in_words(&error));
            CliError::new(why).with_hint(format!(
                "where scripts may write to the project it is a folder that is kept as it is: mkdir {name}"
            ))
        })?;
    }
    let request = |name: &&str| MountRequest {
        host: directory.join(name),
        cell: Path::new(WORKSPACE).join(name),
        access: Access::ReadOnly,
    };
    Ok(KEPT.iter().map(request).collect())
}

/// Returns memory that only a start needs: parsing, the command line, the supervisor's set-up.
fn started() {
    if let Err(errno) = memory::forget_code() {
        tracing::debug!(%errno, "the code of the start stays mapped");
    }
}

/// Checks what the operator grants; the workspace comes first.
///
/// # Errors
/// The flag, with a hint.
fn mounts(typed: &ServeArguments, home: Option<&Path>) -> Result<Vec<MountRequest>, CliError> {
    let project = typed.project.as_deref().map(project_workspace);
    let ask = project.as_deref().map(OsStr::new).or(typed.workspace.as_deref());
    let workspace = ask.map(|ask| check_workspace(ask, home)).transpose()?;
    let mut mounts = Vec::from_iter(workspace);
    mounts.extend(typed.project.as_deref().map(kept).transpose()?.unwrap_or_default());
    let mut readable = typed.ro.clone();
    readable.extend(typed.project.as_deref().map(granted_roots).unwrap_or_default());
    mounts.extend(arguments::mounts(&readable, &typed.rw, Access::ReadWrite, home)?);
    arguments::check_places(&mounts)?;
    if typed.unguarded {
        let mut writable = mounts.iter_mut().filter(|mount| mount.access == Access::ReadWrite);
        let Some(first) = writable.next() else {
            return Err(CliError::new("--unguarded: nothing is granted for writing")
                .with_hint("leave it out, or grant a directory with --workspace or --rw"));
        };
        first.access = Access::Unguarded;
        writable.for_each(|mount| mount.access = Access::Unguarded);
    }
    let place = mounts.iter().position(|mount| mount.cell == Path::new(WORKSPACE));
    match place {
        Some(place) => mounts.swap(0, place),
        None if mounts.is_empty() => {}
        None => {
            return Err(CliError::new("--ro, --rw: no directory is granted as the workspace")
                .with_hint("name one too: --workspace DIR, DIR:ro, or --rw DIR"));
        }
    }
    Ok(mounts)
}

/// Adds the tool chains that are found, unless the tier has no mounts. A variable that was asked for stays.
///
/// # Errors
/// Tool chains by name, and no workspace beside which they could be granted.
fn add_toolchains(
    typed: &ServeArguments,
    configured: &ToolchainChoice,
    mounts: &mut Vec<MountRequest>,
    additions: &mut ProfileAdditions,
) -> Result<(), CliError> {
    if typed.tier == Some(Tier::Bare) {
        return Ok(());
    }
    let found = FoundToolchains::detect(typed.toolchains.as_ref(), configured, mounts);
    if !found.names.is_empty() && mounts.is_empty() {
        return Err(CliError::new("--toolchains: no directory is granted as the workspace")
            .with_hint("name one too: --workspace DIR"));
    }
    found.print_withheld();
    mounts.extend(found.mounts);
    additions.downloaded = found.downloaded;
    additions.downloaded.retain(|name, _| !additions.env.contains_key(name));
    add_env(found.env, additions);
    Ok(())
}

/// Adds variables; one that was asked for stays.
fn add_env(env: BTreeMap<String, String>, additions: &mut ProfileAdditions) {
    for (name, value) in env {
        additions.env.entry(name).or_insert(value);
    }
}

/// Checks what the operator adds to profiles.
///
/// # Errors
/// The flag, with a hint.
fn additions(typed: &ServeArguments) -> Result<ProfileAdditions, CliError> {
    let env = arguments::env(&typed.env)?;
    let env = env.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let (memory, egress) = (arguments::memory(typed.memory)?, arguments::egress(&typed.egress)?);
    Ok(ProfileAdditions { env, memory, egress, ..ProfileAdditions::default() })
}

/// Checks `PATH[:ro]`. `/` and the user's own directory as a whole are never granted.
pub(crate) fn check_workspace(ask: &OsStr, home: Option<&Path>) -> Result<MountRequest, CliError> {
    let (path, access) = match ask.as_bytes().strip_suffix(b":ro") {
        Some(path) => (OsStr::from_bytes(path), Access::ReadOnly),
        None => (ask, Access::ReadWrite),
    };
    let bad = |why: &str| CliError::new(format!("--workspace: `{}` {why}", ask.display()));
    if path.is_empty() {
        return Err(bad("names no directory").with_hint("write PATH or PATH:ro"));
    }
    let host = std::path::absolute(path)
        .map_err(|error| bad(&format!("is no path: {}", in_words(&error))))?;
    if host == Path::new("/") || Some(host.as_path()) == home {
        return Err(
            bad("is never granted as a whole").with_hint("grant the directory of one project")
        );
    }
    Ok(MountRequest { host, cell: PathBuf::from(WORKSPACE), access })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(ask: &str) -> Result<MountRequest, String> {
        check_workspace(OsStr::new(ask), Some(Path::new("/home/me"))).map_err(|error| error.text())
    }

    #[test]
    fn a_workspace_is_a_path_and_may_be_read_only() {
        let cell = PathBuf::from(WORKSPACE);
        let granted = |host: &str, access| {
            Ok(MountRequest { host: PathBuf::from(host), cell: cell.clone(), access })
        };
        assert_eq!(checked("/src/p"), granted("/src/p", Access::ReadWrite));
        assert_eq!(checked("/src/p:ro"), granted("/src/p", Access::ReadOnly));
    }

    #[test]
    fn the_root_and_the_home_directory_are_never_granted() {
        for ask in ["/", "/:ro", "/home/me"] {
            assert_eq!(
                checked(ask),
                Err(format!(
                    "cofferdam: --workspace: `{ask}` is never granted as a whole\n\
                     hint: grant the directory of one project"
                ))
            );
        }
    }
}
