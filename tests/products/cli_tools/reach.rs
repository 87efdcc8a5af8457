//! Hooks at `reach`: the target of a call is looked for before the program runs, from a cell that reaches it alone.

use std::path::Path;

use serde_json::{Value, json};

use super::asked;
use super::examples::in_front_of_the_lab;
use super::own::own;
use crate::server::{PROGRAM, Server};

/// `cli_mine`, which prints its target, and what looks for that before.
fn searching(hooks: &str) -> String {
    format!(
        r#"
[[tool]]
name = "cli_mine"
program = "echo"
why = "this test calls it"
accepts = [{{ with = {{ target = "10.77.0.10" }} }}]
refuses = [{{ with = {{ target = "8.8.8.8" }} }}]
[[tool.flag]]
flag = "-n"
why = "a flag"
[[tool.positional]]
name = "target"
kind = "host"
min = 1
max = 1
egress = "only"
why = "the target"
{hooks}
[[rule]]
id = "mine"
tools = ["cli_mine", "reach"]
action = "allow"
profile = "search"
limits = {{ timeout = "20s" }}
why = "this test calls it"
matches = [{{ tool = "cli_mine" }}, {{ tool = "reach" }}]
not_matches = [{{ tool = "hook" }}]
[[rule]]
id = "hooks"
tools = ["hook"]
action = "allow"
profile = "bash"
limits = {{ timeout = "10s" }}
why = "scripts of the operator's own"
matches = [{{ tool = "hook" }}]
not_matches = [{{ tool = "reach" }}]
"#
    )
}

const PROFILE: &str = r#"schema = 1
name = "search"
extends = "bash"
description = "a shell that reaches the laboratory"
network = { class = "allow-list", why = "the laboratory" }
[[egress]]
id = "lab"
nets = ["10.77.0.0/24"]
ports = [80, 8080]
why = "servers that are ours"
"#;

fn configuration(hooks: &str) -> tempfile::TempDir {
    let directory = own("on = [\"cli_mine\"]", &searching(hooks));
    let path = directory.path().join("sandbox-profiles");
    std::fs::create_dir(&path).expect("made");
    std::fs::write(path.join("search.toml"), PROFILE).expect("written");
    let audit = directory.path().join("log/audit.jsonl");
    let server = directory.path().join("cofferdam.toml");
    let text = format!(
        "schema = 1\n[tools]\non = [\"cli_mine\"]\n[audit]\nfile = \"{}\"\n",
        audit.display()
    );
    std::fs::write(server, text).expect("written");
    directory
}

fn tools_recorded(directory: &Path) -> Vec<String> {
    let log = std::fs::read_to_string(directory.join("log/audit.jsonl")).expect("a log");
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_call = |line: &Value| line["outcome"].is_string();
    lines.filter(is_call).filter_map(|line| line["tool"].as_str().map(str::to_owned)).collect()
}

/// Looks for port 80 of the target, and with `-n` for that of another host too.
const SEARCH: &str = r#"[[tool.hook]]
at = "reach"
script = '''
read -r call; target=${call#*'"target":"'}; target=${target%%'"'*}
[[ $call != *'"-n"'* ]] || { (: </dev/tcp/10.77.0.10/80) && echo reached; exit 1; }
(: </dev/tcp/$target/80) 2>/dev/null || { echo "Host unreachable: $target"; exit 1; }
'''
timeout = "5s"
why = "a target that is off takes long"
"#;

#[test]
fn a_reach_hook_reaches_only_the_target() {
    let check = r#"[[tool.hook]]
at = "check"
script = '''read -r call; [[ $call != *10.77.0.12* ]] || { echo "not that one"; exit 1; }'''
why = "one is not to be touched"
"#;
    // In the file it stands before the check.
    let directory = configuration(&format!("{SEARCH}{check}"));
    let workspace = tempfile::tempdir().expect("a directory");
    let Some(mut server) = in_front_of_the_lab(directory.path(), workspace.path()) else { return };
    let answer = asked(&mut server, "cli_mine", json!({"target": "10.77.0.10"}));
    assert_eq!(
        (&answer["stdout"], &answer["error"]),
        (&json!("10.77.0.10\n"), &Value::Null),
        "{answer}"
    );

    let answer = asked(&mut server, "cli_mine", json!({"target": "10.77.0.11"}));
    assert_eq!(
        (&answer["error_type"], &answer["error"], &answer["stdout"]),
        (&json!("validation_error"), &json!("cli_mine: Host unreachable: 10.77.0.11"), &json!("")),
        "{answer}"
    );
    let way = &answer["metadata"]["error_context"]["recovery_suggestion"];
    assert_eq!(way, "Check network connectivity and firewall rules.");

    // The script's cell reaches the target of the call; 10.77.0.10 answers, and its profile allows it.
    let arguments = json!({"target": "10.77.0.11", "extra_args": ["-n"]});
    let answer = asked(&mut server, "cli_mine", arguments);
    assert_eq!(answer["error"], "cli_mine: the target does not answer", "{answer}");
    let arguments = json!({"target": "10.77.0.10", "extra_args": ["-n"]});
    let answer = asked(&mut server, "cli_mine", arguments);
    assert_eq!(answer["error"], "cli_mine: reached", "the control: {answer}");

    let answer = asked(&mut server, "cli_mine", json!({"target": "10.77.0.12"}));
    assert_eq!(answer["error"], "cli_mine: not that one", "{answer}");
    assert_eq!(server.close(), Some(0));
    let hook = ["hook:cli_mine", "reach:cli_mine"];
    let [check, search] = hook;
    let expected = [check, search, "cli_mine", check, search, check, search, check, search, check];
    assert_eq!(tools_recorded(directory.path()), expected);
}

