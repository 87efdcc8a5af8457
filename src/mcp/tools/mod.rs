//! The table of the built-in tools: how each is listed, and how a call of it is performed.
//!
//! It is made from the rows of [`policy::tools`]. The type that a row names holds a call's arguments
//! and implements [`BuiltIn`], in a file of this folder.

pub(super) mod calculator;
mod declared;
pub(super) mod exec;
pub(super) mod files;
mod history;
mod info;
pub(super) mod jobs;
mod macros;
pub(super) mod math;
mod pipeline;
pub(super) mod rules;
pub(super) mod schema;
pub(super) mod shell;
mod steps;
mod stream;
mod working_dir;

use std::pin::Pin;

use rmcp::RoleServer;
use rmcp::model::{CallToolResult, JsonObject, Tool};
use rmcp::service::RequestContext;

pub use self::calculator::{CalculateAdvancedArguments, CalculateArguments, SetPrecisionArguments};
use self::declared::GetToolInfoArguments;
use self::exec::BashExecArguments;
use self::files::{EditArguments, GetFileArguments, PutFileArguments};
use self::history::{HistoryReplayArguments, HistorySearchArguments};
use self::info::{
    CommandHelpArguments, GetEnvArguments, ManPageArguments, ProcessInfoArguments,
    SystemInfoArguments, WhichCommandArguments,
};
use self::jobs::{BashInputArguments, BashJobsArguments, BashKillArguments, BashOutputArguments};
use self::macros::{
    MacroDeleteArguments, MacroListArguments, MacroRunArguments, MacroSaveArguments,
};
use self::math::{
    CalculateBatchArguments, CalculateFunctionsArguments, CalculateHistoryArguments,
    CalculatePlotArguments, CalculateStatsArguments,
};
use self::pipeline::PipelineArguments;
pub use self::rules::SandboxRulesArguments;
pub use self::shell::BashArguments;
use self::stream::BashExecStreamArguments;
use self::working_dir::{GetWorkingDirArguments, SetWorkingDirArguments};
use crate::arguments::{Arguments, Named, parse};
use crate::server::Server;
use service::Backend;
use service::refused::Refused;
use service::request::ExecOptions;
use service::rules::Rules;

/// The request that a call arrived with.
pub type Context = RequestContext<RoleServer>;

/// Instructions of the server to a model.
pub(crate) const INSTRUCTIONS: &str = "Commands run in a sandbox: bash keeps a shell for each session, \
    in a contained cell of its own; the reply says when a shell has ended. Calculations get a \
    fresh cell each. Call sandbox_rules to see paths, limits and network before trying to work around a refusal.";

/// Settings in force, which descriptions and schemas state.
#[derive(Debug, Clone, PartialEq)]
pub struct InForce {
    pub rules: Rules,
    pub options: ExecOptions,
}

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

/// The result of a call, or the reason why it was refused.
pub type CallResult = Result<CallToolResult, Refused>;

/// A call under way.
type Calling<'a> = Pin<Box<dyn Future<Output = CallResult> + Send + 'a>>;

/// A row of the table.
#[derive(Debug)]
pub struct ToolEntry<B: 'static> {
    pub name: &'static str,
    pub(crate) describe: fn(&InForce) -> Tool,
    pub(crate) call: for<'a> fn(&'a Server<B>, Option<JsonObject>, &'a Context) -> Calling<'a>,
}

impl<B: Backend> ToolEntry<B> {
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

macro_rules! entries {
    ($($arguments:ident $name:literal: $group:expr, $rule:expr, $runs:expr;)*) => {
        $(impl Named for $arguments {
            const TOOL: &'static str = $name;
        })*

        impl<B: Backend> ToolEntry<B> {
            /// Every built-in tool, in the order in which a client sees them.
            pub const ALL: &'static [Self] = &[$(Self::of::<$arguments>()),*];
        }
    };
}

policy::with_tools!(entries);

#[cfg(test)]
mod tests;
