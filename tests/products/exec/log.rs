//! The log of a server: events with the id of their call, without arguments or output of any call.

use std::process::Command;

use serde_json::{Value, json};

use crate::server::{PROGRAM, Server};

/// Stands in arguments as it is here.
const GIVEN: &str = "canary-of-arguments";
/// Stands in outputs alone: commands put it together.
const PRINTED: &str = "canary-of-output";
const PRINTS: &str = "printf 'canary-%s\\n' of-output; printf 'canary-%s\\n' of-output >&2";

/// Calls of every kind, with canaries wherever a client can put one. The ids of the first and the last.
fn calls(server: &mut Server) -> (u64, u64) {
    let id = server.request("logging/setLevel", json!({"level": "debug"}));
    server.answer(id);
    let command = format!("{PRINTS}; : {GIVEN}; cat");
    let with = json!({"command": command, "stdin": GIVEN, "env": {"A": GIVEN}});
    let first = server.call("bash", with);
    let answer = server.answer(first);
    let printed = answer["result"]["structuredContent"]["stdout"].as_str().unwrap_or_default();
    assert_eq!(printed, format!("{PRINTED}\n{GIVEN}"), "the control");
    for (tool, arguments) in [
        ("bash", json!({"command": format!("exit 3 # {GIVEN}")})),
        ("bash", json!({"command": GIVEN, "cwd": format!("/etc/{GIVEN}")})),
        ("bash", json!({"command": "true", GIVEN: GIVEN})),
        ("bash_exec", json!({"command": format!("{PRINTS} # {GIVEN}"), "env": {"A": GIVEN}})),
        ("bash_exec_stream", json!({"command": format!("{PRINTS} # {GIVEN}")})),
        ("bash_exec", json!({"command": "x", "working_dir": format!("/tmp/{GIVEN}")})),
        ("bash_exec", json!({"command": "x", "profile": GIVEN})),
        ("history_search", json!({"query": GIVEN})),
        ("which_command", json!({"command": GIVEN})),
        ("man_page", json!({"command": GIVEN})),
        ("calculate", json!({"expression": format!("\"{GIVEN}\"")})),
        ("put_file", json!({"path": format!("/workspace/{GIVEN}"), "content": GIVEN})),
        ("get_file", json!({"path": format!("/workspace/{GIVEN}")})),
        (GIVEN, json!({"a": GIVEN})),
    ] {
        let id = server.call(tool, arguments);
        server.answer(id);
    }
    let job = json!({"command": format!("cat # {GIVEN}"), "background": true, "session": "job"});
    let job = server.result("bash", job)["structuredContent"]["job"].clone();
    server.result("bash_input", json!({"job": job, "text": GIVEN, "eof": true}));
    for uri in [format!("bash://which/{GIVEN}"), format!("bash://{GIVEN}")] {
        let id = server.request("resources/read", json!({"uri": uri}));
        server.answer(id);
    }
    let id = server.request(GIVEN, json!({"a": GIVEN}));
    server.answer(id);
    let last = server.call("bash_exec", json!({"command": "true"}));
    server.answer(last);
    (first, last)
}

/// Returns the log of a server with these variables after it has answered [`calls`].
fn logged(variables: &[(&str, &str)]) -> (String, (u64, u64)) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("log");
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--tools", "calc,shell,exec,info,history,files"]);
    command.envs(variables.iter().copied());
    command.stderr(std::fs::File::create(&path).expect("a file"));
    let mut server = Server::of(command);
    let ids = calls(&mut server);
    assert_eq!(server.close(), Some(0));
    (std::fs::read_to_string(path).expect("text"), ids)
}

#[test]
fn arguments_and_output_are_never_logged() {
    for (level, events) in [("warn", false), ("info", true), ("debug", true), ("trace", true)] {
        for variable in ["COFFERDAM_LOG", "RUST_LOG"] {
            let (log, _) = logged(&[(variable, level)]);
            assert!(!log.contains(GIVEN) && !log.contains(PRINTED), "{variable}={level}: {log}");
            assert_eq!(!log.is_empty(), events, "{variable}={level}: {log}");
        }
    }
    let (log, _) = logged(&[("COFFERDAM_LOG", "warn,rmcp=trace")]);
    assert_eq!(log, "", "libraries are never heard");
}

#[test]
fn each_event_is_a_line_that_names_its_call() {
    let (log, (first, last)) = logged(&[("COFFERDAM_LOG", "debug")]);
    for line in log.lines() {
        assert!(line.starts_with("time=") && line.contains(" level="), "{line}");
    }
    for (id, tool, outcome) in [(first, "bash", "exited"), (last, "bash_exec", "exited")] {
        let call = format!(" id={id} tool={tool} ");
        for event in ["event=called", "event=granted", "event=ended", "event=answered"] {
            let line = log.lines().find(|line| line.contains(event) && line.contains(&call));
            let line = line.unwrap_or_else(|| panic!("{event} of {id}: {log}"));
            assert!(event != "event=ended" || line.contains(&format!("outcome={outcome}")));
        }
    }
}

#[test]
fn events_can_be_had_as_json() {
    let variables = [("COFFERDAM_LOG", "trace"), ("COFFERDAM_LOG_FORMAT", "json")];
    let (log, (first, _)) = logged(&variables);
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.iter().all(|line| line["time"].is_string() && line["event"].is_string()));
    let first = first.to_string();
    let ended = lines.iter().find(|line| line["event"] == "ended" && line["id"] == first.as_str());
    assert_eq!(ended.map(|line| &line["outcome"]), Some(&json!("exited")), "{log}");
    assert!(!log.contains(GIVEN) && !log.contains(PRINTED), "{log}");
}
