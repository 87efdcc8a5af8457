//! Parses one line of input into a message or a fault. Has no side effects.

use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequest, ClientNotification, ClientRequest, GetMeta, JsonRpcMessage, JsonRpcRequest,
    NumberOrString, ProtocolVersion, RequestId,
};
use rmcp::service::RxJsonRpcMessage;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::pages::MOVED;

const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;

/// Kind of an input line.
#[derive(Debug)]
pub enum ParsedLine {
    /// Blank, or a notification that makes no sense: JSON-RPC answers neither.
    Nothing,
    Message(Box<RxJsonRpcMessage<RoleServer>>),
    /// A batch array, not empty; only the 2025-03-26 revision has them.
    Batch(Vec<Value>),
    Fault(Fault),
}

/// A line that is answered with an error, without a request behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    id: Option<RequestId>,
    code: i32,
    message: String,
}

impl Fault {
    /// Makes the error for text that is not JSON (-32700).
    fn parse(message: impl Into<String>) -> Self {
        Self { id: None, code: PARSE_ERROR, message: message.into() }
    }

    /// Makes the error for JSON that is not an acceptable request (-32600).
    pub fn request(message: impl Into<String>) -> Self {
        Self { id: None, code: INVALID_REQUEST, message: message.into() }
    }

    #[must_use]
    pub(crate) fn with_code(mut self, code: i32) -> Self {
        self.code = code;
        self
    }

    #[must_use]
    pub(crate) fn with_id(mut self, id: RequestId) -> Self {
        self.id = Some(id);
        self
    }

    /// Returns the answer as a line without its newline. An unreadable id is null, as in JSON-RPC
    /// 2.0; rmcp's own type would omit it.
    pub(crate) fn to_line(&self) -> Vec<u8> {
        json!({
            "jsonrpc": "2.0",
            "id": self.id,
            "error": { "code": self.code, "message": self.message }
        })
        .to_string()
        .into_bytes()
    }
}

/// Parses one line, without its newline.
pub(crate) fn parse_line(line: &[u8]) -> ParsedLine {
    let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return ParsedLine::Nothing;
    }
    let text = match std::str::from_utf8(line) {
        Ok(text) => text,
        Err(error) => {
            let at = error.valid_up_to();
            return ParsedLine::Fault(Fault::parse(format!("not UTF-8 at byte {at} of the line")));
        }
    };
    match tool_call(text).map_or_else(|| serde_json::from_str(text), Ok) {
        Ok(message) => ParsedLine::Message(Box::new(with_moved_members(message, text))),
        Err(_) => match serde_json::from_str(text) {
            Ok(value) => classify(value),
            Err(error) => ParsedLine::Fault(Fault::parse(format!("not JSON: {error}"))),
        },
    }
}

/// Members of the parameters that the framework of script projects has, and the protocol has not.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MovedMembers {
    limit: Option<Value>,
    timeout_secs: Option<Value>,
    cursor: Option<Value>,
}

/// Puts members that rmcp drops into the `_meta` of a request, behind `mcpbash/`.
fn with_moved_members(
    mut message: RxJsonRpcMessage<RoleServer>,
    text: &str,
) -> RxJsonRpcMessage<RoleServer> {
    let JsonRpcMessage::Request(request) = &mut message else { return message };
    let has = |name: &str| text.contains(name);
    let of = &request.request;
    let is_call = matches!(of, ClientRequest::CallToolRequest(_));
    let is_completion = matches!(of, ClientRequest::CompleteRequest(_));
    let is_list = matches!(
        of,
        ClientRequest::ListToolsRequest(_)
            | ClientRequest::ListPromptsRequest(_)
            | ClientRequest::ListResourcesRequest(_)
            | ClientRequest::ListResourceTemplatesRequest(_)
    );
    let has_any = (is_call && has("\"timeoutSecs\""))
        || (is_completion && has("\"cursor\""))
        || ((is_completion || is_list) && has("\"limit\""));
    let members = has_any.then(|| serde_json::from_str::<MovedParameters>(text).ok()).flatten();
    let Some(MovedParameters { params }) = members else { return message };
    // A list has a cursor of the protocol's own.
    let cursor = params.cursor.filter(|_| is_completion);
    let meta = request.request.get_meta_mut();
    for (name, value) in
        [("limit", params.limit), ("timeoutSecs", params.timeout_secs), ("cursor", cursor)]
    {
        if let Some(value) = value {
            meta.insert(format!("{MOVED}{name}"), value);
        }
    }
    message
}

/// Parameters of such a request.
#[derive(Debug, Deserialize)]
struct MovedParameters {
    params: MovedMembers,
}

