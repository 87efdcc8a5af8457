//! One MCP session over stdio that explains itself: work, attempts to get out with the layer that refused each, and
//! exact arithmetic.
//!
//! `make demo` runs it. It speaks JSON-RPC by hand, a line a message, so that nothing of an SDK is between. Each reply
//! is checked: an attempt that is not refused as it says ends the demo with an error. The listener it starts on the
//! host's loopback is real: whether a cell reached it is seen from outside, not asked of the cell.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Text for the first call: this project's own page.
const PAGE: &str = include_str!("../../../README.md");

const COUNT: &str =
    "tr -cs A-Za-z '\\n' | tr A-Z a-z | awk 'length > 4' | sort | uniq -c | sort -rn | head -3";

/// An attempt to get out.
struct Attempt {
    goal: &'static str,
    command: &'static str,
    /// Text that the reply has.
    refused: &'static str,
    /// Layer that refuses it.
    layer: &'static str,
}

const ATTEMPTS: [Attempt; 7] = [
    Attempt {
        goal: "read the passwords of this machine",
        command: "cat /etc/shadow",
        refused: "No such file or directory",
        layer: "the cell's own root: /etc was made for it",
    },
    Attempt {
        goal: "look into the homes of its users",
        command: "ls /home /root",
        refused: "No such file or directory",
        layer: "the cell's own root: nothing of them is in it",
    },
    Attempt {
        goal: "change a program of this machine",
        command: "echo evil >> /usr/bin/ls",
        refused: "Permission denied",
        layer: "Landlock, and read-only mounts behind it",
    },
    Attempt {
        goal: "end every process of this machine",
        command: "kill -9 -1",
        refused: "No such process",
        layer: "the pid namespace: it holds nothing but the cell",
    },
    Attempt {
        goal: "become root in a namespace of its own",
        command: "unshare -Ur id",
        refused: "Operation not permitted",
        layer: "the list of system calls: unshare is not on it",
    },
    Attempt {
        goal: "read the messages of the kernel",
        command: "dmesg",
        refused: "Operation not permitted",
        layer: "the list of system calls: syslog is not on it",
    },
    Attempt {
        goal: "use up the memory",
        command: "head -c 3G /dev/zero | tail -c 3G | wc -c",
        refused: "memory",
        layer: "the limit on memory: 1 GiB for the whole cell",
    },
];

fn main() -> Result<()> {
    let binary = std::env::args().nth(1).unwrap_or_else(|| "target/release/cofferdam".to_owned());
    let began = Instant::now();
    println!("A session with `{binary} serve`, as an MCP client has it.\n");
    let mut session = Session::start(&binary)?;
    session.ask(
        "initialize",
        &json!({ "protocolVersion": "2025-11-25", "capabilities": {},
                 "clientInfo": { "name": "demo", "version": "1" } }),
    )?;
    session.notify("notifications/initialized")?;

    println!(
        "1. An agent works: it calls the tool `bash`, with this project's README as standard input."
    );
    println!("   $ {COUNT}");
    quote(&session.bash(&json!({ "command": COUNT, "stdin": PAGE }))?);

    println!("\n2. It tries to get out. Its shell lives in a cell, which is gone with it.");
    for attempt in ATTEMPTS {
        let Attempt { goal, command, refused, layer } = attempt;
        let text = session.bash(&json!({ "command": command }))?;
        let met = text.lines().find(|line| line.contains(refused));
        let met = met.ok_or_else(|| format!("{goal}: not refused as it should be: {text}"))?;
        println!("   {goal}\n     $ {command}\n       {met}\n     refused by {layer}");
    }
    let port = network(&mut session)?;
    println!("     refused by the network namespace: port {port} of the host saw no connection");

    println!("\n3. It calculates exactly, by the tool `calculate`.");
    for (expression, precision) in [("2^300", 0), ("sqrt(2)", 50)] {
        let arguments = json!({ "expression": expression, "precision": precision });
        let report: Value = serde_json::from_str(&session.call("calculate", &arguments)?)?;
        let result = report.get("result").and_then(Value::as_str);
        println!("   {expression} = {}", result.ok_or_else(|| format!("{expression}: {report}"))?);
    }
    session.end()?;
    println!(
        "\nThat took {:.1} s. Next: `cofferdam setup CLIENT` in a project, and README.md.",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Has a cell connect to a port that is open on the host, and returns the port if nothing arrived.
fn network(session: &mut Session) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let command = format!("echo > /dev/tcp/127.0.0.1/{port}");
    let text = session.bash(&json!({ "command": command }))?;
    let met = text.lines().find(|line| line.contains("Connection refused"));
    let met = met.ok_or_else(|| format!("the network: not refused as it should be: {text}"))?;
    println!("   reach a service of this machine\n     $ {command}\n       {met}");
    match listener.accept() {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(port),
        Err(error) => Err(error.into()),
        Ok(_) => Err("the cell reached a listener of the host".into()),
    }
}

fn quote(text: &str) {
    text.lines().for_each(|line| println!("     {line}"));
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

    /// Sends a request and waits for its result.
    fn ask(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.id += 1;
        let request =
            json!({ "jsonrpc": "2.0", "id": self.id, "method": method, "params": params });
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

    /// Calls a tool and returns the text of its reply.
    fn call(&mut self, tool: &str, arguments: &Value) -> Result<String> {
        let result = self.ask("tools/call", &json!({ "name": tool, "arguments": arguments }))?;
        let text = result.pointer("/content/0/text").and_then(Value::as_str);
        text.map(str::to_owned).ok_or_else(|| format!("{tool}: {result}").into())
    }

    fn bash(&mut self, arguments: &Value) -> Result<String> {
        self.call("bash", arguments)
    }

    fn notify(&mut self, method: &str) -> Result<()> {
        Ok(writeln!(self.input, "{}", json!({ "jsonrpc": "2.0", "method": method }))?)
    }

    /// Closes the server's input, which ends it.
    fn end(mut self) -> Result<()> {
        drop(self.input);
        let status = self.server.wait()?;
        if status.success() { Ok(()) } else { Err("the server should have ended with 0".into()) }
    }
}
