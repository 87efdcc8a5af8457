//! Sessions with sh, zsh and fish.

use serde_json::{Value, json};

use crate::jobs::{job, to_its_end};
use crate::server::{Server, story};
use crate::support::{Caller, Check, Failed, equal, holds};

/// A shell, and what it needs other words for.
struct Words {
    shell: &'static str,
    /// Sets a variable and a function that prints it.
    sets: &'static str,
    /// Never ends. What it starts just after an INT has ended before the time that the shell has to come back.
    loops: &'static str,
    /// Ends a function with 256.
    returns: &'static str,
    /// A mistake in the form of a command.
    mistake: &'static str,
    /// Command that ends the shell for good.
    wrecks: &'static str,
    /// A variable that it keeps for itself.
    keeps: &'static str,
}

const SH: Words = Words {
    shell: "sh",
    sets: "x=5; f() { echo \"f $x\"; }",
    loops: "while :; do sleep 0.3; done",
    returns: "r() { return 256; }; r",
    mistake: "if",
    wrecks: "set -n; echo",
    keeps: "LINENO",
};
const ZSH: Words = Words {
    shell: "zsh",
    sets: "x=5; typeset -A m; m[k]=v; f() { echo \"f $x\" }",
    loops: "g() { while :; do sleep 0.3; done }; g; echo on",
    returns: "r() { return 256; }; r",
    mistake: "if",
    wrecks: "builtin() { }; function . () { }; exit() { }; set -n",
    keeps: "UID",
};
const FISH: Words = Words {
    shell: "fish",
    sets: "set -g x 5; function f; echo \"f $x\"; end",
    loops: "while true; sleep 0.3; end",
    returns: "function r; return 256; end; r",
    mistake: "end",
    wrecks: "function source; end; function printf; end; function true; end",
    keeps: "status",
};

/// A session with one of the shells.
struct Session {
    server: Server,
    words: Words,
}

impl Session {
    fn with(caller: &Caller, words: Words) -> Result<Self, Failed> {
        let server = Server::configured(caller, "", &[], &["--tools", "shell,files"])?;
        Ok(Self { server, words })
    }

    /// Calls `bash` with this command and further arguments.
    fn call(&mut self, command: &str, others: Value) -> Result<Value, Failed> {
        let mut arguments = others;
        arguments["command"] = json!(command);
        arguments["session"] = json!("s");
        self.server.with(&arguments)
    }

    fn gives(&mut self, command: &str, code: u64, stdout: &str) -> Check {
        let answer = self.call(command, json!({}))?;
        equal(command, story(&answer), (Some(code), stdout.to_owned()))
    }

    fn begin(&mut self) -> Check {
        let answer = self.call("echo ready", json!({ "shell": self.words.shell }))?;
        equal("the first command", story(&answer), (Some(0), "ready\n".to_owned()))
    }
}

pub fn sh(caller: &Caller) -> Check {
    let mut session = Session::with(caller, SH)?;
    kept(&mut session)?;
    overridden(&mut session)?;
    stopped(&mut session, Some("f 5\n"))
}

pub fn zsh(caller: &Caller) -> Check {
    let mut session = Session::with(caller, ZSH)?;
    kept(&mut session)?;
    overridden(&mut session)?;
    stopped(&mut session, Some("f 5\n"))
}

pub fn fish(caller: &Caller) -> Check {
    let mut session = Session::with(caller, FISH)?;
    kept(&mut session)?;
    overridden(&mut session)?;
    stopped(&mut session, None)
}

/// Commands define what our lines could call in their place, and are answered with their own end.
fn overridden(session: &mut Session) -> Check {
    let (ours, slash) = match session.words.shell {
        "fish" => (
            "function printf; true; end; function source; true; end; function true; sleep 60; end; \
             function cat; sleep 60; end; function test; true; end 2>/dev/null; echo over",
            "echo -n",
        ),
        "zsh" => (
            "printf() { while :; do sleep 0.3; done }; cd() { printf }; command() { printf }; echo over",
            "unfunction command printf cd; function /bin/sh { echo hidden }",
        ),
        _ => ("printf() { while :; do sleep 0.3; done; }; cd() { printf; }; echo over", ":"),
    };
    for (command, stdout) in [(ours, "over\n"), ("echo on", "on\n")] {
        let limits = json!({ "timeout": 5, "cwd": "/tmp" });
        let answer = session.call(command, limits)?;
        equal("functions in our place", story(&answer), (Some(0), stdout.to_owned()))?;
    }
    session.gives(slash, 0, "")?;
    let id = job(&mut session.server, "s", "sleep 0.5; echo done")?;
    let answer = to_its_end(&mut session.server, &id)?;
    equal("a background job", story(&answer), (Some(0), "done\n".to_owned()))
}

