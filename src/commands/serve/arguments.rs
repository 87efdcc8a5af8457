//! Arguments of `serve`, and the grants that they ask for.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;

use super::exec_options::ExecFlags;
use super::listener::HttpFlags;
use super::served_project;
use crate::commands::error::CliError;
use crate::commands::format::plain;
use crate::commands::grants::request::{
    self, GrantFlags, GrantRequest, GrantsFor, MountRequest, PathFlags, SocketFlag, WORKSPACE,
};
use config::HostContext;
use config::mcp_server::McpSettings;
use config::policy::group::ToolGroup;
use model::egress::EgressRule;
use model::job::Access;
use model::outcome::in_words;
use model::profile::ProfileAdditions;
use model::units::Size;

/// Arguments as typed.
#[derive(Debug, Clone, Default, Args)]
#[command(after_help = "Examples:\n  \
    cofferdam serve\n  \
    cofferdam serve --workspace ~/project\n  \
    cofferdam serve --workspace ~/project:ro\n  \
    cofferdam serve --workspace ~/project:cow\n  \
    cofferdam serve --workspace ~/project --ro ~/models --env RUST_LOG=debug --memory 4G\n  \
    cofferdam serve --tools calc,exec,info\n  \
    claude mcp add --scope user cofferdam -- cofferdam serve")]
pub struct ServeArguments {
    /// Grant a host directory as /workspace of every call; with :ro, for reading only; with :cow, changes are kept apart
    /// until `cofferdam review` applies them
    #[arg(long, value_name = "PATH[:ro|:cow]")]
    pub workspace: Option<OsString>,
    /// Serve the script tools of a project, which calls have as /workspace, read-only without :rw; built-in tools are
    /// listed too if --tools names their groups
    #[arg(long, value_name = "DIR[:rw]", conflicts_with_all = ["workspace"])]
    pub project: Option<String>,
    /// Run the project's own hooks (register.sh, env.sh, policy.sh), in cells without a network
    #[arg(long, requires = "project")]
    pub project_hooks: bool,
    #[command(flatten)]
    pub paths: PathFlags,
    #[command(flatten)]
    pub grants: GrantFlags,
    /// Switch on tools that are off until they are named, in addition to those of `[tools] on`: cli_nmap,cli_ping,…
    #[arg(long, value_name = "TOOL,…", value_delimiter = ',')]
    pub on: Vec<String>,
    /// Memory of each cell that has a workspace, more or less than its profile has: 512M, 4G
    #[arg(long, value_name = "SIZE", value_parser = clap::value_parser!(Size))]
    pub memory: Option<Size>,
    /// Grant a Unix socket of another server, as /tmp/mcp-sockets/NAME.sock, to the cells of bash and bash_exec, which get
    /// the profile `nested`
    #[arg(long, value_name = "NAME=PATH")]
    pub nested: Vec<String>,
    /// Read commandTimeout, enabled and network from this config.json, instead of that of the configuration directory
    #[arg(long, value_name = "FILE")]
    pub config_json: Option<PathBuf>,
    /// Show these groups of tools: calc, math, shell, exec, info, history, files; without it `[tools] groups`, else calc,shell
    #[arg(long, value_name = "GROUP,…", value_delimiter = ',')]
    pub tools: Option<Vec<ToolGroup>>,
    #[command(flatten)]
    pub exec: ExecFlags,
    #[command(flatten)]
    pub listener: HttpFlags,
}

/// Reads the settings of the reference implementation of command-line tools. An address of theirs counts where none
/// is typed, under the same conditions.
///
/// # Errors
/// The setting, or the file, that cannot be used.
pub(super) fn with_mcp_settings(
    typed: &ServeArguments,
) -> Result<(ServeArguments, McpSettings), CliError> {
    let mcp = McpSettings::read(|name| std::env::var_os(name), &HostContext::of_this_process())
        .map_err(|error| CliError::new(error.to_string()))?;
    for change in &mcp.notes {
        tracing::warn!(what = plain(change), "config.clamped");
    }
    let http = typed.listener.http.clone().or_else(|| mcp.http());
    let listener = HttpFlags { http, ..typed.listener.clone() };
    let project = typed.project.clone().or_else(|| match typed.workspace {
        // A flag has precedence over a variable.
        Some(_) => None,
        None => std::env::var(served_project::ROOT).ok().filter(|root| !root.is_empty()),
    });
    Ok((ServeArguments { listener, project, ..typed.clone() }, mcp))
}

