//! Starting a command: from the client's request to a running command in its session.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep_until};

use super::command::NewCommand;
use super::feed::FeedKind;
use super::jobs::END;
use super::room::{Opening, until_sent};
use super::state::SessionState;
use super::{
    Command, DEFAULT, NamedSession, Restart, Retention, SHOWN_CHARACTERS, SessionError, ShellLoss,
    UnusedSession, check_name,
};
use crate::capture::KEPT_BYTES;
use crate::report::Renewed;
use crate::request::{SessionCommand, Wait};
use crate::workbench::{Workbench, connection_listener};
use crate::{Caller, Refusal, Report};
use config::policy::flags::Changes;
use config::policy::{Grant, JobContext};
use model::call::{Call, Stdin};
use model::job::{JobMode, SessionId, StartDirectory, Within, Workspace};
use model::outcome::{Ended, Failure};
use model::profile::Profile;
use model::shells::ShellKind;

/// Tools whose profile a session has: the first allowed one.
const OF_SESSIONS: [&str; 2] = ["bash", "bash_exec"];

/// Interval at which a waiting command checks: has the one before become a job?
const GLANCE: Duration = Duration::from_millis(100);

/// Time that a call waits for a command that is to run in the background anyway: long enough to
/// report one that fails at once.
const BACKGROUND: Duration = Duration::from_millis(200);

/// Time after which a command without an open input is looked at: does it wait for a terminal?
const FIRST_LOOK: Duration = Duration::from_millis(400);

/// A session that is locked for a command.
struct Admitted {
    named: NamedSession,
    state: OwnedMutexGuard<SessionState>,
    opening: Option<Opening>,
    made_room: Vec<UnusedSession>,
}

