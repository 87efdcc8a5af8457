//! Shell sessions: commands that share a shell, each followed to its end, or left to run as a job.
//!
//! A session has a name, chosen by the client, and a number, chosen here. The supervisor keeps its
//! shell; this module orders its commands and follows them. Names belong to one client: a server
//! for several keeps a [`Sessions`] for each.

mod command;
mod feed;
mod input_query;
mod jobs;
mod room;
mod run;
mod spool;
mod state;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

pub use command::Command;
use config::policy::Principal;
pub(crate) use feed::REPLAYED_BYTES;
pub use feed::{Eof, InputEnd, InputGiven, Rest, WriteResult};
pub use jobs::{Offsets, Stop};
use model::job::{JobMode, SessionId};
use model::shells::ShellKind;
pub(crate) use room::until_sent;
pub use spool::NoJob;
use spool::Spool;
use state::SessionState;
pub use state::ShellLoss;

/// The default session.
pub const DEFAULT: &str = "default";
/// Length of the longest name of a session, in bytes.
const NAME_BYTES: usize = 64;
/// Names that are kept after their sessions have ended, at most.
const MAX_LOST: usize = 256;
/// Sessions that a refusal lists.
const MAX_DESCRIBED: usize = 16;
/// Characters of a command in a list of jobs.
const SHOWN_CHARACTERS: usize = 120;

/// Reason why a command has no place in its session. Nothing ran.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    #[error("`session` must be 1 to {NAME_BYTES} letters, digits, `.`, `_` or `-`")]
    Name,
    #[error("the session `{session}` runs job {job}")]
    Runs { session: String, job: String },
    #[error("the call was cancelled while it waited for the session")]
    Cancelled,
    #[error("there is no room for another session: {what} of the server are in use{others}")]
    Full { what: String, others: String },
    #[error("the session `{session}` has {has}, and `shell` asks for {asked}")]
    OtherShell { session: String, has: &'static str, asked: &'static str },
    #[error("env `{name}` is refused: the {shell} of the session keeps this variable for itself")]
    KeptVariable { name: String, shell: &'static str },
    #[error("there is no session `{0}`{1}")]
    Unknown(String, String),
}

impl SessionError {
    /// Returns the way to a session that takes the command, if there is one.
    pub(crate) fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Name => return Some(format!("leave it out for the session `{DEFAULT}`")),
            Self::Runs { .. } => "use another `session`, or end it with `restart`",
            Self::Full { .. } => {
                "`end` with the `session` of one ends it, and `restart` what runs in it"
            }
            Self::OtherShell { .. } => {
                "`restart` with it gives the session that shell, and another `session` can have one beside it"
            }
            Self::Unknown(..) => "a command with this `session` begins it",
            Self::Cancelled | Self::KeptVariable { .. } => return None,
        };
        Some(hint.to_owned())
    }
}

/// Storage of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// Kept under its handle, to be read later.
    Spooled,
    /// Kept up to a number of bytes for the caller only: the answer of one of cofferdam's own programs.
    Apart { bytes: usize },
}

/// Restart of the shell before the command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Restart {
    #[default]
    No,
    Yes,
}

/// Use of a client's sessions, all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionActivity {
    /// There is no session.
    None,
    /// No command runs in any, for so long.
    Idle(Duration),
    /// A command runs, whether a call waits for it or not.
    Running,
}

/// A session in which no command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusedSession {
    pub name: String,
    pub id: SessionId,
    /// Time since its last command.
    pub unused: Duration,
}

/// Sessions of every client of a server: they share the numbers that the supervisor knows them by.
#[derive(Debug, Default)]
pub struct Clients {
    /// Number of the newest session.
    last: AtomicU64,
    sessions: Lock<Vec<Weak<Sessions>>>,
    /// Held from the answer that there is room for a session until the supervisor is sent its first command: another new
    /// session would be given the same room.
    opening: Arc<Mutex<()>>,
}