/// Exactly the fields of a request: a line with a `result` in addition is not a message.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StrictRequest {
    #[serde(rename = "jsonrpc")]
    _jsonrpc: IgnoredAny,
    #[serde(rename = "id")]
    _id: IgnoredAny,
    #[serde(rename = "method")]
    _method: IgnoredAny,
    #[serde(rename = "params")]
    _params: IgnoredAny,
}

/// Parses the most frequent message, a tool call, directly. rmcp tries a line as each kind of
/// message, which takes twice as long. `None` for any other line, which then takes the usual path.
fn tool_call(text: &str) -> Option<RxJsonRpcMessage<RoleServer>> {
    if !text.contains("\"tools/call\"") {
        return None;
    }
    serde_json::from_str::<StrictRequest>(text).ok()?;
    let JsonRpcRequest { jsonrpc, id, request } =
        serde_json::from_str::<JsonRpcRequest<CallToolRequest>>(text).ok()?;
    let request = ClientRequest::CallToolRequest(request);
    Some(JsonRpcMessage::Request(JsonRpcRequest { jsonrpc, id, request }))
}

/// Parses one part of a batch.
pub(crate) fn parse_batch_part(part: Value) -> ParsedLine {
    match RxJsonRpcMessage::<RoleServer>::deserialize(&part) {
        Ok(message) => ParsedLine::Message(Box::new(message)),
        Err(_) => match classify(part) {
            ParsedLine::Batch(_) => ParsedLine::Fault(Fault::request("a batch within a batch")),
            parsed @ (ParsedLine::Nothing | ParsedLine::Message(_) | ParsedLine::Fault(_)) => {
                parsed
            }
        },
    }
}

/// Classifies JSON that is no message of the protocol.
fn classify(value: Value) -> ParsedLine {
    let fields = match value {
        Value::Array(parts) if parts.is_empty() => {
            return ParsedLine::Fault(Fault::request("an empty batch"));
        }
        Value::Array(parts) => return ParsedLine::Batch(parts),
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            return ParsedLine::Fault(Fault::request("a message is a JSON object"));
        }
    };
    let id = match fields.get("id") {
        None if fields.contains_key("method") => return ParsedLine::Nothing,
        None => None,
        Some(Value::String(id)) => Some(NumberOrString::String(id.as_str().into())),
        Some(Value::Number(id)) => id.as_i64().map(NumberOrString::Number),
        Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) => None,
    };
    let message = if fields.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        "`jsonrpc` must be \"2.0\"".to_owned()
    } else if !fields.get("method").is_some_and(Value::is_string) {
        "`method` must be a string".to_owned()
    } else if id.is_none() {
        "`id` must be a string or an integer".to_owned()
    } else {
        "`params` do not fit the method".to_owned()
    };
    ParsedLine::Fault(Fault { id, code: INVALID_REQUEST, message })
}

/// Returns the id of the request that a message cancels.
pub(crate) fn cancelled_id(message: &RxJsonRpcMessage<RoleServer>) -> Option<RequestId> {
    let JsonRpcMessage::Notification(notification) = message else { return None };
    let ClientNotification::CancelledNotification(cancelled) = &notification.notification else {
        return None;
    };
    cancelled.params.request_id.clone()
}

/// Holds back messages for which rmcp would end the connection: before a session is open it accepts
/// requests only, and anything else is an error that stops the server.
#[derive(Debug, Default)]
pub struct OpeningGate {
    open: bool,
}

impl OpeningGate {
    /// Returns true if the message may pass. Requests always may.
    pub(crate) fn admits(&mut self, message: &RxJsonRpcMessage<RoleServer>) -> bool {
        let JsonRpcMessage::Request(request) = message else {
            if !self.open {
                tracing::debug!("left out a message before the session was open");
            }
            return self.open;
        };
        self.open |= opens(&request.request);
        true
    }
}

/// Returns true if rmcp leaves its opening phase with this request (its
/// `serve_server_with_ct_inner`).
pub(crate) fn opens(request: &ClientRequest) -> bool {
    if matches!(request, ClientRequest::InitializeRequest(_)) {
        return true;
    }
    if matches!(request, ClientRequest::DiscoverRequest(_) | ClientRequest::PingRequest(_)) {
        return false;
    }
    let meta = request.get_meta();
    let complete = meta.missing_required_keys(&ProtocolVersion::V_2026_07_28).is_empty();
    let known = |version| ProtocolVersion::KNOWN_VERSIONS.contains(&version);
    complete && meta.protocol_version().is_some_and(known)
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "a missing field compares as null")]
#[expect(clippy::panic, reason = "an unexpected parse is a failed test")]
mod tests {
    use super::*;

