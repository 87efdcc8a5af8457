//! A session whose cell is slow to die: its call is answered in time, and nobody else waits for it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::server::{Server, text};
use crate::support::slow;
use crate::support::{Caller, Check, equal, holds, patience, soon};

/// The most time from a call's limit to its answer: two seconds, and a moment on a busy machine.
const LATEST: Duration = Duration::from_millis(2500);
const LIMIT: Duration = Duration::from_secs(6);

const POLICY: &str = r#"schema = 1

[[rule]]
id = "shell"
tools = ["bash"]
action = "allow"
profile = "own"
why = "this test"
matches = [{ tool = "bash" }]
not_matches = [{ tool = "calculate" }]

[[rule]]
id = "calculator"
tools = ["calculate"]
action = "allow"
profile = "bc"
why = "this test"
matches = [{ tool = "calculate" }]
not_matches = [{ tool = "bash" }]
"#;

pub fn in_time(caller: &Caller) -> Check {
    let files = [("sandbox-profiles", slow::PROFILE), ("policies", POLICY)];
    let mut server = Server::with_files(caller, "[limits]\nmemory = \"64G\"\n", &files)?;
    // Both have a shell.
    for session in ["slow", "other"] {
        server.with(&json!({ "command": "true", "session": session }))?;
    }
    let name = format!("late{}{:?}", std::process::id(), caller.who);
    server.with(
        &json!({ "command": format!("cat > slow.py <<'END'\n{}\nEND", slow::PROGRAM), "session": "slow" }),
    )?;
    let began = Instant::now();
    let command = format!("exec python3 slow.py {name}");
    let limit = LIMIT.as_secs();
    let told = server.with(&json!({ "command": command, "session": "slow", "timeout": limit }))?;
    let took = began.elapsed();
    let content = &told["structuredContent"];
    holds("it timed out", text(&told), content["outcome"] == "timeout")?;
    holds("all of them had been made", text(&told), content["stdout"] == "all\n")?;
    holds("in time", took, took < LIMIT + LATEST)?;
    // The session's next call waits for the slot, and the call of another does not wait for that.
    let next = server.ask(&json!({ "command": "echo next", "session": "slow" }))?;
    let began = Instant::now();
    let other = server.with(&json!({ "command": "echo other", "session": "other" }))?;
    let fresh = server.tool("calculate", &json!({ "expression": "6 * 7" }))?;
    let (took, left) = (began.elapsed(), slow::named(&name));
    holds("the control: the cell is still on its way out", left, left > 0)?;
    equal("another session", &other["structuredContent"]["stdout"], &json!("other\n"))?;
    holds("a call of its own", text(&fresh), text(&fresh).contains("42"))?;
    holds("at once", took, took < soon(2))?;
    let next = server.answer(next)?;
    equal("then it has a new shell", &next["structuredContent"]["stdout"], &json!("next\n"))?;
    let end = Instant::now() + patience();
    while slow::named(&name) > 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    equal("and nothing is left", slow::named(&name), 0)
}
