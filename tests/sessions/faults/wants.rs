//! Descriptors, processes, memory and disk space run out: each shortage is reported by name and is temporary.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::client::{Client, Heard, last_text};
use crate::host::{Host, Seen};
use crate::support::{Caller, Check, Failed, Finished, equal, gone, holds, kill, patience};

/// Starts a server that builds no cell in advance: each call asks for what a cell takes.
fn cold(caller: &Caller) -> Result<Client, Failed> {
    if !caller.home.join("cold").exists() {
        caller.directory("cold")?;
        caller.file("cold/cofferdam.toml", "schema = 1\n[pool]\nwarm = 0\n")?;
    }
    let config = caller.home.join("cold").display().to_string();
    let mut client =
        Client::start(caller.cofferdam(&["--config", &config, "serve", "--tools", "exec"]))?;
    client.served()?;
    Ok(client)
}

/// Sets the soft limit of a process that runs, or raises it to the hard one again.
///
/// Runs as the caller, whose uid allows this; root may lack the capability.
fn limit(caller: &Caller, pid: u32, what: &str, value: Option<u64>) -> Check {
    let mut command = caller.outside("prlimit");
    let value = value.map_or("unlimited".to_owned(), |value| value.to_string());
    command.args(["--pid", &pid.to_string(), &format!("--{what}={value}:")]);
    let output = Finished::run(command, patience())?;
    equal(&output.stderr, output.code, 0)
}

/// Returns the hard limit of descriptors, to which the soft one can be raised again.
fn most_files(pid: u32) -> Result<u64, Failed> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line = text.lines().find(|line| line.starts_with("Max open files")).unwrap_or_default();
    Ok(line.split_whitespace().nth(4).unwrap_or_default().parse()?)
}

/// Returns a soft limit that leaves `free` numbers for new descriptors.
fn leaving(pid: u32, free: u64) -> Result<u64, Failed> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    let open: BTreeSet<u64> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let mut unused = (0..).filter(|number| !open.contains(number));
    unused.nth(usize::try_from(free)?).ok_or_else(|| "no end of numbers".into())
}

/// Returns the answer to a call while `pid` has this limit; afterwards the server serves again.
fn wanting(
    caller: &Caller,
    (client, command): (&mut Client, &str),
    pid: u32,
    what: &str,
    value: u64,
    back: Option<u64>,
) -> Result<String, Failed> {
    limit(caller, pid, what, Some(value))?;
    let answer = client.text(command);
    limit(caller, pid, what, back)?;
    let answer = answer?;
    client.served()?;
    Ok(reason(&answer))
}

/// Returns WHY of `[failed: WHY; hint: …; time limit …]`.
fn reason(output: &str) -> String {
    let output = output.lines().next().unwrap_or_default();
    let cause = output.strip_prefix("[failed: ").and_then(|output| output.split(';').next());
    cause.unwrap_or(output).to_owned()
}

/// Returns the answer to a call whose front end lost its numbers while the supervisor had the job.
fn meanwhile(
    caller: &Caller,
    client: &mut Client,
    (front, supervisor): (u32, u32),
    most: u64,
) -> Result<String, Failed> {
    kill(supervisor, Signal::SIGSTOP)?;
    let seconds = format!("{}{}", 6_000_000 + front, caller.uid());
    // The call's time is longer than any wait here: only a cancel ends it.
    let arguments = json!({"command": format!("sleep {seconds}"), "timeout": 300});
    let id = client.ask_tool("bash_exec", arguments);
    // The frame is under way when the front end has nothing more to do.
    std::thread::sleep(Duration::from_secs(2));
    limit(caller, front, "nofile", Some(3))?;
    kill(supervisor, Signal::SIGCONT)?;
    let heard = client.hear(patience());
    limit(caller, front, "nofile", Some(most))?;
    client.served()?;
    equal("programs left behind", gone(&seconds, patience()), Vec::<u32>::new())?;
    match heard {
        Heard::Line(line) if line.get("id") == Some(&json!(id)) => {
            let text = line.get("result").and_then(last_text);
            text.map(|text| reason(&text)).ok_or_else(|| format!("no text: {line}").into())
        }
        heard @ (Heard::Line(_) | Heard::Nothing | Heard::End) => {
            Err(format!("where the answer {id:?} belongs: {heard:?}").into())
        }
    }
}

pub fn descriptors(caller: &Caller) -> Check {
    let mut client = cold(caller)?;
    let front = client.child.id();
    let supervisor = client.supervisor()?;
    let most = most_files(front)?;
    let made = "the cell could not be made: step";
    let none = "too many open files (EMFILE)";
    let streams = format!("{made} receiving the program's streams: {none}");
    let output = meanwhile(caller, &mut client, (front, supervisor), most)?;
    equal("front end, none any more", output, streams)?;
    let mut report = |command: &str, pid, value| {
        wanting(caller, (&mut client, command), pid, "nofile", value, Some(most))
    };
    let short = "echo alive";
    let long = format!("echo alive # {:20000}", "");
    // Too few for what comes back, nothing runs.
    for free in 0..2 {
        let few = leaving(front, free)?;
        let preparing = format!("{made} preparing the job: {none}");
        equal(&format!("front end, {free}"), report(short, front, few)?, preparing)?;
    }
    // A command that is no part of its frame comes in a descriptor.
    let cap = "the server is at its cap of descriptors";
    equal("supervisor, none, long", report(&long, supervisor, 3)?, cap)?;
    let cloning = format!("{made} cloning the cell: {none}");
    equal("supervisor, none", report(short, supervisor, 3)?, cloning.as_str())?;
    if nix::unistd::geteuid().is_root() {
        let few = leaving(supervisor, 2)?;
        equal("supervisor, two", report(&long, supervisor, few)?, cloning)?;
    }
    client.close()
}

