//! The interface between MCP or HTTP and the executor: one method for each kind of request.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::watch;

use crate::cli::state::ToolFigures;
use crate::cli::{Declared, DeclaredRequest, DeclaredResult};
use crate::client::ClientState;
use crate::refused::Refused;
use crate::report::{
    BashAnswer, Batch, Calculated, CommandReport, FileReport, JobAnswer, JobEnd, Plotted,
};
use crate::request::{BashRequest, ExecOptions, FetchPlace, FileRequest, JobRequest, Precision};
use crate::rules::Rules;
use crate::shell::ScriptArgs;
use crate::{CallReport, Caller};
use calc::plot::Plot;

/// The executor behind the tools. The server has one; tests have a fake one.
///
/// Every future must end soon after `caller.cancel` is tripped, within 2 s at the latest: the whole
/// cell is killed, and the result has the output up to then.
pub trait Backend: Send + Sync + 'static {
    /// Returns what the client has set and done.
    fn client(&self) -> &ClientState;

    /// Runs a command in the shell of its session.
    fn bash(
        &self,
        request: BashRequest,
        caller: Caller,
    ) -> impl Future<Output = Result<BashAnswer, Refused>> + Send;

    /// Evaluates one expression and rounds it to `precision` decimal places.
    fn calculate(
        &self,
        expression: String,
        precision: Precision,
        within: Option<Duration>,
        caller: Caller,
    ) -> impl Future<Output = Result<Calculated, Refused>> + Send;

    /// Runs a bc script and returns every line of its output.
    fn calculate_advanced(
        &self,
        script: String,
        precision: Precision,
        within: Option<Duration>,
        caller: Caller,
    ) -> impl Future<Output = Result<Calculated, Refused>> + Send;

    /// Runs a script in a fresh cell, as a call of `tool`.
    fn script(
        &self,
        tool: &'static str,
        args: ScriptArgs,
        caller: Caller,
    ) -> impl Future<Output = Result<CommandReport, Refused>> + Send;

    /// Runs a tool of a script project in a fresh cell. Its output goes to the caller's tap; its input is `args.stdin`
    /// for the record, and comes from the caller's feed.
    fn project_tool(
        &self,
        tool: &str,
        args: ScriptArgs,
        caller: Caller,
    ) -> impl Future<Output = Result<CallReport, Refused>> + Send;

    /// Downloads something for a project, on behalf of its tool `of`, in a fresh cell that reaches one host of the public
    /// network. Its output goes to the caller's tap.
    fn project_fetch(
        &self,
        of: &str,
        to: FetchPlace,
        args: ScriptArgs,
        caller: Caller,
    ) -> impl Future<Output = Result<CallReport, Refused>> + Send;

    /// Reads or writes a file of the workspace, as a call of `tool`.
    fn file(
        &self,
        tool: &'static str,
        request: FileRequest,
        caller: Caller,
    ) -> impl Future<Output = Result<FileReport, Refused>> + Send;

    /// Returns the operator's settings of `bash_exec`.
    fn exec_options(&self) -> ExecOptions;

    /// Evaluates each expression on its own; the error of one stands in its own entry.
    fn calculate_batch(
        &self,
        expressions: Vec<String>,
        precision: Precision,
        // The time of each expression.
        within: Option<Duration>,
        caller: Caller,
    ) -> impl Future<Output = Result<Batch, Refused>> + Send;

    /// Plots a function.
    fn calculate_plot(
        &self,
        plot: Plot,
        within: Option<Duration>,
        caller: Caller,
    ) -> impl Future<Output = Result<Plotted, Refused>> + Send;

    /// Returns the time after which a client is not kept waiting for a command any more, where there is another way.
    fn yield_after(&self) -> Duration;

    /// Returns the number of calls that run or are queued now.
    fn pending(&self) -> usize;

    /// Returns the declared commands that are offered here.
    fn commands(&self) -> &[Declared];

    /// Returns the figures of a declared command that is offered.
    fn tool_figures(&self, tool: &str) -> Option<ToolFigures>;

    /// Returns true if a built-in tool is listed. A call of an unlisted tool is still decided and
    /// recorded.
    fn lists(&self, tool: &str) -> bool;

    /// Returns the reason for which an existing tool is not offered; `None` for an offered or
    /// unknown tool.
    fn withheld(&self, tool: &str) -> Option<Refused>;

    /// Returns a receiver that changes when the operator has switched a tool.
    fn switches(&self) -> watch::Receiver<u64>;

    /// Runs one of [`Backend::commands`]; the result reports an error in its arguments.
    fn command(
        &self,
        declared: &Declared,
        request: DeclaredRequest,
        caller: Caller,
    ) -> impl Future<Output = Result<DeclaredResult, Refused>> + Send;

    /// Inspects jobs, or ends one.
    fn job(
        &self,
        request: JobRequest,
        caller: Caller,
    ) -> impl Future<Output = Result<JobAnswer, Refused>> + Send;

    /// Returns a future that resolves at the end of a job, or `None` where there is no such job.
    fn end_of(&self, job: &str) -> Option<Pin<Box<dyn Future<Output = JobEnd> + Send>>>;

    /// Records that the arguments of a call were refused, so no decision was made about the call.
    fn invalid(&self, tool: &str, why: &str);

    /// Resolves once the supervisor has reported which cells this host can have.
    fn settled(&self) -> impl Future<Output = ()> + Send;

    /// Returns the rules in force for an agent.
    fn rules(&self) -> Rules;
}
