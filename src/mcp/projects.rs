//! Serves a script project: lists its entries, and runs one call of a script from its arguments to its result.

pub(crate) mod current;
mod fetch;
mod live;
mod roots;

pub use current::CurrentProject;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine};
use rmcp::ErrorData;
use rmcp::model::{
    CallToolResponse, CallToolResult, CompleteRequestParams, CompleteResult, CompletionInfo,
    ErrorCode, GetPromptResponse, GetPromptResult, JsonObject, Prompt, PromptArgument,
    PromptMessage, ReadResourceResult, Reference, Resource, ResourceContents, ResourceTemplate,
    ResultType, Role, Tool,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::Instrument;

use super::context::Context;
use super::pages::{self, MOVED, Paged};
use super::server::Server;
use super::{harmless, reply};
use model::outcome::Outcome;
use projects::{
    AskedCompletion, AskedResource, CompletionRequest, Project, ResourceContent, SUGGESTIONS,
    ScriptEnd, ScriptError, ScriptLaunch, ScriptPrompt, ScriptResource, ScriptTemplate, ScriptTool,
};
use service::Report;
use service::refused::{Refused, RefusedKind};

/// Extension of MCP by which a client says that it shows pages.
const PAGES: &str = "io.modelcontextprotocol/ui";

/// Key of `_meta` with the cursor of further suggestions, for which the protocol has no field.
const NEXT: &str = "mcpbash/nextCursor";
/// Maximum suggestions of a completion.
const COMPLETIONS: usize = 1_000_000;

/// Name of a read of the project's resources in rules, after `project:`.
const READS: &str = "resources/read";
/// Name of the project's completions in rules, after `project:`.
const COMPLETES: &str = "completion/complete";

/// Describes a tool to a client. Annotations and icons that no client could read are left out.
pub(crate) fn described(tool: &ScriptTool) -> Tool {
    let fixed = json!({
        "name": tool.name, "description": tool.description, "inputSchema": tool.input_schema,
    });
    let more = [
        ("outputSchema", tool.output_schema.clone().map(Value::Object)),
        ("annotations", tool.annotations.clone().map(Value::Object)),
        ("icons", tool.icons.clone().map(Value::Array)),
        ("_meta", Some(Value::Object(with_place(tool)))),
    ];
    let plain = || Tool::new(tool.name.clone(), "", tool.input_schema.clone());
    entry(fixed, more).unwrap_or_else(plain)
}

/// Adds the path and the time limit of a tool to its `_meta`, as a strict client refuses unknown members elsewhere.
fn with_place(tool: &ScriptTool) -> JsonObject {
    let mut meta = tool.meta.clone().unwrap_or_default();
    meta.insert(format!("{MOVED}path"), json!(tool.path));
    meta.insert(format!("{MOVED}timeoutSecs"), json!(tool.timeout));
    meta
}

/// Describes a resource to a client, as [`described`] does a tool.
pub(crate) fn resource(resource: &ScriptResource) -> Resource {
    let fixed = json!({
        "name": resource.name, "description": resource.description, "uri": resource.uri,
        "mimeType": resource.mime_type,
    });
    let more = [
        ("annotations", resource.annotations.clone().map(Value::Object)),
        ("icons", resource.icons.clone().map(Value::Array)),
        ("_meta", resource.meta.clone().map(Value::Object)),
    ];
    entry(fixed, more).unwrap_or_else(|| Resource::new(&resource.uri, &resource.name))
}

/// Describes a template to a client, as [`described`] does a tool.
pub(crate) fn template(template: &ScriptTemplate) -> ResourceTemplate {
    let fixed = json!({ "name": template.name, "uriTemplate": template.uri_template });
    let more = [
        ("title", template.title.clone().map(Value::String)),
        ("description", template.description.clone().map(Value::String)),
        ("mimeType", template.mime_type.clone().map(Value::String)),
        ("annotations", template.annotations.clone().map(Value::Object)),
    ];
    let plain = || ResourceTemplate::new(&template.uri_template, &template.name);
    entry(fixed, more).unwrap_or_else(plain)
}

/// Makes an entry of a list of the `fixed` fields, and of those of `more` that a client can read.
fn entry<T: DeserializeOwned, const N: usize>(
    mut fixed: Value,
    more: [(&str, Option<Value>); N],
) -> Option<T> {
    for (key, value) in more {
        let Some(value) = value else { continue };
        let mut with = fixed.clone();
        with.as_object_mut()?.insert(key.to_owned(), value);
        if serde_json::from_value::<T>(with.clone()).is_ok() {
            fixed = with;
        }
    }
    harmless::described(&mut fixed);
    serde_json::from_value(fixed).ok()
}

/// Describes a prompt to a client.
pub(crate) fn prompt(prompt: &ScriptPrompt) -> Prompt {
    let argument = |(name, description, is_required): (&str, Option<&str>, bool)| {
        let argument = PromptArgument::new(name).with_required(is_required);
        match description {
            Some(description) => argument.with_description(description),
            None => argument,
        }
    };
    let arguments: Vec<PromptArgument> = prompt.parameters().into_iter().map(argument).collect();
    let fixed = json!({
        "name": prompt.name, "description": prompt.description, "arguments": arguments,
    });
    let more = [
        ("icons", prompt.icons.clone().map(Value::Array)),
        ("_meta", prompt.metadata.clone().map(Value::Object)),
    ];
    let plain = || Prompt::new(&prompt.name, Some(&prompt.description), Some(arguments.clone()));
    entry(fixed, more).unwrap_or_else(plain)
}

/// Puts arguments into a prompt.
///
/// # Errors
/// An argument that is required and missing.
pub(crate) fn rendered(
    prompt: &ScriptPrompt,
    arguments: &JsonObject,
) -> Result<GetPromptResponse, ErrorData> {
    for (name, _, is_required) in prompt.parameters() {
        if is_required && !arguments.contains_key(name) {
            return Err(ErrorData::invalid_params(format!("argument `{name}` is required"), None));
        }
    }
    // MCP has no role `system`.
    let message = PromptMessage::new_text(Role::User, prompt.rendered(arguments));
    let result = GetPromptResult::new(vec![message]).with_description(&prompt.description);
    Ok(harmless::prompt(result).into())
}

impl Server {
    /// Answers a call of a tool of the project.
    ///
    /// # Errors
    /// The error that the script reported, or that follows from its end.
    pub(crate) async fn call_script(
        &self,
        project: Arc<Project>,
        tool: ScriptTool,
        arguments: Option<JsonObject>,
        context: Context,
    ) -> Result<CallToolResponse, ErrorData> {
        let span = tracing::error_span!("call", id = %context.id, tool = %tool.name);
        let server = self.clone();
        let run = async move |context: Context| {
            server.ran_script(&project, &tool, arguments, &context).await
        };
        self.run_call(context, run).instrument(span).await
    }

    async fn ran_script(
        &self,
        project: &Project,
        tool: &ScriptTool,
        arguments: Option<JsonObject>,
        context: &Context,
    ) -> Result<CallToolResult, ErrorData> {
        self.admit_call(project, tool, context).await?;
        let meta = serde_json::to_value(&context.meta).ok();
        let meta = meta.and_then(|meta| meta.as_object().cloned()).unwrap_or_default();
        let arguments = arguments.unwrap_or_default();
        let launch = ScriptLaunch::new(project, tool, &arguments, &meta, mark())
            .map_err(|error| ErrorData::invalid_params(error.to_string(), None))?
            .for_pages(shows_pages(context))
            .in_roots(project, &self.client_roots(project, context).await);
        let launch = match pages::moved(&context.meta, "timeoutSecs").and_then(Value::as_u64) {
            Some(seconds) => launch.within(project, seconds),
            None => launch,
        };
        let (launch, output, report) = match self.run_launch(&tool.name, launch, context).await {
            Ok(done) => done,
            Err(refused) => return refusal(refused, tool),
        };
        let result = Project::result(tool, &launch, &output).map_err(error)?;
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
    pub(crate) async fn read_script(
        &self,
        uri: &str,
        context: &Context,
    ) -> Option<Result<ReadResourceResult, ErrorData>> {
        let project = match self.0.project.as_ref()?.trusted() {
            Ok(project) => project,
            Err(broken) => return Some(Err(broken)),
        };
        let asked = project.resource(uri)?;
        if let Some(html) = &asked.html {
            let text = ResourceContent::Text(html.clone());
            return Some(Ok(ReadResourceResult::new(vec![contents(text, asked)])));
        }
        if project.fetches(&asked.provider) {
            return Some(self.read_fetched(&project, asked, context).await);
        }
        let launch = ScriptLaunch::reading(&project, &asked, mark());
        let (launch, output, _) = match self.run_launch(READS, launch, context).await {
            Ok(done) => done,
            Err(refused) => return Some(Err(ErrorData::internal_error(refused.message, None))),
        };
        let content = Project::content(&asked, &launch, &output).map_err(error);
        Some(content.map(|content| ReadResourceResult::new(vec![contents(content, asked)])))
    }
}

impl Server {
    /// Completes an argument of a prompt or template of the project; `None` if the project does not have it.
    ///
    /// # Errors
    /// The reason why the project's script made no suggestions.
    pub(crate) async fn complete_script(
        &self,
        request: &CompleteRequestParams,
        context: &Context,
    ) -> Option<Result<CompleteResult, ErrorData>> {
        let project = match self.0.project.as_ref()?.trusted() {
            Ok(project) => project,
            Err(broken) => return Some(Err(broken)),
        };
        let of = match &request.r#ref {
            Reference::Prompt(prompt) => AskedCompletion::Prompt(&prompt.name),
            Reference::Resource(resource) => AskedCompletion::Resource(&resource.uri),
            _ => return None,
        };
        if !project.has_arguments(of) {
            let unknown = "the project has no prompt or resource of this name";
            let is_alone = self.0.tools.is_empty();
            return is_alone.then(|| Err(ErrorData::invalid_params(unknown, None)));
        }
        Some(self.suggested(&project, of, request, context).await)
    }

    async fn suggested(
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
        let list = Paged { collection: &completion.name, hash: &hash, total: COMPLETIONS };
        let limit =
            pages::moved(&context.meta, "limit").and_then(Value::as_u64).filter(|it| *it > 0);
        let limit = limit.and_then(|limit| usize::try_from(limit).ok());
        asked.limit = limit.map_or(SUGGESTIONS, |limit| limit.min(SUGGESTIONS));
        if let Some(cursor) = pages::moved(&context.meta, "cursor") {
            let place = cursor.as_str().and_then(|cursor| list.place(cursor));
            asked.offset = place.ok_or_else(pages::invalid)?;
        }
        let launch = ScriptLaunch::completing(project, completion, &asked, mark())
            .map_err(|error| ErrorData::invalid_params(error.to_string(), None))?;
        let done = self.run_launch(COMPLETES, launch, context).await;
        let (launch, output, _) = done.map_err(|it| ErrorData::internal_error(it.message, None))?;
        let suggestions = Project::suggestions(&launch, &output, &asked).map_err(error)?;
        let total = u32::try_from(asked.offset + suggestions.values.len()).ok();
        let total = total.filter(|_| !suggestions.has_more);
        let info = CompletionInfo::with_pagination(suggestions.values, total, suggestions.has_more)
            .map_err(|error| ErrorData::internal_error(error, None))?;
        let mut result = CompleteResult::new(info);
        if suggestions.has_more {
            let next = list.cursor(suggestions.next);
            result.meta.get_or_insert_default().insert(NEXT.to_owned(), json!(next));
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
    let extensions = client.as_ref().and_then(|client| client.capabilities.extensions.as_ref());
    extensions.is_some_and(|all| all.contains_key(PAGES))
}

/// Makes a random word that separates a script's output from the report of its end.
pub(super) fn mark() -> String {
    let half = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", half(), half())
}

fn refusal(refused: Refused, tool: &ScriptTool) -> Result<CallToolResult, ErrorData> {
    match refused.kind {
        RefusedKind::Arguments => Err(ErrorData::invalid_params(refused.message, None)),
        RefusedKind::Denied
        | RefusedKind::Cancelled
        | RefusedKind::Absent
        | RefusedKind::Failed => Ok(reply::refused(&refused, &tool.name)),
    }
}

/// Returns how a script ended.
fn end(outcome: &Outcome) -> ScriptEnd {
    match outcome {
        Outcome::Exited { code: 0 } => ScriptEnd::Exited,
        // Only the runner's exit code: that of the script is in the report.
        Outcome::Exited { code } => ScriptEnd::Stopped(format!(
            "Tool has ended, and its output was not sent whole (code {code})"
        )),
        Outcome::Timeout => ScriptEnd::TimedOut,
        Outcome::Cancelled => ScriptEnd::Cancelled,
        Outcome::Signaled { signal } => {
            ScriptEnd::Stopped(format!("Tool was ended by signal {signal}"))
        }
        Outcome::Limit(kind) => {
            ScriptEnd::Stopped(format!("Tool reached its {} limit", kind.name()))
        }
        Outcome::Failed(failure) => ScriptEnd::Stopped(failure.to_string()),
    }
}

/// Returns the part of standard error that is kept.
fn last(report: &Report) -> Vec<u8> {
    report.stderr.whole().unwrap_or_else(|| report.stderr.tail().to_vec())
}

pub(super) fn error(error: ScriptError) -> ErrorData {
    let code = i32::try_from(error.code).unwrap_or(ErrorCode::INTERNAL_ERROR.0);
    ErrorData::new(ErrorCode(code), error.message, error.data)
}
