//! Questions about a cell and its programs, each answered by a script in a fresh cell.

use std::collections::BTreeMap;

use rmcp::model::{Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};

use super::schema::tool;
use crate::arguments::Named;
use crate::calls::ClientCalls;
use crate::context::Context;
use crate::exec::{check_exit, failure, parse_output, run_script};
use crate::reply::exec::{answered, shown};
use crate::tool_entry::{BuiltIn, CallResult, InForce};
use model::outcome::Outcome;
use service::inspect::{self, Located, System};
use service::refused::{Refused, RefusedKind};
use service::report::to_value;

/// Default format of `ps`.
const PS_FORMAT: &str = "aux";

/// Arguments of `get_env`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = []))]
pub(crate) struct GetEnvArguments {
    /// Environment variable name
    #[schemars(length(min = 1, max = 256))]
    pub variable: Option<String>,
    /// Return all environment variables
    #[serde(default)]
    pub all: bool,
}

impl BuiltIn for GetEnvArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Get an environment variable, or all of them, as a command in a cell has \
            them. Nothing of the server's own environment is in a cell.";
        tool::<Self, Environment>("Get environment variables", description).annotate(asks())
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let Self { variable, all } = self;
        if variable.is_none() && !all {
            return Err(Refused::new(RefusedKind::Arguments, "get_env: nothing is asked for")
                .with_hint("give `variable`, or `all`"));
        }
        let variable = variable.map(|name| inspect::word("variable", name)).transpose()?;
        let report = run_script(calls, Self::TOOL, inspect::environment(), context).await?;
        let variables = parse_output(&report, inspect::environment_of)?;
        let value = variable.as_ref().and_then(|name| variables.get(name).cloned());
        let result = Environment {
            found: variable.is_some().then_some(value.is_some()),
            variable,
            value,
            variables: all.then_some(variables),
        };
        Ok(answered(&report, to_value(&result)))
    }
}

/// Result of `get_env`.
#[derive(Serialize, JsonSchema)]
struct Environment {
    #[serde(skip_serializing_if = "Option::is_none")]
    variable: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    variables: Option<BTreeMap<String, String>>,
}

/// Arguments of `system_info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = []))]
pub(crate) struct SystemInfoArguments {}

impl BuiltIn for SystemInfoArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Get basic system information, as a command in a cell sees it.";
        tool::<Self, System>("System information", description).annotate(asks())
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let report = run_script(calls, Self::TOOL, inspect::system(), context).await?;
        let system = parse_output(&report, System::of)?;
        Ok(answered(&report, to_value(&system)))
    }
}

/// Arguments of `process_info`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = []))]
pub(crate) struct ProcessInfoArguments {
    /// Options for ps, such as aux or -eo pid,comm
    #[schemars(length(max = 256), extend("default" = PS_FORMAT))]
    pub format: Option<String>,
    /// Show only the lines that match this pattern of grep
    #[schemars(length(max = 256))]
    pub filter: Option<String>,
}

impl BuiltIn for ProcessInfoArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Get process information with ps. It shows a cell of its own, and neither the \
            host nor the shells of bash.";
        tool::<Self, Processes>("Processes", description).annotate(asks())
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let format = self.format.unwrap_or_else(|| PS_FORMAT.to_owned());
        let format = inspect::line("format", format)?;
        let filter = inspect::line("filter", self.filter.unwrap_or_default())?;
        let args = inspect::processes(&format, &filter);
        let report = run_script(calls, Self::TOOL, args, context).await?;
        check_exit(&report)?;
        let result = Processes { format, filter, processes: &report.stdout.text };
        Ok(shown(&report, &report.stdout.text, to_value(&result)))
    }
}

/// Result of `process_info`.
#[derive(Serialize, JsonSchema)]
struct Processes<'a> {
    format: String,
    filter: String,
    processes: &'a str,
}

/// Arguments of `which_command`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WhichCommandArguments {
    /// Name of the command
    #[schemars(length(min = 1, max = 256))]
    pub command: String,
}

impl BuiltIn for WhichCommandArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Find the location of a command in a cell.";
        tool::<Self, FoundCommand>("Locate a command", description).annotate(asks())
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let name = inspect::word("command", self.command)?;
        let report = run_script(calls, Self::TOOL, inspect::which(&name), context).await?;
        let Located { kind, paths } = parse_output(&report, Located::of)?;
        let path = paths.first().cloned();
        let result = FoundCommand { command: name, found: kind != "none", kind, path, paths };
        Ok(answered(&report, to_value(&result)))
    }
}

