//! `macro_save`, `macro_run`, `macro_list` and `macro_delete`.
//!
//! Parameters are passed as `$1`, `$2`, …; they are never inserted into a command's text.

use std::collections::BTreeMap;

use rmcp::model::{Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::results::StepsResult;
use super::schema::{extend_exec, fields, pure, runs, tool, without_default};
use crate::arguments::{BadArguments, Named, Seconds, nearest};
use crate::calls::ClientCalls;
use crate::context::Context;
use crate::exec::steps::{Stdout, Steps};
use crate::reply;
use crate::tool_entry::{BuiltIn, CallResult, InForce};
use service::capture::tap::Tap;
use service::macros::{Before, MAX_COMMANDS, Macros, NAME_BYTES, NAME_PATTERN};
use service::report::to_value;
use service::request::ExecRequest;
use service::shell::ScriptArgs;

/// Arguments of `macro_save`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MacroSaveArguments {
    #[schemars(with = "MacroName")]
    name: String,
    /// Commands, the first one first
    #[schemars(length(min = 1, max = MAX_COMMANDS), inner(length(min = 1)))]
    commands: Vec<String>,
}

impl BuiltIn for MacroSaveArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Keep commands under a name until the server ends, to run them by macro_run. \
            They can use parameters: \"$1\", \"$2\" and \"$@\". A macro of that name is replaced.";
        let kept = ToolAnnotations::new().read_only(false).destructive(true).open_world(false);
        tool::<Self, SavedMacro>("Save a macro", description).annotate(kept.idempotent(true))
    }

    async fn call(self, calls: &ClientCalls, _: &Context) -> CallResult {
        calls.check_continuity("pass the commands per call, as to pipeline")?;
        let Self { name, commands } = self;
        let count = commands.len();
        let saved = calls.client.state().macros.save(&name, commands);
        let before = saved.map_err(|why| BadArguments {
            message: format!("{}: {why}", Self::TOOL),
            hint: None,
        })?;
        let replaced = before == Before::Replaced;
        Ok(reply::of_fields(to_value(&SavedMacro { name, commands: count, replaced })))
    }
}

/// Arguments of `macro_run`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MacroRunArguments {
    #[schemars(with = "MacroName")]
    name: String,
    /// The parameters of each command: the first is $1. They are words, and no part of a command's
    /// text
    #[serde(default)]
    #[schemars(transform = without_default)]
    arguments: Vec<String>,
    /// Additional environment variables
    env: Option<BTreeMap<String, String>>,
    /// Working directory for this command alone, inside /workspace or /tmp; without it, what
    /// set_working_dir set
    working_dir: Option<String>,
    /// Timeout in seconds; more than the maximum is lowered to it, and the reply says so
    timeout: Option<Seconds>,
    /// Go on after a command that failed
    #[serde(default)]
    keep_going: bool,
    /// How the cell is confined: one of the profiles that the operator leaves to choose from
    profile: Option<String>,
}

impl BuiltIn for MacroRunArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = "Run the commands of a macro one after the other, each in a fresh cell as \
            bash_exec does. It stops at the first that does not exit with 0, and tells of each that ran.";
        let mut tool = tool::<Self, StepsResult>("Run a macro", description).annotate(runs());
        if let Some(fields) = fields(&mut tool) {
            extend_exec(fields, &in_force.options);
        }
        tool
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let macros = &calls.client.state().macros;
        let absent = || missing(macros, Self::TOOL, &self.name);
        let commands = macros.get(&self.name).ok_or_else(absent)?;
        let mut done = Steps::new(commands.len(), self.keep_going);
        for command in commands {
            let request = self.request(command.clone());
            let ran = done.run(calls, request, Tap::default(), context).await?;
            let Some(report) = ran else { break };
            let ends = done.ends_with(&report);
            done.add(&command, report, Stdout::Shown);
            if ends && !done.is_last() {
                done.stop_after_failure();
                break;
            }
        }
        Ok(done.result())
    }
}

/// Arguments of `macro_list`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MacroListArguments {}

impl BuiltIn for MacroListArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "List the macros and their commands, by name.";
        tool::<Self, MacroRows>("List macros", description).annotate(pure().idempotent(false))
    }

    async fn call(self, calls: &ClientCalls, _: &Context) -> CallResult {
        let macros = calls.client.state().macros.all();
        let row = |(name, commands)| MacroRow { name, commands };
        let macros = macros.into_iter().map(row).collect();
        Ok(reply::of_fields(to_value(&MacroRows { macros })))
    }
}

/// Arguments of `macro_delete`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MacroDeleteArguments {
    #[schemars(with = "MacroName")]
    name: String,
}

impl BuiltIn for MacroDeleteArguments {
    fn describe(_: &InForce) -> Tool {
        let gone = ToolAnnotations::new().read_only(false).destructive(true).open_world(false);
        tool::<Self, DeletedMacro>("Delete a macro", "Forget a macro.")
            .annotate(gone.idempotent(false))
    }

    async fn call(self, calls: &ClientCalls, _: &Context) -> CallResult {
        let Self { name } = self;
        let macros = &calls.client.state().macros;
        match macros.delete(&name) {
            Some(commands) => {
                let commands = commands.len();
                Ok(reply::of_fields(to_value(&DeletedMacro { name, commands })))
            }
            None => Err(missing(macros, Self::TOOL, &name).into()),
        }
    }
}

impl MacroRunArguments {
    /// Makes the request to run one of its commands.
    fn request(&self, command: String) -> ExecRequest {
        let args = ScriptArgs {
            command,
            words: self.arguments.clone(),
            cwd: self.working_dir.clone(),
            timeout: self.timeout.map(|Seconds(value)| value),
            env: self.env.clone(),
            profile: self.profile.clone(),
            ..ScriptArgs::default()
        };
        args.into()
    }
}

fn missing(macros: &Macros, tool: &str, name: &str) -> BadArguments {
    let all = macros.all();
    let names: Vec<&str> = all.keys().map(String::as_str).collect();
    let shown: String = name.chars().take(80).flat_map(char::escape_default).collect();
    let hint = match nearest(name, &names) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "macro_list tells those that there are; they end with the server".to_owned(),
    };
    BadArguments { message: format!("{tool}: no macro `{shown}`"), hint: Some(hint) }
}

/// Name of the macro
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it is described, and never made")]
struct MacroName(
    #[schemars(length(min = 1, max = NAME_BYTES), extend("pattern" = NAME_PATTERN))] String,
);

/// Result of `macro_save`.
#[derive(Serialize, JsonSchema)]
struct SavedMacro {
    name: String,
    /// How many.
    #[schemars(range(min = 1))]
    commands: usize,
    replaced: bool,
}

/// Result of `macro_delete`.
#[derive(Serialize, JsonSchema)]
struct DeletedMacro {
    name: String,
    /// How many it had.
    #[schemars(range(min = 1))]
    commands: usize,
}

/// Result of `macro_list`.
#[derive(Serialize, JsonSchema)]
struct MacroRows {
    macros: Vec<MacroRow>,
}

/// A macro in a list.
#[derive(Serialize, JsonSchema)]
struct MacroRow {
    name: String,
    commands: Vec<String>,
}
