//! Messages between the supervisor and a cell's init and payload.
//!
//! Encoded with postcard into a buffer on the stack: the cell's side does not allocate.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::{Step, StepFailed};
use model::job::{JobSignal, Limits};
use model::outcome::{DeniedBy, DeniedCall, FilesChanged, FullFilesystems, Waits};
pub use sys::raw;
use sys::{Result, socket};

/// Maximum size of a report in bytes: three times 512 denied calls of 6 bytes each, the path of a
/// half-made repository, names of hosts, and a hundred changed files with 16 KiB of paths, plus the
/// message itself.
pub const REPORT_BYTES: usize = 32 << 10;

/// Messages from init.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromInit {
    /// A step failed; the process ends.
    Failed { step: Step, errno: i32 },
    /// Carries the packet socket of the cell's network, for the gateway.
    Network,
    /// Init cannot be traced any more: the cell can be handed out.
    Sealed,
    /// The payload has ended; the cell ends after this message. In the same packet follow the denied
    /// calls, the half-made repository, the hosts that were not reached, and the changes in the
    /// workspace if it was scanned.
    Ended(PayloadEnd),
    /// The answer to [`ToInit::LookAtShell`]. If the call is over, the counters follow in
    /// [`FromInit::Counted`], once the workspace is scanned if replies list changed files.
    Shown { number: u64, shell: ShownState },
    /// The answer to [`ToInit::Confirm`]: whether the payload is exiting.
    Confirmed { is_ending: bool },
    /// Counters at the end of a call of a session. The rest of the packet is as in
    /// [`FromInit::Ended`].
    Counted(InitCounters),
    /// The answer to [`ToInit::AskInput`]: sent at once, and again when a process waits for the
    /// input.
    Input { number: u32, waits: Waits },
    /// A process named by [`ToInit::Follow`] has ended. The denied calls since the last
    /// [`FromInit::Counted`] follow; they stay in the next count.
    JobEnded(ReapedJob),
}

/// State of a call according to the descriptors of its session's shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShownState {
    /// The call is not over.
    Runs { has_input: bool },
    /// The call is over, with this exit code.
    Over { status: u8 },
    /// The descriptors cannot be read.
    Unseen { errno: i32 },
}

/// A call whose end init looks for in the descriptors of its shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellLook {
    /// Number of the call in its session.
    pub number: u64,
    pub marks: Marks,
    pub input: Option<InputFile>,
}

/// The files whose open descriptors in a shell mean that a call is over, and with which exit code.
/// All are in the mailbox, a filesystem to which no program of the cell can add files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// Device number of the mailbox.
    pub device: u64,
    /// Inode of the file with the lines around the command.
    pub lines: u64,
    pub digits: Digits,
}

/// Inodes of the files for the two hexadecimal digits of an exit code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digits {
    pub sixteens: [u64; 16],
    pub ones: [u64; 16],
}

/// The marks that were found so far.
#[derive(Debug, Default)]
pub struct FoundMarks {
    is_over: bool,
    sixteens: Option<u8>,
    ones: Option<u8>,
}

impl FoundMarks {
    /// Records a file that the shell holds open.
    pub fn add(&mut self, marks: &Marks, device: u64, inode: u64) {
        if device != marks.device {
            return;
        }
        let digit = |digits: &[u64]| {
            let index = digits.iter().position(|digit| *digit == inode);
            index.and_then(|index| u8::try_from(index).ok())
        };
        self.is_over |= inode == marks.lines;
        self.sixteens = self.sixteens.or_else(|| digit(&marks.digits.sixteens));
        self.ones = self.ones.or_else(|| digit(&marks.digits.ones));
    }

    /// Returns the exit code if all marks were found.
    #[must_use]
    pub fn status(&self) -> Option<u8> {
        let sixteens = self.sixteens?;
        let ones = self.ones?;
        self.is_over.then_some(sixteens * 16 + ones)
    }
}

/// The end of a background job of a session's shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReapedJob {
    pub pid: u32,
    /// Exit code, or 256 plus the signal; `None` if init did not see the end.
    pub status: Option<u16>,
    /// Usage of the process and of the children that it waited for. Denied calls are not counted
    /// per job.
    pub counts: InitCounters,
}

/// How the payload ended, and the resources of the cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PayloadEnd {
    /// Exit code, or 256 plus the signal.
    pub status: u16,
    /// The limit for which init ended it, if any.
    pub over_limit: Option<OverLimit>,
    pub counts: InitCounters,
}

/// Limits for which init ends a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OverLimit {
    /// The cell exceeds its memory limit, and no control group enforces that.
    Memory,
    /// The host is about to run out of memory.
    HostMemory,
    /// The cell has more open files than its share of the machine's.
    OpenFiles,
}

