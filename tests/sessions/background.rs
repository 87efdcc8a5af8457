//! Background jobs of a session, in its cell.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::jobs::{job, output, to_its_end};
use crate::server::{Server, story, text};
use crate::support::{Caller, Check, Failed, equal, holds, patience, soon};

/// Jobs of a session at once.
const MAX_JOBS: usize = 16;

/// A port of the session's own network.
const PORT: u16 = 8000;

pub fn reached(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let serve = format!("exec python3 -m http.server {PORT} --bind 127.0.0.1");
    let id = job(&mut server, "a", &serve)?;
    let ask = format!(
        "until exec 4<>/dev/tcp/127.0.0.1/{PORT}; do sleep 0.1; done 2>/dev/null; \
         printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&4; head -1 <&4"
    );
    let answer = server.with(&json!({ "command": ask, "session": "a", "timeout": 60 }))?;
    equal("the same network", story(&answer), (Some(0), "HTTP/1.0 200 OK\n".to_owned()))?;
    let running = output(&mut server, &json!({ "job": id }))?;
    equal("it continues", &running["structuredContent"]["outcome"], &json!("running"))?;
    holds("what it printed meanwhile", &running, text(&running).contains("GET / HTTP/1.0"))?;
    let notes = running["structuredContent"]["notes"].to_string();
    holds("the session is free, as the notes say", &notes, notes.contains("`a` is free"))?;
    server.tool("bash_kill", &json!({ "job": id })).map(drop)
}

pub fn copy(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    server.gives(
        "x=7; f() { echo \"f $x\"; }; cd /tmp; trap 'echo bye' EXIT; sleep 0 & wait",
        0,
        "",
    )?;
    server.gives("echo ${!:+one} > last; echo $! >> last", 0, "")?;
    let run = |server: &mut Server, command: &str| -> Result<Value, Failed> {
        let env = json!({ "E": "e" });
        let answer = server.with(&json!({ "command": command, "background": true, "env": env }))?;
        match answer["structuredContent"]["job"].as_str() {
            Some(id) => to_its_end(server, id),
            None => Ok(answer),
        }
    };
    let answer = run(&mut server, "f; pwd; echo $E; x=8; cd /; export E=9; exit 3")?;
    equal("a copy", story(&answer), (Some(3), "f 7\n/tmp\ne\n".to_owned()))?;
    let answer =
        run(&mut server, "trap 'echo over' EXIT; sleep 0.5; kill -TERM $BASHPID; sleep 9")?;
    equal("its signal", &answer["structuredContent"]["signal"], &json!("SIGTERM"))?;
    let answer = run(&mut server, "trap 'echo over' EXIT; sleep 0.4; echo last")?;
    equal("its own trap", story(&answer), (Some(0), "last\nover\n".to_owned()))?;
    let answer = server
        .with(&json!({ "command": "pwd; cat", "stdin": "given\n", "cwd": "/workspace",
                                       "background": true }))?;
    equal("its directory and input", story(&answer), (Some(0), "/workspace\ngiven\n".to_owned()))?;
    let all =
        "echo $x ${E-none}; pwd; jobs; { echo ${!:+one}; echo $!; } | cmp - last && trap -p EXIT";
    server.gives(all, 0, "7 none\n/tmp\ntrap -- 'echo bye' EXIT\n")?;
    // One that ends at once has its code however the copy and the shell are scheduled.
    for number in 0..100 {
        let answer = run(&mut server, &format!("exit {number}"))?;
        holds("its code", &answer, story(&answer).0 == Some(number))?;
    }
    // At a terminal too.
    let at = json!({ "command": "tty; read -r line; echo \"got $line\"", "tty": true,
                     "background": true });
    let answer = server.with(&at)?;
    let id = answer["structuredContent"]["job"].clone();
    server.gives("echo free", 0, "free\n")?;
    let answer = server.tool("bash_input", &json!({ "job": id, "text": "me\n", "wait": 5 }))?;
    holds("a separate terminal", &answer, text(&answer).contains("got me"))
}

