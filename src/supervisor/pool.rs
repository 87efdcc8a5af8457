//! The pool: cells that wait for a job, built and measured before it comes, each used once.
//!
//! Its key is profile and workspace. It is lazy: a key gets cells in advance after its first call,
//! and loses them when nobody calls for a while.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::young::Young;
use crate::cell::mounts::Slot;
use crate::outcome::PoolCounts;

/// How long an idle cell is kept.
const KEEP: Duration = Duration::from_secs(60);
/// How long after a call the pool is filled again: a burst of calls has the processors first.
const REST: Duration = Duration::from_millis(3);
/// How long a pool may stay short while calls run, which have the processors first: calls without
/// a pause between them must not keep it empty.
const LATE: Duration = Duration::from_millis(50);

/// Cells without a job, by slot.
#[derive(Debug)]
pub struct Pool {
    young: BTreeMap<Slot, Young>,
    /// By key: when it was last called for.
    called: Vec<Option<Instant>>,
    /// Cells to keep ready for a key that is in use.
    warm: u16,
    /// Since when cells may be missing.
    short: Option<Instant>,
    pub counts: PoolCounts,
}

/// Whether programs run now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    Rest,
    Busy,
}

impl Pool {
    pub fn new(keys: usize, warm: u16) -> Self {
        Self {
            young: BTreeMap::new(),
            called: vec![None; keys],
            warm,
            short: None,
            counts: PoolCounts::default(),
        }
    }

    pub fn keep(&self) -> Duration {
        KEEP
    }

    pub fn take(&mut self, slot: Slot) -> Option<Young> {
        self.young.remove(&slot)
    }

    pub fn has(&self, slot: Slot) -> bool {
        self.young.contains_key(&slot)
    }

    pub fn put(&mut self, slot: Slot, young: Young) {
        self.young.insert(slot, young);
    }

    /// The slot of an idle cell of `key`: the oldest, so that none waits for ever.
    pub fn idle(&self, key: usize) -> Option<Slot> {
        let fit = self.young.iter().filter(|(_, young)| young.key == key && young.is_idle());
        fit.min_by_key(|(_, young)| young.born).map(|(slot, _)| *slot)
    }

    /// An idle cell of a key that can spare it, to make room for another.
    pub fn spare(&self, can_spare: impl Fn(usize) -> bool) -> Option<Slot> {
        let mut idle = self.young.iter().filter(|(_, young)| young.is_idle());
        idle.find(|(_, young)| can_spare(young.key)).map(|(slot, _)| *slot)
    }

    /// Cells that are killed and not collected: their slots are free in a moment.
    pub fn dying(&self) -> usize {
        self.young.values().filter(|young| !young.is_alive()).count()
    }

    /// Cells of `key` that are offered or will be.
    pub fn count(&self, key: usize) -> usize {
        self.young.values().filter(|young| young.key == key && young.is_alive()).count()
    }

    /// Every cell of `key`, those that end among them.
    pub fn of_key(&mut self, key: usize) -> impl Iterator<Item = &mut Young> {
        self.young.values_mut().filter(move |young| young.key == key)
    }

    /// Notes that `key` is in use, and that its pool may want a cell soon.
    pub fn called(&mut self, key: usize, now: Instant) {
        if let Some(called) = self.called.get_mut(key) {
            *called = Some(now);
        }
        if self.warm > 0 {
            self.short = Some(self.short.unwrap_or(now));
        }
    }

    /// Counts a job that has its cell.
    pub fn got(&mut self, warm: bool) {
        match warm {
            true => self.counts.warm += 1,
            false => self.counts.cold += 1,
        }
    }

    /// A key in use that has fewer cells than it should, when it is time to look.
    pub fn wants(&mut self, now: Instant, load: Load) -> Option<usize> {
        if self.refill(load).is_none_or(|refill| refill > now) {
            return None;
        }
        let in_use = |called: &Option<Instant>| {
            called.is_some_and(|called| now.saturating_duration_since(called) < KEEP)
        };
        let wanted = (0..self.called.len()).find(|key| {
            self.called.get(*key).is_some_and(in_use) && self.count(*key) < usize::from(self.warm)
        });
        // One at a time: the next look comes when this one is built.
        self.short = wanted.map(|_| now);
        wanted
    }

    /// Cells for which something is due.
    pub fn due(&self, now: Instant) -> Vec<Slot> {
        let due = |young: &Young| young.deadline().is_some_and(|deadline| deadline <= now);
        self.young.iter().filter(|(_, young)| due(young)).map(|(slot, _)| *slot).collect()
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.young.values().filter_map(Young::deadline).min()
    }

    /// When to look whether cells are missing.
    pub fn refill(&self, load: Load) -> Option<Instant> {
        let wait = match load {
            Load::Rest => REST,
            Load::Busy => LATE,
        };
        self.short.map(|short| short + wait)
    }

    /// Nothing is built in advance for this key until it is called for again: its cells fail.
    pub fn give_up(&mut self, key: usize) {
        if let Some(called) = self.called.get_mut(key) {
            *called = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_filled_after_a_rest_and_while_programs_run_only_late() {
        let (mut pool, now) = (Pool::new(2, 1), Instant::now());
        assert_eq!(pool.wants(now + KEEP, Load::Rest), None, "nobody has called");
        pool.called(1, now);
        assert_eq!(pool.wants(now, Load::Rest), None);
        assert_eq!(pool.wants(now + REST, Load::Busy), None);
        // Further calls do not put it off.
        pool.called(1, now + REST);
        assert_eq!(pool.wants(now + REST, Load::Rest), Some(1));
        assert_eq!(pool.wants(now + REST, Load::Rest), None, "one at a time");
        assert_eq!(pool.wants(now + REST + LATE, Load::Busy), Some(1));
        assert_eq!(pool.wants(now + REST + KEEP, Load::Rest), None, "nobody has called since");
    }

    #[test]
    fn a_pool_of_none_is_never_filled() {
        let (mut pool, now) = (Pool::new(1, 0), Instant::now());
        pool.called(0, now);
        assert_eq!(pool.wants(now + LATE, Load::Rest), None);
    }
}
