//! `pipeline`: runs commands one after the other, each in a fresh cell with the output of the one before as its input.

use std::collections::BTreeMap;

use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::results::StepsResult;
use super::schema::{ShellName, extend_exec, fields, runs, tool, without_default};
use crate::arguments::{BadArguments, Seconds};
use crate::calls::ClientCalls;
use crate::context::Context;
use crate::exec::steps::{Stdout, Steps};
use crate::tool_entry::{BuiltIn, CallResult, InForce};
use model::call::{SCRIPT_BYTES, STDIN_BYTES};
use model::shells::ShellKind;
use service::capture::tap::Tap;
use service::request::ExecRequest;
use service::shell::ScriptArgs;

/// Steps of one pipeline, at most.
pub(crate) const MAX_STEPS: usize = 16;

/// Arguments of `pipeline`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PipelineArguments {
    /// Commands, the first one first
    #[schemars(length(min = 1, max = MAX_STEPS))]
    steps: Vec<Step>,
    /// What the first step reads
    #[serde(default)]
    #[schemars(length(max = STDIN_BYTES), transform = without_default)]
    stdin: String,
    /// Give what a failed step printed to the next
    #[serde(default)]
    keep_going: bool,
}

impl BuiltIn for PipelineArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = "Run commands one after the other, each in a fresh cell as bash_exec does and \
            with the standard output of the one before it as its standard input, byte for byte. It stops \
            at the first step that does not exit with 0, and tells of each step that ran.";
        let mut tool = tool::<Self, StepsResult>("Run a pipeline", description).annotate(runs());
        let steps = fields(&mut tool).and_then(|fields| fields.get_mut("steps"));
        let step = steps.and_then(|steps| steps.pointer_mut("/items/properties"));
        if let Some(fields) = step.and_then(Value::as_object_mut) {
            extend_exec(fields, &in_force.options);
        }
        tool
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let Self { steps, stdin, keep_going } = self;
        let of = steps.len();
        if !(1..=MAX_STEPS).contains(&of) {
            let message = format!("pipeline: `steps`: expected 1 to {MAX_STEPS}, not {of}");
            return Err(BadArguments { message, hint: None }.into());
        }
        let mut done = Steps::new(of, keep_going);
        let mut input = stdin.into_bytes();
        for (number, step) in (1..).zip(steps) {
            let (tap, printed) = Tap::kept(STDIN_BYTES);
            let command = step.command.clone();
            let request = step.request(std::mem::take(&mut input));
            let Some(report) = done.run(calls, request, tap, context).await? else { break };
            let last = number == of;
            let ends = done.ends_with(&report);
            let stdout = if last || ends { Stdout::Shown } else { Stdout::Counted };
            done.add(&command, report, stdout);
            match printed.take() {
                _ if last => {}
                _ if ends => done.stop_after_failure(),
                Some(bytes) => input = bytes,
                None => done.stop(format!(
                    "step {number} printed more than the {STDIN_BYTES} bytes that a step can be given"
                )),
            }
            if done.is_stopped() {
                break;
            }
        }
        Ok(done.result())
    }
}

/// One command, with the options of `bash_exec`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Step {
    /// Shell command to execute
    #[schemars(length(min = 1, max = SCRIPT_BYTES))]
    command: String,
    /// Working directory for this command alone, inside /workspace or /tmp; without it, what
    /// set_working_dir set
    working_dir: Option<String>,
    /// Timeout in seconds; more than the maximum is lowered to it, and the reply says so
    timeout: Option<Seconds>,
    /// Additional environment variables
    env: Option<BTreeMap<String, String>>,
    /// What reads the command; exit code 127 where the cell has no such shell
    #[serde(default)]
    #[schemars(with = "ShellName")]
    shell: ShellKind,
    /// How the cell is confined: one of the profiles that the operator leaves to choose from
    profile: Option<String>,
}

impl Step {
    /// Makes the request to run it with this input.
    fn request(self, stdin: Vec<u8>) -> ExecRequest {
        let Self { command, working_dir: cwd, timeout, env, shell, profile } = self;
        let timeout = timeout.map(|Seconds(value)| value);
        let args =
            ScriptArgs { command, stdin, cwd, env, timeout, profile, ..ScriptArgs::default() };
        ExecRequest { shell, ..args.into() }
    }
}
