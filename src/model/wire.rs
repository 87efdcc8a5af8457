//! The frames between front end and supervisor, and their limits.
//!
//! One frame is one SOCK_SEQPACKET packet of at most [`FRAME_BYTES`], encoded with postcard. The
//! supervisor does not trust the front end: a frame *names* a profile and cannot carry one, and
//! everything in it is checked again, texts by [`Block::open`] and numbers when the job is planned.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::call::{ARGV_BYTES, Argv, Cwd, ENV_BYTES, Env, PATH_BYTES};
use crate::egress::{Connection, Only};
use crate::job::{Job, JobSignal, Limits, ListChanges, ProfileName, SessionId, Within, Workspace};
use crate::outcome::{Ended, Failure, Waits};
use crate::receipt::{MemoryHold, Receipt};
use sys::memory;

/// Maximum size of a frame in bytes, in both directions.
pub const FRAME_BYTES: usize = 64 << 10;
/// Maximum size of a [`Block`], a script or an input that is sent in the frame itself.
const MAX_INLINE_BYTES: usize = 16 << 10;
/// Maximum size of an encoded [`Block`]: its parts at their limits, with room for lengths.
const MAX_BLOCK_BYTES: usize = ARGV_BYTES + ENV_BYTES + PATH_BYTES + (64 << 10);

/// A call's number on the link, chosen by the front end, unique while the call lives.
pub type CallId = u64;

/// Where the program's standard input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StdinKind {
    Empty,
    /// The bytes that came with the job.
    Bytes,
    /// A pipe.
    Pipe,
    /// A terminal. Only for a job of a session.
    Terminal,
}

/// The standard input that a job requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobInput {
    Empty,
    Bytes(Carried),
    /// The supervisor makes a pipe and returns its writing end.
    Pipe,
    /// The supervisor makes a terminal and returns its master, for reading and writing.
    Terminal,
}

impl JobInput {
    /// Returns the kind of input, without its bytes.
    pub fn kind(&self) -> StdinKind {
        match self {
            Self::Empty => StdinKind::Empty,
            Self::Bytes(_) => StdinKind::Bytes,
            Self::Pipe => StdinKind::Pipe,
            Self::Terminal => StdinKind::Terminal,
        }
    }
}

/// From the front end to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "one lives at a time, and most are jobs")]
pub enum Request {
    /// Run a job. Descriptors, in this order: the [`Block`], the script, the input, each only if it
    /// is [`Carried::Sealed`].
    Start(Start),
    /// Cancel the call: SIGTERM, grace period, kill.
    Cancel { call: CallId },
    /// Send a signal to the processes of a session's call; the shell itself only gets SIGINT.
    Signal { call: CallId, signal: JobSignal },
    /// The call exceeded its output limit: kill it.
    OutputLimit { call: CallId },
    /// Report whether the call waits for input, and if not, when it does. The answer repeats the
    /// number.
    AskInput { call: CallId, number: u32 },
    /// End the session's shell; its next job gets a new one with the same `/workspace`.
    Restart { session: SessionId },
    /// End the session with its shell and its `/workspace`.
    Forget { session: SessionId },
    /// Make room for one more session with this profile and workspace: without room, end the first
    /// idle session of these.
    MakeRoom { number: u32, profile: ProfileName, workspace: Workspace, from: Vec<SessionId> },
}

/// How a [`Block`], a script or an input travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carried {
    /// In the frame: at most 16 KiB.
    Inline(Vec<u8>),
    /// In a sealed memfd among the frame's descriptors.
    Sealed,
}

impl Carried {
    /// Puts `bytes` in the frame, or in a memfd that accompanies it.
    ///
    /// # Errors
    /// If no memfd can be made.
    pub fn new(name: &CStr, bytes: Vec<u8>) -> Result<(Self, Option<OwnedFd>), WireError> {
        if bytes.len() <= MAX_INLINE_BYTES {
            return Ok((Self::Inline(bytes), None));
        }
        Ok((Self::Sealed, Some(memory::sealed(name, &bytes)?)))
    }
}

/// A job, without the parts that travel as [`Carried`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    pub call: CallId,
    pub profile: ProfileName,
    pub workspace: Workspace,
    /// Restricts what the profile's cells may reach.
    pub only: Option<Only>,
    /// Profile of the session that owns the workspace, if it differs from the job's.
    pub session_profile: Option<ProfileName>,
    pub session: Option<Within>,
    pub changes: ListChanges,
    pub limits: Limits,
    pub stdin: JobInput,
    pub script: Option<Carried>,
    pub block: Carried,
}

impl Start {
    /// Returns how many descriptors must come with the frame.
    pub fn descriptors(&self) -> usize {
        usize::from(self.block == Carried::Sealed)
            + usize::from(self.script == Some(Carried::Sealed))
            + usize::from(self.stdin == JobInput::Bytes(Carried::Sealed))
    }
}

/// Arguments, environment and directory of a job, which may be too large for a frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    pub argv: Argv,
    pub env: Env,
    pub cwd: Cwd,
}

