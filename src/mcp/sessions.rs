//! Sessions and jobs in results for an agent.

use std::time::Duration;

use rmcp::model::CallToolResult;
use serde::Serialize;
use serde_json::{Value, json};

use super::backend::{CommandReport, Stream};
use super::reply::{self, millis, time_text};
use model::outcome::{Outcome, Waits};
use model::receipt::Receipt;

/// Result of a call of `bash`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BashAnswer {
    /// The command has ended.
    Ended(Box<CommandReport>),
    /// The command continues as a job.
    Running(Box<Running>),
    /// The call had no command: the session gets a new shell.
    Restarted { session: String },
}

impl From<CommandReport> for BashAnswer {
    fn from(told: CommandReport) -> Self {
        Self::Ended(Box::new(told))
    }
}

impl From<Running> for BashAnswer {
    fn from(running: Running) -> Self {
        Self::Running(Box::new(running))
    }
}

/// The session in which a command ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionReport {
    pub name: String,
    /// Directory in which the command began.
    pub began: String,
    /// Handle of the command's output.
    pub output_id: String,
    pub shell: Shell,
    /// Reason why the command found a new shell, where there had been another.
    pub renewed: Option<String>,
}

/// State of the shell after a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shell {
    Kept,
    Ended,
    /// The session never had one.
    None,
}

/// A command that continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    pub session: SessionReport,
    pub stdout: Stream,
    pub stderr: Stream,
    pub input: Waits,
    pub elapsed: Duration,
    /// Wall time after which it is interrupted.
    pub timeout: Duration,
    pub receipt: Option<Receipt>,
    /// Names of those among bash_output, bash_input and bash_kill that are of use.
    pub tools: Vec<&'static str>,
}

/// Part of `structuredContent` that describes the session.
#[derive(Debug, Serialize)]
pub struct Structured<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    shell: Option<&'static str>,
}

impl SessionReport {
    /// Returns its fields, without those that have the usual value.
    pub fn fields(&self) -> Structured<'_> {
        let shell = match (self.shell, &self.renewed) {
            (Shell::Ended, _) => Some("ended"),
            (Shell::Kept | Shell::None, Some(_)) => Some("new"),
            (Shell::Kept | Shell::None, None) => None,
        };
        Structured { id: &self.name, shell }
    }

    /// Returns remarks about the shell, a line each.
    pub fn notes(&self, outcome: &Outcome) -> String {
        let mut notes = String::new();
        if let Some(why) = &self.renewed {
            notes.push_str(&format!("\n[a new shell: {why}]"));
        }
        if self.shell == Shell::Ended && !matches!(outcome, Outcome::Failed(_)) {
            notes.push_str("\n[the shell has ended; the next call starts a new one]");
        }
        notes
    }

    /// Describes the effect on the shell of ending a command.
    pub fn killed(&self) -> &'static str {
        match self.shell {
            Shell::Kept => "it was interrupted and the shell is kept",
            Shell::Ended => "it did not end when it was interrupted, and the shell was killed",
            Shell::None => "nothing ran",
        }
    }
}

/// Makes the result of a command that continues.
pub fn running(job: &Running) -> CallToolResult {
    let id = &job.session.output_id;
    let mut text = String::new();
    reply::push_streams(&mut text, &job.stdout, &job.stderr);
    text.push_str(&format!(
        "[still running after {} as job {id}; time limit {}]",
        time_text(job.elapsed),
        time_text(job.timeout)
    ));
    if job.input == Waits::Yes {
        text.push_str("\n[it waits for input]");
    }
    text.push_str(&format!(
        "\n[the session `{}` is busy until it ends; `restart` ends it; another session is free]",
        job.session.name
    ));
    if !job.tools.is_empty() {
        text.push_str(&format!("\n[with job {id}: {}]", job.tools.join(", ")));
    }
    text.push_str(&job.session.notes(&Outcome::Timeout));
    let mut result = reply::result(text, false);
    result.structured_content = Some(json!({
        "outcome": "running",
        "job": id,
        "stdout": job.stdout.text,
        "stderr": job.stderr.text,
        "stdout_bytes": job.stdout.bytes,
        "stderr_bytes": job.stderr.bytes,
        "truncated": reply::are_cut(&job.stdout, &job.stderr),
        "duration_ms": millis(job.elapsed),
        "session": reply::to_value(&job.session.fields()),
    }));
    if let (Waits::Yes, Some(fields)) =
        (job.input, result.structured_content.as_mut().and_then(Value::as_object_mut))
    {
        fields.insert("waiting_for_input".to_owned(), json!(true));
    }
    result.meta = Some(reply::meta(job.receipt.as_ref(), None));
    result
}

/// Makes the result of a call that only restarts.
pub fn restarted(session: &str) -> CallToolResult {
    let text = format!(
        "[session `{session}`: the shell and all that ran in it has ended; the next call starts a \
         new one, in the same /workspace]"
    );
    let mut result = reply::result(text, false);
    let fields: Value = json!({
        "outcome": "restarted", "stdout": "", "stderr": "", "stdout_bytes": 0, "stderr_bytes": 0,
        "truncated": false, "duration_ms": 0, "session": { "id": session },
    });
    result.structured_content = Some(fields);
    result
}
