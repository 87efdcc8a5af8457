//! Admits calls of a project's tools: by the operator's list, then by the project's hook, which runs in a cell.

use rmcp::ErrorData;

use super::script_run::{ScriptRun, error_data, random_mark};
use projects::{Project, ScriptLaunch, ScriptTool, hooks};

/// Name of the hook's call in rules, after `project:`.
const HOOK_CALL: &str = "hooks/policy";

/// Checks that a tool of the project may be called by `run`.
///
/// # Errors
/// The reason why it may not. A hook that cannot run, fails or does not answer in time refuses the call.
pub(super) async fn admit_call(
    project: &Project,
    tool: &ScriptTool,
    run: ScriptRun<'_>,
) -> Result<(), ErrorData> {
    let refuse = |message: String| ErrorData::invalid_params(message, None);
    if !project.settings.tools.admits(&tool.name) {
        return Err(refuse(format!(
            "Tool '{}' blocked by policy. Set MCPBASH_TOOL_ALLOWLIST in your MCP client config.",
            tool.name
        )));
    }
    if !project.hooks.contains(&hooks::POLICY) {
        return Ok(());
    }
    if !project.settings.has_hooks {
        let message = "the project decides about calls in server.d/policy.sh, and hooks are off: start with serve --project-hooks";
        return Err(refuse(message.to_owned()));
    }
    let launch = ScriptLaunch::policy(project, tool, random_mark());
    let done = ScriptRun { name: HOOK_CALL, ..run }.run(launch).await;
    let (launch, output, _) = done.map_err(|refused| {
        refuse(format!("server.d/policy.sh was not asked: {}", refused.message))
    })?;
    launch.allows(tool, &output).map_err(error_data)
}
