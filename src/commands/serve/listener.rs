//! `serve --http` and `--tcp`: the conditions under which a listener may start, and the files and sockets that are opened
//! for it before this process is confined.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;
use nix::sys::stat::{Mode, umask};

use super::credentials::CredentialSettings;
use super::endpoint::{Endpoint, bad, endpoint};
use super::file_reader;
use super::handed_socket::{self, HANDOVER_TIME};
use super::listener_file::{FileKind, ListenerFile, token};
use super::reload::{self, Reload};
use crate::commands::error::CliError;
use cell::tied::ProcessEnds;
use config::HostContext;
use config::http::{HttpSettings, net};
use config::json::JsonNetwork;
use config::policy::Principal;
use http::access::browser::{ListenerReach, ServedNames};
use http::access::resource::Resource;
use http::access::tokens::Token;
use http::access::{AccessRules, ClientRights, CredentialStore, WithoutToken};
use http::serve::Listener;
use http::tcp::LineListener;
use http::{LastAccept, ListenerLimits, OwnMemory};
use model::call::Cwd;
use model::outcome::in_words;

/// Variable with a token, for a server whose configuration has no token.
const VARIABLE: &str = "COFFERDAM_HTTP_TOKEN";
/// Variable of the older design with the directory of commands of `/run`.
const ROOT_VARIABLE: &str = "MCP_BASH_ROOT_DIR";
/// Client of that token, of a generated token, and of requests without a token.
pub(crate) const CLIENT: &str = "http";
/// Random bytes of a generated token.
const TOKEN_BYTES: usize = 32;

/// Flags as typed.
#[derive(Debug, Clone, Default, Args)]
pub struct HttpFlags {
    /// Serve MCP over HTTP at /mcp as well: 127.0.0.1:PORT, `[::1]:PORT`, another address of this machine (with a token,
    /// and TLS or --behind-proxy), unix:PATH, or `systemd` for the socket that a socket unit hands over
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
    /// Serve MCP over raw TCP, one message a line, at an address of loopback; without a token, so only while cells have
    /// nothing of the host. `network` of a config.json does the same
    #[arg(long, value_name = "ADDRESS")]
    pub tcp: Option<String>,
    /// Let only this proxy connect to --http; it speaks TLS with clients
    #[arg(long, value_name = "IP|SUBNET", requires = "http")]
    pub behind_proxy: Option<String>,
    /// Give each command of POST /run a new directory below DIR of its cell: in /tmp or /workspace, removed with the
    /// cell; without it $MCP_BASH_ROOT_DIR, else a fresh /workspace, or /tmp/mcp/bash if a workspace is granted
    #[arg(long, value_name = "DIR", requires = "http")]
    pub workdir: Option<String>,
}

/// Grants of host things to cells of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostGrants {
    None,
    Some,
}

/// A listener that may start: every condition was checked.
#[derive(Debug)]
pub struct HttpPlan {
    endpoint: Endpoint,
    /// Socket at the endpoint from the service manager.
    handed: Option<OwnedFd>,
    names: ServedNames,
    allowed: Vec<IpNet>,
    /// Of a token from the environment only the hash is kept, since the supervisor and its cells are cloned later.
    credentials: CredentialSettings,
    /// File of a token to generate, if one is needed and no token is configured.
    generated: Option<PathBuf>,
    without_token: WithoutToken,
    limits: ListenerLimits,
    run_root: Option<String>,
    /// Clients that rules of the policy name.
    pub(super) rule_clients: BTreeSet<String>,
}

/// A listener for raw TCP that may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpPlan {
    at: SocketAddr,
    allowed: Vec<IpNet>,
}

