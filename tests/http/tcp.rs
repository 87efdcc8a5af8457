//! MCP in lines over raw TCP, as clients of an older server speak it, and as web pages and strangers try to.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{PROGRAM, initialize, patience};

/// `cofferdam serve` with a listener for lines.
struct Lines {
    child: Child,
    at: String,
    /// Lines of standard error so far.
    said: Arc<Mutex<Vec<String>>>,
    _home: tempfile::TempDir,
}

impl Lines {
    fn start(arguments: &[&str], config_json: Option<&str>) -> Self {
        Self::configured("", arguments, config_json)
    }

    fn configured(toml: &str, arguments: &[&str], config_json: Option<&str>) -> Self {
        let home = tempfile::tempdir().expect("a home");
        std::fs::write(home.path().join("cofferdam.toml"), format!("schema = 1\n{toml}"))
            .expect("written");
        let mut command = Command::new(PROGRAM);
        command
            .arg("--config")
            .arg(home.path())
            .arg("serve")
            .args(arguments)
            .env("HOME", home.path());
        if let Some(text) = config_json {
            let file = home.path().join("config.json");
            std::fs::write(&file, text).expect("written");
            command.arg("--config-json").arg(&file);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut printed = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let line = printed.find_map(|line| line.ok().filter(|line| line.contains("tcp://")));
        let line = line.expect("it says where it is");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in printed.map_while(Result::ok) {
                kept.lock().expect("no panic").push(line);
            }
        });
        let at = line.rsplit("tcp://").next().unwrap_or_default().to_owned();
        Self { child, at, said: lines, _home: home }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.at).expect("it listens");
        stream.set_read_timeout(Some(patience())).expect("a time");
        stream
    }

    /// The answer to bytes that are no session: what comes until the connection is closed.
    fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap_or_default();
        let mut all = Vec::new();
        let end = stream.read_to_end(&mut all).map_err(|error| error.kind());
        // A reset is an end too, but not a connection that stays open.
        let is_open = matches!(end, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut));
        assert!(!is_open, "the connection stays open");
        all
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if self.child.kill().is_ok() {
            self.child.wait().map(|_| ()).unwrap_or_default();
        }
    }
}

/// A session of one connection.
struct Session(BufReader<TcpStream>);

impl Session {
    fn open(server: &Lines) -> Self {
        let mut session = Self(BufReader::new(server.connect()));
        session.ask(&initialize());
        session.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        session
    }

    fn send(&mut self, message: &Value) {
        self.0.get_mut().write_all(format!("{message}\n").as_bytes()).expect("it is open");
    }

    fn ask(&mut self, message: &Value) -> Value {
        self.send(message);
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer in time");
        serde_json::from_str(&line).unwrap_or_default()
    }

    fn bash(&mut self, id: u32, command: &str) -> Value {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
                          "params": {"name": "bash", "arguments": {"command": command}}});
        self.ask(&call)["result"]["structuredContent"]["stdout"].clone()
    }
}

#[test]
fn each_connection_is_a_separate_session() {
    let server = Lines::start(&["--tcp", "127.0.0.1:0"], None);
    let mut first = Session::open(&server);
    let mut second = Session::open(&server);
    assert_eq!(first.bash(2, "x=kept; echo $x"), json!("kept\n"));
    assert_eq!(first.bash(3, "echo $x"), json!("kept\n"), "the shell continues");
    assert_eq!(second.bash(2, "echo ${x-none}; ls /workspace | wc -l"), json!("none\n0\n"));
    drop(first);
    assert_eq!(second.bash(3, "echo on"), json!("on\n"), "the end of one is no end of the other");
}

#[test]
fn http_requests_of_a_browser_are_rejected() {
    let server = Lines::start(&["--tcp", "127.0.0.1:0"], None);
    let message = initialize();
    for request in [
        format!("POST / HTTP/1.1\r\nHost: x\r\n\r\n{message}\n"),
        format!("\r\n{message}\n"),
        format!(" {message}\n"),
        "\u{16}\u{3}\u{1}".to_owned(),
    ] {
        assert_eq!(server.exchange(request.as_bytes()), b"", "{request:?}");
    }
    // The same message by itself is answered.
    let answer = Session(BufReader::new(server.connect())).ask(&message);
    assert!(answer["result"]["serverInfo"].is_object(), "{answer}");
}

