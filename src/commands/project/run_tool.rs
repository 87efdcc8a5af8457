//! `project run-tool`: starts a server for a project and calls one tool, as a client does.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use clap::Args;
use serde_json::{Map, Value, json};

use crate::commands::error::{CliError, print_out};
use crate::commands::format::{plain, pretty};
use crate::commands::settings;
use model::outcome::in_words;
use projects::ScriptLaunch;

/// Version of MCP that is spoken.
const VERSION: &str = "2025-06-18";

/// Names a tool of a project, and how it is called.
#[derive(Debug, Clone, Args)]
pub(super) struct ToolArguments {
    #[arg(value_name = "NAME")]
    pub(super) name: String,
    /// Arguments as a JSON object
    #[arg(long, value_name = "JSON", default_value = "{}")]
    pub(super) args: String,
    /// The project's directory
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(super) dir: PathBuf,
    /// Grant the project for writing
    #[arg(long)]
    pub(super) rw: bool,
}

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Example:\n  cofferdam project run-tool hello --args '{\"name\": \"Ada\"}'\n\n\
    Exit codes: 0 the tool succeeded; 1 it failed; 125 it could not be called"
)]
pub(super) struct RunToolArguments {
    #[command(flatten)]
    tool: ToolArguments,
    /// Run the project's hooks, its policy among them
    #[arg(long)]
    project_hooks: bool,
    /// Grant a host path read-only, at CELL or else at /mnt/NAME
    #[arg(long, value_name = "HOST[:CELL]")]
    ro: Vec<OsString>,
    /// Time limit in seconds of a tool whose metadata has no limit
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Do not call the tool; check its name and the arguments that it requires
    #[arg(long)]
    dry_run: bool,
    /// Do not call the tool; print the variables that the script would have
    #[arg(long)]
    print_env: bool,
    /// Print the whole result as JSON
    #[arg(long)]
    json: bool,
}

/// Calls the tool; 1 if it failed.
pub(super) fn main(typed: &RunToolArguments, config: Option<&Path>) -> Result<u8, CliError> {
    let arguments = arguments(&typed.tool.args)?;
    if typed.dry_run || typed.print_env {
        return shown(typed, &arguments, config);
    }
    let mut server = Server::start(typed, config)?;
    server.request(
        "initialize",
        &json!({
            "protocolVersion": VERSION,
            "capabilities": {},
            "clientInfo": { "name": "cofferdam-run-tool", "version": env!("CARGO_PKG_VERSION") },
        }),
    )?;
    server.notify("notifications/initialized")?;
    let call = json!({ "name": typed.tool.name, "arguments": arguments });
    let result = server.request("tools/call", &call)?;
    server.end()?;
    let is_error = result.get("isError") == Some(&Value::Bool(true));
    if typed.json {
        print_out(&pretty(&result)?)?;
        return Ok(u8::from(is_error));
    }
    let parts = result.get("content").and_then(Value::as_array).into_iter().flatten();
    let text = parts.map(|part| match part.get("text").and_then(Value::as_str) {
        Some(text) => format!("{}\n", plain(text.trim_end_matches('\n'))),
        None => format!("{part}\n"),
    });
    print_out(&text.collect::<String>())?;
    Ok(u8::from(is_error))
}

/// Reads the arguments of a tool.
///
/// # Errors
/// A text that is not a JSON object.
pub(super) fn arguments(typed: &str) -> Result<Map<String, Value>, CliError> {
    let arguments: Value = serde_json::from_str(typed)
        .map_err(|error| CliError::new(format!("--args: not valid JSON: {error}")))?;
    if let Value::Object(arguments) = arguments {
        return Ok(arguments);
    }
    Err(CliError::new("--args: is not a JSON object")
        .with_hint("write an object, such as '{\"name\": \"Ada\"}'"))
}

