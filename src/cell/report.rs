//! Messages between the supervisor and a cell's init and payload.
//!
//! Encoded with postcard into a buffer on the stack: nothing is allocated on the cell's side.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::{Step, StepFailed};
use model::job::{JobSignal, Limits};
use model::outcome::{DeniedBy, DeniedCall, FilesChanged, Waits};
pub use sys::raw;
use sys::{Result, socket};

/// Largest report in bytes: 512 denied calls of at most 8 bytes each, or a hundred changed files with
/// 16 KiB of paths; and room for the rest.
pub const REPORT_BYTES: usize = 24 << 10;

/// From init.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromInit {
    /// A step failed; the process ends.
    Failed { step: Step, errno: i32 },
    /// The packet socket of its network comes with this, for the gateway.
    Network,
    /// It cannot be traced any more: the cell may be offered.
    Sealed,
    /// The payload has ended; the whole cell ends with this message.
    Ended(PayloadEnd),
    /// The answer to [`ToInit::LookAtShell`]. The counters follow where the call is over: in [`FromInit::Counted`], after
    /// [`FromInit::Changed`] if the workspace is scanned.
    Shown { number: u64, shell: ShownState },
    /// The answer to [`ToInit::Confirm`]: whether the payload is on its way out.
    Confirmed { is_ending: bool },
    /// Counters at the end of a call of a session.
    Counted(InitCounters),
    /// The answer to [`ToInit::AskInput`]: at once, and once more when somebody waits.
    Input { number: u32, waits: Waits },
    /// The changes in the workspace follow in the same packet. Sent before the end of the command that
    /// caused them.
    Changed,
    /// A process that [`ToInit::Follow`] named has ended. The denied calls since the last
    /// [`FromInit::Counted`] follow, and stay in the next count.
    JobEnded(ReapedJob),
}

/// What the descriptors of a session's shell show of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShownState {
    /// The call is not over.
    Runs { has_input: bool },
    /// The call is over, with this exit code.
    Over { status: u8 },
    /// The descriptors cannot be looked at.
    Unseen { errno: i32 },
}

/// A call that init looks for in the descriptors of its shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellLook {
    /// Number of the call in its session.
    pub number: u64,
    pub marks: Marks,
    pub input: Option<InputFile>,
}

/// The files by which a shell shows that a call is over, and with which exit code. All are in the mailbox, a filesystem
/// to which no program of the cell can add a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// Device number of the mailbox.
    pub device: u64,
    /// Inode of the lines around the command.
    pub lines: u64,
    pub digits: Digits,
}

/// Inodes of the files that stand for the two digits of an exit code, to the base 16.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digits {
    pub sixteens: [u64; 16],
    pub ones: [u64; 16],
}

/// Marks that were found.
#[derive(Debug, Default)]
pub struct FoundMarks {
    is_over: bool,
    sixteens: Option<u8>,
    ones: Option<u8>,
}

impl FoundMarks {
    /// Takes note of a file that is held open.
    pub fn add(&mut self, marks: &Marks, device: u64, inode: u64) {
        if device != marks.device {
            return;
        }
        let place = |digits: &[u64]| {
            let found = digits.iter().position(|digit| *digit == inode);
            found.and_then(|place| u8::try_from(place).ok())
        };
        self.is_over |= inode == marks.lines;
        self.sixteens = self.sixteens.or_else(|| place(&marks.digits.sixteens));
        self.ones = self.ones.or_else(|| place(&marks.digits.ones));
    }

    /// Returns the exit code, if all marks are there.
    #[must_use]
    pub fn status(&self) -> Option<u8> {
        let (sixteens, ones) = (self.sixteens?, self.ones?);
        self.is_over.then_some(sixteens * 16 + ones)
    }
}

/// The end of a job that ran beside the shell of its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReapedJob {
    pub pid: u32,
    /// Exit code, or 256 and the signal; `None` if the process ended unseen.
    pub status: Option<u16>,
    /// Usage of the process and of those that it waited for. No call was denied to it alone.
    pub counts: InitCounters,
}

