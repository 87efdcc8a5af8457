//! Serves a script project to one client: calls its tools, reads its resources, and completes arguments.

mod admission;
pub(crate) mod current;
pub(crate) mod describe;
mod fetch;
mod roots;
mod script_run;

pub use current::CurrentProject;

use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine};
use rmcp::ErrorData;
use rmcp::model::{
    CallToolResult, ClientCapabilities, CompleteRequestParams, CompleteResult, CompletionInfo,
    JsonObject, ReadResourceResult, Reference, ResourceContents, ResultType,
};
use serde_json::{Value, json};

use super::calls::ClientCalls;
use super::context::Context;
use super::pages::{self, Paged};
use super::reply;
use admission::admit_call;
use projects::{
    AskedCompletion, AskedResource, CompletionRequest, FetchError, FetchRequest, PAGE_TYPE,
    Project, ResourceContent, SUGGESTIONS, ScriptError, ScriptLaunch, ScriptRoot, ScriptTool,
};
use roots::ClientRoots;
use script_run::{ScriptRun, error_data, random_mark};
use service::refused::{Refused, RefusedKind};

/// Extension of MCP by which a client says that it shows pages.
const PAGES_EXTENSION: &str = "io.modelcontextprotocol/ui";

/// Key of `_meta` with the cursor of further suggestions, for which the protocol has no field.
const NEXT_CURSOR_KEY: &str = "mcpbash/nextCursor";
/// Maximum suggestions of a completion.
const MAX_COMPLETIONS: usize = 1_000_000;

/// Name of a read of the project's resources in rules, after `project:`.
const READ_CALL: &str = "resources/read";
/// Name of the project's completions in rules, after `project:`.
const COMPLETION_CALL: &str = "completion/complete";

/// A project as it is served to one client.
#[derive(Debug)]
pub(crate) struct ProjectServer {
    pub(crate) current: Arc<CurrentProject>,
    calls: Arc<ClientCalls>,
    roots: ClientRoots,
}

impl ProjectServer {
    pub(crate) fn new(current: Arc<CurrentProject>, calls: Arc<ClientCalls>) -> Self {
        Self { current, calls, roots: ClientRoots::default() }
    }

