//! `bash_exec`: a command in a fresh cell, with the reference implementation's fields.

use std::collections::BTreeMap;

use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;

use super::results::ExecResult;
use super::schema::{ShellName, extend_exec, fields, runs, tool};
use crate::arguments::{Named, Seconds};
use crate::calls::ClientCalls;
use crate::context::Context;
use crate::exec;
use crate::tool_entry::{BuiltIn, CallResult, InForce};
use model::call::SCRIPT_BYTES;
use model::shells::ShellKind;
use service::capture::tap::Tap;
use service::request::{ExecOptions, ExecRequest, StderrIs};
use service::shell::ScriptArgs;

/// Arguments of `bash_exec`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BashExecArguments {
    /// Shell command to execute
    #[schemars(length(min = 1, max = SCRIPT_BYTES))]
    pub(crate) command: String,
    /// Working directory for this command alone, inside /workspace or /tmp; without it, what
    /// set_working_dir set
    pub(crate) working_dir: Option<String>,
    /// Timeout in seconds; more than the maximum is lowered to it, and the reply says so
    pub(crate) timeout: Option<Seconds>,
    /// Include stderr in output
    #[schemars(extend("default" = true))]
    pub(crate) capture_stderr: Option<bool>,
    /// Additional environment variables
    pub(crate) env: Option<BTreeMap<String, String>>,
    /// What reads the command; exit code 127 where the cell has no such shell
    #[serde(default)]
    #[schemars(with = "ShellName")]
    pub(crate) shell: ShellKind,
    /// How the cell is confined: one of the profiles that the operator leaves to choose from
    pub(crate) profile: Option<String>,
}

impl From<BashExecArguments> for ExecRequest {
    fn from(given: BashExecArguments) -> Self {
        let BashExecArguments { command, working_dir, timeout, env, shell, profile, .. } = given;
        let timeout = timeout.map(|Seconds(value)| value);
        let stderr = match given.capture_stderr {
            Some(false) => StderrIs::LeftOut,
            Some(true) | None => StderrIs::Shown,
        };
        let args = ScriptArgs {
            command,
            cwd: working_dir,
            env,
            timeout,
            profile,
            ..ScriptArgs::default()
        };
        Self { args, shell, stderr }
    }
}

impl BuiltIn for BashExecArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = format!(
            "Execute a shell command and return its output: a fresh sandbox cell for each command, so \
             that no variable or process of one is there for the next. {}. Network: {}.",
            in_force.rules.workspace, in_force.rules.network
        );
        let title = "Execute a command in a fresh cell";
        exec_tool::<Self>(title, description, &in_force.options)
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        exec::call(calls, Self::TOOL, self.into(), Tap::default(), context).await
    }
}

/// Describes a tool that runs a command in a fresh cell.
pub(super) fn exec_tool<T: Named + JsonSchema>(
    title: &str,
    description: impl Into<String>,
    options: &ExecOptions,
) -> Tool {
    let mut tool = tool::<T, ExecResult>(title, description).annotate(runs());
    if let Some(fields) = fields(&mut tool) {
        extend_exec(fields, options);
    }
    tool
}
