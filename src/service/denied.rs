//! Refused system calls in replies: by name, with the grant that would allow them.

use schemars::JsonSchema;
use serde::Serialize;

use model::outcome::{DENIALS_COUNTED, DeniedBy, DeniedCall};
use model::profile::{Profile, calls, floor};

/// Grant that lifts the guard on names in a writable granted directory.
const LIFTS_THE_GUARD: &str = "--unguarded, since the host obeys what has such a name, or copy-on-write (DIR:cow, --cow); in /tmp it can be made \
    (git: config --global lasts as long as the session; clone to /tmp and push back)";

/// Reason for a refusal by init of a call of an unreadable program.
const UNREADABLE: &str = "the program's file is unreadable by its mode, so the call's arguments \
    cannot be checked; chmod +r on the program helps";

/// Calls that set a mode: init refuses only a set-group-id bit on what is no directory.
const MODES: [&str; 4] = ["chmod", "fchmod", "fchmodat", "fchmodat2"];
const NOT_ON_FILES: &str = "only directories get the set-group-id bit: a program with it would run \
    with its group's rights";

/// The call that makes a single socket: init refuses it only for datagrams of unix.
const SOCKET: [&str; 1] = ["socket"];
const NO_DATAGRAMS: &str = "a datagram socket of unix could send to sockets of the host by their \
    paths, since a directory is granted; pairs of them and stream sockets work";
/// Ways to work with repositories without a grant.
const WITHOUT_A_GRANT: &str =
    "in /tmp (git: config --global lasts as long as the session; clone to /tmp and push back)";

/// A system call that was refused, with the grant that would allow it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DenialReport {
    pub syscall: String,
    /// 10000 means at least.
    #[schemars(range(min = 1))]
    pub count: u32,
    /// What an operator can grant; absent when nothing grants it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant: Option<String>,
    /// Why nothing grants it, or what works without a grant; also in [`Self::note`].
    #[serde(skip)]
    #[schemars(skip)]
    pub reason: Option<String>,
}

impl DenialReport {
    /// Describes a call that a cell of this profile refused.
    pub fn of(denied: &DeniedCall, profile: &Profile) -> Self {
        let reason = match denied.by {
            DeniedBy::UnreadableProgram => Some(UNREADABLE.to_owned()),
            DeniedBy::NameGuard if is_of(denied.number, &MODES) => Some(NOT_ON_FILES.to_owned()),
            DeniedBy::NameGuard if is_of(denied.number, &SOCKET) => Some(NO_DATAGRAMS.to_owned()),
            DeniedBy::ConfigurationGuard => Some(format!(
                "git remote add, git config and the like work in a clone {WITHOUT_A_GRANT}"
            )),
            DeniedBy::Filter | DeniedBy::NameGuard | DeniedBy::RepositoryGuard { .. } => None,
        };
        Self {
            syscall: calls::name(denied.number),
            count: denied.count,
            reason,
            grant: match &denied.by {
                DeniedBy::Filter => floor::grant_for(denied.number, profile).grant(),
                // A connection to a host socket in a granted directory, or a watch on a file
                // outside of the cell.
                DeniedBy::NameGuard if is_of(denied.number, &["connect", "inotify_add_watch"]) => {
                    None
                }
                DeniedBy::NameGuard if is_of(denied.number, &MODES) => None,
                DeniedBy::NameGuard if is_of(denied.number, &SOCKET) => None,
                DeniedBy::NameGuard => Some(LIFTS_THE_GUARD.to_owned()),
                DeniedBy::RepositoryGuard { half_made } => Some(lifts_for_repositories(half_made)),
                // The configuration of an existing repository is read-only in every grant.
                DeniedBy::ConfigurationGuard | DeniedBy::UnreadableProgram => None,
            },
        }
    }

    /// Returns the reason as a remark, for the fields of a reply.
    pub fn note(&self) -> Option<String> {
        self.reason.as_ref().map(|reason| format!("{} was denied: {reason}", self.syscall))
    }

    /// Formats it as a line for a model.
    pub fn line(&self) -> String {
        let times = match self.count {
            1 => "once".to_owned(),
            count if count >= DENIALS_COUNTED => format!("≥ {count} times"),
            count => format!("{count} times"),
        };
        let grant = match (&self.grant, &self.reason) {
            (Some(grant), _) => format!("the operator can grant it: {grant}"),
            (None, Some(reason)) => format!("nothing grants it: {reason}"),
            (None, None) => "nothing grants it".to_owned(),
        };
        format!("[denied: system call {}, {times}; {grant}]", self.syscall)
    }
}

/// Returns the grant that lets cells make repositories in a granted directory, the way without it, and
/// the directory that a program left without one.
fn lifts_for_repositories(half_made: &Option<String>) -> String {
    let mut text = format!(
        "--unguarded, since the host's git obeys a repository that is made there, or copy-on-write (DIR:cow, --cow); git init, git clone, \
         git submodule add, cargo new, uv init and npm create work {WITHOUT_A_GRANT}"
    );
    if let Some(path) = half_made {
        // A cell chose the names in the path: no character of theirs can end the quotes.
        let path = path.escape_default().to_string().replace('`', "\\u{60}");
        text.push_str(&format!("; `{path}` is left without one, perhaps half-made"));
    }
    text
}

fn is_of(number: u32, calls: &[&str]) -> bool {
    calls.iter().any(|call| calls::number(call) == Some(number))
}
