//! A session whose cell is slow to die: its call is answered in time, and no other call waits.

use serde_json::json;

use crate::server::{Server, text};
use crate::support::{Caller, Check, Held, equal, holds};

pub fn in_time(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    // Both have a shell.
    for session in ["slow", "other"] {
        server.with(&json!({ "command": "true", "session": session }))?;
    }
    let seconds = format!("{}{}.9", 9_000_000 + std::process::id(), caller.uid());
    // A shell that heeds no signal ends with its session.
    let command = format!("trap '' INT TERM; sleep {seconds}");
    let answer = server.ask(&json!({ "command": command, "session": "slow", "timeout": 3 }))?;
    let slow = Held::with_argument(&seconds)?;
    // Without the bound on its death there is no answer.
    let answer = server.answer(answer)?;
    holds("it timed out", text(&answer), answer["structuredContent"]["outcome"] == "timeout")?;
    // The session's next call waits for the slot, and the call of another does not wait for that.
    let next = server.ask(&json!({ "command": "echo next", "session": "slow" }))?;
    let other = server.with(&json!({ "command": "echo other", "session": "other" }))?;
    let fresh = server.tool("calculate", &json!({ "expression": "6 * 7" }))?;
    holds("the control: the cell is still on its way out", &answer, slow.is_dying())?;
    equal("another session", &other["structuredContent"]["stdout"], &json!("other\n"))?;
    holds("a one-shot call", text(&fresh), text(&fresh).contains("42"))?;
    slow.let_go()?;
    let next = server.answer(next)?;
    equal("then it has a new shell", &next["structuredContent"]["stdout"], &json!("next\n"))
}
