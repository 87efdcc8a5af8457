//! Places that clients share: a client that holds few finds a free one, however many another client holds.
//!
//! A client may hold as many places as it leaves free (dynamic thresholds, as switches share their buffers). So one
//! busy client gets at most half of the places, two get at most a third each, and some places stay free for one more
//! client. If only one client is registered, it may take all places.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use config::policy::Principal;

/// Places of one kind.
#[derive(Debug)]
pub struct FairShare {
    max: usize,
    usage: Mutex<Usage>,
}

/// Places that are held.
#[derive(Debug, Default)]
struct Usage {
    all: usize,
    /// Places held by each registered client, most of which hold 0, and by others that hold some.
    of: BTreeMap<Principal, Holding>,
}

/// Places of one client.
#[derive(Debug, Default)]
struct Holding {
    places: usize,
    /// Number of registrations of the client: with one, places are kept free for it even while it holds no place.
    registrations: usize,
}

/// Places of one client, until this is dropped.
#[derive(Debug)]
pub struct Share {
    of: Arc<FairShare>,
    client: Principal,
    places: usize,
}

impl FairShare {
    /// Makes `max` free places.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, usage: Mutex::default() })
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        // Numbers are changed together, and nothing panics between.
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a client, so that places are kept free for it before it holds any. Each registration is taken back by
    /// [`FairShare::unregister`].
    pub fn register(&self, client: &Principal) {
        self.usage().of.entry(client.clone()).or_default().registrations += 1;
    }

    /// Takes back a registration. Without one, a client is forgotten with its last place.
    pub fn unregister(&self, client: &Principal) {
        let mut usage = self.usage();
        if let Some(own) = usage.of.get_mut(client) {
            own.registrations = own.registrations.saturating_sub(1);
        }
        usage.forget_unused(client);
    }

    /// Returns the number of places that are held.
    pub fn taken(&self) -> usize {
        self.usage().all
    }

    /// Takes so many places for a client. Returns `None` if it cannot have them now.
    pub fn take(self: &Arc<Self>, client: &Principal, places: usize) -> Option<Share> {
        let mut share = Share { of: Arc::clone(self), client: client.clone(), places: 0 };
        share.grow(places).then_some(share)
    }
}

impl Usage {
    /// Removes a client without a place and without a registration.
    fn forget_unused(&mut self, client: &Principal) {
        if self.of.get(client).is_some_and(|own| own.places == 0 && own.registrations == 0) {
            self.of.remove(client);
        }
    }
}

impl Share {
    /// Returns the number of places.
    pub fn places(&self) -> usize {
        self.places
    }

    /// Takes further places. Returns false, and takes nothing, if the client cannot have them now.
    #[must_use]
    pub fn grow(&mut self, more: usize) -> bool {
        let mut usage = self.of.usage();
        let Usage { all, of } = &mut *usage;
        let is_alone = of.keys().all(|known| *known == self.client);
        let own = of.get(&self.client).map_or(0, |own| own.places);
        let Some(left) = self.of.max.checked_sub(all.saturating_add(more)) else { return false };
        // The first place of a client is not measured: there may be no more than one.
        let is_first = own == 0 && more == 1;
        if !is_alone && !is_first && own.saturating_add(more) > left {
            return false;
        }
        if more > 0 {
            of.entry(self.client.clone()).or_default().places += more;
        }
        *all += more;
        self.places += more;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut usage = self.of.usage();
        usage.all = usage.all.saturating_sub(self.places);
        if let Some(own) = usage.of.get_mut(&self.client) {
            own.places = own.places.saturating_sub(self.places);
        }
        usage.forget_unused(&self.client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(name: &str) -> Principal {
        Principal::named(name)
    }

    #[test]
    fn the_only_client_has_every_place() {
        let places = FairShare::new(8);
        let all: Vec<Share> = (0..9).filter_map(|_| places.take(&client("a"), 1)).collect();
        assert_eq!((all.len(), places.taken()), (8, 8));
        drop(all);
        assert_eq!(places.taken(), 0);
    }

    #[test]
    fn a_client_that_takes_all_it_can_leaves_as_much_to_others() {
        let places = FairShare::new(12);
        for name in ["a", "b", "c"] {
            places.register(&client(name));
        }
        let take = |name: &str| -> Vec<Share> {
            std::iter::from_fn(|| places.take(&client(name), 1)).collect()
        };
        let a = take("a");
        let b = take("b");
        assert_eq!((a.len(), b.len()), (6, 3));
        let c = take("c");
        assert!(!c.is_empty(), "there is something left for a third");
        drop((a, b));
        assert_eq!(c.len() + take("c").len(), 6, "places come back");
    }

    #[test]
    fn an_unannounced_client_is_forgotten_with_its_last_place() {
        let places = FairShare::new(8);
        places.register(&client("known"));
        for number in 0..100 {
            let passing = client(&format!("passing-{number}"));
            let first = places.take(&passing, 1);
            let second = places.take(&passing, 2);
            assert!(first.is_some() && second.is_some(), "{number}");
            assert!(places.take(&passing, 2).is_none(), "it leaves something for the known one");
        }
        assert_eq!((places.taken(), places.usage().of.len()), (0, 1));
    }

    #[test]
    fn a_client_is_forgotten_with_its_last_registration_and_its_last_place() {
        let places = FairShare::new(8);
        places.register(&client("stays"));
        places.register(&client("leaves"));
        places.register(&client("leaves"));
        let held = places.take(&client("leaves"), 1);
        let all_of = || std::iter::from_fn(|| places.take(&client("stays"), 1)).collect::<Vec<_>>();
        assert_eq!(all_of().len(), 3, "as many are left free");
        places.unregister(&client("leaves"));
        drop(held);
        assert_eq!(all_of().len(), 4, "one registration is left");
        let held = places.take(&client("leaves"), 1);
        places.unregister(&client("leaves"));
        assert_eq!(all_of().len(), 3, "it holds a place");
        drop(held);
        assert_eq!(all_of().len(), 8, "no client is left that others leave places for");
        assert_eq!(places.usage().of.len(), 1);
        places.unregister(&client("never"));
        assert_eq!(places.usage().of.len(), 1);
    }

    #[test]
    fn a_share_that_cannot_grow_stays_as_it_is() {
        let places = FairShare::new(10);
        places.register(&client("b"));
        let mut share = places.take(&client("a"), 4).expect("there is room");
        assert!(!share.grow(2), "it would leave four and hold six");
        assert!(share.grow(1));
        assert_eq!((share.places(), places.taken()), (5, 5));
        assert!(places.take(&client("b"), 6).is_none());
        assert!(places.take(&client("b"), 2).is_some());
    }
}
