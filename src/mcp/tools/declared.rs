//! `get_tool_info`: describes a declared tool, with the reference implementation's fields.

use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::schema::{pure, tool};
use crate::arguments::nearest;
use crate::calls::ClientCalls;
use crate::context::Context;
use crate::tool_entry::{BuiltIn, CallResult, InForce};
use config::policy::flags::{DeclaredCommand, Flag, Positional, PositionalEgress, Takes};
use service::cli::Declared;
use service::cli::state::ToolFigures;
use service::refused::{Refused, RefusedKind};

/// Arguments of `get_tool_info`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GetToolInfoArguments {
    /// Name of the tool, such as cli_jq
    tool: String,
}

impl BuiltIn for GetToolInfoArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Show what a command-line tool takes: its flags and templates, its limits, \
            and how its last calls went.";
        // The fields of the result differ between tools.
        tool::<Self, JsonObject>("About a tool", description).annotate(pure())
    }

    async fn call(self, calls: &ClientCalls, _: &Context) -> CallResult {
        let client = &calls.client;
        let commands = client.commands();
        let found = commands.iter().find(|declared| declared.command.name == self.tool);
        let (Some(declared), Some(figures)) = (found, client.tool_figures(&self.tool)) else {
            let shown: String = self.tool.chars().take(80).flat_map(char::escape_default).collect();
            let names: Vec<&str> = commands.iter().map(|one| one.command.name.as_str()).collect();
            let hint = match nearest(&self.tool, &names) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the command-line tools are {}", names.join(", ")),
            };
            let message = format!("get_tool_info: no command-line tool `{shown}` is offered");
            return Err(Refused::new(RefusedKind::Arguments, message).with_hint(hint));
        };
        let info = info(declared, &figures);
        let text = serde_json::to_string_pretty(&info).unwrap_or_default();
        let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
        result.structured_content = Some(info);
        Ok(result)
    }
}

fn info(declared: &Declared, figures: &ToolFigures) -> Value {
    let command = &declared.command;
    let profile = &declared.profile;
    let conduct = &command.conduct;
    let most = profile.limits.wall;
    let terms = &declared.terms;
    json!({
        "name": command.name,
        "command": command.program,
        "version": env!("CARGO_PKG_VERSION"),
        "description": command.description,
        "why": command.why,
        "profile": profile.name.to_string(),
        "performance": {
            "concurrency": terms.concurrency,
            "queue": conduct.queue,
            "default_timeout": terms.timeout.as_secs_f64(),
            "max_timeout": most.as_secs_f64(),
            "retries": conduct.retries.times,
        },
        "allowed_operations": operations(command),
        "safety_limits": {
            "max_arg_length": terms.max_args,
            "max_output": terms.max_stdout,
            "max_memory": terms.memory,
        },
        "circuit_breaker": {
            "enabled": true,
            "failure_threshold": terms.breaker.failures,
            "recovery_timeout": terms.breaker.recovery.as_secs_f64(),
            "state": figures.breaker,
        },
        "security_features": features(command),
        "hooks": command.hooks.scripts.iter().map(|hook| hook.at.name()).collect::<Vec<_>>(),
        "health": figures.health,
        "metrics": {
            "available": true,
            "calls": figures.calls,
            "errors": figures.errors,
            "seconds": figures.seconds,
            "slowest": figures.slowest,
            "pending": figures.pending,
        },
    })
}

/// Lists the rules that every call of a tool is held to; each is enforced somewhere.
fn features(command: &DeclaredCommand) -> Vec<&'static str> {
    let is_held = |one: &Positional| one.egress == PositionalEgress::Only;
    let held = command.positionals.iter().any(is_held);
    let all = [
        "flags from a list, by their exact names, with typed values",
        "no shell: the program gets checked words",
        "a sandbox cell of its own for each call, with limits of time, memory and processes",
        "output of a bounded size, without control characters",
    ];
    all.into_iter()
        .chain(held.then_some("a network that reaches the target of the call alone"))
        .collect()
}

/// Describes the words that a tool takes.
fn operations(command: &DeclaredCommand) -> Value {
    let flag = |flag: &Flag| {
        let value = match flag.takes {
            Takes::Nothing => "none",
            Takes::Next(_) => "next word",
            Takes::Equals(_) => "behind =",
        };
        json!({ "flag": flag.name, "value": value, "times": flag.times, "why": flag.why })
    };
    let flags: Vec<Value> = command.flags.iter().map(flag).collect();
    let defaults: Vec<&[String]> =
        command.conduct.defaults.iter().map(|one| one.args.as_slice()).collect();
    let templates: Vec<Value> = command
        .conduct
        .templates
        .iter()
        .map(|one| json!({ "name": one.name, "args": one.args, "why": one.why }))
        .collect();
    json!({
        "flags_count": flags.len(),
        "flags": flags,
        "default_args": defaults,
        "templates": templates,
    })
}
