//! Requests for grants: the flags that commands share, as typed and as checked. Nothing is looked up on the host yet.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use clap::Args;

use crate::commands::error::CliError;
use config::profile::egress::InvalidEgress;
use config::profile::toolchains::ToolchainChoice;
use model::call::Env;
use model::defaults::MIN_MEMORY;
use model::egress::EgressRule;
use model::job::{Access, ProfileName};
use model::outcome::in_words;
use model::profile::ProfileAdditions;
use model::receipt::Tier;
use model::units::Size;

/// Directory of the workspace in a cell.
pub(crate) const WORKSPACE: &str = "/workspace";

/// Flags of every command that grants something, as typed: `run`, `serve` and `profile learn`.
#[derive(Debug, Clone, Default, Args)]
pub struct PathFlags {
    /// Grant a host path read-only, at CELL or else at /mnt/NAME
    #[arg(long, value_name = "HOST[:CELL]")]
    pub ro: Vec<OsString>,
    /// Grant a host directory for reading and writing, at CELL or else at /workspace
    #[arg(long, value_name = "HOST[:CELL]")]
    pub rw: Vec<OsString>,
    /// Set a variable in the cell; of a server, in every cell that has a workspace
    #[arg(long, value_name = "K=V")]
    pub env: Vec<String>,
}

/// Further flags of `run` and `serve`, as typed.
#[derive(Debug, Clone, Default, Args)]
pub struct GrantFlags {
    /// Let names that the host obeys (.git, .envrc, .vscode, …) be made in what is granted for writing
    #[arg(long)]
    pub unguarded: bool,
    /// Grant a Unix socket of the host, as /tmp/mcp-sockets/NAME.sock, to profiles with `unix_sockets`
    #[arg(long, value_name = "NAME=PATH")]
    pub socket: Vec<String>,
    /// Let cells that have a workspace reach a host, a network or a preset (cargo, debian, git-https, go, npm, python)
    #[arg(long, value_name = "HOST:PORT|PRESET")]
    pub egress: Vec<String>,
    /// Isolation tier: namespaces+landlock+seccomp, or landlock+seccomp where user namespaces
    /// are refused; it is weaker, and every receipt lists the missing protections
    #[arg(long, value_name = "TIER")]
    pub tier: Option<Tier>,
    /// Grant tool chains of the home, read-only at their own paths: auto, none, or names (rust,nvm,pyenv,…);
    /// without it, auto where a workspace is granted
    #[arg(long, value_name = "auto|none|NAME,…", value_parser = clap::value_parser!(ToolchainChoice))]
    pub toolchains: Option<ToolchainChoice>,
}

/// Cells that the grants are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrantsFor {
    /// The cell of one call, under this profile.
    Call(ProfileName),
    /// The cell of one call whose refusals are learnt: it has only what was typed.
    LearningCall(ProfileName),
    /// All cells of a server, under the profiles of its policy.
    Server,
}

impl GrantsFor {
    /// Returns the profile of the only call; `None` for a server.
    pub(crate) fn profile(&self) -> Option<&ProfileName> {
        match self {
            Self::Call(profile) | Self::LearningCall(profile) => Some(profile),
            Self::Server => None,
        }
    }
}

/// Grants that the operator asks for, as checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantRequest {
    pub cells: GrantsFor,
    /// Paths of the host. A server's workspace comes first.
    pub mounts: Vec<MountRequest>,
    /// Variables, memory and network, in addition to those of profiles.
    pub additions: ProfileAdditions,
    /// Sockets as typed, in addition to those of the configuration.
    pub sockets: Vec<SocketFlag>,
    /// Choice of tool chains, if one was typed.
    pub toolchains: Option<ToolchainChoice>,
    /// True if cells run scripts of a project.
    pub has_scripts: bool,
    /// The layer to take for a directory whose changes are kept apart; `None`: any that is free.
    pub layer: Option<String>,
    /// True if cells only read the layers, and have no network.
    pub is_frozen: bool,
}

/// A socket as typed: `NAME=PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketFlag {
    /// Flag that has it, for messages.
    pub flag: &'static str,
    pub typed: String,
}

impl SocketFlag {
    /// Collects the values of one flag.
    pub(crate) fn all(flag: &'static str, typed: &[String]) -> Vec<Self> {
        typed.iter().map(|typed| Self { flag, typed: typed.clone() }).collect()
    }
}

/// A host path that the operator grants to cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountRequest {
    /// Absolute path, not resolved yet.
    pub host: PathBuf,
    /// Absolute path, without `.` and `..`.
    pub cell: PathBuf,
    pub access: Access,
}

/// Checks the requests of `--cow`.
///
/// # Errors
/// The flag, with a hint if there is one.
pub(crate) fn layers(
    typed: &[OsString],
    home: Option<&Path>,
) -> Result<Vec<MountRequest>, CliError> {
    typed.iter().map(|ask| mount("--cow", ask, Access::Layer, home)).collect()
}

/// Checks the requests of `--ro` and `--rw`.
///
/// # Errors
/// The flag, with a hint if there is one.
pub(crate) fn mounts(
    ro: &[OsString],
    rw: &[OsString],
    home: Option<&Path>,
) -> Result<Vec<MountRequest>, CliError> {
    let read = ro.iter().map(|ask| mount("--ro", ask, Access::ReadOnly, home));
    read.chain(rw.iter().map(|ask| mount("--rw", ask, Access::ReadWrite, home))).collect()
}

