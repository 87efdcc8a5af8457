//! Traps of a session's shell: their output appears once, in the reply of the call in which they run.

use serde_json::json;

use crate::server::{Server, story};
use crate::support::{Caller, Check, equal};

/// A command that ends its shell with this code and output.
const EXITS: &[(&str, u8, &str)] = &[
    ("trap 'echo bye' EXIT; echo first; exit 3", 3, "first\nbye\n"),
    ("trap 'echo bye' EXIT; f() { exit 4; }; f", 4, "bye\n"),
    ("echo \"trap 'echo bye' EXIT; exit 5\" > x.sh; . ./x.sh", 5, "bye\n"),
    ("set -e; trap 'echo bye' EXIT; false", 1, "bye\n"),
    ("set -u; trap 'echo bye' EXIT; echo $absent", 127, "bye\n"),
    ("trap 'echo bye' EXIT; { eval 'exit 6'; } > /dev/null", 6, "bye\n"),
    ("trap 'echo bye; sleep 0.3; echo late; exit 9' EXIT; exit 7", 9, "bye\nlate\n"),
    ("trap 'cat; echo $?' EXIT; exit", 0, "0\n"),
    ("trap 'seq 100000 | tail -n 1' EXIT; exit 2", 2, "100000\n"),
    ("trap 'echo bye' EXIT; exec true", 0, ""),
];

pub fn exits(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    for (command, code, stdout) in EXITS {
        server.gives(command, *code, stdout)?;
    }
    let answer = server.bash("trap 'echo bye >&2' EXIT; exit 3")?;
    equal("stderr", &answer["structuredContent"]["stderr"], &json!("bye\n"))?;
    // A trap prints into the call that ends the shell, not into the one that set it.
    server.gives("trap 'echo bye' EXIT; echo set", 0, "set\n")?;
    server.gives("exit 8", 8, "bye\n")?;
    let given = json!({ "command": "trap 'echo bye $PWD' EXIT; cat; exit 3", "stdin": "in\n",
        "cwd": "/tmp", "env": { "A": "1" } });
    let answer = server.with(&given)?;
    equal("with input", story(&answer), (Some(3), "in\nbye /tmp\n".to_owned()))
}

/// Commands of one shell, each with its output: our lines around them run no trap that prints.
const OTHERS: &[(&str, u8, &str)] = &[
    ("trap 'echo error' ERR; false", 1, "error\n"),
    ("false", 1, "error\n"),
    ("trap - ERR; trap 'echo debug' DEBUG", 0, ""),
    ("echo a", 0, "a\n"),
    ("exec() { echo mine; }; echo b", 0, "b\n"),
    ("exec; unset -f exec", 0, "mine\n"),
    ("(while sleep 0.1; do :; done) > /dev/null & echo c", 0, "c\n"),
    ("echo d", 0, "d\n"),
];

pub fn others(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    for (command, code, stdout) in OTHERS {
        server.gives(command, *code, stdout)?;
    }
    Ok(())
}