/// Checks state that lasts, state of one call, input, errors, jobs and files.
fn kept(session: &mut Session) -> Check {
    session.begin()?;
    session.gives(session.words.sets, 0, "")?;
    session.gives("cd /tmp", 0, "")?;
    session.gives("f; pwd; false", 1, "f 5\n/tmp\n")?;
    let env = json!({ "env": { "E": "it's \\ q" }, "cwd": "/workspace" });
    let answer = session.call("echo $E; pwd; sh -c 'echo $E'", env)?;
    let expected = "it's \\ q\n/workspace\nit's \\ q\n".to_owned();
    equal("of one call", story(&answer), (Some(0), expected))?;
    session.gives("sh -c 'echo [$E]'; pwd", 0, "[]\n/tmp\n")?;
    let answer = session.call("cat; nosuchprogram", json!({ "stdin": "given\n" }))?;
    equal("its input", story(&answer), (Some(127), "given\n".to_owned()))?;
    let output = answer["structuredContent"]["stderr"].to_string();
    holds("its errors", &output, output.contains("nosuchprogram"))?;
    let answer = session.call("echo ran", json!({ "cwd": "/workspace/none" }))?;
    equal("no directory", story(&answer), (Some(1), String::new()))?;
    let answer = session.call(session.words.mistake, json!({}))?;
    holds("a mistake", &answer, story(&answer).0.is_some_and(|code| code != 0))?;
    for name in [session.words.keeps, "COFFERDAM_CALL"] {
        let answer = session.call("echo ran", json!({ "env": { name: "7" } }))?;
        let output = answer["structuredContent"]["error"].to_string();
        let kind = session.words.shell;
        let expected = format!("env `{name}` is refused: the {kind} of the session keeps");
        holds("a variable of the shell's own", &output, output.contains(&expected))?;
    }
    session.gives("f; pwd", 0, "f 5\n/tmp\n")?;
    // A directory that is gone when a call with another is over.
    session.gives("mkdir /workspace/d && cd /workspace/d && rmdir ../d", 0, "")?;
    let answer = session.call("pwd", json!({ "cwd": "/tmp" }))?;
    equal("of one call", story(&answer), (Some(0), "/tmp\n".to_owned()))?;
    let answer = session.call("pwd", json!({}))?;
    equal("the workspace", story(&answer), (Some(0), "/workspace\n".to_owned()))?;
    equal("nothing of ours", &answer["structuredContent"]["stderr"], &json!(""))?;
    session.gives("cd /tmp", 0, "")?;
    // Two numbers that are no exit codes.
    let (code, last) = if session.words.shell == "fish" { (255, 255) } else { (0, 44) };
    session.gives(session.words.returns, code, "")?;
    session.gives("return 300", last, "")?;
    session.gives("f; pwd", 0, "f 5\n/tmp\n")?;

    let id = job(&mut session.server, "s", "sleep 0.5; pwd; exit 4")?;
    session.gives("echo free", 0, "free\n")?;
    let answer = to_its_end(&mut session.server, &id)?;
    equal("a job", story(&answer), (Some(4), "/tmp\n".to_owned()))?;
    let at = json!({ "tty": true, "background": true });
    let answer = session.call("tty; sleep 1", at)?;
    let id = answer["structuredContent"]["job"].as_str().unwrap_or_default().to_owned();
    let (code, terminal) = story(&to_its_end(&mut session.server, &id)?);
    equal("at a terminal", (code, terminal.starts_with("/dev/pts/")), (Some(0), true))?;
    let id = job(&mut session.server, "s", "cat; echo over")?;
    let fed = json!({ "job": id, "text": "me\n", "eof": true, "wait": 5 });
    session.server.tool("bash_input", &fed)?;
    let answer = to_its_end(&mut session.server, &id)?;
    let text = answer["structuredContent"]["stdout"].to_string();
    holds("a job that is fed", &text, text.contains("over"))?;
    let file = json!({ "path": "it's \\ x", "content": "abc", "session": "s" });
    let answer = session.server.tool("put_file", &file)?;
    equal("a file", &answer["structuredContent"]["done"], &json!("created"))?;
    session.gives("cat /workspace/it*", 0, "abc")
}

/// Checks a time limit, a shell that ends, and its successor.
fn stopped(session: &mut Session, after: Option<&str>) -> Check {
    for command in ["sleep 60", session.words.loops] {
        let answer = session.call(command, json!({ "timeout": 1 }))?;
        let outcome = &answer["structuredContent"]["outcome"];
        equal("the time limit", outcome, &json!("timeout"))?;
        match after {
            Some(text) => session.gives("f", 0, text)?,
            None => session.gives("pwd", 0, "/workspace\n")?,
        }
    }
    let answer = session.call("echo", json!({ "shell": "bash" }))?;
    let error = answer["structuredContent"]["error"].to_string();
    let expected =
        format!("the session `s` has {}, and `shell` asks for bash", session.words.shell);
    holds("another shell", &error, error.contains(&expected))?;
    // The command ends now, or with its time; the next one has a shell of the same kind.
    session.call(session.words.wrecks, json!({ "timeout": 2 }))?;
    session.gives(session.words.sets, 0, "")?;
    session.gives("f", 0, "f 5\n")?;
    let answer =
        session.call("echo ${BASH_VERSION:+bash}", json!({ "shell": "bash", "restart": true }))?;
    equal("asked for", story(&answer), (Some(0), "bash\n".to_owned()))
}
