//! Background jobs: read while they run and after, ended by their handle, listed.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::{Server, story, text};
use crate::support::{self, Caller, Check, Failed, equal, holds, patience};

/// Starts a job in a new session and returns its handle.
pub fn job(server: &mut Server, session: &str, command: &str) -> Result<String, Failed> {
    let arguments = json!({ "command": command, "session": session, "background": true });
    let answer = server.with(&arguments)?;
    let id = answer["structuredContent"]["job"].as_str();
    Ok(id.ok_or_else(|| format!("no job: {answer}"))?.to_owned())
}

/// Starts a command in the shell of a session of a server with [`SHORT`]; its handle once it is a job.
fn long(server: &mut Server, session: &str, command: &str) -> Result<String, Failed> {
    let answer = server.with(&json!({ "command": command, "session": session }))?;
    let id = answer["structuredContent"]["job"].as_str();
    Ok(id.ok_or_else(|| format!("no job: {answer}"))?.to_owned())
}

/// A server whose commands become jobs soon.
const SHORT: &str = "[sessions]\nyield = \"1s\"\n";

pub fn output(server: &mut Server, arguments: &Value) -> Result<Value, Failed> {
    server.tool("bash_output", arguments)
}

/// Reads a job until it has ended.
pub fn to_its_end(server: &mut Server, id: &str) -> Result<Value, Failed> {
    let end = Instant::now() + patience();
    loop {
        let answer = output(server, &json!({ "job": id, "wait": 5 }))?;
        let running = answer["structuredContent"]["outcome"] == json!("running");
        if !running || Instant::now() > end {
            return Ok(answer);
        }
    }
}

pub fn pieces(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let command = "seq 1 20000; seq 1 5 >&2; sleep 0.5; echo last; exit 3";
    let id = job(&mut server, "a", command)?;
    to_its_end(&mut server, &id)?;
    let mut next = json!({});
    let mut out = String::new();
    let mut err = String::new();
    for _ in 0..20 {
        let answer = output(&mut server, &json!({ "job": id, "since": next }))?;
        let content = &answer["structuredContent"];
        holds("bounded", &answer, content["stdout"].as_str().is_some_and(|s| s.len() <= 30_000))?;
        out.push_str(content["stdout"].as_str().unwrap_or_default());
        err.push_str(content["stderr"].as_str().unwrap_or_default());
        next = content["next"].clone();
        equal("its end", story(&answer).0, Some(3))?;
        equal("not an error of this tool", &answer["isError"], &json!(false))?;
    }
    let numbers = |last: u32| (1..=last).map(|n| format!("{n}\n")).collect::<String>();
    equal("all of stdout", out, numbers(20_000) + "last\n")?;
    equal("all of stderr", err, numbers(5))?;
    // Without an offset: head and tail.
    let answer = output(&mut server, &json!({ "job": id, "max_output": 200 }))?;
    let content = &answer["structuredContent"];
    equal("truncated", &content["truncated"], &json!(true))?;
    holds("reported", &answer, story(&answer).1.ends_with("last\n"))?;
    equal("read on behind all", &content["next"], &next)
}

pub fn waits(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "[sessions]\nyield = \"2s\"\n")?;
    let id = job(&mut server, "a", "read -r line < /workspace/gate; echo $line; sleep 600")?;
    let began = Instant::now();
    let answer = output(&mut server, &json!({ "job": id, "wait": 600 }))?;
    let waited = began.elapsed();
    holds("no longer than a command", waited, waited >= Duration::from_secs(2))?;
    equal("it runs", &answer["structuredContent"]["outcome"], &json!("running"))?;
    // Output that is there already is not waited for.
    let id = job(&mut server, "b", "echo there; sleep 600")?;
    let mut seen = output(&mut server, &json!({ "job": id, "wait": 2, "since": {} }))?;
    equal("at once", story(&seen).1.as_str(), "there\n")?;
    let began = Instant::now();
    let next = seen["structuredContent"]["next"].clone();
    seen = output(&mut server, &json!({ "job": id, "wait": 1, "since": next }))?;
    equal("no more", story(&seen).1.as_str(), "")?;
    holds("waited", began.elapsed(), began.elapsed() >= Duration::from_secs(1))?;
    let id = job(&mut server, "c", "sleep 1; echo end")?;
    let ended = to_its_end(&mut server, &id)?;
    equal("the end", story(&ended), (Some(0), "end\n".to_owned()))
}

