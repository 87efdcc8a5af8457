//! `bash`: a command in the shell of its session.

use std::collections::BTreeMap;
use std::sync::Arc;

use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::results::BashResult;
use super::schema::{SessionName, ShellName, extend, fields, runs, tool};
use crate::arguments::{Named, Seconds};
use crate::calls::{ClientCalls, Continuity};
use crate::context::Context;
use crate::reply::{self, sessions};
use crate::tasks::TaskCandidate;
use crate::tool_entry::{BuiltIn, CallResult, InForce};
use model::call::{InvalidCall, MAX_TIMEOUT, SCRIPT_BYTES, STDIN_BYTES, Stdin};
use model::defaults::INLINE_CHARACTERS;
use model::shells::ShellKind;
use service::Scope;
use service::capture::lines::Wanted;
use service::refused::{Refused, RefusedKind};
use service::report::{CommandState, RunningReport, SessionAction};
use service::request::{ExecRequest, SessionCommand, Shown, Wait};
use service::session::{DEFAULT, Restart, Retention};
use service::shell::{self, ScriptArgs};

/// Arguments of `bash`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BashArguments {
    // Absent only when the call asks for nothing but `restart` or `end`.
    /// The command or script, as bash reads it. May have many lines.
    #[schemars(length(min = 1, max = SCRIPT_BYTES))]
    pub command: Option<String>,
    /// Text the command reads on standard input, and then its end. Without it, input is empty: a
    /// program that reads finds its end at once.
    #[schemars(length(max = STDIN_BYTES))]
    pub stdin: Option<String>,
    /// Directory for this command alone, inside /workspace or /tmp; without it, where the shell is.
    /// A relative path starts at /workspace.
    pub cwd: Option<String>,
    /// Environment variables for this command alone, by name.
    pub env: Option<BTreeMap<String, String>>,
    /// Seconds until the command is interrupted. More than the operator allows is lowered, and the
    /// reply says so.
    #[schemars(extend("maximum" = MAX_TIMEOUT.as_secs()))]
    pub timeout: Option<Seconds>,
    /// Which shell. Sessions do not see each other; each runs one command at a time, and background
    /// jobs beside it.
    #[schemars(with = "Option<SessionName>")]
    pub session: Option<String>,
    /// Shell of the session, where the host has it: given with its first command or with `restart`.
    /// Others than bash start a background command without the shell's own variables and functions,
    /// and fish and sh may end at a timeout.
    #[schemars(with = "Option<ShellName>", extend("default" = "bash"))]
    pub shell: Option<ShellKind>,
    /// End the session's shell and all that runs in it first. /workspace is kept. Needs no command.
    #[serde(default)]
    pub restart: bool,
    /// End the session with all that runs in it and a private /workspace. Goes with no command.
    #[serde(default)]
    pub end: bool,
    /// Do not wait for it: it goes on beside the shell, as with `&`, and the session is free at
    /// once. Later commands of the session reach its ports and files. bash_output reads it,
    /// bash_input writes to it, bash_kill ends it.
    #[serde(default)]
    pub background: bool,
    /// Keep standard input open, behind `stdin` where it is given: bash_input writes to it while
    /// the command runs, and a program that waits for input is told at once. So it is by default
    /// with `background` and without `stdin`.
    pub input: Option<bool>,
    /// Run it at a terminal of its own (80x24), for programs that want one, in a bash that has the
    /// shell's directory and exported variables and leaves nothing behind in the shell. stdout and
    /// stderr come as one, with what is echoed. Input is open; in bash_input `eof` types ^D, and the
    /// character U+0003 is ^C. TERM stays dumb unless `env` has another.
    #[serde(default)]
    pub tty: bool,
    /// Characters of output in the reply: head and tail.
    #[schemars(extend("maximum" = INLINE_CHARACTERS, "default" = INLINE_CHARACTERS))]
    pub max_output: Option<usize>,
    /// Show only so many first lines.
    pub head: Option<usize>,
    /// Show only so many last lines.
    pub tail: Option<usize>,
    /// Tell byte counts and usage too.
    #[serde(default)]
    pub detail: bool,
    // It has no effect: people read it in the transcript.
    /// What the command is for, for people.
    pub description: Option<String>,
}

impl BashArguments {
    /// Returns what a call without a command does to its session; `None` for a call that has a command.
    ///
    /// # Errors
    /// No command, although the call neither restarts the shell nor ends the session; or both.
    fn session_action(&self) -> Result<Option<SessionAction>, Refused> {
        let refused = |message: &str, hint: &str| {
            Err(Refused::new(RefusedKind::Arguments, message).with_hint(hint))
        };
        match (self.end, &self.command, self.restart, self.shell) {
            (true, None, false, None) => Ok(Some(SessionAction::End)),
            (true, ..) => refused(
                "bash: `end` goes with no `command`, `restart` or `shell`",
                "call it once more for each",
            ),
            (false, Some(_), ..) => Ok(None),
            (false, None, true, None) => Ok(Some(SessionAction::Restart)),
            (false, None, true, Some(_)) => {
                refused("bash: `shell` goes with a `command`", "the first command in that shell")
            }
            (false, None, false, _) => refused(
                "bash: missing field `command`",
                "only with `restart` or `end` can it be left out",
            ),
        }
    }

