//! `pipeline`: commands, each in a cell of its own, that read the output of the one before.

use std::collections::BTreeMap;

use rmcp::model::CallToolResult;
use serde::Deserialize;

use super::CommandRequest;
use super::arguments::{BashExecArguments, Shell};
use super::steps::{AfterFailure, Stdout, Steps, is_final, is_well};
use crate::arguments::{Arguments, BadArguments, Named, Seconds};
use crate::backend::{Backend, Refused};
use crate::server::Server;
use crate::tools::Context;
use capture::tap::Tap;
use model::call::STDIN_BYTES;

/// Steps of one pipeline, at most.
pub const MOST_STEPS: usize = 16;

/// Arguments of `pipeline`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipelineArguments {
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

/// One command, with the options of `bash_exec`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    command: String,
    working_dir: Option<String>,
    timeout: Option<Seconds>,
    env: Option<BTreeMap<String, String>>,
    #[serde(default)]
    shell: Shell,
    profile: Option<String>,
}

impl<B: Backend> Server<B> {
    pub(crate) async fn pipeline(
        &self,
        arguments: PipelineArguments,
        context: &Context,
    ) -> Result<CallToolResult, Refused> {
        let PipelineArguments { steps, stdin, keep_going } = arguments;
        let of = steps.len();
        if !(1..=MOST_STEPS).contains(&of) {
            let message = format!("pipeline: `steps`: expected 1 to {MOST_STEPS}, not {of}");
            return Err(BadArguments { message, hint: None }.into());
        }
        let after_failure = AfterFailure::asked(keep_going);
        let (mut done, mut input) = (Steps::new(of), stdin.into_bytes());
        for step in steps {
            let number = done.next();
            let (tap, printed) = Tap::kept(STDIN_BYTES);
            let command = step.command.clone();
            let ask = step.ask(std::mem::take(&mut input));
            let ran = self.ran(BashExecArguments::TOOL, ask, tap, context).await;
            // A refused first step refuses the call; a later one is reported beside the steps that
            // ran.
            let told = match ran {
                Err(refused) if number == 1 => return Err(refused),
                Err(refused) => {
                    done.stop(format!("step {number} was refused: {refused}"));
                    break;
                }
                Ok(told) => told,
            };
            let (well, last) = (is_well(&told), number == of);
            let ends = is_final(&told) || (!well && after_failure == AfterFailure::Stop);
            let stdout = if last || ends { Stdout::Shown } else { Stdout::Counted };
            done.add(&command, told, stdout);
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

impl Step {
    fn ask(self, stdin: Vec<u8>) -> CommandRequest {
        let Self { command, working_dir, timeout, env, shell, profile } = self;
        let arguments = BashExecArguments {
            command,
            working_dir,
            timeout,
            capture_stderr: None,
            env,
            shell,
            profile,
        };
        CommandRequest { arguments, words: Vec::new(), stdin }
    }
}
