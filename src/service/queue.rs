//! Bounds on the calls of a server that run and that wait.

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use crate::Refusal;

/// Bounds the number of running and queued calls; first come, first served.
#[derive(Debug)]
pub(crate) struct Queue {
    /// A place for each call that runs or waits: taken at once or refused.
    places: Semaphore,
    /// A turn for each running call: waited for.
    turns: Semaphore,
    concurrency: usize,
    waiting: usize,
}

/// Result of waiting in the queue.
pub(crate) enum Turn<'queue> {
    /// The call may run; dropping these permits gives the turn to the next.
    Yours((SemaphorePermit<'queue>, SemaphorePermit<'queue>)),
    Cancelled,
}

impl Queue {
    pub(crate) fn new(concurrency: usize, waiting: usize) -> Self {
        let concurrency = concurrency.clamp(1, Semaphore::MAX_PERMITS / 2);
        let waiting = waiting.min(Semaphore::MAX_PERMITS / 2);
        let places = Semaphore::new(concurrency + waiting);
        Self { places, turns: Semaphore::new(concurrency), concurrency, waiting }
    }

    pub(crate) fn pending(&self) -> usize {
        (self.concurrency + self.waiting).saturating_sub(self.places.available_permits())
    }

    /// Returns the number of calls that may run or wait.
    pub(crate) fn places(&self) -> usize {
        self.concurrency + self.waiting
    }

    /// Takes a place among the running and waiting calls.
    pub(crate) fn place(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        self.places.try_acquire().map_err(|_| self.full())
    }

    fn full(&self) -> Refusal {
        Refusal::QueueFull { running: self.concurrency, waiting: self.waiting }
    }

    pub(crate) async fn turn(&self, cancel: &CancellationToken) -> Result<Turn<'_>, Refusal> {
        let (place, full) = (self.place()?, self.full());
        tokio::select! {
            biased;
            () = cancel.cancelled() => Ok(Turn::Cancelled),
            // The semaphore is never closed; if it were, refusing is the safe answer.
            turn = self.turns.acquire() => turn.map(|turn| Turn::Yours((place, turn))).map_err(|_| full),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_queue_is_refused_at_once_and_a_place_comes_free() {
        let (queue, never) = (Queue::new(1, 1), CancellationToken::new());
        let running = queue.turn(&never).await;
        assert!(matches!(running, Ok(Turn::Yours(_))));
        let mut waiting = Box::pin(queue.turn(&never));
        assert!(glance(&mut waiting).await.is_none(), "the second call waits");
        assert_eq!(queue.pending(), 2);
        let refused = queue.turn(&never).await.map(|_| ());
        assert_eq!(refused, Err(Refusal::QueueFull { running: 1, waiting: 1 }));
        drop(running);
        assert!(matches!(waiting.await, Ok(Turn::Yours(_))));
        assert_eq!(queue.pending(), 0);
    }

    #[tokio::test]
    async fn a_call_that_waits_can_be_taken_back() {
        let (queue, cancel) = (Queue::new(1, 1), CancellationToken::new());
        let running = queue.turn(&CancellationToken::new()).await;
        let mut waiting = Box::pin(queue.turn(&cancel));
        assert!(glance(&mut waiting).await.is_none());
        cancel.cancel();
        assert!(matches!(waiting.await, Ok(Turn::Cancelled)));
        assert_eq!(queue.pending(), 1);
        drop(running);
    }

    /// Polls a future once: its value, if it is ready.
    async fn glance<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        tokio::select! { biased; value = future => Some(value), () = std::future::ready(()) => None }
    }

    #[test]
    fn a_full_queue_says_so() {
        assert_eq!(
            Refusal::QueueFull { running: 4, waiting: 256 }.to_string(),
            "the queue is full: 4 calls run and 256 wait\nhint: call again when one has ended"
        );
    }
}
