//! Start of the supervisor and confinement of the front end, from settings.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::commands::confine;
use crate::commands::confine::Duties;
use crate::commands::error::CliError;
use crate::commands::grants::cache_upkeep::CacheUpkeep;
use crate::commands::grants::tier;
use crate::commands::layer_reader;
use crate::commands::serve::listener::{HttpPlan, Opened, TcpPlan};
use crate::commands::settings::{self, Settings};
use crate::commands::streams::Streams;
use cell::tied::ProcessEnds;
use gateway::intercept::trust::{PlacedTrust, TrustFiles};
use http::tcp::LineListener;
use model::egress::{Egress, EgressRule, SecretSource};
use model::outcome::in_words;
use model::profile::{Profile, TRUST};
use nix::sys::socket::{AddressFamily, SockFlag, SockType};
use projects::watcher::WatcherSpec;
use service::audit::Audit;
use supervisor::{Caps, Spec};
use sys::signals;

/// The front end's end of the link, and the log in which calls are recorded.
#[derive(Debug)]
pub struct Launched {
    pub link: OwnedFd,
    pub audit: Audit,
    pub streams: Streams,
    /// Listener, if one was planned.
    pub http: Option<Opened>,
    pub tcp: Option<LineListener>,
    /// The process that watches the project.
    pub watched: Option<ProcessEnds>,
    /// The process that reads the layer of the workspace.
    pub layer: Option<ProcessEnds>,
}

/// Listeners that were planned, and the project that is to be watched.
#[derive(Debug, Default)]
pub struct Plans {
    pub http: Option<HttpPlan>,
    pub tcp: Option<TcpPlan>,
    pub watcher: Option<WatcherSpec>,
}

/// Starts as [`unrecorded`] does, with the configured log, for a process that makes calls on behalf
/// of a client.
///
/// # Errors
/// The same as of [`unrecorded`], or a log that cannot be used.
pub fn recorded(settings: Settings) -> Result<Launched, CliError> {
    listening(settings, Plans::default())
}

/// Starts as [`recorded`] does, and opens a listener.
///
/// # Errors
/// The same as of [`recorded`], or a listener that cannot be opened.
pub fn listening(settings: Settings, plans: Plans) -> Result<Launched, CliError> {
    let config = &settings.loaded.config;
    let options = config.audit_file.value.clone().map(|file| service::audit::Options {
        file,
        max_bytes: config.audit_max_bytes.value,
        keep: config.audit_keep.value,
        on_error: config.audit_on_error.value,
    });
    with(settings, options.as_ref(), None, plans)
}

/// Starts the supervisor, then confines this process. Called while there is one thread. Returns the
/// front end's end of the link.
///
/// # Errors
/// The reason why there is no supervisor, or the part of the front end's confinement that failed.
pub fn unrecorded(settings: Settings) -> Result<OwnedFd, CliError> {
    with(settings, None, None, Plans::default()).map(|launched| launched.link)
}

/// Starts as [`unrecorded`] does, and records in `record` the paths that commands name.
///
/// # Errors
/// The same as of [`unrecorded`].
pub fn recording_paths(settings: Settings, record: Arc<OwnedFd>) -> Result<OwnedFd, CliError> {
    with(settings, None, Some(record), Plans::default()).map(|launched| launched.link)
}

