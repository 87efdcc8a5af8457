//! The doors of a server: one for each client, made for those of the configuration at the start, and for subjects of an
//! authorization server when they come.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::access::{Client, ClientRights};
use crate::body::busy;
use crate::door::Door;
use crate::respond::Refusal;
use config::policy::Principal;

/// Maximum number of doors of subjects. Each costs some kilobytes, and the state of its client.
const MAX_DOORS: usize = 1024;
/// Time without a request after which the door of a subject may make room for that of another.
const UNUSED_TIME: Duration = Duration::from_secs(300);
/// Time that a subject has, after credentials were replaced, to show a token that is still valid.
const PROOF_TIME: Duration = Duration::from_secs(60);

/// Makes the door of a client.
type MakeDoor<H> = Box<dyn Fn(&Client) -> Door<H> + Send + Sync>;

/// A client, and the door that it had.
pub(crate) type RemovedDoor<H> = (Principal, Arc<Door<H>>);

/// The door of a client.
pub(crate) struct Entry<H> {
    pub door: Arc<Door<H>>,
    /// The one that made room for it.
    pub removed: Option<RemovedDoor<H>>,
}

/// Doors by their clients.
pub(crate) struct Doors<H> {
    make: MakeDoor<H>,
    open: Mutex<BTreeMap<(Principal, ClientRights), OpenDoor<H>>>,
}

struct OpenDoor<H> {
    door: Arc<Door<H>>,
    /// Time of the last request.
    used: Instant,
    /// True for a client that has a token or a certificate. Its door is kept for as long as it has one.
    is_listed: bool,
    /// Latest end of the access tokens of its requests, if each of them has one.
    until: Option<SystemTime>,
}

impl<H> Doors<H> {
    pub(crate) fn new(make: impl Fn(&Client) -> Door<H> + Send + Sync + 'static) -> Self {
        Self { make: Box::new(make), open: Mutex::default() }
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<(Principal, ClientRights), OpenDoor<H>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes doors for these clients. Removes and returns those of clients that were listed and are not any more. A
    /// request that is being served keeps its door. The door of a subject is for a short time only, until a request
    /// shows that its access token is still valid.
    pub(crate) fn list(&self, clients: &[Client]) -> Vec<RemovedDoor<H>> {
        let key = |client: &Client| (client.principal.clone(), client.rights);
        let mut open = self.open();
        let listed: Vec<_> = clients.iter().map(key).collect();
        let is_removed = |client: &(Principal, ClientRights), door: &mut OpenDoor<H>| {
            door.is_listed && !listed.contains(client)
        };
        let removed = open.extract_if(.., is_removed);
        let removed = removed.map(|((client, _), door)| (client, door.door)).collect();
        let shown_until = SystemTime::now() + PROOF_TIME;
        for door in open.values_mut().filter(|door| !door.is_listed) {
            door.until = Some(door.until.map_or(shown_until, |until| until.min(shown_until)));
        }
        for client in clients {
            let made = || OpenDoor {
                door: Arc::new((self.make)(client)),
                used: Instant::now(),
                is_listed: true,
                until: None,
            };
            open.entry(key(client)).or_insert_with(made).is_listed = true;
        }
        removed
    }

    /// Returns the door of a client that was found by its credentials.
    ///
    /// # Errors
    /// There are too many clients at once.
    pub(crate) fn get(&self, client: &Client) -> Result<Entry<H>, Refusal> {
        let mut open = self.open();
        let key = (client.principal.clone(), client.rights);
        if let Some(known) = open.get_mut(&key) {
            known.used = Instant::now();
            // An option without a time is the least.
            known.until = known.until.max(client.until);
            return Ok(Entry { door: Arc::clone(&known.door), removed: None });
        }
        let mut removed = None;
        // Clients of the configuration take no door from subjects.
        if open.values().filter(|door| !door.is_listed).count() >= MAX_DOORS {
            let unused = unused(&open).ok_or_else(|| busy("there are too many clients at once"))?;
            removed = open.remove(&unused).map(|door| (unused.0, door.door));
        }
        let door = Arc::new((self.make)(client));
        let made = OpenDoor {
            door: Arc::clone(&door),
            used: Instant::now(),
            is_listed: false,
            until: client.until,
        };
        open.insert(key, made);
        Ok(Entry { door, removed })
    }

    /// Removes and returns the doors of subjects whose access tokens have expired by `now`.
    pub(crate) fn take_expired(&self, now: SystemTime) -> Vec<RemovedDoor<H>> {
        let is_expired = |_: &(Principal, ClientRights), door: &mut OpenDoor<H>| {
            !door.is_listed && door.until.is_some_and(|until| until <= now)
        };
        let mut open = self.open();
        let expired = open.extract_if(.., is_expired);
        expired.map(|((client, _), door)| (client, door.door)).collect()
    }

    /// Returns true while a door is looked up, made or removed.
    #[cfg(test)]
    pub(crate) fn is_locked(&self) -> bool {
        self.open.try_lock().is_err()
    }

    /// Calls `forget` unless a client has a door, with any rights. No door is made meanwhile, so that
    /// nothing is dropped of a client that has come back.
    pub(crate) fn unless_open(&self, client: &Principal, forget: impl FnOnce(&Principal)) {
        let open = self.open();
        if !open.keys().any(|(of, _)| of == client) {
            forget(client);
        }
    }
}

/// Returns the client of the door that is unused for longest, and for long enough that its sessions have ended.
fn unused<H>(
    open: &BTreeMap<(Principal, ClientRights), OpenDoor<H>>,
) -> Option<(Principal, ClientRights)> {
    let is_unused = |door: &OpenDoor<H>| {
        !door.is_listed && Arc::strong_count(&door.door) == 1 && door.used.elapsed() > UNUSED_TIME
    };
    let unused = open.iter().filter(|(_, door)| is_unused(door));
    unused.min_by_key(|(_, door)| door.used).map(|(client, _)| client.clone())
}
