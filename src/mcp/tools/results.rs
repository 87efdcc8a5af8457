//! Results of tools as their schemas describe them. The replies are made in [`crate::reply`], [`crate::files`] and
//! [`service::report`].

#![expect(dead_code, reason = "the types are described, and never made")]

use schemars::JsonSchema;

use service::denied::DenialReport;
use service::report::changes::ChangeFields;
use service::report::network::NetworkFields;
use service::request::Precision;

/// Result of a command of a session.
#[derive(JsonSchema)]
pub(super) struct BashResult {
    /// How the call ended, or that it goes on as a job.
    #[schemars(extend("enum" = [
        "exited", "signaled", "timeout", "limit", "cancelled", "denied", "failed", "running", "restarted", "ended",
        "invalid"
    ]))]
    outcome: String,
    /// The command's own exit code, when it exited.
    exit_code: Option<u8>,
    /// Name of the signal that ended it.
    signal: Option<String>,
    /// The limit that ended it.
    #[schemars(extend("enum" = ["cpu", "memory", "host_memory", "file_size", "open_files", "output"]))]
    limit: Option<String>,
    /// Standard output; head and tail if truncated.
    stdout: Option<String>,
    /// Standard error; head and tail if truncated.
    stderr: Option<String>,
    stdout_bytes: Option<u64>,
    stderr_bytes: Option<u64>,
    /// Whether stdout or stderr is shortened.
    truncated: Option<bool>,
    /// Of a shortened output: by it bash_output reads the rest.
    output_id: Option<String>,
    duration_ms: Option<u64>,
    usage: Option<UsageResult>,
    /// System calls that were refused.
    denials: Option<Vec<DenialReport>>,
    files_changed: Option<ChangeFields>,
    network: Option<NetworkFields<'static>>,
    /// Where the shell is now.
    cwd: Option<String>,
    /// The command that goes on, for bash_output, bash_input and bash_kill.
    job: Option<String>,
    /// The command reads its input and there is none: it goes on when bash_input writes to it.
    waiting_for_input: Option<bool>,
    /// Why the command did not run, or did not end by itself.
    error: Option<String>,
    /// The way out.
    hint: Option<String>,
    /// What else happened: a lowered time limit, a new shell, a job that goes on.
    notes: Option<Vec<String>>,
    session: Option<SessionResult>,
}

/// Use of processor and memory.
#[derive(JsonSchema)]
#[schemars(description = "")]
struct UsageResult {
    user_ms: u64,
    system_ms: u64,
    peak_memory_bytes: u64,
}

/// Session of a command.
#[derive(JsonSchema)]
#[schemars(description = "")]
struct SessionResult {
    id: String,
    /// The command found a new shell after another, or its shell has ended.
    #[schemars(extend("enum" = ["new", "ended"]))]
    shell: Option<String>,
}

/// Result of a read of a job, or of its end.
#[derive(JsonSchema)]
pub(super) struct JobResult {
    #[schemars(flatten)]
    command: BashResult,
    /// Byte offsets to read on from, for `since`.
    next: NextOffsets,
}

/// Offsets for the next read.
#[derive(JsonSchema)]
struct NextOffsets {
    #[schemars(extend("default" = 0))]
    stdout: u64,
    #[schemars(extend("default" = 0))]
    stderr: u64,
}

/// Result of `bash_input`.
#[derive(JsonSchema)]
pub(super) struct InputResult {
    #[schemars(flatten)]
    job: JobResult,
    /// Bytes of `text` that were written.
    taken_bytes: Option<u64>,
}

/// Result of `bash_jobs`.
#[derive(JsonSchema)]
pub(super) struct JobsResult {
    /// The newest first.
    jobs: Vec<JobRow>,
    /// Older ones that are not shown.
    left_out: u64,
}

/// A job in a list.
#[derive(JsonSchema)]
struct JobRow {
    job: String,
    session: String,
    /// Its beginning.
    command: String,
    /// As of bash; `running` while it runs.
    outcome: String,
    exit_code: Option<u64>,
    duration_ms: u64,
    stdout_bytes: u64,
    stderr_bytes: u64,
}

/// Result of a command in a fresh cell.
#[derive(JsonSchema)]
pub(super) struct ExecResult {
    stdout: String,
    stderr: String,
    /// The command's own; 128+n after signal n, 124 after the time limit, 123 after another limit, 125 when it could
    /// not be run.
    exit_code: u8,
    execution_time_ms: u64,
    /// Where it started.
    working_dir: String,
    /// The command as given.
    command: String,
    /// All of it; with the next three where not all of the output is shown.
    stdout_bytes: Option<u64>,
    stderr_bytes: Option<u64>,
    truncated: Option<bool>,
    /// For bash_output.
    output_id: Option<String>,
    /// System calls that were refused.
    denials: Option<Vec<DenialReport>>,
    files_changed: Option<ChangeFields>,
    network: Option<NetworkFields<'static>>,
}

