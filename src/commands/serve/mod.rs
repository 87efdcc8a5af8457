//! `cofferdam serve`: MCP on standard input and output.

pub mod arguments;
mod credentials;
mod endpoint;
pub mod exec_options;
mod file_frames;
pub(super) mod file_reader;
pub(super) mod handed_socket;
pub mod listener;
mod listener_file;
mod metrics;
mod reload;
pub(super) mod served_project;

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::commands::error::CliError;
use crate::commands::grants::{GrantPlan, request};
use crate::commands::launch::{self, Launched, Plans};
use crate::commands::policy::agreement;
use crate::commands::settings::Settings;
use crate::commands::streams::Streams;
use crate::commands::{settings, start};
use arguments::ServeArguments;
use cell::tied::ProcessEnds;
use config::HostContext;
use config::json::ConfigJson;
use config::mcp_server::McpSettings;
use config::policy::Principal;
use config::server::CellNetworks;
use http::Scopes;
use http::serve::Front;
use http::tcp::LineListener;
use listener::{HttpPlan, Opened, TcpPlan};
use mcp::gate::RemoteSecret;
use mcp::lines::Ends;
use mcp::serve::{self, Offer, ServeError, Watch};
use mcp::server::{Continuity, Server};
use model::accounts;
use model::outcome::{Failure, in_words};
use projects::Project;
use service::Executor;
use service::layer::LayerLink;
use supervisor::{OwnIds, ScopeWish};
use sys::{memory, signals};

/// Network namespaces that a server keeps for further cells at most: 270 KB of the kernel's memory each.
const MAX_NETWORKS: u16 = 32;

/// Explanation for a person who typed the command; a client never has a terminal for it.
const ON_A_TERMINAL: &str =
    "cofferdam: an MCP server, which a client starts; ^D ends it (a shell: cofferdam run bash)";

/// Time in which a client opens its session; the code of that is not needed again.
const OPENING_TIME: Duration = Duration::from_secs(1);

/// Opens the link to the process that reads the layer.
fn layer_link(ends: ProcessEnds) -> Result<LayerLink, CliError> {
    let failed = |error| CliError::new(format!("no link to the layer: {}", in_words(&error)));
    LayerLink::open(ends.link, ends.life).map_err(failed)
}

/// Runs the command: 0 if it ended as requested.
///
/// `handed` is a socket that the service manager handed over to this process.
pub fn main(
    typed: &ServeArguments,
    config: Option<&Path>,
    handed: Option<OwnedFd>,
) -> Result<u8, CliError> {
    let (typed, mcp) = &arguments::with_mcp_settings(typed)?;
    // With a listener, a terminal is no client.
    let at_terminal = std::io::stdin().is_terminal();
    if at_terminal && typed.listener.http.is_none() && typed.listener.tcp.is_none() {
        eprintln!("{ON_A_TERMINAL}");
    }
    let mut settings = settings::load_with(config, mcp, &typed.on)?;
    // The signal has nothing to read again before its files were read, and must not end the start.
    if listener::reloads(&typed.listener, &settings.loaded.config.http) {
        signals::ignore_hangup()
            .map_err(|errno| CliError::new(format!("signals cannot be set: {errno}")))?;
    }
    if !typed.nested.is_empty() {
        settings = settings.nested()?;
    }
    let asked = typed.project.as_deref();
    let read = |asked| served_project::read(asked, typed.project_hooks, config, &settings);
    let served = asked.map(read).transpose()?;
    let project = served.as_ref().map(|served| &served.project);
    let GrantPlan { settings, workspace } = planned(typed, settings, project, mcp)?;
    let (offer, watcher) = match asked.zip(served) {
        None => (Offer::BuiltIn, None),
        Some((asked, served)) => {
            let (project, watcher) = served_project::offered(asked, served, &settings)?;
            let offer = match typed.tools {
                None => Offer::Project(project),
                Some(_) => Offer::Both(project),
            };
            (offer, Some(watcher))
        }
    };
    let mut plan = HttpPlan::check(&typed.listener, &settings.loaded.config.http, handed, || {
        settings.host_grants()
    })?;
    if let Some(plan) = &mut plan {
        plan.rule_clients = clients_in_rules(&settings);
    }
    let json = settings.json.as_ref().and_then(|json| json.network.as_ref());
    let tcp = TcpPlan::check(&typed.listener, json, || settings.host_grants())?;
    let plans = Plans { http: plan, tcp, watcher };
    let serving = settings.for_the_front_end();
    let host_programs = settings.host_programs();
    let Launched { link, audit, streams, http, tcp, watched, layer } =
        launch::listening(settings, plans)?;
    start::conducted(link, async |link| {
        let mut setup = serving.executor(workspace, host_programs);
        setup.layer = layer.map(layer_link).transpose()?;
        let executor = Arc::new(Executor::new(setup, link.clone(), audit));
        let supervisor = link.clone();
        let mut tasks = vec![
            tokio::spawn(metrics::at_signal(link.clone(), Arc::clone(&executor))),
            tokio::spawn(metrics::reset_at_signal(Arc::clone(&executor))),
        ];
        let mut http = http;
        let reload = http.as_mut().and_then(|opened| opened.reload.take());
        if let Some(reload) = reload {
            tasks.push(tokio::spawn(reload::at_signal(reload)));
        }
        let following = follow(&offer, watched);
        let gone = async move {
            // Each call reports a supervisor that failed to start, with the remedy.
            match link.ready().await {
                Ok(_) => tokio::select! {
                    () = link.closed() => {}
                    () = tokio::time::sleep(OPENING_TIME) => {
                        forget_start();
                        link.closed().await;
                    }
                },
                Err(_) => std::future::pending().await,
            }
        };
        let streams = (!at_terminal || (http.is_none() && tcp.is_none())).then_some(streams);
        let served = doors(executor, offer, http, tcp, streams, gone).await;
        served.map_err(|error| CliError::new(format!("serve: {error}")))?;
        tasks.iter().chain(&following).for_each(JoinHandle::abort);
        tracing::info!(metrics = ?supervisor.metrics(), "calls");
        // Without a supervisor no call could run: the client may start the server again.
        match supervisor.greeted().is_some() && supervisor.is_closed() {
            true => Err(Failure::Supervisor.into()),
            false => Ok(0),
        }
    })
}