impl TcpPlan {
    /// Checks the conditions. Returns `None` if no listener for raw TCP is requested.
    ///
    /// # Errors
    /// An address that others reach, or cells with a grant of the host: raw TCP has no token.
    pub fn check(
        flags: &HttpFlags,
        json: Option<&JsonNetwork>,
        grants: impl FnOnce() -> HostGrants,
    ) -> Result<Option<Self>, CliError> {
        let in_json = |json: &JsonNetwork| match json.host.contains(':') {
            true => format!("[{}]:{}", json.host, json.port),
            false => format!("{}:{}", json.host, json.port),
        };
        let Some(address) = flags.tcp.clone().or_else(|| json.map(in_json)) else {
            return Ok(None);
        };
        let refused = |reason: &str| {
            CliError::new(format!("--tcp: `{}` {reason}", address.escape_default())).with_hint(
                "use --http with a token and TLS, or a tunnel: ssh -L 3000:127.0.0.1:3000 HOST",
            )
        };
        let at = match endpoint(&address) {
            Ok(Endpoint::Tcp(at)) => at,
            Ok(Endpoint::Unix(_)) | Err(_) => return Err(refused("is no IP:PORT of this machine")),
        };
        if !at.ip().is_loopback() {
            return Err(refused("can be reached from elsewhere, and raw TCP has no token"));
        }
        if grants() == HostGrants::Some {
            return Err(refused("has no token, and cells have something of the host"));
        }
        Ok(Some(Self { at, allowed: json.map_or(Vec::new(), |json| json.allowed.clone()) }))
    }

    /// Binds the socket, and prints the server's address on standard error.
    ///
    /// # Errors
    /// The address, with the reason.
    pub fn open(self) -> Result<LineListener, CliError> {
        random()?;
        let Self { at, allowed } = self;
        let failed = |error: io::Error| CliError::new(format!("--tcp: {at}: {}", in_words(&error)));
        let socket = TcpListener::bind(at).map_err(failed)?;
        let at = socket.local_addr().map_err(failed)?;
        eprintln!("cofferdam: MCP in lines at tcp://{at}");
        Ok(LineListener { socket, allowed })
    }
}

/// Files and sockets of a listener.
#[derive(Debug)]
pub struct Opened {
    pub access: AccessRules,
    pub listener: Listener,
    pub limits: ListenerLimits,
    /// Taken by the task that waits for SIGHUP; `None` if that ends this server.
    pub reload: Option<Reload>,
    /// Reader of this process's memory; `None` without a `/proc`.
    pub memory: Option<OwnMemory>,
    pub run_root: Option<String>,
}

