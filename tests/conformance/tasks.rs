//! The fixtures of the tasks extension, on the tasks of the product.

use std::time::Duration;

use mcp::tasks::{TaskCandidate, Tasks};
use mcp::tools::Context;
use rmcp::ErrorData;
use rmcp::RoleServer;
use rmcp::model::{
    CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock, InputRequest, JsonObject,
};
use rmcp::service::RequestContext;
use serde_json::{Value, json};

use super::{text, typed};

/// Names of the fixtures that are answered at once or as a task.
pub(crate) const NAMES: [&str; 6] =
    ["greet", "slow_compute", "failing_job", "protocol_error_job", "confirm_delete", "multi_input"];
/// Time of the fixtures that are a task only if they last.
const SOON: Duration = Duration::from_secs(1);

/// Behaviour of a fixture when it is called.
#[derive(Debug, Clone, Copy)]
enum Fixture {
    /// Answers after a time, unless it is cancelled.
    Slow(Duration),
    /// Reports an error of the tool.
    Fails,
    /// Ends by an error of the protocol.
    Breaks,
    /// Asks the user so much at once.
    Asks(usize),
}

/// Calls a fixture; `None` for any other name. But for `greet`, each call of a client that knows tasks is one.
pub(crate) async fn call(
    tasks: &Tasks,
    name: &str,
    arguments: &JsonObject,
    context: &RequestContext<RoleServer>,
) -> Option<Result<CallToolResponse, ErrorData>> {
    let seconds = arguments.get("seconds").and_then(Value::as_u64).unwrap_or_default();
    let fixture = match name {
        "greet" => {
            let name = arguments.get("name").and_then(Value::as_str).unwrap_or_default();
            return Some(Ok(text(format!("Hello, {name}!")).into()));
        }
        "slow_compute" => Fixture::Slow(Duration::from_secs(seconds)),
        "failing_job" => Fixture::Fails,
        "protocol_error_job" => Fixture::Breaks,
        "confirm_delete" => Fixture::Asks(1),
        "multi_input" => Fixture::Asks(2),
        _ => return None,
    };
    let knows_tasks = context.client_capabilities().is_some_and(|it| it.supports_tasks());
    if matches!(fixture, Fixture::Fails) && !knows_tasks {
        let needed = ClientCapabilities::builder().enable_tasks().build();
        return Some(Err(ErrorData::missing_required_client_capability(needed)));
    }
    Some(
        tasks
            .call(context.clone().into(), Duration::ZERO, move |context| fixture.run(context))
            .await,
    )
}

/// Answers after a while, as a task where the client knows them.
pub(crate) async fn later(
    tasks: &Tasks,
    printed: String,
    context: RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let call = async move |_| {
        tokio::time::sleep(SOON).await;
        Ok(text(printed))
    };
    tasks.call(context.into(), Duration::ZERO, call).await
}

impl Fixture {
    async fn run(self, context: Context) -> Result<CallToolResult, ErrorData> {
        match self {
            Self::Slow(time) => tokio::select! {
                () = tokio::time::sleep(time) => Ok(text(format!("computed for {time:?}"))),
                () = context.ct.cancelled() => Ok(failed("cancelled")),
            },
            Self::Fails => {
                tokio::time::sleep(SOON).await;
                Ok(failed("this job always fails"))
            }
            Self::Breaks => {
                tokio::time::sleep(SOON).await;
                Err(ErrorData::internal_error("this job always breaks", None))
            }
            Self::Asks(count) => answers(&context, count).await,
        }
    }
}

fn failed(reason: &str) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(reason)])
}

/// Asks the user `count` questions at once, and says what was answered.
async fn answers(context: &Context, count: usize) -> Result<CallToolResult, ErrorData> {
    let Some(candidate) = TaskCandidate::from_context(context) else {
        return Ok(failed("there is nobody to ask"));
    };
    let schema = json!({ "type": "object", "properties": { "confirm": { "type": "boolean" } } });
    let question = json!({
        "method": "elicitation/create",
        "params": { "mode": "form", "message": "Really?", "requestedSchema": schema }
    });
    let question: InputRequest = typed(question)?;
    let one = candidate.ask(question.clone());
    let two =
        async { if count > 1 { candidate.ask(question.clone()).await } else { Some(Value::Null) } };
    match tokio::join!(one, two) {
        (Some(one), Some(two)) => Ok(text(format!("{one} {two}"))),
        _ => Ok(failed("cancelled")),
    }
}
