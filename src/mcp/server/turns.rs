//! One call from its start to its answer: progress while it runs, and its cancellation.

use super::Server;
use crate::context::Context;
use crate::notifier::{self, OutputNotifier};
use crate::tasks::{self, Lasting};
use service::Caller;
use service::capture::Produced;
use service::capture::tap::Tap;
use service::refused::Refused;

/// Progress notifications every second, for a client that asked for progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ticks {
    No,
    Yes,
}

impl Server {
    /// Runs `call` with progress until it ends. A cancelled call is asked to end and is still
    /// awaited, so that its cell is gone when the reply is made. The call waits for its turn by
    /// itself.
    pub async fn turn<T, F>(
        &self,
        context: &Context,
        call: impl FnOnce(Caller) -> F,
    ) -> Result<T, Refused>
    where
        F: Future<Output = Result<T, Refused>>,
    {
        self.watched_turn(context, Tap::default(), Ticks::Yes, call).await
    }

    /// Runs a call as [`Server::turn`] does, and sends its output and its time as progress.
    pub(crate) async fn with_progress<T, F>(
        &self,
        context: &Context,
        call: impl FnOnce(Caller) -> F,
    ) -> Result<T, Refused>
    where
        F: Future<Output = Result<T, Refused>>,
    {
        let Some(token) = context.meta.get_progress_token() else {
            return self.watched_turn(context, Tap::default(), Ticks::Yes, call).await;
        };
        let (tap, pieces) = Tap::listened();
        let live = OutputNotifier::new(context, Some(token), notifier::USUAL);
        // The owner of the tap drops it when the call is answered; by then all that it passed on is
        // sent.
        let run = self.watched_turn(context, tap, Ticks::Yes, call);
        tokio::join!(run, live.send(pieces)).0
    }

    /// Runs a call as [`Server::turn`] does, without progress, which the reader of the tap does not need.
    pub(crate) async fn tapped_turn<T, F>(
        &self,
        context: &Context,
        tap: Tap,
        call: impl FnOnce(Caller) -> F,
    ) -> Result<T, Refused>
    where
        F: Future<Output = Result<T, Refused>>,
    {
        let ticks = if tap.is_listened() { Ticks::No } else { Ticks::Yes };
        self.watched_turn(context, tap, ticks, call).await
    }

    async fn watched_turn<T, F>(
        &self,
        context: &Context,
        tap: Tap,
        ticks: Ticks,
        call: impl FnOnce(Caller) -> F,
    ) -> Result<T, Refused>
    where
        F: Future<Output = Result<T, Refused>>,
    {
        let cancel = self.0.kill.child_token();
        if cancel.is_cancelled() || context.ct.is_cancelled() {
            return Err(Refused::cancelled());
        }
        let produced = match Lasting::of(context) {
            Some(lasting) => lasting.produced.clone(),
            None => Produced::default(),
        };
        let reporting = async {
            let token = context.meta.get_progress_token().filter(|_| ticks == Ticks::Yes);
            if let Some(token) = token {
                tokio::select! {
                    () = tasks::answered(context) => {}
                    () = notifier::send_time(context, token, produced.clone()) => {}
                }
            }
            std::future::pending::<()>().await;
        };
        let cancel_call = cancel.clone();
        let produced_here = produced.clone();
        let correlation = context.extension().cloned();
        let caller = Caller {
            cancel: cancel_call,
            produced: produced_here,
            tap,
            correlation,
            ..Caller::default()
        };
        let mut running = std::pin::pin!(call(caller));
        let mut reporting = std::pin::pin!(reporting);
        let mut taken_back = std::pin::pin!(async {
            context.ct.cancelled().await;
            cancel.cancel();
            // Cancelled once; from here on only the call's own end counts.
            std::future::pending::<()>().await;
        });
        tokio::select! {
            ended = &mut running => ended,
            () = &mut reporting => running.await,
            () = &mut taken_back => running.await,
        }
    }
    /// Runs a call without progress until it ends, and ends it when `stop` resolves.
    pub(crate) async fn stopped_turn<T, F>(
        &self,
        caller: Caller,
        stop: impl Future<Output = ()>,
        call: impl FnOnce(Caller) -> F,
    ) -> Result<T, Refused>
    where
        F: Future<Output = Result<T, Refused>>,
    {
        let cancel = self.0.kill.child_token();
        if cancel.is_cancelled() {
            return Err(Refused::cancelled());
        }
        let mut running = std::pin::pin!(call(Caller { cancel: cancel.clone(), ..caller }));
        tokio::select! {
            ended = &mut running => return ended,
            () = stop => cancel.cancel(),
        }
        running.await
    }
}
