//! Resources, which a client reads without naming a tool. They describe the cell and never the server.
//!
//! A read becomes a call of a tool, which is decided and recorded as such.

use rmcp::model::{
    CompleteRequestParams, CompleteResult, CompletionInfo, ErrorData, ReadResourceResult,
    Reference, Resource, ResourceContents, ResourceTemplate, ResourceUpdatedNotificationParam,
    SubscriptionFilter,
};
use rmcp::service::SubscriptionContext;
use rmcp::{Peer, RoleServer};
use serde_json::{Value, json};

use super::context::Context;
use super::reply;
use super::server::Server;
use model::outcome::Outcome;
use service::Scope;
use service::inspect;
use service::refused::{Refused, RefusedKind};

const SYSTEM: &str = "bash://system/info";
const ENVIRONMENT: &str = "bash://env/all";
const HISTORY: &str = "bash://history/recent";

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

/// Each entry is a resource with the tool that answers for it.
const ALL: [(&str, &str, &str, &str); 3] = [
    (SYSTEM, "system_info", "System information", "What a cell runs on."),
    (ENVIRONMENT, "get_env", "Environment", "The variables that a command in a cell has."),
    (HISTORY, "history_search", "Command history", "The last commands, the oldest first."),
];

/// Returns the resources whose tools are listed.
pub fn listed(client: &Scope) -> Vec<Resource> {
    let shown = ALL.iter().filter(|(_, tool, _, _)| client.lists(tool));
    let resource = |(uri, _, name, about): &(&str, &str, &str, &str)| {
        Resource::new(*uri, *name).with_description(*about).with_mime_type(JSON)
    };
    shown.map(resource).collect()
}

/// Returns true for the address of a built-in resource whose tool is listed.
pub(crate) fn is_taken(client: &Scope, uri: &str) -> bool {
    let is_listed = ALL.iter().any(|(own, tool, _, _)| *own == uri && client.lists(tool));
    is_listed || Template::shown(client).any(|template| uri.starts_with(template.prefix))
}

/// Returns the templates whose tools are listed.
pub fn templates(client: &Scope) -> Vec<ResourceTemplate> {
    let template = |one: &Template| {
        let template = ResourceTemplate::new(one.uri, one.name);
        template.with_description(one.about).with_mime_type(one.mime())
    };
    Template::shown(client).map(template).collect()
}

impl Server {
    /// Returns the part of a subscription that exists here.
    pub(super) fn accepted(&self, requested: &SubscriptionFilter) -> SubscriptionFilter {
        let mut accepted = SubscriptionFilter::default();
        let uris = || requested.resource_subscriptions.iter().flatten();
        let listed = listed(&self.0.client);
        let known = uris().filter(|uri| listed.iter().any(|resource| resource.uri == **uri));
        let mut known: Vec<String> = known.cloned().collect();
        known.extend(self.watchable(uris().filter(|uri| !is_taken(&self.0.client, uri))));
        accepted.resource_subscriptions = (!known.is_empty()).then_some(known);
        accepted.tools_list_changed = Some(true);
        accepted.prompts_list_changed = Some(true);
        accepted.resources_list_changed = Some(true);
        accepted
    }

    pub(super) async fn read(
        &self,
        uri: &str,
        context: &Context,
    ) -> Result<ReadResourceResult, ErrorData> {
        let known = listed(&self.0.client);
        let of_command = Template::shown(&self.0.client)
            .find_map(|template| Some((template, uri.strip_prefix(template.prefix)?)));
        if let Some((template, command)) = of_command {
            let command = decoded(command).ok_or_else(|| unknown(uri))?;
            let arguments = json!({ "command": command });
            let called = self.called(template.tool, arguments, context).await;
            let fields = called.map_err(|refused| match refused.kind {
                // No resource has such a name.
                RefusedKind::Arguments | RefusedKind::Absent => unknown(uri),
                RefusedKind::Denied | RefusedKind::Cancelled | RefusedKind::Failed => {
                    failed(&refused)
                }
            })?;
            let contents = match template.field {
                None => as_json(uri, &fields),
                Some(field) => {
                    let text = fields.get(field).and_then(Value::as_str).unwrap_or_default();
                    ResourceContents::text(text, uri).with_mime_type(TEXT)
                }
            };
            return Ok(ReadResourceResult::new(vec![contents]));
        }
        let contents = match uri {
            _ if !known.iter().any(|resource| resource.uri == uri) => return Err(unknown(uri)),
            HISTORY => {
                as_json(uri, &service::report::to_value(&self.0.client.state().history.recent()))
            }
            SYSTEM => as_json(uri, &self.answer("system_info", json!({}), context).await?),
            ENVIRONMENT => {
                let fields = self.answer("get_env", json!({ "all": true }), context).await?;
                as_json(uri, fields.get("variables").unwrap_or(&Value::Null))
            }
            _ => return Err(unknown(uri)),
        };
        Ok(ReadResourceResult::new(vec![contents]))
    }

