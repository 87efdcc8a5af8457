//! `bash_exec`: a command in a fresh cell, with the reference implementation's fields.

use std::collections::BTreeMap;

use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::{Value, json};

use super::built_in::BuiltIn;
use super::schema::{denials, files_changed, network, runs, tool};
use crate::arguments::{Arguments, Seconds};
use crate::context::Context;
use crate::server::Server;
use crate::tool_entry::{CallResult, InForce};
use model::call::SCRIPT_BYTES;
use model::shells::ShellKind;
use service::request::{ExecOptions, ExecRequest, StderrIs};
use service::shell::ScriptArgs;

/// Arguments of `bash_exec`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BashExecArguments {
    pub(crate) command: String,
    pub(crate) working_dir: Option<String>,
    pub(crate) timeout: Option<Seconds>,
    pub(crate) capture_stderr: Option<bool>,
    pub(crate) env: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(crate) shell: ShellKind,
    /// Name of a profile, if policy leaves the choice.
    pub(crate) profile: Option<String>,
}

impl Arguments for BashExecArguments {
    const FIELDS: &'static [&'static str] =
        &["command", "working_dir", "timeout", "capture_stderr", "env", "shell", "profile"];
}

impl From<BashExecArguments> for ExecRequest {
    fn from(given: BashExecArguments) -> Self {
        let BashExecArguments { command, working_dir, timeout, env, shell, profile, .. } = given;
        let timeout = timeout.map(|Seconds(value)| value);
        let stderr = match given.capture_stderr {
            Some(false) => StderrIs::LeftOut,
            Some(true) | None => StderrIs::Shown,
        };
        let args = ScriptArgs {
            command,
            cwd: working_dir,
            env,
            timeout,
            profile,
            ..ScriptArgs::default()
        };
        Self { args, shell, stderr }
    }
}

impl BuiltIn for BashExecArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = format!(
            "Execute a shell command and return its output: a fresh sandbox cell for each command, so \
             that no variable or process of one is there for the next. {}. Network: {}.",
            in_force.rules.workspace, in_force.rules.network
        );
        let title = "Execute a command in a fresh cell";
        tool::<Self>(title, description, exec_input(&in_force.options), exec_output())
            .annotate(runs())
    }

    async fn call(self, server: &Server, context: &Context) -> CallResult {
        server.bash_exec(self.into(), context).await
    }
}

/// Returns the output schema of `bash_exec`.
pub(super) fn exec_output() -> Value {
    json!({
        "type": "object",
        "properties": {
            "stdout": { "type": "string" },
            "stderr": { "type": "string" },
            "exit_code": {
                "type": "integer", "minimum": 0, "maximum": 255,
                "description": "The command's own; 128+n after signal n, 124 after the time limit, 123 after another limit, 125 when it could not be run."
            },
            "execution_time_ms": { "type": "integer", "minimum": 0 },
            "working_dir": { "type": "string", "description": "Where it started." },
            "command": { "type": "string", "description": "The command as given." },
            "stdout_bytes": { "type": "integer", "minimum": 0, "description": "All of it; with the next three where not all of the output is shown." },
            "stderr_bytes": { "type": "integer", "minimum": 0 },
            "truncated": { "type": "boolean" },
            "output_id": { "type": "string", "description": "For bash_output." },
            "denials": denials(),
            "files_changed": files_changed(),
            "network": network()
        },
        "required": ["stdout", "stderr", "exit_code", "execution_time_ms", "working_dir", "command"],
        "additionalProperties": false
    })
}

/// Returns the schema of the profile argument, if there is a choice.
pub(super) fn profile(options: &ExecOptions) -> Option<(String, Value)> {
    let [own, _, ..] = options.profiles.as_slice() else { return None };
    let schema = json!({
        "type": "string", "enum": options.profiles, "default": own,
        "description": "How the cell is confined: one of the profiles that the operator leaves to choose from"
    });
    Some(("profile".to_owned(), schema))
}

pub(super) fn exec_input(options: &ExecOptions) -> Value {
    let mut input = exec_fields(options);
    if let Some(properties) = input.get_mut("properties").and_then(Value::as_object_mut) {
        properties.extend(profile(options));
    }
    input
}

pub(super) fn exec_fields(options: &ExecOptions) -> Value {
    json!({
        "type": "object",
        "properties": {
            "command": {
                "type": "string", "minLength": 1, "maxLength": SCRIPT_BYTES,
                "description": "Shell command to execute"
            },
            "working_dir": {
                "type": "string",
                "description": "Working directory for this command alone, inside /workspace or /tmp; without it, what set_working_dir set"
            },
            "timeout": {
                "type": "number", "exclusiveMinimum": 0,
                "maximum": options.max_timeout.as_secs_f64(),
                "default": options.default_timeout.as_secs_f64(),
                "description": "Timeout in seconds; more than the maximum is lowered to it, and the reply says so"
            },
            "capture_stderr": {
                "type": "boolean", "default": true, "description": "Include stderr in output"
            },
            "env": {
                "type": "object", "additionalProperties": { "type": "string" },
                "description": "Additional environment variables"
            },
            "shell": {
                "type": "string", "enum": ShellKind::ALL.map(ShellKind::name), "default": "bash",
                "description": "What reads the command; exit code 127 where the cell has no such shell"
            }
        },
        "required": ["command"],
        "additionalProperties": false
    })
}
