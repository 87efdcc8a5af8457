//! Schemas that `pipeline` and the macros share.

use serde_json::{Map, Value, json};

use super::exec::{exec_fields, profile};
use service::request::ExecOptions;

/// Returns these fields as in `bash_exec`, with its choice of a profile.
pub(super) fn exec_properties(options: &ExecOptions, named: &[&str]) -> Map<String, Value> {
    let of_exec = exec_fields(options);
    let properties = of_exec.get("properties").and_then(Value::as_object);
    let taken = properties.into_iter().flatten().filter(|(name, _)| named.contains(&name.as_str()));
    let mut taken: Map<_, _> = taken.map(|(name, schema)| (name.clone(), schema.clone())).collect();
    taken.extend(profile(options));
    taken
}

pub(super) fn keep_going_schema(description: &str) -> Value {
    json!({ "type": "boolean", "default": false, "description": description })
}

/// Returns the schema of steps.
pub(super) fn steps_schema() -> Value {
    let text = json!({ "type": "string" });
    let count = json!({ "type": "integer", "minimum": 0 });
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
