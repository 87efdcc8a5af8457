//! Tasks (`io.modelcontextprotocol/tasks`, SEP-2663): a call that lasts is answered with a handle, by which its client
//! asks for the result.
//!
//! A client that knows tasks is never kept waiting for longer than the operator's `sessions.yield`, and pays for no
//! question of its model meanwhile. The call itself runs as any other: the same queue, limits, cancellation and lines
//! in the audit log.
//!
//! *Security.* A table belongs to one client, so the id of another client's task is no id here, however it was come by.
//! Ids are 128 random bits. A client has so many tasks and so many bytes of results at once; where it has them, its
//! calls are answered as if it knew no tasks. Each task ends in a bounded time, and is forgotten in a bounded time.

mod lasting;
mod table;

use std::sync::Arc;
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolResponse, CallToolResult, CreateTaskResult, GetTaskResult, InputResponses,
    ProtocolVersion,
};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::sleep;
use tracing::Instrument;

pub use self::lasting::Lasting;
pub(crate) use self::lasting::{answered, is_answered};
use self::table::Table;
use crate::charge::Charge;
use crate::lines::SharedBounds;
use crate::tools::Context;

/// What a call comes to.
type Done = Result<CallToolResult, ErrorData>;

/// Calls of one client that it may ask for by their ids. Clones are the same calls.
#[derive(Debug, Clone, Default)]
pub struct Tasks(Arc<Table>);

impl Tasks {
    /// Runs a call. One that lasts for longer than `patience`, or that has to ask its client something, is answered
    /// with a task, if the client knows tasks and may have one more.
    ///
    /// # Errors
    /// The error of a call that ended before.
    pub async fn call<F>(
        &self,
        mut context: Context,
        patience: Duration,
        run: impl FnOnce(Context) -> F,
    ) -> Result<CallToolResponse, ErrorData>
    where
        F: Future<Output = Done> + Send + 'static,
    {
        let place = if is_known(&context) { self.0.place() } else { None };
        let Some(place) = place else { return alone(run(context)).await };
        let lasting = place.lasting.clone();
        // The request ends with its answer, and the call goes on.
        let request = std::mem::replace(&mut context.ct, lasting.cancel.clone());
        context.extensions.insert(lasting.clone());
        let charge = Charge::of(&context);
        let run = run(context);
        let charged = async move {
            let done = run.await;
            // The arguments are gone by now, and not before.
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
                    lasting.cancel.cancel();
                }
                () = lasting.has_asked(), if !is_cancelled => break,
                () = &mut patience, if !is_cancelled => break,
            }
        }
        let task = place.hand_over(work).ok_or_else(fault)?;
        Ok(CreateTaskResult::new(task).into())
    }

    /// Returns the state of a task, with the result once there is one.
    ///
    /// # Errors
    /// An id that is unknown to this client.
    pub fn get(&self, id: &str) -> Result<GetTaskResult, ErrorData> {
        self.0.get(id).map(GetTaskResult::new).ok_or_else(unknown)
    }

    /// Passes answers to what a task asked. Those to a question that is not open are passed over.
    ///
    /// # Errors
    /// An id that is unknown to this client, or an answer that has not the form of one: then none is taken.
    pub fn update(&self, id: &str, answers: InputResponses) -> Result<(), ErrorData> {
        self.0.update(id, answers).ok_or_else(unknown)?
    }

    /// Has a task end. Where it has ended, nothing is done.
    ///
    /// # Errors
    /// An id that is unknown to this client.
    pub fn cancel(&self, id: &str) -> Result<(), ErrorData> {
        self.0.cancel(id).ok_or_else(unknown)
    }

    /// Has the connection count as serving while a task runs.
    pub(crate) fn serve_by(&self, bounds: SharedBounds) {
        self.0.serve_by(bounds);
    }

    /// Has every task end, as there is nobody any more who could ask for one.
    pub(crate) fn end(&self) {
        self.0.end();
    }
}

/// Runs a call whose client waits for its end, in a task of the runtime of its own: a panic ends that, and the client
/// still gets an answer. rmcp would leave it waiting for ever.
///
/// # Errors
/// The call's own, or a fault of the server.
pub(crate) async fn alone(
    run: impl Future<Output = Done> + Send + 'static,
) -> Result<CallToolResponse, ErrorData> {
    ended(tokio::spawn(run.in_current_span()).await).map(CallToolResponse::from)
}

/// A call that runs by itself.
type Work = JoinHandle<Done>;

fn ended(done: Result<Done, JoinError>) -> Done {
    done.unwrap_or_else(|_panicked| {
        tracing::error!("the call ended by a fault in cofferdam");
        Err(fault())
    })
}

fn fault() -> ErrorData {
    ErrorData::internal_error("the call ended by a fault in cofferdam", None)
}

/// Returns the error for an id: the same for one that never was, one of another client and one whose time is over. The
/// id itself is not repeated, as it can be anything.
fn unknown() -> ErrorData {
    ErrorData::invalid_params("there is no task of this id, or its time is over", None)
}

/// Returns true if the client of a request knows tasks, which it says in each one.
fn is_known(context: &Context) -> bool {
    is_modern(context) && context.client_capabilities().is_some_and(|it| it.supports_tasks())
}

/// Returns true for a request of the revision that has tasks, or of a later one.
pub(crate) fn is_modern(context: &Context) -> bool {
    context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
}
