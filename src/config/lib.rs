//! Configuration: its places, and the reading of its three schemas. Only `directory` and `import` do I/O for them.
//!
//! `--config DIR`, then `$COFFERDAM_CONFIG`, `$XDG_CONFIG_HOME/cofferdam`, `/etc/cofferdam`, then what is
//! compiled in: the first that exists is the only one that is read, and it is never the current
//! directory. Within it each part is optional:
//! `cofferdam.toml` sets what it names and leaves the rest at the defaults;
//! `policies/*.toml`, where there are any, replace the shipped policy, or extend it;
//! `sandbox-profiles/*.toml` add to the shipped profiles, and replace those of the same name.

#![deny(unreachable_pub)]

#[macro_use]
pub mod document;
mod directory;
pub mod import;
pub mod policy;
pub mod profile;
pub mod schema;
pub mod server;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use document::{Document, Mistake};
use model::defaults;
use model::outcome::in_words;
use policy::Policy;
use policy::flags::Offered;
use profile::Profiles;

pub use import::{json, mcp_server};
pub use server::settings::{Setting, ShownLine, ValueSource};
pub use server::{Config, certificates, clients, commands, exec, http, jwt, nested, projects};

/// Facts of the host that configuration depends on, other than files: looked up once, by `main`, and passed in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostContext {
    /// `$COFFERDAM_CONFIG`, `$XDG_CONFIG_HOME` and `$HOME`.
    pub cofferdam_config: Option<OsString>,
    pub xdg_config_home: Option<OsString>,
    pub home: Option<OsString>,
    /// `/etc/cofferdam`.
    pub system: PathBuf,
    /// Files of this user and of root are trusted.
    pub euid: u32,
    /// Processors this process may run on.
    pub cores: u32,
}

impl HostContext {
    /// Returns those of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self {
            cofferdam_config: std::env::var_os("COFFERDAM_CONFIG"),
            xdg_config_home: std::env::var_os("XDG_CONFIG_HOME"),
            home: std::env::var_os("HOME"),
            system: PathBuf::from("/etc/cofferdam"),
            euid: nix::unistd::geteuid().as_raw(),
            cores: u32::try_from(defaults::processors()).unwrap_or(u32::MAX),
        }
    }
}

/// Place of the configuration in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// `--config DIR`
    Argument(PathBuf),
    /// `$COFFERDAM_CONFIG`
    Environment(PathBuf),
    /// `$XDG_CONFIG_HOME/cofferdam`
    User(PathBuf),
    /// `/etc/cofferdam`
    System(PathBuf),
    /// Compiled in.
    Embedded,
}

impl Origin {
    /// Returns the directory, unless the configuration is compiled in.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Self::Argument(path)
            | Self::Environment(path)
            | Self::User(path)
            | Self::System(path) => Some(path),
            Self::Embedded => None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument(path) => write!(f, "{} (--config)", path.display()),
            Self::Environment(path) => write!(f, "{} ($COFFERDAM_CONFIG)", path.display()),
            Self::User(path) => write!(f, "{} (user)", path.display()),
            Self::System(path) => write!(f, "{} (system)", path.display()),
            Self::Embedded => f.write_str("embedded defaults"),
        }
    }
}

/// Why there is no configuration. cofferdam does not start without one.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    Mistake(#[from] Mistake),
    #[error("cannot read {path}: {}", in_words(.source), path = .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a directory", path = .path.display())]
    NotADirectory { path: PathBuf },
    #[error("{path} is not a regular file of at most 1M", path = .path.display())]
    NotAFile { path: PathBuf },
    #[error(
        "others can write {path}, so they could configure the sandbox\nhint: chmod go-w {path}",
        path = .path.display()
    )]
    Writable { path: PathBuf },
    #[error(
        "{path} belongs to uid {owner}, which could configure the sandbox\n\
         hint: it must belong to root or to the user who starts cofferdam",
        path = .path.display()
    )]
    Owner { path: PathBuf, owner: u32 },
    #[error(
        "others can read {path}, which holds a secret\nhint: chmod 600 {path}",
        path = .path.display()
    )]
    Readable { path: PathBuf },
    #[error("{path}: {why}\nhint: {hint}", path = .path.display())]
    Json { path: PathBuf, why: String, hint: String },
    #[error(
        "$COFFERDAM_CONFIG is `{path}`, which depends on the current directory\n\
         hint: use an absolute path",
        path = .path.display()
    )]
    Relative { path: PathBuf },
}

/// Everything that was configured, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    pub config: Config,
    pub policy: Policy,
    pub profiles: Profiles,
    pub origin: Origin,
}

/// The files in force, read and not yet understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    pub origin: Origin,
    /// `cofferdam.toml`.
    pub server: Option<Document>,
    /// Policies of the directory. If there are none, the shipped one is in force.
    pub policies: Vec<Document>,
    /// Files of the directory; the shipped ones are in force too.
    pub profiles: Vec<Document>,
}

/// Finds and reads the configuration. `explicit` is `--config`.
///
/// # Errors
/// When a place named on purpose is not there, or others could have written any of it.
pub fn sources(explicit: Option<&Path>, host: &HostContext) -> Result<Sources, ConfigError> {
    let origin = directory::find(explicit, host)?;
    let files = match origin.directory() {
        Some(path) => directory::read(path, host.euid)?,
        None => directory::Files::default(),
    };
    let directory::Files { server, policies, profiles } = files;
    Ok(Sources { origin, server, policies, profiles })
}

/// Finds, reads and checks the configuration. `explicit` is `--config`.
///
/// # Errors
/// When a place named on purpose is not there, others could have written any of it, or a file has a mistake.
pub fn load(explicit: Option<&Path>, host: &HostContext) -> Result<Loaded, ConfigError> {
    let sources = sources(explicit, host)?;
    let profiles = match sources.profiles.is_empty() {
        true => Profiles::compiled_in(),
        false => Profiles::parse(&crate::profile::shipped(), &sources.profiles)?,
    };
    let policy = match (sources.policies.as_slice(), sources.profiles.as_slice()) {
        ([], []) => Policy::compiled_in(),
        ([], _) => Policy::parse(&crate::policy::shipped(), &profiles)?,
        (policies, _) => Policy::parse(policies, &profiles)?,
    };
    let mut config = Config::parse(sources.server.as_ref(), host.cores)?;
    let by_itself = policy.given_commands().iter().filter(|it| it.offered == Offered::ByItself);
    config.tools_on.value.extend(by_itself.map(|command| command.name.clone()));
    Ok(Loaded { config, policy, profiles, origin: sources.origin })
}

/// Loads as [`load`] does, for a command that runs one call of the operator's: without a configuration there is
/// no policy, which is for callers.
///
/// # Errors
/// As [`load`].
pub fn load_one(explicit: Option<&Path>, host: &HostContext) -> Result<Loaded, ConfigError> {
    let origin = directory::find(explicit, host)?;
    if origin != Origin::Embedded {
        return load(explicit, host);
    }
    let config = Config::parse(None, host.cores)?;
    Ok(Loaded { config, policy: Policy::none(), profiles: Profiles::compiled_in(), origin })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
