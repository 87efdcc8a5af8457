//! SIGUSR1: the figures of a running server, on its standard error.

use std::io::{BufRead, BufReader, Error, Result, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::patience::patience;

/// The JSON lines of a stream.
fn lines(stream: impl std::io::Read + Send + 'static) -> Receiver<Value> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        for line in lines.filter_map(|line| serde_json::from_str(&line).ok()) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

struct Server {
    child: Child,
    answers: Receiver<Value>,
    figures: Receiver<Value>,
}

impl Server {
    fn start() -> Result<Self> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_cofferdam"))
            .args(["serve", "--tools", "calc,exec"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let none = || Error::other("no pipe");
        let answers = lines(child.stdout.take().ok_or_else(none)?);
        let figures = lines(child.stderr.take().ok_or_else(none)?);
        let mut server = Self { child, answers, figures };
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {},
                           "clientInfo": {"name": "test", "version": "1"}});
        server.asked("initialize", &hello)?;
        Ok(server)
    }

    fn asked(&mut self, method: &str, params: &Value) -> Result<Value> {
        let stdin = self.child.stdin.as_mut().ok_or_else(|| Error::other("no input"))?;
        let line = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        writeln!(stdin, "{line}")?;
        if method == "initialize" {
            writeln!(stdin, r#"{{"jsonrpc":"2.0","method":"notifications/initialized"}}"#)?;
        }
        self.answers.recv_timeout(patience()).map_err(Error::other)
    }

    fn figures(&self) -> Result<Value> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).map_err(Error::other)?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGUSR1)?;
        let output = self.figures.recv_timeout(patience()).map_err(Error::other)?;
        output.get("cofferdam_metrics").cloned().ok_or_else(|| Error::other("no metrics"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().map_or_else(|error| eprintln!("{error}"), drop);
    }
}

#[test]
fn a_signal_prints_the_metrics() -> Result<()> {
    let mut server = Server::start()?;
    let number = |figures: &Value, pointer: &str| figures.pointer(pointer).and_then(Value::as_u64);
    let before = server.figures()?;
    assert_eq!(number(&before, "/calls"), Some(0));
    for command in ["true", "sleep 0.2", "true"] {
        let call = json!({"name": "bash_exec", "arguments": {"command": command}});
        let answer = server.asked("tools/call", &call)?;
        let text = answer.pointer("/result/content/0/text").and_then(Value::as_str);
        assert!(text.is_some_and(|text| text.contains("\"exit_code\": 0")), "{answer}");
    }
    let after = server.figures()?;
    assert_eq!(number(&after, "/calls"), Some(3));
    assert_eq!(number(&after, "/running"), Some(0));
    let of = |name: &str| number(&after, &format!("/cells/{name}")).unwrap_or_default();
    assert_eq!(of("warm") + of("cold"), 3, "{after}");
    assert!(of("cold") >= 1, "the first finds no cell: {after}");
    let run = number(&after, "/timings_us/run").unwrap_or_default();
    assert!(run >= 200_000, "{after}");
    let exec = number(&after, "/timings_us/exec").unwrap_or_default();
    assert!(exec > 0, "each program is seen to begin: {after}");
    let drain = number(&after, "/timings_us/drain").unwrap_or_default();
    assert!(drain > 0, "each call's output is read to its end: {after}");
    Ok(())
}