    /// Builds the command for `session`, and what of its output the reply shows. Adds its arguments, for the history.
    ///
    /// # Errors
    /// An argument out of its bounds; the error names the field.
    fn into_command(
        self,
        session: String,
    ) -> Result<(SessionCommand, Shown, ScriptArgs), InvalidCall> {
        let is_open = self.input.unwrap_or(self.background && self.stdin.is_none());
        let args = ScriptArgs {
            command: self.command.unwrap_or_default(),
            stdin: self.stdin.unwrap_or_default().into_bytes(),
            cwd: self.cwd,
            env: self.env,
            timeout: self.timeout.map(|seconds| seconds.0),
            ..ScriptArgs::default()
        };
        let mut call = shell::script(Self::TOOL, args.clone())?;
        call.stdin = match (self.tty, is_open) {
            (true, _) => call.stdin.at_terminal(),
            (false, true) => call.stdin.open(),
            (false, false) => call.stdin,
        };
        let command = SessionCommand {
            session,
            call,
            shell: self.shell,
            restart: if self.restart { Restart::Yes } else { Restart::No },
            wait: if self.background { Wait::Background } else { Wait::Foreground },
            kept: Retention::Spooled,
        };
        let shown = Shown {
            characters: self.max_output.unwrap_or(INLINE_CHARACTERS).min(INLINE_CHARACTERS),
            lines: Wanted { head: self.head, tail: self.tail },
        };
        // The time limit is not part of the history.
        Ok((command, shown, ScriptArgs { timeout: None, ..args }))
    }
}

impl BuiltIn for BashArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = format!(
            "Run a command in a persistent bash, in a sandbox cell of its session: directory, \
             variables, functions and background processes last between calls. {}. Network: {}. The \
             reply has stdout, stderr, how it ended and what was denied; a non-zero exit code is not \
             an error of the tool. What runs for long goes on as a job.",
            in_force.rules.workspace, in_force.rules.network
        );
        let title = "Run a command in a sandbox";
        let mut tool = tool::<Self, BashResult>(title, description).annotate(runs());
        if let Some(fields) = fields(&mut tool) {
            let default = in_force.rules.limits.timeout_s;
            extend(fields, "timeout", json!({ "default": default }));
        }
        tool
    }

    async fn call(mut self, calls: &ClientCalls, context: &Context) -> CallResult {
        self.cwd = self.cwd.map(|cwd| calls.client.in_workspace(cwd));
        let session = self.session.clone().unwrap_or_else(|| DEFAULT.to_owned());
        let client = &calls.client;
        if let Some(action) = self.session_action()? {
            let change = |caller| client.change_session(&session, action, caller);
            calls.with_progress(context, change).await?;
            return Ok(sessions::done(&session, action));
        }
        let detail = self.detail.into();
        let (mut command, shown, args) = self.into_command(session)?;
        if TaskCandidate::from_context(context).is_some() {
            command.wait = command.wait.in_a_task();
        }
        run_without_later_calls(calls, &mut command)?;
        let run = |caller| client.bash(command, shown, caller);
        Ok(match calls.with_progress(context, run).await? {
            CommandState::Ended(report) => {
                client.state().history.add(&report, args.into());
                reply::of_command(&report, detail)
            }
            CommandState::Running(job) => {
                add_job_to_history(client, &job, args.into());
                sessions::running(&job, detail)
            }
        })
    }
}

/// Adds a job to the history, and its end when that comes.
fn add_job_to_history(client: &Scope, job: &RunningReport, request: ExecRequest) {
    let history = Arc::clone(&client.state().history);
    let id = history.begin(job, request);
    if let Some(end) = client.end_of(&job.session.output_id) {
        // Ends with the supervisor at the latest.
        tokio::spawn(async move { history.end(id, &end.await) });
    }
}

/// Makes a command run to its end where no later call could ask for it.
///
/// # Errors
/// A command that is to run on in the background, or to wait for input.
fn run_without_later_calls(calls: &ClientCalls, run: &mut SessionCommand) -> Result<(), Refused> {
    if calls.continuity != Continuity::Anonymous {
        return Ok(());
    }
    if run.wait == Wait::Background {
        calls.check_continuity("a background command would end with this one")?;
    }
    if matches!(run.call.stdin, Stdin::Pipe(_)) {
        calls.check_continuity("its input could not be written to; pass stdin")?;
    }
    run.wait = Wait::Beyond;
    Ok(())
}