/// Checks what the operator grants to all calls. `configured` are the destinations of the configuration.
///
/// # Errors
/// The flag, with a hint.
pub(super) fn request(
    typed: &ServeArguments,
    home: Option<&Path>,
    configured: Vec<EgressRule>,
) -> Result<GrantRequest, CliError> {
    let env = request::env(&typed.paths.env)?;
    let mut egress = configured;
    egress.extend(request::egress(&typed.grants.egress)?);
    let additions = ProfileAdditions {
        env: env.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        memory: request::memory(typed.memory)?,
        egress,
        ..ProfileAdditions::default()
    };
    Ok(GrantRequest {
        cells: GrantsFor::Server,
        mounts: mounts(typed, home)?,
        additions,
        sockets: [
            SocketFlag::all("--socket", &typed.grants.socket),
            SocketFlag::all("--nested", &typed.nested),
        ]
        .concat(),
        toolchains: typed.grants.toolchains.clone(),
        has_scripts: typed.project.is_some(),
        layer: None,
        is_frozen: false,
    })
}

/// Checks the paths that the operator grants; the workspace comes first, if there is one.
///
/// # Errors
/// The flag, with a hint.
fn mounts(typed: &ServeArguments, home: Option<&Path>) -> Result<Vec<MountRequest>, CliError> {
    let project = typed.project.as_deref();
    let as_workspace = project.map(served_project::as_workspace);
    let ask = as_workspace.as_deref().map(OsStr::new).or(typed.workspace.as_deref());
    let workspace = ask.map(|ask| check_workspace(ask, home)).transpose()?;
    let mut mounts = Vec::from_iter(workspace);
    mounts.extend(project.map(served_project::kept).transpose()?.unwrap_or_default());
    let mut readable = typed.paths.ro.clone();
    readable.extend(project.map(served_project::granted_roots).unwrap_or_default());
    mounts.extend(request::mounts(&readable, &typed.paths.rw, home)?);
    request::check_mounts(&mounts)?;
    if typed.grants.unguarded {
        request::unguard(&mut mounts)?;
    }
    match mounts.iter().position(|mount| mount.cell == Path::new(WORKSPACE)) {
        Some(at) => mounts.swap(0, at),
        // Cells have a private workspace, and these paths besides.
        None if mounts.iter().all(|mount| mount.access == Access::ReadOnly) => {}
        None => {
            return Err(CliError::new("--rw: no directory is granted as the workspace")
                .with_hint("name one too: --workspace DIR, DIR:ro, or --rw DIR"));
        }
    }
    Ok(mounts)
}

/// Checks `PATH[:ro|:cow]`. `/` and the user's own directory as a whole are never granted.
pub(in crate::commands) fn check_workspace(
    ask: &OsStr,
    home: Option<&Path>,
) -> Result<MountRequest, CliError> {
    let (path, access) =
        match (ask.as_bytes().strip_suffix(b":ro"), ask.as_bytes().strip_suffix(b":cow")) {
            (Some(path), _) => (OsStr::from_bytes(path), Access::ReadOnly),
            (None, Some(path)) => (OsStr::from_bytes(path), Access::Layer),
            (None, None) => (ask, Access::ReadWrite),
        };
    let bad = |fault: &str| CliError::new(format!("--workspace: `{}` {fault}", ask.display()));
    if path.is_empty() {
        return Err(bad("names no directory").with_hint("write PATH, PATH:ro or PATH:cow"));
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
        assert_eq!(checked("/src/p:cow"), granted("/src/p", Access::Layer));
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
