//! The built-in tools: each is a type that holds the arguments of one call.

use rmcp::model::{JsonObject, Tool};

use crate::arguments::{Arguments, parse};
use crate::context::Context;
use crate::server::Server;
use crate::tool_entry::{CallResult, Calling, InForce, ToolEntry};

/// A built-in tool; the type holds the arguments of one call.
pub trait BuiltIn: Arguments + Send + 'static {
    /// Describes the tool to a client.
    fn describe(in_force: &InForce) -> Tool;

    /// Performs one call.
    fn call(self, server: &Server, context: &Context) -> impl Future<Output = CallResult> + Send;
}

impl ToolEntry<Server> {
    /// Makes the row of a tool.
    pub const fn of<T: BuiltIn>() -> Self {
        Self { name: T::TOOL, describe: T::describe, call: parsed::<T> }
    }
}

/// Performs a call whose arguments are still to be parsed.
fn parsed<'a, T: BuiltIn>(
    server: &'a Server,
    given: Option<JsonObject>,
    context: &'a Context,
) -> Calling<'a> {
    Box::pin(async move { parse::<T>(given)?.call(server, context).await })
}