pub fn lines(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let command = "seq 1 30000; echo ERROR one; echo error two >&2; sleep 1";
    let id = job(&mut server, "a", command)?;
    to_its_end(&mut server, &id)?;
    let answer = output(&mut server, &json!({ "job": id, "grep": "(?i)^error|^1500[01]$" }))?;
    let content = &answer["structuredContent"];
    equal("stdout", &content["stdout"], &json!("15000\n15001\nERROR one\n"))?;
    equal("stderr", &content["stderr"], &json!("error two\n"))?;
    let answer = output(&mut server, &json!({ "job": id, "grep": "9$", "tail": 2 }))?;
    let expected = "[… 2998 lines left out …]\n29989\n29999\n";
    equal("the last", story(&answer).1.as_str(), expected)?;
    for (pattern, reason) in [("(", "unclosed group"), (r"\w{100}{100}", "size limit")] {
        let answer = output(&mut server, &json!({ "job": id, "grep": pattern }))?;
        equal(pattern, &answer["isError"], &json!(true))?;
        holds(pattern, &answer, text(&answer).contains(reason))?;
    }
    Ok(())
}

pub fn kill(caller: &Caller) -> Check {
    let mut server = Server::start(caller, SHORT)?;
    server.with(&json!({ "command": "x=kept", "session": "a" }))?;
    let id = long(&mut server, "a", "echo begun; sleep 600")?;
    let answer = server.tool("bash_kill", &json!({ "job": id }))?;
    let content = &answer["structuredContent"];
    equal("interrupted", &content["outcome"], &json!("cancelled"))?;
    equal("what it printed", &content["stdout"], &json!("begun\n"))?;
    holds("reported", &answer, text(&answer).contains("interrupted and the shell is kept"))?;
    let answer = server.with(&json!({ "command": "echo $x", "session": "a" }))?;
    equal("the same shell", story(&answer), (Some(0), "kept\n".to_owned()))?;
    let again = server.tool("bash_kill", &json!({ "job": id }))?;
    holds("it had ended", &again, again.to_string().contains("it had ended before"))?;

    let id = long(&mut server, "a", "trap '' INT; echo begun; while :; do sleep 1; done")?;
    let answer = server.tool("bash_kill", &json!({ "job": id }))?;
    let content = &answer["structuredContent"];
    equal("stubborn", &content["outcome"], &json!("cancelled"))?;
    equal("killed with its shell", &content["session"]["shell"], &json!("ended"))?;

    let id = long(&mut server, "a", "sleep 600")?;
    let answer = server.tool("bash_kill", &json!({ "job": id, "signal": "KILL" }))?;
    let content = &answer["structuredContent"];
    equal("killed", &content["outcome"], &json!("signaled"))?;
    equal("without its shell", &content["session"]["shell"], &Value::Null)?;
    let answer = server.with(&json!({ "command": "echo ${x-gone}", "session": "a" }))?;
    equal("its shell is one of after the killed one", story(&answer).1.as_str(), "gone\n")
}

/// Each row: the job's command, the signal, its outcome, its output, and the remark.
const SIGNALLED: &[(&str, &str, &str, &str, &str)] = &[
    ("sleep 600; echo after", "TERM", "cancelled", "", "TERM ended it; the shell is kept"),
    (
        "bash -c 'trap \"echo bye; exit 0\" TERM; echo up; while :; do sleep 0.1; done'; echo after",
        "TERM",
        "cancelled",
        "up\nbye\n",
        "TERM ended it; the shell is kept",
    ),
    (
        "bash -c 'trap \"\" TERM INT; echo deaf; while :; do sleep 0.1; done'; echo after",
        "TERM",
        "cancelled",
        "deaf\n",
        "it did not end within 1 s of TERM; its processes were killed, the shell is kept",
    ),
    (
        "bash -c 'trap \"\" TERM INT; echo deaf; while :; do sleep 0.1; done' | cat; echo after",
        "KILL",
        "signaled",
        "deaf\n",
        "its processes were killed; the shell is kept",
    ),
    ("while :; do :; done", "TERM", "cancelled", "", "TERM ended it; the shell is kept"),
    (
        "(setsid sleep 600); setsid -f sleep 600; sleep 600",
        "KILL",
        "signaled",
        "",
        "its processes were killed; the shell is kept",
    ),
    (
        "trap '' INT; while :; do :; done",
        "KILL",
        "signaled",
        "",
        "the shell did not come back in time and was killed with it",
    ),
];

