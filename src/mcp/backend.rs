//! The interface between the protocol and the executor: the requests of a tool call, and the types
//! of its result.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::arguments::{BadArguments, BashArguments, Precision};
use super::exec::Options;
use super::files;
use super::jobs;
use super::rules::Rules;
use super::sessions::{BashAnswer, SessionReport};
pub use crate::tools::Caller as Turn;
use crate::tools::bc::plot::{Drawn, Plot};
use crate::tools::cli::{Declared, DeclaredRequest, DeclaredResult};
pub use crate::tools::denied::DenialReport;
use crate::tools::shell::ScriptArgs;
use model::call::InvalidCall;
use model::outcome::{Failure, FilesChanged, Outcome, Timings, Usage};
use model::receipt::Receipt;
use policy::Denial;

/// The executor behind the tools. The server has one; tests have a fake one.
///
/// Every future must end soon after `turn.cancel` is tripped, within 2 s at the latest: the whole
/// cell is killed, and the result has the output up to then.
pub trait Backend: Send + Sync + 'static {
    /// Runs a command in the shell of its session.
    fn bash(
        &self,
        arguments: BashArguments,
        turn: Turn,
    ) -> impl Future<Output = Result<BashAnswer, Refused>> + Send;

    /// Evaluates one expression and rounds it to `precision` decimal places.
    fn calculate(
        &self,
        expression: String,
        precision: Precision,
        within: Option<Duration>,
        turn: Turn,
    ) -> impl Future<Output = Result<Calculated, Refused>> + Send;

    /// Runs a bc script and returns every line of its output.
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
    ) -> impl Future<Output = Result<CommandReport, Refused>> + Send {
        let (_, _) = (args, turn);
        std::future::ready(Err(Refused::failed(format!("`{tool}` is not run here"))))
    }

    /// Reads or writes a file of the workspace, as a call of `tool`.
    fn file(
        &self,
        tool: &'static str,
        asked: files::arguments::FileRequest,
        turn: Turn,
    ) -> impl Future<Output = Result<files::FileReport, Refused>> + Send {
        let (_, _) = (asked, turn);
        std::future::ready(Err(Refused::failed(format!("`{tool}` has no files here"))))
    }

    /// Returns the operator's settings of `bash_exec`.
    fn exec_options(&self) -> Options {
        Options::default()
    }

    /// Evaluates each expression on its own; the error of one stands in its own entry.
    fn calculate_batch(
        &self,
        expressions: Vec<String>,
        precision: Precision,
        turn: Turn,
    ) -> impl Future<Output = Result<Batch, Refused>> + Send;

    /// Plots a function.
    fn calculate_plot(
        &self,
        plot: Plot,
        turn: Turn,
    ) -> impl Future<Output = Result<Plotted, Refused>> + Send;

    /// Returns the number of calls that run or are queued now.
    fn pending(&self) -> usize {
        0
    }

    /// Returns the declared commands that are offered here.
    fn commands(&self) -> &[Declared] {
        &[]
    }

    /// Returns true if a built-in tool is listed. A call of an unlisted tool is still decided and
    /// recorded.
    fn lists(&self, tool: &str) -> bool {
        self.withheld(tool).is_none()
    }

    /// Returns the reason for which an existing tool is not offered; `None` for an offered or
    /// unknown tool.
    fn withheld(&self, tool: &str) -> Option<Refused> {
        let _: &str = tool;
        None
    }

    /// Runs one of [`Backend::commands`]; the result reports an error in its arguments.
    fn command(
        &self,
        declared: &Declared,
        request: DeclaredRequest,
        turn: Turn,
    ) -> impl Future<Output = Result<DeclaredResult, Refused>> + Send {
        let (_, _) = (request, turn);
        std::future::ready(Err(Refused::failed(format!(
            "`{}` is not run here",
            declared.command.name
        ))))
    }

    /// Inspects jobs, or ends one.
    fn job(
        &self,
        ask: jobs::JobRequest,
        turn: Turn,
    ) -> impl Future<Output = Result<jobs::JobAnswer, Refused>> + Send {
        let (_, _) = (ask, turn);
        std::future::ready(Err(Refused::failed("there are no jobs here")))
    }

    /// Returns a future that resolves at the end of a job, or `None` where there is no such job.
    fn end_of(&self, job: &str) -> Option<Pin<Box<dyn Future<Output = JobEnd> + Send>>> {
        let _: &str = job;
        None
    }

    /// Records that the arguments of a call were refused, so no decision was made about the call.
    fn invalid(&self, tool: &str, why: &str) {
        tracing::debug!(tool, why, "arguments that were not taken");
    }

    /// Resolves once the supervisor has reported which cells this host can have.
    fn settled(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Returns the rules in force for an agent.
    fn rules(&self) -> Rules;
}

