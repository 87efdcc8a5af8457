//! Questions about a cell and its programs, each answered by a script in a fresh cell.

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde::Deserialize;
use serde_json::{Value, json};

use super::built_in::BuiltIn;
use super::schema::tool;
use crate::arguments::{Arguments, Named};
use crate::context::Context;
use crate::exec::{check_exit, failed, read, reply};
use crate::server::Server;
use crate::tool_entry::{CallResult, InForce};
use model::outcome::Outcome;
use service::inspect::{self, Located, System};
use service::refused::{Refused, RefusedKind};

/// Default format of `ps`.
const PS_FORMAT: &str = "aux";

/// Arguments of `get_env`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GetEnvArguments {
    pub variable: Option<String>,
    #[serde(default)]
    pub all: bool,
}

impl Arguments for GetEnvArguments {
    const FIELDS: &'static [&'static str] = &["variable", "all"];
}

impl BuiltIn for GetEnvArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Get an environment variable, or all of them, as a command in a cell has \
            them. Nothing of the server's own environment is in a cell.";
        let input = fields(
            json!({
                "variable": command("Environment variable name"),
                "all": {
                    "type": "boolean", "default": false, "description": "Return all environment variables"
                }
            }),
            &[],
        );
        let output = fields(
            json!({
                "variable": { "type": "string" },
                "found": { "type": "boolean" },
                "value": { "type": "string" },
                "variables": { "type": "object", "additionalProperties": { "type": "string" } }
            }),
            &[],
        );
        tool::<Self>("Get environment variables", description.to_owned(), input, output)
            .annotate(asks())
    }

    async fn call(self, server: &Server, context: &Context) -> CallResult {
        let Self { variable, all } = self;
        if variable.is_none() && !all {
            return Err(Refused::new(RefusedKind::Arguments, "get_env: nothing is asked for")
                .with_hint("give `variable`, or `all`"));
        }
        let variable = variable.map(|name| inspect::word("variable", name)).transpose()?;
        let report = server.script(Self::TOOL, inspect::environment(), context).await?;
        let variables = read(&report, inspect::environment_of)?;
        let mut fields = JsonObject::new();
        if let Some(name) = variable {
            let value = variables.get(&name).cloned();
            fields.insert("found".to_owned(), Value::Bool(value.is_some()));
            fields.insert("variable".to_owned(), Value::String(name));
            fields.extend(value.map(|value| ("value".to_owned(), Value::String(value))));
        }
        if all {
            fields.insert("variables".to_owned(), json!(variables));
        }
        Ok(reply::answered(&report, Value::Object(fields)))
    }
}

/// Arguments of `system_info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SystemInfoArguments {}

impl Arguments for SystemInfoArguments {
    const FIELDS: &'static [&'static str] = &[];
}

impl BuiltIn for SystemInfoArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Get basic system information, as a command in a cell sees it.";
        let names = ["hostname", "os", "architecture", "kernel", "shell", "user", "home", "path"];
        let text = json!({ "type": "string" });
        let properties: serde_json::Map<String, Value> =
            names.iter().map(|name| ((*name).to_owned(), text.clone())).collect();
        let output = fields(Value::Object(properties), &names);
        let input = fields(json!({}), &[]);
        tool::<Self>("System information", description.to_owned(), input, output).annotate(asks())
    }

    async fn call(self, server: &Server, context: &Context) -> CallResult {
        let report = server.script(Self::TOOL, inspect::system(), context).await?;
        let system = read(&report, System::of)?;
        Ok(reply::answered(&report, service::report::to_value(&system)))
    }
}

/// Arguments of `process_info`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProcessInfoArguments {
    pub format: Option<String>,
    pub filter: Option<String>,
}

impl Arguments for ProcessInfoArguments {
    const FIELDS: &'static [&'static str] = &["format", "filter"];
}

impl BuiltIn for ProcessInfoArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Get process information with ps. It shows a cell of its own, and neither the \
            host nor the shells of bash.";
        let input = fields(
            json!({
                "format": {
                    "type": "string", "maxLength": 256, "default": "aux",
                    "description": "Options for ps, such as aux or -eo pid,comm"
                },
                "filter": {
                    "type": "string", "maxLength": 256,
                    "description": "Show only the lines that match this pattern of grep"
                }
            }),
            &[],
        );
        let text = json!({ "type": "string" });
        let output = fields(
            json!({ "format": text, "filter": text, "processes": text }),
            &["format", "filter", "processes"],
        );
        tool::<Self>("Processes", description.to_owned(), input, output).annotate(asks())
    }

    async fn call(self, server: &Server, context: &Context) -> CallResult {
        let format = self.format.unwrap_or_else(|| PS_FORMAT.to_owned());
        let format = inspect::line("format", format)?;
        let filter = inspect::line("filter", self.filter.unwrap_or_default())?;
        let args = inspect::processes(&format, &filter);
        let report = server.script(Self::TOOL, args, context).await?;
        check_exit(&report)?;
        let fields = json!({ "format": format, "filter": filter, "processes": report.stdout.text });
        Ok(reply::shown(&report, &report.stdout.text, fields))
    }
}

/// Arguments of `which_command`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WhichCommandArguments {
    pub command: String,
}

impl Arguments for WhichCommandArguments {
    const FIELDS: &'static [&'static str] = &["command"];
}

