//! The pool of cells without a job: built and measured in advance, each used once.
//!
//! The pool's key is profile and workspace. Cells of a key are built in advance only after its
//! first call, and removed if it is unused for a while.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::cell::Cell;
use super::key::KeyId;
use super::pooled_cell::{KEEP_TIME, PooledCell};
use super::queued_job::PrestartFit;
use super::streams::Prestarted;
use cell::slot::Slot;
use model::outcome::PoolCounts;

/// How long after a call the pool is refilled: calls in a burst get the processors first.
const REFILL_DELAY: Duration = Duration::from_millis(3);
/// Maximum delay of a refill while calls run, which get the processors first: a steady stream of
/// calls must not keep the pool empty.
const MAX_REFILL_DELAY: Duration = Duration::from_millis(50);
/// Maximum number of cells per key with an executed program, which takes memory while it waits.
const MAX_PRESTARTED: usize = 2;

/// Cells without a job, by slot.
#[derive(Debug)]
pub(crate) struct Pool {
    pooled: BTreeMap<Slot, PooledCell>,
    /// When each key was last called, and when by a job that fits a prestarted program.
    called: BTreeMap<KeyId, LastCalls>,
    /// Number of cells to keep ready for a key in use.
    warm: u16,
    /// Time since when cells may be missing.
    short: Option<Instant>,
    pub counts: PoolCounts,
}

/// When a key was last called.
#[derive(Debug, Clone, Copy, Default)]
struct LastCalls {
    at: Option<Instant>,
    /// By a job that fits a cell whose program is already running.
    fitting: Option<Instant>,
}

/// A shortage of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// A cell of this key.
    Cell(KeyId),
    /// A running program in this cell.
    Program(Slot),
}

/// Which kind of cell the pool had for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolHit {
    /// A ready cell with its program running.
    Program,
    /// A ready cell.
    Warm,
    /// No cell; one had to be built.
    Cold,
}

