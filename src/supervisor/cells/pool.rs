//! The pool: cells that wait for a job, built and measured before it comes, each used once.
//!
//! Its key is profile and workspace. It is lazy: a key gets cells in advance after its first call,
//! and loses them when nobody calls for a while.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::cell::Cell;
use super::key::KeyId;
use super::pooled_cell::PooledCell;
use super::queued_job::PrestartFit;
use super::streams::Prestarted;
use cell::mounts::Slot;
use model::outcome::PoolCounts;

/// How long an idle cell is kept.
const KEEP: Duration = Duration::from_secs(60);
/// How long after a call the pool is filled again: a burst of calls has the processors first.
const REST: Duration = Duration::from_millis(3);
/// How long a pool may stay short while calls run, which have the processors first: calls without
/// a pause between them must not keep it empty.
const LATE: Duration = Duration::from_millis(50);
/// Cells of a key that have their program executed: memory, for as long as nobody calls.
const PROGRAMS: usize = 2;

/// Cells without a job, by slot.
#[derive(Debug)]
pub(crate) struct Pool {
    pooled: BTreeMap<Slot, PooledCell>,
    /// By key: when it was last called for, and by a job whose program may be executed ahead.
    called: BTreeMap<KeyId, Called>,
    /// Cells to keep ready for a key that is in use.
    warm: u16,
    /// Since when cells may be missing.
    short: Option<Instant>,
    pub counts: PoolCounts,
}

/// When a key was called for.
#[derive(Debug, Clone, Copy, Default)]
struct Called {
    at: Option<Instant>,
    /// By a job whose program may have been executed before it came.
    fitting: Option<Instant>,
}

/// The resource that a key has too little of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// Cells of this key.
    Cell(KeyId),
    /// The program in this cell.
    Program(Slot),
}

/// The cell that the pool had for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolHit {
    /// A cell that was ready, with its program in it.
    Program,
    /// A cell that was ready.
    Warm,
    /// None until one was built.
    Cold,
}

/// The load by running programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    Rest,
    Busy,
}

impl Pool {
    pub(crate) fn new(warm: u16) -> Self {
        Self {
            pooled: BTreeMap::new(),
            called: BTreeMap::new(),
            warm,
            short: None,
            counts: PoolCounts::default(),
        }
    }

    pub(crate) fn keep(&self) -> Duration {
        KEEP
    }

    pub(crate) fn take(&mut self, slot: Slot) -> Option<PooledCell> {
        self.pooled.remove(&slot)
    }

    pub(crate) fn has(&self, slot: Slot) -> bool {
        self.pooled.contains_key(&slot)
    }

    pub(crate) fn put(&mut self, slot: Slot, pooled: PooledCell) {
        self.pooled.insert(slot, pooled);
    }

    /// The slot of an idle cell of `key` for a job: one with its program before others, and the oldest
    /// of these, so that none waits for ever.
    pub(crate) fn idle(&self, key: KeyId, fits: PrestartFit) -> Option<Slot> {
        let idle = self.pooled.iter().filter(|(_, pooled)| pooled.key == key && pooled.is_idle());
        let fit = idle.filter(|(_, pooled)| pooled.takes(fits));
        fit.min_by_key(|(_, pooled)| (pooled.cell.prestarted.is_none(), pooled.born))
            .map(|(slot, _)| *slot)
    }

    /// An idle cell that can be spared, to make room for another.
    pub(crate) fn spare(&self, can_spare: impl Fn(&PooledCell) -> bool) -> Option<Slot> {
        let mut idle = self.pooled.iter().filter(|(_, pooled)| pooled.is_idle());
        idle.find(|(_, pooled)| can_spare(pooled)).map(|(slot, _)| *slot)
    }