pub fn processes(caller: &Caller) -> Check {
    let mut client = cold(caller)?;
    let supervisor = client.supervisor()?;
    let text = std::fs::read_to_string(format!("/proc/{supervisor}/limits"))?;
    let line = text.lines().find(|line| line.starts_with("Max processes")).unwrap_or_default();
    let most = line.split_whitespace().nth(3).and_then(|most| most.parse().ok());
    let output = wanting(caller, (&mut client, "echo alive"), supervisor, "nproc", 0, most)?;
    let reason = "cloning the cell: try again (EAGAIN)";
    equal("reported", output, format!("the cell could not be made: step {reason}"))?;
    client.close()
}

/// A process that has no memory left ends: what it had open is answered or seen to end.
pub fn memory(caller: &Caller) -> Check {
    for of_supervisor in [false, true] {
        let before = Host::now(caller)?;
        let mut client = Client::start(caller.cofferdam(&["serve", "--tools", "shell,exec"]))?;
        client.served()?;
        let pid = if of_supervisor { client.supervisor()? } else { client.child.id() };
        let mut seen = Seen::default();
        seen.look(client.child.id());
        limit(caller, pid, "as", Some(1))?;
        let stdin = "x".repeat(4 << 20);
        client.ask_tool("bash", json!({"command": "wc -c", "stdin": stdin}));
        match client.hear(patience()) {
            Heard::Line(line) => {
                let output = line.pointer("/result/structuredContent/stdout");
                let failed = line.pointer("/result/isError") == Some(&json!(true));
                holds("true", &line, failed || output == Some(&json!("4194304\n")))?;
            }
            Heard::End => {}
            Heard::Nothing => return Err("neither an answer nor an end".into()),
        }
        drop(client);
        seen.gone()?;
        seen.groups_gone(caller)?;
        equal("left on the host", Host::now(caller)?, before)?;
    }
    Ok(())
}

/// Starts a server in a mount namespace with a small, full disk.
fn with_full_disk(caller: &Caller, on_error: &str) -> Result<Client, Failed> {
    let log = caller.directory("log")?;
    let config = caller.directory("recorded")?;
    let file = log.join("audit/audit.jsonl");
    let text =
        format!("schema = 1\n[audit]\nfile = \"{}\"\non_error = \"{on_error}\"\n", file.display());
    caller.file("recorded/cofferdam.toml", &text)?;
    let script = format!(
        "mount -t tmpfs -o size=256k,mode=700 none {log} && mkdir -m 700 {log}/audit && \
         exec {binary} --config {config} serve --tools exec",
        log = log.display(),
        binary = caller.binary().display(),
        config = config.display(),
    );
    let mut command = caller.outside("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    Client::start(command)
}

fn fill(client: &Client, log: &std::path::Path, full: bool) -> Check {
    let root = format!("/proc/{}/root", client.child.id());
    let file = std::path::PathBuf::from(format!("{root}{}", log.join("filler").display()));
    if !full {
        return Ok(std::fs::remove_file(file)?);
    }
    let written = std::fs::write(file, vec![0; 1 << 20]);
    let errno = written.err().and_then(|error| error.raw_os_error());
    equal("the disk is full", errno, Some(libc::ENOSPC))
}

pub fn audit_continues(caller: &Caller) -> Check {
    let mut client = with_full_disk(caller, "continue")?;
    client.served()?;
    fill(&client, &caller.home.join("log"), true)?;
    let mut unrecorded = None;
    // The last page of the log may have room for a few lines yet.
    for _ in 0..30 {
        let result = client.call(json!({"command": "echo alive"}))?;
        equal("it ran", result.pointer("/structuredContent/stdout"), Some(&json!("alive\n")))?;
        unrecorded = result.pointer("/_meta/cofferdam~1audit").cloned();
        if unrecorded.is_some() {
            break;
        }
    }
    let reason = unrecorded.unwrap_or_default().to_string();
    holds("why it is not recorded", &reason, reason.contains("no space left on device"))?;
    verified_after(caller, client)
}

pub fn audit_stops(caller: &Caller) -> Check {
    let mut client = with_full_disk(caller, "stop")?;
    client.served()?;
    fill(&client, &caller.home.join("log"), true)?;
    let mut output = String::new();
    for _ in 0..30 {
        output = client.text("echo alive")?;
        if !output.starts_with("alive\n") {
            break;
        }
    }
    let reason = "the audit log cannot be written: no space left on device";
    holds(
        "refused, with the reason",
        &output,
        output.contains(reason) && !output.contains("alive"),
    )?;
    verified_after(caller, client)
}

/// With room again every call is recorded, and the chain is whole over the gap.
fn verified_after(caller: &Caller, mut client: Client) -> Check {
    let log = caller.home.join("log");
    fill(&client, &log, false)?;
    let result = client.call(json!({"command": "echo recorded"}))?;
    equal(
        "nothing is said of the log",
        result.pointer("/_meta/cofferdam~1audit"),
        None::<&serde_json::Value>,
    )?;
    let root = format!("/proc/{}/root", client.child.id());
    let lines =
        std::fs::read_to_string(format!("{root}{}", log.join("audit/audit.jsonl").display()))?;
    holds("the gap is in it", &lines, lines.contains("\"lost\":"))?;
    let copy = caller.file("audit.jsonl", &lines)?;
    let output = Finished::run(
        caller.cofferdam(&["audit", "verify", &copy.display().to_string()]),
        patience(),
    )?;
    equal(&output.stderr, output.code, 0)?;
    client.close()
}
