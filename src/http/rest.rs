//! Plain requests next to MCP: a list of the tools, a call of a tool, and `/run`.
//!
//! A call of a tool becomes a message of MCP, which the handler behind `/mcp` answers, so that tools are called in one
//! way.

use std::num::NonZeroU32;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use rmcp::ServerHandler;
use serde_json::{Value, json};

use crate::access::Client;
use crate::door::Door;
use crate::openapi;
use crate::respond::{Refusal, json_response};
use crate::tool_path::ToolInPath;
use model::call::Correlation;
use policy::Principal;
use policy::tools::class_name;

/// Calls of one tool by one client in a minute.
const PER_MINUTE: NonZeroU32 = NonZeroU32::new(10).expect("not zero");
/// Pairs of a client and a tool that are counted.
const COUNTED: usize = 4096;
/// Error code of JSON-RPC for an unknown tool.
const INVALID_PARAMS: i64 = -32602;

/// The message that asks for a list of the tools.
const LIST: (&str, Option<&str>) = ("tools/list", None);

/// Counts of calls, by client and tool.
type Rates = Arc<DefaultKeyedRateLimiter<(Principal, String)>>;

/// Returns the routes that each door has.
pub(crate) fn routes<H: ServerHandler + Clone + Send + Sync + 'static>() -> Router {
    let rates: Rates = Arc::new(RateLimiter::keyed(Quota::per_minute(PER_MINUTE)));
    Router::new()
        .route("/", get(about))
        .route("/tools", get(tools::<H>))
        .route("/tools/{name}/execute", post(execute::<H>).with_state(rates))
}

async fn about() -> Json<Value> {
    Json(json!({
        "name": "cofferdam",
        "version": env!("CARGO_PKG_VERSION"),
        "endpoints": openapi::paths(),
    }))
}

async fn tools<H: ServerHandler + Clone + Send + Sync + 'static>(
    Extension(door): Extension<Arc<Door<H>>>,
) -> Result<Response, Refusal> {
    let tools = listed(&door).await?;
    Ok(json_response(StatusCode::OK, &json!({ "tools": tools })))
}

/// Asks for every page of the list of the tools.
///
/// # Errors
/// A page that is missing, such as after the list changed: the list would be incomplete.
async fn listed<H: ServerHandler + Clone + Send + Sync + 'static>(
    door: &Door<H>,
) -> Result<Vec<Value>, Refusal> {
    let mut all = Vec::new();
    let mut params = json!({});
    loop {
        let mut answer = asked(door, LIST, params, None).await?;
        let Some(Value::Array(tools)) = answer.pointer_mut("/result/tools").map(Value::take) else {
            let message = "the list of the tools is not there; ask again";
            return Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message));
        };
        all.extend(tools);
        match answer.pointer("/result/nextCursor").and_then(Value::as_str) {
            Some(cursor) => params = json!({ "cursor": cursor }),
            None => return Ok(all),
        }
    }
}

/// Calls a tool. The answer is its structured content, or without that the whole result.
async fn execute<H: ServerHandler + Clone + Send + Sync + 'static>(
    State(rates): State<Rates>,
    Extension(door): Extension<Arc<Door<H>>>,
    Extension(client): Extension<Client>,
    correlation: Option<Extension<Correlation>>,
    ToolInPath(name): ToolInPath,
    body: Bytes,
) -> Result<Response, Refusal> {
    let arguments = arguments(&body)?;
    let tools = listed(&door).await?;
    let mut listed = tools.iter().filter_map(|tool| tool.get("name")?.as_str());
    // The reference implementation names command-line tools by their classes.
    let found = listed.clone().find(|tool| *tool == name);
    let found = found.or_else(|| listed.find(|tool| class_name(tool) == name));
    let is_listed = found.is_some();
    let name = found.map_or(name.clone(), str::to_owned);
    // Only existing names are counted: unknown ones would take memory.
    if is_listed {
        within_rate(&rates, client.principal, &name)?;
    }
    let params = json!({ "name": name, "arguments": arguments });
    let correlation = correlation.map(|Extension(id)| id);
    let answer = asked(&door, ("tools/call", Some(&name)), params, correlation).await?;
    if let Some(error) = answer.get("error") {
        let message = error.get("message").and_then(Value::as_str).unwrap_or_default();
        let is_unknown = error.get("code").and_then(Value::as_i64) == Some(INVALID_PARAMS);
        return Err(match is_unknown {
            true => Refusal::new(StatusCode::NOT_FOUND, "not_found", message),
            false => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message),
        });
    }
    let result = answer.get("result").cloned().unwrap_or_default();
    let shown = result.get("structuredContent").unwrap_or(&result);
    if is_listed { Ok(json_response(StatusCode::OK, shown)) } else { Err(not_offered(shown)) }
}