    fn fault(line: &[u8]) -> Value {
        match parse_line(line) {
            ParsedLine::Fault(fault) => match serde_json::from_slice(&fault.to_line()) {
                Ok(answer) => answer,
                Err(error) => panic!("{error}"),
            },
            other @ (ParsedLine::Nothing | ParsedLine::Message(_) | ParsedLine::Batch(_)) => {
                panic!("{other:?}")
            }
        }
    }

    fn answer(id: &Value, code: i32, message: &str) -> Value {
        json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
    }

    #[test]
    fn malformed_json_is_a_parse_error_with_a_null_id() {
        let cases: [(&[u8], &str); 4] = [
            (b"{\"a\":", "not JSON: EOF while parsing a value at line 1 column 5"),
            (b"hello", "not JSON: expected value at line 1 column 1"),
            (b"{\"a\":\"\xff\"}", "not UTF-8 at byte 6 of the line"),
            (b"{\"a\":\0}", "not JSON: expected value at line 1 column 6"),
        ];
        for (line, message) in cases {
            assert_eq!(fault(line), answer(&Value::Null, PARSE_ERROR, message));
        }
        let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
        assert_eq!(fault(&deep)["error"]["code"], json!(PARSE_ERROR));
    }

    #[test]
    fn json_that_is_no_request_is_refused_with_its_id_and_the_reason() {
        let cases: [(&[u8], Value, &str); 6] = [
            (b"7", Value::Null, "a message is a JSON object"),
            (b"[]", Value::Null, "an empty batch"),
            (br#"{"id":1,"method":"ping"}"#, json!(1), "`jsonrpc` must be \"2.0\""),
            (br#"{"jsonrpc":"2.0","id":"x"}"#, json!("x"), "`method` must be a string"),
            (
                br#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
                Value::Null,
                "`id` must be a string or an integer",
            ),
            (
                br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
                Value::Null,
                "`id` must be a string or an integer",
            ),
        ];
        for (line, id, message) in cases {
            assert_eq!(fault(line), answer(&id, INVALID_REQUEST, message));
        }
    }

    #[test]
    fn blank_lines_get_nothing_and_a_byte_order_mark_is_passed_over() {
        assert!(matches!(parse_line(b" \t\r"), ParsedLine::Nothing));
        let line = b"\xEF\xBB\xBF{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r";
        assert!(matches!(parse_line(line), ParsedLine::Message(_)));
    }

    #[test]
    fn a_tool_call_is_what_any_reading_of_its_line_makes_it() {
        let whole = [
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bash"}}"#,
            r#"{"method":"tools/call","params":{"name":"a","arguments":{"b":[1,{"c":null}]},
                "_meta":{"progressToken":"p","x":1}},"id":"s","jsonrpc":"2.0"}"#,
            r#"{"jsonrpc":"2.0","id":-1,"method":"tools/call",
                "params":{"name":"a","arguments":{"method":"tools/call"},"task":{"ttl":1}}}"#,
        ];
        let other = [
            r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"bash"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/call","params":{"name":"bash"}}"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"tools/call","params":{"name":"bash"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bash"},"more":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bash"},"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bash"},"error":null}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bash"},"\u0072esult":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"x":"tools/call"}}}"#,
            r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bash"}}]"#,
        ];
        let any = |line| serde_json::from_str::<RxJsonRpcMessage<RoleServer>>(line).ok();
        for line in whole {
            let call = tool_call(line);
            let any = any(line);
            assert!(call.is_some(), "{line}");
            assert_eq!(format!("{call:?}"), format!("{any:?}"), "{line}");
        }
        for line in other {
            assert!(tool_call(line).is_none(), "{line}");
        }
    }

    #[test]
    fn members_that_only_script_projects_have_are_in_the_meta_of_a_request() {
        let meta = |line: &str| {
            let ParsedLine::Message(message) = parse_line(line.as_bytes()) else {
                return Value::Null;
            };
            let JsonRpcMessage::Request(request) = *message else { return Value::Null };
            json!(request.request.get_meta())
        };
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","timeoutSecs":7,"_meta":{"x":1}}}"#;
        assert_eq!(meta(call), json!({"x": 1, "mcpbash/timeoutSecs": 7}));
        let list =
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"limit":3,"cursor":"c"}}"#;
        assert_eq!(meta(list), json!({"mcpbash/limit": 3}));
        let complete = r#"{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"limit":3,"cursor":"c",
            "ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"a","value":""}}}"#;
        assert_eq!(meta(complete), json!({"mcpbash/limit": 3, "mcpbash/cursor": "c"}));
        let inside = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"timeoutSecs":7}}}"#;
        assert_eq!(meta(inside), json!({}));
    }
}