/// Returns true once the server has closed a connection.
fn is_closed(stream: &mut TcpStream, within: Duration) -> bool {
    stream.set_read_timeout(Some(within)).expect("a time");
    match stream.read(&mut [0]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn silent_connections_do_not_block_sessions() {
    let server = Lines::start(&["--tcp", "127.0.0.1:0"], None);
    let mut open = Session::open(&server);
    assert_eq!(open.bash(2, "x=kept; echo up"), json!("up\n"));
    // More than there may be, and some that begin a message and never end it.
    let mut silent: Vec<TcpStream> = (0..40).map(|_| server.connect()).collect();
    for stream in silent.iter_mut().skip(20) {
        stream.write_all(b"{\"jsonrpc\":").unwrap_or_default();
    }
    let mut late = Session::open(&server);
    assert_eq!(late.bash(2, "echo in"), json!("in\n"));
    assert_eq!(open.bash(3, "echo $x"), json!("kept\n"), "idle for longest, and in use");
    assert!(silent.iter_mut().any(|one| is_closed(one, Duration::from_millis(20))));
    // A connection without a whole message is closed in its time.
    assert!(silent.iter_mut().all(|one| is_closed(one, Duration::from_secs(10) + patience())));
}

#[test]
fn busy_connections_are_not_closed_for_others() {
    let server = Lines::start(&["--tcp", "127.0.0.1:0", "--tools", "exec"], None);
    let mut busy: Vec<Session> = (0..16).map(|_| Session::open(&server)).collect();
    for session in &mut busy {
        let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params":
            {"name": "bash_exec", "arguments": {"command": "sleep 200", "timeout": 250}}});
        session.send(&call);
        // Behind it, so that the call above is taken once this is answered.
        assert!(
            session.ask(&json!({"jsonrpc": "2.0", "id": 3, "method": "ping"}))["result"]
                .is_object()
        );
    }
    assert!(is_closed(&mut server.connect(), patience()), "a 17th is refused");
    busy.pop();
    let end = Instant::now() + patience();
    loop {
        let mut stream = server.connect();
        stream.write_all(format!("{}\n", initialize()).as_bytes()).unwrap_or_default();
        let mut line = String::new();
        if BufReader::new(stream).read_line(&mut line).is_ok_and(|length| length > 0) {
            break;
        }
        assert!(Instant::now() < end, "a client that left makes room");
    }
}

#[test]
fn a_job_and_a_shell_in_use_keep_their_connections() {
    let server = Lines::start(&["--tcp", "127.0.0.1:0"], None);
    let ping = json!({"jsonrpc": "2.0", "id": 3, "method": "ping"});
    // The first ones, so that they are idle for longest.
    let mut job = Session::open(&server);
    let mut shell = Session::open(&server);
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "bash",
        "arguments": {"command": "sleep 200", "session": "long", "background": true}}});
    let begun = job.ask(&call);
    assert_eq!(begun["result"]["structuredContent"]["outcome"], "running", "{begun}");
    assert_eq!(shell.bash(2, "x=kept; echo up"), json!("up\n"));
    let mut others: Vec<Session> = (0..40).map(|_| Session::open(&server)).collect();
    assert!(others.last_mut().expect("one").ask(&ping)["result"].is_object());
    let closed = others.iter_mut().filter_map(|one| {
        let stream = one.0.get_mut();
        stream.set_nonblocking(true).expect("a mode");
        matches!(stream.read(&mut [0]), Ok(0)).then_some(())
    });
    assert!(closed.count() >= 20, "they make room, as nothing ends with them");
    let jobs = json!({"jsonrpc": "2.0", "id": 4, "method": "tools/call",
                      "params": {"name": "bash_jobs", "arguments": {}}});
    let list = job.ask(&jobs)["result"]["structuredContent"]["jobs"].clone();
    assert_eq!((&list[0]["job"], &list[0]["outcome"]), (&json!("c1"), &json!("running")), "{list}");
    assert_eq!(shell.bash(5, "echo $x"), json!("kept\n"));
}

