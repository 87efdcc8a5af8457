//! A process left behind by one call writes the reports of later ones.

use serde_json::json;

use crate::server::{Server, story};
use crate::support::{Caller, Check, equal, holds};

/// Writes the end of every call that comes, once, and notes each that it could write.
const FORGER: &str = "sleep 0.5; while :; do for f in /dev/session/end.*; do n=/tmp/was.${f##*.}; \
    [ ! -p $f ] || [ -e $n ] || { : > $n; printf \"7 /forged\\\\0\" > $f && echo $f >> /tmp/forged; }; \
    done; sleep 0.02; done";

pub fn bash(caller: &Caller) -> Check {
    ended_by_none(caller, "bash")
}

pub fn sh(caller: &Caller) -> Check {
    ended_by_none(caller, "sh")
}

pub fn zsh(caller: &Caller) -> Check {
    ended_by_none(caller, "zsh")
}

pub fn fish(caller: &Caller) -> Check {
    ended_by_none(caller, "fish")
}

fn ended_by_none(caller: &Caller, shell: &str) -> Check {
    let mut server = Server::configured(caller, "", &[], &["--tools", "shell"])?;
    let leave = format!("sh -c '{FORGER}' > /dev/null 2>&1 &\necho left");
    let answer = server.with(&json!({ "command": leave, "shell": shell }))?;
    equal("left behind", story(&answer), (Some(0), "left\n".to_owned()))?;
    let forged = || json!({ "command": "sleep 1; cat /tmp/forged; sh -c 'exit 3'" });
    let answer = server.with(&forged())?;
    let (code, ends) = story(&answer);
    // The control: the report of this very call was written.
    holds("forged", &answer, ends.contains("/dev/session/end."))?;
    equal("its own end", code, Some(3))?;
    let answer = server.with(&json!({ "command": "sleep 30", "timeout": 2 }))?;
    equal("its limit", &answer["structuredContent"]["outcome"], &json!("timeout"))
}
