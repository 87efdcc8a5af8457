//! `bash_output`, `bash_input`, `bash_jobs` and `bash_kill`: look at jobs, write to them, end them.

use std::fmt::Display;
use std::time::Duration;

use rmcp::model::{Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::Deserialize;

use super::results::{InputResult, JobResult, JobsResult};
use super::schema::{pure, runs, tool};
use crate::arguments::Seconds;
use crate::calls::ClientCalls;
use crate::context::Context;
use crate::reply::jobs;
use crate::tool_entry::{BuiltIn, CallResult, InForce};
use model::call::{InvalidCall, STDIN_BYTES, seconds};
use model::defaults::INLINE_CHARACTERS;
use service::capture::grep::Pattern;
use service::refused::{Refused, RefusedKind};
use service::report::Detail;
use service::request::{InputRequest, JobRequest, OutputRequest};
use service::session::{Eof, Offsets, Stop};

/// Arguments of `bash_output`. One of `job` and `output_id` names the command.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BashOutputArguments {
    /// The job, as bash named it.
    pub(crate) job: Option<String>,
    /// Instead of `job`: the output of a command that was not one.
    pub(crate) output_id: Option<String>,
    /// Byte offsets to read from: `next` of the reply before. Nothing is left out from there on.
    pub(crate) since: Option<OutputOffsets>,
    /// Show only so many last lines.
    pub(crate) tail: Option<usize>,
    /// Show only lines that this regular expression matches in their first 4096 bytes.
    #[schemars(length(max = 1000))]
    pub(crate) grep: Option<String>,
    /// Seconds to wait for the end, for output that was not read yet, or until it waits for input;
    /// cut to the time after which a command becomes a job.
    #[schemars(with = "Option<f64>", extend("minimum" = 0))]
    pub(crate) wait: Option<Seconds>,
    /// Characters of output in the reply.
    #[schemars(extend("maximum" = INLINE_CHARACTERS, "default" = INLINE_CHARACTERS))]
    pub(crate) max_output: Option<usize>,
    /// Tell byte counts and usage too.
    #[serde(default)]
    pub(crate) detail: bool,
}

impl BashOutputArguments {
    /// Converts them to a request.
    ///
    /// # Errors
    /// A field that is missing or out of its bounds.
    pub(crate) fn request(self) -> Result<JobRequest, Refused> {
        let bad =
            |why: &dyn Display| Refused::new(RefusedKind::Arguments, format!("bash_output: {why}"));
        let id = match (self.job, self.output_id) {
            (Some(id), None) | (None, Some(id)) => id,
            (Some(_), Some(_)) | (None, None) => {
                return Err(bad(&"one of `job` and `output_id` is needed"));
            }
        };
        let pattern = self.grep.map(|pattern| Pattern::new(&pattern)).transpose();
        Ok(JobRequest::Output(OutputRequest {
            id,
            since: self.since.map(|OutputOffsets { stdout, stderr }| Offsets { stdout, stderr }),
            tail: self.tail,
            pattern: pattern.map_err(|error| bad(&error))?,
            wait: waited(self.wait)?.unwrap_or_default(),
            characters: self.max_output.unwrap_or(INLINE_CHARACTERS).min(INLINE_CHARACTERS),
        }))
    }
}

/// Returns the time to wait; 0 does not wait.
fn waited(wait: Option<Seconds>) -> Result<Option<Duration>, InvalidCall> {
    match wait {
        None => Ok(None),
        Some(given) if given.0 == 0.0 => Ok(Some(Duration::ZERO)),
        Some(given) => seconds("wait", given.0).map(Some),
    }
}

/// Bytes of each stream that were read before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputOffsets {
    #[serde(default)]
    pub(crate) stdout: u64,
    #[serde(default)]
    pub(crate) stderr: u64,
}

/// Arguments of `bash_jobs`, which has no fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BashJobsArguments {}

/// Arguments of `bash_input`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BashInputArguments {
    /// The job, as bash named it.
    pub(crate) job: String,
    /// What to write. One command takes 8 MiB in all.
    #[serde(default)]
    #[schemars(length(max = STDIN_BYTES))]
    pub(crate) text: String,
    /// End the input behind `text`, once all of it is taken.
    #[serde(default)]
    pub(crate) eof: bool,
    /// Seconds to wait for the end, or until the program waits for input again.
    #[schemars(with = "Option<f64>", extend("minimum" = 0, "default" = 1))]
    pub(crate) wait: Option<Seconds>,
}

