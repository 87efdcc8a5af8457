//! `bash_exec` runs in a separate cell and shares the private `/workspace` of the default session.

use std::time::Duration;

use serde_json::{Value, json};

use crate::server::{Server, story};
use crate::support::{Caller, Check, Failed, equal, holds};

const EXEC: &str = "[tools]\ngroups = [\"shell\", \"exec\"]\n";

fn exec(server: &mut Server, command: &str) -> Result<Value, Failed> {
    server.tool("bash_exec", &json!({ "command": command }))
}

/// Checks that a command exits with 0 and prints exactly this.
fn prints(server: &mut Server, command: &str, stdout: &str) -> Check {
    let answer = exec(server, command)?;
    equal(command, story(&answer), (Some(0), stdout.to_owned()))
}

fn receipt(answer: &Value) -> &Value {
    &answer["_meta"]["cofferdam/receipt"]
}

/// Compares a cell's namespaces and id, as it reports them, with those seen from outside.
const SELF: &str = "readlink /proc/self/ns/{user,pid,net,ipc,mnt}";

pub fn shares(caller: &Caller) -> Check {
    let mut server = Server::start(caller, EXEC)?;
    // There before the shell is, while it is, and when it has gone.
    prints(&mut server, "umask 077; echo exec > f; mkdir sub", "")?;
    server.gives("cat f; echo shell >> f; echo private > /tmp/t; cd sub", 0, "exec\n")?;
    let gone = "ls: cannot access '/tmp/t': No such file or directory\n";
    prints(&mut server, "cat f; ls /tmp/t 2>&1; ls -A /dev/session; pwd", &{
        format!("exec\nshell\n{gone}/workspace\n")
    })?;
    server.gives("exit 0", 0, "")?;
    prints(&mut server, "cat f; rm f", "exec\nshell\n")?;
    server.gives("ls", 0, "sub\n")?;
    // No other session has it.
    let other = server.with(&json!({ "command": "ls -A", "session": "other" }))?;
    equal("another session", story(&other), (Some(0), String::new()))?;
    let answer = exec(&mut server, "true")?;
    equal("reported", &receipt(&answer)["configured"]["workspace"], &json!("of a session"))
}

pub fn apart(caller: &Caller) -> Check {
    let mut server = Server::start(caller, EXEC)?;
    server.gives("A=1; export A; sleep 4713 & cat", 0, "")?;
    let shell = server.bash(SELF)?;
    let fresh = exec(&mut server, SELF)?;
    let of_shell = story(&shell).1;
    let of_fresh = story(&fresh).1;
    equal("five namespaces", of_fresh.lines().count(), 5)?;
    for namespace in of_fresh.lines() {
        holds("its own", &of_shell, of_shell.lines().all(|other| other != namespace))?;
    }
    let id = |answer: &Value| receipt(answer)["measured"]["host_uid"].clone();
    equal("the files are one id's", id(&fresh), id(&shell))?;
    // The cell cannot reach processes of the shell's cell, although it has the same id.
    let command = "echo ${A-none}; ps -eo comm= | grep -c sleep; kill -KILL -1 2>/dev/null; true";
    prints(&mut server, command, "none\n0\n")?;
    server.gives("jobs -r | wc -l; echo $A", 0, "1\n1\n")
}

pub fn at_once(caller: &Caller) -> Check {
    let mut server = Server::start(caller, EXEC)?;
    let job = server.with(&json!({ "command": "until [ -e go ]; do sleep 0.05; done; cat n",
                                   "background": true }))?;
    equal("it runs", &job["structuredContent"]["outcome"], &json!("running"))?;
    let add = json!({ "command": "for i in {1..5}; do flock n bash -c 'echo x >> n'; done" });
    let call = json!({ "name": "bash_exec", "arguments": add });
    let calls: Result<Vec<u64>, Failed> =
        (0..8).map(|_| server.request("tools/call", &call)).collect();
    for id in calls? {
        let answer = server.answer(id)?;
        equal("added", story(&answer).0, Some(0))?;
    }
    prints(&mut server, "wc -l < n; touch go", "40\n")
}

pub fn outlives(caller: &Caller) -> Check {
    let mut server = Server::start(caller, &format!("{EXEC}[sessions]\nidle = \"4s\"\n"))?;
    // In use for longer than an idle session is kept.
    prints(&mut server, "echo x > f; sleep 5; cat f", "x\n")?;
    prints(&mut server, "cat f", "x\n")?;
    std::thread::sleep(Duration::from_secs(8));
    // No cell that was made in advance for the session before is given to the next one's calls.
    for round in 0..12 {
        prints(&mut server, "ls", if round == 0 { "" } else { "g\n" })?;
        prints(&mut server, "touch g", "")?;
    }
    Ok(())
}

pub fn elsewhere(caller: &Caller) -> Check {
    let policy = "schema = 1\n[[rule]]\nid = \"shell\"\ntools = [\"bash\", \"bash_exec\"]\n\
        action = \"allow\"\nprofile = \"bash\"\nchoice = [\"bash-two\"]\nwhy = \"w\"\n\
        matches = [{ tool = \"bash\" }]\n";
    let two = "schema = 1\nname = \"bash-two\"\ndescription = \"another\"\nextends = \"bash\"\n";
    let files = [("policies", policy), ("sandbox-profiles", two)];
    let mut server = Server::with_files(caller, EXEC, &files)?;
    prints(&mut server, "echo x > f", "")?;
    // A session is of one profile: a call under another has an empty workspace.
    let other = json!({ "command": "ls -A; echo y > f", "profile": "bash-two" });
    let answer = server.tool("bash_exec", &other)?;
    equal("under another", story(&answer), (Some(0), String::new()))?;
    equal("reported", &receipt(&answer)["configured"]["workspace"], &json!("fresh"))?;
    server.gives("cat f", 0, "x\n")
}
