//! The seam between the protocol and what runs: what a tool call needs, and what it tells.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::arguments::{BadArguments, BashArguments, Precision};
use super::exec::Options;
use super::files;
use super::jobs;
use super::rules::Rules;
use super::sessions::{Answer, ToldSession};
pub use crate::tools::Caller as Turn;
use crate::tools::bc::plot::{Drawn, Plot};
use crate::tools::cli::{Asking, Declared, Done};
pub use crate::tools::denied::ToldDenial;
use crate::tools::shell::ScriptArgs;
use model::call::InvalidCall;
use model::outcome::{Failure, FilesChanged, Outcome, Timings, Usage};
use model::receipt::Receipt;
use policy::Denial;

/// What stands behind the tools. The server has one; tests have a fake one.
///
/// Every future must end soon after `turn.cancel` is tripped, and within 2 s at the latest:
/// the cell is killed whole and what it had printed is told.
pub trait Backend: Send + Sync + 'static {
    /// Runs a command in the shell of its session.
    fn bash(
        &self,
        arguments: BashArguments,
        turn: Turn,
    ) -> impl Future<Output = Result<Answer, Refused>> + Send;

    /// Evaluates one expression and rounds it to `precision` (rulings R9).
    fn calculate(
        &self,
        expression: String,
        precision: Precision,
        within: Option<Duration>,
        turn: Turn,
    ) -> impl Future<Output = Result<Calculated, Refused>> + Send;

    /// Runs a bc script; its raw output, every line.
    fn calculate_advanced(
        &self,
        script: String,
        precision: Precision,
        within: Option<Duration>,
        turn: Turn,
    ) -> impl Future<Output = Result<Calculated, Refused>> + Send;

    /// Runs a script in a fresh cell, as a call of `tool`.
    fn script(
        &self,
        tool: &'static str,
        args: ScriptArgs,
        turn: Turn,
    ) -> impl Future<Output = Result<Told, Refused>> + Send {
        let (_, _) = (args, turn);
        std::future::ready(Err(Refused::failed(format!("`{tool}` is not run here"))))
    }

    /// Reads or writes a file of the workspace, as a call of `tool`.
    fn file(
        &self,
        tool: &'static str,
        asked: files::arguments::Asked,
        turn: Turn,
    ) -> impl Future<Output = Result<files::Filed, Refused>> + Send {
        let (_, _) = (asked, turn);
        std::future::ready(Err(Refused::failed(format!("`{tool}` has no files here"))))
    }

    /// What the operator says of `bash_exec`.
    fn exec_options(&self) -> Options {
        Options::default()
    }

    /// Evaluates expressions, each on its own; what is wrong with one is told in its entry.
    fn calculate_batch(
        &self,
        expressions: Vec<String>,
        precision: Precision,
        turn: Turn,
    ) -> impl Future<Output = Result<Batch, Refused>> + Send;

    /// Draws a function.
    fn calculate_plot(
        &self,
        plot: Plot,
        turn: Turn,
    ) -> impl Future<Output = Result<Plotted, Refused>> + Send;

    /// Calls that run or wait for a turn now.
    fn pending(&self) -> usize {
        0
    }

    /// The declared commands that are offered here.
    fn commands(&self) -> &[Declared] {
        &[]
    }

    /// Whether a built-in tool is listed. A call of one that is not is still decided, and recorded.
    fn lists(&self, tool: &str) -> bool {
        self.withheld(tool).is_none()
    }

    /// Why a tool that exists is not offered; `None` for one that is, or that does not exist.
    fn withheld(&self, tool: &str) -> Option<Refused> {
        let _: &str = tool;
        None
    }

    /// Runs one of [`Backend::commands`]; what is wrong with its words is told in the result.
    fn command(
        &self,
        declared: &Declared,
        asking: Asking,
        turn: Turn,
    ) -> impl Future<Output = Result<Done, Refused>> + Send {
        let (_, _) = (asking, turn);
        std::future::ready(Err(Refused::failed(format!(
            "`{}` is not run here",
            declared.command.name
        ))))
    }

    /// Looks at jobs, or ends one.
    fn job(
        &self,
        ask: jobs::Ask,
        turn: Turn,
    ) -> impl Future<Output = Result<jobs::Answer, Refused>> + Send {
        let (_, _) = (ask, turn);
        std::future::ready(Err(Refused::failed("there are no jobs here")))
    }

    /// Returns a future that resolves at the end of a job, or `None` where there is no such job.
    fn end_of(&self, job: &str) -> Option<Pin<Box<dyn Future<Output = JobEnd> + Send>>> {
        let _: &str = job;
        None
    }

    /// Notes that the arguments of a call were not taken, so that nothing was decided about it.
    fn invalid(&self, tool: &str, why: &str) {
        tracing::debug!(tool, why, "arguments that were not taken");
    }

    /// Resolves when it is known what cells can be had here.
    fn settled(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// What an agent may do here, as it is in force.
    fn rules(&self) -> Rules;
}

