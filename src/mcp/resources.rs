//! Resources, which a client reads without naming a tool. They describe the cell and never the server.
//!
//! A read becomes a call of a tool, which is decided and recorded as such.

use rmcp::model::{
    CompleteRequestParams, CompleteResult, CompletionInfo, ErrorData, ReadResourceResult,
    Reference, Resource, ResourceContents, ResourceTemplate,
};
use serde_json::{Value, json};

use super::calls::ClientCalls;
use super::context::Context;
use super::exec;
use super::reply;
use super::tool_table::ToolTable;
use model::outcome::Outcome;
use service::Scope;
use service::inspect;
use service::refused::{Refused, RefusedKind};
use service::report::to_value;

const SYSTEM: &str = "bash://system/info";
const ENVIRONMENT: &str = "bash://env/all";
pub(crate) const HISTORY: &str = "bash://history/recent";
const CHANGES: &str = "cofferdam://workspace/changes";

const JSON: &str = "application/json";
const TEXT: &str = "text/plain";

/// A resource of one command, named in its address.
struct Template {
    /// Part of the address before the name.
    prefix: &'static str,
    uri: &'static str,
    tool: &'static str,
    name: &'static str,
    about: &'static str,
    /// Field of the tool's answer that has the text; `None` for the whole answer.
    field: Option<&'static str>,
}

/// Each entry has the tool that answers for it, and names of commands for completion.
const TEMPLATES: [Template; 3] = [
    Template {
        prefix: "bash://man/",
        uri: "bash://man/{command}",
        tool: "man_page",
        name: "Manual page",
        about: "The manual page for a command.",
        field: Some("page"),
    },
    Template {
        prefix: "bash://help/",
        uri: "bash://help/{command}",
        tool: "command_help",
        name: "Help",
        about: "What a command says when it is run with --help.",
        field: Some("help"),
    },
    Template {
        prefix: "bash://which/",
        uri: "bash://which/{command}",
        tool: "which_command",
        name: "Location",
        about: "Where a command is.",
        field: None,
    },
];

impl Template {
    fn mime(&self) -> &'static str {
        if self.field.is_some() { TEXT } else { JSON }
    }

    /// Returns the templates whose tools are listed.
    fn shown(client: &Scope) -> impl Iterator<Item = &'static Self> {
        TEMPLATES.iter().filter(|template| client.lists(template.tool))
    }
}

/// Address of a resource, the tool that answers for it, its name and its description.
const ALL: [(&str, &str, &str, &str); 4] = [
    (SYSTEM, "system_info", "System information", "What a cell runs on."),
    (ENVIRONMENT, "get_env", "Environment", "The variables that a command in a cell has."),
    (HISTORY, "history_search", "Command history", "The last commands, the oldest first."),
    (
        CHANGES,
        "workspace_changes",
        "Changes to the workspace",
        "How /workspace differs from the directory of the host, as workspace_changes lists it.",
    ),
];

/// Returns the resources whose tools are listed.
pub fn listed(client: &Scope) -> Vec<Resource> {
    let shown = ALL.iter().filter(|(_, tool, _, _)| client.lists(tool));
    let resource = |(uri, _, name, about): &(&str, &str, &str, &str)| {
        let mime = if *uri == CHANGES { TEXT } else { JSON };
        Resource::new(*uri, *name).with_description(*about).with_mime_type(mime)
    };
    shown.map(resource).collect()
}

/// Returns true for the address of a built-in resource whose tool is listed.
pub(crate) fn is_taken(client: &Scope, uri: &str) -> bool {
    is_listed(client, uri)
        || Template::shown(client).any(|template| uri.starts_with(template.prefix))
}

/// Returns the templates whose tools are listed.
pub fn templates(client: &Scope) -> Vec<ResourceTemplate> {
    let template = |one: &Template| {
        let template = ResourceTemplate::new(one.uri, one.name);
        template.with_description(one.about).with_mime_type(one.mime())
    };
    Template::shown(client).map(template).collect()
}

/// Returns true for the address of a resource whose tool is listed. Templates have no such address.
pub(crate) fn is_listed(client: &Scope, uri: &str) -> bool {
    ALL.iter().any(|(known, tool, _, _)| *known == uri && client.lists(tool))
}

/// Returns true for the address of a listed resource that a client can subscribe to. Nothing watches a layer.
pub(crate) fn is_followed(client: &Scope, uri: &str) -> bool {
    uri != CHANGES && is_listed(client, uri)
}

