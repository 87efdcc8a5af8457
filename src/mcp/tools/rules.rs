//! `sandbox_rules`: describes what commands may do here.

use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::{Value, json};

use super::built_in::BuiltIn;
use super::schema::{no_arguments, pure, tool};
use crate::arguments::Arguments;
use crate::context::Context;
use crate::reply;
use crate::server::Server;
use crate::tool_entry::{CallResult, InForce};

/// Arguments of `sandbox_rules`, which has no fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxRulesArguments {}

impl Arguments for SandboxRulesArguments {
    const FIELDS: &'static [&'static str] = &[];
}

impl BuiltIn for SandboxRulesArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Show what commands may do here: the profile in force, its limits, the \
            paths and programs in a cell, the network, and how the protections are held.";
        let title = "Show the sandbox rules";
        tool::<Self>(title, description.to_owned(), no_arguments(), rules_output()).annotate(pure())
    }

    async fn call(self, server: &Server, _: &Context) -> CallResult {
        server.0.client.settled().await;
        Ok(reply::rules(&server.0.client.rules()))
    }
}

fn rules_output() -> Value {
    let text = json!({ "type": "string" });
    let texts = json!({ "type": "array", "items": text });
    let count = json!({ "type": "integer", "minimum": 0 });
    let limits = [
        "timeout_s",
        "most_timeout_s",
        "calculator_timeout_s",
        "cpu_s",
        "memory_bytes",
        "processes",
        "open_files",
        "file_size_bytes",
        "workspace_bytes",
        "tmp_bytes",
        "shm_bytes",
        "inodes",
        "command_bytes",
        "stdin_bytes",
        "env_bytes",
    ];
    let mut limit_schema: serde_json::Map<String, Value> =
        limits.iter().map(|name| ((*name).to_owned(), count.clone())).collect();
    limit_schema.insert("output_bytes".to_owned(), count);
    json!({
        "type": "object",
        "properties": {
            "profile": text, "description": text, "tier": text, "memory_held_by": text,
            "network": text, "workspace": text, "read_only_paths": texts, "programs": text,
            "proc": text, "socket_families": texts,
            "env": { "type": "object", "additionalProperties": text },
            "limits": {
                "type": "object", "properties": limit_schema, "required": limits,
                "additionalProperties": false
            },
            "to_change": text
        },
        "required": ["profile", "description", "tier", "memory_held_by", "network", "workspace",
            "read_only_paths", "programs", "proc", "socket_families", "env", "limits", "to_change"],
        "additionalProperties": false
    })
}