pub fn signals(caller: &Caller) -> Check {
    let mut server = Server::start(caller, SHORT)?;
    for (command, signal, outcome, stdout, note) in SIGNALLED {
        // Background processes of earlier commands cannot be ended by a later call.
        let before = json!({ "command": "sleep 700 & x=kept", "session": "a" });
        equal("before", story(&server.with(&before)?).0, Some(0))?;
        std::thread::sleep(Duration::from_millis(100));
        let id = long(&mut server, "a", command)?;
        std::thread::sleep(Duration::from_millis(300));
        if !stdout.is_empty() {
            // The command has set its traps by then.
            output(&mut server, &json!({ "job": id, "since": {}, "wait": 30 }))?;
        }
        let answer = server.tool("bash_kill", &json!({ "job": id, "signal": signal }))?;
        let content = &answer["structuredContent"];
        equal(command, &content["outcome"], &json!(outcome))?;
        equal(command, &content["stdout"], &json!(stdout))?;
        holds(command, &answer, answer.to_string().contains(note))?;
        let look = "echo ${x-gone}; pgrep -fc 'sleep 700'; pgrep -fc 'sleep 600'; unset x; kill $!";
        let answer = server.with(&json!({ "command": look, "session": "a" }))?;
        let left = if note.contains("is kept") { "kept\n1\n0\n" } else { "gone\n0\n0\n" };
        equal(command, story(&answer).1.as_str(), left)?;
    }
    Ok(())
}

/// Ending a call that has just ended hits no process of the shell's own, and a late INT stops
/// neither the shell nor its next command.
pub fn between(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    server.gives("x=kept; (sleep 0.5; pgrep -cP $$ > n; kill -INT $$; echo > sent) &", 0, "")?;
    std::thread::sleep(Duration::from_millis(1500));
    server.gives("echo ${x-gone}; cat n; ls sent", 0, "kept\n1\nsent\n")?;
    server.gives("f() { echo in f; }; f; shopt -q extdebug; echo $?; trap -p DEBUG", 0, "in f\n1\n")
}

/// A shell that takes no INT is killed a moment after the first KILL, however often it is asked for.
pub fn repeated(caller: &Caller) -> Check {
    let mut server = Server::start(caller, SHORT)?;
    let id = long(&mut server, "a", "trap '' INT TERM; while :; do sleep 1; done")?;
    std::thread::sleep(Duration::from_millis(300));
    let kill = json!({ "name": "bash_kill", "arguments": { "job": id, "signal": "KILL" } });
    let first = server.request("tools/call", &kill)?;
    for _ in 0..40 {
        server.request("tools/call", &kill)?;
        std::thread::sleep(Duration::from_millis(200));
    }
    let answer = server.answer(first)?;
    let took = answer["structuredContent"]["duration_ms"].as_u64();
    holds("while it was asked for again", &answer, took.is_some_and(|took| took < 6000))
}

pub fn listed(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let answer = server.tool("bash_jobs", &json!({}))?;
    equal(
        "no such directory",
        &answer["structuredContent"],
        &json!({ "jobs": [], "left_out": 0 }),
    )?;
    server.gives("echo waited for", 0, "waited for\n")?;
    let ended = job(&mut server, "a", "echo one; sleep 1; exit 7")?;
    let runs = job(&mut server, "b", "sleep 600")?;
    to_its_end(&mut server, &ended)?;
    let answer = server.tool("bash_jobs", &json!({}))?;
    let jobs = answer["structuredContent"]["jobs"].as_array().cloned().unwrap_or_default();
    let printed: Vec<_> = jobs
        .iter()
        .map(|job| json!([job["job"], job["session"], job["outcome"], job["exit_code"]]))
        .collect();
    let expected = vec![json!([runs, "b", "running", null]), json!([ended, "a", "exited", 7])];
    equal("the jobs and no other command", printed, expected)?;
    for (id, reason) in [("c99", "there is no job `c99`"), ("x\u{1b}", "there is no job")] {
        let answer = output(&mut server, &json!({ "job": id }))?;
        equal(id, &answer["isError"], &json!(true))?;
        holds(id, &answer, text(&answer).contains(reason) && !text(&answer).contains('\u{1b}'))?;
    }
    let answer = output(&mut server, &json!({}))?;
    holds("neither", &answer, text(&answer).contains("one of `job` and `output_id`"))
}

