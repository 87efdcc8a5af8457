//! `get_working_dir` and `set_working_dir`: the directory in which `bash_exec` starts commands.

use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;

use super::schema::{pure, sets, tool};
use crate::arguments::Named;
use crate::calls::ClientCalls;
use crate::context::Context;
use crate::exec::{check_exit, run_script};
use crate::reply::exec::{WorkingDir, working_dir};
use crate::tool_entry::{BuiltIn, CallResult, InForce};
use model::call::Cwd;
use model::outcome::Outcome;
use service::inspect;
use service::refused::{Refused, RefusedKind};

/// Arguments of `get_working_dir`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GetWorkingDirArguments {}

impl BuiltIn for GetWorkingDirArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Get the directory in which bash_exec starts commands.";
        tool::<Self, WorkingDir>("Get the working directory", description).annotate(pure())
    }

    async fn call(self, calls: &ClientCalls, _: &Context) -> CallResult {
        Ok(working_dir(&calls.client.state().working_dir.get()))
    }
}

/// Arguments of `set_working_dir`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetWorkingDirArguments {
    /// Inside /workspace or /tmp; a relative path starts at /workspace
    #[schemars(length(min = 1))]
    pub directory: String,
}

impl BuiltIn for SetWorkingDirArguments {
    fn describe(_: &InForce) -> Tool {
        let description =
            "Set the directory in which bash_exec starts later commands. It must be there.";
        tool::<Self, WorkingDir>("Set the working directory", description).annotate(sets())
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        calls.check_continuity("pass working_dir per call")?;
        let directory = calls.client.in_workspace(self.directory);
        let directory = Cwd::new("directory", &directory)?;
        inspect::line("directory", directory.as_str().to_owned())?;
        let report =
            run_script(calls, Self::TOOL, inspect::directory(directory.as_str()), context).await?;
        if let Outcome::Exited { code: 1 } = report.ended.outcome {
            let message = format!("`{}` is no directory that can be entered", directory.as_str());
            return Err(Refused::new(RefusedKind::Failed, message).with_hint(
                "make it first: /workspace is that of bash, /tmp is empty for each call",
            ));
        }
        check_exit(&report)?;
        calls.client.state().working_dir.set(directory.clone());
        Ok(working_dir(&directory))
    }
}
