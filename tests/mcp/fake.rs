//! A backend that runs nothing, and a client that speaks raw lines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use calc::plot::{Drawn, Plot};
use mcp::lines::Ends;
use mcp::serve::{ServeError, connection};
use model::egress::{Egress, NetworkClass};
use model::job::{Limits, ProfileName};
use model::outcome::{Outcome, Timings, Usage};
use model::profile::{
    Exec, Family, HostPath, PathKind, Presence, ProcView, Profile, Requires, UnixSockets,
};
use model::receipt::{MemoryHold, Tier};
use serde_json::{Value, json};
use service::cli::state::ToolFigures;
use service::cli::{Declared, DeclaredRequest, DeclaredResult};
use service::client::ClientState;
use service::refused::{Refused, RefusedKind};
use service::report::{BashAnswer, FileReport, JobAnswer, JobEnd};
use service::report::{
    Batch, BatchValue, Calculated, Clamped, CommandReport, Exact, Plotted, StreamReport,
    ValueOrigin,
};
use service::request::{BashRequest, ExecOptions, FetchPlace, FileRequest, JobRequest, Precision};
use service::rules::Rules;
use service::shell::ScriptArgs;
use service::{Backend, CallReport, Caller};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;

/// Time after which calls of the fake backend become tasks.
pub(crate) const YIELD: Duration = Duration::from_millis(50);

/// Answers by the command's first word; see [`Fake::bash`].
#[derive(Debug)]
pub(crate) struct Fake {
    client: ClientState,
    /// Held for as long as anything holds the backend.
    _alive: Arc<()>,
}

impl Default for Fake {
    fn default() -> Self {
        Self::holding(Arc::default())
    }
}

impl Fake {
    fn holding(alive: Arc<()>) -> Self {
        Self { client: ClientState::new(&ExecOptions::default()), _alive: alive }
    }
}

pub(crate) fn command_report(outcome: Outcome, stdout: &str) -> CommandReport {
    CommandReport {
        absent_program: None,
        outcome,
        stdout: StreamReport {
            text: stdout.to_owned(),
            bytes: u64::try_from(stdout.len()).unwrap(),
            ..StreamReport::default()
        },
        stderr: StreamReport::default(),
        usage: Usage { wall: Duration::from_millis(12), ..Usage::default() },
        denials: Vec::new(),
        cwd: "/workspace".to_owned(),
        timeout: Duration::from_secs(600),
        clamped: Clamped::No,
        receipt: None,
        timings: Timings::default(),
        unrecorded: None,
        output_id: None,
        session: None,
        files_changed: None,
        network: None,
    }
}

impl Backend for Fake {
    fn client(&self) -> &ClientState {
        &self.client
    }

    async fn bash(&self, request: BashRequest, caller: Caller) -> Result<BashAnswer, Refused> {
        let BashRequest::Run(run) = request else { panic!("a restart was not asked for") };
        let mut words = run.args.command.split(' ');
        let output = match words.next().unwrap() {
            "panic" => panic!("asked to"),
            "deny" => {
                Err(Refused::new(RefusedKind::Denied, "denied by rule `none`: no rule allows it"))
            }
            // Ends only when cancelled, and then reports its output so far.
            "wait" => {
                caller.produced.add(7);
                caller.cancel.cancelled().await;
                Ok(command_report(Outcome::Cancelled, "partial"))
            }
            "sleep" => {
                let time = Duration::from_millis(words.next().unwrap().parse().unwrap());
                tokio::select! {
                    () = tokio::time::sleep(time) => Ok(command_report(Outcome::Exited { code: 0 }, "slept")),
                    () = caller.cancel.cancelled() => Ok(command_report(Outcome::Cancelled, "")),
                }
            }
            "fault" => {
                let time = Duration::from_millis(words.next().unwrap().parse().unwrap());
                tokio::time::sleep(time).await;
                panic!("asked to");
            }
            // Ignores cancellation, against the contract.
            "stuck" => std::future::pending().await,
            word => Ok(command_report(Outcome::Exited { code: 0 }, word)),
        };
        output.map(BashAnswer::from)
    }

    async fn project_tool(
        &self,
        tool: &str,
        _args: ScriptArgs,
        _caller: Caller,
    ) -> Result<CallReport, Refused> {
        panic!("no project is served here, and `{tool}` is none of its tools")
    }