/// Result of commands that run one after the other.
#[derive(JsonSchema)]
pub(super) struct StepsResult {
    steps: Vec<StepRow>,
    /// Steps that ran.
    #[schemars(range(min = 1))]
    ran: usize,
    /// Steps that there are.
    #[schemars(range(min = 1))]
    of: usize,
    /// The first step that did not exit with 0.
    #[schemars(range(min = 1))]
    first_failed: Option<usize>,
    /// Why not all were run.
    stopped: Option<String>,
}

/// A step that ran.
#[derive(JsonSchema)]
struct StepRow {
    /// Its beginning.
    command: String,
    /// Head and tail if long; absent where the next step read it.
    stdout: Option<String>,
    stdout_bytes: u64,
    stderr: String,
    /// As of bash_exec.
    exit_code: u8,
    execution_time_ms: u64,
    /// There where not all of the output is shown.
    truncated: Option<bool>,
    /// For bash_output.
    output_id: Option<String>,
    /// What an exit code cannot tell.
    status: Option<String>,
}

/// Result of `calculate`.
#[derive(JsonSchema)]
pub(super) struct CalculateResult {
    /// The expression as given.
    expression: String,
    /// Present and false when not every digit is sure.
    exact: Option<bool>,
    #[schemars(flatten)]
    printed: PrintedResult,
}

/// Result of `calculate_advanced`.
#[derive(JsonSchema)]
pub(super) struct ScriptResult {
    /// The first 100 characters of the script.
    script: String,
    #[schemars(flatten)]
    printed: PrintedResult,
}

/// Text that bc printed.
#[derive(JsonSchema)]
struct PrintedResult {
    /// The value, or empty when nothing was printed.
    result: String,
    /// Present and true if `result` is the head and tail of a longer one.
    truncated: Option<bool>,
    /// Of a number that is shortened: how many it has.
    digits: Option<usize>,
    /// Of a shortened result: by it bash_output reads the rest.
    output_id: Option<String>,
    #[schemars(flatten)]
    calculation: CalculationResult,
}

/// Fields of every calculation.
#[derive(JsonSchema)]
struct CalculationResult {
    /// Decimal places in force.
    precision: Precision,
    #[schemars(flatten)]
    time: TimedResult,
}

/// Fields of everything that is calculated in a cell.
#[derive(JsonSchema)]
struct TimedResult {
    #[schemars(rename = "executionTimeMs")]
    time_ms: u64,
    /// What bc warned of, and a timeout that was lowered; absent when there is nothing.
    warnings: Option<Vec<String>>,
}

/// Result of `calculate_batch`.
#[derive(JsonSchema)]
pub(super) struct BatchResult {
    results: Vec<BatchRow>,
    errors: usize,
    #[schemars(flatten)]
    calculation: CalculationResult,
}

/// Result of one expression of a batch.
#[derive(JsonSchema)]
struct BatchRow {
    expression: String,
    result: Option<String>,
    /// Present and false when not every digit is sure.
    exact: Option<bool>,
    /// Why there is no result.
    error: Option<String>,
    truncated: Option<bool>,
    digits: Option<usize>,
    output_id: Option<String>,
    notes: Option<Vec<String>>,
}

/// Result of `calculate_plot`.
#[derive(JsonSchema)]
pub(super) struct PlotResult {
    /// The drawing, a line for each row.
    plot: String,
    expression: String,
    variable: String,
    from: f64,
    to: f64,
    /// The least value computed.
    min: f64,
    /// The greatest.
    max: f64,
    /// Columns without a value.
    gaps: usize,
    /// Columns whose value is beyond the rows shown.
    beyond: usize,
    #[schemars(flatten)]
    time: TimedResult,
}

/// Result of `edit`.
#[derive(JsonSchema)]
pub(super) struct EditResult {
    path: String,
    /// Of what was viewed.
    #[schemars(extend("enum" = ["file", "directory"]))]
    kind: Option<String>,
    /// Of a directory; / ends a directory, @ a symbolic link.
    entries: Option<Vec<String>>,
    /// Whether a directory has more.
    truncated: Option<bool>,
    /// Lines with their numbers.
    text: Option<String>,
    first_line: Option<usize>,
    last_line: Option<usize>,
    #[schemars(extend("enum" = ["created", "replaced", "edited"]))]
    done: Option<String>,
    /// Where the change begins.
    #[schemars(range(min = 1))]
    line: Option<usize>,
    /// The change and the lines around it.
    snippet: Option<String>,
    /// Of the whole file.
    lines: Option<usize>,
    size: Option<u64>,
    sha256: Option<String>,
}

/// Result of `put_file`.
#[derive(JsonSchema)]
pub(super) struct PutResult {
    path: String,
    #[schemars(extend("enum" = ["created", "replaced"]))]
    done: String,
    size: u64,
    sha256: String,
}

/// Result of `get_file`.
#[derive(JsonSchema)]
pub(super) struct GetResult {
    path: String,
    /// Of the whole file.
    size: u64,
    mode: String,
    offset: u64,
    bytes: usize,
    /// Where to read on; absent at the end.
    next_offset: Option<u64>,
    content: Option<String>,
    /// In place of content, where the bytes are not text.
    content_base64: Option<String>,
    /// Of a file that is told whole.
    sha256: Option<String>,
}
