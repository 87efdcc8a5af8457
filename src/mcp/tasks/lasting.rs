//! The call's side of a task: it learns when its request is answered, and asks the client questions.

use std::sync::Weak;

use rmcp::model::InputRequest;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::table::Table;
use crate::tools::Context;
use capture::Produced;

/// A call that can become a task. Clones share the call.
#[derive(Debug, Clone)]
pub struct Lasting {
    pub(super) table: Weak<Table>,
    pub(super) id: String,
    pub(super) started: Instant,
    /// Tripped to end the call.
    pub(super) cancel: CancellationToken,
    /// Tripped by its first question, which only a task can put to the client.
    pub(super) asks: CancellationToken,
    /// Tripped when its request has been answered: nothing may be sent for that request afterwards.
    pub(super) answered: CancellationToken,
    pub(crate) produced: Produced,
}

impl Lasting {
    /// Returns the call that a request began, if it can become a task.
    pub fn of(context: &Context) -> Option<&Self> {
        context.extensions.get()
    }

    /// Asks the client; returns its answer, or `None` if the task was ended meanwhile. Dropping the future does not
    /// withdraw the question: the client may have seen it.
    pub async fn ask(&self, question: InputRequest) -> Option<Value> {
        let answer = self.table.upgrade()?.ask(&self.id, question)?;
        self.asks.cancel();
        answer.await.ok()
    }

    pub(super) async fn has_asked(&self) {
        self.asks.cancelled().await;
    }
}

/// Returns true if a request has been answered while its call runs on, so that no progress may be sent for it.
pub(crate) fn is_answered(context: &Context) -> bool {
    Lasting::of(context).is_some_and(|lasting| lasting.answered.is_cancelled())
}

/// Resolves when a request has been answered while its call runs on.
pub(crate) async fn answered(context: &Context) {
    match Lasting::of(context) {
        Some(lasting) => lasting.answered.cancelled().await,
        None => std::future::pending().await,
    }
}
