//! Starting a command: from the client's request to a running command in its session.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep_until};

use super::command::{CommandInfo, Held};
use super::feed::FeedKind;
use super::jobs::END;
use super::room::{Opening, until_sent};
use super::seat::Seat;
use super::{
    Command, CommandState, DEFAULT, Finished, Named, Patience, Reply, Restart, Retention,
    SHOWN_CHARACTERS, SessionError, SessionRequest, ShellLoss, check_name,
};
use crate::workbench::{Observed, Workbench, heard};
use crate::{Caller, Refusal};
use audit::LoggedCall;
use capture::KEPT_BYTES;
use model::call::{Call, Stdin};
use model::job::{JobMode, SessionId, StartDirectory, Within, Workspace};
use model::outcome::{Failure, Outcome};
use model::profile::Profile;
use model::shells::ShellKind;
use policy::flags::Changes;
use policy::{Grant, JobContext};

/// Tools whose profile a session has: the first allowed one.
const OF_SESSIONS: [&str; 2] = ["bash", "bash_exec"];

/// Interval at which a waiting command checks: has the one before become a job?
const GLANCE: Duration = Duration::from_millis(100);

/// Decision about a command before it has its seat.
struct Decided {
    grant: Grant,
    entry: LoggedCall,
    directory: StartDirectory,
    kept: Retention,
    mode: JobMode,
    shell: Option<ShellKind>,
}

impl Workbench {
    /// Decides a command and runs it in its session. Dropping the future cancels it.
    ///
    /// # Errors
    /// A denial by policy, or a session that cannot take the command: nothing ran.
    pub(crate) async fn in_session(
        &self,
        request: SessionRequest,
        caller: &Caller,
    ) -> Result<Reply, Refusal> {
        check_name(&request.session)?;
        let SessionRequest { session, call, restart, patience, kept, mode, shell } = request;
        let directory =
            if call.cwd.is_some() { StartDirectory::Given } else { StartDirectory::Stay };
        let text = call.script.as_ref().map_or(String::new(), |script| {
            let text = String::from_utf8_lossy(script.as_bytes()).into_owned();
            text.chars().take(SHOWN_CHARACTERS).collect()
        });
        let surroundings =
            JobContext { changes: self.shared.changes, ..JobContext::from(self.shared.workspace) };
        let (grant, entry) = self.decide(caller.named(call), surroundings)?;
        // The session gives a command its turn; a place in the queue bounds the number that wait.
        let _waits = match self.shared.queue.place(&self.principal) {
            Ok(waits) => waits,
            Err(full) => {
                entry.refused(full.to_string());
                return Err(full);
            }
        };
        let decided = Decided { grant, entry, directory, kept, mode, shell };
        let decided = self.with_variables(&session, decided)?;
        self.seated(session, text, restart, patience, decided, caller).await
    }

    /// Returns the surroundings of a call on the workspace of the default session, if it may use
    /// that.
    pub(crate) fn beside_the_default(&self, call: &Call) -> JobContext {
        let own = self.surroundings(&call.tool);
        match (self.session_profile(), self.profile_of(call)) {
            (Some(owner), Some(profile)) if owner.name == profile.name => {
                self.beside_default(own, owner)
            }
            (_, _) => own,
        }
    }

    /// Returns the surroundings of a declared command on the workspace of the default session,
    /// whatever the command's profile is. One that only reads begins no session: its workspace would
    /// be empty.
    pub(crate) fn command_beside_the_default(&self, call: &Call, changes: Changes) -> JobContext {
        let own = self.surroundings(&call.tool);
        let profile = self.profile_of(call);
        let owner = self.session_profile().filter(|_| profile.is_some_and(|one| one.workspace));
        let Some(owner) = owner.filter(|_| own.workspace == Workspace::Fresh) else {
            return own;
        };
        self.shared.clients.forget(&self.shared.link.forgotten());
        if changes == Changes::Nothing && self.sessions.find(DEFAULT).is_none() {
            return own;
        }
        self.beside_default(own, owner)
    }

    /// Returns the profile that a call would get; `None` if it is not allowed.
    fn profile_of(&self, call: &Call) -> Option<&Profile> {
        let terms = self.shared.loaded.policy.terms_under(
            &call.tool,
            call.profile.as_ref(),
            &self.shared.loaded.profiles,
        );
        terms.ok().map(|terms| terms.profile)
    }

    /// Returns the profile of sessions: that of the shell, or without a shell that of one-shot calls.
    fn session_profile(&self) -> Option<&Profile> {
        let terms = OF_SESSIONS.iter().find_map(|tool| {
            self.shared.loaded.policy.terms(tool, &self.shared.loaded.profiles).ok()
        });
        terms.map(|terms| terms.profile).filter(|profile| profile.can_hold_a_shell())
    }

    fn beside_default(&self, own: JobContext, owner: &Profile) -> JobContext {
        if own.workspace != Workspace::Fresh {
            return own;
        }
        self.shared.clients.forget(&self.shared.link.forgotten());
        let id = self.sessions.named(DEFAULT).id;
        self.sessions.is_used_beside(DEFAULT);
        let workspace = Workspace::Session(id);
        let owner = Some(owner.name.clone());
        JobContext { workspace, owner, ..own }
    }