/// Counters of init.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitCounters {
    /// Sum over the processes that init reaped since the cell began. At the end of a session's call
    /// it includes the shell and the children that the shell waited for.
    pub user_us: u64,
    pub system_us: u64,
    /// Largest resident set of one process in bytes; if init watches the memory, that of the whole
    /// cell.
    pub max_rss: u64,
    /// Number of denied calls since the last [`FromInit::Counted`]. They follow in the same packet,
    /// each a number (u16) and a count (u32). [`GUARDED`] is added to the number of a call that was
    /// refused because of a name, and [`REPOSITORY`] or [`CONFIGURATION`] if all such names would
    /// have made that; [`UNREADABLE`] is added to that of a program whose memory init cannot read.
    /// Then comes the length (u16) and the path of a directory that was to be a repository, or a
    /// length of zero.
    pub denied: u16,
    /// Looked at only if the program or command has failed.
    pub full: FullFilesystems,
}

/// Messages from the payload before its exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromPayload {
    Failed {
        step: Step,
        errno: i32,
    },
    /// Ready for a job; carries the errnos of the probes, 0 for a probe that succeeded.
    Ready(Probes),
    /// The start directory cannot be entered.
    Cwd {
        errno: i32,
    },
    /// The program cannot be executed.
    Exec {
        errno: i32,
    },
}

/// Errnos of calls that must be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probes {
    /// Opening the canary after Landlock, which succeeded before it.
    pub canary: i32,
    /// unshare(CLONE_NEWUSER).
    pub namespace: i32,
    /// socket(AF_PACKET).
    pub packet: i32,
    /// Errnos of the name guard: for making a name in a grant that the host obeys, and for making
    /// an existing directory in `/tmp`. `None` if the guard is off.
    pub names: Option<(i32, i32)>,
}

/// Orders to init.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    clippy::large_enum_variant,
    reason = "a message is on the stack for one call; init allocates none"
)]
pub enum ToInit {
    /// The id maps are written.
    Mapped,
    /// The probes are over: become untraceable, and reset the counts of denied calls. Meanwhile the
    /// supervisor measures the payload.
    Seal,
    /// A job with this memory limit is about to be handed over; the limit is lower than the
    /// profile's, or must be watched.
    Watch { memory: u64 },
    /// Send TERM to every process of the cell.
    Terminate,
    /// Send INT to the payload's process group, as a terminal does for ^C, but not to processes of
    /// commands that began before this time.
    Interrupt { since: Ticks },
    /// Send a signal to the processes that began at this time or later, and INT to the payload.
    Signal { signal: JobSignal, since: Ticks },
    /// End the cell, in the tier where its processes do not end with init.
    End,
    /// Report whether the shell shows the end of a call. If it does, report the counters too, reset
    /// the counts of refused calls, and drop the request about the input of the call.
    LookAtShell(ShellLook),
    /// Answer once the orders before this one are executed.
    Confirm,
    /// Use the attached descriptor as the shell's directory in a procfs, in cells without `/proc`.
    ShellDirectory,
    /// Report the end of this process, which leads the process group of a background job. Its input
    /// request is then dropped.
    Follow { pid: u32, input: Option<InputFile> },
    /// Send a signal to the job that this process leads.
    SignalJob { signal: JobSignal, pid: u32 },
    /// Report whether a process waits for this input; if not, report again once one does. Replaces
    /// an earlier request about the same input.
    AskInput { number: u32, input: InputFile },
    /// Report once whether a process of this call of a session waits for a terminal that it does not
    /// have. The answer is [`FromInit::Input`].
    AskTerminal { number: u32, call: u64 },
    /// Report changes in the workspace. If it is not empty, scan it now, and let the payload
    /// continue afterwards.
    Look(First),
}

/// A time since boot in hundredths of a second, like the start time of a process in proc(5). Uses
/// the boot clock of the supervisor, whose time namespace its inits share.
pub type Ticks = u64;

/// The input of a command, identified by fstat(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    pub device: u64,
    pub inode: u64,
}

/// Content of the workspace when a job is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum First {
    Nothing,
    /// Init scans the workspace while the payload waits.
    Something,
}

/// The job, sent to the payload. Attached descriptors: stdin, stdout, stderr, the strings if they
/// are [`StringSpan::Sealed`], and the script if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToPayload {
    /// Bytes of the strings: directory, candidates, arguments and variables, each terminated by
    /// NUL.
    pub bytes: u32,
    pub place: StringSpan,
    pub candidates: u32,
    pub arguments: u32,
    pub limits: Limits,
    /// Content of the workspace: if it must be scanned, the payload waits for init.
    pub first: First,
    /// True if the standard input is a terminal that becomes the controlling one.
    pub terminal: bool,
}

