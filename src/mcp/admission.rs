//! Admits calls of a project's tools: by the operator's list, then by the project's hook, which runs in a cell.

use rmcp::ErrorData;
use rmcp::model::ErrorCode;

use super::context::Context;
use super::projects::{error, mark};
use super::server::Server;
use projects::{Project, ScriptLaunch, ScriptTool, hooks};

/// Name of the hook's call in rules, after `project:`.
const ASKS: &str = "hooks/policy";

/// Code of parameters that are refused (JSON-RPC).
const REFUSED: ErrorCode = ErrorCode(-32602);

impl Server {
    /// Checks that a tool of the project may be called.
    ///
    /// # Errors
    /// The reason why it may not. A hook that cannot run, fails or does not answer in time refuses the call.
    pub(super) async fn admit_call(
        &self,
        project: &Project,
        tool: &ScriptTool,
        context: &Context,
    ) -> Result<(), ErrorData> {
        if !project.settings.tools.admits(&tool.name) {
            let why = format!(
                "Tool '{}' blocked by policy. Set MCPBASH_TOOL_ALLOWLIST in your MCP client config.",
                tool.name
            );
            return Err(ErrorData::new(REFUSED, why, None));
        }
        if !project.hooks.contains(&hooks::POLICY) {
            return Ok(());
        }
        if !project.settings.has_hooks {
            let why = "the project decides about calls in server.d/policy.sh, and hooks are off: start with serve --project-hooks";
            return Err(ErrorData::new(REFUSED, why, None));
        }
        let launch = ScriptLaunch::policy(project, tool, mark());
        let (launch, output, _) =
            self.run_launch(ASKS, launch, context).await.map_err(|refused| {
                ErrorData::new(
                    REFUSED,
                    format!("server.d/policy.sh was not asked: {}", refused.message),
                    None,
                )
            })?;
        launch.allows(tool, &output).map_err(error)
    }
}
