//! The decision what to run: the job in a grant, and its limits.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::call::{Argv, Asked, Cwd, Env, MAX_TIMEOUT, Script, Stdin};
use crate::egress::Only;
pub use crate::profile::name::ProfileName;
use crate::shells::ShellKind;

/// Workspace of a cell, at `/workspace`. Together with the profile this is the key of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Workspace {
    /// A private tmpfs that ends with the cell.
    Fresh,
    /// A host directory the operator granted at start.
    Granted(GrantId),
    /// The private workspace of a session, for a call in a separate cell.
    Session(SessionId),
}

/// Access of cells to a directory or file of the host that the operator granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    /// Files that programs of the host act on are read-only, and no such name can be created.
    ReadWrite,
    /// Existing files that programs of the host act on are read-only; any name can be created.
    Unguarded,
    /// As `ReadWrite`, for a repository's directory that lies outside of the workspace: names in it
    /// are judged as those in `.git`.
    Repository,
    /// A directory for cells only: no program of the host acts on files in it.
    Cache,
    /// A directory that cells change only in a layer above it (overlayfs): the directory itself
    /// stays as it is until an operator applies the changes, which are judged then.
    Layer,
}

/// A granted directory: its index among those that the operator granted at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GrantId(pub u16);

/// A session: a shell whose cell lives across calls, and a `/workspace` that outlives the shell.
/// The front end assigns the numbers and never reuses one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// The session that a job runs in, and where in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Within {
    pub session: SessionId,
    pub directory: StartDirectory,
    pub mode: JobMode,
    /// Shell to start if the session lacks one.
    pub shell: ShellKind,
}

/// Where a job of a session runs: in the shell, or in a copy of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobMode {
    /// In the shell itself: its settings persist, and the shell takes no other job until it ends.
    Foreground,
    /// In a copy of the shell, which takes the next job at once.
    Background,
}

/// A signal for the processes of a session's job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobSignal {
    Interrupt,
    Terminate,
    Kill,
}

/// The directory that a job of a session starts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartDirectory {
    /// The current directory of the shell.
    Stay,
    /// The directory of the job, for this job only.
    Given,
}

/// Choice to report changes in the workspace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListChanges {
    #[default]
    No,
    Yes,
}

/// All limits of a cell, as resolved from floor, profile and rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Wall time from exec to the end.
    pub wall: Duration,
    /// CPU time of each process; the number of processes bounds the total.
    pub cpu: Duration,
    /// Hundredths of a processor that the whole cell may use; `None` means all processors.
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
    /// Bytes over both output streams at which the call is ended; `None` means no limit.
    pub output: Option<u64>,
}

impl Limits {
    /// Returns limits that allow nothing.
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

    /// Returns these limits, lowered where `asked` is lower. No limit is raised.
    #[must_use]
    pub fn lowered(&self, asked: &Asked) -> Self {
        let wall = asked.wall.map_or(self.wall, |wall| wall.min(self.wall));
        Self {
            wall: wall.min(MAX_TIMEOUT),
            memory: asked.memory.map_or(self.memory, |memory| memory.min(self.memory)),
            processes: asked.processes.map_or(self.processes, |n| n.min(self.processes)),
            output: match (self.output, asked.output) {
                (Some(limit), Some(asked)) => Some(limit.min(asked)),
                (limit, asked) => limit.or(asked),
            },
            ..*self
        }
    }

    /// Returns the size of all private filesystems together, in bytes.
    pub fn tmpfs(&self) -> u64 {
        self.workspace_bytes.saturating_add(self.tmp_bytes).saturating_add(self.shm_bytes)
    }

    /// Returns true if `asked` exceeds these limits, except for output, which only the operator can
    /// request, for a pipe at the command line.
    pub fn clamps(&self, asked: &Asked) -> bool {
        asked.wall.is_some_and(|wall| wall > self.wall.min(MAX_TIMEOUT))
            || asked.memory.is_some_and(|memory| memory > self.memory)
            || asked.processes.is_some_and(|processes| processes > self.processes)
    }
}

/// One job, which runs in one cell. Only `policy` makes one, inside a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub profile: ProfileName,
    pub workspace: Workspace,
    /// Restricts what the profile's cells may reach.
    pub only: Option<Only>,
    /// Profile of the session that owns the workspace, if it differs from the job's.
    pub session_profile: Option<ProfileName>,
    /// `None` means a fresh cell.
    pub session: Option<Within>,
    pub changes: ListChanges,
    pub argv: Argv,
    pub script: Option<Script>,
    pub stdin: Stdin,
    pub env: Env,
    pub cwd: Cwd,
    /// The resolved limits; the supervisor clamps them to the profile's again.
    pub limits: Limits,
}