/// Returns the clients that rules of the policy name, except for those without a token.
fn clients_in_rules(settings: &Settings) -> BTreeSet<String> {
    let local = Principal::local();
    let without_token = [local.name(), listener::CLIENT, http::tcp::CLIENT];
    let named = settings.loaded.policy.rules().iter().flat_map(|rule| &rule.clients);
    named.filter(|name| !without_token.contains(&name.as_str())).cloned().collect()
}

/// Adds the settings and the grants of the command line to the configuration.
///
/// # Errors
/// A file that cannot be used, or the flag, with a hint.
fn planned(
    typed: &ServeArguments,
    mut settings: Settings,
    project: Option<&Project>,
    mcp: &McpSettings,
) -> Result<GrantPlan, CliError> {
    settings = settings.in_tier(typed.grants.tier);
    settings.loaded.profiles = settings.loaded.profiles.unaccounted();
    settings.own_ids = OwnIds::Wanted;
    if let Some(project) = project {
        served_project::apply(&mut settings, &project.settings)?;
    }
    let config = &mut settings.loaded.config;
    settings.warm = u16::try_from(config.warm.value).unwrap_or(u16::MAX);
    settings.networks = match config.cell_networks.value {
        CellNetworks::Untouched => MAX_NETWORKS,
        CellNetworks::Fresh => 0,
    };
    settings.sessions = u16::try_from(config.sessions.value).unwrap_or(u16::MAX);
    if let Some(groups) = &typed.tools {
        config.tools_groups.value = groups.iter().copied().collect();
    }
    config.exec = exec_options::in_force(config.exec.clone(), &typed.exec, std::env::var_os)?;
    let configured_egress = request::egress(&config.egress.value)
        .map_err(|error| error.with_hint("`[server] egress` in cofferdam.toml"))?;
    settings.json = config_json(typed, settings.loaded.origin.directory())?;
    let files = listener::files(&typed.listener, &config.http).into_iter();
    let files = files.chain(mcp.file.clone()).chain(typed.config_json.clone());
    settings.named_configuration.extend(files);
    let request = arguments::request(typed, accounts::home().as_deref(), configured_egress)?;
    agreement::check_egress(&settings.loaded, &request.additions.egress)?;
    let mut plan = GrantPlan::resolve(request, settings)?;
    if project.is_some() {
        plan.add_read_only_tools();
    }
    plan.settings = plan.settings.scoped(ScopeWish::Optional);
    Ok(plan)
}

/// Reads the `config.json` that is named, or else that of the configuration directory.
///
/// # Errors
/// A file that cannot be used.
fn config_json(
    typed: &ServeArguments,
    directory: Option<&Path>,
) -> Result<Option<ConfigJson>, CliError> {
    let read = |file: &Path| config::json::read(file, &HostContext::of_this_process()).map(Some);
    if let Some(file) = &typed.config_json {
        return read(file).map_err(|error| CliError::new(format!("--config-json: {error}")));
    }
    let file = directory.map(|directory| directory.join("config.json"));
    match file.filter(|file| file.symlink_metadata().is_ok()) {
        Some(file) => read(&file).map_err(|error| CliError::new(error.to_string())),
        None => Ok(None),
    }
}

/// Begins to take changes of the project, if it is watched.
fn follow(offer: &Offer, watched: Option<ProcessEnds>) -> Option<JoinHandle<()>> {
    let (Offer::Project(project) | Offer::Both(project)) = offer else { return None };
    let ProcessEnds { link, life } = watched?;
    let following = Arc::clone(project).follow(UnixStream::from(link));
    Some(tokio::spawn(async move {
        following.await;
        drop(life);
    }))
}

/// Serves at each door: standard input and output, a listener, or both. The end of standard input ends its own door
/// only, where there is another.
async fn doors(
    executor: Arc<Executor>,
    offer: Offer,
    http: Option<Opened>,
    tcp: Option<LineListener>,
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
    let scope = executor.scope(Principal::local());
    let kill = ends.kill.clone();
    let server = Server::offering(scope, kill, offer.clone(), Continuity::Connection);
    Box::pin(serve::connection(server, reader, writer, ends, None))
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
    let Opened { access, listener, limits, memory, run_root, reload: _ } = opened;
    let secret = RemoteSecret::from_offer(&offer).map(Arc::new);
    let kill = ends.kill.clone();
    let handlers = Scopes { executor, offer, secret, kill, memory, run_root };
    let front = Front { handlers, access, listener, limits };
    let served = http::serve::serve(front, ends.clone());
    Box::pin(async { served.await.map_err(ServeError::Listener) })
}

/// Returns memory that only a start needs: parsing, the command line, the supervisor's set-up.
fn forget_start() {
    if let Err(errno) = memory::forget_code() {
        tracing::debug!(%errno, "the code of the start stays mapped");
    }
}
