//! Output of a call, as it was captured, and the errors and messages that a script wrote.

use serde_json::{Value, json};

use crate::json::FirstDocument;

/// Codes of errors (JSON-RPC, MCP).
pub(crate) const INTERNAL: i64 = -32603;
pub(crate) const INVALID: i64 = -32602;
pub(crate) const NOT_FOUND: i64 = -32002;
/// Codes by which a client learns something of the protocol: no JSON, no request, no method, headers, capabilities, revisions, and
/// an address that the user is to be led to. A script has nothing to say about these.
const OF_THE_PROTOCOL: [i64; 7] = [-32700, -32600, -32601, -32020, -32021, -32022, -32042];

/// How the cell of a script ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptEnd {
    /// By itself.
    Exited,
    TimedOut,
    /// By its time without progress.
    Idle,
    Cancelled,
    /// In another way, in words.
    Stopped(String),
}

/// Output of a call, as it was captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptOutput {
    pub end: ScriptEnd,
    /// Report of the end, with the output of the script; `None` if it was longer than what is kept.
    pub report: Option<Vec<u8>>,
    /// Last bytes of standard error.
    pub stderr: Vec<u8>,
    /// Bytes of standard error in all.
    pub stderr_bytes: u64,
}

/// A log message of a script.
#[derive(Debug, Clone, PartialEq)]
pub struct ScriptMessage {
    /// Level as the script wrote it.
    pub level: Value,
    pub logger: Option<String>,
    pub data: Value,
}

/// A JSON-RPC error.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ScriptError {
    pub code: i64,
    pub message: String,
    pub data: Option<Value>,
}

impl ScriptError {
    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(INTERNAL, message)
    }

    /// Reads an error that a script wrote: an object with a code and a message.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        Self::of(FirstDocument::of(bytes).value?)
    }

    pub(crate) fn of(mut document: Value) -> Option<Self> {
        let error = document.as_object_mut()?;
        let code = error.get("code")?.as_i64()?;
        let message = error.get("message")?.as_str()?.to_owned();
        let data = error.remove("data").filter(|data| !data.is_null());
        if OF_THE_PROTOCOL.contains(&code) {
            let data = json!({ "code": code, "data": data });
            return Some(Self { code: INTERNAL, message, data: Some(data) });
        }
        Some(Self { code, message, data })
    }
}
