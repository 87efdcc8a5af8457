//! `cofferdam serve`: MCP on standard input and output.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::error::CliError;
use super::live::Live;
use super::wiring::Launched;
use super::{start, wiring};
use crate::call::{self, Cwd};
use crate::defaults::{EXEC_MAX_TIMEOUT, EXEC_TIMEOUT, HISTORY, HISTORY_MAX};
use crate::group::Group;
use crate::link::Link;
use crate::mcp::exec::Options;
use crate::mcp::serve;
use crate::outcome::{Failure, in_words};
use crate::supervisor::Access;

/// As typed.
#[derive(Debug, Clone, Default, Args)]
#[command(after_help = "Examples:\n  \
    cofferdam serve\n  \
    cofferdam serve --workspace ~/project\n  \
    cofferdam serve --workspace ~/project:ro\n  \
    cofferdam serve --tools calc,exec,info\n  \
    claude mcp add --scope user cofferdam -- cofferdam serve")]
pub struct ServeArguments {
    /// Grant a host directory as /workspace of every call; with :ro, for reading only
    #[arg(long, value_name = "PATH[:ro]")]
    pub workspace: Option<String>,
    /// Let names that the host obeys (.git, .envrc, .vscode, …) be made in the workspace
    #[arg(long, requires = "workspace")]
    pub unguarded: bool,
    /// Grant a Unix socket of the host, as /tmp/mcp-sockets/NAME.sock, to profiles with `unix_sockets`
    #[arg(long, value_name = "NAME=PATH")]
    pub socket: Vec<String>,
    /// Show these groups of tools: calc, math, shell, exec, info, history; without it `[tools] groups`, else calc,shell
    #[arg(long, value_name = "GROUP,…", value_delimiter = ',')]
    pub tools: Option<Vec<Group>>,
    /// Seconds of a bash_exec that asks for none [default: 30, or $BASH_MCP_DEFAULT_TIMEOUT]
    #[arg(long, value_name = "SECONDS")]
    pub default_timeout: Option<String>,
    /// Seconds a bash_exec may ask for at most [default: 300, or $BASH_MCP_MAX_TIMEOUT]
    #[arg(long, value_name = "SECONDS")]
    pub max_timeout: Option<String>,
    /// Where bash_exec starts, in the cell [default: /workspace, or $BASH_MCP_WORKING_DIR]
    #[arg(long, value_name = "DIR")]
    pub working_dir: Option<String>,
    /// Commands that the history keeps [default: 100, or $BASH_MCP_MAX_HISTORY]
    #[arg(long, value_name = "N")]
    pub history_size: Option<String>,
}

/// A directory of the host that every call has at `/workspace`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceAsk {
    /// Absolute, not resolved yet.
    pub host: PathBuf,
    pub access: Access,
}

/// The whole command: 0 when it was ended as it should be (rulings R10).
pub fn main(typed: &ServeArguments, config: Option<&Path>) -> Result<u8, CliError> {
    let home = std::env::home_dir();
    let ask = typed.workspace.as_deref();
    let mut workspace = ask.map(|ask| check_workspace(ask, home.as_deref())).transpose()?;
    if let Some(ask) = &mut workspace
        && typed.unguarded
    {
        ask.access = unguarded(ask.access)?;
    }
    let exec = exec_options(typed, |name| std::env::var(name).ok())?;
    let groups = typed.tools.as_ref().map(|groups| groups.iter().copied().collect::<BTreeSet<_>>());
    let settings = wiring::load(config)?.serving().told(groups, exec);
    let (settings, workspace) = wiring::with_workspace(settings, workspace.as_ref())?;
    let settings = settings.with_sockets(&typed.socket)?;
    let serving = settings.for_the_front_end();
    let Launched { link, audit } = wiring::launch_recorded(settings)?;
    start::conducted(link, async |socket| {
        let link = Link::attach(socket).map_err(|error| {
            CliError::new(format!("no link to the supervisor: {}", in_words(&error)))
        })?;
        let backend = Live::new(&serving, workspace, link.clone(), audit);
        let supervisor = link.clone();
        let gone = async move {
            // One that never came up is told by each call, with the remedy.
            match link.ready().await {
                Ok(_) => link.closed().await,
                Err(_) => std::future::pending().await,
            }
        };
        serve::stdio(backend, gone)
            .await
            .map_err(|error| CliError::new(format!("serve: {}", error)))?;
        let counts = supervisor.pool();
        tracing::info!(?counts, "cells");
        // Without a supervisor no call could be served: whoever started the server may start it anew.
        match supervisor.greeted().is_some() && supervisor.is_closed() {
            true => Err(Failure::Supervisor.into()),
            false => Ok(0),
        }
    })
}

