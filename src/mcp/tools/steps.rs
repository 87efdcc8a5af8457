//! `pipeline` and the macros: commands one after the other.

use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Map, Value, json};

use super::exec::{exec_fields, profile};
use super::schema::{no_arguments, pure, runs, tool};
use super::{BuiltIn, CallResult, Context, InForce};
use crate::backend::Backend;
use crate::exec::Options;
use crate::exec::macros::{
    MOST_COMMANDS, MacroDeleteArguments, MacroListArguments, MacroRunArguments, MacroSaveArguments,
    NAME_BYTES, NAME_PATTERN,
};
use crate::exec::pipeline::{MOST_STEPS, PipelineArguments};
use crate::server::Server;
use model::call::STDIN_BYTES;

impl BuiltIn for PipelineArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = "Run commands one after the other, each in a fresh cell as bash_exec does and \
            with the standard output of the one before it as its standard input, byte for byte. It stops \
            at the first step that does not exit with 0, and tells of each step that ran.";
        let named = ["command", "working_dir", "timeout", "env", "shell"];
        let step = json!({
            "type": "object",
            "properties": fields(&in_force.options, &named),
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
        tool::<Self>("Run a pipeline", description.to_owned(), input, steps()).annotate(runs())
    }

    async fn call<B: Backend>(self, server: &Server<B>, context: &Context) -> CallResult {
        server.pipeline(self, context).await
    }
}

impl BuiltIn for MacroSaveArguments {
    fn describe(_: &InForce) -> Tool {
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
        tool::<Self>("Save a macro", description.to_owned(), input, output)
            .annotate(kept.idempotent(true))
    }

    async fn call<B: Backend>(self, server: &Server<B>, _: &Context) -> CallResult {
        server.macro_save(self)
    }
}

impl BuiltIn for MacroRunArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = "Run the commands of a macro one after the other, each in a fresh cell as \
            bash_exec does. It stops at the first that does not exit with 0, and tells of each that ran.";
        let mut properties = fields(&in_force.options, &["env", "working_dir", "timeout"]);
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
        tool::<Self>("Run a macro", description.to_owned(), input, steps()).annotate(runs())
    }

    async fn call<B: Backend>(self, server: &Server<B>, context: &Context) -> CallResult {
        server.macro_run(self, context).await
    }
}

impl BuiltIn for MacroListArguments {
    fn describe(_: &InForce) -> Tool {
        let input = no_arguments();
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
        tool::<Self>("List macros", description.to_owned(), input, output)
            .annotate(pure().idempotent(false))
    }

    async fn call<B: Backend>(self, server: &Server<B>, _: &Context) -> CallResult {
        Ok(server.macro_list())
    }
}

impl BuiltIn for MacroDeleteArguments {
    fn describe(_: &InForce) -> Tool {
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
        tool::<Self>("Delete a macro", description.to_owned(), input, output)
            .annotate(gone.idempotent(false))
    }

    async fn call<B: Backend>(self, server: &Server<B>, _: &Context) -> CallResult {
        server.macro_delete(&self)
    }
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
