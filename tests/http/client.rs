//! A server with a listener, and a client that writes its requests byte by byte.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use crate::patience::patience;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_cofferdam");
/// A token that is long enough.
pub const ALICE: &str = "alice-0123456789abcdef0123456789abcdef";
pub const BOB: &str = "bob-0123456789abcdef0123456789abcdef00";

/// `cofferdam serve --http`, with its standard input held open.
pub struct Server {
    pub child: Child,
    /// `IP:PORT`, or the path of a socket.
    pub at: String,
    said: Mutex<Receiver<String>>,
    /// Home of the server: its state is kept there, until this is dropped.
    pub home: tempfile::TempDir,
}

impl Server {
    pub fn start(arguments: &[&str]) -> Self {
        Self::configured("", arguments)
    }

    /// The same with this text in `cofferdam.toml`. `HOME` in it is the server's home.
    pub fn configured(toml: &str, arguments: &[&str]) -> Self {
        Self::prepared(toml, arguments, |_, _| {})
    }

    /// The same, with preparations in its home and on its command.
    pub fn prepared(
        toml: &str,
        arguments: &[&str],
        prepare: impl Fn(&std::path::Path, &mut Command),
    ) -> Self {
        let mut arguments = arguments.to_vec();
        if !arguments.contains(&"--http") {
            arguments.extend(["--http", "127.0.0.1:0"]);
        }
        // Without a controlling terminal, at whose SIGHUP a server ends.
        let mut program = Command::new("setsid");
        program.arg(PROGRAM);
        let (home, mut command) = configured_command(program, toml, &arguments);
        prepare(home.path(), &mut command);
        command.stdin(Stdio::piped());
        Self::spawned(home, command)
    }

    /// Starts it by this command, and waits until it listens.
    pub fn spawned(home: tempfile::TempDir, mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the server starts");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let (sender, text) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut server = Self { child, at: String::new(), said: Mutex::new(text), home };
        let line = server.said("MCP at ");
        let at = line.rsplit("MCP at ").next().unwrap_or_default();
        let at = at.trim_start_matches("http://").trim_start_matches("https://");
        let at = at.trim_start_matches("unix:");
        server.at = at.trim_end_matches("/mcp").trim_end_matches(", path ").to_owned();
        server
    }

    /// Waits for a line of standard error with this text.
    pub fn said(&self, text: &str) -> String {
        let end = Instant::now() + patience();
        let printed = self.said.lock().expect("no thread of this test panicked");
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = printed.recv_timeout(left).expect("a line in time");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// A connection to it.
    pub fn connect(&self) -> Connection {
        let stream: Box<dyn Stream> = match self.at.starts_with('/') {
            true => Box::new(UnixStream::connect(&self.at).expect("it listens")),
            false => Box::new(TcpStream::connect(&self.at).expect("it listens")),
        };
        stream.patient();
        Connection(stream)
    }

    /// Sends a request on a new connection and returns the answer.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut connection = self.connect();
        connection.send(&request(method, path, headers, body));
        connection.answer()
    }

    /// Sends a message of MCP.
    pub fn mcp(&self, headers: &[(&str, &str)], message: &Value) -> Answer {
        let both = ("accept", "application/json, text/event-stream");
        let mut all = vec![both, ("content-type", "application/json")];
        all.extend(headers);
        self.ask("POST", "/mcp", &all, &message.to_string())
    }

    /// Opens an MCP session; its id.
    pub fn session(&self, headers: &[(&str, &str)]) -> String {
        let answer = self.mcp(headers, &initialize());
        assert_eq!(answer.status, 200, "{answer:?}");
        let id = answer.header("mcp-session-id").expect("an id").to_owned();
        let mut with = headers.to_vec();
        with.push(("mcp-session-id", &id));
        let output =
            self.mcp(&with, &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        assert_eq!(output.status, 202, "{output:?}");
        id
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        let sent =
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGTERM);
        sent.expect("it runs");
    }

    /// Waits for its end; its exit code.
    pub fn ended(&mut self) -> Option<i32> {
        let end = Instant::now() + patience();
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().expect("ours") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the server did not end")
    }
}

