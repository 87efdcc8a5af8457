//! Resources: what a client may read without a tool, told of the cell and never of the server.
//!
//! What a tool answers is answered here by the same call, decided and recorded as that tool's.

use rmcp::model::{
    CompleteRequestParams, CompleteResult, CompletionInfo, ErrorData, ReadResourceResult,
    Reference, Resource, ResourceContents, ResourceTemplate, ResourceUpdatedNotificationParam,
    SubscriptionFilter,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::{Peer, RoleServer};
use serde_json::{Value, json};

use super::backend::{Backend, Refused};
use super::reply;
use super::server::Server;
use crate::outcome::Outcome;
use crate::tools::inspect;

const SYSTEM: &str = "bash://system/info";
const ENVIRONMENT: &str = "bash://env/all";
const HISTORY: &str = "bash://history/recent";
/// The manual page of a command, which is completed.
const MANUAL: &str = "bash://man/{command}";
const MANUAL_PREFIX: &str = "bash://man/";

const JSON: &str = "application/json";

/// Each resource with the tool that answers for it.
const ALL: [(&str, &str, &str, &str); 3] = [
    (SYSTEM, "system_info", "System information", "What a cell runs on."),
    (ENVIRONMENT, "get_env", "Environment", "The variables that a command in a cell has."),
    (HISTORY, "history_search", "Command history", "The last commands, the oldest first."),
];

/// The resources whose tools are shown.
pub fn listed<B: Backend>(backend: &B) -> Vec<Resource> {
    let shown = ALL.iter().filter(|(_, tool, _, _)| backend.lists(tool));
    let resource = |(uri, _, name, about): &(&str, &str, &str, &str)| {
        Resource::new(*uri, *name).with_description(*about).with_mime_type(JSON)
    };
    shown.map(resource).collect()
}

/// The templates whose tools are shown.
pub fn templates<B: Backend>(backend: &B) -> Vec<ResourceTemplate> {
    let manual = ResourceTemplate::new(MANUAL, "Manual page")
        .with_description("The manual page for a command.")
        .with_mime_type("text/plain");
    backend.lists("man_page").then_some(manual).into_iter().collect()
}

/// Of what a client wants to hear of: the history, which alone changes by itself.
pub fn accepted(requested: &SubscriptionFilter) -> SubscriptionFilter {
    let mut accepted = SubscriptionFilter::default();
    let uris = requested.resource_subscriptions.iter().flatten();
    let known: Vec<String> = uris.filter(|uri| uri.as_str() == HISTORY).cloned().collect();
    accepted.resource_subscriptions = (!known.is_empty()).then_some(known);
    accepted
}

type Context = RequestContext<RoleServer>;

impl<B: Backend> Server<B> {
    pub(super) async fn read(
        &self,
        uri: &str,
        context: &Context,
    ) -> Result<ReadResourceResult, ErrorData> {
        let known = listed(&self.0.backend);
        let manual = uri.strip_prefix(MANUAL_PREFIX).filter(|_| self.0.backend.lists("man_page"));
        let contents = match uri {
            _ if manual.is_some() => {
                let page = self.answer("man_page", json!({ "command": manual }), context).await?;
                let page = page.get("page").and_then(Value::as_str).unwrap_or_default();
                ResourceContents::text(page, uri)
            }
            _ if !known.iter().any(|resource| resource.uri == uri) => return Err(unknown(uri)),
            HISTORY => as_json(uri, &reply::to_value(&self.0.history.recent())),
            SYSTEM => as_json(uri, &self.answer("system_info", json!({}), context).await?),
            _ => {
                let told = self.answer("get_env", json!({ "all": true }), context).await?;
                as_json(uri, told.get("variables").unwrap_or(&Value::Null))
            }
        };
        Ok(ReadResourceResult::new(vec![contents]))
    }

    /// The fields of a tool's answer.
    async fn answer(
        &self,
        tool: &str,
        arguments: Value,
        context: &Context,
    ) -> Result<Value, ErrorData> {
        let done = self.fresh(tool, arguments.as_object().cloned(), context).await;
        let result = done.map_err(|refused| failed(&refused))?;
        Ok(result.structured_content.unwrap_or_default())
    }

    /// Tells a client of an older revision when a resource has changed, until it has enough.
    pub(super) fn watch(&self, uri: &str, peer: Peer<RoleServer>) -> Result<(), ErrorData> {
        self.subscribable(uri)?;
        let mut changes = self.0.history.changes();
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
        self.subscribable(uri)?;
        self.0.watching.replace(None);
        Ok(())
    }

    fn subscribable(&self, uri: &str) -> Result<(), ErrorData> {
        let known = listed(&self.0.backend).iter().any(|resource| resource.uri == uri);
        match (known, uri) {
            (true, HISTORY) => Ok(()),
            (true, _) => {
                let message = format!("`{uri}` does not change; subscribe to {HISTORY}");
                Err(ErrorData::invalid_params(message, None))
            }
            (false, _) => Err(unknown(uri)),
        }
    }

    /// As [`Server::watch`], for the stateless revision.
    pub(super) async fn follow(&self, context: &SubscriptionContext) {
        let mut changes = self.0.history.changes();
        let wanted = context.accepted().resource_subscriptions.is_some();
        let told = async {
            while wanted && changes.changed().await.is_ok() {
                if context.sink().notify_resource_updated(HISTORY).await.is_err() {
                    return;
                }
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = context.cancelled() => {}
            () = told => {}
        }
    }

    /// Names of commands in a cell, for the template of manual pages.
    pub(super) async fn completions(
        &self,
        request: &CompleteRequestParams,
        context: &Context,
    ) -> Result<CompleteResult, ErrorData> {
        let is_manual = matches!(&request.r#ref, Reference::Resource(one) if one.uri == MANUAL)
            && request.argument.name == "command"
            && self.0.backend.lists("man_page");
        if !is_manual {
            return Err(ErrorData::invalid_params(format!("only {MANUAL} is completed"), None));
        }
        let bad = |error: String| ErrorData::invalid_params(error, None);
        let prefix = inspect::line("command", request.argument.value.clone())
            .map_err(|invalid| bad(invalid.to_string()))?;
        let told = self.script("which_command", inspect::complete(&prefix), context).await;
        let told = told.map_err(|refused| failed(&refused))?;
        if told.outcome != (Outcome::Exited { code: 0 }) {
            return Err(ErrorData::internal_error(reply::status(&told), None));
        }
        let mut values: Vec<String> = told.stdout.text.lines().map(str::to_owned).collect();
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

fn unknown(uri: &str) -> ErrorData {
    let shown: String = uri.chars().take(80).flat_map(char::escape_default).collect();
    ErrorData::resource_not_found(format!("no resource `{shown}`"), None)
}

fn failed(refused: &Refused) -> ErrorData {
    ErrorData::internal_error(refused.message.clone(), None)
}

/// The task that tells a client of changes; it ends with this.
#[derive(Debug, Default)]
pub struct Watching(std::sync::Mutex<Option<tokio::task::JoinHandle<()>>>);

impl Watching {
    fn replace(&self, task: Option<tokio::task::JoinHandle<()>>) {
        let mut held = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(before) = std::mem::replace(&mut *held, task) {
            before.abort();
        }
    }
}