/// State of the processors: idle, or busy with programs.
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

    pub(crate) fn take(&mut self, slot: Slot) -> Option<PooledCell> {
        self.pooled.remove(&slot)
    }

    pub(crate) fn has(&self, slot: Slot) -> bool {
        self.pooled.contains_key(&slot)
    }

    pub(crate) fn put(&mut self, pooled: PooledCell) {
        self.pooled.insert(pooled.cell.slot, pooled);
    }

    /// Ends a cell, which stays here until it is reaped. Returns false if the slot has no cell of the pool.
    pub(crate) fn end(&mut self, slot: Slot) -> bool {
        self.pooled.get_mut(&slot).map(PooledCell::end).is_some()
    }

    /// Returns an idle cell of `key` for a job: preferably one with its program running, and the
    /// oldest of these, so that each is used eventually.
    pub(crate) fn idle(&self, key: KeyId, fits: PrestartFit) -> Option<Slot> {
        let idle = self.pooled.iter().filter(|(_, pooled)| pooled.key == key && pooled.is_idle());
        let fit = idle.filter(|(_, pooled)| pooled.takes(fits));
        fit.min_by_key(|(_, pooled)| (pooled.cell.prestarted.is_none(), pooled.born))
            .map(|(slot, _)| *slot)
    }

    /// Returns an idle cell that may be removed to make room for another.
    pub(crate) fn spare(&self, can_spare: impl Fn(&PooledCell) -> bool) -> Option<Slot> {
        let mut idle = self.pooled.iter().filter(|(_, pooled)| pooled.is_idle());
        idle.find(|(_, pooled)| can_spare(pooled)).map(|(slot, _)| *slot)
    }

    /// Returns the input pipes of the prestarted programs.
    pub(crate) fn inputs(&self) -> Vec<BorrowedFd<'_>> {
        let executed = self.pooled.values().filter_map(|pooled| pooled.cell.prestarted.as_ref());
        executed.map(Prestarted::input).collect()
    }

    /// Iterates over all cells without a job.
    pub(crate) fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.pooled.values().map(|pooled| &pooled.cell)
    }

    /// Returns the number of cells that are killed and not reaped: their slots are free in a
    /// moment.
    pub(crate) fn dying(&self) -> usize {
        self.pooled.values().filter(|pooled| !pooled.is_alive()).count()
    }

    /// Returns the number of live cells of `key`, ready or being built, that such a job can use.
    pub(crate) fn count(&self, key: KeyId, fits: PrestartFit) -> usize {
        let alive = self.pooled.values().filter(|pooled| pooled.key == key && pooled.is_alive());
        alive.filter(|pooled| pooled.takes(fits)).count()
    }

    /// Iterates over all cells of these keys, including those that are ending.
    pub(crate) fn of_keys(&mut self, keys: &[KeyId]) -> impl Iterator<Item = &mut PooledCell> {
        self.pooled.values_mut().filter(|pooled| keys.contains(&pooled.key))
    }

    /// Records that `key` is in use and may need a cell soon.
    pub(crate) fn called(&mut self, key: KeyId, fits: PrestartFit, now: Instant) {
        let called = self.called.entry(key).or_default();
        called.at = Some(now);
        if fits == PrestartFit::Yes {
            called.fitting = Some(now);
        }
        self.schedule_refill(now);
    }

    /// Records that a cell of `key` is idle, so that its program may be executed in it soon.
    pub(crate) fn ready(&mut self, key: KeyId, now: Instant) {
        if self.called.get(&key).is_some_and(|called| called.fitting.is_some()) {
            self.schedule_refill(now);
        }
    }

    fn schedule_refill(&mut self, now: Instant) {
        if self.warm > 0 {
            self.short = Some(self.short.unwrap_or(now));
        }
    }

    /// Counts a job that got its cell.
    pub(crate) fn count_hit(&mut self, hit: PoolHit) {
        let counts = &mut self.counts;
        match hit {
            PoolHit::Program => {
                counts.warm += 1;
                counts.ahead += 1;
            }
            PoolHit::Warm => counts.warm += 1,
            PoolHit::Cold => counts.cold += 1,
        }
    }

    /// Returns what a key in use lacks, if a refill is due.
    pub(crate) fn wants(&mut self, now: Instant, load: Load) -> Option<Shortage> {
        if self.refill(load).is_none_or(|refill| refill > now) {
            return None;
        }
        let in_use = |called: Option<Instant>| {
            called.is_some_and(|called| now.saturating_duration_since(called) < KEEP_TIME)
        };
        let keys = || self.called.iter().map(|(key, called)| (*key, called));
        let programs = keys().filter(|(_, called)| in_use(called.fitting));
        let cells = keys().filter(|(_, called)| in_use(called.at));
        // Programs first: they cost less and save more.
        let wanted = programs
            .filter_map(|(key, _)| self.without_program(key).map(Shortage::Program))
            .chain(
                cells
                    .filter(|(key, _)| self.count(*key, PrestartFit::Yes) < usize::from(self.warm))
                    .map(|(key, _)| Shortage::Cell(key)),
            )
            .next();
        // One at a time: the next refill waits until this one is built.
        self.short = wanted.map(|_| now);
        wanted
    }

    /// Returns the idle cell of `key` in which its program should be executed: the oldest, unless
    /// enough have it.
    fn without_program(&self, key: KeyId) -> Option<Slot> {
        let programs = self.count(key, PrestartFit::Yes) - self.count(key, PrestartFit::No);
        (programs < MAX_PRESTARTED).then(|| self.idle(key, PrestartFit::No)).flatten()
    }

    /// Executes no program in advance for this key until a job arrives that fits.
    pub(crate) fn leave_empty(&mut self, key: KeyId) {
        if let Some(called) = self.called.get_mut(&key) {
            called.fitting = None;
        }
    }

    /// Returns the cells with a due deadline.
    pub(crate) fn due(&self, now: Instant) -> Vec<Slot> {
        self.pooled
            .iter()
            .filter(|(_, pooled)| pooled.deadline <= now)
            .map(|(slot, _)| *slot)
            .collect()
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.pooled.values().map(|pooled| pooled.deadline).min()
    }

    /// Returns when to check whether cells are missing.
    pub(crate) fn refill(&self, load: Load) -> Option<Instant> {
        let wait = match load {
            Load::Rest => REFILL_DELAY,
            Load::Busy => MAX_REFILL_DELAY,
        };
        self.short.map(|short| short + wait)
    }

    /// Builds no cell in advance for this key until it is called again: its cells fail, or the key
    /// is removed.
    pub(crate) fn give_up(&mut self, key: KeyId) {
        self.called.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_refilled_after_a_delay_that_is_longer_while_programs_run() {
        let mut pool = Pool::new(1);
        let now = Instant::now();
        assert_eq!(pool.wants(now + KEEP_TIME, Load::Rest), None, "no call yet");
        pool.called(KeyId(1), PrestartFit::No, now);
        assert_eq!(pool.wants(now, Load::Rest), None);
        assert_eq!(pool.wants(now + REFILL_DELAY, Load::Busy), None);
        // More calls do not postpone the refill.
        pool.called(KeyId(1), PrestartFit::No, now + REFILL_DELAY);
        assert_eq!(pool.wants(now + REFILL_DELAY, Load::Rest), Some(Shortage::Cell(KeyId(1))));
        assert_eq!(pool.wants(now + REFILL_DELAY, Load::Rest), None, "one at a time");
        assert_eq!(
            pool.wants(now + REFILL_DELAY + MAX_REFILL_DELAY, Load::Busy),
            Some(Shortage::Cell(KeyId(1)))
        );
        assert_eq!(pool.wants(now + REFILL_DELAY + KEEP_TIME, Load::Rest), None, "no call since");
    }

    #[test]
    fn a_pool_of_size_zero_is_never_filled() {
        let mut pool = Pool::new(0);
        let now = Instant::now();
        pool.called(KeyId(0), PrestartFit::No, now);
        assert_eq!(pool.wants(now + MAX_REFILL_DELAY, Load::Rest), None);
    }
}
