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
use calc::plot::{Drawn, Plot};
use model::outcome::{FilesChanged, Outcome, Timings, Usage};
use model::receipt::Receipt;
pub use service::Caller as Turn;
use service::cli::{Declared, DeclaredRequest, DeclaredResult};
pub use service::denied::DenialReport;
pub use service::refused::{Refused, RefusedKind};
use service::shell::ScriptArgs;

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
        // The time of each expression.
        within: Option<Duration>,
        turn: Turn,
    ) -> impl Future<Output = Result<Batch, Refused>> + Send;

    /// Plots a function.
    fn calculate_plot(
        &self,
        plot: Plot,
        within: Option<Duration>,
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
    /// The handle by which bash_output reads what a reply leaves out.
    pub output_id: Option<String>,
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
    /// Warnings of bc.
    pub warnings: Vec<String>,
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

impl From<BadArguments> for Refused {
    fn from(bad: BadArguments) -> Self {
        Self { hint: bad.hint, ..Self::new(RefusedKind::Arguments, bad.message) }
    }
}