impl HttpPlan {
    /// Checks the conditions. Returns `None` if no listener is requested.
    ///
    /// # Errors
    /// A malformed address, or one that others reach, without a token or without TLS.
    pub fn check(
        flags: &HttpFlags,
        settings: &HttpSettings,
        handed: Option<OwnedFd>,
        grants: impl FnOnce() -> HostGrants,
    ) -> Result<Option<Self>, CliError> {
        let is_asked_for = flags.http.as_deref() == Some(handed_socket::WORD);
        if handed.is_some() && !is_asked_for {
            tracing::warn!("a socket was handed over and is closed: --http systemd serves it");
        }
        let Some(address) = &flags.http else { return Ok(None) };
        let (endpoint, handed) = if is_asked_for {
            let (socket, endpoint) = handed_socket::checked(handed)?;
            (endpoint, Some(socket))
        } else {
            (endpoint(address)?, None)
        };
        let proxy = flags.behind_proxy.as_deref().map(proxy).transpose()?;
        let kept = Vec::from_iter(from_environment()?);
        let credentials = CredentialSettings::new(settings, kept);
        let has_token = credentials.admit_agents();
        let reach = match &endpoint {
            Endpoint::Unix(_) => ListenerReach::Socket,
            Endpoint::Tcp(at) if at.ip().is_loopback() && proxy.is_none() => {
                ListenerReach::Loopback
            }
            Endpoint::Tcp(_) => ListenerReach::Network,
        };
        if reach == ListenerReach::Network {
            check_network(&endpoint, has_token, credentials.has_tls() || proxy.is_some())?;
        }
        let needs_token = has_token || grants() == HostGrants::Some;
        let (without_token, generated) = match reach {
            ListenerReach::Socket => (WithoutToken::One(Principal::local()), None),
            ListenerReach::Loopback if !needs_token => {
                (WithoutToken::Anonymous(Principal::named(CLIENT)), None)
            }
            ListenerReach::Loopback if !has_token => (WithoutToken::Refused, Some(token_file()?)),
            ListenerReach::Loopback | ListenerReach::Network => (WithoutToken::Refused, None),
        };
        let limits = ListenerLimits {
            sessions: usize::try_from(settings.sessions.value).unwrap_or(usize::MAX),
            streams: usize::try_from(settings.streams.value).unwrap_or(usize::MAX),
            rate: NonZeroU32::new(settings.rate.value).unwrap_or(NonZeroU32::MIN),
            pre_stop: settings.pre_stop.value.unwrap_or(match handed {
                // By default the listener does not wait before it stops.
                None => Duration::ZERO,
                Some(_) => HANDOVER_TIME,
            }),
            drain: settings.drain.value,
            last_accept: match handed {
                None => LastAccept::AfterPreStop,
                Some(_) => LastAccept::AtSignal,
            },
            ..ListenerLimits::default()
        };
        Ok(Some(Self {
            endpoint,
            handed,
            names: ServedNames {
                reach,
                hosts: settings.hosts.value.iter().cloned().collect(),
                origins: settings.origins.value.iter().cloned().collect(),
            },
            allowed: proxy.map_or_else(|| settings.allowed.value.clone(), |proxy| vec![proxy]),
            credentials,
            generated,
            without_token,
            limits,
            run_root: run_root(flags.workdir.as_deref())?,
            rule_clients: BTreeSet::new(),
        }))
    }

    /// Returns the socket from the service manager, which [`Self::open`] takes again once other processes were made.
    pub fn take_handed(&mut self) -> Option<OwnedFd> {
        self.handed.take()
    }

    /// Starts the process that reads the files of the listener again, if there are any. It must not hold a socket or a
    /// secret. Without it, the files are read once.
    pub fn start_reader(&self) -> Option<ProcessEnds> {
        let files = self.credentials.files();
        let is_wanted = reload::is_reload(&self.credentials);
        let started = is_wanted.then(|| file_reader::start(&files))?;
        started.inspect_err(|errno| tracing::warn!("http: files are not read again: {errno}")).ok()
    }

    /// Binds the socket, unless it was `handed` over, and reads the secrets; prints the server's address on standard
    /// error. `reader` is the process that reads them again.
    ///
    /// # Errors
    /// The file or the address, with the reason.
    pub fn open(
        mut self,
        handed: Option<OwnedFd>,
        reader: Option<ProcessEnds>,
    ) -> Result<Opened, CliError> {
        random()?;
        // The signal can come as soon as the address is printed, and waits for its handler.
        let reloads = reload::is_reload(&self.credentials);
        if reloads {
            reload::hangup().thread_block().map_err(|errno| bad(&in_words(&errno.into())))?;
        }
        let host = HostContext::of_this_process();
        if let Some(path) = &self.generated {
            generate_token(path)?;
            let kind = FileKind::Token { client: CLIENT.to_owned(), rights: ClientRights::Agent };
            let content = ListenerFile { path: path.clone(), kind }.read(&host)?;
            self.credentials.kept.extend(content.into_tokens().unwrap_or_default());
        }
        let credentials = self.credentials.load(&mut |file| file.read(&host))?;
        let listener = match handed {
            Some(socket) => self.endpoint.handed_listener(socket),
            None => self.endpoint.listener()?,
        };
        let scheme = if self.credentials.has_tls() { "https" } else { "http" };
        match (&listener, &self.endpoint) {
            (Listener::Tcp(socket), _) => {
                let at = socket.local_addr().map_err(|error| bad(&in_words(&error)))?;
                eprintln!("cofferdam: MCP at {scheme}://{at}/mcp");
            }
            (Listener::Unix { .. }, Endpoint::Unix(path)) => {
                eprintln!("cofferdam: MCP at unix:{}, path /mcp", path.display());
            }
            (Listener::Unix { .. }, Endpoint::Tcp(_)) => {}
        }
        if let Some(path) = &self.generated {
            eprintln!("cofferdam: clients need the token in {}", path.display());
        }
        let Self { names, allowed, without_token, limits, run_root, rule_clients, .. } = self;
        reload::warn_of_unknown(&rule_clients, &self.credentials, &credentials);
        let resource = self.credentials.jwt().and_then(Resource::new);
        let store = CredentialStore::new(credentials);
        let mut access = AccessRules::new(names, &store, without_token);
        access.allowed = allowed;
        access.resource = resource;
        let reload =
            reloads.then(|| Reload { settings: self.credentials, store, reader, rule_clients });
        let memory = OwnMemory::open().ok();
        Ok(Opened { access, listener, limits, reload, memory, run_root })
    }
}

