//! The table of tools of a client: what it lists, and the one entrance for calls of MCP and of plain requests.

use std::time::Instant;

use rmcp::ErrorData;
use rmcp::model::{CallToolResponse, CallToolResult, JsonObject, Tool};
use tracing::Instrument;

use super::{SERVER_INFO_KEY, Server};
use crate::context::Context;
use crate::{commands, harmless, projects, reply, tasks};
use config::policy::tools::class_name;
use service::cli::Declared;
use service::refused::{Refused, RefusedKind};

impl Server {
    /// Returns every tool that is offered, with its schemas.
    ///
    /// # Errors
    /// Lists of a project that cannot be trusted.
    pub fn tools(&self) -> Result<Vec<Tool>, ErrorData> {
        let project = self.project()?;
        let scripts = project.iter().flat_map(|project| self.scripts(project));
        Ok(scripts.map(projects::described).chain(self.own_tools()).collect())
    }

    /// Returns the name of the tool that is offered under this name, which can be that of its class.
    ///
    /// # Errors
    /// Lists of a project that cannot be trusted.
    pub fn offered(&self, name: &str) -> Result<Option<String>, ErrorData> {
        let project = self.project()?;
        let scripts = project.iter().flat_map(|project| self.scripts(project));
        let names: Vec<&str> =
            scripts.map(|tool| tool.name.as_str()).chain(self.own_names()).collect();
        let found = names.iter().find(|tool| **tool == name);
        let found = found.or_else(|| names.iter().find(|tool| class_name(tool) == name));
        Ok(found.map(|tool| (*tool).to_owned()))
    }

    /// Calls a tool by its name, for MCP and for plain requests over HTTP.
    ///
    /// # Errors
    /// A name that no tool has, or a fault. A call that is refused has a result, which says why.
    pub async fn call(
        &self,
        name: &str,
        arguments: Option<JsonObject>,
        context: Context,
    ) -> Result<CallToolResponse, ErrorData> {
        if let Some((project, tool)) = self.project_script(name)? {
            return Box::pin(self.call_script(project, tool, arguments, context)).await;
        }
        let tool = self.of_class(name).unwrap_or_else(|| name.to_owned());
        // A tool that is disabled gets its own error, different from that of an unknown tool.
        let known = self.built_in(&tool).is_some() || self.declared(&tool).is_some();
        if !known && (self.0.tools.is_empty() || self.0.client.withheld(&tool).is_none()) {
            return Err(self.unknown_tool(&tool));
        }
        // Enabled at every level, so that a warning names its call too.
        let span = tracing::error_span!("call", id = %context.id, %tool);
        let modern = tasks::is_modern(&context);
        let server = self.clone();
        let call = async move |context: Context| {
            let mut result = match server.logged(&tool, arguments, &context).await {
                Ok(result) => result,
                Err(refused) => reply::refused(&refused, &tool),
            };
            if modern && let Ok(info) = serde_json::to_value(server.implementation()) {
                result.meta.get_or_insert_default().0.insert(SERVER_INFO_KEY.to_owned(), info);
            }
            Ok(result)
        };
        self.run_call(context, call).instrument(span).await
    }

    async fn perform(
        &self,
        name: &str,
        arguments: Option<JsonObject>,
        context: &Context,
    ) -> Result<CallToolResult, Refused> {
        if let Some(refused) = self.0.client.withheld(name) {
            return Err(refused);
        }
        match self.declared(name) {
            // Boxed: every call would be as large as this one, and is moved several times before it runs.
            Some(declared) => Box::pin(self.command(declared, arguments, context)).await,
            None => self.call_built_in(name, arguments, context).await,
        }
    }

    /// Performs a call of a built-in tool.
    pub(crate) async fn call_built_in(
        &self,
        name: &str,
        arguments: Option<JsonObject>,
        context: &Context,
    ) -> Result<CallToolResult, Refused> {
        match self.built_in(name) {
            Some(tool) => (tool.call)(self, arguments, context).await,
            None => Err(Refused::new(RefusedKind::Absent, "there is no tool of this name")),
        }
    }

    /// Performs a call, and logs its beginning and its end.
    async fn logged(
        &self,
        name: &str,
        arguments: Option<JsonObject>,
        context: &Context,
    ) -> Result<CallToolResult, Refused> {
        let started = Instant::now();
        tracing::debug!("called");
        let done = self.perform(name, arguments, context).await;
        if let Err(Refused { kind: RefusedKind::Arguments, message, .. }) = &done {
            self.0.client.invalid(name, message);
        }
        let succeeded = done.as_ref().is_ok_and(|result| result.is_error != Some(true));
        tracing::debug!(succeeded, took_ms = reply::millis(started.elapsed()), "answered");
        done
    }

    /// Runs a call to its end in a separate tokio task, or hands it to its client as a task.
    ///
    /// # Errors
    /// The call's own, or a fault of the server.
    pub(crate) async fn run_call<F>(
        &self,
        context: Context,
        run: impl FnOnce(Context) -> F,
    ) -> Result<CallToolResponse, ErrorData>
    where
        F: Future<Output = Result<CallToolResult, ErrorData>> + Send + 'static,
    {
        let run = |context| {
            let done = run(context);
            async { done.await.map(harmless::result).map_err(harmless::error) }
        };
        match &self.0.tasks {
            Some(tasks) => tasks.call(context, self.0.client.yield_after(), run).await,
            None => tasks::alone(run(context)).await,
        }
    }

    async fn command(
        &self,
        declared: &Declared,
        arguments: Option<JsonObject>,
        context: &Context,
    ) -> Result<CallToolResult, Refused> {
        let request = match commands::parse_request(declared, arguments) {
            Ok(request) => request,
            Err(bad) => {
                self.0.client.invalid(&declared.command.name, &bad.message);
                return Ok(commands::reply(&commands::invalid(declared, bad)));
            }
        };
        let run = |caller| self.0.client.command(declared, request, caller);
        Ok(commands::reply(&self.turn(context, run).await?))
    }
}