#[test]
fn a_search_reaches_no_more_than_the_call_may() {
    // The tool's profile allows port 8080 alone; the search may use 80 by its rule.
    let run = |port: u16| {
        let directory = configuration(SEARCH);
        let policy = directory.path().join("policies/mine.toml");
        let text = std::fs::read_to_string(&policy).expect("read");
        let text =
            text.replace("tools = [\"cli_mine\", \"reach\"]", "tools = [\"reach\"]").replace(
                "matches = [{ tool = \"cli_mine\" }, { tool = \"reach\" }]",
                "matches = [{ tool = \"reach\" }]",
            );
        let rule = r#"
[[rule]]
id = "tool"
tools = ["cli_mine"]
action = "allow"
profile = "tool"
limits = { timeout = "20s" }
why = "this test calls it"
matches = [{ tool = "cli_mine" }]
not_matches = [{ tool = "hook" }]
"#;
        std::fs::write(&policy, text + rule).expect("written");
        let profile = PROFILE.replace("\"search\"", "\"tool\"");
        let profile = profile.replace("ports = [80, 8080]", &format!("ports = [{port}]"));
        std::fs::write(directory.path().join("sandbox-profiles/tool.toml"), profile)
            .expect("written");
        let search = PROFILE.replace("ports = [80, 8080]", "ports = [80]");
        std::fs::write(directory.path().join("sandbox-profiles/search.toml"), search)
            .expect("written");
        let workspace = tempfile::tempdir().expect("a directory");
        let mut server = in_front_of_the_lab(directory.path(), workspace.path())?;
        let answer = asked(&mut server, "cli_mine", json!({"target": "10.77.0.10"}));
        assert_eq!(server.close(), Some(0));
        Some(answer)
    };
    let Some(answer) = run(8080) else { return };
    let error = "the operator's reach hook cannot run: nothing that its profile `search` reaches is within what the \
        call may reach; the call was not made";
    assert_eq!((&answer["error"], &answer["stdout"]), (&json!(error), &json!("")), "{answer}");
    let answer = run(80).expect("as before");
    assert_eq!(answer["stdout"], "10.77.0.10\n", "the control: {answer}");
}

#[test]
fn a_reach_hook_needs_a_rule_and_a_network() {
    let refused = |from: &str, to: &str| {
        let directory = configuration(SEARCH);
        let policy = directory.path().join("policies/mine.toml");
        let text = std::fs::read_to_string(&policy).expect("read");
        assert!(text.contains(from));
        std::fs::write(&policy, text.replace(from, to)).expect("written");
        let mut command = std::process::Command::new(PROGRAM);
        command.arg("--config").arg(directory.path()).arg("serve");
        let output = command.stdin(std::process::Stdio::null()).output().expect("it starts");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), error)
    };
    let (code, error) = refused("\"cli_mine\", \"reach\"]", "\"cli_mine\"]");
    assert_eq!(code, Some(125), "{error}");
    let (code, error) = refused("profile = \"search\"", "profile = \"bash\"");
    assert_eq!(code, Some(125), "{error}");
    let text = "`cli_mine` looks for its target under `bash`, which has no network";
    assert!(error.contains(text), "{error}");
    let (code, error) = refused("egress = \"only\"", "");
    assert_eq!(code, Some(125), "{error}");
    let text = "a hook at `reach` is for tools with a field that has `egress = \"only\"`";
    assert!(error.contains(text), "{error}");
    // Without a change the server starts.
    let directory = configuration(SEARCH);
    let server = Server::start(&["--config", &directory.path().display().to_string()]);
    assert_eq!(server.close(), Some(0));
}