/// Report of one command that got as far as a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandReport {
    pub outcome: Outcome,
    pub stdout: Stream,
    pub stderr: Stream,
    pub usage: Usage,
    pub denials: Vec<DenialReport>,
    /// Directory in which it started, as the cell sees it; for a session, the current directory of
    /// its shell.
    pub cwd: String,
    /// Wall time limit of the call.
    pub timeout: Duration,
    /// `Yes` if the call had asked for more time than this.
    pub clamped: Clamped,
    pub receipt: Option<Receipt>,
    pub timings: Timings,
    /// Number of lines missing from the audit log, and the reason, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
    /// Absent for a cell of its own.
    pub session: Option<SessionReport>,
    /// Changes in the workspace; absent if nothing changed.
    pub files_changed: Option<FilesChanged>,
}

/// Outcome of comparing the asked-for time with the maximum.
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

/// Extent of a stream's text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Cut {
    #[default]
    Whole,
    HeadAndTail,
    /// The rest is read with the next call.
    Part,
}

/// Result of a calculation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calculated {
    /// Empty when nothing was printed.
    pub result: String,
    /// Result of comparing two working scales: exact if they agree on every digit shown.
    pub exact: Exact,
    pub took: Duration,
    pub ran: ValueOrigin,
    /// Number of lines missing from the audit log, and the reason, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueOrigin {
    /// Calculated in a cell that had this protection.
    InCell(Option<Box<Receipt>>),
    /// Calculated before by this server: no cell ran.
    Remembered,
}

/// Result of a batch of calculations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Value of each expression, or the reason why it has none.
    pub entries: Vec<Result<(String, Exact), String>>,
    pub took: Duration,
    pub receipt: Option<Receipt>,
    /// Number of lines missing from the audit log, and the reason, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}

/// A plotted function.
#[derive(Debug, Clone, PartialEq)]
pub struct Plotted {
    pub drawn: Drawn,
    pub took: Duration,
    pub receipt: Option<Receipt>,
    /// Number of lines missing from the audit log, and the reason, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exact {
    Yes,
    No,
}

/// A call without a report: nothing ran, or the cell that ran gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    pub kind: RefusedKind,
    pub message: String,
    pub hint: Option<String>,
    /// Protection of the cell, if one ran and gave no result.
    pub receipt: Option<Box<Receipt>>,
}

/// Reason why there is no report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedKind {
    /// The arguments were refused.
    Arguments,
    /// Policy forbids it.
    Denied,
    /// The client cancelled it before it had a cell.
    Cancelled,
    /// cofferdam could not do it, or the calculator answered with an error.
    Failed,
}

impl Refused {
    pub fn new(kind: RefusedKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, receipt: None }
    }

    /// Makes a failure that has a message only, such as `BC error: divide by zero`.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(RefusedKind::Failed, message)
    }

    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the protection of the cell that ran.
    #[must_use]
    pub fn protected_by(mut self, receipt: Option<Receipt>) -> Self {
        self.receipt = receipt.map(Box::new);
        self
    }

    /// Makes the refusal of a call that was cancelled before anything ran.
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
