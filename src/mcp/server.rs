//! The server of one client: its tools, its project, and what it keeps between requests.

mod requests;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolResponse, CallToolResult, ConstString, Implementation, JsonObject, Tool,
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::arguments::nearest;
use crate::calls::ClientCalls;
pub use crate::calls::Continuity;
use crate::changes::ChangeNotifier;
use crate::context::Context;
use crate::logs::Logs;
use crate::projects::ProjectServer;
use crate::projects::current::CurrentProject;
use crate::projects::describe;
use crate::tasks::{self, Tasks};
use crate::tool_entry::ToolEntry;
use crate::tool_table::ToolTable;
use crate::{harmless, reply};
use config::policy::tools::class_name;
use projects::{Project, ScriptTool};
use service::Scope;

/// Key of `_meta` in which a result names the server (2026-07-28).
const SERVER_INFO_KEY: &str = "io.modelcontextprotocol/serverInfo";

/// Instructions of the server to a model.
const INSTRUCTIONS: &str = "Commands run in a sandbox: bash keeps a shell for each session, \
    in a contained cell of its own; the reply says when a shell has ended. Calculations get a \
    fresh cell each. Call sandbox_rules to see paths, limits and network before trying to work around a refusal.";

/// Instructions to a model where a project's tools are the only ones.
const PROJECT_INSTRUCTIONS: &str = "The tools are scripts of a project. Each call runs in a sandboxed cell of its own, \
    without a network outside it; the project is at /workspace.";

/// Sentence of the instructions where the changes of cells to the workspace are kept in a layer.
const LAYER_INSTRUCTIONS: &str = " Changes in /workspace go to a layer: the host's files have not changed until the \
    operator applies them with `cofferdam review`.";

/// Tools of a server, in addition to declared ones.
#[derive(Debug, Clone)]
pub enum Offer {
    /// The built-in ones.
    BuiltIn,
    /// The scripts of a project, and nothing else.
    Project(Arc<CurrentProject>),
    /// Both; the built-in tool is called where names collide.
    Both(Arc<CurrentProject>),
}

/// The MCP server of one connection. Clones are the same server.
#[derive(Debug, Clone)]
pub struct Server(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    calls: Arc<ClientCalls>,
    tools: Arc<ToolTable>,
    project: Option<Arc<ProjectServer>>,
    changes: Arc<ChangeNotifier>,
    /// `None` where no later request could ask for a task.
    tasks: Option<Tasks>,
    /// True once the session was opened, where there is one.
    is_open: AtomicBool,
}

impl Server {
    /// Serves `client` with what `offer` says; tripping `kill` ends every call in flight.
    pub fn offering(
        client: Scope,
        kill: CancellationToken,
        offer: Offer,
        continuity: Continuity,
    ) -> Self {
        let (entries, project): (&'static [ToolEntry], _) = match offer {
            Offer::BuiltIn => (ToolEntry::ALL, None),
            Offer::Project(project) => (&[], Some(project)),
            Offer::Both(project) => (ToolEntry::ALL, Some(project)),
        };
        Self::with_tools(client, kill, entries, project, continuity)
    }

    /// Serves `client` with these built-in tools and the scripts of a project.
    pub fn with_tools(
        client: Scope,
        kill: CancellationToken,
        entries: &'static [ToolEntry],
        project: Option<Arc<CurrentProject>>,
        continuity: Continuity,
    ) -> Self {
        let tasks = match continuity {
            Continuity::Connection | Continuity::Requests => Some(Tasks::default()),
            // Sessions over HTTP are of revisions that have no tasks.
            Continuity::Session | Continuity::Anonymous => None,
        };
        let calls = Arc::new(ClientCalls { client, continuity, logs: Logs::default(), kill });
        let tools = Arc::new(ToolTable { calls: Arc::clone(&calls), entries });
        let changes = Arc::new(ChangeNotifier::new(Arc::clone(&tools), project.clone()));
        let serve = |current| Arc::new(ProjectServer::new(current, Arc::clone(&calls)));
        let project = project.map(serve);
        Self(Arc::new(Shared {
            calls,
            tools,
            project,
            changes,
            tasks,
            is_open: AtomicBool::default(),
        }))
    }

    /// Returns every tool that is offered, with its schemas.
    ///
    /// # Errors
    /// Lists of a project that cannot be trusted.
    pub fn tools(&self) -> Result<Vec<Tool>, ErrorData> {
        let project = self.project()?;
        let scripts = project.iter().flat_map(|project| self.scripts(project));
        Ok(scripts.map(describe::tool).chain(self.0.tools.describe()).collect())
    }

