//! The number of a live cell, by which its ids, mounts and files are chosen.

use std::fmt;

/// Number of a live cell among those of its supervisor. It selects the cell's host uid, its
/// prepared mounts, and its files in the template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(u16);

impl Slot {
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    pub fn number(self) -> u16 {
        self.0
    }

    /// Returns the index in a table of all slots.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the first `count` slots in order.
    pub fn first(count: u16) -> impl Iterator<Item = Self> {
        (0..count).map(Self)
    }

    /// Returns all slots in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u16::MAX).map(Self)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