/// Makes the refusal of a tool that exists and is not offered, with the reason that the tool gives.
fn not_offered(said: &Value) -> Refusal {
    let text = |name: &str| said.get(name).and_then(Value::as_str);
    let hint = text("hint").map(|hint| format!("; hint: {hint}")).unwrap_or_default();
    let message = text("error").unwrap_or("this tool is not offered").to_owned() + &hint;
    Refusal::new(StatusCode::FORBIDDEN, "denied", message)
}

/// Reads a body as the object of a tool's arguments; an empty body is an empty object.
fn arguments(body: &[u8]) -> Result<Value, Refusal> {
    let bad = |message: String| Refusal::new(StatusCode::BAD_REQUEST, "bad_request", message);
    if body.is_empty() {
        return Ok(json!({}));
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(arguments)) => Ok(Value::Object(arguments)),
        Ok(_) => Err(bad("the body is an object with the tool's arguments".to_owned())),
        Err(error) => Err(bad(format!("the body is no JSON: {error}"))),
    }
}

fn within_rate(rates: &Rates, principal: Principal, tool: &str) -> Result<(), Refusal> {
    if rates.len() >= COUNTED {
        rates.retain_recent();
    }
    rates.check_key(&(principal, tool.to_owned())).map_err(|until| {
        let wait = until.wait_time_from(DefaultClock::default().now());
        let message = format!("more than {PER_MINUTE} calls of `{tool}` in a minute");
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, "Rate limit exceeded", message)
            .after(wait.as_secs() + 1)
    })
}

/// Sends a stand-alone message of MCP to a door, and returns the answer.
async fn asked<H: ServerHandler + Clone + Send + Sync + 'static>(
    door: &Door<H>,
    (method, name): (&'static str, Option<&str>),
    mut params: Value,
    correlation: Option<Correlation>,
) -> Result<Value, Refusal> {
    if let Some(params) = params.as_object_mut() {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {}
        });
        params.insert("_meta".to_owned(), meta);
    }
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let mut request = Request::new(Bytes::from(message.to_string()));
    *request.method_mut() = Method::POST;
    correlation.map(|id| request.extensions_mut().insert(id));
    // rmcp wants a name of the server in every message.
    let fixed = [
        (header::HOST, "localhost"),
        (header::ACCEPT, "application/json, text/event-stream"),
        (header::CONTENT_TYPE, "application/json"),
        (HeaderName::from_static("mcp-protocol-version"), "2026-07-28"),
        (HeaderName::from_static("mcp-method"), method),
    ];
    for (header, value) in fixed {
        request.headers_mut().insert(header, HeaderValue::from_static(value));
    }
    if let Some(name) = name {
        let unknown = |_| Refusal::new(StatusCode::NOT_FOUND, "not_found", "there is no such tool");
        let name = HeaderValue::from_str(name).map_err(unknown)?;
        request.headers_mut().insert("mcp-name", name);
    }
    let failed = || {
        let message = "the call ended without an answer";
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    };
    let answer = door.mcp(request).await?;
    let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.map_err(|_| failed())?;
    serde_json::from_slice(&body).map_err(|_| failed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_a_rate_for_each_tool() {
        let rates: Rates = Arc::new(RateLimiter::keyed(Quota::per_minute(PER_MINUTE)));
        let call = |client: &str, tool: &str| within_rate(&rates, Principal::named(client), tool);
        assert!((0..10).all(|_| call("a", "bash").is_ok()));
        let refused = call("a", "bash").err();
        assert_eq!(refused.as_ref().map(|it| it.status.as_u16()), Some(429));
        assert!(refused.is_some_and(|it| it.retry_after.is_some()));
        assert!(call("b", "bash").is_ok() && call("a", "calculate").is_ok());
    }

    #[test]
    fn arguments_are_an_object() {
        assert_eq!(arguments(b"").ok(), Some(json!({})));
        assert_eq!(arguments(b"{\"a\":1}").ok(), Some(json!({ "a": 1 })));
        for bad in [&b"[]"[..], b"1", b"{", b"\xff"] {
            assert_eq!(arguments(bad).err().map(|it| it.status.as_u16()), Some(400));
        }
    }
}
