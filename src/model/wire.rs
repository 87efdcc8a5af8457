//! The frames between front end and supervisor, and the bounds on them.
//!
//! One frame is one SOCK_SEQPACKET packet of at most [`FRAME_BYTES`], encoded with postcard.
//! The front end is hostile to the supervisor: a frame *names* a profile, it cannot carry one,
//! and everything in a frame is checked again: texts by [`Block::open`], numbers when it is planned.

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

/// Largest frame in bytes, either way.
pub const FRAME_BYTES: usize = 64 << 10;
/// Most of a [`Block`], of a script and of an input each that goes in the frame.
const HERE_BYTES: usize = 16 << 10;
/// Largest encoded [`Block`]: its parts at their limits, with room for lengths.
const BLOCK_BYTES: usize = ARGV_BYTES + ENV_BYTES + PATH_BYTES + (64 << 10);

/// A call's number on the link, chosen by the front end, unique while the call lives.
pub type CallId = u64;

/// The source of the program's standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StdinKind {
    Empty,
    /// The bytes that the job brought.
    Bytes,
    /// A pipe.
    Pipe,
    /// A terminal. Only for a job of a session.
    Terminal,
}

/// The standard input that a job asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobInput {
    Empty,
    Bytes(Carried),
    /// The supervisor makes a pipe and sends its writing end back.
    Pipe,
    /// The supervisor makes a terminal and sends its master back, to write to and to read from.
    Terminal,
}

impl JobInput {
    /// It without its bytes.
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
    /// Run a job. Descriptors, in this order: the [`Block`], the script, the input, each only if it is
    /// [`Carried::Sealed`].
    Start(Start),
    /// The caller takes the call back: TERM, grace, kill.
    Cancel { call: CallId },
    /// Send a signal to the processes of a session's call, and none to its shell but INT.
    Signal { call: CallId, signal: JobSignal },
    /// The call produced more output than it may: kill.
    OutputLimit { call: CallId },
    /// Tell whether the call waits for its input, and if not, when it does. The number comes back.
    AskInput { call: CallId, number: u32 },
    /// The session's shell ends; its next job gets a new one, on the same `/workspace`.
    Restart { session: SessionId },
    /// The session ends, its shell and its `/workspace` with it.
    Forget { session: SessionId },
    /// Make room for one more session with this profile and workspace: where there is none, the first of
    /// these ends in which nothing runs.
    MakeRoom { number: u32, profile: ProfileName, workspace: Workspace, from: Vec<SessionId> },
}

/// The place of the [`Block`], the script or the input of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carried {
    /// In the frame: at most 16 KiB.
    Here(Vec<u8>),
    /// In a sealed memfd among the frame's descriptors.
    Sealed,
}

impl Carried {
    /// Puts `bytes` in the frame, or in a memfd that goes with it.
    ///
    /// # Errors
    /// When no memfd can be made.
    pub fn new(name: &CStr, bytes: Vec<u8>) -> Result<(Self, Option<OwnedFd>), WireError> {
        if bytes.len() <= HERE_BYTES {
            return Ok((Self::Here(bytes), None));
        }
        Ok((Self::Sealed, Some(memory::sealed(name, &bytes)?)))
    }
}

/// A job, but for what has no place in a frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    pub call: CallId,
    pub profile: ProfileName,
    pub workspace: Workspace,
    /// Narrowing of what the profile's cells may reach.
    pub only: Option<Only>,
    /// Profile of the session that has the workspace, where it is another than the job's.
    pub session_profile: Option<ProfileName>,
    pub session: Option<Within>,
    pub changes: ListChanges,
    pub limits: Limits,
    pub stdin: JobInput,
    pub script: Option<Carried>,
    pub block: Carried,
}

impl Start {
    /// How many descriptors must come with the frame.
    pub fn descriptors(&self) -> usize {
        usize::from(self.block == Carried::Sealed)
            + usize::from(self.script == Some(Carried::Sealed))
            + usize::from(self.stdin == JobInput::Bytes(Carried::Sealed))
    }
}

