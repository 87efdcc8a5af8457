//! The end of a call that runs in a separate tokio task.

use rmcp::ErrorData;
use rmcp::model::CallToolResult;
use tokio::task::{JoinError, JoinHandle};

/// Outcome of a call.
pub(super) type Done = Result<CallToolResult, ErrorData>;

/// A call that runs in a separate tokio task.
pub(super) type Work = JoinHandle<Done>;

/// Returns the outcome of a call; a panic becomes an error.
pub(super) fn ended(done: Result<Done, JoinError>) -> Done {
    done.unwrap_or_else(|_panicked| {
        tracing::error!("the call ended by a fault in cofferdam");
        Err(fault())
    })
}

pub(super) fn fault() -> ErrorData {
    ErrorData::internal_error("the call ended by a fault in cofferdam", None)
}
