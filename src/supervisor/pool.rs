//! The pool: cells that wait for a job, built and measured before it comes, each used once.
//!
//! Its key is profile and workspace. It is lazy: a key gets cells in advance after its first call,
//! and loses them when nobody calls for a while.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::young::Young;
use crate::cell::mounts::Slot;

/// How long an idle cell is kept.
const KEEP: Duration = Duration::from_secs(60);
/// How long after a call the pool is filled again: a burst of calls has the processors first.
const REST: Duration = Duration::from_millis(3);

/// Cells without a job, by slot.
#[derive(Debug)]
pub struct Pool {
    young: BTreeMap<Slot, Young>,
    /// By key: when it was last called for.
    called: Vec<Option<Instant>>,
    /// Cells to keep ready for a key that is in use.
    warm: u16,
    /// When to look whether cells are missing.
    refill: Option<Instant>,
}

impl Pool {
    pub fn new(keys: usize, warm: u16) -> Self {
        Self { young: BTreeMap::new(), called: vec![None; keys], warm, refill: None }
    }

    pub fn keep(&self) -> Duration {
        KEEP
    }

    pub fn take(&mut self, slot: Slot) -> Option<Young> {
        self.young.remove(&slot)
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

    /// Notes that `key` is in use, and that its pool may want a cell soon.
    pub fn called(&mut self, key: usize, now: Instant) {
        if let Some(called) = self.called.get_mut(key) {
            *called = Some(now);
        }
        if self.warm > 0 {
            self.refill = Some(now + REST);
        }
    }

    /// A key in use that has fewer cells than it should, when it is time to look.
    pub fn wants(&mut self, now: Instant) -> Option<usize> {
        if self.refill.is_none_or(|refill| refill > now) {
            return None;
        }
        let in_use = |called: &Option<Instant>| {
            called.is_some_and(|called| now.saturating_duration_since(called) < KEEP)
        };
        let wanted = (0..self.called.len()).find(|key| {
            self.called.get(*key).is_some_and(in_use) && self.count(*key) < usize::from(self.warm)
        });
        // One at a time: the next look comes when this one is built.
        self.refill = wanted.map(|_| now + REST);
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
    pub fn refill(&self) -> Option<Instant> {
        self.refill
    }

    /// Nothing is built in advance for this key until it is called for again: its cells fail.
    pub fn give_up(&mut self, key: usize) {
        if let Some(called) = self.called.get_mut(key) {
            *called = None;
        }
    }
}
