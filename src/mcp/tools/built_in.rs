//! The built-in tools: each is a type that holds the arguments of one call.

use rmcp::model::{JsonObject, Tool};

use crate::arguments::{Arguments, parse};
use crate::context::Context;
use crate::server::Server;
use crate::tool_entry::{CallResult, Calling, InForce, ToolEntry};
use service::Backend;

/// A built-in tool; the type holds the arguments of one call.
pub trait BuiltIn: Arguments + Send + 'static {
    /// Describes the tool to a client.
    fn describe(in_force: &InForce) -> Tool;

    /// Performs one call.
    fn call<B: Backend>(
        self,
        server: &Server<B>,
        context: &Context,
    ) -> impl Future<Output = CallResult> + Send;
}

impl<B: Backend> ToolEntry<Server<B>> {
    /// Makes the row of a tool.
    pub const fn of<T: BuiltIn>() -> Self {
        Self { name: T::TOOL, describe: T::describe, call: parsed::<B, T> }
    }
}

/// Performs a call whose arguments are still to be parsed.
fn parsed<'a, B: Backend, T: BuiltIn>(
    server: &'a Server<B>,
    given: Option<JsonObject>,
    context: &'a Context,
) -> Calling<'a> {
    Box::pin(async move { parse::<T>(given)?.call(server, context).await })
}
