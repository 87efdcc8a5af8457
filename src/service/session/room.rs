//! Room for sessions: ending one on request, or one that nobody uses for another.

use std::time::Duration;

use super::jobs::END;
use super::{Named, SessionError, ShellLoss, UnusedSession, check_name};
use crate::workbench::Workbench;
use crate::{Caller, Refusal};
use model::job::SessionId;
use policy::Grant;

/// Unused sessions that the supervisor is asked about at once.
const MOST_ASKED: usize = 64;

impl Workbench {
    /// Returns the session of this name; one that is new gets room, and the sessions are returned that ended
    /// for it.
    pub(super) async fn open(
        &self,
        session: &str,
        grant: &Grant,
        caller: &Caller,
    ) -> (Named, Vec<UnusedSession>) {
        let made_room = match self.sessions.find(session) {
            Some(_) => Vec::new(),
            None => self.make_room(grant, caller).await,
        };
        (self.sessions.named(session), made_room)
    }

    /// Ends a session with all that runs in it, its workspace included where that is the session's own.
    ///
    /// # Errors
    /// A name that no session can have, or that none has.
    pub(crate) async fn end_session(&self, session: &str, caller: &Caller) -> Result<(), Refusal> {
        check_name(session)?;
        self.shared.clients.forget(&self.shared.link.forgotten());
        let Some(Named { id, .. }) = self.sessions.find(session) else {
            let (name, others) = (session.to_owned(), self.sessions.described());
            return Err(SessionError::Unknown(name, others).into());
        };
        let ending = UnusedSession { name: session.to_owned(), id, unused: Duration::ZERO };
        self.sessions.ends(&[ending], None);
        self.shared.link.forget(id);
        self.has_ended(id, caller).await;
        Ok(())
    }

    /// Ends sessions of this client in which nothing runs, until there is room for one more, beginning with
    /// the one that has been unused for longest.
    async fn make_room(&self, grant: &Grant, caller: &Caller) -> Vec<UnusedSession> {
        let mut ended = Vec::new();
        let (profile, workspace) = (grant.job().profile.clone(), grant.job().workspace);
        loop {
            let mut unused = self.sessions.unused();
            unused.truncate(MOST_ASKED);
            if unused.is_empty() {
                return ended;
            }
            let ids = unused.iter().map(|session| session.id).collect();
            self.sessions.ends(&unused, Some(&ShellLoss::Room));
            let ends = self.shared.link.make_room(profile.clone(), workspace, ids).await;
            let of_it = |session: &UnusedSession| Some(session.id) == ends;
            let one = unused.iter().position(of_it).map(|place| unused.swap_remove(place));
            self.sessions.stay(&unused);
            let Some(one) = one else { return ended };
            self.has_ended(one.id, caller).await;
            ended.push(one);
        }
    }

    /// Waits until a session has ended, for [`END`] at most.
    async fn has_ended(&self, id: SessionId, caller: &Caller) {
        let mut ends = self.shared.link.ends();
        let ended = async {
            loop {
                self.shared.clients.forget(&self.shared.link.forgotten());
                if !self.sessions.numbers().contains(&id) || ends.changed().await.is_err() {
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