/// A fault of a received frame.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("a frame that cannot be decoded")]
    Undecodable(#[from] postcard::Error),
    #[error("a frame of more than {FRAME_BYTES} bytes")]
    TooLarge,
    #[error("{got} descriptors where {want} belong")]
    Descriptors { got: usize, want: usize },
    #[error("a descriptor that is not a sealed memfd")]
    NotSealed,
    #[error("a block that cannot be read")]
    Unreadable(#[from] std::io::Error),
    #[error(transparent)]
    Invalid(#[from] crate::call::InvalidCall),
}

/// The failure of a job that could not be sent.
impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        if let WireError::Unreadable(error) = &error
            && let Some(errno) = error.raw_os_error()
        {
            return Self::Setup { step: "preparing the job".to_owned(), errno };
        }
        Self::Refused { why: error.to_string() }
    }
}

impl Block {
    /// Encodes the block of `job`, for the frame or in a memfd.
    ///
    /// # Errors
    /// If no memfd can be made.
    pub fn carry(job: &Job) -> Result<(Carried, Option<OwnedFd>), WireError> {
        let block = Self { argv: job.argv.clone(), env: job.env.clone(), cwd: job.cwd.clone() };
        Carried::new(c"cofferdam-block", postcard::to_stdvec(&block)?)
    }

    /// Reads a block of the front end, from the frame or a memfd.
    ///
    /// # Errors
    /// If `fd` is not a sealed memfd or is too large, or if the block has a value that `call`
    /// refuses.
    pub fn open(carried: &Carried, fd: Option<OwnedFd>) -> Result<Self, WireError> {
        match (carried, fd) {
            (Carried::Inline(bytes), None) => Self::read(bytes),
            (Carried::Sealed, Some(fd)) => Self::read(&unsealed(fd)?),
            (Carried::Inline(_), Some(_)) => Err(WireError::Descriptors { got: 1, want: 0 }),
            (Carried::Sealed, None) => Err(WireError::Descriptors { got: 0, want: 1 }),
        }
    }

    /// Decodes a block and checks every value in it.
    fn read(bytes: &[u8]) -> Result<Self, WireError> {
        let untrusted: Self = decode(bytes)?;
        let env: BTreeMap<String, String> =
            untrusted.env.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok(Self {
            argv: Argv::new(untrusted.argv.words().to_vec())?,
            env: Env::new(env)?,
            cwd: Cwd::new("cwd", untrusted.cwd.as_str())?,
        })
    }
}

/// Reads the bytes of a sealed memfd.
fn unsealed(fd: OwnedFd) -> Result<Vec<u8>, WireError> {
    // Sealed first: only then are length and contents stable.
    if !memory::is_sealed(&fd).unwrap_or(false) {
        return Err(WireError::NotSealed);
    }
    memory::contents(&fd, MAX_BLOCK_BYTES).map_err(|error| match error.raw_os_error() {
        Some(libc::EFBIG) => WireError::TooLarge,
        Some(_) | None => error.into(),
    })
}

/// From the supervisor to the front end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The first frame: cells can be made.
    Ready(Ready),
    /// The first frame: they cannot; nothing follows.
    Unable(Unable),
    /// A job was handed over. Descriptors: its stdin if a pipe or a terminal, stdout, stderr.
    /// `turn` is the number of the job in its shell, from 1; 0 for a job in a fresh cell.
    Started { call: CallId, stdin: StdinKind, receipt: Receipt, turn: u64 },
    /// A session has ended, because it was unused for too long or by request.
    Forgotten { session: SessionId },
    /// The answer to [`Request::MakeRoom`]: the session that is about to end, if one is.
    Room { number: u32, ends: Option<SessionId> },
    /// The answer to [`Request::AskInput`]: at once, and again when the call waits.
    Input { call: CallId, number: u32, waits: Waits },
    /// A connection of a call was closed or denied, possibly after the call ended. For the audit
    /// log.
    Connection { call: CallId, connection: Connection },
    /// Log lines of the supervisor, which has no stream to write them to.
    Logged { lines: Vec<String> },
    /// The call is over.
    Ended { call: CallId, ended: Ended },
}

/// Findings of the supervisor when it started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    pub landlock_abi: u32,
    pub memory: MemoryHold,
    /// The result of requesting a scope.
    pub scope: ScopeResult,
    /// Profiles that cannot be used here, each with the reason.
    pub unusable: Vec<(ProfileName, String)>,
}

/// The result of requesting a scope with delegation from the user's service manager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScopeResult {
    /// Not requested, or control groups are available without.
    NotAsked,
    /// Cells run in this unit; `took` is how long it took.
    Granted { unit: String, took: Duration },
    /// There is no service manager.
    NoManager,
    /// The reason, without control characters of the manager's text.
    Refused { why: String },
}

/// Why no cell can be made here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unable {
    /// The step that failed, as `supervisor::boot` names it.
    pub step: String,
    pub errno: i32,
}

impl From<Unable> for Failure {
    fn from(unable: Unable) -> Self {
        Self::Setup { step: unable.step, errno: unable.errno }
    }
}

/// Encodes a frame.
///
/// # Errors
/// If it would be larger than [`FRAME_BYTES`].
pub fn encode<T: Serialize>(frame: &T) -> Result<Vec<u8>, WireError> {
    let bytes = postcard::to_stdvec(frame)?;
    if bytes.len() > FRAME_BYTES { Err(WireError::TooLarge) } else { Ok(bytes) }
}

/// Decodes a frame; remaining bytes are an error.
///
/// # Errors
/// If the bytes are not exactly one frame of this type.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, WireError> {
    let (frame, rest) = postcard::take_from_bytes(bytes)?;
    if rest.is_empty() { Ok(frame) } else { Err(postcard::Error::SerdeDeCustom.into()) }
}
