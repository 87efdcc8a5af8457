//! What the cell has sent and what is still on its way: datagrams that are not on the network yet, and attempts that
//! nobody has judged.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex};

use model::egress::frames::CallId;

use super::stack::hold;

/// Most bytes of all of it; more is dropped, as by a network.
const MOST: usize = 16 << 20;
/// Bytes that one takes beside its payload, at most.
const OVERHEAD: usize = 256;

/// The bytes on their way, by the call for which they count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unsent(Arc<Mutex<HashMap<CallId, usize>>>);

/// A part of it, until it is dropped.
#[derive(Debug)]
pub(crate) struct OnItsWay {
    call: CallId,
    size: usize,
    all: Unsent,
}

impl Unsent {
    /// Counts so many bytes for a call. Returns nothing where there are too many.
    pub(crate) fn add(&self, call: CallId, bytes: usize) -> Option<OnItsWay> {
        let size = bytes.saturating_add(OVERHEAD);
        let mut calls = hold(&self.0);
        if calls.values().fold(size, |sum, bytes| sum.saturating_add(*bytes)) > MOST {
            return None;
        }
        let of_call = calls.entry(call).or_default();
        *of_call = of_call.saturating_add(size);
        Some(OnItsWay { call, size, all: self.clone() })
    }

    /// Returns true if nothing of a call is on its way.
    pub(crate) fn is_empty_of(&self, call: CallId) -> bool {
        !hold(&self.0).contains_key(&call)
    }

    pub(crate) fn is_empty(&self) -> bool {
        hold(&self.0).is_empty()
    }
}

impl OnItsWay {
    /// Does what `task` does; this is on its way until that waits for the first time, by when it has judged.
    pub(crate) async fn until_judged(self, task: impl Future<Output = ()>) {
        let mut on_its_way = Some(self);
        let mut task = pin!(task);
        poll_fn(|context| {
            let polled = task.as_mut().poll(context);
            drop(on_its_way.take());
            polled
        })
        .await;
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        let mut calls = hold(&self.all.0);
        if let Some(of_call) = calls.get_mut(&self.call) {
            *of_call = of_call.saturating_sub(self.size);
            if *of_call == 0 {
                calls.remove(&self.call);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_its_way_counts_for_its_call_until_it_is_dropped_and_is_bounded() {
        let unsent = Unsent::default();
        assert!(unsent.is_empty() && unsent.is_empty_of(1));
        // Counts an empty datagram as well.
        let empty = unsent.add(1, 0);
        assert!(empty.is_some() && !unsent.is_empty_of(1) && unsent.is_empty_of(2));
        let many: Vec<_> = std::iter::from_fn(|| unsent.add(2, 65_507)).take(1_000).collect();
        assert_eq!(many.len(), (MOST - OVERHEAD) / (65_507 + OVERHEAD));
        drop(many);
        assert!(unsent.is_empty_of(2) && !unsent.is_empty());
        drop(empty);
        assert!(unsent.is_empty());
    }

    #[tokio::test]
    async fn an_attempt_is_on_its_way_until_its_task_waits() {
        let unsent = Unsent::default();
        let on_its_way = unsent.add(1, 0).expect("room");
        let (go, wait) = tokio::sync::oneshot::channel::<()>();
        let inside = unsent.clone();
        let task = tokio::spawn(on_its_way.until_judged(async move {
            assert!(!inside.is_empty());
            wait.await.expect("a word");
            assert!(inside.is_empty());
        }));
        tokio::task::yield_now().await;
        assert!(unsent.is_empty());
        go.send(()).expect("it waits");
        task.await.expect("no panic");
    }
}
