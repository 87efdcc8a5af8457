//! Cells beside a session's shell: each for one call, with the session's private `/workspace`.
//!
//! They have the host id of the session's slot, as its shell has, for the files are that id's. Their
//! processes, network and all else are their own. *Invariant:* the slot is given back when none of
//! them is left, so that no other cell ever has an id that still runs something else.

use std::time::Instant;

use super::supervisor::Supervisor;
use model::job::{SessionId, Workspace};
use model::outcome::{Ended, Failure, Outcome};
use model::wire::Start;

impl Supervisor {
    /// The key of a job beside a session's shell; a new session, without a shell yet, where there is
    /// none of that number.
    pub(super) fn beside_key(&mut self, start: &Start, id: SessionId) -> Result<usize, Failure> {
        let refused = |why: &str| Err(Failure::Refused { why: why.to_owned() });
        if start.session.is_some() {
            return refused("a job is in a session or beside it");
        }
        let place = match self.sessions.place_of(id) {
            Some(place) => place,
            None => {
                let fresh = Start { workspace: Workspace::Fresh, ..start.clone() };
                let base = self.key(&fresh)?;
                self.open_session(base, id)?;
                self.sessions.place_of(id).ok_or(Failure::Lost)?
            }
        };
        if self.sessions.get(place).is_none_or(|session| session.leaving) {
            return refused("the session has ended");
        }
        let key = self.sessions.key_beside(place);
        let same = self.keys.get(key).is_some_and(|key| {
            key.design.is_ok() && key.profile == start.profile && key.workspace == start.workspace
        });
        if !same {
            return refused("the session has another profile, or no workspace of its own");
        }
        self.sessions.used(place);
        Ok(key)
    }

    /// Returns whether a call runs beside the shell of the session in `place`.
    pub(super) fn is_used_beside(&self, place: usize) -> bool {
        let Some(session) = self.sessions.get(place) else { return false };
        let workspace = Workspace::OfSession(session.id);
        let key = self.sessions.key_beside(place);
        self.calls.values().any(|running| running.workspace() == workspace)
            || self.queue.iter().any(|ready| ready.key == key)
    }

    /// Stops all one-shot cells of a closing session. Returns true once none remain.
    pub(super) fn clear_beside(&mut self, place: usize) -> bool {
        let key = self.sessions.key_beside(place);
        let Some(session) = self.sessions.get_mut(place) else { return true };
        session.leaving = true;
        let workspace = Workspace::OfSession(session.id);
        while let Some(waiting) = self.queue.iter().position(|ready| ready.key == key) {
            if let Some(ready) = self.queue.remove(waiting) {
                let why = "the session has ended".to_owned();
                self.end(ready.start.call, Ended::failed(Failure::Refused { why }));
            }
        }
        self.pool.give_up(key);
        for pooled in self.pool.of_key(key) {
            pooled.end();
        }
        let mut left = self.pool.of_key(key).next().is_some();
        let beside = self.calls.values_mut().filter(|running| running.workspace() == workspace);
        for running in beside {
            running.stop(Outcome::Cancelled, Instant::now());
            left = true;
        }
        !left
    }

    /// A cell is collected: sessions that waited for the last one beside them go.
    pub(super) fn close_left(&mut self) {
        for place in 0..self.sessions.count() {
            let leaving = self.sessions.get(place).is_some_and(|session| {
                session.leaving && session.shell.is_none() && !self.pool.has(session.slot)
            });
            if leaving {
                self.close(place);
            }
        }
    }
}
