//! The tools over rmcp: dispatch, turns, cancellation, and an answer for every call.

mod calculator;
mod turns;

use std::borrow::Cow;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rmcp::model::{
    CallToolRequestMethod, CallToolRequestParams, CallToolResponse, CallToolResult,
    CompleteRequestMethod, CompleteRequestParams, CompleteResult, ConstString, CustomRequest,
    CustomResult, ErrorCode, Implementation, JsonObject, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProtocolVersion,
    ReadResourceRequestMethod, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
    ServerConfig, SetLevelRequestMethod, SubscribeRequestParams, SubscriptionFilter, Tool,
    UnsubscribeRequestParams,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::arguments::calculator::{
    BatchArguments, FunctionsArguments, HistoryArguments, PlotArguments, StatsArguments,
};
use super::arguments::{
    AdvancedArguments, Arguments, BashArguments, CalculateArguments, Precision, PrecisionArguments,
    RulesArguments, jobs::InputArguments, jobs::JobsArguments, jobs::KillArguments,
    jobs::OutputArguments, nearest, parse,
};
use super::backend::{Backend, Refused, RefusedKind};
use super::exec::arguments::ExecArguments;
use super::exec::macros::Macros;
use super::exec::{self, CommandRequest, WorkingDir};
use super::files;
use super::history::History;
use super::logs::{self, Logs};
use super::resources;
use super::sessions::{self, BashAnswer};
use super::{catalogue, commands, jobs, reply};
use calc::ledger::Ledger;
use policy::tools;
use service::cli::Declared;

/// Key of `_meta` in which a result names the server (2026-07-28).
const SERVER_INFO_KEY: &str = "io.modelcontextprotocol/serverInfo";

/// The MCP server of one connection. Clones are the same server.
#[derive(Debug)]
pub struct Server<B>(pub(super) Arc<Shared<B>>);

#[derive(Debug)]
pub(super) struct Shared<B> {
    pub(super) backend: B,
    /// Decimal places that `set_precision` set; on stdio the session is the process.
    precision: AtomicU8,
    pub(super) working_dir: WorkingDir,
    pub(super) history: Arc<History>,
    pub(super) macros: Macros,
    pub(super) watching: resources::Watching,
    pub(super) logs: Logs,
    /// Calculations of the session.
    ledger: Mutex<Ledger>,
    kill: CancellationToken,
}

impl<B> Clone for Server<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> Server<B> {
    /// Serves `backend`; tripping `kill` ends every call in flight.
    pub fn new(backend: B, kill: CancellationToken) -> Self {
        let precision = AtomicU8::new(Precision::DEFAULT.places());
        let options = backend.exec_options();
        let working_dir = WorkingDir::new(options.working_dir);
        let history = Arc::new(History::new(options.history));
        Self(Arc::new(Shared {
            backend,
            precision,
            working_dir,
            history,
            macros: Macros::default(),
            watching: resources::Watching::default(),
            logs: Logs::default(),
            ledger: Mutex::default(),
            kill,
        }))
    }

    /// Builds the list of tools. It is not kept: a client asks for it once or never, and the
    /// schemas take half a megabyte of heap.
    fn tools(&self) -> Vec<Tool> {
        let backend = &self.0.backend;
        let mut tools = catalogue::tools(&backend.rules(), &backend.exec_options());
        tools.retain(|tool| backend.lists(&tool.name));
        tools.extend(backend.commands().iter().map(commands::tool));
        tools
    }

    /// Returns the names of these tools.
    fn offered(&self) -> Vec<&str> {
        let backend = &self.0.backend;
        let built_in = tools::NAMES.iter().copied().filter(|name| backend.lists(name));
        built_in
            .chain(backend.commands().iter().map(|declared| declared.command.name.as_str()))
            .collect()
    }

    async fn perform(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Refused> {
        let arguments = request.arguments;
        if let Some(refused) = self.0.backend.withheld(&request.name) {
            return Err(refused);
        }
        let mut commands = self.0.backend.commands().iter();
        if let Some(declared) = commands.find(|declared| declared.command.name == request.name) {
            return self.command(declared, arguments, context).await;
        }
        match request.name.as_ref() {
            BashArguments::TOOL => self.bash(arguments, context).await,
            OutputArguments::TOOL => {
                let ask = jobs::JobRequest::Output(parse(arguments)?);
                self.job(ask, context).await
            }
            JobsArguments::TOOL => {
                parse::<JobsArguments>(arguments)?;
                self.job(jobs::JobRequest::List, context).await
            }
            InputArguments::TOOL => {
                self.job(jobs::JobRequest::Input(parse(arguments)?), context).await
            }
            KillArguments::TOOL => {
                self.job(jobs::JobRequest::Kill(parse(arguments)?), context).await
            }
            CalculateArguments::TOOL => self.calculate(arguments, context).await,
            AdvancedArguments::TOOL => self.calculate_advanced(arguments, context).await,
            BatchArguments::TOOL => self.calculate_batch(arguments, context).await,
            PlotArguments::TOOL => self.calculate_plot(arguments, context).await,
            StatsArguments::TOOL => self.calculate_stats(arguments),
            HistoryArguments::TOOL => self.calculate_history(arguments),
            FunctionsArguments::TOOL => Self::calculate_functions(arguments),
            PrecisionArguments::TOOL => {
                let places = parse::<PrecisionArguments>(arguments)?.precision.places();
                self.0.precision.store(places, Ordering::Release);
                Ok(reply::precision_set(places))
            }
            tool if exec::answers(tool) => self.fresh(tool, arguments, context).await,
            tool if files::answers(tool) => self.file(tool, arguments, context).await,
            _ => {
                parse::<RulesArguments>(arguments)?;
                self.0.backend.settled().await;
                Ok(reply::rules(&self.0.backend.rules()))
            }
        }
    }

    /// Performs a call, and logs its beginning and its end.
    async fn logged(
        &self,
        request: CallToolRequestParams,
        name: &str,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Refused> {
        let started = Instant::now();
        tracing::debug!("called");
        let done = self.perform(request, context).await;
        if let Err(Refused { kind: RefusedKind::Arguments, message, .. }) = &done {
            self.0.backend.invalid(name, message);
        }
        let well = done.as_ref().is_ok_and(|result| result.is_error != Some(true));
        tracing::debug!(well, took_ms = reply::millis(started.elapsed()), "answered");
        done
    }

    async fn bash(
        &self,
        arguments: Option<JsonObject>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Refused> {
        let arguments = parse::<BashArguments>(arguments)?;
        let asked = CommandRequest {
            arguments: ExecArguments {
                command: arguments.command.clone().unwrap_or_default(),
                working_dir: arguments.cwd.clone(),
                env: arguments.env.clone(),
                ..ExecArguments::default()
            },
            stdin: arguments.stdin.clone().unwrap_or_default().into_bytes(),
            ..CommandRequest::default()
        };
        let answer = self.heard(context, |turn| self.0.backend.bash(arguments, turn)).await?;
        Ok(match answer {
            BashAnswer::Ended(told) => {
                self.0.history.add(&told, asked);
                reply::told(&told)
            }
            BashAnswer::Running(job) => {
                self.remember(&job, asked);
                sessions::running(&job)
            }
            BashAnswer::Restarted { session } => sessions::restarted(&session),
        })
    }

    async fn job(
        &self,
        ask: jobs::JobRequest,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Refused> {
        let answer = self.turn(context, |turn| self.0.backend.job(ask, turn)).await?;
        Ok(jobs::answer(&answer))
    }

    async fn command(
        &self,
        declared: &Declared,
        arguments: Option<JsonObject>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Refused> {
        let request = match commands::parse_request(declared, arguments) {
            Ok(request) => request,
            Err(bad) => {
                self.0.backend.invalid(&declared.command.name, &bad.message);
                return Ok(commands::reply(&commands::invalid(bad)));
            }
        };
        let run = |turn| self.0.backend.command(declared, request, turn);
        Ok(commands::reply(&self.turn(context, run).await?))
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

impl<B: Backend> ServerHandler for Server<B> {
    #[expect(
        deprecated,
        reason = "the newest revision drops logging; clients of those before it have it"
    )]
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_logging();
        let capabilities = match resources::listed(&self.0.backend).is_empty() {
            true => capabilities.build(),
            false => {
                let capabilities = capabilities.enable_resources().enable_resources_subscribe();
                capabilities.enable_completions().build()
            }
        };
        ServerConfig::new(capabilities)
            .with_server_info(implementation())
            .with_instructions(catalogue::INSTRUCTIONS)
            // Version for an `initialize` that asks for an unknown revision.
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        // The list is one page, so no cursor was ever given out.
        if request.is_some_and(|request| request.cursor.is_some()) {
            return Err(ErrorData::invalid_params("invalid cursor", None));
        }
        Ok(ListToolsResult::with_all_items(self.tools()))
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(resources::listed(&self.0.backend)))
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(resources::templates(&self.0.backend)))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        // Which one is not named: it can be the name of anything.
        let span = tracing::error_span!("read", id = %context.id);
        let read = async {
            tracing::debug!("a resource is read");
            self.read(&request.uri, &context).await.map(ReadResourceResponse::from)
        };
        read.instrument(span).await
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.watch(&request.uri, context.peer)
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.unwatch(&request.uri)
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(resources::accepted(&self.0.backend, requested))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        self.follow(&context).await;
        Ok(())
    }

    #[expect(
        deprecated,
        reason = "the newest revision drops it; clients of those before it have it"
    )]
    async fn set_level(
        &self,
        request: rmcp::model::SetLevelRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.0.logs.set(request.level);
        Ok(())
    }

    /// Answers a request that rmcp cannot parse: an unknown method, or invalid parameters of a
    /// known one.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Err(match request.method.as_str() {
            SetLevelRequestMethod::VALUE => ErrorData::invalid_params(logs::LEVELS, None),
            method @ (CallToolRequestMethod::VALUE
            | ReadResourceRequestMethod::VALUE
            | CompleteRequestMethod::VALUE) => {
                let message = format!("{method}: the parameters have another form");
                ErrorData::invalid_params(message, None)
            }
            method => ErrorData::new(ErrorCode::METHOD_NOT_FOUND, method.to_owned(), None),
        })
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        self.completions(&request, &context).await
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        // A tool that is disabled gets its own error, different from that of an unknown tool.
        let (backend, name) = (&self.0.backend, request.name.as_ref());
        if !tools::NAMES.contains(&name)
            && !backend.commands().iter().any(|declared| declared.command.name == name)
            && backend.withheld(name).is_none()
        {
            return Err(unknown_tool(name, &self.offered()));
        }
        let tool = request.name.clone();
        // Enabled at every level, so that a warning names its call too.
        let span = tracing::error_span!("call", id = %context.id, %tool);
        let modern = context
            .protocol_version()
            .is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        let (server, name) = (self.clone(), tool.clone());
        // The call has a task of its own, so that a panic ends the task and the client still gets
        // an answer. rmcp would leave the client waiting for ever.
        let call = async move { server.logged(request, &name, &context).await };
        let task = tokio::spawn(call.instrument(span.clone()));
        let mut result = match task.await {
            Ok(Ok(result)) => result,
            Ok(Err(refused)) => reply::refused(&refused, &tool),
            Err(_panicked) => {
                span.in_scope(|| tracing::error!("the call ended by a fault in cofferdam"));
                return Err(ErrorData::internal_error(
                    "the call ended by a fault in cofferdam",
                    None,
                ));
            }
        };
        if modern && let Ok(info) = serde_json::to_value(implementation()) {
            result.meta.get_or_insert_default().0.insert(SERVER_INFO_KEY.to_owned(), info);
        }
        Ok(result.into())
    }
}
