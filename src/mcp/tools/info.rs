//! Questions about a cell and its programs, each answered by a script in a fresh cell.

use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Value, json};

use super::schema::tool;
use super::{BuiltIn, CallResult, Context, InForce};
use crate::backend::Backend;
use crate::exec::arguments::{
    EnvArguments, HelpArguments, ManualArguments, ProcessArguments, Section, SystemArguments,
    WhichArguments,
};
use crate::server::Server;

impl BuiltIn for EnvArguments {
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

    async fn call<B: Backend>(self, server: &Server<B>, context: &Context) -> CallResult {
        server.get_env(self, context).await
    }
}

impl BuiltIn for SystemArguments {
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

    async fn call<B: Backend>(self, server: &Server<B>, context: &Context) -> CallResult {
        server.system_info(context).await
    }
}

impl BuiltIn for ProcessArguments {
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

    async fn call<B: Backend>(self, server: &Server<B>, context: &Context) -> CallResult {
        server.process_info(self, context).await
    }
}

impl BuiltIn for WhichArguments {
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

    async fn call<B: Backend>(self, server: &Server<B>, context: &Context) -> CallResult {
        server.which_command(self, context).await
    }
}

impl BuiltIn for HelpArguments {
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
        // The named program runs; its effect on its own cell is not known.
        let annotations =
            ToolAnnotations::new().read_only(false).destructive(false).open_world(false);
        tool::<Self>("Help of a command", description.to_owned(), input, output)
            .annotate(annotations)
    }

    async fn call<B: Backend>(self, server: &Server<B>, context: &Context) -> CallResult {
        server.command_help(self, context).await
    }
}

impl BuiltIn for ManualArguments {
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

    async fn call<B: Backend>(self, server: &Server<B>, context: &Context) -> CallResult {
        server.man_page(self, context).await
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