/// Returns the directory below which each command of `/run` gets a directory.
///
/// # Errors
/// A directory other than /tmp and /workspace of a cell, and those below.
fn run_root(flag: Option<&str>) -> Result<Option<String>, CliError> {
    let variable = std::env::var(ROOT_VARIABLE).ok().filter(|path| !path.is_empty());
    let named = flag.map(|path| ("--workdir", path.to_owned()));
    let Some((origin, path)) = named.or(variable.map(|path| (ROOT_VARIABLE, path))) else {
        return Ok(None);
    };
    let inside = Cwd::new(origin, &path).map_err(|error| {
        CliError::new(error.to_string()).with_hint(
            "commands of /run have a directory in their cell; a directory of the host is granted with --workspace",
        )
    })?;
    Ok(Some(inside.as_str().to_owned()))
}

fn proxy(text: &str) -> Result<IpNet, CliError> {
    net(text).ok_or_else(|| {
        let shown = text.escape_default();
        CliError::new(format!("--behind-proxy: `{shown}` is no address"))
            .with_hint("name the proxy's own address or subnet: 127.0.0.1, 10.0.0.0/24")
    })
}

/// Checks that a listener which other machines can reach has a token, and that the token is not sent in clear.
fn check_network(at: &Endpoint, has_token: bool, is_private: bool) -> Result<(), CliError> {
    let Endpoint::Tcp(at) = at else { return Ok(()) };
    let refused = |reason: &str| bad(&format!("{at} can be reached from elsewhere, {reason}"));
    if !has_token {
        let hint = format!("set {VARIABLE}, or name a file under `[[http.tokens]]`");
        return Err(refused("and no token is configured").with_hint(hint));
    }
    if !is_private {
        let hint = "set `[http] certificate` and `key`, or name your proxy with --behind-proxy";
        return Err(refused("and a token would pass in clear").with_hint(hint));
    }
    Ok(())
}

/// Reads the token of the environment, if one is set, and overwrites its text in memory.
fn from_environment() -> Result<Option<Token>, CliError> {
    let Some(mut text) = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let hashed = token(&text, CLIENT, ClientRights::Agent, VARIABLE);
    let mut bytes = std::mem::take(&mut text).into_bytes();
    bytes.fill(0);
    std::hint::black_box(&bytes);
    hashed.map(Some)
}

/// Returns the file of a generated token.
fn token_file() -> Result<PathBuf, CliError> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || model::accounts::home().map(|home| home.join(".local/state"));
    let state = set("XDG_STATE_HOME").or_else(home).ok_or_else(|| {
        bad(&"a token is needed, and there is no home to keep one in")
            .with_hint(format!("set {VARIABLE}, or XDG_STATE_HOME"))
    })?;
    Ok(state.join("cofferdam/http-token"))
}

