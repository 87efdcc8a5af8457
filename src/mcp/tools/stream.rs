//! `bash_exec_stream`: sends a command's output while it runs, as progress to a client that gave a
//! token, and as log messages to one that set a level.

use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;

use super::exec::exec_tool;
use crate::arguments::{BadArguments, Named, Seconds};
use crate::calls::ClientCalls;
use crate::context::Context;
use crate::exec;
use crate::notifier::{DEFAULT_BYTES, MAX_BYTES, OutputNotifier};
use crate::tool_entry::{BuiltIn, CallResult, InForce};
use model::call::SCRIPT_BYTES;
use service::capture::tap::Tap;
use service::shell::ScriptArgs;

/// Bytes of one notification: the default, the minimum and the maximum.
pub(crate) const DEFAULT_BUFFER: usize = DEFAULT_BYTES;
pub(crate) const MIN_BUFFER: usize = 16;
pub(crate) const MAX_BUFFER: usize = MAX_BYTES;

/// Arguments of `bash_exec_stream`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BashExecStreamArguments {
    /// Shell command to execute
    #[schemars(length(min = 1, max = SCRIPT_BYTES))]
    pub command: String,
    /// Working directory for this command alone, inside /workspace or /tmp; without it, what
    /// set_working_dir set
    pub working_dir: Option<String>,
    /// Timeout in seconds; more than the maximum is lowered to it, and the reply says so
    pub timeout: Option<Seconds>,
    /// Stream buffer size in bytes: most of one notification
    #[schemars(range(min = MIN_BUFFER, max = MAX_BUFFER), extend("default" = DEFAULT_BUFFER))]
    pub buffer_size: Option<usize>,
}

impl BuiltIn for BashExecStreamArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = "As bash_exec, for what runs long: a client that gives a progress token hears \
            the output as progress notifications while the command prints it. The result has all of it.";
        let title = "Execute a command with its output streamed";
        exec_tool::<Self>(title, description, &in_force.options)
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let Self { command, working_dir, timeout, buffer_size } = self;
        let size = buffer_size.unwrap_or(DEFAULT_BUFFER);
        if !(MIN_BUFFER..=MAX_BUFFER).contains(&size) {
            let tool = Self::TOOL;
            let message = format!("{tool}: `buffer_size`: expected {MIN_BUFFER} to {MAX_BUFFER}");
            return Err(BadArguments { message, hint: None }.into());
        }
        let timeout = timeout.map(|Seconds(value)| value);
        let args = ScriptArgs { command, cwd: working_dir, timeout, ..ScriptArgs::default() };
        let token = context.meta.get_progress_token();
        let logs = calls.logs.for_output(context, Self::TOOL);
        if token.is_none() && logs.is_none() {
            return exec::call(calls, Self::TOOL, args.into(), Tap::default(), context).await;
        }
        let (tap, pieces) = Tap::listened();
        let output = OutputNotifier::new(context, token, size).logged(logs);
        // The end of the call drops the tap; by then all output that it passed on has been sent.
        let run = exec::call(calls, Self::TOOL, args.into(), tap, context);
        tokio::join!(run, output.send(pieces)).0
    }
}
