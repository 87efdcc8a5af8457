//! The tools that one client has apart from those of a project: built-in and declared ones.

use std::sync::Arc;
use std::time::Instant;

use rmcp::model::{JsonObject, Tool};

use crate::calls::ClientCalls;
use crate::context::Context;
use crate::tool_entry::{CallResult, InForce, ToolEntry};
use crate::{commands, reply};
use config::policy::tools::class_name;
use service::cli::Declared;
use service::refused::{Refused, RefusedKind};

/// The built-in and the declared tools of one client.
#[derive(Debug)]
pub(crate) struct ToolTable {
    pub(crate) calls: Arc<ClientCalls>,
    /// Built-in tools.
    pub(crate) entries: &'static [ToolEntry],
}

impl ToolTable {
    /// Describes every tool that is offered.
    pub(crate) fn describe(&self) -> Vec<Tool> {
        let client = &self.calls.client;
        let in_force = InForce { rules: client.rules(), options: client.exec_options() };
        let listed = self.entries.iter().filter(|tool| client.lists(tool.name));
        let declared = self.offered_commands().map(commands::tool);
        listed.map(|tool| (tool.describe)(&in_force)).chain(declared).collect()
    }

    /// Returns the names of the tools that are offered.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let built_in = self.entries.iter().map(|tool| tool.name);
        let declared = self.offered_commands().map(|declared| declared.command.name.as_str());
        built_in.filter(|name| self.calls.client.lists(name)).chain(declared)
    }

    /// Returns the declared tools that are offered now.
    fn offered_commands(&self) -> impl Iterator<Item = &Declared> {
        let client = &self.calls.client;
        client.commands().iter().filter(|one| client.withheld(&one.command.name).is_none())
    }

    /// Returns true for the name of a tool, offered or not.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.built_in(name).is_some() || self.declared(name).is_some()
    }

    fn built_in(&self, name: &str) -> Option<&'static ToolEntry> {
        self.entries.iter().find(|tool| tool.name == name)
    }

    fn declared(&self, name: &str) -> Option<&Declared> {
        self.calls.client.commands().iter().find(|declared| declared.command.name == name)
    }

    /// Returns the name of the declared tool that clients of the reference implementation call by this name of a
    /// class, unless another tool has the name.
    pub(crate) fn of_class(&self, class: &str) -> Option<String> {
        if self.has(class) {
            return None;
        }
        let mut names = self.calls.client.commands().iter().map(|declared| &declared.command.name);
        names.find(|name| class_name(name) == class).cloned()
    }

    /// Performs a call, and logs its beginning and its end.
    pub(crate) async fn call(
        &self,
        name: &str,
        arguments: Option<JsonObject>,
        context: &Context,
    ) -> CallResult {
        let started = Instant::now();
        tracing::debug!("called");
        let done = match (self.calls.client.withheld(name), self.declared(name)) {
            (Some(refused), _) => Err(refused),
            // Boxed: every call would be as large as this one, and is moved several times before it runs.
            (None, Some(declared)) => {
                Box::pin(self.call_declared(declared, arguments, context)).await
            }
            (None, None) => self.call_built_in(name, arguments, context).await,
        };
        if let Err(Refused { kind: RefusedKind::Arguments, message, .. }) = &done {
            self.calls.client.invalid(name, message);
        }
        let succeeded = done.as_ref().is_ok_and(|result| result.is_error != Some(true));
        tracing::debug!(succeeded, took_ms = reply::millis(started.elapsed()), "answered");
        done
    }

    /// Performs a call of a built-in tool.
    pub(crate) async fn call_built_in(
        &self,
        name: &str,
        arguments: Option<JsonObject>,
        context: &Context,
    ) -> CallResult {
        match self.built_in(name) {
            Some(tool) => (tool.call)(&self.calls, arguments, context).await,
            None => Err(Refused::new(RefusedKind::Absent, "there is no tool of this name")),
        }
    }

    async fn call_declared(
        &self,
        declared: &Declared,
        arguments: Option<JsonObject>,
        context: &Context,
    ) -> CallResult {
        let client = &self.calls.client;
        let request = match commands::parse_request(declared, arguments) {
            Ok(request) => request,
            Err(bad) => {
                client.invalid(&declared.command.name, &bad.message);
                return Ok(commands::reply(&commands::invalid(declared, bad)));
            }
        };
        let run = |caller| client.command(declared, request, caller);
        Ok(commands::reply(&self.calls.turn(context, run).await?))
    }
}
