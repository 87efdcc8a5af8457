//! Plain requests next to MCP: a list of the tools, a call of a tool, and `/run`.
//!
//! Tools are called from the table that the handler behind `/mcp` calls them from.

use std::num::NonZeroU32;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use rmcp::model::{ErrorCode, ServerResult};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::access::Client;
use crate::door::Door;
use crate::openapi;
use crate::respond::{Refusal, json_response};
use crate::tool_path::ToolInPath;
use config::policy::Principal;
use mcp::server::Server;
use mcp::tools::Context;
use model::call::Correlation;
use service::report::to_value;

/// Pairs of a client and a tool that are counted.
const MAX_COUNTED: usize = 4096;

/// Counts of calls, by client and tool.
#[derive(Debug, Clone)]
struct Rates {
    per_minute: NonZeroU32,
    counts: Arc<DefaultKeyedRateLimiter<(Principal, String)>>,
}

/// Returns the routes next to MCP that list and call tools. A client may call each tool `per_minute` times.
pub(crate) fn routes(per_minute: NonZeroU32) -> Router {
    let rates = Rates::new(per_minute);
    Router::new()
        .route("/", get(about))
        .route("/tools", get(tools))
        .route("/tools/{name}/execute", post(execute).with_state(rates))
}

async fn about() -> Json<Value> {
    Json(json!({
        "name": "cofferdam",
        "version": env!("CARGO_PKG_VERSION"),
        "endpoints": openapi::paths(),
    }))
}

async fn tools(Extension(door): Extension<Arc<Door<Server>>>) -> Result<Response, Refusal> {
    // An operator shows no secret of a project.
    if door.has_secret() {
        return Err(list_unavailable());
    }
    let tools = door.handler().tools().map_err(|_| list_unavailable())?;
    Ok(json_response(StatusCode::OK, &json!({ "tools": tools })))
}

fn list_unavailable() -> Refusal {
    let message = "the list of the tools is not there; ask again";
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
}

/// Calls a tool. The answer is its structured content, or without that the whole result. The call is cancelled if the
/// client disconnects.
async fn execute(
    State(rates): State<Rates>,
    Extension(door): Extension<Arc<Door<Server>>>,
    Extension(client): Extension<Client>,
    correlation: Option<Extension<Correlation>>,
    ToolInPath(name): ToolInPath,
    body: Bytes,
) -> Result<Response, Refusal> {
    let arguments = arguments(&body)?;
    let table = door.handler();
    let offered = table.offered(&name).map_err(|_| list_unavailable())?;
    // Only existing names are counted: unknown ones would take memory.
    if let Some(name) = &offered {
        rates.count_call(client.principal, name)?;
    }
    let cancel = CancellationToken::new();
    let _cancelled = cancel.clone().drop_guard();
    let context = Context::plain(cancel, correlation.map(|Extension(id)| id));
    let name = offered.as_ref().unwrap_or(&name);
    let done = table.call(name, Some(arguments), context).await.map_err(|error| {
        let (status, kind) = match error.code {
            ErrorCode::INVALID_PARAMS => (StatusCode::NOT_FOUND, "not_found"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        };
        Refusal::new(status, kind, error.message)
    })?;
    let result = to_value(&ServerResult::from(done));
    let shown = result.get("structuredContent").unwrap_or(&result);
    if offered.is_some() {
        Ok(json_response(StatusCode::OK, shown))
    } else {
        Err(not_offered(shown))
    }
}

/// Makes the refusal of a tool that exists and is not offered, with the reason that the tool gives.
fn not_offered(said: &Value) -> Refusal {
    let text = |name: &str| said.get(name).and_then(Value::as_str);
    let hint = text("hint").map(|hint| format!("; hint: {hint}")).unwrap_or_default();
    let message = text("error").unwrap_or("this tool is not offered").to_owned() + &hint;
    Refusal::new(StatusCode::FORBIDDEN, "denied", message)
}

/// Reads a body as the object of a tool's arguments; an empty body is an empty object.
fn arguments(body: &[u8]) -> Result<Map<String, Value>, Refusal> {
    let bad = |message: String| Refusal::new(StatusCode::BAD_REQUEST, "bad_request", message);
    if body.is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(arguments)) => Ok(arguments),
        Ok(_) => Err(bad("the body is an object with the tool's arguments".to_owned())),
        Err(error) => Err(bad(format!("the body is no JSON: {error}"))),
    }
}

impl Rates {
    fn new(per_minute: NonZeroU32) -> Self {
        Self { per_minute, counts: Arc::new(RateLimiter::keyed(Quota::per_minute(per_minute))) }
    }

    /// Counts a call.
    ///
    /// # Errors
    /// 429 with the time to wait if the client has called the tool too often.
    fn count_call(&self, principal: Principal, tool: &str) -> Result<(), Refusal> {
        if self.counts.len() >= MAX_COUNTED {
            self.counts.retain_recent();
        }
        self.counts.check_key(&(principal, tool.to_owned())).map_err(|until| {
            let wait = until.wait_time_from(DefaultClock::default().now());
            let message = format!("more than {} calls of `{tool}` in a minute", self.per_minute);
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, "Rate limit exceeded", message)
                .after(wait.as_secs() + 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_a_rate_for_each_tool() {
        let rates = Rates::new(NonZeroU32::new(10).expect("not zero"));
        let call = |client: &str, tool: &str| rates.count_call(Principal::named(client), tool);
        assert!((0..10).all(|_| call("a", "bash").is_ok()));
        let refused = call("a", "bash").err();
        assert_eq!(refused.as_ref().map(|it| it.status.as_u16()), Some(429));
        assert!(refused.is_some_and(|it| it.retry_after.is_some()));
        assert!(call("b", "bash").is_ok() && call("a", "calculate").is_ok());
    }

    #[test]
    fn arguments_are_an_object() {
        assert_eq!(arguments(b"").ok(), Some(Map::new()));
        let one = Map::from_iter([("a".to_owned(), json!(1))]);
        assert_eq!(arguments(b"{\"a\":1}").ok(), Some(one));
        for bad in [&b"[]"[..], b"1", b"{", b"\xff"] {
            assert_eq!(arguments(bad).err().map(|it| it.status.as_u16()), Some(400));
        }
    }
}
