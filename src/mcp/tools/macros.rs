//! `macro_save`, `macro_run`, `macro_list` and `macro_delete`.
//!
//! Parameters are passed as `$1`, `$2`, …; they are never inserted into a command's text.

use std::collections::BTreeMap;

use rmcp::model::{Tool, ToolAnnotations};
use serde::Deserialize;
use serde_json::{Value, json};

use super::built_in::BuiltIn;
use super::exec::BashExecArguments;
use super::schema::{no_arguments, pure, runs, tool};
use super::steps::{exec_properties, keep_going_schema, steps_schema};
use crate::arguments::{Arguments, BadArguments, Named, Seconds, nearest};
use crate::context::Context;
use crate::exec::steps::{AfterFailure, Stdout, Steps, is_final, succeeded};
use crate::reply;
use crate::server::Server;
use crate::tool_entry::{CallResult, InForce};
use capture::tap::Tap;
use service::macros::{Before, MAX_COMMANDS, Macros, NAME_BYTES, NAME_PATTERN};
use service::request::ExecRequest;
use service::shell::ScriptArgs;

/// Arguments of `macro_save`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MacroSaveArguments {
    name: String,
    commands: Vec<String>,
}

impl Arguments for MacroSaveArguments {
    const FIELDS: &'static [&'static str] = &["name", "commands"];
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
                    "type": "array", "minItems": 1, "maxItems": MAX_COMMANDS,
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

    async fn call(self, server: &Server, _: &Context) -> CallResult {
        server.lasts("pass the commands per call, as to pipeline")?;
        let Self { name, commands } = self;
        let count = commands.len();
        let saved = server.0.client.state().macros.save(&name, commands);
        let before = saved.map_err(|why| BadArguments {
            message: format!("{}: {why}", Self::TOOL),
            hint: None,
        })?;
        let replaced = before == Before::Replaced;
        Ok(reply::of_fields(json!({ "name": name, "commands": count, "replaced": replaced })))
    }
}

/// Arguments of `macro_run`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MacroRunArguments {
    name: String,
    /// Parameters of the commands, from `$1` on.
    #[serde(default)]
    arguments: Vec<String>,
    env: Option<BTreeMap<String, String>>,
    working_dir: Option<String>,
    timeout: Option<Seconds>,
    #[serde(default)]
    keep_going: bool,
    profile: Option<String>,
}

impl Arguments for MacroRunArguments {
    const FIELDS: &'static [&'static str] =
        &["name", "arguments", "env", "working_dir", "timeout", "keep_going", "profile"];
}

impl BuiltIn for MacroRunArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = "Run the commands of a macro one after the other, each in a fresh cell as \
            bash_exec does. It stops at the first that does not exit with 0, and tells of each that ran.";
        let mut properties = exec_properties(&in_force.options, &["env", "working_dir", "timeout"]);
        properties.insert("name".to_owned(), name());
        let arguments = json!({
            "type": "array", "items": { "type": "string" },
            "description": "The parameters of each command: the first is $1. They are words, and no part of a command's text"
        });
        properties.insert("arguments".to_owned(), arguments);
        properties.insert(
            "keep_going".to_owned(),
            keep_going_schema("Go on after a command that failed"),
        );
        let input = json!({
            "type": "object",
            "properties": properties,
            "required": ["name"],
            "additionalProperties": false
        });
        tool::<Self>("Run a macro", description.to_owned(), input, steps_schema()).annotate(runs())
    }

    async fn call(self, server: &Server, context: &Context) -> CallResult {
        let macros = &server.0.client.state().macros;
        let absent = || missing(macros, Self::TOOL, &self.name);
        let commands = macros.get(&self.name).ok_or_else(absent)?;
        let after_failure = AfterFailure::of(self.keep_going);
        let mut done = Steps::new(commands.len());
        for command in commands {
            let number = done.next();
            let request = self.request(command.clone());
            let report =
                match server.ran(BashExecArguments::TOOL, request, Tap::default(), context).await {
                    Err(refused) if number == 1 => return Err(refused),
                    Err(refused) => {
                        done.stop(format!("step {number} was refused: {refused}"));
                        break;
                    }
                    Ok(report) => report,
                };
            let ends =
                is_final(&report) || (!succeeded(&report) && after_failure == AfterFailure::Stop);
            done.add(&command, report, Stdout::Shown);
            if ends && !done.is_last() {
                done.stop(format!("step {number} failed"));
                break;
            }
        }
        Ok(done.result())
    }
}

/// Arguments of `macro_list`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MacroListArguments {}

impl Arguments for MacroListArguments {
    const FIELDS: &'static [&'static str] = &[];
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

    async fn call(self, server: &Server, _: &Context) -> CallResult {
        let macros = server.0.client.state().macros.all();
        let one = |(name, commands)| json!({ "name": name, "commands": commands });
        Ok(reply::of_fields(json!({ "macros": macros.iter().map(one).collect::<Vec<_>>() })))
    }
}

/// Arguments of `macro_delete`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MacroDeleteArguments {
    name: String,
}

impl Arguments for MacroDeleteArguments {
    const FIELDS: &'static [&'static str] = &["name"];
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

    async fn call(self, server: &Server, _: &Context) -> CallResult {
        let Self { name } = self;
        let macros = &server.0.client.state().macros;
        match macros.delete(&name) {
            Some(commands) => {
                Ok(reply::of_fields(json!({ "name": name, "commands": commands.len() })))
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

fn name() -> Value {
    json!({
        "type": "string", "minLength": 1, "maxLength": NAME_BYTES, "pattern": NAME_PATTERN,
        "description": "Name of the macro"
    })
}