/// Reads a resource by a call of its tool.
///
/// # Errors
/// An unknown address, or the reason why the tool has no answer.
pub(crate) async fn read(
    tools: &ToolTable,
    uri: &str,
    context: &Context,
) -> Result<ReadResourceResult, ErrorData> {
    let client = &tools.calls.client;
    let of_command = Template::shown(client)
        .find_map(|template| Some((template, uri.strip_prefix(template.prefix)?)));
    let contents = match (of_command, uri) {
        (Some((template, command)), _) => {
            read_template(tools, template, command, uri, context).await?
        }
        _ if !is_listed(client, uri) => return Err(unknown(uri)),
        (None, HISTORY) => as_json(uri, &to_value(&client.state().history.recent())),
        (None, SYSTEM) => {
            let fields = called(tools, "system_info", json!({}), context).await;
            as_json(uri, &fields.map_err(failed)?)
        }
        (None, ENVIRONMENT) => {
            let fields = called(tools, "get_env", json!({ "all": true }), context).await;
            as_json(uri, fields.map_err(failed)?.get("variables").unwrap_or(&Value::Null))
        }
        (None, CHANGES) => {
            let text = text_of(tools, "workspace_changes", context).await.map_err(failed)?;
            ResourceContents::text(text, uri).with_mime_type(TEXT)
        }
        (None, _) => return Err(unknown(uri)),
    };
    Ok(ReadResourceResult::new(vec![contents]))
}

async fn read_template(
    tools: &ToolTable,
    template: &Template,
    command: &str,
    uri: &str,
    context: &Context,
) -> Result<ResourceContents, ErrorData> {
    let command = decoded(command).ok_or_else(|| unknown(uri))?;
    let done = called(tools, template.tool, json!({ "command": command }), context).await;
    let fields = done.map_err(|refused| match refused.kind {
        // No resource has such a name.
        RefusedKind::Arguments | RefusedKind::Absent => unknown(uri),
        RefusedKind::Denied | RefusedKind::Cancelled | RefusedKind::Failed => failed(refused),
    })?;
    Ok(match template.field {
        None => as_json(uri, &fields),
        Some(field) => {
            let text = fields.get(field).and_then(Value::as_str).unwrap_or_default();
            ResourceContents::text(text, uri).with_mime_type(TEXT)
        }
    })
}

/// Calls a tool and returns the fields of its answer.
async fn called(
    tools: &ToolTable,
    tool: &str,
    arguments: Value,
    context: &Context,
) -> Result<Value, Refused> {
    let result = tools.call_built_in(tool, arguments.as_object().cloned(), context).await?;
    Ok(result.structured_content.unwrap_or_default())
}

/// Calls a tool without arguments and returns the text of its answer.
async fn text_of(tools: &ToolTable, tool: &str, context: &Context) -> Result<String, Refused> {
    let result = tools.call_built_in(tool, None, context).await?;
    let texts = result.content.iter().filter_map(|block| block.as_text());
    Ok(texts.map(|text| text.text.as_str()).collect())
}

/// Returns names of commands in a cell, for the templates that take one.
pub(crate) async fn complete(
    calls: &ClientCalls,
    request: &CompleteRequestParams,
    context: &Context,
) -> Result<CompleteResult, ErrorData> {
    let named = |template: &&Template| {
        matches!(&request.r#ref, Reference::Resource(one) if one.uri == template.uri)
            && request.argument.name == "command"
    };
    let Some(template) = Template::shown(&calls.client).find(named) else {
        let uris = Template::shown(&calls.client).map(|template| template.uri);
        let uris = uris.collect::<Vec<_>>().join(", ");
        let message = format!("what is completed is `command` of {uris}");
        return Err(ErrorData::invalid_params(message, None));
    };
    let bad = |error: String| ErrorData::invalid_params(error, None);
    let prefix = inspect::line("command", request.argument.value.clone())
        .map_err(|invalid| bad(invalid.to_string()))?;
    let report = exec::run_script(calls, template.tool, inspect::complete(&prefix), context).await;
    let report = report.map_err(failed)?;
    if report.ended.outcome != (Outcome::Exited { code: 0 }) {
        return Err(ErrorData::internal_error(reply::status(&report), None));
    }
    let mut values: Vec<String> = report.stdout.text.lines().map(str::to_owned).collect();
    let total = u32::try_from(values.len()).ok();
    let more = values.len() > CompletionInfo::MAX_VALUES;
    values.truncate(CompletionInfo::MAX_VALUES);
    let info = CompletionInfo::with_pagination(values, total, more).map_err(bad)?;
    Ok(CompleteResult::new(info))
}

fn as_json(uri: &str, value: &Value) -> ResourceContents {
    ResourceContents::text(reply::pretty(value), uri).with_mime_type(JSON)
}

/// Decodes the percent-encoded value of a template's variable (RFC 6570, section 3.2.2).
fn decoded(value: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        bytes.push(u8::try_from(digit()? * 16 + digit()?).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// Makes the error of an address that no resource has.
pub(crate) fn unknown(uri: &str) -> ErrorData {
    let shown: String = uri.chars().take(80).flat_map(char::escape_default).collect();
    ErrorData::resource_not_found(format!("no resource `{shown}`"), None)
}

fn failed(refused: Refused) -> ErrorData {
    ErrorData::internal_error(refused.message, None)
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn names_are_decoded_once_or_refused() {
        let took = |text| decoded(text);
        assert_eq!(took("g%2B%2b-12").as_deref(), Some("g++-12"));
        assert_eq!(took("%255B+").as_deref(), Some("%5B+"));
        assert_eq!(took("%C3%A9\u{e9}").as_deref(), Some("\u{e9}\u{e9}"));
        for bad in ["%", "%2", "%zz", "%ff", "%+1", "%2\u{e9}"] {
            assert_eq!(took(bad), None, "{bad}");
        }
    }
}
