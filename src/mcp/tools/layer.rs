//! `workspace_changes` and `workspace_diff`: what cells changed in the layer of the workspace.

use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;

use super::schema::{pure, tool};
use crate::arguments::{BadArguments, Named};
use crate::calls::ClientCalls;
use crate::context::Context;
use crate::reply;
use crate::tool_entry::{BuiltIn, CallResult, InForce};
use service::layer::{
    DEFAULT_CHANGES, LayerAnswer, LayerChanges, LayerDiff, LayerQuery, MAX_CHANGES,
};
use service::refused::Refused;
use service::report::to_value;

/// Longest path of a question in bytes (PATH_MAX).
const MAX_PATH_BYTES: usize = 4096;
/// Path of the workspace in a cell.
const WORKSPACE: &str = "/workspace";

/// Arguments of `workspace_changes`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = []))]
pub(crate) struct WorkspaceChangesArguments {
    /// List only what is at or below this path of /workspace
    #[schemars(length(max = MAX_PATH_BYTES))]
    path: Option<String>,
    /// Leave out so many changes: `next_offset` of the reply before
    #[serde(default)]
    offset: usize,
    #[schemars(range(min = 1, max = MAX_CHANGES), extend("default" = DEFAULT_CHANGES))]
    limit: Option<usize>,
}

impl BuiltIn for WorkspaceChangesArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "List how /workspace differs from the directory of the host: A added, M changed, \
            D deleted, with why a change is held back and what the operator should look at. The host's files have not \
            changed. Only the operator can apply these or discard them, with `cofferdam review`.";
        tool::<Self, LayerChanges>("List the changes to the workspace", description)
            .annotate(pure())
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let limit = self.limit.unwrap_or(DEFAULT_CHANGES);
        if !(1..=MAX_CHANGES).contains(&limit) {
            let message = format!("{}: `limit`: expected 1 to {MAX_CHANGES}", Self::TOOL);
            return Err(BadArguments { message, hint: None }.into());
        }
        let path = below(calls, Self::TOOL, self.path)?;
        let offset = self.offset;
        let query = LayerQuery::Changes { path, offset, limit };
        let ask = |caller| calls.client.ask_layer(Self::TOOL, query, caller);
        match calls.turn(context, ask).await? {
            LayerAnswer::Changes { lines, list } => {
                let text = lines + &remarks(offset, &list);
                Ok(reply::with_fields(text, to_value(&list)))
            }
            LayerAnswer::Diff(_) | LayerAnswer::Refused { .. } => Err(unexpected()),
        }
    }
}

/// Returns the lines below a list of changes.
fn remarks(offset: usize, list: &LayerChanges) -> String {
    let LayerChanges { total, applicable, changes, next_offset } = list;
    if *total == 0 {
        return "[no changes]".to_owned();
    }
    let mut text = String::new();
    if let Some(next) = next_offset {
        let first = offset + 1;
        text.push_str(&format!(
            "[changes {first} to {next} of {total} are shown; `offset`: {next} shows the next ones]\n"
        ));
    } else if changes.is_empty() {
        text.push_str(&format!("[there are only {total} changes]\n"));
    }
    text.push_str(&format!(
        "[the host has not changed: the operator can apply {applicable} of {total} changes with `cofferdam review`]"
    ));
    text
}

/// Arguments of `workspace_diff`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = []))]
pub(crate) struct WorkspaceDiffArguments {
    /// Show only what is at or below this path of /workspace
    #[schemars(length(max = MAX_PATH_BYTES))]
    path: Option<String>,
    /// Leave out so many lines: `next_offset` of the reply before
    #[serde(default)]
    offset: usize,
}

impl BuiltIn for WorkspaceDiffArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Show the lines by which /workspace differs from the directory of the host, as a \
            unified diff of text files; workspace_changes lists all changes.";
        tool::<Self, LayerDiff>("Show the changed lines of the workspace", description)
            .annotate(pure())
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let path = below(calls, Self::TOOL, self.path)?;
        let query = LayerQuery::Diff { path, offset: self.offset };
        let ask = |caller| calls.client.ask_layer(Self::TOOL, query, caller);
        match calls.turn(context, ask).await? {
            LayerAnswer::Diff(part) => {
                let mut text = part.diff.clone();
                if let Some(next) = part.next_offset {
                    text.push_str(&format!("[more lines follow: `offset`: {next} shows them]"));
                } else if part.lines == 0 {
                    text.push_str("[no changed lines]");
                }
                Ok(reply::with_fields(text, to_value(&part)))
            }
            LayerAnswer::Changes { .. } | LayerAnswer::Refused { .. } => Err(unexpected()),
        }
    }
}

/// Returns a path below the workspace; `None` for all of it.
///
/// # Errors
/// A path that is too long, or outside of the workspace.
fn below(calls: &ClientCalls, tool: &str, path: Option<String>) -> Result<Option<String>, Refused> {
    let Some(path) = path else { return Ok(None) };
    let bad = |message: &str| {
        let message = format!("{tool}: `path`: {message}");
        Refused::from(BadArguments { message, hint: None })
    };
    if path.len() > MAX_PATH_BYTES {
        return Err(bad("it is too long"));
    }
    let path = calls.client.in_workspace(path);
    let parts = |path: &str| {
        let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
        parts.map(str::to_owned).collect::<Vec<_>>()
    };
    let path = match path.strip_prefix(WORKSPACE) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => parts(rest),
        _ if path.starts_with('/') => return Err(bad("expected a path in /workspace")),
        _ => parts(&path),
    };
    if path.iter().any(|part| part == "..") {
        return Err(bad("expected a path without `..`"));
    }
    Ok(Some(path.join("/")).filter(|path| !path.is_empty()))
}

fn unexpected() -> Refused {
    Refused::failed("the layer could not be read: the answer is to another question")
}
