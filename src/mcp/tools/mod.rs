//! The table of the built-in tools: how each is listed, and how a call of it is performed.
//!
//! It is made from the rows of [`config::policy::tools`]. The type that a row names holds a call's arguments
//! and implements [`BuiltIn`], in a file of this folder.

pub(super) mod calculator;
mod declared;
pub(super) mod exec;
pub(super) mod files;
mod history;
mod info;
pub(super) mod jobs;
mod layer;
mod macros;
pub(super) mod math;
mod pipeline;
mod results;
pub(super) mod rules;
pub(super) mod schema;
pub(super) mod shell;
mod stream;
mod working_dir;

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
use self::layer::{WorkspaceChangesArguments, WorkspaceDiffArguments};
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
use crate::arguments::Named;
pub use crate::calls::ClientCalls;
pub use crate::context::Context;
pub use crate::tool_entry::{BuiltIn, CallResult, InForce, ToolEntry};

macro_rules! entries {
    ($($arguments:ident $name:literal: $group:expr, $rule:expr, $runs:expr;)*) => {
        $(impl Named for $arguments {
            const TOOL: &'static str = $name;
        })*

        impl ToolEntry {
            /// Every built-in tool, in the order in which a client sees them.
            pub const ALL: &'static [Self] = &[$(Self::of::<$arguments>()),*];
        }
    };
}

config::with_tools!(entries);

#[cfg(test)]
mod tests;
