//! `project learn`: calls a tool of a project once and prints its refusals, as `profile learn` does for a command.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Map, Value};
use tokio::io::AsyncWrite;

use super::run_tool::ToolArguments;
use crate::commands::error::CliError;
use crate::commands::format::plain;
use crate::commands::grants::request::PathFlags;
use crate::commands::run::arguments::{CallArguments, RunArguments, check};
use crate::commands::serve::served_project;
use crate::commands::{learn, settings};
use model::accounts;
use model::call::RUNNER;
use model::job::Access;
use model::outcome::{Outcome, in_words};
use model::units::Time;
use projects::{ScriptEnd, ScriptLaunch, ScriptOutput, ScriptStream, ScriptTool};

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Example:\n  cofferdam project learn hello --args '{\"name\": \"Ada\"}' > learned.toml\n\n\
    The tool is called once, as under `project run-tool`, without downloads and without a client. The output\n\
    is that of `cofferdam profile learn`: a profile that extends the profile of the tool, in which each `why`\n\
    is blank. It grants nothing until you have written the reasons and added it to the configuration.\n\n\
    Exit codes: 0 when the tool could be called, however it ended; else as `cofferdam run`"
)]
pub(super) struct LearnToolArguments {
    #[command(flatten)]
    tool: ToolArguments,
    /// Grant a host path read-only, at CELL or else at /mnt/NAME
    #[arg(long, value_name = "HOST[:CELL]")]
    ro: Vec<OsString>,
    /// The profile to extend, in place of the tool's profile
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
}

/// Calls the tool, and prints its refusals.
pub(super) fn main(typed: &LearnToolArguments, config: Option<&Path>) -> Result<u8, CliError> {
    let arguments = super::run_tool::arguments(&typed.tool.args)?;
    let settings = settings::load(config)?;
    let unreadable = || CliError::new("learn: the directory's path is not UTF-8");
    let directory = typed.tool.dir.to_str().ok_or_else(unreadable)?;
    let keys = &settings.loaded.config.project;
    let access = if typed.tool.rw { Access::ReadWrite } else { Access::ReadOnly };
    let project = super::with_hooks(directory, access, false, config, keys)?.project;
    let unknown =
        || CliError::new(format!("learn: there is no tool `{}`", plain(&typed.tool.name)));
    let tool = project.tool(&typed.tool.name).ok_or_else(unknown)?.clone();
    let bad = |fault: String| CliError::new(format!("learn: {fault}"));
    let mark = super::hooks::mark().map_err(|error| bad(in_words(&error)))?;
    let launch = ScriptLaunch::new(&project, &tool, &arguments, &Map::new(), mark);
    let mut launch = launch.map_err(|error| bad(error.to_string()))?;
    // Leave downloads out: they are made by a server, and none is running.
    launch.env.remove("COFFERDAM_DOWNLOADS");
    let is_writable = typed.tool.rw && !launch.is_read_only;
    let request = check(&run(typed, directory, is_writable, &launch), accounts::home().as_deref());
    let mut request = request?;
    if is_writable {
        request.grants.mounts.extend(served_project::kept(&format!("{directory}:rw"))?);
    }
    let stream = launch.stream();
    learn::of_request(request, settings, Some(LearnedTool { tool, launch, stream }))
}

/// Makes the arguments of `cofferdam run` for a call of the tool.
fn run(
    typed: &LearnToolArguments,
    directory: &str,
    is_writable: bool,
    launch: &ScriptLaunch,
) -> RunArguments {
    let profile = typed.profile.clone().or_else(|| launch.profile.clone());
    let granted = vec![OsString::from(format!("{directory}:/workspace"))];
    let (rw, project) = if is_writable { (granted, Vec::new()) } else { (Vec::new(), granted) };
    let call = CallArguments {
        profile: profile.unwrap_or_else(|| "bash".to_owned()),
        paths: PathFlags {
            ro: [project, typed.ro.clone()].concat(),
            rw,
            env: launch.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        },
        cwd: None,
        timeout: Some(Time(Duration::from_secs(launch.seconds))),
        argv: std::iter::once(RUNNER.to_owned()).chain(launch.words.iter().cloned()).collect(),
    };
    RunArguments { call, ..RunArguments::default() }
}

/// A tool that is called to learn its refusals, and the reader of its output.
#[derive(Debug)]
pub(in crate::commands) struct LearnedTool {
    tool: ScriptTool,
    launch: ScriptLaunch,
    stream: ScriptStream,
}

impl LearnedTool {
    /// Returns the name of the tool, for a terminal.
    pub(in crate::commands) fn name(&self) -> String {
        plain(&self.tool.name)
    }

    /// Returns the standard input of the script.
    pub(in crate::commands) fn input(&self) -> Vec<u8> {
        self.launch.stdin.clone()
    }

    /// Describes how the call ended, with the text of its result.
    pub(in crate::commands) fn end_text(&mut self, outcome: &Outcome, stderr: &str) -> String {
        let end = match outcome {
            Outcome::Exited { code: 0 } => ScriptEnd::Exited,
            Outcome::Exited { code } => ScriptEnd::Stopped(format!("no whole output, code {code}")),
            Outcome::Timeout => ScriptEnd::TimedOut,
            Outcome::Cancelled => ScriptEnd::Cancelled,
            Outcome::Signaled { signal } => ScriptEnd::Stopped(format!("signal {signal}")),
            Outcome::Limit(kind) => ScriptEnd::Stopped(format!("{} limit", kind.name())),
            Outcome::Failed(failure) => ScriptEnd::Stopped(failure.to_string()),
        };
        let output = ScriptOutput {
            end,
            report: self.stream.take_report(),
            stderr: stderr.as_bytes().to_vec(),
            stderr_bytes: 0,
        };
        match self.launch.result(&self.tool, &output) {
            Ok(result) if result.get("isError") == Some(&Value::Bool(true)) => {
                format!("the tool failed: {}", text(&result))
            }
            Ok(result) => format!("the tool answered: {}", text(&result)),
            Err(error) => format!("the tool failed: {}", plain(&error.message)),
        }
    }
}

/// Returns the text of a result.
fn text(result: &Value) -> String {
    let parts = result.get("content").and_then(Value::as_array).into_iter().flatten();
    let texts = parts.filter_map(|part| part.get("text")?.as_str());
    plain(texts.collect::<Vec<_>>().join("\n").trim_end())
}

impl AsyncWrite for LearnedTool {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // Drop progress, messages and questions: there is no client.
        drop(self.stream.push(bytes, Instant::now()));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
