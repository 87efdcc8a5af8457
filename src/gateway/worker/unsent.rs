//! Counts what the cell has sent and the worker has not finished yet: datagrams that are not on the
//! network, and connection attempts that are not judged.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex};

use model::egress::frames::CallId;

use super::stack::lock;

/// Maximum number of unsent bytes; more is dropped, as a network would.
const MAX_BYTES: usize = 16 << 20;
/// Maximum overhead of one item beyond its payload, in bytes.
const OVERHEAD: usize = 256;

/// Unsent bytes, by the call for which they count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unsent(Arc<Mutex<HashMap<CallId, usize>>>);

/// Counts as unsent until it is dropped.
#[derive(Debug)]
pub(crate) struct UnsentGuard {
    call: CallId,
    size: usize,
    all: Unsent,
}

impl Unsent {
    /// Counts bytes for a call. Returns `None` if too many are unsent.
    pub(crate) fn add(&self, call: CallId, bytes: usize) -> Option<UnsentGuard> {
        let size = bytes.saturating_add(OVERHEAD);
        let mut calls = lock(&self.0);
        if calls.values().fold(size, |sum, bytes| sum.saturating_add(*bytes)) > MAX_BYTES {
            return None;
        }
        let of_this_call = calls.entry(call).or_default();
        *of_this_call = of_this_call.saturating_add(size);
        Some(UnsentGuard { call, size, all: self.clone() })
    }

    /// Returns true if nothing of a call is unsent.
    pub(crate) fn is_empty_for(&self, call: CallId) -> bool {
        !lock(&self.0).contains_key(&call)
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }
}

impl UnsentGuard {
    /// Runs `task`, and counts as pending until the task first yields; by then the judge has
    /// decided.
    pub(crate) async fn until_judged(self, task: impl Future<Output = ()>) {
        let mut guard = Some(self);
        let mut task = pin!(task);
        poll_fn(|context| {
            let polled = task.as_mut().poll(context);
            drop(guard.take());
            polled
        })
        .await;
    }
}

impl Drop for UnsentGuard {
    fn drop(&mut self) {
        let mut calls = lock(&self.all.0);
        if let Some(bytes) = calls.get_mut(&self.call) {
            *bytes = bytes.saturating_sub(self.size);
            if *bytes == 0 {
                calls.remove(&self.call);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsent_bytes_count_for_their_call_until_dropped_and_are_bounded() {
        let unsent = Unsent::default();
        assert!(unsent.is_empty() && unsent.is_empty_for(1));
        // An empty datagram counts too.
        let empty = unsent.add(1, 0);
        assert!(empty.is_some() && !unsent.is_empty_for(1) && unsent.is_empty_for(2));
        let many: Vec<_> = std::iter::from_fn(|| unsent.add(2, 65_507)).take(1_000).collect();
        assert_eq!(many.len(), (MAX_BYTES - OVERHEAD) / (65_507 + OVERHEAD));
        drop(many);
        assert!(unsent.is_empty_for(2) && !unsent.is_empty());
        drop(empty);
        assert!(unsent.is_empty());
    }

    #[tokio::test]
    async fn an_attempt_is_pending_until_its_task_waits() {
        let unsent = Unsent::default();
        let guard = unsent.add(1, 0).expect("room");
        let (go, wait) = tokio::sync::oneshot::channel::<()>();
        let inside = unsent.clone();
        let task = tokio::spawn(guard.until_judged(async move {
            assert!(!inside.is_empty());
            wait.await.expect("a message");
            assert!(inside.is_empty());
        }));
        tokio::task::yield_now().await;
        assert!(unsent.is_empty());
        go.send(()).expect("it waits");
        task.await.expect("no panic");
    }
}
