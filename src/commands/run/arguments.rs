//! Arguments of `cofferdam run`: as typed, and as checked.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use clap::Args;

use crate::commands::error::CliError;
use crate::commands::grants::cache::WorkspaceCache;
use crate::commands::grants::toolchains::FoundToolchains;
use crate::commands::terminal::OperatorTerminal;
use model::call::{Argv, Asked, Call, Cwd, Env, InvalidCall, Stdin};
use model::defaults::MIN_MEMORY;
use model::egress::{Egress, EgressRule};
use model::job::{Access, ProfileName};
use model::outcome::in_words;
use model::receipt::Tier;
use model::units::{Size, Time};
use profile::egress::InvalidEgress;
use profile::toolchains::ToolchainChoice;

/// Arguments as typed.
#[derive(Debug, Clone, Default, Args)]
#[command(after_help = "Examples:\n  \
    cofferdam run -- uname -a\n  \
    echo 'hello' | cofferdam run -- tr a-z A-Z\n  \
    cofferdam run --rw . --timeout 5m -- make test\n  \
    cofferdam run --ro ~/models:/models --memory 512M -- ls /models\n\n\
    Exit codes: the program's own; 128+n for signal n; 123 a limit; 124 time;\n\
    125 refused or failed by cofferdam; 126 cannot execute; 127 not found")]
pub struct RunArguments {
    #[command(flatten)]
    pub call: CallArguments,
    /// Let names that the host obeys (.git, .envrc, .vscode, …) be made in what --rw grants
    #[arg(long, requires = "rw")]
    pub unguarded: bool,
    /// Grant a Unix socket of the host, as /tmp/mcp-sockets/NAME.sock, to a profile with `unix_sockets`
    #[arg(long, value_name = "NAME=PATH")]
    pub socket: Vec<String>,
    /// Let the cell reach a host, a network or a preset (cargo, debian, git-https, go, npm, python)
    #[arg(long, value_name = "HOST:PORT|PRESET")]
    pub egress: Vec<String>,
    /// Lower the memory of the cell: 64M, 1G
    #[arg(long, value_name = "SIZE", value_parser = clap::value_parser!(Size), allow_negative_numbers = true)]
    pub memory: Option<Size>,
    /// Lower the number of processes in the cell
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub processes: Option<u32>,
    /// End the call when it has printed this much: 64K, 1M
    #[arg(long, value_name = "SIZE", value_parser = clap::value_parser!(Size), allow_negative_numbers = true)]
    pub output: Option<Size>,
    /// Isolation tier: namespaces+landlock+seccomp, or landlock+seccomp where user namespaces
    /// are refused; it is weaker, and every receipt lists the missing protections
    #[arg(long, value_name = "TIER")]
    pub tier: Option<Tier>,
    /// Grant tool chains of the home, read-only at their own paths: auto, none, or names (rust,nvm,pyenv,…);
    /// without it, auto where a workspace is granted
    #[arg(long, value_name = "auto|none|NAME,…", value_parser = clap::value_parser!(ToolchainChoice))]
    pub toolchains: Option<ToolchainChoice>,
    /// Run the program at a terminal of the cell, connected with yours; this is the default if all
    /// three streams are terminals
    #[arg(long, conflicts_with = "json")]
    pub tty: bool,
    /// Run the program with pipes, even if your streams are terminals
    #[arg(long, conflicts_with = "tty")]
    pub no_tty: bool,
    /// Print one JSON object with outcome, usage, denials, receipt and output at the end
    #[arg(long)]
    pub json: bool,
}

/// Arguments of every command that runs one program: of `run` and `profile learn`.
#[derive(Debug, Clone, Default, Args)]
pub struct CallArguments {
    /// The profile, which says what the cell contains and allows
    #[arg(long, value_name = "NAME", default_value = "bash")]
    pub profile: String,
    /// Grant a host path read-only, at CELL or else at /mnt/NAME
    #[arg(long, value_name = "HOST[:CELL]")]
    pub ro: Vec<OsString>,
    /// Grant a host directory for reading and writing, at CELL or else at /workspace
    #[arg(long, value_name = "HOST[:CELL]")]
    pub rw: Vec<OsString>,
    /// Set a variable in the cell
    #[arg(long, value_name = "K=V")]
    pub env: Vec<String>,
    /// Start in this directory, inside /workspace or /tmp
    #[arg(long, value_name = "PATH")]
    pub cwd: Option<String>,
    /// End the call after this time: 500ms, 30s, 10m; a bare number is seconds
    #[arg(long, value_name = "DUR", value_parser = clap::value_parser!(Time), allow_negative_numbers = true)]
    pub timeout: Option<Time>,
    /// The program and its arguments
    #[arg(value_name = "ARGV", required = true, trailing_var_arg = true)]
    pub argv: Vec<String>,
}

/// Arguments as checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRequest {
    pub profile: ProfileName,
    pub mounts: Vec<MountRequest>,
    pub sockets: Vec<String>,
    pub call: Call,
    pub tier: Option<Tier>,
    pub format: OutputFormat,
    /// Destinations outside of the cell, in addition to the profile's.
    pub egress: Vec<EgressRule>,
}

impl RunRequest {
    /// Gives the program a terminal, with the variables that name the kind of the operator's terminal. Variables that
    /// were typed are kept.
    ///
    /// # Errors
    /// Variables that are too large for a call.
    pub(crate) fn at_terminal(mut self) -> Result<Self, CliError> {
        self.call.stdin = self.call.stdin.at_terminal();
        self.with_env(OperatorTerminal::variables())
    }

