//! Input of jobs: written while they run, closed, bounded, and empty by default.

use std::time::Instant;

use serde_json::{Value, json};

use crate::jobs::{job, output, to_its_end};
use crate::server::{Server, story, text};
use crate::support::{Caller, Check, Failed, equal, holds, patience, soon};

fn input(server: &mut Server, arguments: &Value) -> Result<Value, Failed> {
    server.tool("bash_input", arguments)
}

/// Writes a text that is taken whole.
fn give(server: &mut Server, job: &str, text: &str) -> Check {
    let answer = input(server, &json!({ "job": job, "text": text }))?;
    equal(text, &answer["structuredContent"]["taken_bytes"], &json!(text.len()))
}

/// Waits until a job has printed exactly this.
fn prints(server: &mut Server, job: &str, stdout: &str) -> Check {
    let end = Instant::now() + patience();
    loop {
        let answer = output(server, &json!({ "job": job, "wait": 1 }))?;
        let printed = story(&answer).1;
        if printed == stdout {
            return Ok(());
        }
        let on_its_way = stdout.starts_with(&printed) && Instant::now() < end;
        holds("printed", &answer, on_its_way)?;
    }
}

pub fn fed(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let command = "while read -r line; do echo \"got $line\"; done; echo \"end $x\"";
    server.with(&json!({ "command": "x=kept", "session": "a" }))?;
    let id = job(&mut server, "a", command)?;
    give(&mut server, &id, "one\ntw")?;
    prints(&mut server, &id, "got one\n")?;
    give(&mut server, &id, "o\n")?;
    prints(&mut server, &id, "got one\ngot two\n")?;
    let answer = input(&mut server, &json!({ "job": id, "text": "three\n", "eof": true }))?;
    holds("reported", &answer, answer.to_string().contains("the input has its end"))?;
    let ended = to_its_end(&mut server, &id)?;
    let all = "got one\ngot two\ngot three\nend kept\n";
    equal("all of it, in the session's shell", story(&ended), (Some(0), all.to_owned()))?;
    // The next command of the shell gets new input.
    let answer = server.with(&json!({ "command": "cat; echo $?", "session": "a" }))?;
    equal("the next", story(&answer), (Some(0), "0\n".to_owned()))
}

/// Makes a background call and follows it to its end, which may come before its handle.
fn background(server: &mut Server, arguments: &Value) -> Result<Value, Failed> {
    let answer = server.with(arguments)?;
    match answer["structuredContent"]["job"].as_str() {
        Some(id) => to_its_end(server, id),
        None => Ok(answer),
    }
}

pub fn by_default(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "[sessions]\nyield = \"1s\"\n")?;
    server.gives("cat; echo $?", 0, "0\n")?;
    let answer = server.with(&json!({ "command": "cat; echo $?", "stdin": "text\n" }))?;
    equal("given", story(&answer), (Some(0), "text\n0\n".to_owned()))?;
    let given = json!({ "command": "cat", "stdin": "text\n", "background": true, "session": "b" });
    let ended = background(&mut server, &given)?;
    equal("in the background", story(&ended), (Some(0), "text\n".to_owned()))?;
    let shut = json!({ "command": "cat", "input": false, "background": true, "session": "b" });
    equal("shut", story(&background(&mut server, &shut)?), (Some(0), String::new()))?;
    // Both: what is given comes first, and the end is not yet.
    let both = json!({ "command": "cat", "stdin": "first\n", "input": true });
    let answer = server.with(&both)?;
    let content = &answer["structuredContent"];
    equal("it waits for more", &content["outcome"], &json!("running"))?;
    equal("given", &content["stdout"], &json!("first\n"))?;
    let id = content["job"].as_str().ok_or("no job")?.to_owned();
    holds("named", &answer, text(&answer).contains("bash_input"))?;
    input(&mut server, &json!({ "job": id, "text": "second\n", "eof": true }))?;
    let ended = to_its_end(&mut server, &id)?;
    equal("both", story(&ended), (Some(0), "first\nsecond\n".to_owned()))
}

pub fn bounded(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let id = job(&mut server, "a", "until [ -e /workspace/go ]; do sleep 0.1; done; wc -c")?;
    let began = Instant::now();
    let long = "x".repeat(100_000);
    let answer = input(&mut server, &json!({ "job": id, "text": long, "eof": true }))?;
    let content = &answer["structuredContent"];
    equal("what a pipe holds", &content["taken_bytes"], &json!(65_536))?;
    holds("reported", &answer, answer.to_string().contains("65536 of 100000 bytes were taken"))?;
    equal("no error", &answer["isError"], &json!(false))?;
    holds("at once", began.elapsed(), began.elapsed() < soon(20))?;
    // Other calls are not delayed.
    let other = server.with(&json!({ "command": "echo free", "session": "b" }))?;
    equal("another session", story(&other), (Some(0), "free\n".to_owned()))?;
    server.tool("bash_kill", &json!({ "job": id }))?;
    // One that reads takes megabytes.
    let id = job(&mut server, "a", "wc -c")?;
    let mut left = 3_000_000;
    let most = "x".repeat(3_000_000);
    while left > 0 {
        let rest = most.get(..left).unwrap_or_default();
        let answer = input(&mut server, &json!({ "job": id, "text": rest, "eof": true }))?;
        let taken = answer["structuredContent"]["taken_bytes"].as_u64().unwrap_or_default();
        holds("it continues", &answer, taken > 0)?;
        left = left.saturating_sub(usize::try_from(taken)?);
    }
    let ended = to_its_end(&mut server, &id)?;
    equal("every byte", story(&ended), (Some(0), "3000000\n".to_owned()))
}

pub fn reported(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let mut refused = |arguments: &Value, reason: &str| -> Check {
        let answer = input(&mut server, arguments)?;
        equal(reason, &answer["isError"], &json!(true))?;
        holds(reason, &answer, answer.to_string().contains(reason))
    };
    refused(&json!({ "job": "c9", "text": "x" }), "there is no job `c9`")?;
    refused(&json!({ "job": "c9" }), "`text` or `eof` is needed")?;
    let ended = job(&mut server, "a", "sleep 0.5")?;
    to_its_end(&mut server, &ended)?;
    let given = json!({ "command": "sleep 600", "stdin": "x", "session": "b", "background": true });
    let given = server.with(&given)?["structuredContent"]["job"].clone();
    let closed = job(&mut server, "c", "exec <&-; echo closed; sleep 600")?;
    prints(&mut server, &closed, "closed\n")?;
    let eof = job(&mut server, "d", "sleep 600")?;
    input(&mut server, &json!({ "job": eof, "eof": true }))?;
    let cases = [
        (json!(ended), "has closed its input or ended"),
        (json!(closed), "has closed its input or ended"),
        (given, "was started without `input`"),
        (json!(eof), "has had its end"),
    ];
    for (job, reason) in cases {
        let answer = input(&mut server, &json!({ "job": job, "text": "x" }))?;
        equal(reason, &answer["isError"], &json!(true))?;
        equal(reason, &answer["structuredContent"]["taken_bytes"], &json!(0))?;
        holds(reason, &answer, answer.to_string().contains(reason))?;
    }
    Ok(())
}
