//! How a call ended, told once: each way of ending is a value of its own.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::egress::Tally;

/// How a call ended. A set-up fault never looks like a program's exit code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The program ended by itself with this code.
    Exited { code: u8 },
    /// A signal that cofferdam did not send ended the program.
    Signaled { signal: u8 },
    /// The wall time was used up.
    Timeout,
    /// A limit other than time ended the call.
    Limit(LimitKind),
    /// The caller took the call back.
    Cancelled,
    /// The cell could not be made or did not measure up, or the program could not start.
    Failed(Failure),
}

impl Outcome {
    /// Its word in replies and in the log.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Exited { .. } => "exited",
            Self::Signaled { .. } => "signaled",
            Self::Timeout => "timeout",
            Self::Limit(_) => "limit",
            Self::Cancelled => "cancelled",
            Self::Failed(_) => "failed",
        }
    }

    /// One number for every outcome, where a reply has no more room: the program's own, or the exit
    /// code of `cofferdam run`.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Exited { code } => *code,
            Self::Signaled { signal } => signal.saturating_add(128),
            Self::Limit(_) => 123,
            Self::Timeout => 124,
            Self::Cancelled | Self::Failed(_) => 125,
        }
    }
}

/// The limits that end a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LimitKind {
    Cpu,
    Memory,
    /// The host had little left, and no control group holds the memory of cells: which of them took it is not known.
    HostMemory,
    FileSize,
    /// The cell had more than its share of the open files of the machine.
    OpenFiles,
    Output,
}

impl LimitKind {
    /// The limit's name in replies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::HostMemory => "host_memory",
            Self::FileSize => "file_size",
            Self::OpenFiles => "open_files",
            Self::Output => "output",
        }
    }
}

/// Why a call produced no outcome of its program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Failure {
    /// exec: no such program in the cell.
    #[error("`{program}` was not found")]
    NotFound { program: String },
    /// exec: found but not executable (`errno` as in errno(3)).
    #[error("`{program}` cannot be executed: {}", errno_text(*.errno))]
    NotExecutable { program: String, errno: i32 },
    /// The directory to start in does not exist in the cell.
    #[error("cwd `{path}` cannot be entered: {}", errno_text(*.errno))]
    Cwd { path: String, errno: i32 },
    /// A step between clone and exec failed; nothing ran.
    #[error("the cell could not be made: step {step}: {}", errno_text(*.errno))]
    Setup { step: String, errno: i32 },
    /// A protection was not seen to be on; the cell was destroyed and nothing ran.
    #[error("the cell did not measure up and was destroyed: {what}")]
    Unmeasured { what: String },
    /// A cap over all calls is reached (cells, memory, tmpfs, processes); nothing ran.
    #[error("the server is at its cap of {what}")]
    Busy { what: String },
    /// The supervisor ended while the call ran.
    #[error("supervisor failure")]
    Supervisor,
    /// The cell's init ended without a report: killed from outside, or by the kernel.
    #[error("the cell ended without a report")]
    Lost,
    /// The frame was not one the supervisor takes.
    #[error("the supervisor refused the job: {why}")]
    Refused { why: String },
    /// The process that carries the cell's network ended while the call ran: without it programs would wait for answers
    /// that never come.
    #[error("the cell lost its network: {why}")]
    Network { why: String },
}

impl Failure {
    /// The way out, where there is one.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotFound { .. } => Some("not in this cell; the operator can grant it with --ro"),
            Self::Cwd { .. } => Some("create it first, or start in /workspace"),
            Self::Setup { errno, .. } if *errno == libc::ENOMEM => {
                Some("the limit on memory, the profile's or the host's, is too low for a cell")
            }
            Self::Setup { .. } | Self::Unmeasured { .. } => {
                Some("`cofferdam doctor` shows what this machine lacks and the remedy")
            }
            Self::Busy { .. } => Some("try again when other calls have ended"),
            Self::Network { .. } => Some("start it again; if it is refused, restart the server"),
            Self::NotExecutable { .. } | Self::Supervisor | Self::Lost | Self::Refused { .. } => {
                None
            }
        }
    }
}

/// The system's text for an error number, in lower case: `permission denied (EACCES)`.
pub fn errno_text(errno: i32) -> String {
    let known = nix::errno::Errno::from_raw(errno);
    format!("{} ({known:?})", known.desc().to_lowercase())
}

/// An I/O error in plain words: without the number that Rust adds to the system's text.
pub fn in_words(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => errno_text(errno),
        None => error.to_string(),
    }
}

/// Resources that the cell used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// From the job to the program's end.
    pub wall: Duration,
    /// Of the whole program, as the memory below: what it used before its job, where it was executed
    /// ahead, is in it.
    pub user: Duration,
    pub system: Duration,
    /// The most memory seen, in bytes; see [`Usage::peak_source`].
    pub peak_memory: u64,
    pub peak_source: PeakSource,
}

/// The source of [`Usage::peak_memory`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeakSource {
    /// The cell's memory cgroup: the whole cell.
    Cgroup,
    /// getrusage(2): the largest single process.
    #[default]
    LargestProcess,
}