/// Arguments, environment and directory of a job: they may be too large for a frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    pub argv: Argv,
    pub env: Env,
    pub cwd: Cwd,
}

/// The fault of a frame that came over the link.
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

/// Why a job never left: what the machine lacks for it, or what is wrong with it.
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
    /// The block of `job`: for the frame, or in a memfd.
    ///
    /// # Errors
    /// When no memfd can be made.
    pub fn carry(job: &Job) -> Result<(Carried, Option<OwnedFd>), WireError> {
        let block = Self { argv: job.argv.clone(), env: job.env.clone(), cwd: job.cwd.clone() };
        Carried::new(c"cofferdam-block", postcard::to_stdvec(&block)?)
    }

    /// Reads a block that the front end sent, by the frame or in a memfd.
    ///
    /// # Errors
    /// When `fd` is no sealed memfd, is too large, or the block has a value that `call` refuses.
    pub fn open(carried: &Carried, fd: Option<OwnedFd>) -> Result<Self, WireError> {
        match (carried, fd) {
            (Carried::Here(bytes), None) => Self::read(bytes),
            (Carried::Sealed, Some(fd)) => Self::read(&unsealed(fd)?),
            (Carried::Here(_), Some(_)) => Err(WireError::Descriptors { got: 1, want: 0 }),
            (Carried::Sealed, None) => Err(WireError::Descriptors { got: 0, want: 1 }),
        }
    }

    /// Decodes it, and checks every value in it again.
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
    // Sealed first: only then do length and bytes stay what they are while we look.
    if !memory::is_sealed(&fd).unwrap_or(false) {
        return Err(WireError::NotSealed);
    }
    memory::contents(&fd, BLOCK_BYTES).map_err(|error| match error.raw_os_error() {
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
    /// A job was handed over. Descriptors: its stdin when a pipe or a terminal, stdout, stderr.
    /// `turn` is which job of its shell it is, from 1 on; 0 for one with a cell of its own.
    Started { call: CallId, stdin: StdinKind, receipt: Receipt, turn: u64 },
    /// A session has ended: nobody used it for as long as it is kept, or it was asked for.
    Forgotten { session: SessionId },
    /// The answer to [`Request::MakeRoom`]: the session that is about to end, if one is.
    Room { number: u32, ends: Option<SessionId> },
    /// The answer to [`Request::AskInput`]: at once, and once more when it waits.
    Input { call: CallId, number: u32, waits: Waits },
    /// A connection of a call has closed, or was denied; it may have ended before. For the audit log.
    Connection { call: CallId, connection: Connection },
    /// Log lines of the supervisor, which has no stream to write them to.
    Logged { lines: Vec<String> },
    /// The call is over.
    Ended { call: CallId, ended: Ended },
}

/// The supervisor's findings when it started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    pub landlock_abi: u32,
    pub memory: MemoryHold,
    /// The result of asking for a scope.
    pub scope: ScopeResult,
    /// Profiles that cannot be used here, each with the reason.
    pub unusable: Vec<(ProfileName, String)>,
}

/// The result of asking the user's service manager for a scope with delegation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScopeResult {
    /// It was not wanted, or groups are had without.
    NotAsked,
    /// Cells are held in this unit, after so long.
    Had { unit: String, took: Duration },
    /// There is nobody to ask.
    NoManager,
    /// In words, with nothing of the manager's that a terminal would obey.
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
/// When it would be larger than [`FRAME_BYTES`].
pub fn encode<T: Serialize>(frame: &T) -> Result<Vec<u8>, WireError> {
    let bytes = postcard::to_stdvec(frame)?;
    if bytes.len() > FRAME_BYTES { Err(WireError::TooLarge) } else { Ok(bytes) }
}

/// Decodes a frame; bytes left over are an error.
///
/// # Errors
/// When the bytes are not exactly one frame of this kind.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, WireError> {
    let (frame, rest) = postcard::take_from_bytes(bytes)?;
    if rest.is_empty() { Ok(frame) } else { Err(postcard::Error::SerdeDeCustom.into()) }
}