impl Clients {
    fn next(&self) -> SessionId {
        SessionId(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Returns sessions in which no command runs and that may end for one more of `own`, the first to end first.
    /// Those of another client are among them where it has more than one over the other's; never those of the
    /// operator's own client.
    fn spare(&self, own: &Arc<Sessions>) -> Vec<(Arc<Sessions>, UnusedSession)> {
        let all: Vec<Arc<Sessions>> = {
            let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.iter().filter_map(Weak::upgrade).collect()
        };
        let mut counts: BTreeMap<&Principal, usize> = BTreeMap::new();
        for one in &all {
            *counts.entry(&one.principal).or_default() += one.numbers().len();
        }
        let count = |client: &Principal| counts.get(client).copied().unwrap_or_default();
        let rank = |one: &Arc<Sessions>| match one.principal == own.principal {
            true if Arc::ptr_eq(one, own) => Some(0),
            true => Some(1),
            false if one.principal == Principal::local() => None,
            false => (count(&one.principal) > count(&own.principal) + 1).then_some(2),
        };
        let ranked = all.iter().filter_map(|one| Some((rank(one)?, one)));
        let mut spare: Vec<_> = ranked
            .flat_map(|(rank, one)| one.unused().into_iter().map(move |it| (rank, one, it)))
            .collect();
        spare.sort_by_key(|(rank, _, unused)| (*rank, Reverse(unused.unused)));
        spare.into_iter().map(|(_, owner, session)| (Arc::clone(owner), session)).collect()
    }

    /// Removes sessions that the supervisor has ended.
    pub(crate) fn forget(&self, ended: &[SessionId]) {
        if ended.is_empty() {
            return;
        }
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|sessions| sessions.strong_count() > 0);
        for one in sessions.iter().filter_map(Weak::upgrade) {
            one.forget(ended);
        }
    }
}

/// Sessions of one scope, by name.
#[derive(Debug)]
pub struct Sessions {
    clients: Arc<Clients>,
    /// Client of the scope, which may have others.
    principal: Principal,
    table: Lock<Table>,
    /// Held while a session of the scope is opened: two calls that begin the same one make room for it once.
    opening: Arc<Mutex<()>>,
    pub(super) spool: Spool,
}

#[derive(Debug, Default)]
struct Table {
    /// Names of sessions that the supervisor ended, why, and their shells, until the names are used again.
    lost: BTreeMap<String, (ShellLoss, ShellKind)>,
    /// Sessions that are about to end, each with the reason that later calls report; `None` where the client
    /// asked for it.
    ending: BTreeMap<SessionId, Option<ShellLoss>>,
    named: BTreeMap<String, NamedSession>,
}

#[derive(Debug, Clone)]
struct NamedSession {
    id: SessionId,
    state: Arc<Mutex<SessionState>>,
    shell: ShellKind,
    /// Command that holds the lock of the state.
    runs: Option<Arc<Command>>,
    /// Commands that were started next to the shell, the newest last; ended ones are removed with the next.
    background: Vec<Arc<Command>>,
    /// True if a new shell was asked for since the last command.
    restarted: Arc<AtomicBool>,
    since: Instant,
    /// True if one-shot cells use the session's workspace, so that it is kept without a shell too.
    lends_workspace: bool,
    /// True once the supervisor has it, or has been sent what begins it.
    is_open: bool,
}

impl Sessions {
    /// Makes those of one more scope of a client.
    pub(crate) fn of_a_client(clients: &Arc<Clients>, principal: Principal) -> Arc<Self> {
        let table = Lock::default();
        let spool = Spool::default();
        let opening = Arc::default();
        let shared = Arc::clone(clients);
        let sessions = Arc::new(Self { clients: shared, principal, table, opening, spool });
        let mut all = clients.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|sessions| sessions.strong_count() > 0);
        all.push(Arc::downgrade(&sessions));
        sessions
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No code panics while it holds the lock; if one did, the table is still whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the session of this name; makes it if it does not exist.
    fn named(&self, name: &str) -> NamedSession {
        let mut table = self.table();
        if let Some(named) = table.named.get(name) {
            return named.clone();
        }
        let (lost, shell) = table.lost.remove(name).unzip();
        let named = NamedSession::new(self.clients.next(), lost, shell.unwrap_or_default());
        table.named.insert(name.to_owned(), named.clone());
        named
    }

