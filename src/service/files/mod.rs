//! Files of `/workspace`, read and written by the clerk, cofferdam's own program in the cell that
//! has them.
//!
//! A private `/workspace` exists only in the cells of its session, so the session's shell starts
//! the clerk like any command. A granted directory gets a fresh cell for each request: such a
//! request does not wait for a command that runs in a session, and is independent of changes to its
//! shell.
//!
//! *Invariant:* nothing here opens a file. The answer comes from a cell and is parsed as hostile
//! input.

mod answer;

use std::time::Duration;

pub use answer::{DirectoryEntry, EntryKind, FileAnswer, FileError, Region, ReplacedFile, read};

use nix::errno::Errno;

use crate::capture::Captured;
use crate::refused::{Refused, RefusedKind};
use crate::report::FileReport;
use crate::request::{ClerkRequest, FileRequest, Overwrite, SessionCommand, Wait};
use crate::session::{Restart, Retention};
use crate::shell::{self, ScriptArgs};
use crate::workbench::{RunOptions, Workbench};
use crate::{Caller, Refusal, Scope};
use model::call::{Asked, CLERK, Call, FilePath, InvalidCall, STDIN_BYTES, Stdin};
use model::job::{Access, Workspace};
use model::outcome::{DeniedCall, Failure, Outcome};
use model::receipt::Receipt;
use model::shells::ShellKind;

/// Bytes of a file that are read or written in one request, at most.
pub const FILE_BYTES: usize = STDIN_BYTES;
/// Bytes of an answer, at most: a file, and its description.
const ANSWER_BYTES: usize = FILE_BYTES + (64 << 10);
/// Time of a request, at most; the limit of the tool's rule may be lower.
const TIME: Duration = Duration::from_secs(30);

/// Result of a request that got as far as a cell.
#[derive(Debug)]
pub struct FileReply {
    /// Answer of the clerk.
    pub answer: Result<FileAnswer, FileError>,
    pub denials: Vec<DeniedCall>,
    pub receipt: Option<Receipt>,
    /// Reason why the session has a new shell, where it had another.
    pub renewed: Option<String>,
}

