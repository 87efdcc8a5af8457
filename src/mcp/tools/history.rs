//! `history_search` and `history_replay`.

use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::{Value, json};

use super::built_in::BuiltIn;
use super::exec::{exec_output, profile};
use super::schema::{pure, runs, tool};
use crate::arguments::{Arguments, BadArguments};
use crate::context::Context;
use crate::reply;
use crate::server::Server;
use crate::tool_entry::{CallResult, InForce};
use service::refused::{Refused, RefusedKind};
use service::report::to_value;

/// Commands in the answer to one search, at most.
pub(crate) const MAX_FOUND: usize = 100;
/// Commands in the answer to a search that gives no limit.
const FOUND: usize = 20;

/// Arguments of `history_search`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistorySearchArguments {
    #[serde(default)]
    query: String,
    limit: Option<usize>,
}

impl Arguments for HistorySearchArguments {
    const FIELDS: &'static [&'static str] = &["query", "limit"];
}

impl BuiltIn for HistorySearchArguments {
    fn describe(_: &InForce) -> Tool {
        let description =
            "Search the commands that bash and bash_exec have run or still run, the newest first.";
        let input = json!({
            "type": "object",
            "properties": {
                "query": { "type": "string", "description": "Text that is in the command; without it, every command" },
                "limit": { "type": "integer", "minimum": 1, "maximum": MAX_FOUND, "default": 20 }
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

    async fn call(self, server: &Server, _: &Context) -> CallResult {
        let limit = self.limit.unwrap_or(FOUND);
        if !(1..=MAX_FOUND).contains(&limit) {
            let message = format!("history_search: `limit`: expected 1 to {MAX_FOUND}");
            return Err(BadArguments { message, hint: None }.into());
        }
        let found = server.0.client.state().history.search(&self.query, limit);
        let matches = found.iter().map(|(id, entry)| {
            let mut fields = to_value(entry);
            if let Some(map) = fields.as_object_mut() {
                map.insert("id".to_owned(), Value::from(*id));
            }
            fields
        });
        Ok(reply::of_fields(json!({ "matches": matches.collect::<Vec<_>>() })))
    }
}

/// Arguments of `history_replay`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryReplayArguments {
    id: u64,
    /// Profile as in `bash_exec`: a replay is such a call, and is decided as one.
    profile: Option<String>,
}

impl Arguments for HistoryReplayArguments {
    const FIELDS: &'static [&'static str] = &["id", "profile"];
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

    async fn call(self, server: &Server, context: &Context) -> CallResult {
        let refused = |message: String| Refused::new(RefusedKind::Arguments, message);
        match server.0.client.state().history.find(self.id) {
            Some(Some(mut again)) => {
                let named = self.profile.or(again.args.profile.take());
                again.args.profile = named;
                server.bash_exec(again, context).await
            }
            Some(None) => {
                Err(refused("history_replay: not all of this command is kept".to_owned()))
            }
            None => Err(refused(format!("history_replay: no command {} is kept", self.id))
                .with_hint("history_search tells the ids")),
        }
    }
}

fn record() -> Value {
    let text = json!({ "type": "string" });
    let count = json!({ "type": "integer", "minimum": 0 });
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