/// The story of one command that got as far as a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub outcome: Outcome,
    pub stdout: Stream,
    pub stderr: Stream,
    pub usage: Usage,
    pub denials: Vec<ToldDenial>,
    /// The directory it started in, as the cell sees it; for a session, where its shell is now.
    pub cwd: String,
    /// The wall time it had.
    pub timeout: Duration,
    /// Whether it had asked for more.
    pub clamped: Clamped,
    pub receipt: Option<Receipt>,
    pub timings: Timings,
    /// Lines that the audit log lacks, and why, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
    /// Absent for a cell of its own.
    pub session: Option<ToldSession>,
    /// What changed in the workspace, where something did or is not known.
    pub files_changed: Option<FilesChanged>,
}

/// Whether a call got the time it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clamped {
    No,
    Yes,
}

/// The end of a command that nobody waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEnd {
    pub outcome: Outcome,
    /// Wall time.
    pub took: Duration,
    /// Bytes of both streams.
    pub printed: u64,
    /// Bytes that it was given while it ran.
    pub fed: usize,
}

/// One output stream, made fit for text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stream {
    /// Head and tail, with a note between them where something is left out.
    pub text: String,
    /// Bytes produced in all.
    pub bytes: u64,
    pub cut: Cut,
}

/// Whether a stream's text is all of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Cut {
    #[default]
    Whole,
    HeadAndTail,
    /// What follows is read with the next call.
    Part,
}

/// What a calculation gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calculated {
    /// Empty when nothing was printed.
    pub result: String,
    /// Whether two working scales agreed on every digit shown.
    pub exact: Exact,
    pub took: Duration,
    pub ran: Ran,
    /// Lines that the audit log lacks, and why, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ran {
    /// From a cell, protected by this.
    InCell(Option<Box<Receipt>>),
    /// It was calculated before by this server: no cell ran.
    Remembered,
}

/// What a batch of calculations gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// For each expression its value, or why it has none.
    pub entries: Vec<Result<(String, Exact), String>>,
    pub took: Duration,
    pub receipt: Option<Receipt>,
    /// Lines that the audit log lacks, and why, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}

/// A function that was drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Plotted {
    pub drawn: Drawn,
    pub took: Duration,
    pub receipt: Option<Receipt>,
    /// Lines that the audit log lacks, and why, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exact {
    Yes,
    No,
}

/// A call that has no story to tell: nothing ran, or what ran gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    pub kind: RefusedKind,
    pub message: String,
    pub hint: Option<String>,
    /// What protected the cell, where one ran and gave no result.
    pub receipt: Option<Box<Receipt>>,
}

/// Why there is no story.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedKind {
    /// The arguments were not taken.
    Arguments,
    /// Policy forbids it.
    Denied,
    /// The caller took it back before it had a cell.
    Cancelled,
    /// cofferdam could not do it, or the calculator answered with an error.
    Failed,
}

impl Refused {
    pub fn new(kind: RefusedKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, receipt: None }
    }

    /// A failure told in words alone, such as `BC error: divide by zero`.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(RefusedKind::Failed, message)
    }

    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same, with what protected the cell that ran.
    #[must_use]
    pub fn protected_by(mut self, receipt: Option<Receipt>) -> Self {
        self.receipt = receipt.map(Box::new);
        self
    }

    /// Taken back before anything ran.
    pub fn cancelled() -> Self {
        Self::new(RefusedKind::Cancelled, "cancelled before it started")
    }
}

impl From<BadArguments> for Refused {
    fn from(bad: BadArguments) -> Self {
        Self { hint: bad.hint, ..Self::new(RefusedKind::Arguments, bad.message) }
    }
}

impl From<InvalidCall> for Refused {
    fn from(invalid: InvalidCall) -> Self {
        Self::new(RefusedKind::Arguments, invalid.to_string())
    }
}

impl From<Denial> for Refused {
    fn from(denial: Denial) -> Self {
        let message = denial.to_string();
        let hint = Some(denial.hint).filter(|hint| !hint.is_empty());
        Self { hint, ..Self::new(RefusedKind::Denied, message) }
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        let hint = failure.hint().map(str::to_owned);
        Self { hint, ..Self::new(RefusedKind::Failed, failure.to_string()) }
    }
}
