//! The seccomp filters of the server's own processes: they allow every call that these processes make.
//! strace(1) watches a whole story of a server from its start: front end, supervisor, watcher, gateway and inits.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::client::{Client, Heard};
use crate::support::{
    Caller, Check, Failed, Finished, PATH, USER, children, equal, holds, kill, mode, patience,
};

/// Refusals that are part of the server's work: the three probes that a cell's first process makes before its
/// program starts, and clone3(2), which is absent under a filter (ENOSYS) so that the C library uses clone(2).
const EXPECTED: [(&str, &str); 4] = [
    ("unshare(CLONE_NEWUSER)", "EPERM"),
    ("socket(AF_PACKET", "EPERM"),
    ("linkat(AT_FDCWD, \"/tmp/home/.absent\"", "EPERM"),
    ("clone3(", "ENOSYS"),
];

/// Groups of tools that the story uses.
const TOOLS: &str = "calc,shell,exec,info,history,files";
/// Bytes of an audit log that a few calls fill.
const LOG: &str = "schema = 1\n[audit]\nfile = \"HOME/audit/log\"\nmax_bytes = \"64K\"\n";

/// A request over the server's socket, as the caller or as another user; what came back.
fn request(
    caller: &Caller,
    socket: &Path,
    path: &str,
    other: Option<u32>,
) -> Result<Finished, Failed> {
    let mut command = caller.outside("curl");
    command.args(["-s", "-m", "20", "-i", "--unix-socket"]).arg(socket);
    command.arg(format!("http://localhost{path}"));
    if let Some(id) = other {
        command.current_dir("/").uid(id).gid(id);
    }
    Finished::run(command, patience())
}

/// Checks that the socket serves the user that started the server, and no other.
pub fn the_owner_of_a_socket_is_served(caller: &Caller) -> Check {
    let socket = caller.home.join("s");
    let at = format!("unix:{}", socket.display());
    let server = Client::start(caller.cofferdam(&["serve", "--http", &at]))?;
    let own = request(caller, &socket, "/health", None)?;
    holds("its owner is answered", &own, own.stdout.starts_with("HTTP/1.1 200 "))?;
    if nix::unistd::geteuid().is_root() {
        // The modes out of the way, so that the peer's uid decides.
        mode(&socket, 0o666)?;
        mode(&caller.home, 0o755)?;
        let mut reaches = caller.outside("test");
        reaches.arg("-w").arg(&socket).current_dir("/").uid(USER + 1).gid(USER + 1);
        equal("the control: another reaches it", Finished::run(reaches, patience())?.code, 0)?;
        let other = request(caller, &socket, "/health", Some(USER + 1))?;
        // The connection is closed without a word: curl's code for one that ended before or after the request was
        // sent, or for a reset.
        let is_closed = [7, 52, 56].contains(&other.code);
        holds("another is not", &other, other.stdout.is_empty() && is_closed)?;
        let root = request(caller, &socket, "/health", Some(0))?;
        holds("root is", &root, root.stdout.starts_with("HTTP/1.1 200 "))?;
    }
    let pid = server.child.id();
    ended(server, pid)
}

/// Ends a server by SIGTERM to its front end: with a listener the end of its input does not.
fn ended(mut client: Client, front_end: u32) -> Check {
    kill(front_end, Signal::SIGTERM)?;
    equal("its end", client.end(patience())?.code(), Some(0))
}

/// Adds a script tool to the caller's project.
fn tool(caller: &Caller, name: &str) -> Check {
    let folder = format!("project/tools/{name}");
    caller.directory(&folder)?;
    caller.file(&format!("{folder}/{name}.sh"), "#!/bin/bash\necho one\n")?;
    mode(&caller.home.join(&folder).join(format!("{name}.sh")), 0o755)?;
    Ok(())
}

/// Waits until the server has notified the client of changed tools.
fn changed(client: &Client) -> Check {
    let end = Instant::now() + patience();
    loop {
        match client.hear(end.saturating_duration_since(Instant::now())) {
            Heard::Line(line)
                if line.get("method") == Some(&json!("notifications/tools/list_changed")) =>
            {
                return Ok(());
            }
            Heard::Line(_) => {}
            heard @ (Heard::Nothing | Heard::End) => {
                return Err(format!("no change was reported: {heard:?}").into());
            }
        }
    }
}