/// A system call that was refused, and how often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedCall {
    /// The call's number in the native table.
    pub number: u32,
    pub count: u32,
    pub by: DeniedBy,
}

/// The layer that refused a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeniedBy {
    /// The profile's list, or the floor.
    Filter,
    /// The guard of a writable grant: the host obeys what has this name.
    NameGuard,
}

/// Refused calls are counted up to this many in one cell; then a count means "at least".
pub const DENIALS_COUNTED: u32 = 10_000;

/// The time of a call, by phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// From the frame's arrival to a cell that measured up: none where one was ready.
    pub built: Duration,
    /// From there until the job is with the cell.
    pub handed_over: Duration,
    /// From there until the program replaced the process that waited: none where it had before.
    pub exec: Duration,
    /// From there until its end was reported.
    pub run: Duration,
    /// From when the end was told until the last output was read; the front end's to know.
    pub drain: Duration,
    /// From the report until the cell was gone, where the reply waits for that.
    pub teardown: Duration,
}

impl Timings {
    /// Each phase by its name, in order.
    pub fn named(&self) -> [(&'static str, Duration); 6] {
        [
            ("queue", self.built),
            ("hand_over", self.handed_over),
            ("exec", self.exec),
            ("run", self.run),
            ("drain", self.drain),
            ("teardown", self.teardown),
        ]
    }
}

/// Counts of the cells of a supervisor so far, by their fate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolCounts {
    /// Jobs that got a cell which was ready.
    pub warm: u64,
    /// Of these, jobs whose program was executed before they came.
    pub ahead: u64,
    /// Jobs that waited until one was built.
    pub cold: u64,
    /// Ready cells that nobody wanted for a while.
    pub unwanted: u64,
    /// Ready cells that made room for another profile's.
    pub evicted: u64,
    /// Cells that did not come up or measure up.
    pub failed: u64,
    /// Ready cells that died by themselves.
    pub died: u64,
}

/// The end of a call as the supervisor tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub outcome: Outcome,
    pub usage: Usage,
    pub denials: Vec<DeniedCall>,
    pub timings: Timings,
    /// Of the supervisor, as it told this.
    pub pool: PoolCounts,
    pub shell: ShellAfter,
    pub force: Force,
    /// Changes, if they were asked for and there are any, or they are not known.
    pub files_changed: Option<FilesChanged>,
    /// Use of its network, if it had one and used it.
    pub network: Option<Tally>,
}

/// The force that it took to end a command that was to be ended by a signal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Force {
    /// The signal that was asked for, or none.
    #[default]
    None,
    /// KILL, after the grace of TERM.
    Killed,
}

/// Changes in the workspace since it was looked at before: at the beginning of the call, or at
/// the end of the session's command before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesChanged {
    /// The first of them, by path.
    pub listed: Vec<FileChange>,
    /// How many there are in all.
    pub created: u32,
    pub modified: u32,
    pub deleted: u32,
    /// True if everything was seen: within the time, the entries and the memory of a look.
    pub is_whole: bool,
}

/// One file that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    pub change: Change,
    /// From the workspace on; any bytes but NUL.
    pub path: Vec<u8>,
    pub kind: FileKind,
    pub size: u64,
    /// Permissions.
    pub mode: u16,
}

/// The change of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    Created,
    Modified,
    Deleted,
}

/// Kinds of files that are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    File,
    Directory,
    Link,
    Other,
}

impl FilesChanged {
    /// Nothing has changed, and all was seen.
    pub fn none() -> Self {
        Self { listed: Vec::new(), created: 0, modified: 0, deleted: 0, is_whole: true }
    }

    /// Nobody was there to look.
    pub fn unknown() -> Self {
        Self { is_whole: false, ..Self::none() }
    }

    /// Returns whether there is nothing to report.
    pub fn is_nothing(&self) -> bool {
        self.is_whole && self.created == 0 && self.modified == 0 && self.deleted == 0
    }
}

/// The state of a running command towards its input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waits {
    #[default]
    No,
    /// A process of it reads, and there is nothing to read.
    Yes,
}

/// The state in which a call left its shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShellAfter {
    /// It ran in a cell of its own, or there never was a shell.
    None,
    /// It waits for the next call, in this directory as it tells it.
    Kept { cwd: String },
    /// It ran beside the shell, which it left as it was.
    Beside,
    /// It has ended, and its cell with it.
    Ended,
}

impl Ended {
    /// An end without a program: nothing ran, nothing was used.
    pub fn failed(failure: Failure) -> Self {
        Self::of(Outcome::Failed(failure))
    }

    /// An end of which nothing else is known.
    pub fn of(outcome: Outcome) -> Self {
        Self {
            outcome,
            usage: Usage::default(),
            denials: Vec::new(),
            timings: Timings::default(),
            pool: PoolCounts::default(),
            shell: ShellAfter::None,
            force: Force::None,
            files_changed: None,
            network: None,
        }
    }
}
