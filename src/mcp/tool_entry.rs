//! A row of the table of tools: how the tool is listed, and how a call of it is performed.

use std::pin::Pin;

use rmcp::model::{CallToolResult, JsonObject, Tool};

use crate::context::Context;
use service::refused::Refused;
use service::request::ExecOptions;
use service::rules::Rules;

/// Settings in force, which descriptions and schemas state.
#[derive(Debug, Clone, PartialEq)]
pub struct InForce {
    pub rules: Rules,
    pub options: ExecOptions,
}

/// The result of a call, or the reason why it was refused.
pub type CallResult = Result<CallToolResult, Refused>;

/// A call under way.
pub(crate) type Calling<'a> = Pin<Box<dyn Future<Output = CallResult> + Send + 'a>>;

/// A row of the table of tools, for a server of the type `S`.
#[derive(Debug)]
pub struct ToolEntry<S: 'static> {
    pub name: &'static str,
    pub(crate) describe: fn(&InForce) -> Tool,
    pub(crate) call: for<'a> fn(&'a S, Option<JsonObject>, &'a Context) -> Calling<'a>,
}
