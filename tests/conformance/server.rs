//! The fixtures of the conformance suite behind the listener, the checks and the doors of `serve --http`.
//!
//! `fixtures.json` has them as data; `tests/conformance/run` starts this and the suite. No part of it is in the
//! program that is installed.

mod tasks;

use std::net::TcpListener;
use std::sync::LazyLock;
use std::time::Duration;

use config::policy::Principal;
use http::access::browser::{ListenerReach, ServedNames};
use http::access::{AccessRules, CredentialStore, Credentials, WithoutToken};
use http::door::MakeHandler;
use http::serve::{Front, Listener, serve};
use mcp::lines::Ends;
use mcp::server::Continuity;
use mcp::tasks::Tasks;
use rmcp::model::*;
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::broadcast;

/// A pixel, and a sound without samples.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgaGAAAAEEAIFw9selAAAAAElFTkSuQmCC";
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";
/// Key of the states that clients carry; a test needs no secret.
const KEY: &[u8] = b"a key of the conformance fixtures";

static FIXTURES: LazyLock<Value> = LazyLock::new(|| {
    let text = include_str!("fixtures.json").replace("\"PNG\"", &format!("\"{PNG}\""));
    serde_json::from_str(&text.replace("\"WAV\"", &format!("\"{WAV}\""))).expect("JSON")
});

fn fixture(kind: &str, name: &str) -> Option<&'static Value> {
    FIXTURES.get(kind)?.get(name)
}

fn names(kind: &str) -> impl Iterator<Item = &'static String> {
    FIXTURES.get(kind).and_then(Value::as_object).into_iter().flat_map(|kind| kind.keys())
}

