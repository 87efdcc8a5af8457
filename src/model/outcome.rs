//! The outcomes of a call: one variant for each way in which a call can end.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::egress::Tally;

/// How a call ended. A set-up failure is never confused with a program's exit code.
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
    /// The caller cancelled the call.
    Cancelled,
    /// The cell could not be made or failed its checks, or the program could not start.
    Failed(Failure),
}

impl Outcome {
    /// Returns its name in replies and in the log.
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

    /// Returns one number for every outcome, for replies without room for more: the program's exit
    /// code, or that of `cofferdam run`.
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
    /// The host ran low on memory, and no control group bounds the cells: which of them used it is
    /// not known.
    HostMemory,
    FileSize,
    /// The cell exceeded its share of the machine's open files.
    OpenFiles,
    Output,
}

impl LimitKind {
    /// Returns the limit's name in replies.
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

/// Why a call has no outcome of its program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Failure {
    /// exec failed: there is no such program in the cell.
    #[error("`{program}` was not found")]
    NotFound { program: String },
    /// exec failed: the program is not executable (`errno` as in errno(3)).
    #[error("`{program}` cannot be executed: {}", errno_text(*.errno))]
    NotExecutable { program: String, errno: i32 },
    /// The directory to start in does not exist in the cell.
    #[error("cwd `{path}` cannot be entered: {}", errno_text(*.errno))]
    Cwd { path: String, errno: i32 },
    /// A step between clone and exec failed; nothing ran.
    #[error("the cell could not be made: step {step}: {}", errno_text(*.errno))]
    Setup { step: String, errno: i32 },
    /// A protection could not be verified; the cell was destroyed and nothing ran.
    #[error("the cell did not measure up and was destroyed: {what}")]
    Unmeasured { what: String },
    /// A limit over all calls is reached (cells, memory, tmpfs, processes); nothing ran.
    #[error("the server is at its cap of {what}")]
    Busy { what: String },
    /// The supervisor ended while the call ran.
    #[error("supervisor failure")]
    Supervisor,
    /// The cell's init ended without a report: killed from outside or by the kernel.
    #[error("the cell ended without a report")]
    Lost,
    /// The supervisor rejected the frame.
    #[error("the supervisor refused the job: {why}")]
    Refused { why: String },
    /// The process that carries the cell's network ended while the call ran: programs would wait
    /// for answers that never come.
    #[error("the cell lost its network: {why}")]
    Network { why: String },
}

impl Failure {
    /// Returns the way out, if there is one.
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

/// Returns the system's text for an error number in lower case: `permission denied (EACCES)`.
pub fn errno_text(errno: i32) -> String {
    let known = nix::errno::Errno::from_raw(errno);
    format!("{} ({known:?})", known.desc().to_lowercase())
}

/// Returns the text of an I/O error, without the number that Rust adds.
pub fn in_words(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => errno_text(errno),
        None => error.to_string(),
    }
}

/// Resources that the cell used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// From handing over the job to the program's end.
    pub wall: Duration,
    /// User time of the whole program, including what it used before its job if it was started
    /// ahead. The same holds for memory.
    pub user: Duration,
    pub system: Duration,
    /// Highest memory use in bytes; see [`Usage::peak_source`].
    pub peak_memory: u64,
    pub peak_source: PeakSource,
}

/// How [`Usage::peak_memory`] was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeakSource {
    /// The cell's memory cgroup: the whole cell.
    Cgroup,
    /// getrusage(2): the largest single process.
    #[default]
    LargestProcess,
}

/// A system call that was denied, and how often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedCall {
    /// The call's number in the native table.
    pub number: u32,
    pub count: u32,
    pub by: DeniedBy,
}

/// The layer that denied a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeniedBy {
    /// The profile's list, or the floor.
    Filter,
    /// The guard of a writable grant: programs of the host act on files of this name.
    NameGuard,
    /// The caller's file is unreadable by its mode, so that init could not read the arguments.
    UnreadableProgram,
    /// The same guard: all names would have made a repository. `half_made` is a directory of the cell
    /// that was to be one and is still there.
    RepositoryGuard { half_made: Option<String> },
    /// The same guard: all names would have changed the configuration of a repository.
    ConfigurationGuard,
}

/// Denied calls are counted up to this number in one cell; then the count means "at least".
pub const DENIALS_COUNTED: u32 = 10_000;

