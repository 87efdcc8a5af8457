//! The decision about what is to run: the job that a grant holds and the limits it runs under.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::call::{Argv, Asked, Cwd, Env, MAX_TIMEOUT, Script, Stdin};
use crate::egress::Only;
use crate::shells::ShellKind;

/// The name of a profile that was loaded at start.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProfileName(String);

impl ProfileName {
    /// Lower-case letters, digits and dashes, starting with a letter; at most 64 bytes.
    pub fn new(name: &str) -> Option<Self> {
        let well_formed = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.len() <= 64
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        well_formed.then(|| Self(name.to_owned()))
    }

    /// The name that stands for no profile at all.
    pub fn none() -> Self {
        Self("none".to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ProfileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which workspace a cell has at `/workspace`. With the profile it is the key of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Workspace {
    /// A private tmpfs that ends with the cell.
    Fresh,
    /// A host directory the operator granted at start.
    Granted(GrantId),
    /// The private one of a session, for a cell of its own.
    Session(SessionId),
}

/// Access of cells to a directory or file of the host that the operator granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    /// Files that the host obeys are read-only, and no such name can be made.
    ReadWrite,
    /// Files that the host obeys and that exist are read-only; any name can be made.
    Unguarded,
    /// A directory of cofferdam's own, for cells alone: the host obeys nothing in it.
    Cache,
}

/// A granted directory: its index among those that the operator granted at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GrantId(pub u16);

/// A session: a shell whose cell lives across calls, and the `/workspace` that outlives the shell.
/// The front end numbers them, and never uses a number twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// The session that a job runs in, and where in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Within {
    pub session: SessionId,
    pub place: Place,
    pub mode: JobMode,
    /// Shell that is started where the session has none.
    pub shell: ShellKind,
}

/// Place of a job of a session: in the shell, or beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobMode {
    /// In the shell itself: what it sets lasts, and the shell takes no other job until its end.
    Foreground,
    /// In a copy of the shell beside it: the shell takes the next job at once.
    Background,
}

/// The signal for the processes of a session's job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobSignal {
    Interrupt,
    Terminate,
    Kill,
}

/// The directory that a job of a session starts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// The shell's own directory.
    Stay,
    /// The job's own, for this job.
    Given,
}

/// The request for a list of changes in the workspace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListChanges {
    #[default]
    No,
    Yes,
}

/// Every limit of a cell, resolved: what the floor, the profile and the rule left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Wall time from exec to the end.
    pub wall: Duration,
    /// CPU time of each process of the cell; its number of processes bounds the whole.
    pub cpu: Duration,
    /// Hundredths of a processor that the whole cell may use at once; `None`: as many as there are.
    pub processors: Option<u32>,
    /// Bytes of memory of the whole cell.
    pub memory: u64,
    /// Processes and threads of the whole cell.
    pub processes: u32,
    /// Open descriptors of one process.
    pub open_files: u32,
    /// Bytes of the largest file a process may write.
    pub file_size: u64,
    /// Bytes of a private `/workspace`.
    pub workspace_bytes: u64,
    /// Bytes of `/tmp`.
    pub tmp_bytes: u64,
    /// Bytes of `/dev/shm`.
    pub shm_bytes: u64,
    /// Inodes of each of these three.
    pub inodes: u32,
    /// Bytes over both output streams before the call is ended; `None`: no bound.
    pub output: Option<u64>,
}

impl Limits {
    /// Nothing may be used at all.
    pub fn none() -> Self {
        Self {
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            processors: None,
            memory: 0,
            processes: 0,
            open_files: 0,
            file_size: 0,
            workspace_bytes: 0,
            tmp_bytes: 0,
            shm_bytes: 0,
            inodes: 0,
            output: Some(0),
        }
    }

    /// These limits, lowered where `asked` is lower. Nothing is ever raised.
    #[must_use]
    pub fn lowered(&self, asked: &Asked) -> Self {
        let wall = asked.wall.map_or(self.wall, |wall| wall.min(self.wall));
        Self {
            wall: wall.min(MAX_TIMEOUT),
            memory: asked.memory.map_or(self.memory, |memory| memory.min(self.memory)),
            processes: asked.processes.map_or(self.processes, |n| n.min(self.processes)),
            output: match (self.output, asked.output) {
                (Some(own), Some(asked)) => Some(own.min(asked)),
                (own, asked) => own.or(asked),
            },
            ..*self
        }
    }

    /// Bytes of the private filesystems together.
    pub fn tmpfs(&self) -> u64 {
        self.workspace_bytes.saturating_add(self.tmp_bytes).saturating_add(self.shm_bytes)
    }

    /// Returns whether `asked` wanted more than it gets, of anything but output: that is the operator's pipe
    /// at the command line, and nobody else asks for it.
    pub fn clamps(&self, asked: &Asked) -> bool {
        asked.wall.is_some_and(|wall| wall > self.wall.min(MAX_TIMEOUT))
            || asked.memory.is_some_and(|memory| memory > self.memory)
            || asked.processes.is_some_and(|processes| processes > self.processes)
    }
}

/// One job: what runs in one cell. Only `policy` makes one, inside a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub profile: ProfileName,
    pub workspace: Workspace,
    /// Narrowing of what the profile's cells may reach.
    pub only: Option<Only>,
    /// Profile of the session that has the workspace, where it is another than the job's.
    pub session_profile: Option<ProfileName>,
    /// None: a cell of its own.
    pub session: Option<Within>,
    pub changes: ListChanges,
    pub argv: Argv,
    pub script: Option<Script>,
    pub stdin: Stdin,
    pub env: Env,
    pub cwd: Cwd,
    /// The limits in force; the supervisor clamps them to the profile's again.
    pub limits: Limits,
}
