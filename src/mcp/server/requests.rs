//! What the server answers to each request and notification of MCP.

use crate::context::Context;
use crate::logs;
use crate::pages::{self, Page, Paged, page_of};
use crate::projects::{self, describe};
use crate::{harmless, resources};
use rmcp::model::{
    CallToolRequestMethod, CallToolRequestParams, CallToolResponse, CancelTaskMethod,
    CancelTaskParams, CompleteRequestMethod, CompleteRequestParams, CompleteResult, ConstString,
    CustomRequest, CustomResult, ErrorCode, GetPromptRequestParams, GetPromptResponse,
    GetTaskMethod, GetTaskParams, GetTaskResult, InitializeRequestParams, InitializeResult,
    JsonObject, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ProtocolVersion, ReadResourceRequestMethod,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig,
    SetLevelRequestMethod, SubscribeRequestParams, SubscriptionFilter, TASKS_EXTENSION_ID,
    UnsubscribeRequestMethod, UnsubscribeRequestParams, UpdateTaskMethod, UpdateTaskParams,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use std::borrow::Cow;
use std::sync::atomic::Ordering;
use tracing::Instrument;

use super::Server;

impl ServerHandler for Server {
    #[expect(
        deprecated,
        reason = "the newest revision drops logging; clients of those before it have it"
    )]
    fn get_info(&self) -> ServerConfig {
        // The operator can switch tools, and what they answer for.
        let capabilities = ServerCapabilities::builder().enable_tools().enable_logging();
        let capabilities = capabilities.enable_tool_list_changed();
        let mut capabilities = match resources::listed(&self.0.calls.client).is_empty() {
            true => capabilities.build(),
            false => {
                let capabilities = capabilities.enable_resources().enable_resources_subscribe();
                capabilities.enable_resources_list_changed().enable_completions().build()
            }
        };
        // Its lists can be filled while it is served.
        if self.0.project.is_some() {
            let resources = capabilities.resources.get_or_insert_default();
            (resources.subscribe, resources.list_changed) = (Some(true), Some(true));
            capabilities.prompts.get_or_insert_default().list_changed = Some(true);
            capabilities.completions.get_or_insert_default();
        }
        if self.0.tasks.is_some() {
            let extensions = capabilities.extensions.get_or_insert_default();
            extensions.insert(TASKS_EXTENSION_ID.to_owned(), JsonObject::new());
        }
        ServerConfig::new(capabilities)
            .with_server_info(self.implementation())
            .with_instructions(self.instructions())
            // Version for an `initialize` that asks for an unknown revision.
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    /// Opens a session, once, for an older revision. Tasks are not offered: what that revision calls tasks is another
    /// extension.
    async fn initialize(
        &self,
        mut request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let mut answer = self.negotiate_initialize(&request)?;
        if self.0.calls.continuity.is_session() && self.0.is_open.swap(true, Ordering::AcqRel) {
            return Err(ErrorData::invalid_request("the session is open already", None));
        }
        let shows_pages = projects::knows_pages(&request.capabilities);
        // What was agreed on holds, whatever revision the client named.
        request.protocol_version = answer.protocol_version.clone();
        context.peer.set_peer_info(request);
        if let Some(extensions) = &mut answer.capabilities.extensions {
            extensions.remove(TASKS_EXTENSION_ID);
        }
        if self.0.project.is_some() && shows_pages {
            let extensions = answer.capabilities.extensions.get_or_insert_default();
            extensions.extend([projects::pages_extension()]);
        }
        answer.capabilities.extensions.take_if(|extensions| extensions.is_empty());
        Ok(answer)
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        self.tasks_of::<GetTaskMethod>(&context.into())?.get(&request.task_id)
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks_of::<UpdateTaskMethod>(&context.into())?
            .update(&request.task_id, request.input_responses)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks_of::<CancelTaskMethod>(&context.into())?.cancel(&request.task_id)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.0.changes.start(context.peer);
    }

    async fn on_roots_list_changed(&self, _context: NotificationContext<RoleServer>) {
        if let Some(project) = &self.0.project {
            project.forget_roots().await;
        }
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let cursor = request.and_then(|request| request.cursor);
        let Some(project) = &self.project()? else {
            // The list is one page, so no cursor was ever given out.
            return match cursor {
                Some(_) => Err(ErrorData::invalid_params("invalid cursor", None)),
                None => Ok(ListToolsResult::with_all_items(self.0.tools.describe())),
            };
        };
        let scripts = self.scripts(project).collect::<Vec<_>>();
        let others = self.0.tools.describe();
        let total = scripts.len() + others.len();
        let list = Paged { collection: "tools", hash: &project.hash, total };
        let Page { range, next, meta } =
            list.page(cursor.as_deref(), pages::length(&context.meta))?;
        // Only what is on the page is described.
        let scripts = scripts.into_iter().map(|tool| Cow::Owned(describe::tool(tool)));
        let all = scripts.chain(others.iter().map(Cow::Borrowed));
        let items = all.skip(range.start).take(range.len()).map(Cow::into_owned).collect();
        let mut result = ListToolsResult::with_all_items(items);
        (result.next_cursor, result.meta) = (next, Some(meta));
        Ok(result)
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let project = self.project()?;
        let prompts = project.iter().flat_map(|project| &project.prompts);
        let prompts = prompts.map(describe::prompt).collect();
        let (items, next, meta) =
            page_of(project.as_deref(), "prompts", prompts, request, &context.meta)?;
        let mut result = ListPromptsResult::with_all_items(items);
        (result.next_cursor, result.meta) = (next, meta);
        Ok(result)
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let project = self.project()?;
        let mut prompts = project.iter().flat_map(|project| &project.prompts);
        match prompts.find(|prompt| prompt.name == request.name) {
            Some(prompt) => {
                describe::rendered_prompt(prompt, &request.arguments.unwrap_or_default())
            }
            None => Err(ErrorData::invalid_params("Prompt not found", None)),
        }
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let built_in = resources::listed(&self.0.calls.client);
        let project = self.project()?;
        let own = project.iter().flat_map(|it| &it.resources);
        let own = own.filter(|one| !resources::is_taken(&self.0.calls.client, &one.uri));
        let all = own.map(describe::resource).chain(built_in).collect();
        let (items, next, meta) =
            page_of(project.as_deref(), "resources", all, request, &context.meta)?;
        let mut result = ListResourcesResult::with_all_items(items);
        (result.next_cursor, result.meta) = (next, meta);
        Ok(result)
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let project = self.project()?;
        let own = project.iter().flat_map(|it| &it.templates).map(describe::template);
        let all = own.chain(resources::templates(&self.0.calls.client)).collect();
        let (items, next, meta) =
            page_of(project.as_deref(), "resourceTemplates", all, request, &context.meta)?;
        let mut result = ListResourceTemplatesResult::with_all_items(items);
        (result.next_cursor, result.meta) = (next, meta);
        Ok(result)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let context = Context::from(context);
        // Which one is not named: it can be the name of anything.
        let span = tracing::error_span!("read", id = %context.id);
        let read = async {
            tracing::debug!("a resource is read");
            let is_taken = resources::is_taken(&self.0.calls.client, &request.uri);
            let of_project = match self.0.project.as_ref().filter(|_| !is_taken) {
                Some(project) => project.read(&request.uri, &context).await,
                None => None,
            };
            let done = match of_project {
                Some(done) => done,
                None => resources::read(&self.0.tools, &request.uri, &context).await,
            };
            let done = done.map(harmless::read).map_err(harmless::error);
            done.map(ReadResourceResponse::from)
        };
        read.instrument(span).await
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.0.changes.subscribe(&request.uri, context.peer).await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.0.changes.unsubscribe(&request.uri)
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(self.0.changes.accepted(requested))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        self.0.changes.serve_stream(&context).await;
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
        self.0.calls.logs.set(request.level);
        Ok(())
    }

    /// Answers a request that rmcp cannot parse: an unknown method, or invalid parameters of a
    /// known one.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        // As the framework ends a subscription, by what the answer to its beginning had.
        let id = request.params.as_ref().and_then(|params| params.get("subscriptionId")?.as_str());
        if let (UnsubscribeRequestMethod::VALUE, Some(id), true) =
            (request.method.as_str(), id, self.0.project.is_some())
        {
            return self.0.changes.unsubscribe(id).map(|()| CustomResult(serde_json::json!({})));
        }
        Err(match request.method.as_str() {
            SetLevelRequestMethod::VALUE => ErrorData::invalid_params(logs::LEVELS, None),
            method @ (CallToolRequestMethod::VALUE
            | ReadResourceRequestMethod::VALUE
            | CompleteRequestMethod::VALUE
            | GetTaskMethod::VALUE
            | UpdateTaskMethod::VALUE
            | CancelTaskMethod::VALUE) => {
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
        let context = Context::from(context);
        let of_project = match &self.0.project {
            Some(project) => project.complete(&request, &context).await,
            None => None,
        };
        let is_project_alone = self.0.project.is_some() && self.0.tools.entries.is_empty();
        let done = match of_project {
            Some(done) => done,
            None if is_project_alone => {
                let message = "the project has no prompt or resource of this name";
                Err(ErrorData::invalid_params(message, None))
            }
            None => resources::complete(&self.0.calls, &request, &context).await,
        };
        done.map(harmless::suggestions).map_err(harmless::error)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.call(&request.name, request.arguments, context.into()).await
    }
}