/// Reason why a file request has no answer from the clerk.
#[derive(Debug, thiserror::Error)]
pub enum FileFailure {
    #[error(transparent)]
    Invalid(#[from] InvalidCall),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error("the call was cancelled")]
    Cancelled,
    #[error("the cell gave no answer within {} s", TIME.as_secs())]
    Late,
    #[error("the cell ended while it worked on the file, which may have been changed or not")]
    CutShort,
    #[error("the cell's answer was not understood: {said}")]
    Garbled { said: String },
}

impl From<FileFailure> for Refused {
    fn from(failure: FileFailure) -> Self {
        match failure {
            FileFailure::Invalid(invalid) => invalid.into(),
            FileFailure::Refused(refusal) => refusal.into(),
            FileFailure::Failed(failure) => failure.into(),
            FileFailure::Cancelled => Self::new(RefusedKind::Cancelled, failure.to_string()),
            FileFailure::Late => Self::failed(failure.to_string()),
            FileFailure::CutShort => Self::failed(failure.to_string())
                .with_hint("look at the file before you try again: edit with `view`, or get_file"),
            FileFailure::Garbled { .. } => Self::failed(failure.to_string())
                .with_hint("bash with `restart` gives the session a new shell"),
        }
    }
}

impl ClerkRequest {
    /// Returns the words after the program's name, and its standard input.
    fn parts(self, path: &FilePath) -> (Vec<String>, Vec<u8>) {
        let path = path.as_str().to_owned();
        match self {
            Self::View { first, last } => {
                (vec!["view".to_owned(), path, first.to_string(), last.to_string()], Vec::new())
            }
            Self::Put { bytes, mode, over } => {
                let mode = mode.map_or("-".to_owned(), |mode| format!("{mode:o}"));
                let over = match over {
                    Overwrite::Nothing => "new",
                    Overwrite::Any => "over",
                };
                (vec!["create".to_owned(), path, mode, over.to_owned()], bytes)
            }
            Self::Replace { old, new } => {
                let length = old.len().to_string();
                (vec!["replace".to_owned(), path, length], [old, new].concat())
            }
            Self::Insert { after, text } => {
                (vec!["insert".to_owned(), path, after.to_string()], text)
            }
            Self::Get { offset, length } => {
                (vec!["get".to_owned(), path, offset.to_string(), length.to_string()], Vec::new())
            }
        }
    }
}

/// Builds the call that starts the clerk by itself.
fn alone(tool: &'static str, words: Vec<String>, stdin: Stdin) -> Result<Call, InvalidCall> {
    let words = std::iter::once(CLERK.to_owned()).chain(words).collect();
    let call = shell::run(words, model::call::Env::default(), Asked::default())?;
    Ok(Call { tool: tool.into(), stdin, ..call })
}

/// Builds the call for a session's shell, which starts the clerk in a subshell that it replaces.
fn in_shell(
    tool: &'static str,
    shell: ShellKind,
    words: &[String],
    stdin: Stdin,
) -> Result<Call, InvalidCall> {
    let words: String = words.iter().map(|word| format!(" {}", shell.quoted(word))).collect();
    let command = match shell {
        ShellKind::Bash => format!("(\\builtin exec {CLERK}{words})"),
        ShellKind::Sh | ShellKind::Zsh => format!("(\\exec {CLERK}{words})"),
        ShellKind::Fish => format!("{CLERK}{words}"),
    };
    let call = shell::script(tool, ScriptArgs { command, ..ScriptArgs::default() })?;
    Ok(Call { stdin, ..call })
}

/// Reads or writes a file of the workspace, as a call of `tool`.
///
/// # Errors
/// The reason why the file was not read or written.
pub async fn file(
    scope: &Scope,
    tool: &'static str,
    request: FileRequest,
    caller: Caller,
) -> Result<FileReport, Refused> {
    let FileRequest { path, request, session } = request;
    let workbench = &scope.workbench;
    let reply = answered(workbench, tool, &path, request, session, &caller).await?;
    let FileReply { answer, denials, receipt, renewed } = reply;
    let answer = answer.map_err(|no| {
        let hint = way_out(&no, workbench.shared.granted);
        let refused = Refused::failed(format!("{} {no}", path.as_str()));
        let refused = Refused { hint: hint.map(str::to_owned), ..refused };
        refused.protected_by(receipt.clone())
    })?;
    Ok(FileReport {
        answer,
        denials: denials.iter().map(|denied| scope.denial(denied)).collect(),
        receipt,
        renewed,
        unrecorded: workbench.audit.trouble(),
    })
}

/// Passes a request of `tool` to the cell that has the file, and returns its answer.
///
/// # Errors
/// The reason why there is no answer.
async fn answered(
    workbench: &Workbench,
    tool: &'static str,
    path: &FilePath,
    request: ClerkRequest,
    session: String,
    caller: &Caller,
) -> Result<FileReply, FileFailure> {
    let (words, bytes) = request.parts(path);
    let stdin = Stdin::bytes("the content", bytes)?;
    match workbench.shared.workspace {
        Workspace::Fresh | Workspace::Session(_) => {
            let call = timed(in_shell(tool, workbench.sessions.shell_of(&session), &words, stdin)?);
            let command = SessionCommand {
                session,
                call,
                shell: None,
                restart: Restart::No,
                wait: Wait::ToTheEnd,
                kept: Retention::Apart { bytes: ANSWER_BYTES },
            };
            let (command, renewed) = workbench.in_session(command, caller).await?;
            let ended = command.finished().ok_or(FileFailure::Late)?;
            let (stdout, stderr) = command.output();
            let denials = ended.denials.clone();
            let receipt = command.receipt.clone();
            filed(&ended.outcome, &stdout, &stderr, denials, receipt, renewed.shell)
        }
        Workspace::Granted(_) => {
            let call = timed(alone(tool, words, stdin)?);
            let options = workbench.options(workbench.job_context(&call.tool));
            let options = RunOptions { keep: ANSWER_BYTES, ..options };
            let report = workbench.run(call, options, caller).await?;
            filed(
                &report.ended.outcome,
                &report.stdout,
                &report.stderr,
                report.ended.denials,
                report.receipt,
                None,
            )
        }
    }
}

/// Returns the hint for a file that was not read or written.
fn way_out(no: &FileError, granted: Option<Access>) -> Option<&'static str> {
    match no {
        FileError::Exists => Some("`overwrite` replaces it"),
        FileError::NoMatch => Some("`view` shows it as it is; spaces and ends of lines count"),
        FileError::Many { .. } => {
            Some("give more of the text around it, so that it stands only once")
        }
        FileError::Large { .. } => Some("bash has tools for parts of a file: sed, dd, split"),
        FileError::Changed => Some("something else writes to it; try again"),
        FileError::Errno { errno, .. } => hint_of_errno(Errno::from_raw(*errno), granted),
        FileError::Absent
        | FileError::Kind { .. }
        | FileError::Outside
        | FileError::Range { .. } => None,
    }
}

