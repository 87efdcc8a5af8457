//! One MCP session over stdio, printed as it happens: what a client sends, what comes back, and the receipt.
//!
//! `make demo` runs it. It speaks JSON-RPC by hand, a line a message, so that what is printed is
//! what was on the wire and nothing of an SDK is between. The listener it starts on the host's loopback is real:
//! whether a cell reached it is seen from outside, not asked of the cell.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Text for the first call: this project's own page.
const PAGE: &str = include_str!("../README.md");

const COUNT: &str = "\
tr -cs A-Za-z '\\n' | tr A-Z a-z | awk 'length > 4 { n[$0]++ } END { for (w in n) print n[w], w }' \\
  | sort -k1,1nr -k2 | head -5 | tee common.txt
wc -l common.txt";

fn main() -> Result<()> {
    let binary = std::env::args().nth(1).unwrap_or_else(|| "target/release/cofferdam".to_owned());
    println!("A session with `{binary} serve`, as an MCP client has it.");
    let mut session = Session::start(&binary)?;

    heading("initialize");
    let opened = session.ask(
        "initialize",
        json!({ "protocolVersion": "2025-11-25", "capabilities": {},
                "clientInfo": { "name": "demo", "version": "1" } }),
    )?;
    let told = |path: &str| opened.pointer(path).and_then(Value::as_str).unwrap_or("?").to_owned();
    println!("<- {} {}", told("/serverInfo/name"), told("/serverInfo/version"));
    println!("   {}", told("/instructions"));
    session.tell("notifications/initialized")?;

    heading("tools/list");
    let listed = session.ask("tools/list", json!({}))?;
    for tool in listed.pointer("/tools").and_then(Value::as_array).into_iter().flatten() {
        let text = |name: &str| tool.get(name).and_then(Value::as_str).unwrap_or("?");
        println!("<- {:<20} {}", text("name"), text("title"));
    }

    heading("bash: work on a real page, given on standard input");
    let reply = session.call("bash", json!({ "command": COUNT, "stdin": PAGE }))?;
    show(&reply, &["structuredContent", "_meta"]);

    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    heading("bash: look around, and try to get out");
    let escape = format!(
        "uname -a; id; ls / /workspace; cat /etc/shadow; ls /home /root; ps ax | wc -l\n\
         echo > /dev/tcp/127.0.0.1/{port}; unshare -Ur true; mount -t tmpfs none /tmp"
    );
    let reply = session.call("bash", json!({ "command": escape }))?;
    show(&reply, &[]);
    match listener.accept() {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            println!("   (the listener on the host's port {port} saw no connection)");
        }
        Err(error) => return Err(error.into()),
        Ok(_) => return Err("the cell reached a listener of the host".into()),
    }

    for (expression, precision) in [("2^300", 0), ("sqrt(2)", 50)] {
        heading("calculate");
        let arguments = json!({ "expression": expression, "precision": precision });
        let reply = session.call("calculate", arguments)?;
        show(&reply, &[]);
    }
    session.end()
}

fn heading(text: &str) {
    println!("\n=== {text}");
}

/// Prints the text block, then the named parts of the result.
fn show(reply: &Value, parts: &[&str]) {
    let text = reply.pointer("/content/0/text").and_then(Value::as_str).unwrap_or("");
    text.lines().for_each(|line| println!("<- {line}"));
    for part in parts {
        let value = reply.get(*part).unwrap_or(&Value::Null);
        let text = serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string());
        println!("\n   {part}:");
        text.lines().for_each(|line| println!("   {line}"));
    }
}

/// A server that we started, and the two ends of its streams.
struct Session {
    server: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    id: u64,
}

impl Session {
    fn start(binary: &str) -> Result<Self> {
        let mut server = Command::new(binary)
            .arg("serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{binary}: {error}"))?;
        let input = server.stdin.take().ok_or("no standard input")?;
        let output = BufReader::new(server.stdout.take().ok_or("no standard output")?);
        Ok(Self { server, input, output, id: 0 })
    }

    /// Sends a request, prints it, and waits for its result.
    fn ask(&mut self, method: &str, params: Value) -> Result<Value> {
        self.id += 1;
        let request =
            json!({ "jsonrpc": "2.0", "id": self.id, "method": method, "params": params });
        println!("-> {}", shortened(&request.to_string()));
        writeln!(self.input, "{request}")?;
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line)? == 0 {
                return Err("the server ended; `cofferdam doctor` shows what is missing".into());
            }
            let message: Value = serde_json::from_str(&line)?;
            if message.get("id").and_then(Value::as_u64) == Some(self.id) {
                let result = message.get("result").cloned();
                return result.ok_or_else(|| format!("{method}: {message}").into());
            }
        }
    }

    /// Calls a tool; what it answers with `isError` would end the demo.
    fn call(&mut self, tool: &str, arguments: Value) -> Result<Value> {
        let result = self.ask("tools/call", json!({ "name": tool, "arguments": arguments }))?;
        match result.get("isError").and_then(Value::as_bool) {
            Some(true) => Err(format!("{tool}: {result}").into()),
            _ => Ok(result),
        }
    }

    fn tell(&mut self, method: &str) -> Result<()> {
        let message = json!({ "jsonrpc": "2.0", "method": method });
        println!("-> {message}");
        Ok(writeln!(self.input, "{message}")?)
    }

    /// Closes the server's input, which ends it.
    fn end(mut self) -> Result<()> {
        drop(self.input);
        let status = self.server.wait()?;
        println!("\nThe input was closed; the server ended: {status}.");
        if status.success() { Ok(()) } else { Err("the server should have ended with 0".into()) }
    }
}

/// The wire line, without most of a long page in it.
fn shortened(line: &str) -> String {
    const SHOWN: usize = 600;
    if line.chars().count() <= SHOWN {
        return line.to_owned();
    }
    let head: String = line.chars().take(SHOWN).collect();
    format!("{head}… ({} bytes)", line.len())
}
