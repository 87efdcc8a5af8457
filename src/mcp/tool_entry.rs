//! A row of the table of tools: how the tool is listed, and how a call of it is performed.

use std::pin::Pin;

use rmcp::model::{CallToolResult, JsonObject, Tool};

use crate::arguments::{Arguments, parse};
use crate::calls::ClientCalls;
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
type Calling<'a> = Pin<Box<dyn Future<Output = CallResult> + Send + 'a>>;

/// A built-in tool; the type holds the arguments of one call.
pub trait BuiltIn: Arguments + Send + 'static {
    /// Describes the tool to a client.
    fn describe(in_force: &InForce) -> Tool;

    /// Performs one call.
    fn call(
        self,
        calls: &ClientCalls,
        context: &Context,
    ) -> impl Future<Output = CallResult> + Send;
}

/// A row of the table of tools.
#[derive(Debug)]
pub struct ToolEntry {
    pub name: &'static str,
    pub(crate) describe: fn(&InForce) -> Tool,
    pub(crate) call: for<'a> fn(&'a ClientCalls, Option<JsonObject>, &'a Context) -> Calling<'a>,
}

impl ToolEntry {
    /// Makes the row of a tool.
    pub const fn of<T: BuiltIn>() -> Self {
        Self { name: T::TOOL, describe: T::describe, call: call::<T> }
    }
}

/// Parses the arguments of a call, and performs it.
fn call<'a, T: BuiltIn>(
    calls: &'a ClientCalls,
    given: Option<JsonObject>,
    context: &'a Context,
) -> Calling<'a> {
    Box::pin(async move { parse::<T>(given)?.call(calls, context).await })
}
