//! `bash_output`, `bash_input`, `bash_jobs` and `bash_kill`: look at jobs, write to them, end them.

use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Value, json};

use super::schema::{no_arguments, pure, runs, tool};
use super::shell::bash_output;
use super::{BuiltIn, CallResult, Context, InForce};
use crate::arguments::jobs::{
    BashInputArguments, BashJobsArguments, BashKillArguments, BashOutputArguments,
};
use crate::server::Server;
use model::call::STDIN_BYTES;
use model::defaults::INLINE_CHARACTERS;
use service::Backend;
use service::request::JobRequest;

impl BuiltIn for BashOutputArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Read the output of a job so far, or of an earlier bash command by its \
            output_id: head and tail, or with `since` all that follows, piece by piece. Tells whether \
            it runs or how it ended. Of each stream at most 1 MiB is kept, head and tail.";
        let input = json!({
            "type": "object",
            "properties": {
                "job": { "type": "string", "description": "The job, as bash named it." },
                "output_id": { "type": "string", "description": "Instead of `job`: the output of a command that was not one." },
                "since": {
                    "type": "object",
                    "properties": { "stdout": offset(), "stderr": offset() },
                    "additionalProperties": false,
                    "description": "Byte offsets to read from: `next` of the reply before. Nothing is left out from there on."
                },
                "tail": { "type": "integer", "minimum": 0, "description": "Show only so many last lines." },
                "grep": {
                    "type": "string", "maxLength": 1000,
                    "description": "Show only lines that this regular expression matches in their first 4096 bytes."
                },
                "wait": {
                    "type": "number", "minimum": 0,
                    "description": "Seconds to wait for the end, for output that was not read yet, or until it waits for input; cut to the time after which a command becomes a job."
                },
                "max_output": {
                    "type": "integer", "minimum": 0, "maximum": INLINE_CHARACTERS, "default": INLINE_CHARACTERS,
                    "description": "Characters of output in the reply."
                }
            },
            "additionalProperties": false
        });
        let title = "Read a job's output";
        // The same call may return more the next time.
        tool::<Self>(title, description.to_owned(), input, of_a_job())
            .annotate(pure().idempotent(false))
    }

    async fn call<B: Backend>(self, server: &Server<B>, context: &Context) -> CallResult {
        server.job(self.request()?, context).await
    }
}

impl BuiltIn for BashInputArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Write to the standard input of a job: of a command that was started with \
            `input`, or with `background` and without `stdin`. Nothing is added: a line needs its \
            newline. Tells how much was taken; where the program does not read, the rest is to be sent \
            again. Then shows what the job printed since, and whether it waits for more.";
        let input = json!({
            "type": "object",
            "properties": {
                "job": { "type": "string", "description": "The job, as bash named it." },
                "text": {
                    "type": "string", "maxLength": STDIN_BYTES, "default": "",
                    "description": "What to write. One command takes 8 MiB in all."
                },
                "eof": {
                    "type": "boolean", "default": false,
                    "description": "End the input behind `text`, once all of it is taken."
                },
                "wait": {
                    "type": "number", "minimum": 0, "default": 1,
                    "description": "Seconds to wait for the end, or until the program waits for input again."
                }
            },
            "required": ["job"],
            "additionalProperties": false
        });
        let taken = json!({
            "type": "integer", "minimum": 0, "description": "Bytes of `text` that were written."
        });
        let output = with(of_a_job(), "taken_bytes", taken);
        tool::<Self>("Write to a job", description.to_owned(), input, output).annotate(runs())
    }

    async fn call<B: Backend>(self, server: &Server<B>, context: &Context) -> CallResult {
        server.job(self.request()?, context).await
    }
}

impl BuiltIn for BashJobsArguments {
    fn describe(_: &InForce) -> Tool {
        let description =
            "List the jobs of all sessions, those that run and those that have ended.";
        let input = no_arguments();
        tool::<Self>("List jobs", description.to_owned(), input, jobs())
            .annotate(pure().idempotent(false))
    }

    async fn call<B: Backend>(self, server: &Server<B>, context: &Context) -> CallResult {
        server.job(JobRequest::List, context).await
    }
}

impl BuiltIn for BashKillArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "End a job. The signal goes to its processes, not to what earlier commands \
            left in the background, and the shell is kept where that works. INT interrupts it as ^C \
            does; what does not end within a second is killed with its shell. TERM: its processes are \
            killed after a second. KILL: at once. The reply says what it took, with the \
            last 20 lines.";
        let input = json!({
            "type": "object",
            "properties": {
                "job": { "type": "string", "description": "The job, as bash named it." },
                "signal": { "type": "string", "enum": ["INT", "TERM", "KILL"], "default": "INT" }
            },
            "required": ["job"],
            "additionalProperties": false
        });
        tool::<Self>("End a job", description.to_owned(), input, of_a_job()).annotate(
            ToolAnnotations::new()
                .read_only(false)
                .destructive(true)
                .idempotent(true)
                .open_world(false),
        )
    }

    async fn call<B: Backend>(self, server: &Server<B>, context: &Context) -> CallResult {
        server.job(self.request(), context).await
    }
}

fn offset() -> Value {
    json!({ "type": "integer", "minimum": 0, "default": 0 })
}

/// Returns the schema of a `bash` result, with the offsets for the next read.
fn of_a_job() -> Value {
    let next = json!({
        "type": "object",
        "properties": { "stdout": offset(), "stderr": offset() },
        "required": ["stdout", "stderr"],
        "additionalProperties": false,
        "description": "Byte offsets to read on from, for `since`."
    });
    with(bash_output(), "next", next)
}

/// Adds one property to a schema.
fn with(mut schema: Value, name: &str, property: Value) -> Value {
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.insert(name.to_owned(), property);
    }
    schema
}

fn jobs() -> Value {
    let count = json!({ "type": "integer", "minimum": 0 });
    let text = json!({ "type": "string" });
    json!({
        "type": "object",
        "properties": {
            "jobs": {
                "type": "array",
                "description": "The newest first.",
                "items": {
                    "type": "object",
                    "properties": {
                        "job": text, "session": text,
                        "command": { "type": "string", "description": "Its beginning." },
                        "outcome": { "type": "string", "description": "As of bash; `running` while it runs." },
                        "exit_code": count, "duration_ms": count,
                        "stdout_bytes": count, "stderr_bytes": count
                    },
                    "required": ["job", "session", "command", "outcome", "duration_ms",
                        "stdout_bytes", "stderr_bytes"],
                    "additionalProperties": false
                }
            },
            "left_out": { "type": "integer", "minimum": 0, "description": "Older ones that are not shown." }
        },
        "required": ["jobs", "left_out"],
        "additionalProperties": false
    })
}
