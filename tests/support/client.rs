//! A client that survives its server and checks that each call has at most one answer.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Check, Failed, children, equal, holds, patience};

/// Result of waiting for a line.
#[derive(Debug)]
pub enum Heard {
    Line(Box<Value>),
    Nothing,
    /// The server has closed its output.
    End,
}

pub struct Client {
    pub child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    next: u64,
}

impl Client {
    /// Starts a server and opens a session.
    pub fn start(command: Command) -> Result<Self, Failed> {
        Self::logged(command, Stdio::null())
    }

    /// The same, with its log.
    pub fn logged(mut command: Command, log: Stdio) -> Result<Self, Failed> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn()?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // A line that is no JSON is booked as one: no call has it as its answer.
                let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        let mut client = Self { child, stdin, lines, next: 0 };
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {},
                           "clientInfo": {"name": "test", "version": "1"}});
        client.say(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}))?;
        match client.hear(patience()) {
            Heard::Line(_) => {}
            Heard::Nothing | Heard::End => return Err("no greeting".into()),
        }
        client.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok(client)
    }

    fn say(&mut self, message: &Value) -> std::io::Result<()> {
        let stdin = self.stdin.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        writeln!(stdin, "{message}")
    }

    /// Asks for a command in a fresh cell; `None` where the server is gone.
    pub fn ask(&mut self, arguments: Value) -> Option<u64> {
        self.ask_tool("bash_exec", arguments)
    }

    /// Asks a tool for something; `None` where the server is gone.
    pub fn ask_tool(&mut self, tool: &str, arguments: Value) -> Option<u64> {
        self.next += 1;
        let params = json!({"name": tool, "arguments": arguments});
        let message =
            json!({"jsonrpc": "2.0", "id": self.next, "method": "tools/call", "params": params});
        self.say(&message).ok().map(|()| self.next)
    }

    pub fn hear(&self, patience: Duration) -> Heard {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Heard::Line(Box::new(line)),
            Err(RecvTimeoutError::Timeout) => Heard::Nothing,
            Err(RecvTimeoutError::Disconnected) => Heard::End,
        }
    }

    /// One call and its answer's result.
    pub fn call(&mut self, arguments: Value) -> Result<Value, Failed> {
        self.call_tool("bash_exec", arguments)
    }

    /// One call of a tool and its answer's result.
    pub fn call_tool(&mut self, tool: &str, arguments: Value) -> Result<Value, Failed> {
        let id = self.ask_tool(tool, arguments).ok_or("the server is gone")?;
        match self.hear(patience()) {
            Heard::Line(line) if line.get("id") == Some(&json!(id)) => {
                Ok(line.get("result").cloned().unwrap_or_default())
            }
            heard @ (Heard::Line(_) | Heard::Nothing | Heard::End) => {
                Err(format!("where the answer {id} belongs: {heard:?}").into())
            }
        }
    }

    /// Returns the output of one call, else the description of its end.
    pub fn text(&mut self, command: &str) -> Result<String, Failed> {
        let result = self.call(json!({"command": command}))?;
        let printed = result.pointer("/structuredContent/stdout").and_then(Value::as_str);
        match printed.filter(|printed| !printed.is_empty()) {
            Some(printed) => Ok(printed.to_owned()),
            None => last_text(&result).ok_or_else(|| format!("no text: {result}").into()),
        }
    }

    /// A call that is served as if nothing had been.
    pub fn served(&mut self) -> Check {
        let result = self.call(json!({"command": "echo alive"}))?;
        equal("served", result.pointer("/structuredContent/stdout"), Some(&json!("alive\n")))
    }

    pub fn supervisor(&self) -> Result<u32, Failed> {
        match children(self.child.id()).as_slice() {
            [one] => Ok(*one),
            other => Err(format!("one supervisor: {other:?}").into()),
        }
    }

    /// Waits for the end of the server, which must come by itself.
    pub fn end(&mut self, patience: Duration) -> Result<std::process::ExitStatus, Failed> {
        let end = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > end {
                return Err("the server did not end".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends its input, and with that the server.
    pub fn close(mut self) -> Check {
        drop(self.stdin.take());
        equal("its end", self.end(patience())?.code(), Some(0))
    }
}

/// The last text of a result: the line on its end, or the refusal.
pub fn last_text(result: &Value) -> Option<String> {
    let text = result.get("content")?.as_array()?.last()?.get("text")?;
    text.as_str().map(str::to_owned)
}

impl Drop for Client {
    fn drop(&mut self) {
        // The server has ended already, unless a test has failed.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

/// Calls that are open, with what each must print, and how those that ended did.
#[derive(Debug, Default)]
pub struct Book {
    pub open: BTreeMap<u64, String>,
    pub ends: BTreeMap<String, u32>,
}

impl Book {
    /// Books an answer: the only one of its call, and a true one.
    pub fn take(&mut self, line: &Value) -> Check {
        let id = line.get("id").and_then(Value::as_u64).unwrap_or_default();
        let Some(wanted) = self.open.remove(&id) else {
            return Err(format!("an answer to nothing that is open: {line}").into());
        };
        let output = |pointer| line.pointer(pointer).cloned().unwrap_or_default();
        let stdout = output("/result/structuredContent/stdout");
        let stdout = stdout.as_str().unwrap_or_default();
        let end = match output("/result/structuredContent/exit_code").as_u64() {
            Some(0) => {
                equal("its whole output and no other's", stdout, wanted.as_str())?;
                "exited".to_owned()
            }
            // 128 and SIGKILL.
            Some(137) => {
                holds("its output or none", stdout, stdout.is_empty() || stdout == wanted)?;
                "killed".to_owned()
            }
            // Failed by what holds it; the text says how. A shell that has ended has no code at all.
            Some(125) | None => {
                let text = last_text(&output("/result")).unwrap_or_default();
                let mut lines = text.lines();
                let killed = text.contains("[ended by SIGKILL");
                let reason =
                    if killed { Some("killed") } else { lines.find(|l| l.starts_with("[failed")) };
                reason.ok_or_else(|| format!("no reason: {line}"))?.to_owned()
            }
            Some(other) => return Err(format!("an unexpected end: {other} {line}").into()),
        };
        *self.ends.entry(end).or_default() += 1;
        Ok(())
    }

    pub fn count(&self, end: &str) -> u32 {
        self.ends.iter().filter(|(name, _)| name.contains(end)).map(|(_, count)| count).sum()
    }
}