/// Location of a job's strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StringSpan {
    /// In the same packet, after the message: nearly all jobs fit, and need no file.
    Here,
    /// In a sealed memfd.
    Sealed,
}

/// Maximum bytes of strings in a packet.
pub const HERE_BYTES: usize = 32 << 10;

/// Sends one message, followed by strings.
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

/// Sends one message from a buffer on the stack.
pub fn send<T: Serialize>(to: impl AsFd, message: &T, fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut buffer = [0_u8; 512];
    let bytes = postcard::to_slice(message, &mut buffer).map_err(|_| Errno::EMSGSIZE)?;
    socket::send(to, bytes, fds)
}

/// Sends one message without blocking, so that a process that does not read cannot block its
/// sender.
///
/// # Errors
/// EAGAIN: the other end has not read the earlier messages.
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

/// Flag in the number of a call that was refused because of a name.
pub const GUARDED: u16 = 0x8000;
/// Flags in such a number: the names would have made a repository, or changed a repository's
/// configuration.
pub const REPOSITORY: u16 = 0x4000;
pub const CONFIGURATION: u16 = 0x2000;
/// Flag in the number of a call of a program whose memory init cannot read.
pub const UNREADABLE: u16 = 0x1000;
const FLAGS: u16 = GUARDED | REPOSITORY | CONFIGURATION | UNREADABLE;

/// Maximum bytes of the path of a half-made repository.
pub(crate) const MAX_HALF_MADE: usize = 1024;

/// Bytes of one denied call in a packet.
const DENIED_BYTES: usize = 6;

/// Maximum number of names, and of addresses, among the hosts in one report; further ones are left
/// out.
pub(crate) const MAX_HOSTS: usize = 8;

/// A host that programs of the cell did not reach, as the cell has no network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreachedHost {
    /// A name that did not resolve, or an address and a port without a route.
    pub to: String,
    pub count: u32,
}

/// Contents of a packet after [`InitCounters`], at the end of a command.
#[derive(Debug, Default)]
pub struct Appended {
    pub denials: Vec<DeniedCall>,
    pub unreached: Vec<UnreachedHost>,
    /// Changes in the workspace, if it was scanned.
    pub changed: Option<FilesChanged>,
}

/// Decodes what follows [`InitCounters`] at the end of a command.
pub fn appended(bytes: &[u8], count: u16) -> Appended {
    let denials = denials(bytes, count);
    let (_, rest) = half_made(bytes, count);
    match postcard::take_from_bytes(rest) {
        Ok((unreached, rest)) => {
            Appended { denials, unreached, changed: postcard::from_bytes(rest).ok() }
        }
        Err(_) => Appended { denials, ..Appended::default() },
    }
}

/// Returns the path of a half-made repository after the denied calls, and what follows it.
fn half_made(bytes: &[u8], count: u16) -> (&[u8], &[u8]) {
    let rest = bytes.get(usize::from(count) * DENIED_BYTES..).unwrap_or_default();
    let Some((length, rest)) = rest.split_first_chunk::<2>() else { return (&[], &[]) };
    let length = usize::from(u16::from_le_bytes(*length));
    let split = rest.split_at_checked(length).filter(|_| length <= MAX_HALF_MADE);
    split.unwrap_or_default()
}

/// Decodes the denied calls after [`InitCounters`]: pairs of a number (u16) and a count (u32).
pub fn denials(bytes: &[u8], count: u16) -> Vec<DeniedCall> {
    let (half_made, _) = half_made(bytes, count);
    let by = |number: u16| match number & FLAGS {
        0 => DeniedBy::Filter,
        flags if flags & REPOSITORY != 0 => {
            let half_made = String::from_utf8_lossy(half_made).into_owned();
            DeniedBy::RepositoryGuard { half_made: Some(half_made).filter(|path| !path.is_empty()) }
        }
        flags if flags & CONFIGURATION != 0 => DeniedBy::ConfigurationGuard,
        flags if flags & UNREADABLE != 0 => DeniedBy::UnreadableProgram,
        _ => DeniedBy::NameGuard,
    };
    bytes
        .chunks_exact(DENIED_BYTES)
        .take(usize::from(count))
        .filter_map(|pair| {
            let (number, count) = pair.split_first_chunk::<2>()?;
            let number = u16::from_le_bytes(*number);
            Some(DeniedCall {
                number: u32::from(number & !FLAGS),
                count: u32::from_le_bytes(*count.first_chunk::<4>()?),
                by: by(number),
            })
        })
        .collect()
}