impl Workbench {
    /// Decides a command and runs it in its session: until it has ended, or is a job. Dropping the future cancels it.
    ///
    /// # Errors
    /// A denial by policy, or a session that cannot take the command: nothing ran.
    pub(crate) async fn in_session(
        &self,
        command: SessionCommand,
        caller: &Caller,
    ) -> Result<(Arc<Command>, Renewed), Refusal> {
        check_name(&command.session)?;
        let SessionCommand { session, call, restart, wait: patience, kept, shell } = command;
        let directory =
            if call.cwd.is_some() { StartDirectory::Given } else { StartDirectory::Stay };
        let text = call.script.as_ref().map_or(String::new(), |script| {
            let text = String::from_utf8_lossy(script.as_bytes());
            text.chars().take(SHOWN_CHARACTERS).collect()
        });
        let context =
            JobContext { changes: self.shared.changes, ..JobContext::from(self.shared.workspace) };
        let (grant, entry) = self.decide(caller.named(call), context)?;
        // The session gives a command its turn; a place in the queue bounds the number that wait.
        let place = self.shared.queue.place(&self.principal);
        let admitted = match &place {
            Ok(_) => self.admitted(&session, (restart, shell), &grant, caller).await,
            Err(full) => Err(full.clone()),
        };
        let Admitted { named, state, opening, made_room } = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => {
                entry.refused(refusal.in_full());
                return Err(refusal);
            }
        };
        let mode = match patience {
            Wait::Background => JobMode::Background,
            Wait::Foreground | Wait::Beyond | Wait::ToTheEnd => JobMode::Foreground,
        };
        let (kind, first) = input(&grant.job().stdin);
        let new = NewCommand {
            id: self.sessions.spool.name(),
            session,
            text,
            report: Report::of(&grant),
            mode,
            keep: match kept {
                Retention::Spooled => KEPT_BYTES,
                Retention::Apart { bytes } => bytes,
            },
            draining: state.draining(),
            state: None,
            entry,
            first,
            kind,
            produced: caller.produced.clone(),
            tap: caller.tap.clone(),
        };
        let (command, lost) = self.start(&named, grant, directory, state, new, opening).await?;
        if kept == Retention::Spooled && command.receipt.is_some() {
            self.sessions.spool.keep(Arc::clone(&command));
        }
        wait(&command, patience, self.terms.loaded.config.session_yield.value, caller).await;
        Ok((command, Renewed::of(lost.as_ref(), &made_room)))
    }

    /// Returns the context of a call on the workspace of the default session, if it may use
    /// that.
    pub(crate) fn in_default_workspace(&self, call: &Call) -> JobContext {
        let own = self.job_context(&call.tool);
        match (self.session_profile(), self.profile_of(call)) {
            (Some(owner), Some(profile)) if owner.name == profile.name => {
                self.with_default_workspace(own, owner)
            }
            (_, _) => own,
        }
    }

    /// Returns the context of a declared command on the workspace of the default session,
    /// whatever the command's profile is. One that only reads begins no session: its workspace would
    /// be empty.
    pub(crate) fn command_in_default_workspace(&self, call: &Call, changes: Changes) -> JobContext {
        let own = self.job_context(&call.tool);
        let profile = self.profile_of(call);
        let owner = self.session_profile().filter(|_| profile.is_some_and(|one| one.workspace));
        let Some(owner) = owner.filter(|_| own.workspace == Workspace::Fresh) else {
            return own;
        };
        self.shared.clients.forget(&self.shared.link.forgotten());
        if changes == Changes::Nothing && self.sessions.find(DEFAULT).is_none() {
            return own;
        }
        self.with_default_workspace(own, owner)
    }

    /// Returns the profile that a call would get; `None` if it is not allowed.
    fn profile_of(&self, call: &Call) -> Option<&Profile> {
        let terms = self.terms.loaded.policy.terms_under(
            &call.tool,
            call.profile.as_ref(),
            &self.terms.loaded.profiles,
        );
        terms.ok().map(|terms| terms.profile)
    }

    /// Returns the profile of sessions: that of the shell, or without a shell that of one-shot calls.
    fn session_profile(&self) -> Option<&Profile> {
        let terms = OF_SESSIONS.iter().find_map(|tool| {
            self.terms.loaded.policy.terms(tool, &self.terms.loaded.profiles).ok()
        });
        terms.map(|terms| terms.profile).filter(|profile| profile.can_hold_a_shell())
    }

    fn with_default_workspace(&self, own: JobContext, owner: &Profile) -> JobContext {
        if own.workspace != Workspace::Fresh {
            return own;
        }
        self.shared.clients.forget(&self.shared.link.forgotten());
        let id = self.sessions.named(DEFAULT).id;
        self.sessions.keep_workspace_of(DEFAULT);
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

    /// Waits until the session can take a command.
    ///
    /// # Errors
    /// A session that cannot take it.
    async fn admitted(
        &self,
        session: &str,
        (restart, shell): (Restart, Option<ShellKind>),
        grant: &Grant,
        caller: &Caller,
    ) -> Result<Admitted, Refusal> {
        self.check_variables(session, shell, grant)?;
        self.shared.clients.forget(&self.shared.link.forgotten());
        let (named, made_room, mut opening) = self.open(session, grant, caller).await;
        if restart == Restart::Yes {
            named.restarted.store(true, Ordering::Release);
            self.shared.link.restart(named.id);
        }
        let state = self.lock_session(session, &named, restart, &mut opening, caller).await?;
        self.set_shell(session, &named, &state, shell)?;
        Ok(Admitted { named, state, opening, made_room })
    }

    /// Refuses a command with variables that its shell would not take.
    fn check_variables(
        &self,
        session: &str,
        shell: Option<ShellKind>,
        grant: &Grant,
    ) -> Result<(), SessionError> {
        let shell = shell.unwrap_or_else(|| self.sessions.shell_of(session));
        let mut names = grant.job().env.iter().map(|(name, _)| name);
        match names.find(|name| shell.keeps(name)) {
            Some(name) => {
                let name = name.to_owned();
                Err(SessionError::KeptVariable { name, shell: shell.name() })
            }
            None => Ok(()),
        }
    }

    /// Gives a session the shell that a command asks for; one that is kept must be that.
    fn set_shell(
        &self,
        session: &str,
        named: &NamedSession,
        state: &SessionState,
        asked: Option<ShellKind>,
    ) -> Result<(), SessionError> {
        let has = self.sessions.shell_of(session);
        let Some(asked) = asked.filter(|asked| *asked != has) else { return Ok(()) };
        if state.started && !named.restarted.load(Ordering::Acquire) {
            let has = has.name();
            let asked = asked.name();
            return Err(SessionError::OtherShell { session: session.to_owned(), has, asked });
        }
        self.sessions.set_shell_of(session, asked);
        Ok(())
    }

    /// Waits for the lock of the session, unless a job holds it, which may take long.
    async fn lock_session(
        &self,
        session: &str,
        named: &NamedSession,
        restart: Restart,
        opening: &mut Option<Opening>,
        caller: &Caller,
    ) -> Result<OwnedMutexGuard<SessionState>, SessionError> {
        if let Ok(state) = Arc::clone(&named.state).try_lock_owned() {
            return Ok(state);
        }
        // Another call has begun the session; no other session waits for its end.
        *opening = None;
        let mut state = Box::pin(Arc::clone(&named.state).lock_owned());
        loop {
            let holder = self.sessions.find(session).and_then(|named| named.runs);
            let job = holder.filter(|command| command.is_job() && !command.is_over());
            if let Some(job) = job.filter(|_| restart == Restart::No) {
                let session = session.to_owned();
                let job = job.id.clone();
                return Err(SessionError::Runs { session, job });
            }
            tokio::select! {
                biased;
                () = caller.cancel.cancelled() => return Err(SessionError::Cancelled),
                state = &mut state => return Ok(state),
                () = tokio::time::sleep(GLANCE) => {}
            }
        }
    }

    /// Takes note of a session in which a command has begun.
    fn record_start(&self, id: SessionId, state: &mut SessionState) {
        self.sessions.set_open(id, true);
        let mut ended = self.shared.link.forgotten();
        if ended.contains(&id) {
            // The session had ended while this start was on its way, and began again with it.
            ended.retain(|one| *one != id);
            state.end(ShellLoss::Idle);
        }
        self.shared.clients.forget(&ended);
    }

    /// Starts a command. One that fails to start has ended; with it comes the end of the previous shell, if this one is
    /// new.
    ///
    /// # Errors
    /// There is no room for its session.
    async fn start(
        &self,
        named: &NamedSession,
        grant: Grant,
        directory: StartDirectory,
        mut state: OwnedMutexGuard<SessionState>,
        mut new: NewCommand,
        opening: Option<Opening>,
    ) -> Result<(Arc<Command>, Option<ShellLoss>), SessionError> {
        let is_new = !state.started;
        let asked = named.restarted.swap(false, Ordering::AcqRel);
        if asked && (state.started || state.lost.is_some()) {
            state.end(ShellLoss::Restart);
        }
        let mode = new.mode;
        let shell = self.sessions.shell_of(&new.session);
        let within = Within { session: named.id, directory, mode, shell };
        // Cancelling does not stop this step: a command that is being handed over must be ended by
        // its control, and the supervisor bounds the time of a start.
        let starting = self.shared.link.start(grant, Some(within), connection_listener(&new.entry));
        let failure = match until_sent(opening, starting).await {
            Ok(running) => {
                self.record_start(named.id, &mut state);
                let lost = state.start_command(running.turn);
                if let (StartDirectory::Stay, Some(cwd)) = (directory, &state.cwd) {
                    new.report.cwd.clone_from(cwd);
                }
                new.state = match mode {
                    JobMode::Foreground => Some(state),
                    // The shell is free: it has no part in the end of this command.
                    JobMode::Background => None,
                };
                let session = new.session.clone();
                let command = Command::follow(new, running);
                self.sessions.add_command(&session, &command, mode);
                return Ok((command, lost));
            }
            Err(failure) => failure,
        };
        let NewCommand { session, report, entry, .. } = new;
        let report = Report { ended: Ended::failed(failure.clone()), ..report };
        entry.ended(&report.ended, None);
        if !state.started && state.lost.is_none() {
            self.sessions.remove_unstarted(&session);
        }
        if let (Failure::Busy { what }, true) = (failure, is_new) {
            return Err(SessionError::Full { what, others: self.sessions.described() });
        }
        let control = self.shared.link.detached_control();
        Ok((Command::past(String::new(), Some(session), report, control), None))
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

/// Waits for the end of a command, or until it is a job: after `yields`, unless the client waits on, or once it waits for
/// input or for a terminal.
async fn wait(command: &Arc<Command>, patience: Wait, yields: Duration, caller: &Caller) {
    let mut guard = CancelOnDrop(Some(Arc::clone(command)));
    let mut cancelled = false;
    let mut yields_at = match patience {
        Wait::ToTheEnd => None,
        Wait::Background => Some(Instant::now() + BACKGROUND),
        Wait::Foreground | Wait::Beyond => Some(Instant::now() + yields),
    };
    // Init looks once for each question, and ever more rarely: few commands take this long, and still fewer wait.
    let mut pause = FIRST_LOOK;
    let mut asks_at = match patience {
        Wait::ToTheEnd => None,
        Wait::Background | Wait::Foreground | Wait::Beyond => Some(Instant::now() + pause),
    };
    asks_at = asks_at.filter(|_| !command.input.is_open());
    // A command that waits for input or for a terminal may do so for ever: it is reported at once.
    loop {
        tokio::select! {
            biased;
            _ = command.end() => {
                guard.0 = None;
                return;
            }
            () = caller.cancel.cancelled(), if !cancelled => {
                cancelled = true;
                command.control.cancel();
            }
            () = command.waiting(), if !cancelled => break,
            () = at(asks_at), if !cancelled => {
                command.query_input();
                asks_at = Some(Instant::now() + pause);
                pause = pause.mul_f32(1.25);
            }
            () = at(yields_at), if !cancelled => match patience {
                Wait::Beyond => {
                    command.becomes_job();
                    yields_at = None;
                }
                Wait::Foreground | Wait::Background | Wait::ToTheEnd => break,
            }
        }
    }
    guard.0 = None;
    command.becomes_job();
}

/// Resolves at an instant, if there is one.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
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