    /// Returns the session of this name, if there is one.
    fn find(&self, name: &str) -> Option<NamedSession> {
        self.table().named.get(name).cloned()
    }

    /// Returns the numbers of its sessions.
    pub(crate) fn numbers(&self) -> Vec<SessionId> {
        self.table().named.values().map(|named| named.id).collect()
    }

    /// Removes sessions that the supervisor has ended.
    fn forget(&self, ended: &[SessionId]) {
        let mut table = self.table();
        let gone = |named: &NamedSession| ended.contains(&named.id);
        let names: Vec<_> = table
            .named
            .iter()
            .filter(|(_, named)| gone(named))
            .map(|(name, named)| (name.clone(), named.id, named.shell))
            .collect();
        for (name, id, shell) in names {
            table.named.remove(&name);
            let why = table.ending.remove(&id).unwrap_or(Some(ShellLoss::Idle));
            // The reason is not kept for ever for a name that is never used again.
            if let Some(why) = why.filter(|_| table.lost.len() < MAX_LOST) {
                table.lost.insert(name, (why, shell));
            }
        }
    }

    /// Returns sessions in which no command runs, the one first that has been unused for longest.
    fn unused(&self) -> Vec<UnusedSession> {
        let table = self.table();
        let idle = table.named.iter().filter(|(_, named)| named.running().is_empty());
        let unused = idle.map(|(name, named)| {
            let name = name.clone();
            let id = named.id;
            let unused = named.last_used().elapsed();
            UnusedSession { name, id, unused }
        });
        let mut unused: Vec<_> = unused.collect();
        unused.sort_by_key(|one| Reverse(one.unused));
        unused
    }

    /// Returns the use of all.
    pub(crate) fn usage(&self) -> SessionActivity {
        let table = self.table();
        if table.named.values().any(|named| !named.running().is_empty()) {
            return SessionActivity::Running;
        }
        let idle = table.named.values().map(|named| named.last_used().elapsed()).min();
        idle.map_or(SessionActivity::None, SessionActivity::Idle)
    }

    /// Notes why sessions will have ended, if they end now; nothing more of those that will not.
    fn mark_ending(&self, sessions: &[UnusedSession], why: Option<&ShellLoss>) {
        let mut table = self.table();
        for session in sessions {
            table.ending.insert(session.id, why.cloned());
        }
    }

    fn unmark_ending(&self, sessions: &[UnusedSession]) {
        let mut table = self.table();
        for session in sessions {
            table.ending.remove(&session.id);
        }
    }

    /// Describes every session for a refusal.
    fn described(&self) -> String {
        let one = |(name, jobs): (String, Vec<Arc<Command>>)| {
            let jobs: Vec<&str> = jobs.iter().map(|job| job.id.as_str()).collect();
            match jobs.is_empty() {
                true => format!("`{name}`"),
                false => format!("`{name}` (runs {})", jobs.join(", ")),
            }
        };
        let all: Vec<String> = self.list().into_iter().take(MAX_DESCRIBED).map(one).collect();
        match all.is_empty() {
            true => String::new(),
            false => format!("; yours: {}", all.join(", ")),
        }
    }

    /// Removes a session that never had a shell.
    fn remove_unstarted(&self, name: &str) {
        let mut table = self.table();
        if table.named.get(name).is_some_and(|named| !named.lends_workspace) {
            table.named.remove(name);
        }
    }

    /// Returns the shell that a session has or would have.
    pub(crate) fn shell_of(&self, name: &str) -> ShellKind {
        let table = self.table();
        let lost = || table.lost.get(name).map(|(_, shell)| *shell);
        table.named.get(name).map(|named| named.shell).or_else(lost).unwrap_or_default()
    }

    fn set_shell_of(&self, name: &str, shell: ShellKind) {
        if let Some(named) = self.table().named.get_mut(name) {
            named.shell = shell;
        }
    }

    /// Notes whether the supervisor has a session.
    pub(crate) fn set_open(&self, id: SessionId, is_open: bool) {
        if let Some(named) = self.table().named.values_mut().find(|named| named.id == id) {
            named.is_open = is_open;
        }
    }