impl BuiltIn for WhichCommandArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Find the location of a command in a cell.";
        let input = fields(json!({ "command": command("Name of the command") }), &["command"]);
        let output = fields(
            json!({
                "command": { "type": "string" },
                "found": { "type": "boolean" },
                "kind": {
                    "type": "string",
                    "enum": ["file", "builtin", "keyword", "function", "alias", "none"]
                },
                "path": { "type": "string", "description": "What is run; absent without a file." },
                "paths": {
                    "type": "array", "items": { "type": "string" },
                    "description": "Every file of that name on the path."
                }
            }),
            &["command", "found", "kind", "paths"],
        );
        tool::<Self>("Locate a command", description.to_owned(), input, output).annotate(asks())
    }

    async fn call(self, server: &Server, context: &Context) -> CallResult {
        let name = inspect::word("command", self.command)?;
        let report = server.script(Self::TOOL, inspect::which(&name), context).await?;
        let Located { kind, paths } = read(&report, Located::of)?;
        let mut fields = json!({
            "command": name, "found": kind != "none", "kind": kind, "paths": paths,
        });
        if let (Some(first), Some(map)) = (paths.first(), fields.as_object_mut()) {
            map.insert("path".to_owned(), Value::String(first.clone()));
        }
        Ok(reply::answered(&report, fields))
    }
}

/// Arguments of `command_help`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandHelpArguments {
    pub command: String,
}

impl Arguments for CommandHelpArguments {
    const FIELDS: &'static [&'static str] = &["command"];
}

impl BuiltIn for CommandHelpArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Get help text for a command: it is run with --help in a cell; a builtin of \
            bash is explained by bash.";
        let input = fields(json!({ "command": command("Name of the command") }), &["command"]);
        let output = fields(
            json!({
                "command": { "type": "string" },
                "help": { "type": "string" },
                "exit_code": { "type": "integer", "minimum": 0, "maximum": 255 }
            }),
            &["command", "help", "exit_code"],
        );
        // The named program runs, and may change anything in its cell.
        let annotations =
            ToolAnnotations::new().read_only(false).destructive(false).open_world(false);
        tool::<Self>("Help of a command", description.to_owned(), input, output)
            .annotate(annotations)
    }

    async fn call(self, server: &Server, context: &Context) -> CallResult {
        let name = inspect::word("command", self.command)?;
        let report = server.script(Self::TOOL, inspect::help(&name), context).await?;
        let Outcome::Exited { code } = report.outcome else { return Err(failed(&report)) };
        if code == 127 {
            return Err(Refused { kind: RefusedKind::Absent, ..failed(&report) });
        }
        let help = &report.stdout.text;
        let fields = json!({ "command": name, "help": help, "exit_code": code });
        Ok(reply::shown(&report, help, fields))
    }
}

/// Arguments of `man_page`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ManPageArguments {
    pub command: String,
    pub section: Option<Section>,
}

impl Arguments for ManPageArguments {
    const FIELDS: &'static [&'static str] = &["command", "section"];
}

impl BuiltIn for ManPageArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Get the manual page for a command, as the host has it.";
        let input = fields(
            json!({
                "command": command("Command to get manual for"),
                "section": {
                    "type": "string", "enum": Section::DIGITS, "description": "Manual section (1-8)"
                }
            }),
            &["command"],
        );
        let text = json!({ "type": "string" });
        let output = fields(
            json!({
                "command": text, "section": text, "page": text,
                "rendered_by": {
                    "type": "string", "enum": ["man", "mandoc", "groff", "source"],
                    "description": "`source`: the machine has nothing that renders, so that markup is only taken out."
                }
            }),
            &["command", "page", "rendered_by"],
        );
        tool::<Self>("Manual page", description.to_owned(), input, output).annotate(asks())
    }

    async fn call(self, server: &Server, context: &Context) -> CallResult {
        let name = inspect::page("command", self.command)?;
        let section = self.section.map_or("", Section::digit);
        let args = inspect::manual(&name, section);
        let report = server.script(Self::TOOL, args, context).await?;
        if report.outcome == (Outcome::Exited { code: inspect::NO_PAGE }) {
            return Err(Refused { kind: RefusedKind::Absent, ..failed(&report) });
        }
        let page = read(&report, |text| {
            inspect::manual_of(text).map(|(by, page)| (by.to_owned(), page.to_owned()))
        });
        let (by, page) = page?;
        let mut fields = json!({ "command": name, "page": page, "rendered_by": by });
        if let (Some(section), Some(map)) = (self.section, fields.as_object_mut()) {
            map.insert("section".to_owned(), Value::from(section.digit()));
        }
        Ok(reply::shown(&report, &page, fields))
    }
}

/// Annotates a tool that changes nothing and reaches nothing outside; its answer may differ the
/// next time.
fn asks() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).destructive(false).open_world(false)
}

fn fields(properties: Value, required: &[&str]) -> Value {
    json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": false
    })
}

fn command(about: &str) -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 256, "description": about })
}

/// A section of the manual.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Section {
    #[serde(rename = "1")]
    Commands,
    #[serde(rename = "2")]
    SystemCalls,
    #[serde(rename = "3")]
    Libraries,
    #[serde(rename = "4")]
    Devices,
    #[serde(rename = "5")]
    Files,
    #[serde(rename = "6")]
    Games,
    #[serde(rename = "7")]
    Overviews,
    #[serde(rename = "8")]
    Administration,
}

impl Section {
    pub(crate) const DIGITS: [&'static str; 8] = ["1", "2", "3", "4", "5", "6", "7", "8"];

    pub(crate) fn digit(self) -> &'static str {
        match self {
            Self::Commands => "1",
            Self::SystemCalls => "2",
            Self::Libraries => "3",
            Self::Devices => "4",
            Self::Files => "5",
            Self::Games => "6",
            Self::Overviews => "7",
            Self::Administration => "8",
        }
    }
}
