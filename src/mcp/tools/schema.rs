//! Parts of schemas that more than one tool has.
//!
//! Schemas are written out rather than derived: a model reads every word of them, and a derived
//! schema says `["integer", "null"]` for an optional field.

use std::sync::Arc;

use rmcp::model::{Tool, ToolAnnotations, object};
use serde_json::{Value, json};

use crate::arguments::Named;
use service::request::MAX_PRECISION;
use service::rules::Rules;

/// Puts a tool's entry in the list together.
pub(super) fn tool<T: Named>(
    title: &str,
    description: String,
    input: Value,
    output: Value,
) -> Tool {
    Tool::new(T::TOOL, description, object(input))
        .with_title(title)
        .with_raw_output_schema(Arc::new(object(or_error(output))))
}

/// Adds the fields of a refusal and of remarks to the schema of a result. It requires no field:
/// clients hold the result of an error to the schema too, and a refusal has only its reason.
pub(crate) fn or_error(mut output: Value) -> Value {
    let text = json!({ "type": "string" });
    let more = [
        ("error", text.clone()),
        ("hint", text.clone()),
        ("notes", json!({ "type": "array", "items": text })),
    ];
    if let Some(properties) = output.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, schema) in more {
            properties.entry(name).or_insert(schema);
        }
    }
    if let Some(schema) = output.as_object_mut() {
        schema.remove("required");
    }
    output
}

/// Returns the schema of a tool without arguments.
pub(super) fn no_arguments() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

/// Annotates a tool that only reads, is repeatable, and reaches nothing outside.
pub(super) fn pure() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).destructive(false).idempotent(true).open_world(false)
}

/// Annotates a tool that runs a command: it may change anything inside of its cell, and nothing
/// outside.
pub(super) fn runs() -> ToolAnnotations {
    ToolAnnotations::new().read_only(false).destructive(true).idempotent(false).open_world(false)
}

/// Annotates a tool that sets a value of the session.
pub(super) fn sets() -> ToolAnnotations {
    ToolAnnotations::new().read_only(false).destructive(false).idempotent(true).open_world(false)
}

/// Returns the schema of refused system calls, for every result that has them.
pub(crate) fn denials() -> Value {
    json!({
        "type": "array",
        "description": "System calls that were refused.",
        "items": {
            "type": "object",
            "properties": {
                "syscall": { "type": "string" },
                "count": { "type": "integer", "minimum": 1, "description": "10000 means at least." },
                "grant": { "type": "string", "description": "What an operator can grant; absent when nothing grants it." }
            },
            "required": ["syscall", "count"],
            "additionalProperties": false
        }
    })
}

/// Returns the schema of the use of a network, for the results of commands.
pub(super) fn network() -> Value {
    let count = json!({ "type": "integer", "minimum": 0 });
    let text = json!({ "type": "string" });
    json!({
        "type": "object",
        "properties": {
            "connections": count, "sent": count, "received": count,
            "questions": { "type": "integer", "minimum": 1, "description": "Questions for names that were forwarded." },
            "session": {
                "type": "object",
                "properties": {
                    "connections": count, "sent": count, "received": count, "denied": count,
                    "earlier_sent": count, "earlier_received": count
                },
                "required": ["connections", "sent", "received"],
                "additionalProperties": false
            },
            "hosts": { "type": "array", "items": {
                "type": "object",
                "properties": {
                    "to": text, "rule": text, "connections": count, "sent": count, "received": count
                },
                "required": ["to", "rule", "connections", "sent", "received"],
                "additionalProperties": false
            } },
            "denied": { "type": "array", "items": {
                "type": "object",
                "properties": { "to": text, "why": text, "count": count, "grant": text },
                "required": ["to", "why", "count"],
                "additionalProperties": false
            } },
            "more": { "type": "integer", "minimum": 1, "description": "Destinations without a row." },
            "incomplete": { "type": "boolean" }
        },
        "required": ["connections", "sent", "received"],
        "additionalProperties": false
    })
}

/// Returns the schema of changes in the workspace, for the results of commands.
pub(super) fn files_changed() -> Value {
    let file = json!({
        "type": "object",
        "properties": {
            "path": { "type": "string", "description": "From /workspace on; / ends a directory, @ a symbolic link." },
            "size": { "type": "integer", "minimum": 0 },
            "mode": { "type": "string" },
            "executable": { "type": "boolean" },
            "runs_in_ci": { "type": "boolean" }
        },
        "required": ["path", "size", "mode"],
        "additionalProperties": false
    });
    json!({
        "type": "object",
        "description": "Files of /workspace that changed since it was looked at before; absent when none did.",
        "properties": {
            "created": { "type": "array", "items": file },
            "modified": { "type": "array", "items": file },
            "deleted": { "type": "array", "items": { "type": "string" } },
            "more": { "type": "integer", "minimum": 1, "description": "Changes that are not listed." },
            "incomplete": { "type": "boolean", "description": "Not all of /workspace was looked at." }
        },
        "additionalProperties": false
    })
}

pub(super) fn precision_schema(description: &str) -> Value {
    json!({
        "type": "integer", "minimum": 0, "maximum": MAX_PRECISION, "description": description
    })
}

/// Returns the schema of a calculation's time limit; it never exceeds the operator's.
pub(super) fn time_schema(rules: &Rules) -> Value {
    json!({
        "type": "number", "exclusiveMinimum": 0, "default": rules.limits.calculator_timeout_s,
        "description": format!("Seconds; at most {}", rules.limits.calculator_timeout_s)
    })
}

/// Present where there are any.
pub(super) fn warnings_schema() -> Value {
    let about = "What bc warned of, and a timeout that was lowered; absent when there is nothing.";
    json!({ "type": "array", "items": { "type": "string" }, "description": about })
}

#[cfg(test)]
mod tests {
    use model::egress::{Denied, SessionUse, Tally, TallyRow};

    use super::*;

    /// Lists the fields of a value that its schema does not have: clients refuse a result with one.
    fn unknown(schema: &Value, value: &Value, at: &str) -> Vec<String> {
        match value {
            Value::Object(fields) => {
                let has = |name: &String| schema["properties"].get(name);
                let each = fields.iter().flat_map(|(name, value)| match has(name) {
                    Some(schema) => unknown(schema, value, &format!("{at}/{name}")),
                    None => vec![format!("{at}/{name}")],
                });
                each.collect()
            }
            Value::Array(all) => {
                all.iter().flat_map(|value| unknown(&schema["items"], value, at)).collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
        }
    }

    #[test]
    fn every_field_of_a_network_that_was_used_is_in_the_schema() {
        let row = TallyRow {
            to: "a:443".to_owned(),
            rule: "a".to_owned(),
            connections: 1,
            sent: 1,
            received: 1,
        };
        let denied = Denied {
            to: "b:443".to_owned(),
            why: "no rule".to_owned(),
            count: 1,
            grant: Some("b:443".to_owned()),
        };
        let session =
            SessionUse { denied: 1, earlier_sent: 1, earlier_received: 1, ..SessionUse::default() };
        let tally = Tally {
            questions: 1,
            rows: vec![row],
            denied: vec![denied],
            more: 1,
            session: Some(session),
            incomplete: true,
            ..Tally::default()
        };
        let used = service::report::network::fields(&tally);
        assert_eq!(unknown(&network(), &used, ""), Vec::<String>::new());
        // The control.
        let other = json!({ "hosts": [{ "from": "a" }], "x": 1 });
        assert_eq!(unknown(&network(), &other, ""), ["/hosts/from", "/x"]);
    }
}