/// How the payload ended and what the cell used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PayloadEnd {
    /// Exit code, or 256 and the signal.
    pub status: u16,
    /// Why init ended it, where it did.
    pub over_limit: Option<OverLimit>,
    pub counts: InitCounters,
}

/// Limits for which init ends a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OverLimit {
    /// It uses more memory than it may, and no control group holds that.
    Memory,
    /// The host is about to run out of memory.
    HostMemory,
    /// It has more open files than its share of the machine's.
    OpenFiles,
}

/// Counters of init.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitCounters {
    /// Of the processes that init reaped, since the cell began. At the end of a call of a session: of its shell too, with
    /// those that this has waited for.
    pub user_us: u64,
    pub system_us: u64,
    /// Largest resident set of one process, or of the cell where init watches it, in bytes.
    pub max_rss: u64,
    /// Denied calls since the last [`FromInit::Counted`] follow in the same packet, each a number
    /// (u16) and a count (u32). To the number of one that was refused for a name, [`GUARDED`] is
    /// added.
    pub denied: u16,
}

/// From the payload, before exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromPayload {
    Failed {
        step: Step,
        errno: i32,
    },
    /// Ready for a job, with the errnos of its probes, 0 for a probe that succeeded.
    Ready(Probes),
    /// The directory to start in cannot be entered.
    Cwd {
        errno: i32,
    },
    /// The program cannot be executed.
    Exec {
        errno: i32,
    },
}

/// Errnos that the payload met when it tried what it must not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probes {
    /// Opening the canary after Landlock; opening it before had worked.
    pub canary: i32,
    /// unshare(CLONE_NEWUSER).
    pub namespace: i32,
    /// socket(AF_PACKET).
    pub packet: i32,
    /// Making a name that the host obeys in a grant, and a directory that exists in `/tmp`: the errnos of
    /// both by the name guard. None if it is off.
    pub names: Option<(i32, i32)>,
}

/// To init.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    clippy::large_enum_variant,
    reason = "a message is on the stack for one call; init allocates none"
)]
pub enum ToInit {
    /// The id maps are written.
    Mapped,
    /// The probes are over: become untraceable, forget their denials. Meanwhile the payload is measured.
    Seal,
    /// A job is about to be handed over that may use this much memory: less than the profile has, or
    /// to be watched.
    Watch { memory: u64 },
    /// Send TERM to every process of the cell.
    Terminate,
    /// Send INT to the payload's process group, as a terminal does for ^C, but to nothing there that is of an earlier
    /// command than the one that began at this time.
    Interrupt { since: Ticks },
    /// Send a signal to the processes that began at this time or later, and INT to the payload.
    Signal { signal: JobSignal, since: Ticks },
    /// End the cell, in the tier where the end of its init is not the end of all else.
    End,
    /// Report whether the shell shows the end of a call. If it does, report the counters too; refused calls are counted
    /// from zero again, and a request about the input of the call is dropped.
    LookAtShell(ShellLook),
    /// Answer: the orders before this one are carried out.
    Confirm,
    /// Take the directory of the shell in a procfs, which comes with this: in cells that have no `/proc`.
    ShellDirectory,
    /// Report the end of this process, which leads the process group of a job beside the shell. Its input
    /// is dropped with it.
    Follow { pid: u32, input: Option<InputFile> },
    /// Send a signal to the job that this process leads.
    SignalJob { signal: JobSignal, pid: u32 },
    /// Report if a process waits for this input; if none does, report again once one does. A request about
    /// the same input is replaced.
    AskInput { number: u32, input: InputFile },
    /// Report changes in the workspace. If it is not empty, scan it now, and let the payload continue when
    /// that is done.
    Look(First),
}

/// A time since boot, as the start of a process in proc(5): hundredths of a second. By the boot clock of
/// the supervisor, whose time namespace its inits have.
pub type Ticks = u64;