/// The time that a call took, by phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// From the frame's arrival to a verified cell; zero if a cell was ready.
    pub built: Duration,
    /// From there until the cell has the job.
    pub handed_over: Duration,
    /// From there until the program has replaced the waiting process; zero if it had before.
    pub exec: Duration,
    /// From there until its end was reported.
    pub run: Duration,
    /// From the reported end until the last output was read; measured by the front end.
    pub drain: Duration,
    /// From the report until the cell was gone, if the reply waits for that.
    pub teardown: Duration,
}

impl Timings {
    /// Returns each phase with its name, in order.
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

/// Counts of a supervisor's cells so far, by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolCounts {
    /// Jobs that got a ready cell.
    pub warm: u64,
    /// Among these, jobs whose program had been executed ahead.
    pub ahead: u64,
    /// Jobs that waited for a cell to be built.
    pub cold: u64,
    /// Ready cells that were dropped as unused.
    pub unwanted: u64,
    /// Ready cells that were dropped to make room for another profile's.
    pub evicted: u64,
    /// Cells that did not start or failed their checks.
    pub failed: u64,
    /// Ready cells that died unexpectedly.
    pub died: u64,
}

/// The end of a call, as the supervisor reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    pub outcome: Outcome,
    pub usage: Usage,
    pub denials: Vec<DeniedCall>,
    pub timings: Timings,
    /// Counts of the supervisor at the time of the report.
    pub pool: PoolCounts,
    pub shell: ShellAfter,
    pub force: Force,
    /// Changes, if they were requested and there are any, or they are not known.
    pub files_changed: Option<FilesChanged>,
    /// Use of its network, if it had one and used it. In a cell that has only its loopback, hosts that
    /// were not reached.
    pub network: Option<Tally>,
    /// Filesystems that were full at the end of a program that failed.
    pub full: FullFilesystems,
}

/// Private filesystems of a cell that have no space or no file left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FullFilesystems {
    pub workspace: bool,
    pub tmp: bool,
    pub shm: bool,
}

/// How a command that was to be ended by a signal ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Force {
    /// By the requested signal, or without a signal.
    #[default]
    None,
    /// By SIGKILL, after the grace period of SIGTERM.
    Killed,
}

/// Changes in the workspace since the last scan: that at the beginning of the call, or at the end
/// of the session's previous command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesChanged {
    /// The first changes, by path.
    pub listed: Vec<FileChange>,
    /// Total number of created files.
    pub created: u32,
    pub modified: u32,
    pub deleted: u32,
    /// Changes below a directory `.git`, which the other counts leave out.
    pub below_git: u32,
    /// True if the scan was complete: within its limits on time, entries and memory.
    pub is_whole: bool,
}

/// One file that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    pub change: Change,
    /// Relative to the workspace; any bytes but NUL.
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

/// File types that are distinguished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    File,
    Directory,
    Link,
    Other,
}

impl FilesChanged {
    /// Returns a complete scan without changes.
    pub fn none() -> Self {
        Self {
            listed: Vec::new(),
            created: 0,
            modified: 0,
            deleted: 0,
            below_git: 0,
            is_whole: true,
        }
    }

    /// Returns the result when no scan was made.
    pub fn unknown() -> Self {
        Self { is_whole: false, ..Self::none() }
    }

    /// Returns true if there is nothing to report.
    pub fn is_nothing(&self) -> bool {
        let counts = [self.created, self.modified, self.deleted, self.below_git];
        self.is_whole && counts == [0; 4]
    }
}

/// State of a running command: waiting for input or not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waits {
    #[default]
    No,
    /// One of its processes reads, and there is no input.
    Yes,
}

/// State in which a call left its shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShellAfter {
    /// The call ran in a separate cell, or there never was a shell.
    None,
    /// The shell waits for the next call in this directory, as it reports it.
    Kept { cwd: String },
    /// The call ran in a copy of the shell, which is unchanged.
    Beside,
    /// The shell has ended, and its cell with it.
    Ended,
}

impl Ended {
    /// Returns the end of a call that never ran.
    pub fn failed(failure: Failure) -> Self {
        Self::new(Outcome::Failed(failure))
    }

    /// Returns an end of which only the outcome is known.
    pub fn new(outcome: Outcome) -> Self {
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
            full: FullFilesystems::default(),
        }
    }
}
