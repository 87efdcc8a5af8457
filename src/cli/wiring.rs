//! Where the command line meets the rest: one function for each thing that another module does.
//!
//! Nothing here decides anything. Each function either calls its module or says that it is missing.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::doctor::Report;
use super::error::CliError;
use super::run_arguments::MountAsk;
use super::serve::WorkspaceAsk;
use crate::call::Call;
use crate::job::{ProfileName, Workspace};
use crate::link::Link;
use crate::mcp::arguments::{BashArguments, Precision};
use crate::mcp::backend::{Backend, Calculated, Refused, Told, ToldDenial, Turn};
use crate::mcp::rules::{RuleLimits, Rules};
use crate::outcome::DeniedCall;
use crate::policy::{Grant, Policy, Profiles};
use crate::receipt::{MemoryHold, Tier};

/// Configuration in force: rules and profiles, loaded and checked.
#[derive(Debug, Clone)]
pub struct Settings {
    pub policy: Policy,
    pub profiles: Profiles,
}

fn missing(what: &str) -> CliError {
    CliError::new(format!("{what}: not in this build"))
}

/// `config::load`: the first directory found, whole, else what is built in (rulings R8).
pub fn load(directory: Option<&Path>) -> Result<Settings, CliError> {
    let _directory = directory;
    Err(missing("configuration"))
}

/// The profile named, with the operator's mounts added; what `--rw` put at `/workspace` is the
/// workspace of the call.
pub fn with_mounts(
    settings: Settings,
    profile: &ProfileName,
    mounts: &[MountAsk],
) -> Result<(Settings, Workspace), CliError> {
    let _profile = profile;
    if mounts.is_empty() {
        return Ok((settings, Workspace::Fresh));
    }
    Err(missing("--ro and --rw"))
}

/// The workspace that `serve --workspace` grants to every call.
pub fn with_workspace(
    settings: Settings,
    ask: Option<&WorkspaceAsk>,
) -> Result<(Settings, Workspace), CliError> {
    match ask {
        None => Ok((settings, Workspace::Fresh)),
        Some(_) => Err(missing("--workspace")),
    }
}

/// What the operator asks for at the command line, granted under a profile.
pub fn operator_grant(
    settings: &Settings,
    profile: &ProfileName,
    call: Call,
    workspace: Workspace,
) -> Result<Grant, CliError> {
    let found = settings.profiles.get(profile).ok_or_else(|| {
        CliError::new(format!("--profile: no profile `{profile}`"))
            .with_hint("bash and bc are built in")
    })?;
    Ok(Policy::operator(call, found, workspace))
}

/// `supervisor::start`, then the front end's confinement. Called while there is one thread; what
/// comes back is the front end's end of the link.
pub fn launch(settings: Settings) -> Result<OwnedFd, CliError> {
    let _settings = settings;
    Err(missing("the supervisor"))
}

/// Probes every layer by using it.
pub fn probe(config: Option<&Path>) -> Result<Report, CliError> {
    let _config = config;
    Err(missing("doctor's probes"))
}

/// A refused system call by its name, with the grant that would allow it.
pub fn told_denial(denied: &DeniedCall) -> ToldDenial {
    let number = usize::try_from(denied.number).unwrap_or(usize::MAX);
    let syscall = match syscalls::Sysno::new(number) {
        Some(known) => known.name().to_owned(),
        None => denied.number.to_string(),
    };
    ToldDenial { syscall, count: denied.count, grant: None }
}

/// The tools as they really run: through `tools`, policy and the link.
#[derive(Debug)]
pub struct Live {
    settings: Settings,
    workspace: Workspace,
    link: Link,
}

impl Live {
    pub fn new(settings: Settings, workspace: Workspace, link: Link) -> Self {
        Self { settings, workspace, link }
    }
}

impl Backend for Live {
    async fn bash(&self, arguments: BashArguments, turn: Turn) -> Result<Told, Refused> {
        let _unused = (arguments, turn, &self.settings, &self.workspace, &self.link);
        Err(Refused::failed("bash: not in this build"))
    }

    async fn calculate(
        &self,
        expression: String,
        precision: Precision,
        turn: Turn,
    ) -> Result<Calculated, Refused> {
        let _unused = (expression, precision, turn);
        Err(Refused::failed("Internal server error: bc not found"))
    }

    async fn calculate_advanced(
        &self,
        script: String,
        precision: Precision,
        turn: Turn,
    ) -> Result<Calculated, Refused> {
        let _unused = (script, precision, turn);
        Err(Refused::failed("Internal server error: bc not found"))
    }

    fn rules(&self) -> Rules {
        Rules {
            profile: "none".to_owned(),
            description: String::new(),
            tier: Tier::Full,
            memory_held_by: MemoryHold::BestEffort,
            network: "none".to_owned(),
            workspace: "no /workspace".to_owned(),
            read_only_paths: Vec::new(),
            programs: "none".to_owned(),
            proc: "no /proc".to_owned(),
            socket_families: Vec::new(),
            env: std::collections::BTreeMap::new(),
            limits: RuleLimits::default(),
            to_change: String::new(),
        }
    }
}
