//! Tasks (`io.modelcontextprotocol/tasks`, SEP-2663): a long call is answered with a handle, by which its client asks
//! for the result.
//!
//! A client that supports tasks never waits for longer than the operator's `sessions.yield`, and its model need not
//! ask meanwhile. The call runs as any other: the same queue, limits, cancellation and lines in the audit log.
//!
//! *Security.* A table belongs to one client, so another client's task is unknown here. Ids are 128 random bits. The
//! number of tasks and the bytes of results of a client are bounded; at the limit its calls are answered as if it did
//! not support tasks. Each task ends in a bounded time, and is removed in a bounded time. It ends with its table, which
//! a client has for as long as it has a credential.

mod table;

use std::sync::Arc;
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolResponse, CreateTaskResult, GetTaskResult, InputResponses, ProtocolVersion,
};
use tokio::time::sleep;
use tracing::Instrument;

pub use self::table::TaskCandidate;
pub(crate) use self::table::running;
use self::table::{Done, Table, ended, fault};
use crate::charge::Charge;
use crate::context::Context;
use crate::lines::SharedBounds;

/// Tasks of one client, by their ids. Clones share the tasks.
#[derive(Debug, Clone, Default)]
pub struct Tasks(Arc<Table>);

impl Tasks {
    /// Runs a call. If it runs for longer than `patience`, or has to ask its client something, it is answered with a
    /// task, if the client supports tasks and may have one more.
    ///
    /// # Errors
    /// The error of a call that ended before it became a task.
    pub async fn call<F>(
        &self,
        mut context: Context,
        patience: Duration,
        run: impl FnOnce(Context) -> F,
    ) -> Result<CallToolResponse, ErrorData>
    where
        F: Future<Output = Done> + Send + 'static,
    {
        let slot = if is_known(&context) { self.0.take_slot() } else { None };
        let Some(slot) = slot else { return alone(run(context)).await };
        let candidate = slot.candidate.clone();
        // The request ends with its answer, and the call runs on.
        let request = std::mem::replace(&mut context.ct, candidate.cancel.clone());
        context.extensions.insert(candidate.clone());
        let charge = context.extension::<Charge>().cloned();
        let run = run(context);
        let charged = async move {
            let done = run.await;
            // The call has dropped its arguments by now.
            drop(charge);
            done
        };
        let mut work = tokio::spawn(charged.in_current_span());
        let mut patience = std::pin::pin!(sleep(patience));
        let mut is_cancelled = false;
        loop {
            tokio::select! {
                biased;
                done = &mut work => return ended(done).map(CallToolResponse::from),
                () = request.cancelled(), if !is_cancelled => {
                    is_cancelled = true;
                    candidate.cancel.cancel();
                }
                () = candidate.question_asked(), if !is_cancelled => break,
                () = &mut patience, if !is_cancelled => break,
            }
        }
        let task = slot.hand_over(work).ok_or_else(fault)?;
        Ok(CreateTaskResult::new(task).into())
    }

    /// Returns the state of a task, with the result once there is one.
    ///
    /// # Errors
    /// An id that is unknown to this client.
    pub fn get(&self, id: &str) -> Result<GetTaskResult, ErrorData> {
        self.0.get(id).map(GetTaskResult::new).ok_or_else(unknown)
    }

    /// Passes answers to a task's questions. Answers to a question that is not open are ignored.
    ///
    /// # Errors
    /// An id that is unknown to this client, or an answer of a wrong form: then no answer is taken.
    pub fn update(&self, id: &str, answers: InputResponses) -> Result<(), ErrorData> {
        self.0.update(id, answers).ok_or_else(unknown)?
    }

    /// Ends a task; does nothing if it has ended.
    ///
    /// # Errors
    /// An id that is unknown to this client.
    pub fn cancel(&self, id: &str) -> Result<(), ErrorData> {
        self.0.cancel(id).ok_or_else(unknown)
    }

    /// Counts the connection as in use while a task runs.
    pub(crate) fn serve_by(&self, bounds: SharedBounds) {
        self.0.serve_by(bounds);
    }

    /// Ends every task, as no client can ask for them any more.
    pub(crate) fn end(&self) {
        self.0.end();
    }
}

/// Runs a call whose client waits for its end, in a separate tokio task: a panic ends only that task, and the client
/// gets an answer. Without this rmcp would never answer.
///
/// # Errors
/// The error of the call, or a fault of the server.
pub(crate) async fn alone(
    run: impl Future<Output = Done> + Send + 'static,
) -> Result<CallToolResponse, ErrorData> {
    ended(tokio::spawn(run.in_current_span()).await).map(CallToolResponse::from)
}

/// Returns the error for an unknown id. It is the same for an id that never existed, one of another client and one
/// that has expired. The id is not repeated, as it can be any text.
fn unknown() -> ErrorData {
    ErrorData::invalid_params("there is no task of this id, or its time is over", None)
}

/// Returns true if the client of a request supports tasks, which each request says.
fn is_known(context: &Context) -> bool {
    is_modern(context) && context.client_capabilities().is_some_and(|it| it.supports_tasks())
}

/// Returns true for a request of the revision that has tasks, or of a later one.
pub(crate) fn is_modern(context: &Context) -> bool {
    context.protocol_version().is_some_and(|version| *version >= ProtocolVersion::V_2026_07_28)
}

/// Returns true if a request has been answered while its call runs on, so that no progress may be sent for it.
pub(crate) fn is_answered(context: &Context) -> bool {
    TaskCandidate::from_context(context).is_some_and(|candidate| candidate.answered.is_cancelled())
}

/// Resolves when a request has been answered while its call runs on.
pub(crate) async fn answered(context: &Context) {
    match TaskCandidate::from_context(context) {
        Some(candidate) => candidate.answered.cancelled().await,
        None => std::future::pending().await,
    }
}
