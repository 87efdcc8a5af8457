//! Datagrams that the cell has sent and that are not on the network yet: how many, and how large.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most bytes of them; more are dropped, as by a network.
const MOST: usize = 16 << 20;

/// The bytes of all of them, and one more for each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unsent(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct OnItsWay {
    size: usize,
    all: Unsent,
}

impl Unsent {
    /// Counts a datagram. Returns nothing where there are too many.
    pub(crate) fn add(&self, bytes: usize) -> Option<OnItsWay> {
        let size = bytes.saturating_add(1);
        let all = self.0.load(Ordering::Relaxed).saturating_add(size);
        if all > MOST {
            return None;
        }
        // The worker has one thread.
        self.0.store(all, Ordering::Relaxed);
        Some(OnItsWay { size, all: self.clone() })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        let all = &self.all.0;
        all.store(all.load(Ordering::Relaxed).saturating_sub(self.size), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_count_until_they_are_dropped_and_are_bounded() {
        let unsent = Unsent::default();
        assert!(unsent.is_empty());
        // An empty one is one too.
        let empty = unsent.add(0);
        assert!(empty.is_some() && !unsent.is_empty());
        let many: Vec<_> = std::iter::from_fn(|| unsent.add(65_507)).take(1_000).collect();
        assert_eq!(many.len(), (MOST - 1) / 65_508);
        drop(many);
        assert!(!unsent.is_empty());
        drop(empty);
        assert!(unsent.is_empty());
    }
}
