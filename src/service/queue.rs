//! Bounds on the calls of a server that run and that wait, shared fairly between its clients.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::Refusal;
use crate::fair::{FairShare, Share};
use crate::turns::{RunningTurn, Turns};
use config::policy::Principal;

/// Bounds the number of running and queued calls. Of one client's, the first that came is the first that runs; between
/// clients, the next is of the one for which the fewest run.
#[derive(Debug)]
pub(crate) struct Queue {
    /// One place for each call that runs or waits. A call without a place is refused at once.
    places: Arc<FairShare>,
    /// One turn for each running call. A call waits for its turn.
    turns: Arc<Turns>,
    concurrency: usize,
    waiting: usize,
}

/// Result of waiting in the queue.
pub(crate) enum Turn {
    /// The call may run; dropping these gives the turn to the next.
    Yours((Share, RunningTurn)),
    Cancelled,
}

impl Queue {
    pub(crate) fn new(concurrency: usize, waiting: usize) -> Self {
        let concurrency = concurrency.max(1);
        let places = FairShare::new(concurrency.saturating_add(waiting));
        Self { places, turns: Turns::new(concurrency), concurrency, waiting }
    }

    /// Registers a client, though it has called nothing yet.
    pub(crate) fn know(&self, client: &Principal) {
        self.places.know(client);
        self.turns.know(client);
    }

    pub(crate) fn pending(&self) -> usize {
        self.places.taken()
    }

    /// Returns the number of calls that may run or wait.
    pub(crate) fn places(&self) -> usize {
        self.concurrency + self.waiting
    }

    /// Takes a place among the running and waiting calls.
    pub(crate) fn place(&self, client: &Principal) -> Result<Share, Refusal> {
        self.places.take(client, 1).ok_or_else(|| self.full())
    }

    fn full(&self) -> Refusal {
        Refusal::QueueFull { running: self.concurrency, waiting: self.waiting }
    }

    pub(crate) async fn turn(
        &self,
        client: &Principal,
        cancel: &CancellationToken,
    ) -> Result<Turn, Refusal> {
        let place = self.place(client)?;
        tokio::select! {
            biased;
            () = cancel.cancelled() => Ok(Turn::Cancelled),
            // Turns are given for as long as there is the queue; if not, refusing is the safe answer.
            turn = self.turns.turn(client) => match turn {
                Some(turn) => Ok(Turn::Yours((place, turn))),
                None => Err(self.full()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local() -> Principal {
        Principal::local()
    }

    #[tokio::test]
    async fn a_full_queue_is_refused_at_once_and_a_place_comes_free() {
        let queue = Queue::new(1, 1);
        let never = CancellationToken::new();
        let running = queue.turn(&local(), &never).await;
        assert!(matches!(running, Ok(Turn::Yours(_))));
        let own = local();
        let mut waiting = Box::pin(queue.turn(&own, &never));
        assert!(glance(&mut waiting).await.is_none(), "the second call waits");
        assert_eq!(queue.pending(), 2);
        let refused = queue.turn(&local(), &never).await.map(|_| ());
        assert_eq!(refused, Err(Refusal::QueueFull { running: 1, waiting: 1 }));
        drop(running);
        assert!(matches!(waiting.await, Ok(Turn::Yours(_))));
        assert_eq!(queue.pending(), 0);
    }

    #[tokio::test]
    async fn a_call_that_waits_can_be_taken_back() {
        let queue = Queue::new(1, 1);
        let cancel = CancellationToken::new();
        let running = queue.turn(&local(), &CancellationToken::new()).await;
        let own = local();
        let mut waiting = Box::pin(queue.turn(&own, &cancel));
        assert!(glance(&mut waiting).await.is_none());
        cancel.cancel();
        assert!(matches!(waiting.await, Ok(Turn::Cancelled)));
        assert_eq!(queue.pending(), 1);
        drop(running);
    }

    #[tokio::test]
    async fn a_client_that_fills_the_queue_keeps_no_other_out() {
        let queue = Arc::new(Queue::new(1, 100));
        let never = CancellationToken::new();
        let greedy = Principal::named("greedy");
        let modest = Principal::named("modest");
        queue.know(&greedy);
        queue.know(&modest);
        let first = queue.turn(&greedy, &never).await.expect("a turn");
        let wait = |client: &Principal| {
            let queue = Arc::clone(&queue);
            let client = client.clone();
            tokio::spawn(async move { queue.turn(&client, &CancellationToken::new()).await })
        };
        let many: Vec<_> = (0..100).map(|_| wait(&greedy)).collect();
        tokio::task::yield_now().await;
        assert!(queue.place(&greedy).is_err(), "it has its share");
        let own = wait(&modest);
        tokio::task::yield_now().await;
        assert!(!own.is_finished());
        drop(first);
        // Of a hundred that came before, not one is before it.
        let turn = own.await.expect("no panic");
        assert!(matches!(turn, Ok(Turn::Yours(_))));
        many.iter().for_each(tokio::task::JoinHandle::abort);
    }

    /// Polls a future once: its value, if it is ready.
    async fn glance<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        tokio::select! { biased; value = future => Some(value), () = std::future::ready(()) => None }
    }

    #[test]
    fn a_full_queue_says_so() {
        assert_eq!(
            Refusal::QueueFull { running: 4, waiting: 256 }.in_full(),
            "the queue is full: 4 calls run and 256 wait\nhint: call again when one has ended"
        );
    }
}