    async fn project_fetch(
        &self,
        of: &str,
        _to: FetchPlace,
        _args: ScriptArgs,
        _caller: Caller,
    ) -> Result<CallReport, Refused> {
        panic!("no project is served here, and `{of}` is none of its tools")
    }

    async fn calculate(
        &self,
        expression: String,
        precision: Precision,
        _within: Option<Duration>,
        _caller: Caller,
    ) -> Result<Calculated, Refused> {
        if expression == "1/0" {
            return Err(Refused::failed("BC error: divide by zero"));
        }
        Ok(calculated(format!("at {}", precision.places())))
    }

    async fn calculate_advanced(
        &self,
        _script: String,
        precision: Precision,
        _within: Option<Duration>,
        _caller: Caller,
    ) -> Result<Calculated, Refused> {
        Ok(calculated(format!("raw at {}", precision.places())))
    }

    async fn calculate_batch(
        &self,
        expressions: Vec<String>,
        _precision: Precision,
        _within: Option<Duration>,
        _caller: Caller,
    ) -> Result<Batch, Refused> {
        let value = |result, exact| BatchValue { result, shortened: None, exact };
        let entry = |expression: &String| match expression.as_str() {
            "1/0" => Err("BC error: Divide by zero".to_owned()),
            "1/3*4.5" => Ok(value("2".to_owned(), Exact::No)),
            expression => Ok(value(format!("<{expression}>"), Exact::Yes)),
        };
        Ok(Batch {
            entries: expressions.iter().map(entry).collect(),
            took: Duration::from_millis(6),
            receipt: None,
            unrecorded: None,
        })
    }

    async fn calculate_plot(
        &self,
        plot: Plot,
        _within: Option<Duration>,
        _caller: Caller,
    ) -> Result<Plotted, Refused> {
        let drawn = Drawn {
            plot: format!("{}x{}\n", plot.width, plot.height),
            from: -1.0,
            to: 1.0,
            lowest: 0.0,
            highest: 2.5,
            gaps: 1,
            beyond: 0,
        };
        let took = Duration::from_millis(8);
        Ok(Plotted { drawn, took, receipt: None, unrecorded: None })
    }

    async fn script(
        &self,
        tool: &'static str,
        _args: ScriptArgs,
        _caller: Caller,
    ) -> Result<CommandReport, Refused> {
        Err(Refused::failed(format!("`{tool}` is not run here")))
    }

    async fn file(
        &self,
        tool: &'static str,
        _request: FileRequest,
        _caller: Caller,
    ) -> Result<FileReport, Refused> {
        Err(Refused::failed(format!("`{tool}` has no files here")))
    }

    async fn command(
        &self,
        declared: &Declared,
        _request: DeclaredRequest,
        _caller: Caller,
    ) -> Result<DeclaredResult, Refused> {
        Err(Refused::failed(format!("`{}` is not run here", declared.command.name)))
    }

    async fn job(&self, _request: JobRequest, _caller: Caller) -> Result<JobAnswer, Refused> {
        Err(Refused::failed("there are no jobs here"))
    }

    fn exec_options(&self) -> ExecOptions {
        ExecOptions::default()
    }

    fn yield_after(&self) -> Duration {
        YIELD
    }

    fn pending(&self) -> usize {
        0
    }

    fn tool_figures(&self, _tool: &str) -> Option<ToolFigures> {
        None
    }

    fn commands(&self) -> &[Declared] {
        &[]
    }

    fn lists(&self, _tool: &str) -> bool {
        true
    }

    fn switches(&self) -> tokio::sync::watch::Receiver<u64> {
        tokio::sync::watch::Sender::new(0).subscribe()
    }

    fn withheld(&self, _tool: &str) -> Option<Refused> {
        None
    }

    fn end_of(&self, _job: &str) -> Option<Pin<Box<dyn Future<Output = JobEnd> + Send>>> {
        None
    }

    fn invalid(&self, _tool: &str, _why: &str) {}

    async fn settled(&self) {}

    fn rules(&self) -> Rules {
        Rules::of(&profile(), None, Tier::Full, MemoryHold::BestEffort, Duration::from_secs(30))
    }
}

fn calculated(result: String) -> Calculated {
    Calculated {
        result,
        shortened: None,
        exact: Exact::Yes,
        warnings: Vec::new(),
        took: Duration::from_millis(4),
        ran: ValueOrigin::InCell(None),
        unrecorded: None,
    }
}