    /// Calls a tool as [`Server::called`] does; a refusal is an error of the protocol.
    async fn answer(
        &self,
        tool: &str,
        arguments: Value,
        context: &Context,
    ) -> Result<Value, ErrorData> {
        self.called(tool, arguments, context).await.map_err(|refused| failed(&refused))
    }

    /// Calls a tool and returns the fields of its answer.
    async fn called(
        &self,
        tool: &str,
        arguments: Value,
        context: &Context,
    ) -> Result<Value, Refused> {
        let arguments = arguments.as_object().cloned();
        let result = self.call_built_in(tool, arguments, context).await?;
        Ok(result.structured_content.unwrap_or_default())
    }

    /// Notifies a client of an older revision of changes to a resource, until it unsubscribes.
    pub(super) async fn watch(&self, uri: &str, peer: Peer<RoleServer>) -> Result<(), ErrorData> {
        if !is_taken(&self.0.client, uri)
            && let Some(done) = self.watch_file(uri).await
        {
            return done;
        }
        self.known(uri)?;
        if uri != HISTORY {
            // The system and the variables of a cell stay the same until the server ends.
            return Ok(());
        }
        let mut changes = self.0.client.state().history.changes();
        let task = tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                let note = ResourceUpdatedNotificationParam::new(HISTORY);
                if peer.notify_resource_updated(note).await.is_err() {
                    return;
                }
            }
        });
        self.0.watching.replace(Some(task));
        Ok(())
    }

    pub(super) fn unwatch(&self, uri: &str) -> Result<(), ErrorData> {
        if !is_taken(&self.0.client, uri) && self.unwatch_file(uri).is_some() {
            return Ok(());
        }
        self.known(uri)?;
        if uri == HISTORY {
            self.0.watching.replace(None);
        }
        Ok(())
    }

    fn known(&self, uri: &str) -> Result<(), ErrorData> {
        let known = listed(&self.0.client).iter().any(|resource| resource.uri == uri);
        if known { Ok(()) } else { Err(unknown(uri)) }
    }

    /// Notifies a subscriber as [`Server::watch`] does, for the stateless revision.
    pub(super) async fn follow(&self, context: &SubscriptionContext) {
        let mut changes = self.0.client.state().history.changes();
        let accepted = context.accepted().resource_subscriptions.iter().flatten();
        let wanted = accepted.into_iter().any(|uri| uri == HISTORY);
        let notified = async {
            while wanted && changes.changed().await.is_ok() {
                if context.sink().notify_resource_updated(HISTORY).await.is_err() {
                    return;
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = context.cancelled() => {}
            () = notified => {}
            () = self.notify_stream(context) => {}
        }
    }

    /// Returns names of commands in a cell, for the templates that take one.
    pub(super) async fn completions(
        &self,
        request: &CompleteRequestParams,
        context: &Context,
    ) -> Result<CompleteResult, ErrorData> {
        let named = |template: &&Template| {
            matches!(&request.r#ref, Reference::Resource(one) if one.uri == template.uri)
                && request.argument.name == "command"
        };
        let Some(template) = Template::shown(&self.0.client).find(named) else {
            let uris = Template::shown(&self.0.client).map(|template| template.uri);
            let uris = uris.collect::<Vec<_>>().join(", ");
            let message = format!("what is completed is `command` of {uris}");
            return Err(ErrorData::invalid_params(message, None));
        };
        let bad = |error: String| ErrorData::invalid_params(error, None);
        let prefix = inspect::line("command", request.argument.value.clone())
            .map_err(|invalid| bad(invalid.to_string()))?;
        let report = self.script(template.tool, inspect::complete(&prefix), context).await;
        let report = report.map_err(|refused| failed(&refused))?;
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

fn unknown(uri: &str) -> ErrorData {
    let shown: String = uri.chars().take(80).flat_map(char::escape_default).collect();
    ErrorData::resource_not_found(format!("no resource `{shown}`"), None)
}

fn failed(refused: &Refused) -> ErrorData {
    ErrorData::internal_error(refused.message.clone(), None)
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
