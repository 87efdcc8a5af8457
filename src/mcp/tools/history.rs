//! `history_search` and `history_replay`.

use rmcp::model::Tool;
use serde_json::{Value, json};

use super::exec::{exec_output, profile};
use super::schema::{pure, runs, tool};
use super::{BuiltIn, CallResult, Context, InForce};
use crate::backend::Backend;
use crate::history::{HistoryReplayArguments, HistorySearchArguments, MOST_FOUND};
use crate::server::Server;

impl BuiltIn for HistorySearchArguments {
    fn describe(_: &InForce) -> Tool {
        let description =
            "Search the commands that bash and bash_exec have run or still run, the newest first.";
        let input = json!({
            "type": "object",
            "properties": {
                "query": { "type": "string", "description": "Text that is in the command; without it, every command" },
                "limit": { "type": "integer", "minimum": 1, "maximum": MOST_FOUND, "default": 20 }
            },
            "additionalProperties": false
        });
        let output = json!({
            "type": "object",
            "properties": { "matches": { "type": "array", "items": record() } },
            "required": ["matches"],
            "additionalProperties": false
        });
        tool::<Self>("Search the history", description.to_owned(), input, output)
            .annotate(pure().idempotent(false))
    }

    async fn call<B: Backend>(self, server: &Server<B>, _: &Context) -> CallResult {
        server.search(self)
    }
}

impl BuiltIn for HistoryReplayArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = "Run a command of the history again, by bash_exec: in a fresh cell, \
            with its variables and in the directory where it began; one of bash has no state of its shell.";
        let mut input = json!({
            "type": "object",
            "properties": {
                "id": { "type": "integer", "minimum": 1, "description": "The command's id, from history_search" }
            },
            "required": ["id"],
            "additionalProperties": false
        });
        if let Some(properties) = input.get_mut("properties").and_then(Value::as_object_mut) {
            properties.extend(profile(&in_force.options));
        }
        tool::<Self>("Run a command again", description.to_owned(), input, exec_output())
            .annotate(runs())
    }

    async fn call<B: Backend>(self, server: &Server<B>, context: &Context) -> CallResult {
        server.replay(self, context).await
    }
}

fn record() -> Value {
    let (text, count) = (json!({ "type": "string" }), json!({ "type": "integer", "minimum": 0 }));
    json!({
        "type": "object",
        "properties": {
            "id": { "type": "integer", "minimum": 1, "description": "For history_replay." },
            "timestamp": text, "command": text,
            "working_dir": { "type": "string", "description": "Where it began." },
            "job": { "type": "string", "description": "Of a command that runs; the next three are there when it has ended." },
            "exit_code": count, "duration_ms": count, "output_size_bytes": count
        },
        "required": ["id", "timestamp", "command", "working_dir"],
        "additionalProperties": false
    })
}