pub(crate) fn profile() -> Profile {
    Profile {
        name: ProfileName::new("bash").unwrap(),
        description: "a shell people can work in".to_owned(),
        trust: Vec::new(),
        paths: vec![HostPath {
            host: PathBuf::from("/usr"),
            cell: PathBuf::from("/usr"),
            kind: PathKind::Tree,
            presence: Presence::Required,
        }],
        exec: Exec::Any,
        ahead: None,
        workspace: true,
        proc: ProcView::Own,
        egress: Egress { class: NetworkClass::Loopback, ..Egress::default() },
        families: BTreeSet::from([Family::Unix, Family::Inet]),
        unix_sockets: UnixSockets::None,
        granted_sockets: Vec::new(),
        calls: BTreeSet::new(),
        quiet: BTreeSet::new(),
        env: BTreeMap::new(),
        limits: Limits {
            wall: Duration::from_secs(600),
            cpu: Duration::from_secs(600),
            processors: None,
            memory: 1 << 30,
            processes: 256,
            open_files: 1024,
            file_size: 512 << 20,
            workspace_bytes: 384 << 20,
            tmp_bytes: 128 << 20,
            shm_bytes: 64 << 20,
            inodes: 100_000,
            output: Some(256 << 20),
        },
        requires: Requires { landlock_abi: 2, memory_cgroup: false },
        tier: model::receipt::Tier::Full,
        terminal: None,
        git_identity: None,
        script_sdk: &[],
    }
}

/// A client that writes lines and reads lines.
pub(crate) struct Client {
    input: Option<WriteHalf<DuplexStream>>,
    output: BufReader<ReadHalf<DuplexStream>>,
    pub(crate) ends: Ends,
    pub(crate) server: JoinHandle<Result<(), ServeError>>,
}

impl Client {
    /// Starts a server; it runs as many calls as are asked for.
    pub(crate) fn start() -> Self {
        Self::holding(Arc::default())
    }

    /// Starts a server that holds this for as long as it can run calls.
    pub(crate) fn holding(alive: Arc<()>) -> Self {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (reader, writer) = tokio::io::split(far);
        let ends = Ends::default();
        let server = tokio::spawn(connection(Fake::holding(alive), reader, writer, ends.clone()));
        let (output, input) = tokio::io::split(near);
        Self { input: Some(input), output: BufReader::new(output), ends, server }
    }

    /// Starts a server and opens a session of an older revision.
    pub(crate) async fn opened(version: &str) -> Self {
        let mut client = Self::start();
        let answer = client.ask(initialize(version)).await;
        assert_eq!(answer["result"]["protocolVersion"], json!(version));
        client.say(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        client
    }

    pub(crate) async fn raw(&mut self, bytes: &[u8]) {
        self.input.as_mut().unwrap().write_all(bytes).await.unwrap();
    }

    pub(crate) async fn say(&mut self, message: Value) {
        self.raw(format!("{message}\n").as_bytes()).await;
    }

    /// The next message; null at the end of output.
    pub(crate) async fn hear(&mut self) -> Value {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        let count = tokio::time::timeout(Duration::from_secs(30), read).await.unwrap().unwrap();
        if count == 0 { Value::Null } else { serde_json::from_str(&line).unwrap() }
    }

    pub(crate) async fn ask(&mut self, message: Value) -> Value {
        self.say(message).await;
        self.hear().await
    }

    /// Closes both directions, as a client that crashed.
    pub(crate) fn leave(self) -> JoinHandle<Result<(), ServeError>> {
        self.server
    }

    /// The end of input. A duplex stream has two directions; only ours is shut.
    pub(crate) async fn end_input(&mut self) {
        self.input.take().unwrap().shutdown().await.unwrap();
    }
}

pub(crate) fn initialize(version: &str) -> Value {
    json!({
        "jsonrpc": "2.0", "id": "init", "method": "initialize",
        "params": {
            "protocolVersion": version, "capabilities": {},
            "clientInfo": { "name": "test", "version": "0" }
        }
    })
}

pub(crate) fn call(id: i64, tool: &str, arguments: Value) -> Value {
    json!({
        "jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": { "name": tool, "arguments": arguments }
    })
}

pub(crate) fn bash(id: i64, command: &str) -> Value {
    call(id, "bash", json!({ "command": command }))
}

/// `_meta` of a request of the 2026-07-28 revision.
pub(crate) fn modern(mut message: Value) -> Value {
    message["params"]["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "0" }
    });
    message
}

/// The text of a tool result.
pub(crate) fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap()
}
