//! MCP in lines over raw TCP, as clients of an older server speak it, and as web pages and strangers try to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::client::{PROGRAM, initialize, patience};

/// `cofferdam serve` with a listener for lines.
struct Lines {
    child: Child,
    at: String,
    _home: tempfile::TempDir,
}

impl Lines {
    fn start(arguments: &[&str], config_json: Option<&str>) -> Self {
        let home = tempfile::tempdir().expect("a home");
        let mut command = Command::new(PROGRAM);
        command.arg("serve").args(arguments).env("HOME", home.path()).env_remove("XDG_CONFIG_HOME");
        if let Some(text) = config_json {
            let file = home.path().join("config.json");
            std::fs::write(&file, text).expect("written");
            command.arg("--config-json").arg(&file);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut said = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let line = said.find_map(|line| line.ok().filter(|line| line.contains("tcp://")));
        let line = line.expect("it says where it is");
        std::thread::spawn(move || said.for_each(drop));
        let at = line.rsplit("tcp://").next().unwrap_or_default().to_owned();
        Self { child, at, _home: home }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.at).expect("it listens");
        stream.set_read_timeout(Some(patience())).expect("a time");
        stream
    }

    /// The answer to bytes that are no session: what comes until the connection is closed.
    fn told(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap_or_default();
        let mut all = Vec::new();
        // A reset is an end too.
        stream.read_to_end(&mut all).map(|_| ()).unwrap_or_default();
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
fn each_connection_is_a_session_of_its_own() {
    let server = Lines::start(&["--tcp", "127.0.0.1:0"], None);
    let (mut first, mut second) = (Session::open(&server), Session::open(&server));
    assert_eq!(first.bash(2, "x=kept; echo $x"), json!("kept\n"));
    assert_eq!(first.bash(3, "echo $x"), json!("kept\n"), "the shell goes on");
    assert_eq!(second.bash(2, "echo ${x-none}; ls /workspace | wc -l"), json!("none\n0\n"));
    drop(first);
    assert_eq!(second.bash(3, "echo on"), json!("on\n"), "the end of one is no end of the other");
}

#[test]
fn what_a_browser_sends_is_closed_before_a_line_is_taken() {
    let server = Lines::start(&["--tcp", "127.0.0.1:0"], None);
    let message = initialize();
    for request in [
        format!("POST / HTTP/1.1\r\nHost: x\r\n\r\n{message}\n"),
        format!("\r\n{message}\n"),
        format!(" {message}\n"),
        "\u{16}\u{3}\u{1}".to_owned(),
    ] {
        assert_eq!(server.told(request.as_bytes()), b"", "{request:?}");
    }
    // The same message by itself is answered.
    let answer = Session(BufReader::new(server.connect())).ask(&message);
    assert!(answer["result"]["serverInfo"].is_object(), "{answer}");
}

#[test]
fn many_connections_are_refused_and_those_that_are_open_go_on() {
    let server = Lines::start(&["--tcp", "127.0.0.1:0"], None);
    let mut open = Session::open(&server);
    let _silent: Vec<TcpStream> = (0..15).map(|_| server.connect()).collect();
    // It is the 17th: 16 may be open, which the server may still be taking.
    let refused = (0..200).any(|_| {
        let mut one = server.connect();
        one.set_read_timeout(Some(std::time::Duration::from_millis(50))).expect("a time");
        matches!(one.read(&mut [0]), Ok(0)) || one.write_all(b"x").is_err()
    });
    assert!(refused, "there is a bound");
    assert_eq!(open.bash(2, "echo on"), json!("on\n"));
    let answer = open.ask(&json!({"jsonrpc": "2.0", "id": 3, "method": "nothing"}));
    assert!(answer["error"].is_object(), "{answer}");
}

#[test]
fn the_network_of_a_config_json_opens_the_same_and_admits_its_addresses_alone() {
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
    assert_eq!(server.told(initialize().to_string().as_bytes()), b"");
}
