//! Arguments of `run`, as typed and as checked.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use clap::Args;

use crate::commands::error::CliError;
use crate::commands::grants::request::{
    self, GrantFlags, GrantRequest, GrantsFor, MountRequest, PathFlags, SocketFlag, WORKSPACE,
};
use model::call::{Argv, Asked, Call, Cwd, Env, InvalidCall, Stdin, in_workspace};
use model::job::ProfileName;
use model::profile::ProfileAdditions;
use model::units::{Size, Time};

/// Arguments as typed.
#[derive(Debug, Clone, Default, Args)]
#[command(after_help = "Examples:\n  \
    cofferdam run -- uname -a\n  \
    echo 'hello' | cofferdam run -- tr a-z A-Z\n  \
    cofferdam run --rw . --timeout 5m -- make test\n  \
    cofferdam run --cow . -- make format\n  \
    cofferdam run --ro ~/models:/models --memory 512M -- ls /models\n\n\
    Exit codes: the program's own; 128+n for signal n; 123 a limit; 124 time;\n\
    125 refused or failed by cofferdam; 126 cannot execute; 127 not found")]
pub struct RunArguments {
    #[command(flatten)]
    pub call: CallArguments,
    #[command(flatten)]
    pub grants: GrantFlags,
    /// Grant a host directory whose changes are kept apart until `cofferdam review` applies them, at CELL or else at /workspace
    #[arg(long, value_name = "HOST[:CELL]")]
    pub cow: Vec<OsString>,
    /// Continue with this layer of the directory, and with no other
    #[arg(long, value_name = "ID", requires = "cow")]
    pub layer: Option<String>,
    /// Only read the layer, without a network: for programs that run after a person has looked at it
    #[arg(long, hide = true, requires = "layer")]
    pub frozen: bool,
    /// Lower the memory of the cell: 64M, 1G
    #[arg(long, value_name = "SIZE", value_parser = clap::value_parser!(Size), allow_negative_numbers = true)]
    pub memory: Option<Size>,
    /// Lower the number of processes in the cell
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub processes: Option<u32>,
    /// End the call when it has printed this much: 64K, 1M
    #[arg(long, value_name = "SIZE", value_parser = clap::value_parser!(Size), allow_negative_numbers = true)]
    pub output: Option<Size>,
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
    #[command(flatten)]
    pub paths: PathFlags,
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

/// A run as checked: its call, and the grants for its cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRequest {
    pub call: Call,
    pub profile: ProfileName,
    pub grants: GrantRequest,
}

impl RunRequest {
    /// Gives the program a terminal, with these variables that name its kind. Variables that were typed are kept.
    ///
    /// # Errors
    /// Variables that are too large for a call.
    pub(super) fn at_terminal(
        mut self,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, CliError> {
        let mut env: BTreeMap<String, String> = variables.collect();
        env.extend(self.call.env.iter().map(|(name, value)| (name.to_owned(), value.to_owned())));
        self.call.env = Env::new(env).map_err(|error| invalid(&error))?;
        self.call.stdin = self.call.stdin.at_terminal();
        Ok(self)
    }
}

/// Checks the arguments. `home` is the home of the user, which is never granted as a whole.
///
/// # Errors
/// The flag, with a hint if there is one.
pub fn check(typed: &RunArguments, home: Option<&Path>) -> Result<RunRequest, CliError> {
    let CallArguments { profile, paths, cwd, timeout, argv } = &typed.call;
    let profile = ProfileName::new(profile).ok_or_else(|| {
        CliError::new(format!("--profile: `{profile}` is not a profile's name"))
            .with_hint("lower-case letters, digits and dashes, such as bash or bc")
    })?;
    let mut mounts = request::mounts(&paths.ro, &paths.rw, home)?;
    mounts.extend(request::layers(&typed.cow, home)?);
    request::check_mounts(&mounts)?;
    if typed.grants.unguarded {
        request::unguard(&mut mounts)?;
    }
    let call = Call {
        tool: "run".into(),
        argv: Argv::new(argv.clone()).map_err(|error| invalid(&error))?,
        script: None,
        stdin: Stdin::Empty.open(),
        env: request::env(&paths.env)?,
        cwd: self::cwd(cwd.as_deref(), &mounts)?,
        asked: Asked {
            wall: timeout.map(|time| time.0),
            memory: request::memory(typed.memory)?,
            processes: typed.processes,
            output: typed.output.map(|size| size.0),
        },
        profile: None,
        only: None,
        correlation: None,
    };
    let grants = GrantRequest {
        cells: GrantsFor::Call(profile.clone()),
        mounts,
        additions: ProfileAdditions {
            egress: request::egress(&typed.grants.egress)?,
            ..ProfileAdditions::default()
        },
        sockets: SocketFlag::all("--socket", &typed.grants.socket),
        toolchains: typed.grants.toolchains.clone(),
        has_scripts: false,
        layer: typed.layer.clone(),
        is_frozen: typed.frozen,
    };
    Ok(RunRequest { call, profile, grants })
}

fn invalid(error: &InvalidCall) -> CliError {
    CliError::new(error.to_string())
}

/// Takes a directory in the cell, or in the workspace by its path on the host.
fn cwd(typed: Option<&str>, mounts: &[MountRequest]) -> Result<Option<Cwd>, CliError> {
    let Some(typed) = typed else { return Ok(None) };
    let mount = mounts.iter().find(|mount| mount.cell == Path::new(WORKSPACE));
    let host = mount.and_then(|mount| mount.host.canonicalize().ok());
    let path = host.and_then(|host| in_workspace(typed, &host));
    let cwd = Cwd::new("--cwd", path.as_deref().unwrap_or(typed));
    cwd.map(Some).map_err(|error| invalid(&error))
}

#[cfg(test)]
#[path = "arguments_tests.rs"]
mod tests;