/// Adds the arguments of a server to a command, with this text in `cofferdam.toml` of a new home.
pub fn configured_command(
    mut command: Command,
    toml: &str,
    arguments: &[&str],
) -> (tempfile::TempDir, Command) {
    let home = tempfile::Builder::new().prefix("cofferdam-test-").tempdir().expect("a home");
    let config = home.path().join("config");
    std::fs::create_dir(&config).expect("a directory");
    let toml = toml.replace("HOME", &home.path().display().to_string());
    std::fs::write(config.join("cofferdam.toml"), format!("schema = 1\n{toml}")).expect("it");
    command.arg("--config").arg(&config).arg("serve").args(arguments);
    command.env("HOME", home.path()).env_remove("XDG_STATE_HOME");
    (home, command)
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        if self.child.kill().is_ok() {
            self.child.wait().map(|_| ()).unwrap_or_default();
        }
    }
}

/// Two clients with a token each.
pub const TOKENS: &str = "[[http.tokens]]\nclient = \"alice\"\nfile = \"HOME/alice\"\n\
                      [[http.tokens]]\nclient = \"bob\"\nfile = \"HOME/bob\"\n";

pub fn secret(path: &Path, text: &str) {
    std::fs::write(path, text).expect("written");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).expect("its mode");
}

pub fn with_tokens(arguments: &[&str]) -> Server {
    with_tokens_and(arguments, |_| {})
}

/// The same, with preparations in its home.
pub fn with_tokens_and(arguments: &[&str], prepare: impl Fn(&Path)) -> Server {
    Server::prepared(TOKENS, arguments, |home, _| {
        secret(&home.join("alice"), ALICE);
        secret(&home.join("bob"), BOB);
        prepare(home);
    })
}

pub fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

pub fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}
    }})
}

/// A call of a tool in a session.
pub fn call(tool: &str, arguments: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
           "params": {"name": tool, "arguments": arguments}})
}

/// Headers of a call of this tool in the revision without sessions.
pub fn modern(tool: &str) -> Vec<(&'static str, String)> {
    vec![
        ("mcp-protocol-version", "2026-07-28".to_owned()),
        ("mcp-method", "tools/call".to_owned()),
        ("mcp-name", tool.to_owned()),
    ]
}

/// The same call with what each request of that revision has.
pub fn modern_call(tool: &str, arguments: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {
        "name": tool, "arguments": arguments,
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"}
        }
    }})
}

pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text.push_str("host: localhost\r\n");
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    text + "\r\n" + body
}

pub trait Stream: Read + Write + Send {
    fn patient(&self);
}

impl Stream for TcpStream {
    fn patient(&self) {
        self.set_read_timeout(Some(patience())).expect("a time");
    }
}

impl Stream for UnixStream {
    fn patient(&self) {
        self.set_read_timeout(Some(patience())).expect("a time");
    }
}

/// One connection.
pub struct Connection(pub Box<dyn Stream>);

impl Connection {
    /// Sends text; errors of a closed connection are ignored.
    pub fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap_or_default();
    }

    /// Reads the answer, to the end of the connection.
    pub fn answer(&mut self) -> Answer {
        let mut all = Vec::new();
        let end = self.0.read_to_end(&mut all).map_err(|error| error.kind());
        let answer = Answer::parse(&all);
        // A reset is an end too, but a server that stays silent has not refused anything.
        let is_silent = matches!(end, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut));
        assert!(!is_silent || answer.status != 0, "no answer, and the connection stays open");
        answer
    }
}

/// An answer, with status 0 if the connection closed without one.
#[derive(Debug, Default)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return Self::default() };
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect();
        let chunked =
            headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let body = if chunked { joined(body) } else { body.to_owned() };
        Self { status: status.parse().unwrap_or_default(), headers, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// The message in it: JSON, or the last event of a stream.
    pub fn message(&self) -> Value {
        let events = self.body.lines().filter_map(|line| line.strip_prefix("data:"));
        let last = events.map(str::trim).rfind(|data| !data.is_empty());
        serde_json::from_str(last.unwrap_or(&self.body)).unwrap_or_default()
    }

    /// The output of the command that was called.
    pub fn stdout(&self) -> String {
        let message = self.message();
        let stdout = message.pointer("/result/structuredContent/stdout");
        stdout.and_then(Value::as_str).unwrap_or_default().to_owned()
    }
}

/// Joins chunks.
fn joined(mut text: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size, 16) else { break };
        let Some(piece) = rest.get(..size).filter(|piece| !piece.is_empty()) else { break };
        whole.push_str(piece);
        text = rest.get(size + 2..).unwrap_or_default();
    }
    whole
}
