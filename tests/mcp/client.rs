//! A client that speaks raw lines to a server in memory, whose supervisor runs nothing.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use config::document::Document;
use config::policy::group::ToolGroup;
use config::policy::{Policy, Principal};
use config::profile::Profiles;
use config::{Config, Loaded, Origin};
use mcp::arguments::Named;
use mcp::lines::Ends;
use mcp::serve::{ServeError, connection};
use mcp::server::{Continuity, Server};
use mcp::tools::{BuiltIn, CallResult, ClientCalls, Context, InForce, ToolEntry};
use model::job::Workspace;
use model::receipt::MemoryHold;
use model::wire::{self, Event, Ready, ScopeResult};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use rmcp::model::{CallToolResult, ContentBlock, Tool};
use serde::Deserialize;
use serde_json::{Value, json};
use service::audit::Audit;
use service::history::History;
use service::host_programs::HostPrograms;
use service::link::Link;
use service::refused::{Refused, RefusedKind};
use service::{Caller, Executor, Scope, Setup};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;

/// Time after which calls become tasks.
const YIELD: Duration = Duration::from_millis(50);

/// A tool that does what its text says, so that a test chooses how a call ends.
#[derive(Debug, Deserialize)]
struct Script {
    text: String,
}

impl Named for Script {
    const TOOL: &'static str = "script";
}

impl BuiltIn for Script {
    fn describe(_: &InForce) -> Tool {
        let schema = json!({ "type": "object", "properties": { "text": { "type": "string" } } });
        Tool::new(Self::TOOL, "Does what its text says.", rmcp::model::object(schema))
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let mut words = self.text.split(' ');
        let word = words.next().unwrap();
        let time = words.next().map(|text| Duration::from_millis(text.parse().unwrap()));
        let run = async |caller: Caller| match word {
            "panic" => panic!("asked to"),
            "deny" => {
                Err(Refused::new(RefusedKind::Denied, "denied by rule `none`: no rule allows it"))
            }
            // Ends only when cancelled, and then reports its output so far.
            "wait" => {
                caller.produced.add(7);
                caller.cancel.cancelled().await;
                Ok(("partial", true))
            }
            "sleep" => tokio::select! {
                () = tokio::time::sleep(time.unwrap()) => Ok(("slept", false)),
                () = caller.cancel.cancelled() => Ok(("", true)),
            },
            "fault" => {
                tokio::time::sleep(time.unwrap()).await;
                panic!("asked to");
            }
            // Ignores cancellation, against the contract.
            "stuck" => std::future::pending().await,
            word => Ok((word, false)),
        };
        let (printed, is_error) = calls.turn(context, run).await?;
        let mut result = CallToolResult::success(vec![ContentBlock::text(printed)]);
        result.is_error = Some(is_error);
        result.structured_content = Some(json!({ "stdout": printed }));
        Ok(result)
    }
}

/// The scripted tool alone.
const SCRIPT: &[ToolEntry] = &[ToolEntry::of::<Script>()];

/// Calls the scripted tool.
pub(crate) fn script(id: i64, text: &str) -> Value {
    call(id, Script::TOOL, json!({ "text": text }))
}

/// A server's tools under the shipped policy, and the supervisor's end of its link. The supervisor has reported that
/// cells can be made, and answers nothing.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) client: Scope,
    supervisor: OwnedFd,
}

impl Tools {
    /// Offers all built-in tools, and a declared one, without which `get_tool_info` is not listed.
    pub(crate) fn all() -> Self {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (near, supervisor) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let ready = Event::Ready(Ready {
            landlock_abi: 7,
            memory: MemoryHold::BestEffort,
            scope: ScopeResult::NotAsked,
            unusable: Vec::new(),
        });
        nix::unistd::write(&supervisor, &wire::encode(&ready).unwrap()).unwrap();
        let profiles = Profiles::compiled_in();
        let policy = Policy::parse(&config::policy::shipped(), &profiles).unwrap();
        let document = Document::new("c.toml", "schema = 1\n[tools]\non = [\"cli_file\"]\n");
        let mut config = Config::parse(Some(&document), 1).unwrap();
        config.tools_groups.value = ToolGroup::ALL.into_iter().collect();
        config.session_yield.value = YIELD;
        let setup = Setup {
            loaded: Loaded { config, policy, profiles, origin: Origin::Embedded },
            workspace: Workspace::Fresh,
            granted: None,
            command_timeout: None,
            host_programs: HostPrograms::default(),
            missing: BTreeSet::new(),
            workers: 4,
            read_only: None,
            readable: Vec::new(),
            workspace_path: None,
            layer: None,
        };
        let executor = Executor::new(setup, Link::attach(near).unwrap(), Audit::off());
        Self { client: executor.scope(Principal::local()), supervisor }
    }
}

/// A client that writes lines and reads lines.
pub(crate) struct Client {
    input: Option<WriteHalf<DuplexStream>>,
    output: BufReader<ReadHalf<DuplexStream>>,
    pub(crate) ends: Ends,
    pub(crate) server: JoinHandle<Result<(), ServeError>>,
    /// History of the client's commands, held by anything that can still run calls.
    pub(crate) history: Weak<History>,
    _supervisor: OwnedFd,
}

impl Client {
    /// Starts a server that has the scripted tool alone.
    pub(crate) fn start() -> Self {
        Self::with_tools(SCRIPT)
    }

    /// Starts a server with these tools.
    pub(crate) fn with_tools(tools: &'static [ToolEntry]) -> Self {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (reader, writer) = tokio::io::split(far);
        let ends = Ends::default();
        let Tools { client, supervisor } = Tools::all();
        let history = Arc::downgrade(&client.state().history);
        let kill = ends.kill.clone();
        let server = Server::with_tools(client, kill, tools, None, Continuity::Connection);
        let server = tokio::spawn(connection(server, reader, writer, ends.clone(), None));
        let (output, input) = tokio::io::split(near);
        let input = Some(input);
        let output = BufReader::new(output);
        Self { input, output, ends, server, history, _supervisor: supervisor }
    }

    /// Starts a server and opens a session of an older revision.
    pub(crate) async fn opened(version: &str) -> Self {
        Self::start().initialized(version).await
    }

    /// Starts a server with all built-in tools, and opens a session of an older revision.
    pub(crate) async fn built_in(version: &str) -> Self {
        Self::with_tools(ToolEntry::ALL).initialized(version).await
    }

    async fn initialized(self, version: &str) -> Self {
        let mut client = self;
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
