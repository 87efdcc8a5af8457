//! Runs the calls of one client: progress while a call runs, and its cancellation.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;

use rmcp::model::ProgressToken;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::logs::Logs;
use crate::notifier::{self, OutputNotifier};
use crate::tasks::{self, TaskCandidate};
use service::capture::Produced;
use service::capture::tap::Tap;
use service::refused::Refused;
use service::{Caller, Scope};

/// Continuity between the requests that a server gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continuity {
    /// One session, opened on a connection and ended with it.
    Connection,
    /// One session, opened by `initialize`; the client may vanish without closing it.
    Session,
    /// Each request stands alone, so a setting for later requests has no effect. All are of one client.
    Requests,
    /// Stateless and without a token: no state outlives the request.
    Anonymous,
}

impl Continuity {
    /// Returns true if later requests are of the same session.
    pub(crate) fn is_session(self) -> bool {
        matches!(self, Self::Connection | Self::Session)
    }
}

/// The parts of a server that a call needs.
#[derive(Debug)]
pub struct ClientCalls {
    pub(crate) client: Scope,
    pub(crate) continuity: Continuity,
    pub(crate) logs: Logs,
    /// Tripped to end every call in flight.
    pub(crate) kill: CancellationToken,
}

impl ClientCalls {
    /// Runs `call` until it ends, with its time as progress. A cancelled call is asked to end and is still awaited, so
    /// that its cell is gone when the reply is made. The call waits for its turn by itself.
    pub async fn turn<T, F>(
        &self,
        context: &Context,
        call: impl FnOnce(Caller) -> F,
    ) -> Result<T, Refused>
    where
        F: Future<Output = Result<T, Refused>>,
    {
        self.tapped_turn(context, Tap::default(), call).await
    }

    /// Runs a call as [`ClientCalls::turn`] does, and sends its output as progress too.
    pub(crate) async fn with_progress<T, F>(
        &self,
        context: &Context,
        call: impl FnOnce(Caller) -> F,
    ) -> Result<T, Refused>
    where
        F: Future<Output = Result<T, Refused>>,
    {
        let Some(token) = context.meta.get_progress_token() else {
            return self.turn(context, call).await;
        };
        let (tap, pieces) = Tap::listened();
        let output = OutputNotifier::new(context, Some(token.clone()), notifier::DEFAULT_BYTES);
        // The owner of the tap drops it when the call is answered; by then all that it passed on is
        // sent.
        let run = self.timed_turn(context, tap, Some(token), call);
        tokio::join!(run, output.send(pieces)).0
    }

    /// Runs a call as [`ClientCalls::turn`] does. Its time is no progress for a client that hears the tap.
    pub(crate) async fn tapped_turn<T, F>(
        &self,
        context: &Context,
        tap: Tap,
        call: impl FnOnce(Caller) -> F,
    ) -> Result<T, Refused>
    where
        F: Future<Output = Result<T, Refused>>,
    {
        let token = context.meta.get_progress_token().filter(|_| !tap.is_listened());
        self.timed_turn(context, tap, token, call).await
    }

    /// Runs a call, and sends its time to the client that gave this token.
    async fn timed_turn<T, F>(
        &self,
        context: &Context,
        tap: Tap,
        token: Option<ProgressToken>,
        call: impl FnOnce(Caller) -> F,
    ) -> Result<T, Refused>
    where
        F: Future<Output = Result<T, Refused>>,
    {
        if context.ct.is_cancelled() {
            return Err(Refused::cancelled());
        }
        let candidate = TaskCandidate::from_context(context);
        let produced = candidate.map_or_else(Produced::default, |it| it.produced.clone());
        let correlation = context.extension().cloned();
        let caller = Caller { produced: produced.clone(), tap, correlation, ..Caller::default() };
        let send_time = async {
            if let Some(token) = token {
                tokio::select! {
                    () = tasks::answered(context) => {}
                    () = notifier::send_time(context, token, produced) => {}
                }
            }
            pending::<Infallible>().await
        };
        tokio::select! {
            ended = self.stopped_turn(caller, context.ct.cancelled(), call) => ended,
            never = send_time => match never {},
        }
    }

    /// Runs a call until it ends, and cancels it when `stop` resolves.
    pub(crate) async fn stopped_turn<T, F>(
        &self,
        caller: Caller,
        stop: impl Future<Output = ()>,
        call: impl FnOnce(Caller) -> F,
    ) -> Result<T, Refused>
    where
        F: Future<Output = Result<T, Refused>>,
    {
        let cancel = self.kill.child_token();
        if cancel.is_cancelled() {
            return Err(Refused::cancelled());
        }
        let mut running = pin!(call(Caller { cancel: cancel.clone(), ..caller }));
        tokio::select! {
            ended = &mut running => return ended,
            () = stop => cancel.cancel(),
        }
        running.await
    }

    /// Checks that later calls of the client can find the state that this call keeps.
    ///
    /// # Errors
    /// No session was opened, and the client has no name. `instead` is the way out.
    pub(crate) fn check_continuity(&self, instead: &str) -> Result<(), Refused> {
        if self.continuity != Continuity::Anonymous {
            return Ok(());
        }
        Err(Refused::failed(format!("requests of this client stand alone: {instead}"))
            .with_hint("open a session (`initialize`), or ask the operator for a token"))
    }
}
