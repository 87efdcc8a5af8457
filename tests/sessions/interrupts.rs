//! Interrupts in a session: each ends one command, whenever it arrives, and leaves nothing else changed.

use serde_json::{Value, json};

use crate::server::{Server, story, text};
use crate::support::{Caller, Check, equal, gone, holds, patience, present};

/// Has the shell send itself an INT before the command of that number of those
/// that follow, ours around the calls among them.
fn interrupted(number: u32) -> String {
    format!(
        "left={number}; set -T; trap '((--left)) || {{ echo $BASH_COMMAND > at; kill -INT $$; }}' DEBUG"
    )
}

/// Commands from a trap to the end of the call after it: more than there are.
const COMMANDS: u32 = 60;

/// Ours that the INT must have come before, in this order.
const MET: [&str; 3] = ["COFFERDAM_SURE", "COFFERDAM_CALL=", "COFFERDAM_OPEN=0"];

pub fn any_moment(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    server.gives("x=kept", 0, "")?;
    let mut met = Vec::new();
    for number in 1..=COMMANDS {
        server.bash(&interrupted(number))?;
        // The signal ends this call or the next or comes between them; later calls are not ended.
        for _ in 0..2 {
            server.bash("echo ok")?;
        }
        server.bash("trap - DEBUG; set +T")?;
        let after =
            server.bash("echo ${x-gone} $left; shopt -q extdebug; echo $?; trap -p DEBUG")?;
        equal(&interrupted(number), story(&after), (Some(0), "kept 0\n1\n".to_owned()))?;
        let at = server.bash("cat at")?;
        met.push(at["structuredContent"]["stdout"].as_str().unwrap_or_default().to_owned());
    }
    let wanted = |ours: &&str| met.iter().any(|at| at.contains(*ours));
    let missing: Vec<&str> = MET.into_iter().filter(|ours| !wanted(ours)).collect();
    equal("the control: lines of ours that it came before", missing, Vec::<&str>::new())
}

/// Returns the seconds of a sleeper that no other test has.
fn sentinel(caller: &Caller) -> String {
    format!("{}{}.8", 9_000_000 + std::process::id(), caller.uid())
}

/// Ends a job whose time limit passes while it is started: no process of it remains.
pub fn at_the_start(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let seconds = sentinel(caller);
    for (session, shell) in [("b", "bash"), ("s", "sh")] {
        let first = json!({ "command": "x=kept", "session": session, "shell": shell });
        equal(shell, story(&server.with(&first)?).0, Some(0))?;
        for limit in [0.001, 0.002, 0.003].into_iter().cycle().take(90) {
            let answer = server.with(&json!({ "command": format!("exec sleep {seconds}"),
                "session": session, "background": true, "timeout": limit }))?;
            let outcome = &answer["structuredContent"]["outcome"];
            holds("its limit", text(&answer), outcome == "timeout" || outcome == "running")?;
        }
        let next = server.with(&json!({ "command": "echo $x", "session": session }))?;
        equal(shell, story(&next), (Some(0), "kept\n".to_owned()))?;
    }
    equal("nothing of them runs on", gone(&seconds, patience()), Vec::<u32>::new())
}

/// Runs a command whose limit passes about when it ends, and one after it: that one ran in the reported session.
fn and_the_next(server: &mut Server, session: &str, limit: f64, mark: u32) -> Check {
    let arguments = json!({ "command": "echo ok", "session": session, "timeout": limit });
    let stopped = server.ask(&arguments)?;
    let command = format!("echo {mark} > mark; cat mark");
    let next = server.ask(&json!({ "command": command, "session": session }))?;
    let stopped = server.answer(stopped)?;
    let next = server.answer(next)?;
    let output = |answer: &Value| text(answer).to_owned();
    let both = (output(&stopped), output(&next));
    equal(&format!("{both:?}"), story(&next), (Some(0), format!("{mark}\n")))
}

pub fn and_its_shell(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    for (session, shell) in [("f", "fish"), ("b", "bash")] {
        let first = json!({ "command": "echo", "session": session, "shell": shell });
        equal(shell, story(&server.with(&first)?).0, Some(0))?;
        for mark in 0..100 {
            if shell == "bash" {
                // Scripts that clean up do this: from here on an INT ends the shell.
                server.with(&json!({ "command": "trap - INT", "session": session }))?;
            }
            let limit = 0.0005 * f64::from(1 + mark % 6);
            and_the_next(&mut server, session, limit, mark)?;
        }
    }
    Ok(())
}

/// Checks the modes of bash that its own lines make use of, and the exit code of a command that was interrupted from inside.
pub fn modes(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    server.gives("echo a; bash -c 'kill -INT $PPID'; echo b", 130, "a\n")?;
    let shown = "set +o | grep -c 'set -o .*trace'; shopt -q extdebug; echo $?";
    for (sets, expected) in [
        ("set -E", "1\n1\n"),
        ("set -T", "2\n1\n"),
        ("set +ET; shopt -s extdebug", "2\n0\n"),
        ("shopt -u extdebug; set +ET", "0\n1\n"),
    ] {
        server.gives(sets, 0, "")?;
        server.gives(shown, 0, expected)?;
        let answer = server.with(&json!({ "command": "sleep 60", "timeout": 0.3 }))?;
        holds(sets, text(&answer), text(&answer).contains("the shell is kept"))?;
        server.gives(shown, 0, expected)?;
    }
    Ok(())
}

/// Checks that a command's limit does not apply to what an earlier command left in the background.
pub fn of_one_command(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let earlier = "python3 -c 'import signal, time\n\
                   signal.signal(2, lambda *_: open(\"hit\", \"w\"))\n\
                   open(\"up\", \"w\")\ntime.sleep(600)' & until [ -e up ]; do sleep 0.05; done";
    server.gives(&earlier.replace("\\n", "\n"), 0, "")?;
    for (command, background) in [("sleep 60", false), ("while :; do /bin/true; done", false)] {
        let answer =
            server.with(&json!({ "command": command, "timeout": 1, "background": background }))?;
        holds(command, text(&answer), text(&answer).contains("the shell is kept"))?;
    }
    // Like ^C, the signal reaches no other session.
    let seconds = sentinel(caller);
    let left = format!("setsid -f sleep {seconds}; sleep 60");
    let answer = server.with(&json!({ "command": left, "timeout": 1 }))?;
    holds("a separate session", text(&answer), text(&answer).contains("the shell is kept"))?;
    equal("it continues", present(&seconds, 1, patience()), 1)?;
    // The control: one that is sent to it comes there.
    server.gives(
        "ls hit 2>&1; kill -INT $!; until [ -e hit ]; do sleep 0.05; done; ls hit",
        0,
        "ls: cannot access 'hit': No such file or directory\nhit\n",
    )
}