fn typed<T: DeserializeOwned>(value: Value) -> Result<T, ErrorData> {
    serde_json::from_value(value)
        .map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

/// Reads a result that is whole; rmcp leaves the word out for revisions that do not have it.
fn whole<T: DeserializeOwned>(mut value: Value) -> Result<T, ErrorData> {
    if let Some(value) = value.as_object_mut() {
        value.insert("resultType".to_owned(), "complete".into());
    }
    typed(value)
}

fn invalid(reason: &str) -> ErrorData {
    ErrorData::invalid_params(reason.to_owned(), None)
}

/// A list that changed.
#[derive(Debug, Clone, Copy)]
enum Change {
    Tools,
    Prompts,
}

/// The fixtures, as one client has them.
#[derive(Debug, Clone)]
struct Fixtures {
    changes: broadcast::Sender<Change>,
    tasks: Tasks,
}

/// A sealed round: its number, and a hash that only this server makes.
fn sealed(round: usize) -> String {
    format!("{round}.{}", seal(round))
}

fn seal(round: usize) -> String {
    let mut hash = Sha256::new();
    hash.update(KEY);
    hash.update(round.to_string());
    hash.update(KEY);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn opened(state: &str) -> Result<usize, ErrorData> {
    let round = state.split_once('.').and_then(|(round, hash)| {
        let round = round.parse().ok()?;
        (seal(round) == hash).then_some(round)
    });
    round.ok_or_else(|| invalid("requestState was not made here"))
}

/// The outcome of a request that asks in rounds.
enum Asked {
    More(InputRequiredResult),
    Done(InputResponses),
}

/// Decides what a request that asks in rounds answers.
fn asked(
    name: &str,
    responses: Option<InputResponses>,
    state: Option<&str>,
    context: &RequestContext<RoleServer>,
) -> Result<Asked, ErrorData> {
    let row = fixture("rounds", name).ok_or_else(|| invalid("no rounds"))?;
    let rounds = row.get("rounds").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let at = state.map(opened).transpose()?.unwrap_or_default();
    let current = requests(rounds.get(at), context)?;
    let next = requests(rounds.get(at + 1), context)?;
    let answered = responses.as_ref().is_some_and(|responses| {
        current.iter().all(|(key, request)| responses.get(key).is_some_and(|it| fits(request, it)))
    });
    let has_state = row.get("state").is_some();
    let ask = |requests, round| {
        Asked::More(InputRequiredResult::new(Some(requests), has_state.then(|| sealed(round))))
    };
    Ok(match (answered, next.is_empty()) {
        (false, _) => ask(current, at),
        (true, false) => ask(next, at + 1),
        (true, true) => Asked::Done(responses.unwrap_or_default()),
    })
}

/// Returns the requests of a round that the client can answer.
fn requests(
    round: Option<&Value>,
    context: &RequestContext<RoleServer>,
) -> Result<InputRequests, ErrorData> {
    let capabilities = json!(context.client_capabilities().unwrap_or_default());
    let declares = |method: &str| {
        let name = method.split('/').next().unwrap_or_default();
        capabilities.get(name).is_some()
    };
    let mut requests = InputRequests::new();
    for (key, named) in round.and_then(Value::as_object).into_iter().flatten() {
        let request = fixture("requests", named.as_str().unwrap_or_default());
        let request = request.cloned().unwrap_or_default();
        let method = request.get("method").and_then(Value::as_str).unwrap_or_default();
        if declares(method) {
            requests.insert(key.clone(), typed(request)?);
        }
    }
    match round.is_some() && requests.is_empty() {
        true => Err(missing_capability()),
        false => Ok(requests),
    }
}

fn missing_capability() -> ErrorData {
    let needed: ClientCapabilities = typed(json!({ "sampling": {} })).unwrap_or_default();
    ErrorData::missing_required_client_capability(needed)
}

/// Returns true if an answer has the form of the answers to such a request.
fn fits(request: &InputRequest, answer: &Value) -> bool {
    let method = json!(request).get("method").cloned().unwrap_or_default();
    match method.as_str() {
        Some("elicitation/create") => answer.get("action").is_some_and(Value::is_string),
        Some("sampling/createMessage") => answer.get("content").is_some(),
        _ => answer.get("roots").is_some_and(Value::is_array),
    }
}

/// Says what was answered.
fn summary(answers: &InputResponses) -> String {
    let name = answers.values().find_map(|answer| answer.pointer("/content/name")?.as_str());
    match name {
        Some(name) => format!("Hello, {name}! state-ok"),
        None => format!("state-ok {}", json!(answers)),
    }
}

fn text(text: String) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

impl Fixtures {
    async fn during(
        &self,
        name: &str,
        context: &RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let pause = || tokio::time::sleep(Duration::from_millis(50));
        let lost = |error: rmcp::ServiceError| ErrorData::internal_error(error.to_string(), None);
        match name {
            "test_tool_with_logging" => {
                for text in
                    ["Tool execution started", "Tool processing data", "Tool execution completed"]
                {
                    let message = typed(json!({ "level": "info", "data": text }))?;
                    #[expect(deprecated, reason = "the older revision has it")]
                    context.peer.notify_logging_message(message).await.map_err(lost)?;
                    pause().await;
                }
            }
            "test_tool_with_progress" => {
                for progress in [0.0, 50.0, 100.0] {
                    if let Some(token) = context.meta.get_progress_token() {
                        let output =
                            ProgressNotificationParam::new(token, progress).with_total(100.0);
                        context.peer.notify_progress(output).await.map_err(lost)?;
                    }
                    pause().await;
                }
            }
            "test_reconnection" => pause().await,
            // There may be no listener.
            "test_trigger_tool_change" => drop(self.changes.send(Change::Tools)),
            "test_trigger_prompt_change" => drop(self.changes.send(Change::Prompts)),
            "test_missing_capability" => {
                let declared = context.client_capabilities().unwrap_or_default();
                if json!(declared).get("sampling").is_none() {
                    return Err(missing_capability());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Asks the client in the middle of a call, as the revisions with sessions do.
    async fn asks(
        &self,
        name: &str,
        arguments: &JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        let printed = |key| arguments.get(key).and_then(Value::as_str).unwrap_or("please answer");
        let failed = |error: rmcp::ServiceError| ErrorData::internal_error(error.to_string(), None);
        if name == "test_sampling" {
            let message =
                json!({ "role": "user", "content": { "type": "text", "text": printed("prompt") } });
            let params = typed(json!({ "messages": [message], "maxTokens": 100 }))?;
            #[expect(deprecated, reason = "the older revision has it")]
            let answer = context.peer.create_message(params).await.map_err(failed)?;
            let answer = json!(answer);
            let answer = answer.pointer("/content/text").or(answer.pointer("/content/0/text"));
            return Ok(text(format!(
                "LLM response: {}",
                answer.and_then(Value::as_str).unwrap_or_default()
            )));
        }
        let mut schema = fixture("asks", name).cloned().unwrap_or_default();
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("type".to_owned(), "object".into());
        }
        let params =
            json!({ "mode": "form", "message": printed("message"), "requestedSchema": schema });
        let request: ServerRequest =
            typed(json!({ "method": "elicitation/create", "params": params }))?;
        let answer = json!(context.peer.send_request(request).await.map_err(failed)?);
        let begin =
            if name == "test_elicitation" { "User response:" } else { "Elicitation completed:" };
        let field = |key| answer.get(key).cloned().unwrap_or_default();
        let action = field("action");
        let action = action.as_str().unwrap_or_default();
        Ok(text(format!("{begin} action={action}, content={}", field("content"))))
    }
}

impl ServerHandler for Fixtures {
    fn get_info(&self) -> ServerConfig {
        #[expect(deprecated, reason = "the older revision has logging")]
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_completions()
            .enable_logging()
            .enable_tasks()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("cofferdam-conformance", "1"))
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let plain = names("tools").chain(names("asks")).chain(names("rounds"));
        let all = plain.map(String::as_str).chain(tasks::NAMES);
        let tool = |name: &str| {
            let plain = json!({ "type": "object", "properties": {} });
            let schema = fixture("schemas", name).cloned().unwrap_or(plain);
            typed(
                json!({ "name": name, "description": "A fixture of the suite.", "inputSchema": schema }),
            )
        };
        Ok(ListToolsResult::with_all_items(all.map(tool).collect::<Result<_, _>>()?))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let schema = fixture("schemas", name)?.clone();
        typed(json!({ "name": name, "description": "A fixture.", "inputSchema": schema })).ok()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let name = &*request.name;
        if fixture("rounds", name).is_some() {
            let state = request.request_state.as_deref();
            return match asked(name, request.input_responses, state, &context)? {
                Asked::More(more) => Ok(CallToolResponse::InputRequired(more)),
                Asked::Done(answers) if name == "test_tool_with_task" => {
                    tasks::later(&self.tasks, summary(&answers), context).await
                }
                Asked::Done(answers) => Ok(text(summary(&answers)).into()),
            };
        }
        let arguments = request.arguments.clone().unwrap_or_default();
        if let Some(done) = tasks::call(&self.tasks, name, &arguments, &context).await {
            return done;
        }
        if fixture("asks", name).is_some() {
            return Ok(self.asks(name, &arguments, &context).await?.into());
        }
        let result = fixture("tools", name).ok_or_else(|| invalid("unknown tool"))?;
        self.during(name, &context).await?;
        Ok(whole::<CallToolResult>(result.clone())?.into())
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        self.tasks.get(&request.task_id)
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks.update(&request.task_id, request.input_responses)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks.cancel(&request.task_id)
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let prompt = |name: &String| {
            let arguments = fixture("prompts", name).and_then(|prompt| prompt.get("arguments"));
            let arguments = arguments.and_then(Value::as_array).into_iter().flatten();
            let argument =
                |name| json!({ "name": name, "description": "A text.", "required": true });
            let arguments: Vec<Value> = arguments.map(argument).collect();
            typed(
                json!({ "name": name, "description": "A fixture of the suite.", "arguments": arguments }),
            )
        };
        let all = names("prompts").map(prompt).collect::<Result<_, _>>()?;
        Ok(ListPromptsResult::with_all_items(all))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let name = request.name.as_str();
        if fixture("rounds", name).is_some() {
            let state = request.request_state.as_deref();
            if let Asked::More(more) = asked(name, request.input_responses, state, &context)? {
                return Ok(GetPromptResponse::InputRequired(more));
            }
        }
        let prompt = fixture("prompts", name).ok_or_else(|| invalid("unknown prompt"))?;
        let mut messages = prompt.get("messages").cloned().unwrap_or_default().to_string();
        for (name, value) in request.arguments.unwrap_or_default() {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            messages = messages.replace(&format!("{{{name}}}"), &value);
        }
        let messages: Value = serde_json::from_str(&messages).map_err(|_| invalid("arguments"))?;
        Ok(whole::<GetPromptResult>(json!({ "messages": messages }))?.into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let resource = |uri: &String| {
            let kind = fixture("resources", uri).and_then(|it| it.get("mimeType"));
            typed(json!({ "uri": uri, "name": uri, "description": "A fixture.", "mimeType": kind }))
        };
        let all = names("resources").map(resource).collect::<Result<_, _>>()?;
        Ok(ListResourcesResult::with_all_items(all))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let template = json!({
            "uriTemplate": "test://template/{id}/data", "name": "template",
            "description": "A fixture.", "mimeType": "application/json"
        });
        Ok(ListResourceTemplatesResult::with_all_items(vec![typed(template)?]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri.as_str();
        let id = uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
        let mut content = match (fixture("resources", uri), id) {
            (Some(content), _) => content.clone(),
            (None, Some(id)) => {
                let data =
                    json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") });
                json!({ "mimeType": "application/json", "text": data.to_string() })
            }
            (None, None) => {
                let data = Some(json!({ "uri": uri }));
                return Err(ErrorData::invalid_params("Resource not found", data));
            }
        };
        if let Some(content) = content.as_object_mut() {
            content.insert("uri".to_owned(), uri.into());
        }
        Ok(whole::<ReadResourceResult>(json!({ "contents": [content] }))?.into())
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        whole(
            json!({ "completion": { "values": ["paris", "park", "party"], "total": 3, "hasMore": false } }),
        )
    }

    async fn subscribe(
        &self,
        _: SubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(
        &self,
        _: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    #[expect(deprecated, reason = "the older revision has it")]
    async fn set_level(
        &self,
        _: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    fn accepted_subscription_filter(
        &self,
        wanted: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(wanted.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.changes.subscribe();
        loop {
            let change = tokio::select! {
                () = context.cancelled() => return Ok(()),
                change = changes.recv() => change,
            };
            let accepted = context.accepted();
            let sink = context.sink();
            let sent = match change {
                Ok(Change::Tools) if accepted.tools_list_changed == Some(true) => {
                    sink.notify_tool_list_changed().await
                }
                Ok(Change::Prompts) if accepted.prompts_list_changed == Some(true) => {
                    sink.notify_prompt_list_changed().await
                }
                Ok(Change::Tools | Change::Prompts)
                | Err(broadcast::error::RecvError::Lagged(_)) => Ok(()),
                Err(broadcast::error::RecvError::Closed) => return Ok(()),
            };
            if sent.is_err() {
                return Ok(());
            }
        }
    }
}

/// Makes the fixtures of each client and session, over one list of changes.
#[derive(Debug)]
struct Suite(broadcast::Sender<Change>);

impl MakeHandler for Suite {
    type Handler = Fixtures;

    fn handler(&self, _: &Principal, _: Continuity) -> Fixtures {
        Fixtures { changes: self.0.clone(), tasks: Tasks::default() }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let names =
        ServedNames { reach: ListenerReach::Loopback, hosts: Vec::new(), origins: Vec::new() };
    // One client, as one with a token is: strangers have no tasks.
    let without_token = WithoutToken::One(Principal::named("suite"));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("http://{}/mcp", listener.local_addr()?);
    let store = CredentialStore::new(Credentials::default());
    let front = Front {
        handlers: Suite(broadcast::channel(64).0),
        access: AccessRules::new(names, &store, without_token),
        listener: Listener::Tcp(listener),
        limits: http::ListenerLimits::default(),
    };
    serve(front, Ends::default()).await?;
    Ok(())
}