    /// Adds the tool chains that are found, unless the tier has no mounts. Variables that were typed are kept. `egress`
    /// is the network of the cell, with its additions.
    ///
    /// # Errors
    /// Variables that are too large for a call.
    pub(crate) fn with_toolchains(
        mut self,
        typed: Option<&ToolchainChoice>,
        configured: &ToolchainChoice,
        egress: &Egress,
    ) -> Result<Self, CliError> {
        if self.tier == Some(Tier::Bare) {
            return Ok(self);
        }
        let found = FoundToolchains::detect(typed, configured, &self.mounts);
        found.print_withheld();
        self.mounts.extend(found.mounts);
        let downloaded = found.downloaded.into_iter();
        let downloaded = downloaded.filter(|(_, variable)| !egress.reaches(variable.registry));
        let downloaded = downloaded.map(|(name, variable)| (name, variable.value));
        self.with_env(found.env.into_iter().chain(downloaded))
    }

    /// Adds the workspace's cache, if there is one. Variables that were typed are kept.
    ///
    /// # Errors
    /// Variables that are too large for a call.
    pub(crate) fn with_cache(mut self, cache: Option<&WorkspaceCache>) -> Result<Self, CliError> {
        let Some(cache) = cache else { return Ok(self) };
        self.mounts.extend(cache.mounts.iter().cloned());
        self.with_env(cache.env.clone().into_iter())
    }

    fn with_env(mut self, env: impl Iterator<Item = (String, String)>) -> Result<Self, CliError> {
        let mut env: BTreeMap<String, String> = env.collect();
        env.extend(self.call.env.iter().map(|(name, value)| (name.to_owned(), value.to_owned())));
        self.call.env = Env::new(env).map_err(|error| invalid(&error))?;
        Ok(self)
    }
}

/// A host path that the operator grants to this one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountRequest {
    /// Absolute path, not resolved yet.
    pub host: PathBuf,
    /// Absolute path, without `.` and `..`.
    pub cell: PathBuf,
    pub access: Access,
}

/// Form of a run's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFormat {
    /// Output as it comes.
    Live,
    /// One JSON object at the end.
    Json,
}

/// Checks the arguments. `home` is the home of the user, which is never granted as a whole.
///
/// # Errors
/// The flag, with a hint if there is one.
pub fn check(typed: &RunArguments, home: Option<&Path>) -> Result<RunRequest, CliError> {
    let CallArguments { profile, ro, rw, env, cwd, timeout, argv } = &typed.call;
    let profile = ProfileName::new(profile).ok_or_else(|| {
        CliError::new(format!("--profile: `{profile}` is not a profile's name"))
            .with_hint("lower-case letters, digits and dashes, such as bash or bc")
    })?;
    let writable = if typed.unguarded { Access::Unguarded } else { Access::ReadWrite };
    let mounts = self::mounts(ro, rw, writable, home)?;
    check_places(&mounts)?;
    let asked = Asked {
        wall: timeout.map(|time| time.0),
        memory: self::memory(typed.memory)?,
        processes: typed.processes,
        output: typed.output.map(|size| size.0),
    };
    let call = Call {
        tool: "run".into(),
        argv: Argv::new(argv.clone()).map_err(|error| invalid(&error))?,
        script: None,
        stdin: Stdin::Empty.open(),
        env: self::env(env)?,
        cwd: self::cwd(cwd.as_deref())?,
        asked,
        profile: None,
        only: None,
        correlation: None,
    };
    Ok(RunRequest {
        profile,
        mounts,
        sockets: typed.socket.clone(),
        call,
        tier: typed.tier,
        format: if typed.json { OutputFormat::Json } else { OutputFormat::Live },
        egress: self::egress(&typed.egress)?,
    })
}

/// Checks the requests of `--ro` and `--rw`, whose access is `writable`.
///
/// # Errors
/// The flag, with a hint if there is one.
pub(crate) fn mounts(
    ro: &[OsString],
    rw: &[OsString],
    writable: Access,
    home: Option<&Path>,
) -> Result<Vec<MountRequest>, CliError> {
    let read = ro.iter().map(|ask| mount("--ro", ask, Access::ReadOnly, home));
    read.chain(rw.iter().map(|ask| mount("--rw", ask, writable, home))).collect()
}

/// Reads the words of `--egress`.
///
/// # Errors
/// A word that is neither a destination nor a preset.
pub(crate) fn egress(typed: &[String]) -> Result<Vec<EgressRule>, CliError> {
    let rules = typed.iter().map(|word| profile::egress::word(word));
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

fn invalid(error: &InvalidCall) -> CliError {
    CliError::new(error.to_string())
}

fn cwd(typed: Option<&str>) -> Result<Option<Cwd>, CliError> {
    typed.map(|path| Cwd::new("--cwd", path)).transpose().map_err(|error| invalid(&error))
}

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
        (None, Access::ReadWrite | Access::Unguarded | Access::Cache) => {
            PathBuf::from("/workspace")
        }
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
pub(crate) fn check_places(mounts: &[MountRequest]) -> Result<(), CliError> {
    let mut seen = std::collections::BTreeSet::new();
    if let Some(second) = mounts.iter().find(|mount| !seen.insert(&mount.cell)) {
        let path = second.cell.display();
        return Err(CliError::new(format!("two host paths are granted at {path}"))
            .with_hint("give one of them another place: HOST:CELL"));
    }
    let workspace = Path::new("/workspace");
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

#[cfg(test)]
#[path = "arguments_tests.rs"]
mod tests;
