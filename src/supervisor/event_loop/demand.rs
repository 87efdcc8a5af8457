//! Cells for the jobs that wait: how many are missing, and what makes room for them.

use super::dispatch::Built;
use super::supervisor::Supervisor;
use crate::cells::pooled_cell::Young;
use crate::cells::queued_job::Fits;

impl Supervisor {
    /// A cell for each job that waits, as far as there are slots. In the order of the jobs: a slot
    /// that was freed for the first must not go to another.
    pub(super) fn build_for_waiting(&mut self) {
        let mut coming = self.pool.dying();
        let mut place = 0;
        while let Some((key, fits)) = self.queue.get(place).map(|ready| (ready.key, ready.fits)) {
            if self.is_short(place, key, fits) {
                match self.build(key) {
                    Built::Yes => {}
                    // Its job is told and gone; those that came after it move up.
                    Built::Failed => continue,
                    // The session's last cell is on its way out of the slot.
                    Built::NoSlot if self.sessions.place(key).is_some() => {}
                    Built::NoSlot if coming > 0 => coming -= 1,
                    Built::NoSlot if self.evict(place, key, fits) => {}
                    Built::NoSlot => return,
                }
            }
            place += 1;
        }
    }

    /// Returns true if the cells that exist or are being made are fewer than the jobs up to `place`
    /// take: all of its key, or those that can have the same cells as the one there.
    fn is_short(&self, place: usize, key: usize, fits: Fits) -> bool {
        let jobs = |of: Fits| {
            let waiting = self.queue.iter().take(place + 1);
            waiting
                .filter(|ready| ready.key == key && (of == Fits::Yes || ready.fits == of))
                .count()
        };
        [Fits::Yes, fits].into_iter().any(|of| self.pool.count(key, of) < jobs(of))
    }

    /// Ends an idle cell that the job at `place` cannot have: one that no job waits for, or for
    /// the first job any. Were others to take what a job waits for, the two could do so for ever.
    fn evict(&mut self, place: usize, key: usize, fits: Fits) -> bool {
        let takes = |young: &Young, key, fits| young.key == key && young.takes(fits);
        let waits =
            |young: &Young| self.queue.iter().any(|ready| takes(young, ready.key, ready.fits));
        let slot =
            self.pool.spare(|young| !takes(young, key, fits) && (place == 0 || !waits(young)));
        let Some((slot, mut young)) = slot.and_then(|slot| Some((slot, self.pool.take(slot)?)))
        else {
            return false;
        };
        young.end();
        self.pool.put(slot, young);
        self.pool.counts.evicted += 1;
        true
    }
}
