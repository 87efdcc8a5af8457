//! Declared commands: each in a cell of its profile, with the private `/workspace` of the default session.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::{Server, story};
use crate::support::{Caller, Check, Failed, children, equal, holds, patience};

const JQ: &str = "[tools]\ngroups = [\"shell\", \"exec\"]\non = [\"cli_jq\", \"cli_file\"]\n";

/// Returns the standard output and exit code of one call of `tool`, and the workspace that its receipt names.
fn ran(
    server: &mut Server,
    tool: &str,
    arguments: &Value,
) -> Result<(String, i64, String), Failed> {
    let answer = server.tool(tool, arguments)?;
    let fields = &answer["structuredContent"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let workspace = text(&answer["_meta"]["cofferdam/receipt"]["configured"]["workspace"]);
    let (Some(code), false) = (fields["returncode"].as_i64(), workspace.is_empty()) else {
        return Err(format!("nothing ran: {answer}").into());
    };
    Ok((text(&fields["stdout"]), code, workspace))
}

fn jq(server: &mut Server, path: &str) -> Result<(String, i64, String), Failed> {
    ran(server, "cli_jq", &json!({ "filter": ".x", "path": path }))
}

fn seen(stdout: &str, code: i64, workspace: &str) -> (String, i64, String) {
    (stdout.to_owned(), code, workspace.to_owned())
}

pub fn see(caller: &Caller) -> Check {
    let mut server = Server::start(caller, JQ)?;
    // There is no session yet, and reading alone does not start one.
    equal("no session", jq(&mut server, "a.json")?, seen("", 2, "fresh"))?;
    server.gives("umask 077; echo '{\"x\": 1}' > a.json", 0, "")?;
    equal("of the shell", jq(&mut server, "a.json")?, seen("1\n", 0, "of a session"))?;
    server.tool("bash_exec", &json!({ "command": "mkdir sub; echo '{\"x\": 2}' > sub/b.json" }))?;
    equal("of bash_exec", jq(&mut server, "sub/b.json")?, seen("2\n", 0, "of a session"))?;
    let arguments = json!({ "path": "a.json", "extra_args": ["-b", "--mime-type"] });
    let file = ran(&mut server, "cli_file", &arguments)?;
    equal("another profile", file, seen("application/json\n", 0, "of a session"))?;
    // The shell ends, and the workspace stays.
    server.gives("exit 0", 0, "")?;
    equal("without a shell", jq(&mut server, "a.json")?, seen("1\n", 0, "of a session"))?;
    // No other session's files are there.
    let other =
        server.with(&json!({ "command": "echo '{\"x\": 3}' > o.json", "session": "other" }))?;
    equal("another session", story(&other), (Some(0), String::new()))?;
    equal("another session's", jq(&mut server, "o.json")?, seen("", 2, "of a session"))
}

/// `cli_ls` and `cli_tee` under separate profiles, and the shells.
const POLICY: &str = r#"
schema = 1

[[tool]]
name = "cli_ls"
program = "ls"
read_only = true
why = "shows what the cell has"
accepts = [{ with = { path = "/tmp" } }]
refuses = [{ args = ["--help"] }]
[[tool.positional]]
name = "path"
kind = "text"
min = 1
max = 1
why = "the directory"

[[tool]]
name = "cli_tee"
program = "tee"
why = "makes a file"
accepts = [{ with = { path = "a" } }]
refuses = [{ args = ["--help"] }]
[[tool.positional]]
name = "path"
kind = "path"
min = 1
max = 1
why = "the file"

[[rule]]
id = "shells"
tools = ["bash", "bash_exec"]
action = "allow"
profile = "bash"
why = "w"
matches = [{ tool = "bash" }]

[[rule]]
id = "ls"
tools = ["cli_ls"]
action = "allow"
profile = "own-ls"
why = "w"
matches = [{ tool = "cli_ls" }]

[[rule]]
id = "tee"
tools = ["cli_tee"]
action = "allow"
profile = "own-tee"
why = "w"
matches = [{ tool = "cli_tee" }]
"#;
const OWN: &str = "[tools]\ngroups = [\"shell\", \"exec\"]\non = [\"cli_ls\", \"cli_tee\"]\n";

fn profile(program: &str) -> String {
    format!(
        r#"schema = 1
name = "own-{program}"
extends = "cli"
description = "one program"
exec = {{ program = "/usr/bin/{program}", why = "executed once" }}
[[path]]
host = "/usr/bin/{program}"
program = true
why = "the program"
"#
    )
}

fn with_commands(caller: &Caller, config: &str) -> Result<Server, Failed> {
    let ls = profile("ls");
    let tee = profile("tee");
    let files = [("policies", POLICY), ("sandbox-profiles", &ls), ("sandbox-profiles", &tee)];
    Server::with_files(caller, &format!("{OWN}{config}"), &files)
}

fn ls(server: &mut Server, path: &str) -> Result<(String, i64), Failed> {
    let (stdout, code, _) = ran(server, "cli_ls", &json!({ "path": path }))?;
    Ok((stdout, code))
}

pub fn apart(caller: &Caller) -> Check {
    let mut server = with_commands(caller, "")?;
    let command = "echo > w; echo > /tmp/t; echo > /dev/shm/s; sleep 4717 & ls -d /dev/session";
    server.gives(command, 0, "/dev/session\n")?;
    equal("the workspace", ls(&mut server, "/workspace")?, ("w\n".to_owned(), 0))?;
    equal("the mailbox", ls(&mut server, "/dev/session")?, (String::new(), 2))?;
    equal("the store of mailboxes", ls(&mut server, "/tmp/.template")?, (String::new(), 2))?;
    equal("its own /tmp", ls(&mut server, "/tmp")?, ("home\n".to_owned(), 0))?;
    equal("its own /dev/shm", ls(&mut server, "/dev/shm")?, (String::new(), 0))?;
    equal("no processes", ls(&mut server, "/proc")?, (String::new(), 2))?;
    server.gives("jobs -r | wc -l", 0, "1\n")
}

pub fn writes(caller: &Caller) -> Check {
    let mut server = with_commands(caller, "")?;
    // This call begins the session, with the profile of shells.
    let made = ran(&mut server, "cli_tee", &json!({ "path": "first", "stdin": "from tee\n" }))?;
    equal("made", made, seen("from tee\n", 0, "of a session"))?;
    server.gives("cat first; echo > second", 0, "from tee\n")?;
    equal("both", ls(&mut server, "/workspace")?, ("first\nsecond\n".to_owned(), 0))?;
    let other = server.with(&json!({ "command": "ls", "session": "other" }))?;
    equal("no other session's", story(&other), (Some(0), String::new()))
}

/// Descriptors of mount namespaces that the supervisor holds.
fn namespaces(server: &Server) -> Result<usize, Failed> {
    let supervisor = *children(server.child.id()).first().ok_or("no supervisor")?;
    let mut count = 0;
    for entry in std::fs::read_dir(format!("/proc/{supervisor}/fd"))? {
        // One that has been closed meanwhile.
        let Ok(target) = std::fs::read_link(entry?.path()) else { continue };
        count += usize::from(target.to_string_lossy().starts_with("mnt:"));
    }
    Ok(count)
}

pub fn end(caller: &Caller) -> Check {
    let mut server = with_commands(caller, "[sessions]\nidle = \"4s\"\n")?;
    equal("no session", ls(&mut server, "/workspace")?, (String::new(), 0))?;
    let before = namespaces(&server)?;
    for round in 0..3 {
        server.gives("ls; touch kept", 0, "")?;
        equal("seen", ls(&mut server, "/workspace")?, ("kept\n".to_owned(), 0))?;
        let more = ran(&mut server, "cli_tee", &json!({ "path": "more", "stdin": "x" }))?;
        equal("written", more, seen("x", 0, "of a session"))?;
        let during = namespaces(&server)?;
        equal("one of the shell and one of each profile", during, before + 3)?;
        let until = Instant::now() + patience();
        while namespaces(&server)? != before {
            holds("the session's files are removed with it", round, Instant::now() < until)?;
            std::thread::sleep(Duration::from_millis(50));
        }
        let after = ran(&mut server, "cli_ls", &json!({ "path": "/workspace" }))?;
        equal("gone", after, seen("", 0, "fresh"))?;
    }
    Ok(())
}
