//! Sessions: each a shell, and what of it outlives the shell: its `/workspace`, its mailbox, its slot.
//!
//! *Invariant:* a cell of a session is offered to no other job, and a session's number is of one
//! caller (the front end sees to it, and no number is used twice).

use std::ops::Range;
use std::time::{Duration, Instant};

use super::mailbox::Mailbox;
use super::shell::Shell;
use crate::cells::key::{Key, Unusable};
use cell::Shared;
use cell::mounts::Slot;
use model::job::{Limits, ProfileName, SessionId, Workspace};
use model::outcome::Ended;
use model::wire::CallId;

/// One session.
#[derive(Debug)]
pub struct Session {
    pub id: SessionId,
    pub slot: Slot,
    pub mailbox: Mailbox,
    pub shell: Option<Shell>,
    /// When it ends, if nobody uses it until then.
    until: Option<Instant>,
    /// True if it ends with its cell.
    pub leaving: bool,
}

/// Every session, in a place each: the place's key follows those that were there at boot.
#[derive(Debug)]
pub struct Sessions {
    places: Vec<Option<Session>>,
    first_key: usize,
    idle: Duration,
}

impl Sessions {
    pub fn new(first_key: usize, count: u16, idle: Duration) -> Self {
        let places = std::iter::repeat_with(|| None).take(usize::from(count)).collect();
        Self { places, first_key, idle }
    }

    /// Keys for sessions that may come, each with one of its shell's cells and, for each of the `first_key` keys that
    /// were there at boot, one of cells beside the shell.
    pub fn keys(first_key: usize, count: u16) -> impl Iterator<Item = Key> {
        std::iter::repeat_with(nobody).take(usize::from(count) * (1 + first_key))
    }

    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// How many there are.
    pub fn open(&self) -> usize {
        self.places.iter().flatten().count()
    }

    /// A place for one more.
    pub fn free(&self) -> Option<usize> {
        self.places.iter().position(Option::is_none)
    }

    pub fn put(&mut self, place: usize, session: Session) {
        if let Some(free) = self.places.get_mut(place) {
            *free = Some(session);
        }
        self.used(place);
    }

    pub fn take(&mut self, place: usize) -> Option<Session> {
        self.places.get_mut(place)?.take()
    }

    /// Somebody uses it: it is kept for as long again.
    pub fn used(&mut self, place: usize) {
        let until = Instant::now().checked_add(self.idle);
        if let Some(session) = self.get_mut(place) {
            session.until = until;
        }
    }

    pub fn get(&self, place: usize) -> Option<&Session> {
        self.places.get(place)?.as_ref()
    }

    pub fn get_mut(&mut self, place: usize) -> Option<&mut Session> {
        self.places.get_mut(place)?.as_mut()
    }

    pub fn shell_mut(&mut self, place: usize) -> Option<&mut Shell> {
        self.get_mut(place)?.shell.as_mut()
    }

    pub fn place_of(&self, id: SessionId) -> Option<usize> {
        let is = |session: &Option<Session>| session.as_ref().is_some_and(|one| one.id == id);
        self.places.iter().position(is)
    }

    pub fn key(&self, place: usize) -> usize {
        self.first_key + place
    }

    /// The key of cells beside the shell that have the profile of the key `base`: each for one call, with the
    /// session's workspace.
    pub fn key_beside(&self, place: usize, base: usize) -> usize {
        self.keys_beside(place).start + base
    }

    /// The keys of all cells beside the shell.
    pub fn keys_beside(&self, place: usize) -> Range<usize> {
        let start = self.first_key + self.places.len() + place * self.first_key;
        start..start + self.first_key
    }

    /// The place of a key that is a session's.
    pub fn place(&self, key: usize) -> Option<usize> {
        key.checked_sub(self.first_key).filter(|place| *place < self.places.len())
    }

    /// The session that a slot is kept for.
    pub fn of_slot(&self, slot: Slot) -> Option<usize> {
        let has = |session: &Option<Session>| session.as_ref().is_some_and(|s| s.slot == slot);
        self.places.iter().position(has)
    }

    /// Every shell that runs.
    pub fn shells(&self) -> impl Iterator<Item = &Shell> {
        self.places.iter().flatten().filter_map(|session| session.shell.as_ref())
    }

    /// The limits of every shell's cell.
    pub fn limits(&self) -> impl Iterator<Item = &Limits> {
        self.places.iter().flatten().filter_map(|session| Some(&session.shell.as_ref()?.limits))
    }

    pub fn runs(&self, call: CallId) -> Option<usize> {
        let runs = |session: &Option<Session>| {
            let shell = session.as_ref().and_then(|session| session.shell.as_ref());
            shell.is_some_and(|shell| shell.call() == Some(call))
        };
        self.places.iter().position(runs)
    }

    /// Answers for shells that take their time to end.
    pub fn answer_dying(&mut self, shared: &Shared, now: Instant) -> Vec<(CallId, Box<Ended>)> {
        let sessions = self.places.iter_mut().flatten();
        let answers = sessions.filter_map(|Session { shell, mailbox, .. }| {
            shell.as_mut()?.answer_dying(mailbox, shared, now)
        });
        answers.collect()
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.places.iter().flatten().filter_map(Session::deadline).min()
    }
}

impl Session {
    pub fn new(id: SessionId, slot: Slot, mailbox: Mailbox) -> Self {
        Self { id, slot, mailbox, shell: None, until: None, leaving: false }
    }

    /// When something is due: the call's time, or the end of what nobody uses.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.shell {
            Some(shell) if !shell.is_idle() => shell.deadline(),
            // An event reports what it waits for.
            None if self.leaving => None,
            Some(_) | None => self.until,
        }
    }
}

/// A place's key while there is no session.
pub fn nobody() -> Key {
    let why = "no session".to_owned();
    Key {
        profile: ProfileName::none(),
        workspace: Workspace::Fresh,
        design: Err(Unusable { why, missing_program: None }),
    }
}