/// Describes a call without making it.
fn shown(
    typed: &RunToolArguments,
    arguments: &Map<String, Value>,
    config: Option<&Path>,
) -> Result<u8, CliError> {
    let mut project = super::read(&typed.tool.dir)?;
    project.settings = super::settings(&settings::load(config)?.loaded.config.project)?;
    let unknown =
        || CliError::new(format!("run-tool: there is no tool `{}`", plain(&typed.tool.name)));
    let tool =
        project.tools.iter().find(|tool| tool.name == typed.tool.name).ok_or_else(unknown)?;
    let required = tool.input_schema.get("required").and_then(Value::as_array);
    let mut required = required.into_iter().flatten().filter_map(Value::as_str);
    if let Some(missing) = required.find(|name| arguments.get(*name).is_none()) {
        return Err(CliError::new(format!("run-tool: argument `{}` is required", plain(missing))));
    }
    let launch = ScriptLaunch::new(&project, tool, arguments, &Map::new(), "none".to_owned())
        .map_err(|error| CliError::new(format!("run-tool: {error}")))?;
    let variables = launch.env.iter().map(|(name, value)| format!("{name}={}\n", plain(value)));
    print_out(&match typed.print_env {
        true => variables.collect::<String>(),
        false => {
            let tools = &project.layout.tools;
            format!("would run {tools}/{} for at most {} s\n", tool.path, launch.seconds)
        }
    })?;
    Ok(0)
}

/// A server of the project.
struct Server {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// Id of the last request.
    last_id: u32,
}

impl Server {
    fn start(typed: &RunToolArguments, config: Option<&Path>) -> Result<Self, CliError> {
        let mut project = typed.tool.dir.clone().into_os_string();
        if typed.tool.rw {
            project.push(":rw");
        }
        let program = std::env::current_exe().map_err(|error| broken(&error))?;
        let mut command = Command::new(program);
        command.arg("serve").arg("--project").arg(project);
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        if typed.project_hooks {
            command.arg("--project-hooks");
        }
        command.args(typed.ro.iter().flat_map(|path| [OsStr::new("--ro"), path]));
        if let Some(seconds) = typed.timeout {
            command.env("MCPBASH_DEFAULT_TOOL_TIMEOUT", seconds.to_string());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| broken(&error))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(from)) => {
                Ok(Self { child, to, from: BufReader::new(from), last_id: 0 })
            }
            _ => Err(CliError::new("run-tool: the server has no streams")),
        }
    }

    fn send(&mut self, message: &Value) -> Result<(), CliError> {
        writeln!(self.to, "{message}").map_err(|error| broken(&error))
    }

    fn notify(&mut self, method: &str) -> Result<(), CliError> {
        self.send(&json!({ "jsonrpc": "2.0", "method": method }))
    }

    /// Sends a request and waits for the result. Prints messages of the tool that come before it.
    fn request(&mut self, method: &str, params: &Value) -> Result<Value, CliError> {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        loop {
            let mut line = String::new();
            if self.from.read_line(&mut line).map_err(|error| broken(&error))? == 0 {
                // The server has printed the reason on standard error.
                return Err(CliError::new("run-tool: the server has ended"));
            }
            let message: Value = serde_json::from_str(&line)
                .map_err(|error| CliError::new(format!("run-tool: the server: {error}")))?;
            if message.get("id") != Some(&json!(id)) {
                eprintln!("{}", plain(message.to_string().trim_end()));
                continue;
            }
            return match (message.get("result"), message.get("error")) {
                (Some(result), _) => Ok(result.clone()),
                (None, error) => Err(refused(error)),
            };
        }
    }

    /// Ends the server by the end of its input.
    fn end(self) -> Result<(), CliError> {
        let Self { mut child, to, .. } = self;
        drop(to);
        child.wait().map(drop).map_err(|error| broken(&error))
    }
}

fn refused(error: Option<&Value>) -> CliError {
    let message = error.and_then(|error| error.get("message")).and_then(Value::as_str);
    CliError::new(format!("run-tool: {}", plain(message.unwrap_or("no result"))))
}

fn broken(error: &std::io::Error) -> CliError {
    CliError::new(format!("run-tool: the server: {}", in_words(error)))
}