    /// Ends the shell of a session, with everything that runs in it, and waits for the end of its
    /// command; the next command gets a new shell.
    ///
    /// # Errors
    /// A name that no session can have.
    pub(crate) async fn restart(&self, session: &str, caller: &Caller) -> Result<(), Refusal> {
        check_name(session)?;
        self.shared.clients.forget(&self.shared.link.forgotten());
        if let Some(named) = self.sessions.find(session) {
            named.restarted.store(true, Ordering::Release);
            self.shared.link.restart(named.id);
            // A job that still has the shell would have the next command refused.
            let jobs = named.running();
            let ended = async {
                for job in &jobs {
                    job.end().await;
                }
            };
            tokio::select! {
                biased;
                () = caller.cancel.cancelled() => {}
                () = ended => {}
                () = tokio::time::sleep(END) => {}
            }
        }
        Ok(())
    }

    async fn seated(
        &self,
        session: String,
        text: String,
        restart: Restart,
        patience: Patience,
        decided: Decided,
        caller: &Caller,
    ) -> Result<Reply, Refusal> {
        let limits = decided.grant.job().limits;
        let clamped = decided.grant.clamped();
        self.shared.clients.forget(&self.shared.link.forgotten());
        let (named, made_room, mut opening) = self.open(&session, &decided.grant, caller).await;
        if restart == Restart::Yes {
            named.restarted.store(true, Ordering::Release);
            self.shared.link.restart(named.id);
        }
        let seat = self.seat(&session, &named, restart, &mut opening, caller).await;
        let fits = |seat| self.with_shell(&session, &named, seat, decided.shell);
        let seat = match seat.and_then(fits) {
            Ok(seat) => seat,
            Err(unseated) => {
                decided.entry.refused(unseated.to_string());
                return Err(unseated.into());
            }
        };
        let keep = match decided.kept {
            Retention::Spooled => KEPT_BYTES,
            Retention::Apart { bytes } => bytes,
        };
        // In a shell that has run something, [`Workbench::start`] knows better.
        let began = decided.grant.job().cwd.as_str().to_owned();
        let id = self.sessions.spool.name();
        let mode = decided.mode;
        let about = CommandInfo { id, session, text, began, limits, clamped, mode, keep };
        let session = about.session.clone();
        let given = about.began.clone();
        let reply = |state, began, finished, lost| Reply {
            state,
            finished,
            session,
            began,
            lost,
            made_room,
            limits,
            clamped,
        };
        let is_new = !seat.started;
        match self.start(&named, seat, about, decided, opening, caller).await {
            Ok((command, lost)) => {
                let finished = wait(&command, patience, caller).await;
                let began = command.began.clone();
                Ok(reply(CommandState::Started(command), began, finished, lost))
            }
            Err(Outcome::Failed(Failure::Busy { what })) if is_new => {
                let others = self.sessions.described();
                Err(SessionError::Full { what, others }.into())
            }
            Err(outcome) => Ok(reply(CommandState::Never(outcome), given, None, None)),
        }
    }

    /// Refuses a command with variables that its shell would not take.
    fn with_variables(&self, session: &str, decided: Decided) -> Result<Decided, SessionError> {
        let shell = decided.shell.unwrap_or_else(|| self.sessions.shell_of(session));
        let mut names = decided.grant.job().env.iter().map(|(name, _)| name);
        let found = names.find(|name| shell.keeps(name)).map(str::to_owned);
        drop(names);
        let Some(name) = found else { return Ok(decided) };
        let kept = SessionError::KeptVariable { name, shell: shell.name() };
        decided.entry.refused(kept.to_string());
        Err(kept)
    }

    /// Gives a session the shell that a command asks for; one that is kept must be that.
    fn with_shell(
        &self,
        session: &str,
        named: &Named,
        seat: OwnedMutexGuard<Seat>,
        asked: Option<ShellKind>,
    ) -> Result<OwnedMutexGuard<Seat>, SessionError> {
        let has = self.sessions.shell_of(session);
        let Some(asked) = asked.filter(|asked| *asked != has) else { return Ok(seat) };
        if seat.started && !named.restarted.load(Ordering::Acquire) {
            let has = has.name();
            let asked = asked.name();
            return Err(SessionError::OtherShell { session: session.to_owned(), has, asked });
        }
        self.sessions.has_shell(session, asked);
        Ok(seat)
    }