    /// The ends by which programs that wait are given their input.
    pub(crate) fn inputs(&self) -> Vec<BorrowedFd<'_>> {
        let executed = self.pooled.values().filter_map(|pooled| pooled.cell.prestarted.as_ref());
        executed.map(Prestarted::input).collect()
    }

    /// Every cell without a job.
    pub(crate) fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.pooled.values().map(|pooled| &pooled.cell)
    }

    /// Cells that are killed and not collected: their slots are free in a moment.
    pub(crate) fn dying(&self) -> usize {
        self.pooled.values().filter(|pooled| !pooled.is_alive()).count()
    }

    /// Cells of `key` that are offered or will be, and that such a job can have.
    pub(crate) fn count(&self, key: KeyId, fits: PrestartFit) -> usize {
        let alive = self.pooled.values().filter(|pooled| pooled.key == key && pooled.is_alive());
        alive.filter(|pooled| pooled.takes(fits)).count()
    }

    /// Every cell of these keys, those that end among them.
    pub(crate) fn of_keys(&mut self, keys: &[KeyId]) -> impl Iterator<Item = &mut PooledCell> {
        self.pooled.values_mut().filter(|pooled| keys.contains(&pooled.key))
    }

    /// Notes that `key` is in use, and that its pool may want a cell soon.
    pub(crate) fn called(&mut self, key: KeyId, fits: PrestartFit, now: Instant) {
        let called = self.called.entry(key).or_default();
        called.at = Some(now);
        if fits == PrestartFit::Yes {
            called.fitting = Some(now);
        }
        self.look(now);
    }

    /// Notes that a cell of `key` is idle, in which its program may be executed soon.
    pub(crate) fn ready(&mut self, key: KeyId, now: Instant) {
        if self.called.get(&key).is_some_and(|called| called.fitting.is_some()) {
            self.look(now);
        }
    }

    fn look(&mut self, now: Instant) {
        if self.warm > 0 {
            self.short = Some(self.short.unwrap_or(now));
        }
    }

    /// Counts a job that has its cell.
    pub(crate) fn got(&mut self, got: PoolHit) {
        let counts = &mut self.counts;
        match got {
            PoolHit::Program => (counts.warm, counts.ahead) = (counts.warm + 1, counts.ahead + 1),
            PoolHit::Warm => counts.warm += 1,
            PoolHit::Cold => counts.cold += 1,
        }
    }

    /// Returns what a key in use has less of than it should, when it is time to look.
    pub(crate) fn wants(&mut self, now: Instant, load: Load) -> Option<Shortage> {
        if self.refill(load).is_none_or(|refill| refill > now) {
            return None;
        }
        let in_use = |called: Option<Instant>| {
            called.is_some_and(|called| now.saturating_duration_since(called) < KEEP)
        };
        let keys = || self.called.iter().map(|(key, called)| (*key, called));
        let programs = keys().filter(|(_, called)| in_use(called.fitting));
        let cells = keys().filter(|(_, called)| in_use(called.at));
        // A program first: it takes less, and saves more.
        let wanted = programs
            .filter_map(|(key, _)| self.without_program(key).map(Shortage::Program))
            .chain(
                cells
                    .filter(|(key, _)| self.count(*key, PrestartFit::Yes) < usize::from(self.warm))
                    .map(|(key, _)| Shortage::Cell(key)),
            )
            .next();
        // One at a time: the next look comes when this one is built.
        self.short = wanted.map(|_| now);
        wanted
    }

    /// An idle cell of `key` in which its program is to be executed: the oldest, where few have it.
    fn without_program(&self, key: KeyId) -> Option<Slot> {
        let programs = self.count(key, PrestartFit::Yes) - self.count(key, PrestartFit::No);
        (programs < PROGRAMS).then(|| self.idle(key, PrestartFit::No)).flatten()
    }

    /// Nothing is executed ahead for this key until a job comes that could have it.
    pub(crate) fn leave_empty(&mut self, key: KeyId) {
        if let Some(called) = self.called.get_mut(&key) {
            called.fitting = None;
        }
    }

    /// Cells for which something is due.
    pub(crate) fn due(&self, now: Instant) -> Vec<Slot> {
        let due = |pooled: &PooledCell| pooled.deadline().is_some_and(|deadline| deadline <= now);
        self.pooled.iter().filter(|(_, pooled)| due(pooled)).map(|(slot, _)| *slot).collect()
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.pooled.values().filter_map(PooledCell::deadline).min()
    }

    /// When to look whether cells are missing.
    pub(crate) fn refill(&self, load: Load) -> Option<Instant> {
        let wait = match load {
            Load::Rest => REST,
            Load::Busy => LATE,
        };
        self.short.map(|short| short + wait)
    }

    /// Builds nothing in advance for this key until it is called for again: its cells fail, or it is gone.
    pub(crate) fn give_up(&mut self, key: KeyId) {
        self.called.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_filled_after_a_rest_and_while_programs_run_only_late() {
        let mut pool = Pool::new(1);
        let now = Instant::now();
        assert_eq!(pool.wants(now + KEEP, Load::Rest), None, "nobody has called");
        pool.called(KeyId(1), PrestartFit::No, now);
        assert_eq!(pool.wants(now, Load::Rest), None);
        assert_eq!(pool.wants(now + REST, Load::Busy), None);
        // Further calls do not put it off.
        pool.called(KeyId(1), PrestartFit::No, now + REST);
        assert_eq!(pool.wants(now + REST, Load::Rest), Some(Shortage::Cell(KeyId(1))));
        assert_eq!(pool.wants(now + REST, Load::Rest), None, "one at a time");
        assert_eq!(pool.wants(now + REST + LATE, Load::Busy), Some(Shortage::Cell(KeyId(1))));
        assert_eq!(pool.wants(now + REST + KEEP, Load::Rest), None, "nobody has called since");
    }

    #[test]
    fn a_pool_of_none_is_never_filled() {
        let mut pool = Pool::new(0);
        let now = Instant::now();
        pool.called(KeyId(0), PrestartFit::No, now);
        assert_eq!(pool.wants(now + LATE, Load::Rest), None);
    }
}