/// A command's input, identified by fstat(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    pub device: u64,
    pub inode: u64,
}

/// State of the workspace when a job is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum First {
    Nothing,
    /// Init scans it while the payload waits.
    Something,
}

/// To the payload: the job. Descriptors: stdin, stdout, stderr, the strings if they are
/// [`StringSpan::Sealed`], the script if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToPayload {
    /// Bytes of the strings: directory, candidates, arguments, variables, each ended by NUL.
    pub bytes: u32,
    pub place: StringSpan,
    pub candidates: u32,
    pub arguments: u32,
    pub limits: Limits,
    /// State of the workspace: the payload waits for init if it is to be scanned.
    pub first: First,
    /// True if the standard input is a terminal, which becomes the controlling one.
    pub terminal: bool,
}

/// Place of a job's strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StringSpan {
    /// Behind the message, in the same packet: no file is made for those of nearly every job.
    Here,
    /// In a sealed memfd.
    Sealed,
}

/// Most bytes of strings that travel in a packet.
pub const HERE_BYTES: usize = 32 << 10;

/// Sends one message with strings behind it.
pub fn send_with(
    to: impl AsFd,
    message: &ToPayload,
    strings: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<()> {
    let mut packet = postcard::to_stdvec(message).map_err(|_| Errno::EMSGSIZE)?;
    packet.extend_from_slice(strings);
    socket::send(to, &packet, fds)
}

/// Sends the changes in the workspace.
pub(crate) fn tell_changed(to: impl AsFd, changed: &FilesChanged) -> Result<()> {
    let packet = postcard::to_stdvec(&(FromInit::Changed, changed));
    socket::send(to, &packet.map_err(|_| Errno::EMSGSIZE)?, &[])
}

/// Decodes the changes that follow [`FromInit::Changed`]; `None` if the bytes are not such.
pub fn changed(bytes: &[u8]) -> Option<FilesChanged> {
    postcard::from_bytes(bytes).ok()
}

/// Sends one message from the stack.
pub fn send<T: Serialize>(to: impl AsFd, message: &T, fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut buffer = [0_u8; 512];
    let bytes = postcard::to_slice(message, &mut buffer).map_err(|_| Errno::EMSGSIZE)?;
    socket::send(to, bytes, fds)
}

/// Sends one message without waiting, so that a process that does not read cannot hold up its sender.
///
/// # Errors
/// EAGAIN: the other end has not read what was sent before.
pub fn send_now<T: Serialize>(to: impl AsFd, message: &T) -> Result<()> {
    let mut buffer = [0_u8; 512];
    let bytes = postcard::to_slice(message, &mut buffer).map_err(|_| Errno::EMSGSIZE)?;
    socket::send_now(to, bytes, &[])
}

/// Decodes one message.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|_| Errno::EBADMSG)
}

impl From<StepFailed> for FromInit {
    fn from(failed: StepFailed) -> Self {
        Self::Failed { step: failed.step, errno: raw(failed.errno) }
    }
}

impl From<StepFailed> for FromPayload {
    fn from(failed: StepFailed) -> Self {
        Self::Failed { step: failed.step, errno: raw(failed.errno) }
    }
}

/// Marks the number of a call that was refused for the name it would have made.
pub const GUARDED: u16 = 0x8000;

/// Decodes the denied calls that follow [`InitCounters`]: pairs of a number (u16) and a count (u32).
pub fn denials(bytes: &[u8], count: u16) -> Vec<DeniedCall> {
    bytes
        .chunks_exact(6)
        .take(usize::from(count))
        .filter_map(|pair| {
            let (number, count) = pair.split_first_chunk::<2>()?;
            let number = u16::from_le_bytes(*number);
            Some(DeniedCall {
                number: u32::from(number & !GUARDED),
                count: u32::from_le_bytes(*count.first_chunk::<4>()?),
                by: if number & GUARDED == 0 { DeniedBy::Filter } else { DeniedBy::NameGuard },
            })
        })
        .collect()
}