fn with(
    settings: Settings,
    log: Option<&service::audit::Options>,
    record: Option<Arc<OwnedFd>>,
    mut plans: Plans,
) -> Result<Launched, CliError> {
    let at_terminal = settings.profiles.iter().any(|profile| profile.terminal.is_some());
    let config = &settings.loaded.config;
    let spec = Spec {
        profiles: settings.profiles,
        granted: settings.granted,
        private_cells: settings.private_cells,
        sockets: settings.sockets,
        caps: Caps {
            cells: u16::try_from(config.cells.value).unwrap_or(u16::MAX),
            memory: config.memory.value,
            tmpfs: config.tmpfs.value,
            processes: u64::from(config.processes.value),
            warm: settings.warm,
            networks: settings.networks,
            sessions: settings.sessions,
            session_idle: config.session_idle.value,
        },
        ids: settings::id_range(config),
        own_ids: settings.own_ids,
        tier: settings.tier,
        scope: settings.scope,
        record,
        first: settings.first,
        listening: plans.http.as_mut().and_then(HttpPlan::take_handed),
    };
    let secrets = config.secrets.value.clone();
    let beside = |id, profiles: &mut [Profile]| gateway(profiles, secrets, id);
    let started = supervisor::start_with_gateway(spec, beside).map_err(|error| {
        let refusal = CliError::new(error.to_string());
        match tier::remedy(&error) {
            Some(hint) => refusal.with_hint(hint),
            None => refusal,
        }
    })?;
    // Before this process holds a log, a listener or a token.
    let watched = start_others(plans.watcher, settings.upkeep.as_deref());
    let layer = settings.served_layer.as_ref().and_then(read_layer);
    let reader = plans.http.as_ref().and_then(HttpPlan::start_reader);
    // An operator's limit on file size must cost lines of the log, and not this process. Set after
    // the supervisor is made, whose cells have every signal as usual.
    signals::ignore_file_size_signal()
        .map_err(|errno| CliError::new(format!("signals cannot be set: {errno}")))?;
    // Opened after the supervisor, which must not hold it, and before the confinement, after which
    // no path opens.
    let audit = match log {
        Some(options) => Audit::open(options)
            .map_err(|error| CliError::new(format!("the audit log cannot be used: {error}")))?,
        None => Audit::off(),
    };
    let held =
        audit.directory().map_err(|error| CliError::new(format!("audit: {}", in_words(&error))))?;
    let streams = Streams::detect();
    // After the supervisor as well, which must hold neither the socket nor a token.
    let http = plans.http.map(|plan| plan.open(started.listening, reader)).transpose()?;
    let tcp = plans.tcp.map(TcpPlan::open).transpose()?;
    let listens = http.is_some() || tcp.is_some();
    let duties = Duties { terminal: at_terminal, listens, ..Duties::default() };
    confine::confine(held.as_ref().map(AsFd::as_fd), duties)?;
    // This holds the instance's lock and must live as long as the process.
    std::mem::forget(started.held);
    Ok(Launched { link: started.link, audit, streams, http, tcp, watched, layer })
}

/// Starts the other processes that a start may have: the one that looks after caches, and the one that watches a project,
/// whose ends are returned.
fn start_others(watcher: Option<WatcherSpec>, upkeep: Option<&CacheUpkeep>) -> Option<ProcessEnds> {
    if let Some(upkeep) = upkeep {
        // The process ends when this is closed, so it is open for as long as this process lives.
        std::mem::forget(upkeep.start());
    }
    watcher.and_then(watch)
}

/// Starts the process that watches a project. A server without it is as one of before: its lists stay as they are.
fn watch(spec: WatcherSpec) -> Option<ProcessEnds> {
    let started = projects::watcher::start(spec);
    started.inspect_err(|errno| tracing::warn!("project: changes are not seen: {errno}")).ok()
}

/// Starts the process that reads the layer of the workspace. A server without it serves the layer all the same: an agent
/// cannot list its changes, and `cofferdam review` can.
fn read_layer(layer: &layer_reader::ServedLayer) -> Option<ProcessEnds> {
    let started = layer_reader::start(layer);
    started.inspect_err(|errno| tracing::warn!("the layer cannot be shown to agents: {errno}")).ok()
}

/// Starts the gateway, if a profile has egress. Returns the supervisor's end of the link to it.
///
/// # Errors
/// The reason why it cannot be started.
fn gateway(
    all: &mut [Profile],
    secrets: Vec<(String, SecretSource)>,
    id: Option<u32>,
) -> Result<Option<OwnedFd>, String> {
    let profiles: Vec<Egress> = all.iter().map(|profile| profile.egress.clone()).collect();
    if !profiles.iter().any(|egress| egress.class.has_egress()) {
        return Ok(None);
    }
    let pair = nix::sys::socket::socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    );
    let (ours, theirs) = pair.map_err(|errno| errno.desc().to_owned())?;
    // Read here: the gateway has no files.
    let resolvers = gateway::host::resolvers(Path::new("/etc/resolv.conf"));
    let hosts = gateway::host::hosts(Path::new("/etc/hosts"));
    let roots = roots();
    let spec =
        gateway::GatewaySpec { profiles, resolvers, hosts, roots: roots.clone(), secrets, id };
    let started = gateway::start(theirs, spec).map_err(|error| error.to_string())?;
    trust(all, &roots, &started.authority);
    Ok(Some(ours))
}

/// Has cells whose requests are read trust the gateway's authority.
fn trust(profiles: &mut [Profile], roots: &[u8], authority: &[u8]) {
    let reads = |profile: &&mut Profile| profile.egress.rules.iter().any(EgressRule::intercepts);
    let PlacedTrust { files, variables } = TrustFiles::new(roots, authority).placed(TRUST);
    let files = files.map(|(name, bytes)| (name, Arc::from(bytes)));
    for profile in profiles.iter_mut().filter(reads) {
        profile.trust = files.to_vec();
        for (name, value) in &variables {
            profile.env.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
}

/// Returns the certificates in PEM by which the host verifies servers; none where it has none.
fn roots() -> Vec<u8> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let known = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/cert.pem",
    ];
    let mut paths = named.into_iter().chain(known.map(PathBuf::from));
    paths.find_map(|path| std::fs::read(path).ok()).unwrap_or_default()
}
