//! Requests of a tool, with their arguments checked; a front door makes them.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use crate::capture::grep::Pattern;
use crate::capture::lines::Wanted;
use crate::session::{Eof, Offsets, Restart, Retention, Stop};
use crate::shell::ScriptArgs;
use model::call::{Call, Cwd, FilePath};
use model::defaults::{EXEC_MAX_TIMEOUT, EXEC_TIMEOUT, HISTORY};
use model::shells::ShellKind;

/// A command for the shell of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionCommand {
    pub session: String,
    pub call: Call,
    /// The shell that the session must have; `None`: the one it has.
    pub shell: Option<ShellKind>,
    /// Restart of the shell before the command.
    pub restart: Restart,
    pub wait: Wait,
    pub kept: Retention,
}

/// The one place that a download reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchPlace {
    /// Name of the host.
    pub host: String,
    pub port: u16,
}

/// Time that a call waits for its command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wait {
    /// The operator's: after it the command becomes a job.
    #[default]
    Foreground,
    /// Only long enough to report a command that fails at once.
    Background,
    /// Until the command's end, even past the operator's time for becoming a job: the client need not wait.
    Beyond,
    /// Until the command's end; it never becomes a job.
    ToTheEnd,
}

impl Wait {
    /// Returns the time that a call waits whose client has a task for it. A background command is a job in any case.
    #[must_use]
    pub fn in_a_task(self) -> Self {
        match self {
            Self::Foreground | Self::Beyond => Self::Beyond,
            Self::Background | Self::ToTheEnd => self,
        }
    }
}

/// Amount of the output that a reply shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// Characters of both streams, at most.
    pub characters: usize,
    pub lines: Wanted,
}

/// A request about jobs.
#[derive(Debug, Clone)]
pub enum JobRequest {
    Output(OutputRequest),
    Input(InputRequest),
    List,
    Stop { job: String, stop: Stop },
}

/// A request for the output of a command.
#[derive(Debug, Clone)]
pub struct OutputRequest {
    /// Handle of the command.
    pub id: String,
    /// Bytes that were read before; `None` for head and tail.
    pub since: Option<Offsets>,
    /// Last lines of each stream.
    pub tail: Option<usize>,
    /// Lines to choose.
    pub pattern: Option<Pattern>,
    /// Time to wait for more output; the executor lowers it to its own limit.
    pub wait: Duration,
    /// Characters of output in the reply, at most.
    pub characters: usize,
}

/// A text for the input of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputRequest {
    pub job: String,
    pub text: String,
    pub eof: Eof,
    /// Time to wait for what the program does with it; `None` for the executor's own.
    pub wait: Option<Duration>,
}

/// A request for a file, with its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRequest {
    pub path: FilePath,
    pub request: ClerkRequest,
    /// Session whose shell is asked, if the workspace is a session's.
    pub session: String,
}

/// A request to the clerk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClerkRequest {
    /// Shows lines of a file, or the entries of a directory. `last` is 0 for the last line of the
    /// file.
    View { first: usize, last: usize },
    /// Writes a file of these bytes.
    Put { bytes: Vec<u8>, mode: Option<u16>, over: Overwrite },
    /// Replaces `old`, which occurs in the file once, by `new`.
    Replace { old: Vec<u8>, new: Vec<u8> },
    /// Inserts text after line `after`; 0 means before the first line.
    Insert { after: usize, text: Vec<u8> },
    /// Reads bytes from an offset on.
    Get { offset: u64, length: usize },
}

impl ClerkRequest {
    /// Returns true if it changes a file.
    #[must_use]
    pub fn writes(&self) -> bool {
        match self {
            Self::Put { .. } | Self::Replace { .. } | Self::Insert { .. } => true,
            Self::View { .. } | Self::Get { .. } => false,
        }
    }
}

/// Permission to replace an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    Nothing,
    Any,
}

/// A command for a fresh cell, with the directory and the time that the client asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExecRequest {
    pub args: ScriptArgs,
    pub shell: ShellKind,
    pub stderr: StderrIs,
}

impl From<ScriptArgs> for ExecRequest {
    fn from(args: ScriptArgs) -> Self {
        Self { args, ..Self::default() }
    }
}

/// Presence of standard error in a reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StderrIs {
    #[default]
    Shown,
    LeftOut,
}

/// Operator's settings of `bash_exec`, given at the start of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOptions {
    /// Default time limit of a command, and the maximum.
    pub default_timeout: Duration,
    pub max_timeout: Duration,
    /// Directory in which commands start until `set_working_dir` is called.
    pub working_dir: Cwd,
    /// Number of commands in the history.
    pub history: usize,
    /// Profiles that a command may name; the first is the default.
    pub profiles: Vec<String>,
}

impl Default for ExecOptions {
    fn default() -> Self {
        Self {
            default_timeout: EXEC_TIMEOUT,
            max_timeout: EXEC_MAX_TIMEOUT,
            working_dir: Cwd::workspace(),
            history: HISTORY,
            profiles: Vec::new(),
        }
    }
}

/// The most decimal places a calculation may ask for.
pub const MAX_PRECISION: u8 = 100;

/// Number of decimal places, 0 to [`MAX_PRECISION`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(description = "")]
pub struct Precision(#[schemars(range(max = MAX_PRECISION))] u8);

impl Precision {
    /// Precision of a new session, in decimal places.
    pub const DEFAULT: Self = Self(20);

    /// Accepts 0 to [`MAX_PRECISION`] places.
    pub fn new(places: u8) -> Option<Self> {
        (places <= MAX_PRECISION).then_some(Self(places))
    }

    pub fn places(self) -> u8 {
        self.0
    }
}

struct PrecisionVisitor;

impl Visitor<'_> for PrecisionVisitor {
    type Value = Precision;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 0 to {MAX_PRECISION}")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Precision, E> {
        let places = u8::try_from(value).ok().and_then(Precision::new);
        places.ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(value), &self))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Precision, E> {
        Err(E::invalid_value(de::Unexpected::Signed(value), &self))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Precision, E> {
        // JSON has one kind of number: `20.0` is a whole number there.
        (0..=MAX_PRECISION)
            .find(|places| f64::from(*places) == value)
            .map(Precision)
            .ok_or_else(|| E::invalid_value(de::Unexpected::Float(value), &self))
    }
}

impl<'de> Deserialize<'de> for Precision {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(PrecisionVisitor)
    }
}
