//! Forged reports: a process left behind by one call writes the reports of later ones.

use serde_json::json;

use crate::server::{Server, story};
use crate::support::{Caller, Check, equal, holds};

/// Writes to the report of every call that comes, once, and notes each that it could write to. It holds open itself what
/// the shell would, and writes what shells once wrote, too.
const FORGER: &str = "sleep 0.5; while :; do for f in /dev/session/end.*; do n=/tmp/was.${f##*.}; \
    [ ! -p $f ] || [ -e $n ] || { : > $n; printf \"7 /forged\\\\0\" > $f; \
    { printf rro > $f && echo $f >> /tmp/forged; sleep 0.2; } 4< /dev/session/run.${f##*.} \
    5< /dev/session/sixteens.0 6< /dev/session/ones.7; }; \
    done; sleep 0.02; done";

pub fn bash(caller: &Caller) -> Check {
    forging_ends_no_call(caller, "bash")
}

pub fn sh(caller: &Caller) -> Check {
    forging_ends_no_call(caller, "sh")
}

pub fn zsh(caller: &Caller) -> Check {
    forging_ends_no_call(caller, "zsh")
}

pub fn fish(caller: &Caller) -> Check {
    forging_ends_no_call(caller, "fish")
}

fn forging_ends_no_call(caller: &Caller, shell: &str) -> Check {
    let mut server = Server::configured(caller, "", &[], &["--tools", "shell"])?;
    let leave = format!("sh -c '{FORGER}' > /dev/null 2>&1 &\necho left");
    let answer = server.with(&json!({ "command": leave, "shell": shell }))?;
    equal("left behind", story(&answer), (Some(0), "left\n".to_owned()))?;
    let forged = "cd /tmp; sh -c 'until [ -s /tmp/forged ]; do sleep 0.05; done'; cat /tmp/forged; sh -c 'exit 203'";
    let answer = server.with(&json!({ "command": forged }))?;
    let (code, ends) = story(&answer);
    // The control: the report of this very call was written.
    holds("forged", &answer, ends.contains("/dev/session/end."))?;
    equal("its own end", code, Some(203))?;
    equal("its own directory", &answer["structuredContent"]["cwd"], &json!("/tmp"))?;
    let answer = server.with(&json!({ "command": "sleep 1; cat", "stdin": "given" }))?;
    equal("its own input", story(&answer), (Some(0), "given".to_owned()))?;
    let answer = server.with(&json!({ "command": "sleep 30", "timeout": 2 }))?;
    equal("its limit", &answer["structuredContent"]["outcome"], &json!("timeout"))
}

/// Each byte costs a look at the shell: there are not endlessly many.
pub fn flood(caller: &Caller) -> Check {
    let mut server = Server::configured(caller, "", &[], &["--tools", "shell"])?;
    server.gives(
        "sh -c 'until [ -e /dev/session/end.2 ]; do sleep 0.05; done; yes > /dev/session/end.2' 2> /dev/null & echo left",
        0,
        "left\n",
    )?;
    let answer = server.with(&json!({ "command": "sleep 30; echo never", "timeout": 25 }))?;
    let output = answer.to_string();
    holds(
        "reported",
        &output,
        output.contains("a process other than its shell reported how the command ended"),
    )?;
    let answer = server.with(&json!({ "command": "echo on" }))?;
    equal("a new shell", story(&answer), (Some(0), "on\n".to_owned()))
}