    /// Returns what runs a script as a call of `project:NAME`.
    fn run<'c>(&'c self, name: &'c str, project: &Project, context: &'c Context) -> ScriptRun<'c> {
        ScriptRun { calls: &self.calls, context, name, log_level: project.settings.log_level }
    }

    /// Returns the paths of the client's roots in a cell. Only the client of a session is asked.
    async fn client_roots(&self, project: &Project, context: &Context) -> Vec<ScriptRoot> {
        match self.calls.continuity.is_session() {
            true => self.roots.get(project, context).await,
            false => Vec::new(),
        }
    }

    /// Makes the next call ask the client for its roots again.
    pub(crate) async fn forget_roots(&self) {
        self.roots.forget().await;
    }

    /// Answers a call of a tool of the project.
    ///
    /// # Errors
    /// The error that the script reported, or that follows from its end.
    pub(crate) async fn call(
        &self,
        project: &Project,
        tool: &ScriptTool,
        arguments: Option<JsonObject>,
        context: &Context,
    ) -> Result<CallToolResult, ErrorData> {
        let run = self.run(&tool.name, project, context);
        admit_call(project, tool, run).await?;
        let meta = serde_json::to_value(&context.meta).ok();
        let meta = meta.and_then(|meta| meta.as_object().cloned()).unwrap_or_default();
        let arguments = arguments.unwrap_or_default();
        let launch = ScriptLaunch::new(project, tool, &arguments, &meta, random_mark())
            .map_err(|error| ErrorData::invalid_params(error.to_string(), None))?
            .for_pages(shows_pages(context))
            .in_roots(project, &self.client_roots(project, context).await);
        let launch = match pages::moved(&context.meta, "timeoutSecs").and_then(Value::as_u64) {
            Some(seconds) => launch.within(project, seconds),
            None => launch,
        };
        let (launch, output, report) = match run.run(launch).await {
            Ok(done) => done,
            Err(refused) if refused.kind == RefusedKind::Arguments => {
                return Err(ErrorData::invalid_params(refused.message, None));
            }
            Err(refused) => return Ok(reply::refused(&refused, &tool.name)),
        };
        let result = launch.result(tool, &output).map_err(error_data)?;
        let mut result: CallToolResult = serde_json::from_value(result).map_err(|_| {
            ErrorData::internal_error("the tool's result is no result of a tool", None)
        })?;
        result.result_type = Some(ResultType::COMPLETE);
        let receipt = reply::meta(report.receipt.as_ref(), None);
        result.meta.get_or_insert_default().0.extend(receipt.0);
        Ok(result)
    }

    /// Reads a resource of the project; `None` if the project has no such resource.
    ///
    /// # Errors
    /// The reason why it was not read.
    pub(crate) async fn read(
        &self,
        uri: &str,
        context: &Context,
    ) -> Option<Result<ReadResourceResult, ErrorData>> {
        let project = match self.current.trusted() {
            Ok(project) => project,
            Err(broken) => return Some(Err(broken)),
        };
        let asked = project.resource(uri)?;
        let content = self.content(&project, &asked, context).await;
        Some(content.map(|content| ReadResourceResult::new(vec![contents(content, asked)])))
    }

    async fn content(
        &self,
        project: &Project,
        asked: &AskedResource,
        context: &Context,
    ) -> Result<ResourceContent, ErrorData> {
        if let Some(html) = &asked.html {
            return Ok(ResourceContent::Text(html.clone()));
        }
        let run = self.run(READ_CALL, project, context);
        if project.fetches(&asked.provider) {
            let failed = |fault: FetchError| error_data(ScriptError::from(fault));
            let bounds = &project.settings.downloads;
            let request = FetchRequest::of(&asked.uri, bounds).map_err(failed)?;
            let bytes = run.fetch(&request).await.map_err(failed)?;
            return project.fetched_content(asked, bytes).map_err(error_data);
        }
        let launch = ScriptLaunch::reading(project, asked, random_mark());
        let (launch, output, _) = run.run(launch).await.map_err(internal_error)?;
        launch.content(asked, &output).map_err(error_data)
    }

    /// Completes an argument of a prompt or template of the project; `None` if the project does not have it.
    ///
    /// # Errors
    /// The reason why the project's script made no suggestions.
    pub(crate) async fn complete(
        &self,
        request: &CompleteRequestParams,
        context: &Context,
    ) -> Option<Result<CompleteResult, ErrorData>> {
        let project = match self.current.trusted() {
            Ok(project) => project,
            Err(broken) => return Some(Err(broken)),
        };
        let of = match &request.r#ref {
            Reference::Prompt(prompt) => AskedCompletion::Prompt(&prompt.name),
            Reference::Resource(resource) => AskedCompletion::Resource(&resource.uri),
            _ => return None,
        };
        if !project.has_arguments(of) {
            return None;
        }
        Some(self.suggestions(&project, of, request, context).await)
    }

    async fn suggestions(
        &self,
        project: &Project,
        of: AskedCompletion<'_>,
        request: &CompleteRequestParams,
        context: &Context,
    ) -> Result<CompleteResult, ErrorData> {
        let Some(completion) = project.completion(of) else {
            return Ok(CompleteResult::new(CompletionInfo::default()));
        };
        let known = request.context.as_ref().and_then(|context| context.arguments.as_ref());
        let known = known.into_iter().flatten();
        let known = known.map(|(name, value)| (name.clone(), json!(value))).collect();
        let argument = &*request.argument.name;
        let value = &*request.argument.value;
        let mut asked =
            CompletionRequest { of, argument, value, known: &known, limit: SUGGESTIONS, offset: 0 };
        let hash = asked.hash();
        let list = Paged { collection: &completion.name, hash: &hash, total: MAX_COMPLETIONS };
        let limit =
            pages::moved(&context.meta, "limit").and_then(Value::as_u64).filter(|it| *it > 0);
        let limit = limit.and_then(|limit| usize::try_from(limit).ok());
        asked.limit = limit.map_or(SUGGESTIONS, |limit| limit.min(SUGGESTIONS));
        if let Some(cursor) = pages::moved(&context.meta, "cursor") {
            let place = cursor.as_str().and_then(|cursor| list.place(cursor));
            asked.offset = place.ok_or_else(pages::invalid)?;
        }
        let launch = ScriptLaunch::completing(project, completion, &asked, random_mark())
            .map_err(|error| ErrorData::invalid_params(error.to_string(), None))?;
        let run = self.run(COMPLETION_CALL, project, context);
        let (launch, output, _) = run.run(launch).await.map_err(internal_error)?;
        let suggestions = launch.suggestions(&output, &asked).map_err(error_data)?;
        let total = u32::try_from(asked.offset + suggestions.values.len()).ok();
        let total = total.filter(|_| !suggestions.has_more);
        let info = CompletionInfo::with_pagination(suggestions.values, total, suggestions.has_more)
            .map_err(|error| ErrorData::internal_error(error, None))?;
        let mut result = CompleteResult::new(info);
        if suggestions.has_more {
            let next = list.cursor(suggestions.next);
            result.meta.get_or_insert_default().insert(NEXT_CURSOR_KEY.to_owned(), json!(next));
        }
        Ok(result)
    }
}

/// Makes the result of a read resource.
fn contents(content: ResourceContent, asked: AskedResource) -> ResourceContents {
    let contents = match content {
        ResourceContent::Text(text) => ResourceContents::text(text, asked.uri),
        ResourceContent::Bytes(bytes) => {
            ResourceContents::blob(BASE64_STANDARD.encode(bytes), asked.uri)
        }
    };
    let contents = contents.with_mime_type(asked.mime_type);
    match asked.meta.map(|meta| serde_json::from_value(Value::Object(meta))) {
        Some(Ok(meta)) => contents.with_meta(meta),
        Some(Err(_)) | None => contents,
    }
}

/// Returns true if a client can display pages.
fn shows_pages(context: &Context) -> bool {
    let client = context.peer.as_ref().and_then(|peer| peer.peer_info());
    client.as_ref().is_some_and(|client| knows_pages(&client.capabilities))
}

/// Returns true if these are the capabilities of a client that can display pages.
pub(crate) fn knows_pages(capabilities: &ClientCapabilities) -> bool {
    let extensions = capabilities.extensions.as_ref();
    extensions.is_some_and(|all| all.contains_key(PAGES_EXTENSION))
}

/// Returns the server's part of the agreement about pages.
pub(crate) fn pages_extension() -> (String, JsonObject) {
    let types = json!([PAGE_TYPE]);
    (PAGES_EXTENSION.to_owned(), JsonObject::from_iter([("mimeTypes".to_owned(), types)]))
}

fn internal_error(refused: Refused) -> ErrorData {
    ErrorData::internal_error(refused.message, None)
}