    /// Waits for the one place in the shell, unless a job has it, which may take long.
    async fn seat(
        &self,
        session: &str,
        named: &Named,
        restart: Restart,
        opening: &mut Option<Opening>,
        caller: &Caller,
    ) -> Result<OwnedMutexGuard<Seat>, SessionError> {
        if let Ok(seat) = Arc::clone(&named.seat).try_lock_owned() {
            return Ok(seat);
        }
        // Another call has begun the session; no other session waits for its end.
        *opening = None;
        let mut seat = Box::pin(Arc::clone(&named.seat).lock_owned());
        loop {
            let holder = self.sessions.find(session).and_then(|named| named.runs);
            let job = holder.filter(|command| command.is_job() && command.finished().is_none());
            if let Some(job) = job.filter(|_| restart == Restart::No) {
                let session = session.to_owned();
                let job = job.id.clone();
                return Err(SessionError::Runs { session, job });
            }
            tokio::select! {
                biased;
                () = caller.cancel.cancelled() => return Err(SessionError::Cancelled),
                seat = &mut seat => return Ok(seat),
                () = tokio::time::sleep(GLANCE) => {}
            }
        }
    }

    /// Takes note of a session in which a command has begun.
    fn began(&self, id: SessionId, seat: &mut Seat) {
        self.sessions.set_open(id, true);
        let mut ended = self.shared.link.forgotten();
        if ended.contains(&id) {
            // The session had ended while this start was on its way, and began again with it.
            ended.retain(|one| *one != id);
            seat.end(ShellLoss::Idle);
        }
        self.shared.clients.forget(&ended);
    }

    async fn start(
        &self,
        named: &Named,
        mut seat: OwnedMutexGuard<Seat>,
        mut about: CommandInfo,
        decided: Decided,
        opening: Option<Opening>,
        caller: &Caller,
    ) -> Result<(Arc<Command>, Option<ShellLoss>), Outcome> {
        let asked = named.restarted.swap(false, Ordering::AcqRel);
        if asked && (seat.started || seat.lost.is_some()) {
            seat.end(ShellLoss::Restart);
        }
        let Decided { grant, entry, directory, kept, mode, .. } = decided;
        let (kind, first) = input(&grant.job().stdin);
        let id = named.id;
        let shell = self.sessions.shell_of(&about.session);
        let within = Within { session: id, directory, mode, shell };
        // Cancelling does not stop this step: a command that is being handed over must be ended by
        // its control, and the supervisor bounds the time of a start.
        let starting = self.shared.link.start_heard(grant, Some(within), heard(&entry));
        match until_sent(opening, starting).await {
            Ok(running) => {
                self.began(id, &mut seat);
                let lost = seat.takes(running.turn);
                if let (StartDirectory::Stay, Some(cwd)) = (directory, &seat.cwd) {
                    about.began.clone_from(cwd);
                }
                let produced = caller.produced.clone();
                let tap = caller.tap.clone();
                let late = seat.late();
                let seat = match mode {
                    JobMode::Foreground => Some(seat),
                    // The shell is free: it has no part in the end of this command.
                    JobMode::Background => None,
                };
                let behind = Held { seat, late, entry, first, kind, produced, tap };
                let session = about.session.clone();
                let command = Command::follow(about, running, behind);
                self.sessions.runs(&session, &command, mode);
                if kept == Retention::Spooled {
                    self.sessions.spool.keep(Arc::clone(&command));
                }
                Ok((command, lost))
            }
            Err(failure) => {
                let outcome = Outcome::Failed(failure);
                entry.ended(&Observed::nothing(outcome.clone()).story());
                if !seat.started && seat.lost.is_none() {
                    self.sessions.never_was(&about.session);
                }
                Err(outcome)
            }
        }
    }
}

/// Returns the kind of an input, and the bytes that are written to it first.
fn input(stdin: &Stdin) -> (FeedKind, Vec<u8>) {
    match stdin {
        Stdin::Terminal(first) => (FeedKind::Terminal, first.clone()),
        Stdin::Pipe(first) => (FeedKind::Pipe, first.clone()),
        Stdin::Empty | Stdin::Bytes(_) => (FeedKind::Pipe, Vec::new()),
    }
}

/// Waits for the end of a command: for the caller's patience, or until the call is cancelled.
async fn wait(command: &Arc<Command>, patience: Patience, caller: &Caller) -> Option<Finished> {
    let mut guard = CancelOnDrop(Some(Arc::clone(command)));
    let mut cancelled = false;
    let mut yields_at = match patience {
        Patience::ToTheEnd => None,
        Patience::Until(time) | Patience::Beyond(time) => Some(Instant::now() + time),
    };
    // A command that waits for input may do so for ever: it is reported at once.
    loop {
        let yields = async {
            match yields_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            finished = command.end() => {
                guard.0 = None;
                return Some(finished);
            }
            () = caller.cancel.cancelled(), if !cancelled => {
                cancelled = true;
                command.control.cancel();
            }
            () = command.waits(), if !cancelled => break,
            () = yields, if !cancelled => match patience {
                Patience::Beyond(_) => {
                    command.becomes_job();
                    yields_at = None;
                }
                Patience::ToTheEnd | Patience::Until(_) => break,
            }
        }
    }
    guard.0 = None;
    command.becomes_job();
    None
}

/// Cancels a command that has no waiting call and has not become a job.
struct CancelOnDrop(Option<Arc<Command>>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(command) = &self.0 {
            command.control.cancel();
        }
    }
}
