//! `bash_exec` and its working directory, as an agent sees them, with the reference
//! implementation's fields.

use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Value, json};

use super::{files_changed, pure, tool};
use crate::exec::Options;
use crate::exec::arguments::Shell;
use crate::exec::stream::{BUFFER, LEAST_BUFFER, MOST_BUFFER};
use crate::rules::Rules;
use model::call::SCRIPT_BYTES;

pub fn bash_exec(rules: &Rules, options: &Options) -> Tool {
    let description = format!(
        "Execute a shell command and return its output: a fresh sandbox cell for each command, so \
         that no variable or process of one is there for the next. {}. Network: {}.",
        rules.workspace, rules.network
    );
    let title = "Execute a command in a fresh cell";
    tool("bash_exec", title, description, exec_input(options), exec_output()).annotate(runs())
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
            "files_changed": files_changed()
        },
        "required": ["stdout", "stderr", "exit_code", "execution_time_ms", "working_dir", "command"],
        "additionalProperties": false
    })
}

/// Returns the schema of the profile argument, if there is a choice.
pub(super) fn profile(options: &Options) -> Option<(String, Value)> {
    let [own, _, ..] = options.profiles.as_slice() else { return None };
    let schema = json!({
        "type": "string", "enum": options.profiles, "default": own,
        "description": "How the cell is confined: one of the profiles that the operator leaves to choose from"
    });
    Some(("profile".to_owned(), schema))
}

fn exec_input(options: &Options) -> Value {
    let mut input = exec_fields(options);
    if let Some(properties) = input.get_mut("properties").and_then(Value::as_object_mut) {
        properties.extend(profile(options));
    }
    input
}

pub(super) fn exec_fields(options: &Options) -> Value {
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
                "type": "string", "enum": Shell::ALL.map(Shell::name), "default": "bash",
                "description": "What reads the command; exit code 127 where the cell has no such shell"
            }
        },
        "required": ["command"],
        "additionalProperties": false
    })
}

pub fn bash_exec_stream(options: &Options) -> Tool {
    let description = "As bash_exec, for what runs long: a client that gives a progress token hears \
        the output as progress notifications while the command prints it. The result has all of it.";
    let mut input = exec_input(options);
    if let Some(properties) = input.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, _| ["command", "working_dir", "timeout"].contains(&name.as_str()));
        let buffer = json!({
            "type": "integer", "minimum": LEAST_BUFFER, "maximum": MOST_BUFFER, "default": BUFFER,
            "description": "Stream buffer size in bytes: most of one notification"
        });
        properties.insert("buffer_size".to_owned(), buffer);
    }
    let title = "Execute a command with its output streamed";
    tool("bash_exec_stream", title, description.to_owned(), input, exec_output()).annotate(runs())
}

/// Annotates a tool that runs a command: it may change anything inside of its cell, and nothing
/// outside.
pub(super) fn runs() -> ToolAnnotations {
    ToolAnnotations::new().read_only(false).destructive(true).idempotent(false).open_world(false)
}

pub fn get_working_dir() -> Tool {
    let description = "Get the directory in which bash_exec starts commands.";
    let input = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    tool("get_working_dir", "Get the working directory", description.to_owned(), input, output())
        .annotate(pure())
}

pub fn set_working_dir() -> Tool {
    let description =
        "Set the directory in which bash_exec starts later commands. It must be there.";
    let input = json!({
        "type": "object",
        "properties": {
            "directory": {
                "type": "string", "minLength": 1,
                "description": "Inside /workspace or /tmp; a relative path starts at /workspace"
            }
        },
        "required": ["directory"],
        "additionalProperties": false
    });
    let annotations = ToolAnnotations::new()
        .read_only(false)
        .destructive(false)
        .idempotent(true)
        .open_world(false);
    tool("set_working_dir", "Set the working directory", description.to_owned(), input, output())
        .annotate(annotations)
}

fn output() -> Value {
    json!({
        "type": "object",
        "properties": { "working_dir": { "type": "string" } },
        "required": ["working_dir"],
        "additionalProperties": false
    })
}
