//! `pipeline`: runs commands one after the other, each in a fresh cell with the output of the one before as its input.

use std::collections::BTreeMap;

use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::json;

use super::built_in::BuiltIn;
use super::exec::BashExecArguments;
use super::schema::{runs, tool};
use super::steps::{exec_properties, keep_going_schema, steps_schema};
use crate::arguments::{Arguments, BadArguments, Named, Seconds};
use crate::context::Context;
use crate::exec::steps::{AfterFailure, Stdout, Steps, is_final, succeeded};
use crate::server::Server;
use crate::tool_entry::{CallResult, InForce};
use capture::tap::Tap;
use model::call::STDIN_BYTES;
use model::shells::ShellKind;
use service::request::ExecRequest;
use service::shell::ScriptArgs;

/// Steps of one pipeline, at most.
pub(crate) const MAX_STEPS: usize = 16;

/// Arguments of `pipeline`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PipelineArguments {
    steps: Vec<Step>,
    /// Input of the first step.
    #[serde(default)]
    stdin: String,
    #[serde(default)]
    keep_going: bool,
}

impl Arguments for PipelineArguments {
    const FIELDS: &'static [&'static str] = &["steps", "stdin", "keep_going"];
}

impl BuiltIn for PipelineArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = "Run commands one after the other, each in a fresh cell as bash_exec does and \
            with the standard output of the one before it as its standard input, byte for byte. It stops \
            at the first step that does not exit with 0, and tells of each step that ran.";
        let named = ["command", "working_dir", "timeout", "env", "shell"];
        let step = json!({
            "type": "object",
            "properties": exec_properties(&in_force.options, &named),
            "required": ["command"],
            "additionalProperties": false
        });
        let input = json!({
            "type": "object",
            "properties": {
                "steps": {
                    "type": "array", "minItems": 1, "maxItems": MAX_STEPS, "items": step,
                    "description": "Commands, the first one first"
                },
                "stdin": {
                    "type": "string", "maxLength": STDIN_BYTES, "description": "What the first step reads"
                },
                "keep_going": keep_going_schema("Give what a failed step printed to the next")
            },
            "required": ["steps"],
            "additionalProperties": false
        });
        tool::<Self>("Run a pipeline", description.to_owned(), input, steps_schema())
            .annotate(runs())
    }

    async fn call(self, server: &Server, context: &Context) -> CallResult {
        let Self { steps, stdin, keep_going } = self;
        let of = steps.len();
        if !(1..=MAX_STEPS).contains(&of) {
            let message = format!("pipeline: `steps`: expected 1 to {MAX_STEPS}, not {of}");
            return Err(BadArguments { message, hint: None }.into());
        }
        let after_failure = AfterFailure::of(keep_going);
        let mut done = Steps::new(of);
        let mut input = stdin.into_bytes();
        for step in steps {
            let number = done.next();
            let (tap, printed) = Tap::kept(STDIN_BYTES);
            let command = step.command.clone();
            let request = step.request(std::mem::take(&mut input));
            let ran = server.ran(BashExecArguments::TOOL, request, tap, context).await;
            // A refused first step refuses the call; a later one is reported with the steps that ran.
            let report = match ran {
                Err(refused) if number == 1 => return Err(refused),
                Err(refused) => {
                    done.stop(format!("step {number} was refused: {refused}"));
                    break;
                }
                Ok(report) => report,
            };
            let last = number == of;
            let ends =
                is_final(&report) || (!succeeded(&report) && after_failure == AfterFailure::Stop);
            let stdout = if last || ends { Stdout::Shown } else { Stdout::Counted };
            done.add(&command, report, stdout);
            match printed.take() {
                _ if last => {}
                _ if ends => done.stop(format!("step {number} failed")),
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
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    command: String,
    working_dir: Option<String>,
    timeout: Option<Seconds>,
    env: Option<BTreeMap<String, String>>,
    #[serde(default)]
    shell: ShellKind,
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
