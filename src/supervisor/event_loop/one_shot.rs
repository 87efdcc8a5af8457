//! Cells next to a session's shell: each runs one call, with the session's private `/workspace`.
//!
//! A cell may have another profile than the shell, as those of declared commands do: its root, its limits and its rules
//! are that profile's, and the workspace is all that it has of the session.
//!
//! They have the host id of the session's slot, as its shell has, for the files are that id's. Their
//! processes, network and everything else are separate. *Invariant:* the slot is freed when the last of
//! them is gone, so that no other cell ever has an id under which something else still runs.

use std::time::Instant;

use super::session_calls::design_in;
use super::supervisor::Supervisor;
use crate::cells::key::KeyId;
use crate::sessions::mailbox;
use crate::sessions::session::Session;
use cell::Design;
use cell::report::raw;
use model::job::{SessionId, Workspace};
use model::outcome::{Ended, Failure, Outcome};
use model::wire::Start;

impl Supervisor {
    /// Returns the key of a job next to a session's shell; makes the session, still without a shell, if it does
    /// not exist. The job may have another profile than the session: then only `/workspace` is the session's. If
    /// the two need different host ids, the job has an empty one, which is noted in `start`.
    pub(super) fn beside_key(
        &mut self,
        start: &mut Start,
        id: SessionId,
    ) -> Result<KeyId, Failure> {
        let refused = |why: &str| Err(Failure::Refused { why: why.to_owned() });
        if start.session.is_some() {
            return refused("a job is in a session or beside it");
        }
        let owner = start.session_profile.as_ref().unwrap_or(&start.profile);
        if self.sessions.get(id).is_none() {
            let base = self.key(owner, Workspace::Fresh)?;
            self.open_session(base, id)?;
        }
        let session = self.sessions.get(id).ok_or(Failure::Lost)?;
        if session.leaving {
            return refused("the session has ended");
        }
        let own = self.keys.get(session.shell_key);
        if !own.is_some_and(|key| key.profile == *owner && key.workspace == Workspace::Fresh) {
            return refused("the session has another profile, or no workspace of its own");
        }
        let base = self.key(&start.profile, Workspace::Fresh)?;
        let key = match session.one_shot_keys.get(&base) {
            Some(key) => *key,
            None => match self.design_beside(session, base)? {
                Some(design) => self.add_beside(id, base, design),
                None => {
                    start.workspace = Workspace::Fresh;
                    return Ok(base);
                }
            },
        };
        self.sessions.used(id);
        Ok(key)
    }

    /// Adds the key of cells as those of `base` with the workspace of a session.
    fn add_beside(&mut self, id: SessionId, base: KeyId, design: Design) -> KeyId {
        let key = self.keys.add(design.into());
        if let Some(session) = self.sessions.get_mut(id) {
            session.one_shot_keys.insert(base, key);
        }
        key
    }

    /// Returns the design of `base` with the workspace of a session; `None` if the host ids of the two differ.
    fn design_beside(&self, session: &Session, base: KeyId) -> Result<Option<Design>, Failure> {
        let shell = self.keys.design(session.shell_key).ok_or(Failure::Lost)?;
        let design = self.keys.design(base).ok_or(Failure::Lost)?;
        if !design.profile.workspace {
            let why = format!("profile `{}` has no workspace", design.profile.name);
            return Err(Failure::Refused { why });
        }
        if design.ids != shell.ids {
            return Ok(None);
        }
        let made = (|| {
            let template = &design.root()?.template;
            let own = &shell.root()?.template;
            let namespace = mailbox::with_workspace(template, own, &self.shared.proc)?;
            design_in(design, namespace, Some(session.slot))
        })();
        let made = made.map_err(|errno| Failure::Setup {
            step: "showing a session's workspace".to_owned(),
            errno: raw(errno),
        })?;
        Ok(Some(Design { workspace: Workspace::Session(session.id), ..made }))
    }

    /// Returns whether a call runs next to the shell of a session.
    pub(super) fn is_used_beside(&self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(id) else { return false };
        let workspace = Workspace::Session(id);
        let keys = session.keys_beside();
        self.calls.values().any(|running| running.workspace() == workspace)
            || self.queue.iter().any(|ready| keys.contains(&ready.key))
    }

    /// Stops all one-shot cells of a closing session. Returns true once all have ended.
    pub(super) fn clear_beside(&mut self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get_mut(id) else { return true };
        session.leaving = true;
        let workspace = Workspace::Session(id);
        let keys = session.keys_beside();
        while let Some(waiting) = self.queue.iter().position(|ready| keys.contains(&ready.key)) {
            if let Some(ready) = self.queue.remove(waiting) {
                let why = "the session has ended".to_owned();
                self.end(ready.start.call, Ended::failed(Failure::Refused { why }));
            }
        }
        keys.iter().for_each(|key| self.pool.give_up(*key));
        let mut left = false;
        for pooled in self.pool.of_keys(&keys) {
            pooled.end();
            left = true;
        }
        let beside = self.calls.values_mut().filter(|running| running.workspace() == workspace);
        for running in beside {
            running.stop(Outcome::Cancelled, Instant::now());
            left = true;
        }
        !left
    }

    /// Closes sessions that waited for their last cell, after a cell was reaped.
    pub(super) fn close_left(&mut self) {
        for id in self.sessions.ids() {
            let leaving = self.sessions.get(id).is_some_and(|session| {
                session.leaving && session.shell.is_none() && !self.pool.has(session.slot)
            });
            if leaving {
                self.close(id);
            }
        }
    }
}