/// Returns true if SIGHUP asks for the files of a listener that is requested.
pub(super) fn reloads(flags: &HttpFlags, settings: &HttpSettings) -> bool {
    flags.http.is_some() && reload::is_reload(&CredentialSettings::new(settings, Vec::new()))
}

/// Returns the files that configure access to a listener: no cell may write to them.
pub(crate) fn files(flags: &HttpFlags, settings: &HttpSettings) -> Vec<PathBuf> {
    if flags.http.is_none() {
        return Vec::new();
    }
    let configured = CredentialSettings::new(settings, Vec::new()).files();
    configured.into_iter().map(|file| file.path).chain(token_file().ok()).collect()
}

/// Generates the token, unless there is one: clients use it across starts.
fn generate_token(path: &Path) -> Result<(), CliError> {
    let failed = |error: io::Error| bad(&format!("{}: {}", path.display(), in_words(&error)));
    let directory = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = match created {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    let random = random()?;
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    writeln!(file, "{text}").map_err(failed)
}

/// Returns random bytes. A static binary reads them from a file, which is opened at the first use. That must come before
/// this process is confined, which needs random bytes for ids of sessions.
fn random() -> Result<[u8; TOKEN_BYTES], CliError> {
    let mut bytes = [0; TOKEN_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| bad(&format!("no random bytes: {error}")))?;
    Ok(bytes)
}

impl Endpoint {
    fn listener(&self) -> Result<Listener, CliError> {
        let failed = |at: &dyn std::fmt::Display, error: &io::Error| {
            bad(&format!("{at}: {}", in_words(error)))
                .with_hint("another program may have it: name another one")
        };
        match self {
            Self::Tcp(at) => {
                TcpListener::bind(at).map(Listener::Tcp).map_err(|error| failed(at, &error))
            }
            Self::Unix(path) => {
                let socket = unix(path).map_err(|error| failed(&path.display(), &error))?;
                Ok(Listener::Unix { socket, owner: nix::unistd::geteuid().as_raw() })
            }
        }
    }

    /// Returns the listener of a socket that has this address already.
    fn handed_listener(&self, socket: OwnedFd) -> Listener {
        match self {
            Self::Tcp(_) => Listener::Tcp(TcpListener::from(socket)),
            Self::Unix(_) => Listener::Unix {
                socket: UnixListener::from(socket),
                owner: nix::unistd::geteuid().as_raw(),
            },
        }
    }
}

/// Listens at a path that only this user can connect to. Removes a socket there without a listening process.
fn unix(path: &Path) -> io::Result<UnixListener> {
    let is_socket =
        fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let is_stale = || {
        UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    if is_socket && is_stale() {
        fs::remove_file(path)?;
    }
    // The umask applies to the whole process, which has one thread. The socket never has a wider mode.
    let before = umask(Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(path);
    umask(before);
    listener
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use config::Config;
    use config::document::Document;

    fn settings(text: &str) -> HttpSettings {
        let document = Document::new("f", &format!("schema = 1\n{text}"));
        Config::parse(Some(&document), 2).expect("it is right").http
    }

    fn plan(address: &str, proxy: Option<&str>, config: &str) -> Result<HttpPlan, String> {
        let behind_proxy = proxy.map(str::to_owned);
        let flags =
            HttpFlags { http: Some(address.to_owned()), behind_proxy, ..HttpFlags::default() };
        let plan = HttpPlan::check(&flags, &settings(config), None, || HostGrants::None);
        plan.map(|plan| plan.expect("it is asked for")).map_err(|error| error.text())
    }

    const TOKEN: &str = "[[http.tokens]]\nclient = \"ci\"\nfile = \"/t\"\n";
    const TLS: &str = "[http]\ncertificate = \"/c\"\nkey = \"/k\"\n";

    #[test]
    fn without_a_token_only_loopback_and_sockets_start() {
        let open = plan("127.0.0.1:0", None, "").expect("nothing is granted");
        assert_eq!(open.without_token, WithoutToken::Anonymous(Principal::named(CLIENT)));
        let owner = plan("unix:/tmp/s", None, "").expect("the owner's");
        assert_eq!(owner.without_token, WithoutToken::One(Principal::local()));
        for (address, proxy) in
            [("0.0.0.0:0", None), ("[::]:0", None), ("127.0.0.1:0", Some("10.0.0.1"))]
        {
            let refused = plan(address, proxy, TLS).expect_err(address);
            assert!(refused.contains("no token is configured"), "{refused}");
        }
    }

    #[test]
    fn a_configured_token_is_needed_everywhere_but_on_a_socket() {
        let loopback = plan("127.0.0.1:0", None, TOKEN).expect("it has a token");
        assert_eq!(loopback.without_token, WithoutToken::Refused);
        assert_eq!(loopback.generated, None);
        let refused = plan("0.0.0.0:0", None, TOKEN).expect_err("no TLS");
        assert!(refused.contains("in clear"), "{refused}");
        let tls = plan("0.0.0.0:0", None, &format!("{TLS}{TOKEN}")).expect("TLS");
        assert_eq!(
            (tls.without_token, tls.names.reach),
            (WithoutToken::Refused, ListenerReach::Network)
        );
        let proxied = plan("0.0.0.0:0", Some("10.0.0.7"), TOKEN).expect("a proxy");
        let proxy = IpAddr::from([10, 0, 0, 7]);
        assert_eq!(proxied.allowed, vec![IpNet::from(proxy)], "only the proxy");
    }

    #[test]
    fn a_token_of_the_operator_does_not_change_the_access_of_agents() {
        let operator = format!("{TOKEN}operator = true\n");
        let open = plan("127.0.0.1:0", None, &operator).expect("nothing is granted");
        assert_eq!(open.without_token, WithoutToken::Anonymous(Principal::named(CLIENT)));
        let refused = plan("0.0.0.0:0", None, &format!("{TLS}{operator}")).expect_err("no token");
        assert!(refused.contains("no token is configured"), "{refused}");
    }

    #[test]
    fn a_grant_of_the_host_needs_a_token() {
        let flags = HttpFlags { http: Some("127.0.0.1:0".to_owned()), ..HttpFlags::default() };
        let plan = HttpPlan::check(&flags, &settings(""), None, || HostGrants::Some);
        let plan = plan.ok().flatten().expect("a token is generated");
        assert_eq!(plan.without_token, WithoutToken::Refused);
        assert!(plan.generated.is_some());
    }

    #[test]
    fn raw_tcp_starts_only_on_loopback_and_without_grants_of_the_host() {
        let plan = |address: &str, grants| {
            let flags = HttpFlags { tcp: Some(address.to_owned()), ..HttpFlags::default() };
            TcpPlan::check(&flags, None, || grants).map_err(|error| error.text())
        };
        assert!(plan("127.0.0.1:0", HostGrants::None).is_ok_and(|plan| plan.is_some()));
        assert!(plan("[::1]:0", HostGrants::None).is_ok());
        for address in ["0.0.0.0:3000", "[::]:1", "10.0.0.1:1", "unix:/tmp/s", "example.org:1"] {
            assert!(plan(address, HostGrants::None).is_err(), "{address}");
        }
        let refused = plan("127.0.0.1:0", HostGrants::Some).expect_err("a workspace");
        assert!(refused.contains("something of the host"), "{refused}");
        let json = JsonNetwork { host: "localhost".to_owned(), port: 9, allowed: Vec::new() };
        let planned = TcpPlan::check(&HttpFlags::default(), Some(&json), || HostGrants::None);
        assert!(planned.ok().flatten().is_some_and(|plan| plan.at.port() == 9));
    }

    #[test]
    fn names_are_not_addresses() {
        for address in ["example.com:80", "8080", "", "127.0.0.1", "::1:80"] {
            assert!(plan(address, None, "").is_err(), "{address}");
        }
        assert!(plan("localhost:0", None, "").is_ok() && plan("[::1]:0", None, "").is_ok());
    }
}
