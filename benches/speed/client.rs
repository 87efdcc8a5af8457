//! A client of `cofferdam serve`: a line out, a line in.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Result;
use crate::clients::Until;
use crate::peers::cofferdam;

/// A server with its session open.
pub struct Client {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    next: u64,
    /// From before the spawn to the reply to `initialize`.
    pub opened_in: Duration,
}

impl Client {
    pub fn start(arguments: &[&str]) -> Result<Self> {
        Self::of(cofferdam(), arguments)
    }

    /// Starts a server of this program.
    pub fn of(program: &str, arguments: &[&str]) -> Result<Self> {
        let started = Instant::now();
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take().ok_or("no stdin")?;
        let from = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let mut client = Self { child, to, from, next: 0, opened_in: Duration::ZERO };
        client.ask(
            "initialize",
            &json!({ "protocolVersion": "2025-11-25", "capabilities": {},
                     "clientInfo": { "name": "bench", "version": "1" } }),
        )?;
        client.opened_in = started.elapsed();
        let opened = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        client.to.write_all(format!("{opened}\n").as_bytes())?;
        Ok(client)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn ask(&mut self, method: &str, params: &Value) -> Result<(Duration, String)> {
        self.next += 1;
        let request =
            json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params });
        let line = format!("{request}\n");
        let mut reply = String::new();
        let started = Instant::now();
        self.to.write_all(line.as_bytes())?;
        self.from.read_line(&mut reply)?;
        Ok((started.elapsed(), reply))
    }

    /// Asks for a list, and makes sure that it has entries.
    pub fn list(&mut self, method: &str, params: &Value) -> Result<(Duration, Value)> {
        let (took, reply) = self.ask(method, params)?;
        let reply: Value = serde_json::from_str(&reply)?;
        match reply.get("result") {
            Some(result) => Ok((took, result.clone())),
            None => Err(format!("{method}: {reply}").into()),
        }
    }

    /// Calls a tool: how long it took from line to line, and what came back.
    pub fn call(&mut self, tool: &str, arguments: &Value) -> Result<(Duration, Value)> {
        let (took, reply) =
            self.ask("tools/call", &json!({ "name": tool, "arguments": arguments }))?;
        let reply: Value = serde_json::from_str(&reply)?;
        let exited = reply.pointer("/result/structuredContent/exit_code");
        match reply.pointer("/result") {
            // A calculation has no exit code.
            Some(result)
                if result.pointer("/isError") != Some(&json!(true))
                    && exited.is_none_or(|code| *code == json!(0)) =>
            {
                Ok((took, result.clone()))
            }
            Some(_) | None => Err(format!("{tool}: {reply}").into()),
        }
    }
}

impl Client {
    /// Calls a tool with so many requests open at once, and returns how long each took.
    pub fn at_once(
        &mut self,
        tool: &str,
        arguments: &Value,
        clients: usize,
        until: Until,
    ) -> Result<Vec<Duration>> {
        let mut sent = BTreeMap::new();
        let mut took = Vec::new();
        let params = json!({ "name": tool, "arguments": arguments });
        let started = Instant::now();
        for _ in 0..clients {
            sent.insert(self.send("tools/call", &params)?, Instant::now());
        }
        while !sent.is_empty() {
            let mut reply = String::new();
            self.from.read_line(&mut reply)?;
            let reply: Value = serde_json::from_str(&reply)?;
            let id = reply.get("id").and_then(Value::as_u64);
            let began = id.and_then(|id| sent.remove(&id));
            let succeeded = reply.pointer("/result/structuredContent/exit_code") == Some(&json!(0));
            let (Some(began), true) = (began, succeeded) else {
                return Err(format!("{tool}: {reply}").into());
            };
            took.push(began.elapsed());
            if until.again(started) {
                sent.insert(self.send("tools/call", &params)?, Instant::now());
            }
        }
        Ok(took)
    }

    /// Sends a request and returns its number.
    fn send(&mut self, method: &str, params: &Value) -> Result<u64> {
        self.next += 1;
        let request =
            json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params });
        self.to.write_all(format!("{request}\n").as_bytes())?;
        Ok(self.next)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The server's cells die with it.
        let ended = self.child.kill().and_then(|()| self.child.wait());
        if let Err(error) = ended {
            eprintln!("the server could not be ended: {error}");
        }
    }
}
