//! Cells for the jobs that wait: how many are missing, and what makes room for them.

use super::dispatch::Built;
use super::supervisor::Supervisor;
use crate::cells::key::KeyId;
use crate::cells::pooled_cell::PooledCell;
use crate::cells::queued_job::PrestartFit;

impl Supervisor {
    /// Builds a cell for each waiting job, in the order of the jobs, while there are slots. A slot that
    /// was freed for the first job must not be given to another.
    pub(super) fn build_for_waiting(&mut self) {
        let mut coming = self.pool.dying();
        let mut place = 0;
        while let Some((key, fits)) = self.queue.get(place).map(|ready| (ready.key, ready.fits)) {
            if self.is_short(place, key, fits) {
                match self.build(key) {
                    Built::Yes => {}
                    // Its job has been answered; the jobs behind it move up.
                    Built::Failed => continue,
                    // The session's last cell is on its way out of the slot.
                    Built::NoSlot if self.sessions.of_key(key).is_some() => {}
                    Built::NoSlot if coming > 0 => coming -= 1,
                    Built::NoSlot if self.evict(place, key, fits) => {}
                    Built::NoSlot => return,
                }
            }
            place += 1;
        }
    }

    /// Returns whether fewer cells are there or on their way than the jobs up to `place` take: all of its key,
    /// or those that can have the same cells as the one there.
    fn is_short(&self, place: usize, key: KeyId, fits: PrestartFit) -> bool {
        let jobs = |of: PrestartFit| {
            let waiting = self.queue.iter().take(place + 1);
            waiting
                .filter(|ready| ready.key == key && (of == PrestartFit::Yes || ready.fits == of))
                .count()
        };
        [PrestartFit::Yes, fits].into_iter().any(|of| self.pool.count(key, of) < jobs(of))
    }

    /// Ends an idle cell that the job at `place` cannot have: one that no job waits for, or for
    /// the first job any. Were others to take what a job waits for, the two could do so for ever.
    fn evict(&mut self, place: usize, key: KeyId, fits: PrestartFit) -> bool {
        let takes = |pooled: &PooledCell, key, fits| pooled.key == key && pooled.takes(fits);
        let waits = |pooled: &PooledCell| {
            self.queue.iter().any(|ready| takes(pooled, ready.key, ready.fits))
        };
        let slot =
            self.pool.spare(|pooled| !takes(pooled, key, fits) && (place == 0 || !waits(pooled)));
        let Some((slot, mut pooled)) = slot.and_then(|slot| Some((slot, self.pool.take(slot)?)))
        else {
            return false;
        };
        pooled.end();
        self.pool.put(slot, pooled);
        self.pool.counts.evicted += 1;
        true
    }
}
