//! Makes room for sessions: ends one on request, or an unused one for a new one.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use super::jobs::END;
use super::{NamedSession, SessionError, Sessions, ShellLoss, UnusedSession, check_name};
use crate::workbench::Workbench;
use crate::{Caller, Refusal};
use config::policy::Grant;
use model::job::{ProfileName, SessionId, Workspace};

/// A session that is being opened. While it exists, no other new session is given room.
#[derive(Debug)]
pub(crate) struct Opening {
    _in_scope: OwnedMutexGuard<()>,
    _in_server: OwnedMutexGuard<()>,
}

/// Waits for `start`, and drops `opening` once its frame is sent: the supervisor handles frames in order.
pub(crate) async fn until_sent<S: Future>(opening: Option<Opening>, start: S) -> S::Output {
    let mut start = pin!(start);
    // A frame is sent when the start is polled for the first time.
    let at_once = tokio::select! {
        biased;
        output = &mut start => Some(output),
        () = std::future::ready(()) => None,
    };
    drop(opening);
    match at_once {
        Some(output) => output,
        None => start.await,
    }
}

/// Unused sessions that the supervisor is asked about at once.
const MAX_ASKED: usize = 64;

impl Workbench {
    /// Returns the session of this name; one that is new gets room, and the sessions are returned that ended
    /// for it. The room is its own as long as its [`Opening`] is kept.
    pub(super) async fn open(
        &self,
        session: &str,
        grant: &Grant,
        caller: &Caller,
    ) -> (NamedSession, Vec<UnusedSession>, Option<Opening>) {
        let (made_room, opening) = match self.sessions.find(session) {
            Some(_) => (Vec::new(), None),
            None => {
                let job = grant.job();
                let is_new = || self.sessions.find(session).is_none();
                self.make_room(&job.profile, job.workspace, is_new, caller).await
            }
        };
        (self.sessions.named(session), made_room, opening)
    }

    /// Makes room for the session whose workspace a one-shot call uses, if the supervisor has no such session
    /// yet.
    pub(crate) async fn room_for_workspace(
        &self,
        grant: &Grant,
        caller: &Caller,
    ) -> Option<Opening> {
        let job = grant.job();
        let Workspace::Session(id) = job.workspace else { return None };
        if !self.sessions.is_new(id) {
            return None;
        }
        let owner = job.session_profile.as_ref().unwrap_or(&job.profile);
        let is_new = || self.sessions.is_new(id);
        self.make_room(owner, Workspace::Fresh, is_new, caller).await.1
    }

    /// Ends a session with all that runs in it, its workspace included where that is the session's own.
    ///
    /// # Errors
    /// A name that no session has or can have.
    pub(crate) async fn end_session(&self, session: &str, caller: &Caller) -> Result<(), Refusal> {
        check_name(session)?;
        self.shared.clients.forget(&self.shared.link.forgotten());
        let Some(NamedSession { id, .. }) = self.sessions.find(session) else {
            let name = session.to_owned();
            let others = self.sessions.described();
            return Err(SessionError::Unknown(name, others).into());
        };
        let ending = UnusedSession { name: session.to_owned(), id, unused: Duration::ZERO };
        self.sessions.mark_ending(&[ending], None);
        self.shared.link.forget(id);
        self.has_ended(&self.sessions, id, caller).await;
        Ok(())
    }

    /// Ends sessions in which nothing runs until there is room for one more, as long as that `is_new`: this scope's first, then other ones of
    /// its client, then those of clients that have more. Of each, the one unused for longest is first. Returns those
    /// of this scope.
    async fn make_room(
        &self,
        profile: &ProfileName,
        workspace: Workspace,
        is_new: impl Fn() -> bool,
        caller: &Caller,
    ) -> (Vec<UnusedSession>, Option<Opening>) {
        let mut ended = Vec::new();
        let in_scope = Arc::clone(&self.sessions.opening).lock_owned().await;
        // Another call may have opened it meanwhile.
        if !is_new() {
            return (ended, None);
        }
        loop {
            let in_server = Arc::clone(&self.shared.clients.opening).lock_owned().await;
            let mut spare = self.shared.clients.spare(&self.sessions);
            spare.truncate(MAX_ASKED);
            if spare.is_empty() {
                let opening = Opening { _in_scope: in_scope, _in_server: in_server };
                return (ended, Some(opening));
            }
            let ids = spare.iter().map(|(_, session)| session.id).collect();
            for (owner, session) in &spare {
                owner.mark_ending(std::slice::from_ref(session), Some(&ShellLoss::Room));
            }
            let ends = self.shared.link.make_room(profile.clone(), workspace, ids).await;
            let place = spare.iter().position(|(_, session)| Some(session.id) == ends);
            let one = place.map(|place| spare.swap_remove(place));
            for (owner, session) in &spare {
                owner.unmark_ending(std::slice::from_ref(session));
            }
            let Some((owner, one)) = one else {
                let opening = Opening { _in_scope: in_scope, _in_server: in_server };
                return (ended, Some(opening));
            };
            // It may take seconds, for which other clients need not wait.
            drop(in_server);
            self.has_ended(&owner, one.id, caller).await;
            if Arc::ptr_eq(&owner, &self.sessions) {
                ended.push(one);
            }
        }
    }

    /// Waits until a session has ended, for [`END`] at most.
    async fn has_ended(&self, owner: &Sessions, id: SessionId, caller: &Caller) {
        let mut ends = self.shared.link.ends();
        let ended = async {
            loop {
                self.shared.clients.forget(&self.shared.link.forgotten());
                if !owner.numbers().contains(&id) || ends.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = caller.cancel.cancelled() => {}
            () = ended => {}
            () = tokio::time::sleep(END) => {}
        }
    }
}
