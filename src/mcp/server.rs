//! The server of one client: its tools, its project, and what it keeps between requests.

pub(crate) mod calculator;
mod calls;
mod requests;
mod turns;

use super::arguments::nearest;
use super::commands;
use super::logs::Logs;
use super::pages::{self, Page, Paged};
use super::tasks::{self, Tasks};
use crate::background_task::BackgroundTask;
use crate::context::Context;
use crate::projects::current::CurrentProject;
use crate::subscriptions::Subscriptions;
use crate::tool_entry::{InForce, ToolEntry};
use config::policy::tools::class_name;
use projects::{Project, ScriptRoot, ScriptTool};
use rmcp::ErrorData;
use rmcp::model::{
    ConstString, Implementation, MetaObject, PaginatedRequestParams, RequestMetaObject, Tool,
};
use service::Scope;
use service::cli::Declared;
use service::refused::Refused;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio_util::sync::CancellationToken;

/// Entries of a page, the cursor of the next one, and the `_meta` of the list.
type PageOf<T> = (Vec<T>, Option<String>, Option<MetaObject>);

/// Key of `_meta` in which a result names the server (2026-07-28).
const SERVER_INFO_KEY: &str = "io.modelcontextprotocol/serverInfo";

/// Instructions of the server to a model.
const INSTRUCTIONS: &str = "Commands run in a sandbox: bash keeps a shell for each session, \
    in a contained cell of its own; the reply says when a shell has ended. Calculations get a \
    fresh cell each. Call sandbox_rules to see paths, limits and network before trying to work around a refusal.";

/// Instructions to a model where a project's tools are the only ones.
const PROJECT_INSTRUCTIONS: &str = "The tools are scripts of a project. Each call runs in a sandboxed cell of its own, \
    without a network outside it; the project is at /workspace.";

/// The MCP server of one connection. Clones are the same server.
#[derive(Debug, Clone)]
pub struct Server(pub(super) Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) client: Scope,
    /// Built-in tools.
    pub(super) tools: &'static [ToolEntry<Server>],
    /// Project whose scripts are tools.
    pub(super) project: Option<Arc<CurrentProject>>,
    pub(super) watching: BackgroundTask,
    pub(super) subscriptions: Subscriptions,
    pub(super) logs: Logs,
    /// Roots of the client; `None` until they are asked for.
    pub(crate) roots: tokio::sync::Mutex<Option<Vec<ScriptRoot>>>,
    pub(crate) continuity: Continuity,
    /// `None` where no later request could ask for a task.
    pub(super) tasks: Option<Tasks>,
    /// True once the session was opened, where there is one.
    is_open: AtomicBool,
    kill: CancellationToken,
}

/// Continuity between the requests that a server gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continuity {
    /// One session, opened on a connection and ended with it.
    Connection,
    /// One session, opened by `initialize`; the client may vanish without closing it.
    Session,
    /// Each request stands alone, so a setting for later requests has no effect. All are of one client.
    Requests,
    /// Stateless and without a token: no state outlives the request.
    Anonymous,
}

impl Continuity {
    /// Returns true if later requests are of the same session.
    pub(crate) fn is_session(self) -> bool {
        matches!(self, Self::Connection | Self::Session)
    }
}

impl Server {
    /// Serves `client` with these built-in tools and the scripts of a project; tripping `kill` ends every call in flight.
    pub fn with_tools(
        client: Scope,
        kill: CancellationToken,
        tools: &'static [ToolEntry<Self>],
        project: Option<Arc<CurrentProject>>,
        continuity: Continuity,
    ) -> Self {
        let tasks = match continuity {
            Continuity::Connection | Continuity::Requests => Some(Tasks::default()),
            // Sessions over HTTP are of revisions that have no tasks.
            Continuity::Session | Continuity::Anonymous => None,
        };
        Self(Arc::new(Shared {
            client,
            tools,
            project,
            watching: BackgroundTask::default(),
            subscriptions: Subscriptions::default(),
            logs: Logs::default(),
            roots: tokio::sync::Mutex::default(),
            continuity,
            tasks,
            is_open: AtomicBool::default(),
            kill,
        }))
    }

