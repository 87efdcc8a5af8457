//! A program that waits for input is reported at once; one that waits for anything else is not.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::jobs::{job, output};
use crate::server::{Server, story, text};
use crate::support::{Caller, Check, Failed, equal, holds, soon};

/// Returns a bound below the 45 s after which any command becomes a job, and far above what a look takes.
fn at_once() -> Duration {
    soon(20).min(Duration::from_secs(40))
}

fn waits(answer: &Value) -> bool {
    answer["structuredContent"]["waiting_for_input"] == json!(true)
}

/// Writes to a job, and what it printed until it ended or waited again.
fn say(server: &mut Server, job: &str, text: &str) -> Result<Value, Failed> {
    server.tool("bash_input", &json!({ "job": job, "text": text, "wait": 30 }))
}

/// Ways to wait for a line, each with what it prints for it.
const READERS: &[(&str, &str)] = &[
    ("read -r line; echo got $line", "got x\n"),
    ("bash -c 'read -r line; echo got $line'", "got x\n"),
    ("(head -n 1)", "x\n"),
    ("cat | head -n 1", "x\n"),
    ("read -r -t 600 line; echo got $line", "got x\n"),
    ("exec 7<&0; read -r line <&7; echo got $line", "got x\n"),
    ("python3 -c 'print(\"got\", input())'", "got x\n"),
    ("perl -e 'print \"got \", scalar <STDIN>'", "got x\n"),
    (
        "python3 -c 'import select, sys; e = select.epoll(); e.register(0, select.EPOLLIN); e.poll(); print(\"got\", input())'",
        "got x\n",
    ),
];

pub fn reported(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    for (command, expected) in READERS {
        let began = Instant::now();
        let answer = server.with(&json!({ "command": command, "input": true }))?;
        holds(command, &answer, waits(&answer) && began.elapsed() < at_once())?;
        equal(command, &answer["structuredContent"]["outcome"], &json!("running"))?;
        holds("in words", &answer, text(&answer).contains("[it waits for input]"))?;
        let id = answer["structuredContent"]["job"].as_str().ok_or("no job")?.to_owned();
        let seen = output(&mut server, &json!({ "job": id }))?;
        holds("and bash_output", &seen, waits(&seen))?;
        let mut ended = say(&mut server, &id, "x\n")?;
        if waits(&ended) {
            // `cat` has had its line and reads on.
            let end = json!({ "job": id, "eof": true, "wait": 30 });
            ended = server.tool("bash_input", &end)?;
            let all = output(&mut server, &json!({ "job": id }))?;
            equal(command, story(&all), (Some(0), (*expected).to_owned()))?;
        } else {
            equal(command, story(&ended), (Some(0), (*expected).to_owned()))?;
        }
        holds("no more", &ended, !waits(&ended))?;
    }
    Ok(())
}

pub fn again(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let command = "while read -r x; do sleep 0.3; echo $((x * 2)); done; sleep 600";
    let answer = server.with(&json!({ "command": command, "input": true }))?;
    holds("at first", &answer, waits(&answer))?;
    let id = answer["structuredContent"]["job"].as_str().ok_or("no job")?.to_owned();
    for number in 1..=5 {
        let answer = say(&mut server, &id, &format!("{number}\n"))?;
        holds("again", &answer, waits(&answer))?;
        // Not before it has worked on what it was given, and only what is new.
        equal("its answer", story(&answer).1, format!("{}\n", number * 2))?;
    }
    let answer = server.tool("bash_input", &json!({ "job": id, "eof": true, "wait": 1 }))?;
    holds("it sleeps", &answer, !waits(&answer))?;
    equal("and runs", &answer["structuredContent"]["outcome"], &json!("running"))
}

/// Commands that do not wait for their input, which is open.
const OTHERS: &[&str] = &[
    "sleep 600",
    "sleep 600 | cat",
    "yes | head -c 1 > /dev/null; sleep 600 | sort",
    "mkfifo p; read -r line < p",
    "mkfifo q; exec 5<> q; read -r line <&5",
    "sleep 600 & wait",
    "cat & sleep 600",
    "while :; do :; done",
    "python3 -c 'import socket; s = socket.socket(); s.listen(); s.accept()'",
    "python3 -c 'import os, select; r, w = os.pipe(); select.select([r], [], [])'",
    "read -r line < <(sleep 600)",
    "python3 -c 'import select; e = select.epoll(); e.register(0, select.EPOLLIN)\nwhile True: e.poll(0.3)'",
    "python3 -c 'import select; e = select.epoll(); e.register(0, select.EPOLLOUT); e.modify(0, 0); e.poll()'",
    "python3 -c 'import select, socket; e = select.epoll(); e.register(0, 1); s = socket.socket(); s.listen(); e.register(s); e.poll()'",
    "exec < /dev/null; sleep 600",
];

pub fn others(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "[sessions]\nyield = \"1s\"\n")?;
    for command in OTHERS {
        let arguments = json!({ "command": command, "input": true, "restart": true });
        let answer = server.with(&arguments)?;
        equal(command, &answer["structuredContent"]["outcome"], &json!("running"))?;
        holds(command, &answer, !waits(&answer))?;
        let id = answer["structuredContent"]["job"].clone();
        let seen = output(&mut server, &json!({ "job": id }))?;
        holds(command, &seen, !waits(&seen))?;
    }
    Ok(())
}

/// Selects standard input for reading as vim does, which takes its standard error for it where there is no terminal.
const EDITOR: &str = "python3 -c 'import os, select; os.dup2(2, 0); select.select([0], [], [])'";

/// Commands without an input that wait for something else than a terminal.
const NO_TERMINAL: &[&str] = &["sleep 600", "sleep 600 | cat", "yes > /dev/null"];

pub fn no_terminal(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "[sessions]\nyield = \"4s\"\n")?;
    let remark = "it waits for a terminal and has none; `tty: true` gives a command one";
    let to_output = format!("{EDITOR} 2>&1");
    for command in [EDITOR, &to_output] {
        let began = Instant::now();
        let answer = server.with(&json!({ "command": command, "restart": true }))?;
        equal(command, &answer["structuredContent"]["outcome"], &json!("running"))?;
        holds("soon", &answer, began.elapsed() < soon(4))?;
        holds("in words", &answer, text(&answer).contains(&format!("[{remark}]")))?;
        let notes = &answer["structuredContent"]["notes"];
        holds(
            "in the fields",
            notes,
            notes.as_array().is_some_and(|all| all.contains(&json!(remark))),
        )?;
        holds("nothing to write to", &answer, !waits(&answer))?;
        let id = answer["structuredContent"]["job"].clone();
        let seen = output(&mut server, &json!({ "job": id }))?;
        holds("and bash_output", &seen, text(&seen).contains(remark))?;
        let killed = server.tool("bash_kill", &json!({ "job": id }))?;
        holds("it ends", &killed, killed["isError"] != json!(true))?;
    }
    for command in NO_TERMINAL {
        let answer = server.with(&json!({ "command": command, "restart": true }))?;
        holds(command, &answer, !text(&answer).contains("terminal"))?;
        equal(command, &answer["structuredContent"]["outcome"], &json!("running"))?;
    }
    Ok(())
}

pub fn background(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let id = job(&mut server, "a", "sleep 1; read -r line; echo got $line")?;
    let began = Instant::now();
    let answer = output(&mut server, &json!({ "job": id, "wait": 40 }))?;
    holds("while one waits for it", &answer, waits(&answer) && began.elapsed() < at_once())?;
    let ended = say(&mut server, &id, "x\n")?;
    equal("its end", story(&ended), (Some(0), "got x\n".to_owned()))
}