#[test]
fn a_task_has_the_memory_of_its_line_until_it_ends() {
    let server = Lines::configured(
        "[sessions]\nyield = \"1s\"\n",
        &["--tcp", "127.0.0.1:0", "--tools", "exec"],
        None,
    );
    let mut session = Session(BufReader::new(server.connect()));
    let call = |id: u32, pad: usize| {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities":
                { "extensions": { "io.modelcontextprotocol/tasks": {} } },
            "pad": "x".repeat(pad),
        });
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params":
            {"name": "bash_exec", "arguments": {"command": "sleep 200", "timeout": 250}, "_meta": meta}})
    };
    let about = |id: u32, method: &str, task: &Value| {
        let mut message = call(id, 0);
        message["method"] = json!(method);
        message["params"]["taskId"] = task.clone();
        message
    };
    let large = 12 << 20;
    let tasks: Vec<Value> =
        (1..=2).map(|id| session.ask(&call(id, large))["result"]["taskId"].clone()).collect();
    assert!(tasks.iter().all(Value::is_string), "{tasks:?}");
    let refused = session.ask(&call(3, large));
    let reason = refused["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains("too many large messages"), "{reason}");
    assert!(session.ask(&call(4, 0))["result"]["taskId"].is_string(), "a small one is taken");
    session.ask(&about(5, "tasks/cancel", &tasks[0]));
    let end = Instant::now() + patience();
    while session.ask(&about(6, "tasks/get", &tasks[0]))["result"]["status"] == "working" {
        assert!(Instant::now() < end, "it ends");
    }
    let taken = session.ask(&call(7, large));
    assert!(taken["result"]["taskId"].is_string(), "{taken}");
}

#[test]
fn a_line_of_many_values_costs_no_memory() {
    let server = Lines::start(&["--tcp", "127.0.0.1:0"], None);
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    };
    let mut session = Session::open(&server);
    let before = resident();
    let many = "[],".repeat(5_000_000);
    for _ in 0..3 {
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"x\",\"params\":{{\"a\":[{many}0]}}}}\n"
        );
        session.0.get_mut().write_all(line.as_bytes()).expect("it is read");
        let mut answer = String::new();
        session.0.read_line(&mut answer).expect("an answer in time");
        assert!(answer.contains("100000 values of JSON at most"), "{answer}");
    }
    let more = resident().saturating_sub(before);
    assert!(more < 64 << 20, "{more} bytes more");
    assert_eq!(session.bash(5, "echo on"), json!("on\n"));
}

#[test]
fn what_strangers_send_fills_no_log() {
    let server = Lines::start(&["--tcp", "127.0.0.1:0"], None);
    for _ in 0..100 {
        assert_eq!(server.exchange(b"GET / HTTP/1.1\r\n\r\n"), b"");
    }
    let answer = Session(BufReader::new(server.connect())).ask(&initialize());
    assert!(answer["result"].is_object(), "{answer}");
    let text = server.said.lock().expect("no panic");
    let warnings = text.iter().filter(|line| line.contains("begins with no message")).count();
    // Ten in a minute, and one for each six seconds that this takes.
    assert!((1..60).contains(&warnings), "{warnings}");
}

#[test]
fn config_json_opens_the_port_to_its_addresses_only() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    let json = |allowed: &str| {
        json!({"network": {"enabled": true, "port": port, "allowedSubnets": [allowed]}}).to_string()
    };
    {
        let server = Lines::start(&[], Some(&json("127.0.0.0/8")));
        assert_eq!(Session::open(&server).bash(2, "echo in"), json!("in\n"));
    }
    let server = Lines::start(&[], Some(&json("10.0.0.0/8")));
    assert_eq!(server.exchange(initialize().to_string().as_bytes()), b"");
}

#[test]
fn a_subscription_does_not_hold_a_connection() {
    let server = Lines::start(&["--tcp", "127.0.0.1:0"], None);
    let mut listening: Vec<Session> = (0..16).map(|_| Session::open(&server)).collect();
    for session in &mut listening {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        session.send(&json!({"jsonrpc": "2.0", "id": 2, "method": "subscriptions/listen",
            "params": {"notifications": {"toolsListChanged": true}, "_meta": meta}}));
        // The server says first that it listens, and takes the ping after that.
        let answer = session.ask(&json!({"jsonrpc": "2.0", "id": 3, "method": "ping"}));
        assert_eq!(answer["error"], Value::Null, "{answer}");
    }
    let mut late = Session::open(&server);
    assert_eq!(late.bash(2, "echo in"), json!("in\n"));
}
