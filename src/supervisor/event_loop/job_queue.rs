//! Jobs that wait for a cell or for room, in the order in which they came.

use std::collections::VecDeque;

use crate::cells::key::KeyId;
use crate::cells::pool::Pool;
use crate::cells::pooled_cell::PooledCell;
use crate::cells::queued_job::{PrestartFit, QueuedJob};
use model::wire::CallId;

/// Jobs that may wait for a cell: far above any concurrency that is configured.
const MAX_WAITING: usize = 1024;

/// The queue of jobs.
#[derive(Debug, Default)]
pub(crate) struct JobQueue(VecDeque<QueuedJob>);

impl JobQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether no more jobs may wait. The front end bounds its queue; more means that it misbehaves.
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= MAX_WAITING
    }

    pub(super) fn get(&self, index: usize) -> Option<&QueuedJob> {
        self.0.get(index)
    }

    pub(super) fn push(&mut self, job: QueuedJob) {
        self.0.push_back(job);
    }

    /// Adds a job that had its turn and lost its cell.
    pub(super) fn push_front(&mut self, job: QueuedJob) {
        self.0.push_front(job);
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<QueuedJob> {
        self.0.remove(index)
    }

    pub(super) fn has_call(&self, call: CallId) -> bool {
        self.0.iter().any(|job| job.start.call == call)
    }

    /// Removes the job of a call. Returns false if it does not wait.
    pub(super) fn remove_call(&mut self, call: CallId) -> bool {
        self.remove_first(|job| job.start.call == call).is_some()
    }

    /// Removes the first job that `is_wanted` accepts.
    pub(super) fn remove_first(
        &mut self,
        is_wanted: impl Fn(&QueuedJob) -> bool,
    ) -> Option<QueuedJob> {
        self.0.iter().position(is_wanted).and_then(|index| self.0.remove(index))
    }

    /// Returns whether a job waits for a cell of one of these keys.
    pub(super) fn waits_for(&self, keys: &[KeyId]) -> bool {
        self.0.iter().any(|job| keys.contains(&job.key))
    }

    /// Returns whether a job waits that could have this cell.
    fn could_use(&self, pooled: &PooledCell) -> bool {
        self.0.iter().any(|job| is_usable(pooled, job.key, job.fits))
    }

    /// Returns whether fewer cells exist or are being built than the jobs up to `index` take: all of its key, or
    /// those that can have the same cells as the job at `index`.
    pub(super) fn is_short(&self, index: usize, pool: &Pool) -> bool {
        let Some(QueuedJob { key, fits, .. }) = self.get(index) else { return false };
        let jobs = |class: PrestartFit| {
            let is_in = |job: &&QueuedJob| class == PrestartFit::Yes || job.fits == class;
            self.0.iter().take(index + 1).filter(|job| job.key == *key).filter(is_in).count()
        };
        [PrestartFit::Yes, *fits].into_iter().any(|class| pool.count(*key, class) < jobs(class))
    }

    /// Ends an idle cell that the job at `index` cannot have: one that no job waits for, or for the first job any.
    /// If others could take what a job waits for, two jobs could take from each other forever.
    pub(super) fn evict(&self, index: usize, pool: &mut Pool) -> bool {
        let Some(QueuedJob { key, fits, .. }) = self.get(index) else { return false };
        let slot = pool.spare(|pooled| {
            !is_usable(pooled, *key, *fits) && (index == 0 || !self.could_use(pooled))
        });
        let is_evicted = slot.is_some_and(|slot| pool.end(slot));
        pool.counts.evicted += u64::from(is_evicted);
        is_evicted
    }
}

/// Returns whether a job of this key can have this cell.
fn is_usable(pooled: &PooledCell, key: KeyId, fits: PrestartFit) -> bool {
    pooled.key == key && pooled.takes(fits)
}