    /// Returns the name of the tool that is offered under this name, which can be that of its class.
    ///
    /// # Errors
    /// Lists of a project that cannot be trusted.
    pub fn offered(&self, name: &str) -> Result<Option<String>, ErrorData> {
        let project = self.project()?;
        let names = self.names(project.as_deref());
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
        if let Some(project) = self.0.project.as_ref().filter(|_| !self.is_taken(name)) {
            let current = project.current.trusted()?;
            if let Some(tool) = current.tool(name).cloned() {
                let project = Arc::clone(project);
                let span = tracing::error_span!("call", id = %context.id, tool = %tool.name);
                let run = async move |context: Context| {
                    project.call(&current, &tool, arguments, &context).await
                };
                return Box::pin(self.run_call(context, run)).instrument(span).await;
            }
        }
        let tools = Arc::clone(&self.0.tools);
        let tool = tools.of_class(name).unwrap_or_else(|| name.to_owned());
        // A tool that is disabled gets its own error, different from that of an unknown tool.
        let is_disabled =
            || !tools.entries.is_empty() && self.0.calls.client.withheld(&tool).is_some();
        if !tools.has(&tool) && !is_disabled() {
            return Err(self.unknown_tool(&tool));
        }
        // Enabled at every level, so that a warning names its call too.
        let span = tracing::error_span!("call", id = %context.id, %tool);
        let info = tasks::is_modern(&context).then(|| self.implementation());
        let run = async move |context: Context| {
            let called = tools.call(&tool, arguments, &context).await;
            let mut result = called.unwrap_or_else(|refused| reply::refused(&refused, &tool));
            if let Some(Ok(info)) = info.map(serde_json::to_value) {
                result.meta.get_or_insert_default().0.insert(SERVER_INFO_KEY.to_owned(), info);
            }
            Ok(result)
        };
        self.run_call(context, run).instrument(span).await
    }

    /// Runs a call to its end in a separate tokio task, or hands it to its client as a task.
    ///
    /// # Errors
    /// The call's own, or a fault of the server.
    async fn run_call<F>(
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
            Some(tasks) => tasks.call(context, self.0.calls.client.yield_after(), run).await,
            None => tasks::alone(run(context)).await,
        }
    }

    /// Returns the project as it is now, if there is one.
    ///
    /// # Errors
    /// Lists of it that cannot be trusted.
    fn project(&self) -> Result<Option<Arc<Project>>, ErrorData> {
        self.0.project.as_ref().map(|project| project.current.trusted()).transpose()
    }

    /// Returns the project as it was read last, if there is one.
    pub(crate) fn last_project(&self) -> Option<Arc<Project>> {
        self.0.project.as_ref().map(|project| project.current.last())
    }

    /// Returns the project's tools, without those whose names are taken: a project is not asked what a tool of the
    /// operator's does.
    fn scripts<'p>(&self, project: &'p Project) -> impl Iterator<Item = &'p ScriptTool> {
        project.tools.iter().filter(|tool| !self.is_taken(&tool.name))
    }

    /// Returns the names of all tools that are offered.
    fn names<'s>(&'s self, project: Option<&'s Project>) -> Vec<&'s str> {
        let scripts = project.into_iter().flat_map(|project| self.scripts(project));
        scripts.map(|tool| tool.name.as_str()).chain(self.0.tools.names()).collect()
    }

    /// Returns true for the names of built-in and of declared tools, and for those of the latter's classes.
    fn is_taken(&self, name: &str) -> bool {
        self.0.tools.has(name) || self.0.tools.of_class(name).is_some()
    }

    /// Returns the server's name and version: those of its project, if it has one.
    fn implementation(&self) -> Implementation {
        match self.last_project() {
            Some(project) => describe::implementation(&project),
            None => {
                Implementation::new("cofferdam", env!("CARGO_PKG_VERSION")).with_title("cofferdam")
            }
        }
    }

    /// Returns the instructions to a model: the operator's, if there are any for the project.
    fn instructions(&self) -> String {
        let own = self.last_project().and_then(|project| project.settings.instructions.clone());
        let is_alone = self.0.tools.entries.is_empty();
        let default = if is_alone { PROJECT_INSTRUCTIONS } else { INSTRUCTIONS };
        let mut instructions = own.unwrap_or_else(|| default.to_owned());
        if self.0.calls.client.has_layer() {
            instructions.push_str(LAYER_INSTRUCTIONS);
        }
        instructions
    }

    /// Makes the error of a name that no tool has.
    fn unknown_tool(&self, name: &str) -> ErrorData {
        let shown: String = name.chars().take(80).flat_map(char::escape_default).collect();
        let message = match nearest(name, &self.names(self.last_project().as_deref())) {
            Some(near) => format!("unknown tool `{shown}`; did you mean `{near}`?"),
            None => format!("unknown tool `{shown}`"),
        };
        ErrorData::invalid_params(message, None)
    }

    /// Returns the tasks of the client, if it may have any.
    pub(crate) fn tasks(&self) -> Option<&Tasks> {
        self.0.tasks.as_ref()
    }

    /// Returns the tasks that a request can be about.
    ///
    /// # Errors
    /// A revision that has no such method.
    fn tasks_of<M: ConstString>(&self, context: &Context) -> Result<&Tasks, ErrorData> {
        let tasks = self.tasks().filter(|_| tasks::is_modern(context));
        tasks.ok_or_else(ErrorData::method_not_found::<M>)
    }
}