/// Waits until a job has printed this, which stays to be read.
fn printed(server: &mut Server, id: &str, expected: &str) -> Check {
    let end = Instant::now() + patience();
    loop {
        let answer = output(server, &json!({ "job": id, "since": {} }))?;
        if answer["structuredContent"]["stdout"] == *expected {
            return Ok(());
        }
        holds("it is printed", &answer, Instant::now() < end)?;
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn ended(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    server.gives("x=kept", 0, "")?;
    let deaf = "bash -c 'trap \"\" INT TERM; echo deaf; while :; do sleep 0.1; done'; echo after";
    for (signal, outcome) in [("INT", "cancelled"), ("TERM", "cancelled"), ("KILL", "signaled")] {
        let other = job(&mut server, "default", "sleep 600")?;
        let id = job(&mut server, "default", deaf)?;
        printed(&mut server, &id, "deaf\n")?;
        let answer = server.tool("bash_kill", &json!({ "job": id, "signal": signal }))?;
        let content = &answer["structuredContent"];
        equal(signal, &content["outcome"], &json!(outcome))?;
        equal("what it printed", &content["stdout"], &json!("deaf\n"))?;
        server.gives("echo $x; pgrep -fc 'trap \"\" [I]NT'", 1, "kept\n0\n")?;
        let answer = output(&mut server, &json!({ "job": other }))?;
        equal("the other continues", &answer["structuredContent"]["outcome"], &json!("running"))?;
        server.tool("bash_kill", &json!({ "job": other }))?;
    }
    // The reply waits for a program that ends slowly, and has its last output.
    let polite = "bash -c 'trap \"sleep 0.1; echo bye; exit\" TERM; echo up; sleep 60 & wait'; \
                  echo after";
    let id = job(&mut server, "default", polite)?;
    printed(&mut server, &id, "up\n")?;
    let answer = server.tool("bash_kill", &json!({ "job": id, "signal": "TERM" }))?;
    equal("all of it", &answer["structuredContent"]["stdout"], &json!("up\nbye\n"))?;
    // At its time limit, while the shell runs another command.
    let answer =
        server.with(&json!({ "command": "sleep 600", "background": true, "timeout": 1 }))?;
    let id = answer["structuredContent"]["job"].as_str().unwrap_or_default().to_owned();
    server.gives("sleep 2; echo $x", 0, "kept\n")?;
    let answer = to_its_end(&mut server, &id)?;
    equal("timed out", &answer["structuredContent"]["outcome"], &json!("timeout"))?;
    // A command that is killed takes no job with it, nor what that left behind.
    let id = job(&mut server, "default", "(sleep 613 &); sleep 614")?;
    let answer = server.with(&json!({ "command": "sleep 615", "timeout": 1 }))?;
    equal("the command", &answer["structuredContent"]["outcome"], &json!("timeout"))?;
    server.gives("pgrep -fc 'sleep 61[345]'; echo $x", 0, "2\nkept\n")?;
    server.tool("bash_kill", &json!({ "job": id, "signal": "KILL" }))?;
    server.gives("pgrep -fc 'sleep 61[345]'", 1, "0\n")
}

pub fn with_the_shell(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let id = job(&mut server, "default", "echo begun; sleep 600")?;
    server.gives("exit 4", 4, "")?;
    let answer = to_its_end(&mut server, &id)?;
    let content = &answer["structuredContent"];
    equal("killed", &content["signal"], &json!("SIGKILL"))?;
    equal("with its shell", &content["session"]["shell"], &json!("ended"))?;
    equal("what it printed", &content["stdout"], &json!("begun\n"))?;
    for _ in 0..MAX_JOBS {
        job(&mut server, "default", "sleep 600")?;
    }
    let full = server.with(&json!({ "command": "true", "background": true }))?;
    let error = full["structuredContent"]["error"].as_str().unwrap_or_default();
    holds("full", &full, error.contains("16 background jobs"))?;
    server.gives("pgrep -c -x sleep", 0, "16\n")?;
    server.with(&json!({ "restart": true }))?;
    server.gives("pgrep -c -x sleep", 1, "0\n")?;
    let jobs = server.tool("bash_jobs", &json!({}))?;
    let running = jobs["structuredContent"]["jobs"].to_string().matches("running").count();
    equal("none is left", running, 0)
}

/// Fails to copy the shell, or copies garbage: the call is answered, and the session continues.
pub fn tricks(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let tricks = [
        "builtin() { :; }",
        "exec() { :; }; printf() { :; }; set() { :; }",
        "unset BASHPID",
        "readonly BASHPID",
        "readonly COFFERDAM_STATUS=1",
        "shopt -s expand_aliases; alias set=false printf=false",
        "set -eu",
        "set -n",
        "set -o functrace; trap 'echo debugged' DEBUG",
        "ulimit -u 0",
        "ulimit -n 3",
        "set -m",
        "trap '' INT TERM CHLD",
    ];
    for trick in tricks {
        server.with(&json!({ "restart": true }))?;
        server.with(&json!({ "command": trick, "timeout": 5 }))?;
        let answer =
            server.with(&json!({ "command": "echo in", "background": true, "timeout": 5 }))?;
        if let Some(id) = answer["structuredContent"]["job"].as_str() {
            to_its_end(&mut server, id)?;
        }
        server.with(&json!({ "restart": true }))?;
        let answer = server.with(&json!({ "command": "echo on" }))?;
        equal(trick, story(&answer), (Some(0), "on\n".to_owned()))?;
    }
    // A number that is not the copy's.
    for number in ["1", "2", "99999", "-1", "x"] {
        let forge = format!(
            "echo > w; (until [ -e /dev/session/end.3 ]; do :; done; \
                             printf 'j{number}\\0' > /dev/session/end.3) & sleep 0.2"
        );
        server.with(&json!({ "restart": true, "command": forge, "timeout": 5 }))?;
        let answer =
            server.with(&json!({ "command": "echo in", "background": true, "timeout": 3 }))?;
        if let Some(id) = answer["structuredContent"]["job"].as_str() {
            server.tool("bash_kill", &json!({ "job": id, "signal": "KILL" }))?;
        }
        server.with(&json!({ "restart": true }))?;
        let answer = server.with(&json!({ "command": "echo on" }))?;
        equal(number, story(&answer), (Some(0), "on\n".to_owned()))?;
    }
    Ok(())
}

/// Refuses a background call at once if no process can be created; the session continues.
pub fn no_room(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let mut refused = 0;
    // With one of these limits the shell can start a process, but that process cannot start another.
    for most in 3..8 {
        let session = format!("s{most}");
        let first = json!({ "command": "x=kept", "session": session, "shell": "zsh" });
        equal("zsh", story(&server.with(&first)?).0, Some(0))?;
        let other = job(&mut server, &session, "sleep 600")?;
        let limit = format!("ulimit -S -u {most}");
        server.with(&json!({ "command": limit, "session": session }))?;
        let began = Instant::now();
        let answer = server.with(&json!({ "command": "echo hi", "background": true,
            "timeout": 60, "session": session }))?;
        holds("at once", &answer, began.elapsed() < soon(30))?;
        if text(&answer).contains("starting a process beside the shell") {
            refused += 1;
            let next = server.with(&json!({ "command": "echo $x", "session": session }))?;
            equal("kept", story(&next), (Some(0), "kept\n".to_owned()))?;
            let answer = output(&mut server, &json!({ "job": other }))?;
            equal("the other", &answer["structuredContent"]["outcome"], &json!("running"))?;
        }
        server.with(&json!({ "end": true, "session": session }))?;
    }
    holds("one was refused so", refused, refused > 0)
}
