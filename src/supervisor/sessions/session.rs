//! Sessions: each has a shell, and a `/workspace`, a mailbox and a slot that outlive the shell.
//!
//! *Invariant:* a cell of a session is offered to no other job, and a session belongs to one caller
//! (the front end ensures that, and no number is used twice).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::mailbox::Mailbox;
use super::shell::Shell;
use crate::cells::dying::TurnBudget;
use crate::cells::key::KeyId;
use cell::Shared;
use cell::slot::Slot;
use model::job::{Limits, SessionId};
use model::outcome::Ended;
use model::wire::CallId;

/// One session.
#[derive(Debug)]
pub(crate) struct Session {
    pub id: SessionId,
    pub slot: Slot,
    pub mailbox: Mailbox,
    /// Key of the shell's cells.
    pub shell_key: KeyId,
    /// Keys of one-shot cells with the session's workspace, by the key of boot that has their
    /// profile. They are made at first use.
    pub one_shot_keys: BTreeMap<KeyId, KeyId>,
    pub shell: Option<Shell>,
    /// When the session ends if it stays unused.
    until: Option<Instant>,
    /// True if it ends with its cell.
    pub leaving: bool,
}

/// Every session.
#[derive(Debug)]
pub(crate) struct SessionTable {
    sessions: BTreeMap<SessionId, Session>,
    /// Maximum number of sessions that are open at once.
    max_sessions: usize,
    /// Time that a session is kept after its last use.
    idle: Duration,
}

impl SessionTable {
    pub(crate) fn new(max_sessions: u16, idle: Duration) -> Self {
        Self { sessions: BTreeMap::new(), max_sessions: usize::from(max_sessions), idle }
    }

    /// Returns the numbers of all sessions, which may end while the caller visits them.
    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.sessions.keys().copied().collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.sessions.len()
    }

    /// Returns whether there is no room for one more.
    pub(crate) fn is_full(&self) -> bool {
        self.count() >= self.max_sessions
    }

    pub(crate) fn put(&mut self, session: Session) {
        let id = session.id;
        self.sessions.insert(id, session);
        self.used(id);
    }

    pub(crate) fn take(&mut self, id: SessionId) -> Option<Session> {
        self.sessions.remove(&id)
    }

    /// Records that a session is used: it is kept for as long again.
    pub(crate) fn used(&mut self, id: SessionId) {
        let until = Instant::now().checked_add(self.idle);
        if let Some(session) = self.get_mut(id) {
            session.until = until;
        }
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.sessions.get_mut(&id)
    }

    pub(crate) fn shell_mut(&mut self, id: SessionId) -> Option<&mut Shell> {
        self.get_mut(id)?.shell.as_mut()
    }

    /// Returns the session whose shell has this key.
    pub(crate) fn of_key(&self, key: KeyId) -> Option<&Session> {
        self.sessions.values().find(|session| session.shell_key == key)
    }

    /// Returns the session that a slot is kept for.
    pub(crate) fn of_slot(&self, slot: Slot) -> Option<&Session> {
        self.sessions.values().find(|session| session.slot == slot)
    }

    /// Iterates over the shells that run.
    pub(crate) fn shells(&self) -> impl Iterator<Item = &Shell> {
        self.sessions.values().filter_map(|session| session.shell.as_ref())
    }

    /// Iterates over the limits of the shells' cells.
    pub(crate) fn limits(&self) -> impl Iterator<Item = &Limits> {
        self.shells().map(|shell| &shell.life.limits)
    }

    /// Returns whether this call runs in the cell of a session's shell.
    pub(crate) fn runs(&self, call: CallId) -> bool {
        self.shells().any(|shell| shell.runs(call))
    }

    /// Returns the shell in whose cell this call runs.
    pub(crate) fn shell_of_call(&mut self, call: CallId) -> Option<&mut Shell> {
        self.sessions
            .values_mut()
            .find_map(|session| session.shell.as_mut().filter(|shell| shell.runs(call)))
    }

    /// Answers for shells that take their time to end.
    pub(crate) fn answer_dying(
        &mut self,
        shared: &Shared,
        now: Instant,
        budget: TurnBudget,
    ) -> Vec<(CallId, Box<Ended>)> {
        let mut answers = Vec::new();
        for Session { shell, mailbox, .. } in self.sessions.values_mut() {
            if let Some(shell) = shell {
                answers.extend(shell.answer_dying(mailbox, shared, now, budget));
            }
        }
        answers
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.sessions.values().filter_map(Session::deadline).min()
    }
}

impl Session {
    /// Makes a session without a shell; cells of the shell have `shell_key`.
    pub(crate) fn new(id: SessionId, slot: Slot, mailbox: Mailbox, shell_key: KeyId) -> Self {
        let shell = None;
        let until = None;
        let leaving = false;
        let one_shot_keys = BTreeMap::new();
        Self { id, slot, mailbox, shell_key, one_shot_keys, shell, until, leaving }
    }

    /// Returns the keys of all one-shot cells with the session's workspace.
    pub(crate) fn one_shot_keys(&self) -> Vec<KeyId> {
        self.one_shot_keys.values().copied().collect()
    }

    /// Returns the next deadline: the time limit of the call, or the end of an unused session.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.shell {
            Some(shell) if shell.is_used() => shell.deadline(),
            // An event reports what it waits for.
            None if self.leaving => None,
            Some(_) | None => self.until,
        }
    }
}
