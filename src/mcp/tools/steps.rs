//! Pipelines and macros, as an agent sees them.

use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Map, Value, json};

use super::exec::{exec_fields, profile, runs};
use super::{pure, tool};
use crate::exec::Options;
use crate::exec::macros::{MOST_COMMANDS, NAME_BYTES, NAME_PATTERN};
use crate::exec::pipeline::MOST_STEPS;
use model::call::STDIN_BYTES;

pub fn pipeline(options: &Options) -> Tool {
    let description = "Run commands one after the other, each in a fresh cell as bash_exec does and \
        with the standard output of the one before it as its standard input, byte for byte. It stops \
        at the first step that does not exit with 0, and tells of each step that ran.";
    let named = ["command", "working_dir", "timeout", "env", "shell"];
    let step = json!({
        "type": "object",
        "properties": fields(options, &named),
        "required": ["command"],
        "additionalProperties": false
    });
    let input = json!({
        "type": "object",
        "properties": {
            "steps": {
                "type": "array", "minItems": 1, "maxItems": MOST_STEPS, "items": step,
                "description": "Commands, the first one first"
            },
            "stdin": {
                "type": "string", "maxLength": STDIN_BYTES, "description": "What the first step reads"
            },
            "keep_going": keep_going("Give what a failed step printed to the next")
        },
        "required": ["steps"],
        "additionalProperties": false
    });
    tool("pipeline", "Run a pipeline", description.to_owned(), input, steps()).annotate(runs())
}

/// Returns the tools that save, run, list and delete macros.
pub fn macros(options: &Options) -> [Tool; 4] {
    [save(), run(options), list(), delete()]
}

fn save() -> Tool {
    let description = "Keep commands under a name until the server ends, to run them by macro_run. \
        They can use parameters: \"$1\", \"$2\" and \"$@\". A macro of that name is replaced.";
    let input = json!({
        "type": "object",
        "properties": {
            "name": name(),
            "commands": {
                "type": "array", "minItems": 1, "maxItems": MOST_COMMANDS,
                "items": { "type": "string", "minLength": 1 },
                "description": "Commands, the first one first"
            }
        },
        "required": ["name", "commands"],
        "additionalProperties": false
    });
    let output = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string" },
            "commands": { "type": "integer", "minimum": 1, "description": "How many." },
            "replaced": { "type": "boolean" }
        },
        "required": ["name", "commands", "replaced"],
        "additionalProperties": false
    });
    let kept = ToolAnnotations::new().read_only(false).destructive(true).open_world(false);
    tool("macro_save", "Save a macro", description.to_owned(), input, output)
        .annotate(kept.idempotent(true))
}

fn run(options: &Options) -> Tool {
    let description = "Run the commands of a macro one after the other, each in a fresh cell as \
        bash_exec does. It stops at the first that does not exit with 0, and tells of each that ran.";
    let mut properties = fields(options, &["env", "working_dir", "timeout"]);
    properties.insert("name".to_owned(), name());
    let arguments = json!({
        "type": "array", "items": { "type": "string" },
        "description": "The parameters of each command: the first is $1. They are words, and no part of a command's text"
    });
    properties.insert("arguments".to_owned(), arguments);
    properties.insert("keep_going".to_owned(), keep_going("Go on after a command that failed"));
    let input = json!({
        "type": "object",
        "properties": properties,
        "required": ["name"],
        "additionalProperties": false
    });
    tool("macro_run", "Run a macro", description.to_owned(), input, steps()).annotate(runs())
}

fn list() -> Tool {
    let input = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let output = json!({
        "type": "object",
        "properties": {
            "macros": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": { "type": "string" },
                        "commands": { "type": "array", "items": { "type": "string" } }
                    },
                    "required": ["name", "commands"],
                    "additionalProperties": false
                }
            }
        },
        "required": ["macros"],
        "additionalProperties": false
    });
    let description = "List the macros and their commands, by name.";
    tool("macro_list", "List macros", description.to_owned(), input, output)
        .annotate(pure().idempotent(false))
}

fn delete() -> Tool {
    let input = json!({
        "type": "object",
        "properties": { "name": name() },
        "required": ["name"],
        "additionalProperties": false
    });
    let output = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string" },
            "commands": { "type": "integer", "minimum": 1, "description": "How many it had." }
        },
        "required": ["name", "commands"],
        "additionalProperties": false
    });
    let gone = ToolAnnotations::new().read_only(false).destructive(true).open_world(false);
    let description = "Forget a macro.";
    tool("macro_delete", "Delete a macro", description.to_owned(), input, output)
        .annotate(gone.idempotent(false))
}

/// Returns these fields as in `bash_exec`, with its choice of a profile.
fn fields(options: &Options, named: &[&str]) -> Map<String, Value> {
    let of_exec = exec_fields(options);
    let properties = of_exec.get("properties").and_then(Value::as_object);
    let taken = properties.into_iter().flatten().filter(|(name, _)| named.contains(&name.as_str()));
    let mut taken: Map<_, _> = taken.map(|(name, schema)| (name.clone(), schema.clone())).collect();
    taken.extend(profile(options));
    taken
}

fn name() -> Value {
    json!({
        "type": "string", "minLength": 1, "maxLength": NAME_BYTES, "pattern": NAME_PATTERN,
        "description": "Name of the macro"
    })
}

fn keep_going(description: &str) -> Value {
    json!({ "type": "boolean", "default": false, "description": description })
}

/// Returns the schema of steps.
fn steps() -> Value {
    let (text, count) = (json!({ "type": "string" }), json!({ "type": "integer", "minimum": 0 }));
    let step = json!({
        "type": "object",
        "properties": {
            "command": { "type": "string", "description": "Its beginning." },
            "stdout": { "type": "string", "description": "Head and tail if long; absent where the next step read it." },
            "stdout_bytes": count, "stderr": text,
            "exit_code": { "type": "integer", "minimum": 0, "maximum": 255, "description": "As of bash_exec." },
            "execution_time_ms": count,
            "truncated": { "type": "boolean", "description": "There where not all of the output is shown." },
            "output_id": { "type": "string", "description": "For bash_output." },
            "status": { "type": "string", "description": "What an exit code cannot tell." }
        },
        "required": ["command", "stdout_bytes", "stderr", "exit_code", "execution_time_ms"],
        "additionalProperties": false
    });
    json!({
        "type": "object",
        "properties": {
            "steps": { "type": "array", "items": step },
            "ran": { "type": "integer", "minimum": 1, "description": "Steps that ran." },
            "of": { "type": "integer", "minimum": 1, "description": "Steps that there are." },
            "first_failed": { "type": "integer", "minimum": 1, "description": "The first step that did not exit with 0." },
            "stopped": { "type": "string", "description": "Why not all were run." }
        },
        "required": ["steps", "ran", "of"],
        "additionalProperties": false
    })
}
