//! The real server over real pipes, as a client has it: requests out, answers in.

#![allow(
    clippy::indexing_slicing,
    reason = "a missing field of an answer fails the test either way"
)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

#[path = "patience.rs"]
pub mod patience;
use patience::patience;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_cofferdam");

/// `cofferdam serve`, with a session opened.
pub struct Server {
    pub child: Child,
    stdin: Option<ChildStdin>,
    pub lines: Receiver<Value>,
    next: u64,
}

impl Server {
    pub fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.arg("serve").args(arguments).env("SECRET_OF_THE_CALLER", "do-not-show");
        Self::of(command)
    }

    /// The same, of a command that starts a server.
    pub fn of(command: Command) -> Self {
        Self::of_client(command, json!({}))
    }

    /// The same, for a client with these capabilities.
    pub fn of_client(mut command: Command, capabilities: Value) -> Self {
        let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = streams.spawn().expect("the server starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line).expect("every line is JSON");
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        let mut server = Self { child, stdin, lines, next: 0 };
        let hello = server.request(
            "initialize",
            json!({"protocolVersion": "2025-11-25", "capabilities": capabilities,
                   "clientInfo": {"name": "test", "version": "1"}}),
        );
        assert_eq!(server.answer(hello)["result"]["protocolVersion"], "2025-11-25");
        server.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        server
    }

    pub fn send(&mut self, message: &Value) {
        let stdin = self.stdin.as_mut().expect("not closed yet");
        writeln!(stdin, "{message}").expect("the server reads");
    }

    pub fn request(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        let id = self.next;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    pub fn call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.request("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// The next message, whatever it is.
    pub fn message(&self, end: Instant) -> Value {
        let left = end.saturating_duration_since(Instant::now());
        self.lines.recv_timeout(left).expect("an answer in time")
    }

    pub fn answer(&self, id: u64) -> Value {
        let end = Instant::now() + patience();
        loop {
            let line = self.message(end);
            if line["id"] == id {
                return line;
            }
        }
    }

    /// The result of one call.
    pub fn result(&mut self, tool: &str, arguments: Value) -> Value {
        let id = self.call(tool, arguments);
        self.answer(id)["result"].clone()
    }

    /// Ends its input; the exit code it then ends with.
    pub fn close(mut self) -> Option<i32> {
        drop(self.stdin.take());
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