/// What `--unguarded` makes of an access.
fn unguarded(access: Access) -> Result<Access, CliError> {
    match access {
        Access::ReadWrite | Access::Unguarded => Ok(Access::Unguarded),
        Access::ReadOnly => Err(CliError::new("--unguarded: the workspace is read-only")
            .with_hint("leave out `:ro`, or --unguarded")),
    }
}

/// What is said of `bash_exec`: by a flag, else by the environment, else by default.
fn exec_options(
    typed: &ServeArguments,
    variable: impl Fn(&'static str) -> Option<String>,
) -> Result<Options, CliError> {
    let said = |flag: &'static str, value: &Option<String>, name: &'static str| {
        let value = value.clone().map(|value| (flag, value));
        value.or_else(|| variable(name).map(|value| (name, value)))
    };
    let time = |said: Option<(&'static str, String)>, default: Duration| match said {
        None => Ok(default),
        Some((by, text)) => {
            let number = text.parse().unwrap_or(f64::NAN);
            call::seconds(by, number).map_err(|bad| CliError::new(bad.to_string()))
        }
    };
    let most =
        time(said("--max-timeout", &typed.max_timeout, "BASH_MCP_MAX_TIMEOUT"), EXEC_MAX_TIMEOUT)?;
    let asked = said("--default-timeout", &typed.default_timeout, "BASH_MCP_DEFAULT_TIMEOUT");
    let directory = said("--working-dir", &typed.working_dir, "BASH_MCP_WORKING_DIR");
    let history = match said("--history-size", &typed.history_size, "BASH_MCP_MAX_HISTORY") {
        None => HISTORY,
        Some((by, text)) => {
            text.parse().ok().filter(|size| *size <= HISTORY_MAX).ok_or_else(|| {
                CliError::new(format!("{by}: `{text}` is no number from 0 to {HISTORY_MAX}"))
            })?
        }
    };
    let directory = directory.map(|(by, path)| {
        let bad = |bad: call::InvalidCall| {
            CliError::new(bad.to_string()).with_hint("it is a directory of the cell")
        };
        Cwd::new(by, &path).map_err(bad)
    });
    Ok(Options {
        default_timeout: time(asked, EXEC_TIMEOUT)?.min(most),
        max_timeout: most,
        working_dir: directory.transpose()?.unwrap_or_else(Cwd::workspace),
        history,
    })
}

/// Checks `PATH[:ro]`. Never granted: `/`, and the user's own directory as a whole (rulings R6).
fn check_workspace(ask: &str, home: Option<&Path>) -> Result<WorkspaceAsk, CliError> {
    let (path, access) = match ask.strip_suffix(":ro") {
        Some(path) => (path, Access::ReadOnly),
        None => (ask, Access::ReadWrite),
    };
    let bad = |why: &str| CliError::new(format!("--workspace: `{ask}` {why}"));
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
    Ok(WorkspaceAsk { host, access })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(ask: &str) -> Result<WorkspaceAsk, String> {
        check_workspace(ask, Some(Path::new("/home/me"))).map_err(|error| error.text())
    }

    #[test]
    fn flags_are_before_the_environment_and_that_before_the_defaults() {
        let environment = |name| match name {
            "BASH_MCP_DEFAULT_TIMEOUT" => Some("7".to_owned()),
            "BASH_MCP_MAX_TIMEOUT" => Some("20".to_owned()),
            "BASH_MCP_WORKING_DIR" => Some("/tmp".to_owned()),
            _ => None,
        };
        let told = |typed: &ServeArguments, variable: &dyn Fn(&'static str) -> Option<String>| {
            exec_options(typed, variable)
                .map(|options| {
                    let Options { default_timeout, max_timeout, working_dir, .. } = options;
                    (
                        default_timeout.as_secs(),
                        max_timeout.as_secs(),
                        working_dir.as_str().to_owned(),
                    )
                })
                .map_err(|error| error.text())
        };
        let nothing = ServeArguments::default();
        assert_eq!(told(&nothing, &|_| None), Ok((30, 300, "/workspace".to_owned())));
        assert_eq!(told(&nothing, &environment), Ok((7, 20, "/tmp".to_owned())));
        let typed = ServeArguments {
            default_timeout: Some("50".to_owned()),
            working_dir: Some("src".to_owned()),
            ..ServeArguments::default()
        };
        // A default beyond the most is the most.
        assert_eq!(told(&typed, &environment), Ok((20, 20, "/workspace/src".to_owned())));
        let typed = ServeArguments { max_timeout: Some("x".to_owned()), ..nothing };
        assert_eq!(
            told(&typed, &environment),
            Err("cofferdam: --max-timeout must be a number of seconds above 0, not NaN".to_owned())
        );
    }

    #[test]
    fn a_workspace_is_a_path_and_may_be_read_only() {
        let granted = |host: &str, access| Ok(WorkspaceAsk { host: PathBuf::from(host), access });
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