    /// Counts the files that this hears of among those of all sessions of a client of this name.
    #[must_use]
    pub fn of_client(mut self, name: &str) -> Self {
        let count = self.0.project.as_ref().map(|project| project.count_of(name));
        // Nobody shares it before it is served.
        if let (Some(shared), Some(count)) = (Arc::get_mut(&mut self.0), count) {
            shared.subscriptions = Subscriptions::of_client(count);
        }
        self
    }

    /// Returns the project's tool of this name, with the project as it is now.
    ///
    /// # Errors
    /// Lists of the project that cannot be trusted, unless the name is that of another tool.
    fn project_script(&self, name: &str) -> Result<Option<(Arc<Project>, ScriptTool)>, ErrorData> {
        let Some(project) = self.0.project.as_ref().filter(|_| !self.is_taken(name)) else {
            return Ok(None);
        };
        let project = project.trusted()?;
        let tool = project.tool(name).cloned();
        Ok(tool.map(|tool| (project, tool)))
    }

    /// Returns the project as it is now, if there is one.
    ///
    /// # Errors
    /// Lists of it that cannot be trusted.
    fn project(&self) -> Result<Option<Arc<Project>>, ErrorData> {
        self.0.project.as_ref().map(|project| project.trusted()).transpose()
    }

    /// Returns the project's tools, without those whose names are taken: a project is not asked what a tool of the
    /// operator's does.
    fn scripts<'p>(&self, project: &'p Project) -> impl Iterator<Item = &'p ScriptTool> {
        project.tools.iter().filter(|tool| !self.is_taken(&tool.name))
    }

    /// Returns true for the names of built-in and of declared tools, and for those of the latter's classes.
    fn is_taken(&self, name: &str) -> bool {
        self.built_in(name).is_some()
            || self.declared(name).is_some()
            || self.of_class(name).is_some()
    }

    /// Returns the server's name and version: those of its project, if it has one.
    fn implementation(&self) -> Implementation {
        let of = |project: &Arc<CurrentProject>| project_implementation(&project.last());
        self.0.project.as_ref().map_or_else(implementation, of)
    }

    /// Returns the instructions to a model: the operator's, if there are any for the project.
    fn instructions(&self) -> String {
        let own = self.0.project.as_ref().and_then(|it| it.last().settings.instructions.clone());
        let usual = if self.0.tools.is_empty() { PROJECT_INSTRUCTIONS } else { INSTRUCTIONS };
        own.unwrap_or_else(|| usual.to_owned())
    }

    /// Builds the list of the built-in and the declared tools.
    fn own_tools(&self) -> Vec<Tool> {
        let client = &self.0.client;
        let in_force = InForce { rules: client.rules(), options: client.exec_options() };
        let listed = self.0.tools.iter().filter(|tool| client.lists(tool.name));
        let declared = self.commands().map(commands::tool);
        listed.map(|tool| (tool.describe)(&in_force)).chain(declared).collect()
    }

    /// Returns the declared tools that are offered now.
    fn commands(&self) -> impl Iterator<Item = &Declared> {
        let client = &self.0.client;
        client.commands().iter().filter(|one| client.withheld(&one.command.name).is_none())
    }

    /// Cuts the page that is asked for out of a list: its entries, the cursor of the next, and the `_meta`. Only lists
    /// of a project have pages.
    fn page<T>(
        project: Option<&Project>,
        collection: &str,
        mut all: Vec<T>,
        request: Option<PaginatedRequestParams>,
        asked: &RequestMetaObject,
    ) -> Result<PageOf<T>, ErrorData> {
        let cursor = request.and_then(|request| request.cursor);
        let Some(project) = project else {
            return if cursor.is_some() { Err(pages::invalid()) } else { Ok((all, None, None)) };
        };
        let list = Paged { collection, hash: &project.hash, total: all.len() };
        let Page { range, next, meta } = list.page(cursor.as_deref(), pages::length(asked))?;
        all.truncate(range.end);
        Ok((all.split_off(range.start), next, Some(meta)))
    }

    /// Returns the names of the built-in and the declared tools that are offered.
    pub(crate) fn own_names(&self) -> impl Iterator<Item = &str> {
        let client = &self.0.client;
        let built_in = self.0.tools.iter().map(|tool| tool.name);
        built_in
            .filter(|name| client.lists(name))
            .chain(self.commands().map(|declared| declared.command.name.as_str()))
    }

    /// Makes the error of a name that no tool has.
    fn unknown_tool(&self, name: &str) -> ErrorData {
        let project = self.0.project.as_ref().map(|project| project.last());
        let scripts = project.iter().flat_map(|project| self.scripts(project));
        let scripts = scripts.map(|tool| tool.name.as_str());
        unknown_tool(name, &self.own_names().chain(scripts).collect::<Vec<_>>())
    }

    /// Returns the built-in tool of this name.
    fn built_in(&self, name: &str) -> Option<&'static ToolEntry<Server>> {
        self.0.tools.iter().find(|tool| tool.name == name)
    }

    /// Returns the declared tool that clients of the reference implementation call by this name of a class, unless
    /// another tool has the name.
    fn of_class(&self, class: &str) -> Option<String> {
        if self.built_in(class).is_some() || self.declared(class).is_some() {
            return None;
        }
        let mut names = self.0.client.commands().iter().map(|declared| &declared.command.name);
        names.find(|name| class_name(name) == class).cloned()
    }

    /// Returns the declared tool of this name.
    fn declared(&self, name: &str) -> Option<&Declared> {
        self.0.client.commands().iter().find(|declared| declared.command.name == name)
    }

    /// Returns the tasks that a request can be about.
    ///
    /// # Errors
    /// A revision that has no such method.
    fn tasks<M: ConstString>(&self, context: &Context) -> Result<&Tasks, ErrorData> {
        let tasks = self.0.tasks.as_ref().filter(|_| tasks::is_modern(context));
        tasks.ok_or_else(ErrorData::method_not_found::<M>)
    }

    /// Checks that later calls of the client can find the state that this call keeps.
    ///
    /// # Errors
    /// No session was opened, and the client has no name. `instead` is the way out.
    pub(crate) fn lasts(&self, instead: &str) -> Result<(), Refused> {
        match self.0.continuity {
            Continuity::Connection | Continuity::Session | Continuity::Requests => Ok(()),
            Continuity::Anonymous => {
                Err(Refused::failed(format!("requests of this client stand alone: {instead}"))
                    .with_hint("open a session (`initialize`), or ask the operator for a token"))
            }
        }
    }
}

/// Returns the server's name and version.
fn implementation() -> Implementation {
    Implementation::new("cofferdam", env!("CARGO_PKG_VERSION")).with_title("cofferdam")
}

fn unknown_tool(name: &str, offered: &[&str]) -> ErrorData {
    let shown: String = name.chars().take(80).flat_map(char::escape_default).collect();
    let message = match nearest(name, offered) {
        Some(near) => format!("unknown tool `{shown}`; did you mean `{near}`?"),
        None => format!("unknown tool `{shown}`"),
    };
    ErrorData::invalid_params(message, None)
}

/// Returns the name and version that a project gives its server.
fn project_implementation(project: &Project) -> Implementation {
    let server = &project.server;
    let mut implementation = Implementation::new(server.name.clone(), server.version.clone())
        .with_title(server.title.clone());
    implementation.description = server.description.clone();
    implementation.website_url = server.website.clone();
    implementation
}