/// Explains an errno of the kernel for a request that is valid.
fn hint_of_errno(errno: Errno, granted: Option<Access>) -> Option<&'static str> {
    let guarded = "a cell cannot make or change what the host obeys: .git/hooks, .git/config, \
                   .envrc, .vscode, .idea, .claude, .mcp.json and the like";
    let is_refusal =
        [Errno::EPERM, Errno::EROFS, Errno::EBUSY, Errno::EXDEV, Errno::EACCES].contains(&errno);
    match granted {
        Some(Access::ReadOnly) if errno == Errno::EROFS => {
            Some("the operator granted /workspace for reading only")
        }
        Some(Access::ReadWrite | Access::Repository) if is_refusal && errno != Errno::EACCES => {
            Some(guarded)
        }
        Some(Access::Unguarded) if errno == Errno::EROFS || errno == Errno::EBUSY => Some(guarded),
        Some(
            Access::ReadOnly
            | Access::ReadWrite
            | Access::Repository
            | Access::Unguarded
            | Access::Cache
            | Access::Layer,
        )
        | None => None,
    }
}

fn timed(call: Call) -> Call {
    Call { asked: Asked { wall: Some(TIME), ..Asked::default() }, ..call }
}

fn filed(
    outcome: &Outcome,
    stdout: &Captured,
    stderr: &Captured,
    denials: Vec<DeniedCall>,
    receipt: Option<Receipt>,
    renewed: Option<String>,
) -> Result<FileReply, FileFailure> {
    let answer = match outcome {
        // The clerk exits with 0 whatever its answer; a shell could change that number.
        Outcome::Exited { .. } => stdout.whole().and_then(|bytes| read(&bytes)),
        Outcome::Timeout => return Err(FileFailure::Late),
        Outcome::Cancelled => return Err(FileFailure::Cancelled),
        Outcome::Failed(failure) => return Err(failure.clone().into()),
        Outcome::Signaled { .. } | Outcome::Limit(_) => {
            Some(stdout.whole().and_then(|bytes| read(&bytes)).ok_or(FileFailure::CutShort)?)
        }
    };
    let said = || {
        let whole = [stderr.head(), stdout.head()].concat();
        let text = String::from_utf8_lossy(&whole).trim().to_owned();
        let shown: String = text.chars().take(200).flat_map(char::escape_default).collect();
        if shown.is_empty() { "it is empty".to_owned() } else { shown }
    };
    let answer = answer.ok_or_else(|| FileFailure::Garbled { said: said() })?;
    Ok(FileReply { answer, denials, receipt, renewed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_whose_cell_ends_first_says_that_the_file_may_have_changed() {
        let answered = |stdout: &[u8], outcome: Outcome| {
            let stdout = Captured::of(stdout);
            let stderr = Captured::of(b"");
            filed(&outcome, &stdout, &stderr, Vec::new(), None, None)
        };
        let killed = Outcome::Signaled { signal: 9 };
        assert!(matches!(answered(b"", killed.clone()), Err(FileFailure::CutShort)));
        let put = b"cofferdam-clerk 1\nok\nwas created\nsize 3\nbytes 0\n\n";
        assert!(answered(put, killed).is_ok_and(|reply| reply.answer.is_ok()));
        let garbled = answered(b"hello", Outcome::Exited { code: 0 });
        assert!(matches!(garbled, Err(FileFailure::Garbled { said }) if said == "hello"));
    }
}
