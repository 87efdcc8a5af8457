//! A client of the real server that writes and reads single lines, for any caller.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::{self, Caller, Check, Failed, equal, patience};

/// A server, spoken to in lines.
pub struct Server {
    pub child: Child,
    stdin: ChildStdin,
    lines: Receiver<Value>,
    answers: BTreeMap<u64, Value>,
    last: u64,
}

impl Server {
    pub fn start(caller: &Caller, config: &str) -> Result<Self, Failed> {
        Self::with_policy(caller, config, None)
    }

    /// Starts a server with a policy in place of the one that is compiled in.
    pub fn with_policy(
        caller: &Caller,
        config: &str,
        policy: Option<&str>,
    ) -> Result<Self, Failed> {
        let policy: Vec<_> = policy.map(|text| ("policies", text)).into_iter().collect();
        Self::with_files(caller, config, &policy)
    }

    /// Starts a server with these files in directories of the configuration.
    pub fn with_files(
        caller: &Caller,
        config: &str,
        files: &[(&str, &str)],
    ) -> Result<Self, Failed> {
        Self::configured(caller, config, files, &[])
    }

    /// Starts a server with these options.
    pub fn configured(
        caller: &Caller,
        config: &str,
        files: &[(&str, &str)],
        options: &[&str],
    ) -> Result<Self, Failed> {
        let directory = caller.directory("configuration")?;
        caller.file("configuration/cofferdam.toml", &format!("schema = 1\n{config}"))?;
        for (index, (name, text)) in files.iter().enumerate() {
            let path = directory.join(name);
            if !path.exists() {
                caller.directory(&format!("configuration/{name}"))?;
            }
            let file = caller.file(&format!("configuration/{name}/own{index}.toml"), text)?;
            support::mode(&path, 0o700)?;
            support::mode(&file, 0o600)?;
        }
        support::mode(&directory, 0o700)?;
        support::mode(&directory.join("cofferdam.toml"), 0o600)?;
        let path = directory.display().to_string();
        let words = [&["serve", "--config", &path], options].concat();
        Self::of(caller.cofferdam(&words))
    }

    /// Starts a server by a command.
    pub fn of(mut command: Command) -> Result<Self, Failed> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no output")?);
        let stdin = child.stdin.take().ok_or("no input")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let sent = serde_json::from_str(&line).map(|line| sender.send(line));
                if !matches!(sent, Ok(Ok(()))) {
                    return;
                }
            }
        });
        let mut server = Self { child, stdin, lines, answers: BTreeMap::new(), last: 0 };
        let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" } });
        let id = server.request("initialize", &hello)?;
        server.answer(id)?;
        server.say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))?;
        Ok(server)
    }

    pub fn say(&mut self, message: &Value) -> Check {
        writeln!(self.stdin, "{message}")?;
        Ok(())
    }

    pub fn request(&mut self, method: &str, params: &Value) -> Result<u64, Failed> {
        self.last += 1;
        let id = self.last;
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        Ok(id)
    }

    /// Reads the next line.
    pub fn hear(&mut self) -> Result<Value, Failed> {
        Ok(self.lines.recv_timeout(patience()).map_err(|_| "no line from the server")?)
    }

    pub fn answer(&mut self, id: u64) -> Result<Value, Failed> {
        let end = Instant::now() + patience();
        loop {
            if let Some(answer) = self.answers.remove(&id) {
                return Ok(answer["result"].clone());
            }
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).map_err(|_| "no answer in time")?;
            if let Some(id) = line["id"].as_u64() {
                self.answers.insert(id, line);
            }
        }
    }

    pub fn ask(&mut self, arguments: &Value) -> Result<u64, Failed> {
        self.request("tools/call", &json!({ "name": "bash", "arguments": arguments }))
    }

    /// Calls a tool and waits for its answer.
    pub fn tool(&mut self, name: &str, arguments: &Value) -> Result<Value, Failed> {
        let id = self.request("tools/call", &json!({ "name": name, "arguments": arguments }))?;
        self.answer(id)
    }

    /// Calls `bash` and waits for its answer.
    pub fn with(&mut self, arguments: &Value) -> Result<Value, Failed> {
        let id = self.ask(arguments)?;
        self.answer(id)
    }

    pub fn bash(&mut self, command: &str) -> Result<Value, Failed> {
        self.with(&json!({ "command": command }))
    }

    /// Checks that a command ends with this code and prints exactly this.
    pub fn gives(&mut self, command: &str, code: u8, stdout: &str) -> Check {
        let answer = self.bash(command)?;
        equal(command, story(&answer), (Some(u64::from(code)), stdout.to_owned()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ended already, perhaps.
        self.child.kill().unwrap_or_default();
        drop(self.child.wait());
    }
}

/// Returns how a call ended and what it printed.
pub fn story(answer: &Value) -> (Option<u64>, String) {
    let content = &answer["structuredContent"];
    (content["exit_code"].as_u64(), content["stdout"].as_str().unwrap_or_default().to_owned())
}

/// Returns the text of an answer.
pub fn text(answer: &Value) -> &str {
    answer["content"][0]["text"].as_str().unwrap_or_default()
}
