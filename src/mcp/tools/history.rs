//! `history_search` and `history_replay`.

use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::exec::{BashExecArguments, exec_tool};
use super::schema::{pure, tool, without_default};
use crate::arguments::{BadArguments, Named};
use crate::calls::ClientCalls;
use crate::context::Context;
use crate::tool_entry::{BuiltIn, CallResult, InForce};
use crate::{exec, reply};
use service::capture::tap::Tap;
use service::refused::{Refused, RefusedKind};
use service::report::to_value;

/// Commands in the answer to one search, at most.
pub(crate) const MAX_MATCHES: usize = 100;
/// Commands in the answer to a search that gives no limit.
const DEFAULT_MATCHES: usize = 20;

/// Arguments of `history_search`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistorySearchArguments {
    /// Text that is in the command; without it, every command
    #[serde(default)]
    #[schemars(transform = without_default)]
    query: String,
    #[schemars(range(min = 1, max = MAX_MATCHES), extend("default" = DEFAULT_MATCHES))]
    limit: Option<usize>,
}

impl BuiltIn for HistorySearchArguments {
    fn describe(_: &InForce) -> Tool {
        let description =
            "Search the commands that bash and bash_exec have run or still run, the newest first.";
        tool::<Self, Matches>("Search the history", description).annotate(pure().idempotent(false))
    }

    async fn call(self, calls: &ClientCalls, _: &Context) -> CallResult {
        let limit = self.limit.unwrap_or(DEFAULT_MATCHES);
        if !(1..=MAX_MATCHES).contains(&limit) {
            let message = format!("history_search: `limit`: expected 1 to {MAX_MATCHES}");
            return Err(BadArguments { message, hint: None }.into());
        }
        let found = calls.client.state().history.search(&self.query, limit);
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
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryReplayArguments {
    /// The command's id, from history_search
    #[schemars(range(min = 1))]
    id: u64,
    // A replay is a call of `bash_exec`, and is decided as one.
    /// How the cell is confined: one of the profiles that the operator leaves to choose from
    profile: Option<String>,
}

impl BuiltIn for HistoryReplayArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = "Run a command of the history again, by bash_exec: in a fresh cell, \
            with its variables and in the directory where it began; one of bash has no state of its shell.";
        exec_tool::<Self>("Run a command again", description, &in_force.options)
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let refused = |message: String| Refused::new(RefusedKind::Arguments, message);
        match calls.client.state().history.find(self.id) {
            Some(Some(mut again)) => {
                let named = self.profile.or(again.args.profile.take());
                again.args.profile = named;
                exec::call(calls, BashExecArguments::TOOL, again, Tap::default(), context).await
            }
            Some(None) => {
                Err(refused("history_replay: not all of this command is kept".to_owned()))
            }
            None => Err(refused(format!("history_replay: no command {} is kept", self.id))
                .with_hint("history_search tells the ids")),
        }
    }
}

/// Result of `history_search`.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it is described, and never made")]
struct Matches {
    matches: Vec<Match>,
}

/// A command that was found.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it is described, and never made")]
struct Match {
    /// For history_replay.
    #[schemars(range(min = 1))]
    id: u64,
    timestamp: String,
    command: String,
    /// Where it began.
    working_dir: String,
    /// Of a command that runs; the next three are there when it has ended.
    job: Option<String>,
    exit_code: Option<u64>,
    duration_ms: Option<u64>,
    output_size_bytes: Option<u64>,
}