    /// Returns whether the supervisor may not have a session yet.
    pub(crate) fn is_new(&self, id: SessionId) -> bool {
        self.table().named.values().any(|named| named.id == id && !named.is_open)
    }

    fn keep_workspace_of(&self, name: &str) {
        if let Some(named) = self.table().named.get_mut(name) {
            named.lends_workspace = true;
        }
    }

    fn add_command(&self, name: &str, command: &Arc<Command>, mode: JobMode) {
        let mut table = self.table();
        let Some(named) = table.named.get_mut(name) else { return };
        let command = Arc::clone(command);
        match mode {
            JobMode::Foreground => named.runs = Some(command),
            JobMode::Background => {
                named.background.retain(|command| !command.is_over());
                named.background.push(command);
            }
        }
    }

    /// Returns every session that has had a command, with its running jobs.
    pub fn list(&self) -> Vec<(String, Vec<Arc<Command>>)> {
        let table = self.table();
        table.named.iter().map(|(name, named)| (name.clone(), named.running())).collect()
    }
}

impl NamedSession {
    fn new(id: SessionId, lost: Option<ShellLoss>, shell: ShellKind) -> Self {
        Self {
            id,
            state: Arc::new(Mutex::new(SessionState::new(id, lost))),
            shell,
            runs: None,
            background: Vec::new(),
            restarted: Arc::default(),
            since: Instant::now(),
            lends_workspace: false,
            is_open: false,
        }
    }

    /// Returns when its last command ended, in the shell or next to it.
    fn last_used(&self) -> Instant {
        let all = self.runs.iter().chain(&self.background);
        let ends = all.filter_map(|command| Some(command.started + command.took()?));
        ends.chain([self.since]).max().unwrap_or(self.since)
    }

    /// Returns its running commands, in the shell and next to it.
    fn running(&self) -> Vec<Arc<Command>> {
        let all = self.runs.iter().chain(&self.background);
        all.filter(|command| !command.is_over()).cloned().collect()
    }
}

/// Checks that a name can be a session's.
pub fn check_name(name: &str) -> Result<(), SessionError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match (1..=NAME_BYTES).contains(&name.len()) && name.chars().all(fits) {
        true => Ok(()),
        false => Err(SessionError::Name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clients_never_share_a_session() {
        let clients = Arc::new(Clients::default());
        let scope = || Sessions::of_a_client(&clients, Principal::local());
        let one = scope();
        let other = scope();
        let ours = one.named(DEFAULT).id;
        let theirs = other.named(DEFAULT).id;
        assert_ne!(ours, theirs, "the supervisor knows them by their numbers");
        assert_eq!(one.named(DEFAULT).id, ours, "the same name is the same session to one client");
        // Whoever hears of an end, it is the end of that session alone.
        clients.forget(&[theirs]);
        assert_eq!(one.find(DEFAULT).map(|named| named.id), Some(ours));
        assert!(other.find(DEFAULT).is_none());
    }

    #[test]
    fn room_is_made_of_the_clients_own_sessions_and_of_those_of_a_client_that_has_more() {
        let clients = Arc::new(Clients::default());
        let scope = |name: &str| Sessions::of_a_client(&clients, Principal::named(name));
        let (greedy, also_greedy, modest) = (scope("greedy"), scope("greedy"), scope("modest"));
        let local = scope("local");
        let ids = |own: &Arc<Sessions>| -> Vec<SessionId> {
            clients.spare(own).into_iter().map(|(_, session)| session.id).collect()
        };
        let one = greedy.named("one").id;
        let two = also_greedy.named("two").id;
        for name in ["a", "b", "c"] {
            local.named(name);
        }
        assert_eq!(ids(&greedy), [one, two], "its own first");
        assert_eq!(ids(&also_greedy), [two, one]);
        assert_eq!(ids(&modest), [one, two], "it has none, the other two, and the operator's stay");
        let own = modest.named("own").id;
        assert_eq!(ids(&modest), [own], "two and one are a fair share");
    }
}