/// Result of `which_command`.
#[derive(Serialize, JsonSchema)]
struct FoundCommand {
    command: String,
    found: bool,
    #[schemars(extend("enum" = ["file", "builtin", "keyword", "function", "alias", "none"]))]
    kind: String,
    /// What is run; absent without a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// Every file of that name on the path.
    paths: Vec<String>,
}

/// Arguments of `command_help`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandHelpArguments {
    /// Name of the command
    #[schemars(length(min = 1, max = 256))]
    pub command: String,
}

impl BuiltIn for CommandHelpArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Get help text for a command: it is run with --help in a cell; a builtin of \
            bash is explained by bash.";
        // The named program runs, and may change anything in its cell.
        let annotations =
            ToolAnnotations::new().read_only(false).destructive(false).open_world(false);
        tool::<Self, CommandHelp>("Help of a command", description).annotate(annotations)
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let name = inspect::word("command", self.command)?;
        let report = run_script(calls, Self::TOOL, inspect::help(&name), context).await?;
        let Outcome::Exited { code } = report.ended.outcome else { return Err(failure(&report)) };
        if code == 127 {
            return Err(Refused { kind: RefusedKind::Absent, ..failure(&report) });
        }
        let help = &report.stdout.text;
        let result = CommandHelp { command: name, help, exit_code: code };
        Ok(shown(&report, help, to_value(&result)))
    }
}

/// Result of `command_help`.
#[derive(Serialize, JsonSchema)]
struct CommandHelp<'a> {
    command: String,
    help: &'a str,
    exit_code: u8,
}

/// Arguments of `man_page`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ManPageArguments {
    /// Command to get manual for
    #[schemars(length(min = 1, max = 256))]
    pub command: String,
    /// Manual section (1-8)
    pub section: Option<Section>,
}

impl BuiltIn for ManPageArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Get the manual page for a command, as the host has it.";
        tool::<Self, ManPage>("Manual page", description).annotate(asks())
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let name = inspect::page("command", self.command)?;
        let section = self.section.map(Section::digit);
        let args = inspect::manual(&name, section.as_deref().unwrap_or_default());
        let report = run_script(calls, Self::TOOL, args, context).await?;
        if report.ended.outcome == (Outcome::Exited { code: inspect::NO_PAGE }) {
            return Err(Refused { kind: RefusedKind::Absent, ..failure(&report) });
        }
        let page = parse_output(&report, |text| {
            inspect::manual_of(text).map(|(by, page)| (by.to_owned(), page.to_owned()))
        });
        let (by, page) = page?;
        let result = ManPage { command: name, section, page: &page, rendered_by: by };
        Ok(shown(&report, &page, to_value(&result)))
    }
}

/// Result of `man_page`.
#[derive(Serialize, JsonSchema)]
struct ManPage<'a> {
    command: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    section: Option<String>,
    page: &'a str,
    /// `source`: the machine has nothing that renders, so that markup is only taken out.
    #[schemars(extend("enum" = ["man", "mandoc", "groff", "source"]))]
    rendered_by: String,
}

/// Annotates a tool that changes nothing and reaches nothing outside; its answer may differ the
/// next time.
fn asks() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).destructive(false).open_world(false)
}

/// A section of the manual: `"1"` to `"8"`. The number is accepted too, which the schema does not say: it names one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(description = "")]
pub(crate) struct Section(
    #[schemars(with = "String", extend("enum" = ["1", "2", "3", "4", "5", "6", "7", "8"]))] u8,
);

impl<'de> Deserialize<'de> for Section {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a section from 1 to 8")]
        enum Given {
            Number(u8),
            Digit(String),
        }
        let number = match Given::deserialize(deserializer)? {
            Given::Number(number) => Some(number),
            Given::Digit(text) => text.parse().ok().filter(|_| text.len() == 1),
        };
        let number = number.filter(|number| (1..=8).contains(number));
        number.map(Self).ok_or_else(|| de::Error::custom("expected a section from 1 to 8"))
    }
}

impl Section {
    fn digit(self) -> String {
        self.0.to_string()
    }
}
