//! `bash_exec_stream`: sends a command's output while it runs, as progress to a client that gave a
//! token, and as log messages to one that set a level.

use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;

use super::built_in::BuiltIn;
use super::exec::exec_tool;
use crate::arguments::{BadArguments, Named, Seconds};
use crate::context::Context;
use crate::notifier::{MAX_BYTES, OutputNotifier, USUAL};
use crate::server::Server;
use crate::tool_entry::{CallResult, InForce};
use model::call::SCRIPT_BYTES;
use service::capture::tap::Tap;
use service::shell::ScriptArgs;

/// Bytes of one notification: the default, and the least and greatest allowed.
pub(crate) const BUFFER: usize = USUAL;
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
    #[schemars(range(min = MIN_BUFFER, max = MAX_BUFFER), extend("default" = BUFFER))]
    pub buffer_size: Option<usize>,
}

impl BuiltIn for BashExecStreamArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = "As bash_exec, for what runs long: a client that gives a progress token hears \
            the output as progress notifications while the command prints it. The result has all of it.";
        let title = "Execute a command with its output streamed";
        exec_tool::<Self>(title, description, &in_force.options)
    }

    async fn call(self, server: &Server, context: &Context) -> CallResult {
        let Self { command, working_dir, timeout, buffer_size } = self;
        let size = buffer_size.unwrap_or(BUFFER);
        if !(MIN_BUFFER..=MAX_BUFFER).contains(&size) {
            let tool = Self::TOOL;
            let message = format!("{tool}: `buffer_size`: expected {MIN_BUFFER} to {MAX_BUFFER}");
            return Err(BadArguments { message, hint: None }.into());
        }
        let timeout = timeout.map(|Seconds(value)| value);
        let asked = ScriptArgs { command, cwd: working_dir, timeout, ..ScriptArgs::default() };
        let token = context.meta.get_progress_token();
        let logs = server.0.logs.for_output(context, Self::TOOL);
        if token.is_none() && logs.is_none() {
            return server.executed(Self::TOOL, asked.into(), Tap::default(), context).await;
        }
        let (tap, pieces) = Tap::listened();
        let live = OutputNotifier::new(context, token, size).logged(logs);
        // The end of the call drops the tap; by then all output that it passed on has been sent.
        let run = server.executed(Self::TOOL, asked.into(), tap, context);
        tokio::join!(run, live.send(pieces)).0
    }
}
