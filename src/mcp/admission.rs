//! How many calls run at once and how many may wait: rulings R1, concurrency.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Calls that may wait for their turn.
pub const QUEUE: usize = 256;

/// Calls that run at once: `max(4, 2 x cores)`.
pub fn default_concurrency() -> usize {
    available_parallelism().map_or(1, NonZeroUsize::get).saturating_mul(2).max(4)
}

/// The queue is full: nothing was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("busy: {running} calls are running and {waiting} are waiting")]
pub struct Full {
    pub running: usize,
    pub waiting: usize,
}

/// The door that calls pass one at a time.
#[derive(Debug, Clone)]
pub struct Admission {
    running: Arc<Semaphore>,
    concurrency: usize,
    waiting: Arc<AtomicUsize>,
    queue: usize,
}

/// One place in the queue, given back on drop.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Admission {
    /// Lets `concurrency` calls run (at least one) and `queue` more wait.
    pub fn new(concurrency: usize, queue: usize) -> Self {
        let concurrency = concurrency.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            running: Arc::new(Semaphore::new(concurrency)),
            concurrency,
            waiting: Arc::new(AtomicUsize::new(0)),
            queue,
        }
    }

    /// Waits for a turn, first come, first served. The permit is held while the call runs.
    pub async fn turn(&self) -> Result<OwnedSemaphorePermit, Full> {
        if let Ok(permit) = Arc::clone(&self.running).try_acquire_owned() {
            return Ok(permit);
        }
        let full = Full { running: self.concurrency, waiting: self.queue };
        if self.waiting.fetch_add(1, Ordering::AcqRel) >= self.queue {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            return Err(full);
        }
        let _place = Place(Arc::clone(&self.waiting));
        // The semaphore is never closed; if it were, nothing could be started.
        Arc::clone(&self.running).acquire_owned().await.map_err(|_| full)
    }
}

impl Default for Admission {
    fn default() -> Self {
        Self::new(default_concurrency(), QUEUE)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a refused turn is a failed test")]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_runs_one_waits_and_the_third_is_told_the_numbers() {
        let door = Admission::new(1, 1);
        let first = door.turn().await.unwrap();
        let second = tokio::spawn({
            let door = door.clone();
            async move { door.turn().await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert_eq!(door.turn().await.map(drop), Err(Full { running: 1, waiting: 1 }));
        drop(first);
        assert_eq!(second.await.unwrap(), Ok(()));
        // Its place in the queue was given back.
        assert_eq!(door.turn().await.map(drop), Ok(()));
    }
}