/// Makes calls of every kind, over both doors.
fn story(caller: &Caller, client: &mut Client, socket: &Path) -> Check {
    client.served()?;
    let in_session = |command: &str| json!({"command": command, "session": "a", "timeout": 2});
    client.call_tool("bash", in_session("x=1; echo one"))?;
    client.call_tool("bash", in_session("read -t 60 x < <(sleep 60)"))?;
    client.call_tool("bash", json!({"command": "(sleep 0.1 & sleep 0.1 & wait)"}))?;
    client.call_tool("bash", json!({"command": "yes | head -c 3000000; ls /nowhere"}))?;
    client.call_tool("calculate", json!({"expression": "2^10"}))?;
    client.call_tool("put_file", json!({"path": "/workspace/f", "content": "one"}))?;
    client.call_tool("get_file", json!({"path": "/workspace/f"}))?;
    client.call_tool("system_info", json!({}))?;
    // Nothing answers there: the gateway still makes a worker and a socket.
    client.call_tool("bash", json!({"command": "exec 3<>/dev/tcp/192.0.2.1/9", "timeout": 2}))?;
    for path in ["/health", "/tools", "/metrics", "/openapi.json"] {
        let answer = request(caller, socket, path, None)?;
        holds(path, &answer, answer.stdout.starts_with("HTTP/1.1 200 "))?;
    }
    // The log is turned over.
    for _ in 0..4 {
        client
            .call_tool("bash_exec", json!({"command": format!("echo {}", "x".repeat(30_000))}))?;
    }
    Ok(())
}

/// Returns the calls in the traces that were refused and need not have been, by name and errno.
fn refused(traces: &Path) -> Result<BTreeSet<String>, Failed> {
    let mut all = BTreeSet::new();
    for trace in std::fs::read_dir(traces)? {
        let bytes = std::fs::read(trace?.path())?;
        for line in String::from_utf8_lossy(&bytes).lines() {
            let Some((call, error)) = line.rsplit_once(" = -1 ") else { continue };
            let errno = error.split(' ').next().unwrap_or_default();
            let is_expected =
                |(start, with): &(&str, &str)| *with == errno && call.starts_with(start);
            if matches!(errno, "EPERM" | "ENOSYS") && !EXPECTED.iter().any(is_expected) {
                let call: String = call.trim_end().chars().take(80).collect();
                all.insert(format!("{call} {errno}"));
            }
        }
    }
    Ok(all)
}

/// Runs the story of a server under strace(1), with these further arguments.
fn traced(
    caller: &Caller,
    arguments: &[&str],
    act: impl FnOnce(&mut Client, &Path) -> Check,
) -> Result<BTreeSet<String>, Failed> {
    let traces = tempfile::tempdir()?;
    let config = caller.home.join("config");
    if !config.exists() {
        caller.directory("config")?;
        let text = LOG.replace("HOME", &caller.home.display().to_string());
        caller.file("config/cofferdam.toml", &text)?;
    }
    let socket = caller.home.join("s");
    let at = format!("unix:{}", socket.display());
    let config = config.display().to_string();
    let mut words = vec!["--config", &config, "serve", "--http", &at, "--tools", TOOLS];
    words.extend(arguments);
    // strace is root, since what it follows is not dumpable; the server is the caller's.
    let mut command = Command::new("strace");
    command.args(["-ff", "-Z", "-e", "signal=none", "-o"]).arg(traces.path().join("t"));
    if caller.uid() != 0 {
        command.args(["setpriv", "--clear-groups"]);
        command.args([format!("--reuid={}", caller.uid()), format!("--regid={}", caller.gid())]);
    }
    command.arg(caller.binary()).args(words);
    command.env_clear().env("HOME", &caller.home).env("PATH", PATH).current_dir(&caller.home);
    let mut client = Client::logged(command, Stdio::null())?;
    act(&mut client, &socket)?;
    let [front_end] = children(client.child.id())[..] else { return Err("no server".into()) };
    ended(client, front_end)?;
    refused(traces.path())
}

pub fn refuse_nothing(caller: &Caller) -> Check {
    let workspace = caller.directory("workspace")?.display().to_string();
    let granted = ["--workspace", &workspace, "--toolchains", "none", "--egress", "192.0.2.1:9"];
    let found = traced(caller, &granted, |client, socket| story(caller, client, socket))?;
    equal("refused of a server with a workspace and a network", found, BTreeSet::<String>::new())?;
    let project = caller.directory("project")?.display().to_string();
    caller.directory("project/tools")?;
    tool(caller, "one")?;
    let served = ["--toolchains", "none", "--project", &project];
    let found = traced(caller, &served, |client, _| {
        let result: Value = client.call_tool("one", json!({}))?;
        holds("the project's tool runs", &result, result.get("isError") == Some(&json!(false)))?;
        tool(caller, "two")?;
        changed(client)
    })?;
    equal("refused of a server with a project", found, BTreeSet::<String>::new())
}
