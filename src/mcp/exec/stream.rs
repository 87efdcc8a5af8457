//! `bash_exec_stream`: sends a command's output while it runs, as progress to a client that gave a
//! token, and as log messages to one that set a level.

use rmcp::model::CallToolResult;

use super::CommandRequest;
use super::arguments::{BashExecArguments, BashExecStreamArguments};
use crate::arguments::{BadArguments, Named};
use crate::backend::{Backend, Refused};
use crate::notifier::{MOST, OutputNotifier, USUAL};
use crate::server::Server;
use crate::tools::Context;
use capture::tap::Tap;

/// Bytes of one notification: the default, and the least and greatest allowed.
pub const BUFFER: usize = USUAL;
pub const LEAST_BUFFER: usize = 16;
pub const MOST_BUFFER: usize = MOST;

impl<B: Backend> Server<B> {
    pub(crate) async fn bash_exec_stream(
        &self,
        arguments: BashExecStreamArguments,
        context: &Context,
    ) -> Result<CallToolResult, Refused> {
        let BashExecStreamArguments { command, working_dir, timeout, buffer_size } = arguments;
        let size = buffer_size.unwrap_or(BUFFER);
        if !(LEAST_BUFFER..=MOST_BUFFER).contains(&size) {
            let tool = BashExecStreamArguments::TOOL;
            let message =
                format!("{tool}: `buffer_size`: expected {LEAST_BUFFER} to {MOST_BUFFER}");
            return Err(BadArguments { message, hint: None }.into());
        }
        let asked =
            BashExecArguments { command, working_dir, timeout, ..BashExecArguments::default() };
        let asked = CommandRequest::of(asked);
        let token = context.meta.get_progress_token();
        let logs = self.0.logs.for_output(context, BashExecStreamArguments::TOOL);
        if token.is_none() && logs.is_none() {
            return self
                .executed(BashExecStreamArguments::TOOL, asked, Tap::default(), context)
                .await;
        }
        let (tap, pieces) = Tap::listened();
        let live = OutputNotifier::new(context.peer.clone(), token, size).logged(logs);
        // The end of the call drops the tap; by then all output that it passed on has been sent.
        let run = self.executed(BashExecStreamArguments::TOOL, asked, tap, context);
        tokio::join!(run, live.tell(pieces)).0
    }
}