/// Makes names that the host obeys possible in every directory that is granted for writing.
///
/// # Errors
/// No such directory.
pub(crate) fn unguard(mounts: &mut [MountRequest]) -> Result<(), CliError> {
    let mut count = 0;
    for mount in mounts.iter_mut().filter(|mount| mount.access == Access::ReadWrite) {
        mount.access = Access::Unguarded;
        count += 1;
    }
    match count {
        0 => Err(CliError::new("--unguarded: nothing is granted for writing")
            .with_hint("leave it out, or grant a directory with --rw")),
        _ => Ok(()),
    }
}

/// Reads the words of `--egress`.
///
/// # Errors
/// A word that is neither a destination nor a preset.
pub(crate) fn egress(typed: &[String]) -> Result<Vec<EgressRule>, CliError> {
    let rules = typed.iter().map(|word| config::profile::egress::word(word));
    let rules = rules.collect::<Result<Vec<_>, InvalidEgress>>();
    let rules = rules.map_err(|error| CliError::new(format!("--egress: {error}")))?;
    Ok(rules.into_iter().flatten().collect())
}

/// Checks `--memory`.
///
/// # Errors
/// Less than a cell can start with.
pub(crate) fn memory(typed: Option<Size>) -> Result<Option<u64>, CliError> {
    match typed {
        Some(size) if size.0 < MIN_MEMORY => {
            let least = Size(MIN_MEMORY);
            Err(CliError::new(format!("--memory: {size} is less than a cell can start with"))
                .with_hint(format!("{least} is the least; most programs need more")))
        }
        _ => Ok(typed.map(|size| size.0)),
    }
}

/// Reads the variables of `--env`.
///
/// # Errors
/// A word without `=`, or a variable that is refused.
pub(crate) fn env(typed: &[String]) -> Result<Env, CliError> {
    let mut variables = BTreeMap::new();
    for pair in typed {
        let (name, value) = pair.split_once('=').ok_or_else(|| {
            CliError::new(format!("--env: `{pair}` has no `=`")).with_hint("write --env NAME=VALUE")
        })?;
        variables.insert(name.to_owned(), value.to_owned());
    }
    Env::new(variables).map_err(|error| CliError::new(format!("--{error}")))
}

/// Splits `HOST[:CELL]` at the last `:/`: a path in the cell is absolute.
fn mount(
    flag: &str,
    ask: &OsStr,
    access: Access,
    home: Option<&Path>,
) -> Result<MountRequest, CliError> {
    let bytes = ask.as_bytes();
    let (host, cell) = match bytes.windows(2).rposition(|pair| pair == b":/") {
        Some(at) => {
            let (host, rest) = bytes.split_at(at);
            (host, rest.strip_prefix(b":"))
        }
        None => (bytes, None),
    };
    let host = OsStr::from_bytes(host);
    let cell = cell.map(OsStr::from_bytes);
    let bad = |fault: &str| CliError::new(format!("{flag}: `{}` {fault}", ask.display()));
    if host.is_empty() {
        return Err(bad("names no host path").with_hint("write HOST or HOST:CELL"));
    }
    let host = std::path::absolute(host)
        .map_err(|error| bad(&format!("is no path: {}", in_words(&error))))?;
    if host == Path::new("/") || Some(host.as_path()) == home {
        return Err(
            bad("is never granted as a whole").with_hint("grant the one directory that is needed")
        );
    }
    let cell = match (cell, access) {
        (Some(cell), _) => PathBuf::from(cell),
        (
            None,
            Access::ReadWrite
            | Access::Unguarded
            | Access::Repository
            | Access::Cache
            | Access::Layer,
        ) => PathBuf::from(WORKSPACE),
        (None, Access::ReadOnly) => {
            let name = host.file_name().ok_or_else(|| {
                bad("has no name").with_hint("name a path in the cell: HOST:CELL")
            })?;
            Path::new("/mnt").join(name)
        }
    };
    let plain =
        cell.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    // Each cell mounts filesystems at /tmp, /dev and /proc, which would hide a grant below them. /etc has files that are
    // made for the cell. The others are links.
    let covered = ["/tmp", "/dev", "/proc"].iter().any(|mount| cell.starts_with(mount))
        || ["/", "/etc", "/usr"].iter().any(|directory| cell == Path::new(directory))
        || LINKS.iter().any(|link| cell.starts_with(link));
    if !plain || covered {
        return Err(bad("has no usable path in the cell").with_hint(
            "an absolute path without `..`, not /, /etc or /usr itself, not in /tmp, /dev or /proc, \
             and not through a link such as /lib",
        ));
    }
    Ok(MountRequest { host, cell, access })
}

/// Paths that are links into /usr in a cell: a mount there would be at another path than the requested one.
pub(crate) const LINKS: [&str; 6] = ["/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin"];

/// Checks that no two grants have the same path in the cell, and that no grant is hidden: a cell without a grant at
/// `/workspace` mounts an empty directory there.
///
/// # Errors
/// The path that two grants have, or that would be hidden.
pub(crate) fn check_mounts(mounts: &[MountRequest]) -> Result<(), CliError> {
    let mut seen = BTreeSet::new();
    if let Some(second) = mounts.iter().find(|mount| !seen.insert(&mount.cell)) {
        let path = second.cell.display();
        return Err(CliError::new(format!("two host paths are granted at {path}"))
            .with_hint("give one of them another place: HOST:CELL"));
    }
    let workspace = Path::new(WORKSPACE);
    let covered = mounts.iter().find(|mount| mount.cell.starts_with(workspace));
    match covered.filter(|_| mounts.iter().all(|mount| mount.cell != workspace)) {
        Some(covered) => {
            let path = covered.cell.display();
            Err(CliError::new(format!("{path} lies in a /workspace that is not granted"))
                .with_hint("grant a directory there too (--rw DIR), or give this one another place, such as /mnt/NAME"))
        }
        None => Ok(()),
    }
}