pub fn recorded(caller: &Caller) -> Check {
    let log = caller.directory("log")?;
    support::mode(&log, 0o700)?;
    let file = log.join("audit.jsonl");
    let config = format!("[audit]\nfile = \"{}\"\n", file.display());
    let mut server = Server::start(caller, &config)?;
    let id = job(&mut server, "a", "sleep 600")?;
    output(&mut server, &json!({ "job": id }))?;
    server.tool("bash_jobs", &json!({}))?;
    server.tool("bash_input", &json!({ "job": id, "text": "secret" }))?;
    server.tool("bash_kill", &json!({ "job": id }))?;
    drop(server);
    let text = std::fs::read_to_string(&file)?;
    holds("no input in clear", &text, !text.contains("secret"))?;
    holds("its length", &text, text.contains("\"input_bytes\":6,"))?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let printed: Vec<_> = lines
        .filter(|line| line["event"] == json!("job"))
        .map(|line| json!([line["tool"], line["job"], line["decision"], line["rule"]]))
        .collect();
    let expected = vec![
        json!(["bash_output", id, "granted", "shell"]),
        json!(["bash_jobs", "", "granted", "shell"]),
        json!(["bash_input", id, "granted", "shell"]),
        json!(["bash_kill", id, "granted", "shell"]),
    ];
    equal("recorded", printed, expected)
}

pub fn off(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "[tools]\noff = [\"bash\"]\n")?;
    let listed = server.request("tools/list", &json!({}))?;
    let listed = server.answer(listed)?.to_string();
    holds("others are listed", &listed, listed.contains("\"calculate\""))?;
    holds("off with bash", &listed, !listed.contains("bash_jobs"))?;
    let answer = server.tool("bash_jobs", &json!({}))?;
    holds("reported", &answer, crate::server::text(&answer).contains("`bash_jobs` is switched off"))
}

pub fn rest(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let short = server.bash("echo short")?;
    equal("nothing to read", &short["structuredContent"]["output_id"], &Value::Null)?;
    let command = "seq 1 20000; sleep 600";
    let answer = server.with(&json!({ "command": command, "timeout": 1 }))?;
    let content = &answer["structuredContent"];
    equal("it timed out", &content["outcome"], &json!("timeout"))?;
    let id = content["output_id"].as_str().ok_or("no output_id")?.to_owned();
    let printed = format!("bash_output with output_id {id} reads the rest");
    holds("reported", &answer, text(&answer).contains(&printed))?;
    let mut next = json!({});
    let mut all = String::new();
    for _ in 0..5 {
        let answer = output(&mut server, &json!({ "output_id": id, "since": next }))?;
        equal("its end", &answer["structuredContent"]["outcome"], &json!("timeout"))?;
        all.push_str(&story(&answer).1);
        next = answer["structuredContent"]["next"].clone();
    }
    let expected: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    equal("the whole of it", all, expected)?;
    // No job: it was not started in the background.
    let answer = server.tool("bash_jobs", &json!({}))?;
    equal("no job", &answer["structuredContent"]["jobs"], &json!([]))?;

    let answer =
        server.with(&json!({ "command": "seq 9; sleep 0.5 && echo late &", "tail": 1 }))?;
    let id = answer["structuredContent"]["output_id"].clone();
    std::thread::sleep(Duration::from_millis(1500));
    let answer = output(&mut server, &json!({ "output_id": id, "grep": "[89]|late" }))?;
    equal("and what came later", story(&answer), (Some(0), "8\n9\nlate\n".to_owned()))
}

pub fn forgotten(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let runs = job(&mut server, "a", "echo it; sleep 600")?;
    let answer = server.with(&json!({ "command": "seq 3", "tail": 1 }))?;
    let id = answer["structuredContent"]["output_id"].clone();
    let answer = output(&mut server, &json!({ "output_id": id }))?;
    equal("kept at first", story(&answer).1.as_str(), "1\n2\n3\n")?;
    for _ in 0..256 {
        server.gives(":", 0, "")?;
    }
    let answer = output(&mut server, &json!({ "output_id": id }))?;
    equal("an error", &answer["isError"], &json!(true))?;
    holds("reported", &answer, text(&answer).contains("is forgotten"))?;
    let answer = output(&mut server, &json!({ "job": runs }))?;
    equal("but not what runs", story(&answer).1.as_str(), "it\n")
}