impl BashInputArguments {
    /// Converts them to a request.
    ///
    /// # Errors
    /// A field that is missing or out of its bounds.
    pub(crate) fn request(self) -> Result<JobRequest, Refused> {
        let bad = |why: String| Refused::new(RefusedKind::Arguments, why);
        if self.text.is_empty() && !self.eof {
            return Err(bad("bash_input: `text` or `eof` is needed".to_owned()));
        }
        if self.text.len() > STDIN_BYTES {
            return Err(bad(format!("bash_input: `text`: at most {STDIN_BYTES} bytes")));
        }
        let eof = if self.eof { Eof::Yes } else { Eof::No };
        let wait = waited(self.wait)?;
        Ok(JobRequest::Input(InputRequest { job: self.job, text: self.text, eof, wait }))
    }
}

/// Arguments of `bash_kill`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BashKillArguments {
    /// The job, as bash named it.
    pub(crate) job: String,
    #[serde(default)]
    #[schemars(extend("default" = "INT"))]
    pub(crate) signal: SignalName,
}

impl BashKillArguments {
    /// Converts them to a request.
    pub(crate) fn request(self) -> JobRequest {
        let stop = match self.signal {
            SignalName::Interrupt => Stop::Interrupt,
            SignalName::Terminate => Stop::Terminate,
            SignalName::Kill => Stop::Kill,
        };
        JobRequest::Stop { job: self.job, stop }
    }
}

/// Signal that ends a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub(crate) enum SignalName {
    #[default]
    #[serde(rename = "INT")]
    Interrupt,
    #[serde(rename = "TERM")]
    Terminate,
    #[serde(rename = "KILL")]
    Kill,
}

impl BuiltIn for BashOutputArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Read the output of a job so far, or of an earlier bash command by its \
            output_id: head and tail, or with `since` all that follows, piece by piece. Tells whether \
            it runs or how it ended. Of each stream at most 1 MiB is kept, head and tail.";
        // Not idempotent: the same call may return more the next time.
        tool::<Self, JobResult>("Read a job's output", description)
            .annotate(pure().idempotent(false))
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let detail = self.detail.into();
        call_job_tool(calls, self.request()?, detail, context).await
    }
}

impl BuiltIn for BashInputArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Write to the standard input of a job: of a command that was started with \
            `input`, or with `background` and without `stdin`. Nothing is added: a line needs its \
            newline. Tells how much was taken; where the program does not read, the rest is to be sent \
            again. Then shows what the job printed since, and whether it waits for more.";
        tool::<Self, InputResult>("Write to a job", description).annotate(runs())
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        call_job_tool(calls, self.request()?, Detail::Small, context).await
    }
}

impl BuiltIn for BashJobsArguments {
    fn describe(_: &InForce) -> Tool {
        let description =
            "List the jobs of all sessions, those that run and those that have ended.";
        tool::<Self, JobsResult>("List jobs", description).annotate(pure().idempotent(false))
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        call_job_tool(calls, JobRequest::List, Detail::Small, context).await
    }
}

impl BuiltIn for BashKillArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "End a job. The signal goes to its processes, not to what earlier commands \
            left in the background, and the shell is kept where that works. INT interrupts it as ^C \
            does; what does not end within a second is killed with its shell. TERM: its processes are \
            killed after a second. KILL: at once. The reply says what it took, with the \
            last 20 lines.";
        tool::<Self, JobResult>("End a job", description).annotate(
            ToolAnnotations::new()
                .read_only(false)
                .destructive(true)
                .idempotent(true)
                .open_world(false),
        )
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        call_job_tool(calls, self.request(), Detail::Small, context).await
    }
}

/// Inspects jobs, or ends one.
async fn call_job_tool(
    calls: &ClientCalls,
    request: JobRequest,
    detail: Detail,
    context: &Context,
) -> CallResult {
    let answer = calls.turn(context, |caller| calls.client.job(request, caller)).await?;
    Ok(jobs::answer(&answer, detail))
}
