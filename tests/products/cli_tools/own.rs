//! An operator's own commands, and what holds for every declared one.

use serde_json::json;

use super::{asked, names, serving};
use crate::server::{PROGRAM, patience::patience};

/// A configuration with tools of an operator's own: `[[tool]]`, `[[rule]]` and `[tools]` as given.
pub(super) fn own(tools: &str, policy: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let server = format!("schema = 1\n[tools]\n{tools}\n");
    std::fs::write(directory.path().join("cofferdam.toml"), server).expect("written");
    std::fs::create_dir(directory.path().join("policies")).expect("made");
    let policy = format!("schema = 1\n{policy}");
    std::fs::write(directory.path().join("policies/mine.toml"), policy).expect("written");
    directory
}

/// `cli_mine`, which runs `program` with one flag and one file, under `limits` of the profile bash.
fn mine(program: &str, limits: &str) -> String {
    format!(
        r#"
[[tool]]
name = "cli_mine"
program = "{program}"
why = "this test calls it"
accepts = [{{ args = ["-c"] }}, {{ with = {{ path = "a" }} }}]
refuses = [{{ args = ["--help"] }}]
[[tool.flag]]
flag = "-c"
why = "bytes"
[[tool.flag]]
flag = "--lines"
arity = 1
equals = true
kind = "int"
range = [0, 5]
why = "an `=` of its own"
[[tool.positional]]
name = "path"
kind = "path"
min = 0
max = 1
why = "the file"

[[rule]]
id = "mine"
tools = ["cli_mine"]
action = "allow"
profile = "bash"
limits = {{ {limits} }}
why = "this test calls it"
matches = [{{ tool = "cli_mine" }}]
not_matches = [{{ tool = "bash" }}]
"#
    )
}

#[test]
fn a_reply_has_a_receipt_and_denials() {
    // unshare(1) makes a namespace, which nothing grants.
    let directory = own("on = [\"cli_mine\"]", &mine("unshare", "timeout = \"20s\""));
    let mut server = serving(directory.path(), None);
    let result = server.result("cli_mine", json!({"extra_args": ["-c"]}));
    let content = &result["structuredContent"];
    let denials = json!([{"syscall": "unshare", "count": 1}]);
    assert_eq!(
        (&content["denials"], &content["error_type"]),
        (&denials, &json!("execution_error"))
    );
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.ends_with("[denied: system call unshare, once; nothing grants it]"), "{text}");
    let receipt = &result["_meta"]["cofferdam/receipt"];
    assert_eq!(
        (&receipt["profile"], &receipt["measured"]["no_new_privs"]),
        (&json!("bash"), &json!(true))
    );
    let refused = server.result("cli_mine", json!({"extra_args": ["-x"]}));
    assert_eq!(refused.get("_meta").and_then(|meta| meta.get("cofferdam/receipt")), None);
    assert_eq!(refused["structuredContent"]["denials"], json!([]));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_program_that_is_not_there_is_not_found() {
    let directory = own("on = [\"cli_mine\"]", &mine("no-such-program", "timeout = \"20s\""));
    let mut server = serving(directory.path(), None);
    let answer = asked(&mut server, "cli_mine", json!({"correlation_id": "c"}));
    let found = (&answer["returncode"], &answer["error_type"], &answer["correlation_id"]);
    assert_eq!(found, (&json!(127), &json!("not_found"), &json!("c")), "{answer}");
    assert_eq!(
        answer["error"],
        "`no-such-program` was not found\n\
         hint: the operator can install no-such-program where its profile looks for it"
    );
    assert_eq!(server.close(), Some(0));
}

#[test]
fn limits_and_full_queues_are_exhausted() {
    let directory = own(
        "on = [\"cli_mine\"]\n[server]\nconcurrency = 1\nqueue = 1",
        &mine("yes", "output = \"64K\", timeout = \"20s\""),
    );
    let mut server = serving(directory.path(), None);
    let reply = asked(&mut server, "cli_mine", json!({}));
    let found = (&reply["returncode"], &reply["error_type"], &reply["error"]);
    let error = json!("yes reached its output limit");
    assert_eq!(found, (&json!(137), &json!("resource_exhausted"), &error), "{found:?}");
    assert_eq!(server.close(), Some(0));
    let sleeping = mine("sleep", "timeout = \"20s\"").replace("kind = \"path\"", "kind = \"text\"");
    // The turns of the server count here, not those of the tool.
    let sleeping = sleeping.replace("program =", "concurrency = 8\nprogram =");
    let directory = own("on = [\"cli_mine\"]\n[server]\nconcurrency = 1\nqueue = 1", &sleeping);
    let mut server = serving(directory.path(), None);
    for _ in 0..3 {
        server.call("cli_mine", json!({"path": "1000"}));
    }
    // One runs, one waits, and only the one that is refused is answered.
    let answer = server.lines.recv_timeout(patience()).expect("an answer in time");
    let reply = &answer["result"]["structuredContent"];
    let error = "the queue is full: 1 calls run and 1 wait\nhint: call again when one has ended";
    assert_eq!(
        (&reply["error_type"], &reply["error"]),
        (&json!("resource_exhausted"), &json!(error))
    );
    assert_eq!(server.close(), Some(0));
}

#[test]
fn an_operators_tool_is_listed_and_called() {
    let directory = own("on = [\"cli_mine\"]", &mine("wc", "timeout = \"20s\""));
    let workspace = tempfile::tempdir().expect("a directory");
    std::fs::write(workspace.path().join("a"), "12345").expect("written");
    let mut server = serving(directory.path(), Some(workspace.path()));
    let id = server.request("tools/list", json!({}));
    let listed = server.answer(id)["result"]["tools"].clone();
    let tools = listed.as_array().cloned().unwrap_or_default();
    // No rule of this policy allows the others that need a cell.
    assert_eq!(names(&mut server), ["set_precision", "sandbox_rules", "get_tool_info", "cli_mine"]);
    let denied = server.result("bash", json!({"command": "true"}));
    let text = denied["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.starts_with("[denied by rule `default-deny`: no rule allows `bash`]"), "{text}");
    let tool = tools.iter().find(|tool| tool["name"] == "cli_mine").cloned().unwrap_or_default();
    assert_eq!(tool["description"], "this test calls it");
    assert_eq!(tool["annotations"]["readOnlyHint"], false);
    let properties = tool["inputSchema"]["properties"].as_object().cloned().unwrap_or_default();
    let mut names: Vec<&str> = properties.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["correlation_id", "dry_run", "extra_args", "path", "stdin", "timeout_sec"]);
    assert_eq!(
        properties["extra_args"]["description"],
        "Flags, one a word, by exact name: -c, --lines=0..5."
    );
    let cases = [
        (json!({"path": "a", "extra_args": ["-c"]}), json!("5 /workspace/a\n"), json!(null)),
        (json!({"stdin": "123", "extra_args": "-c"}), json!("3\n"), json!(null)),
        (
            json!({"extra_args": ["--line=1"]}),
            json!(""),
            json!(
                "cli_mine: `--line=1` is not a flag on this tool's list\n\
                 hint: did you mean `--lines`? extra_args takes -c, --lines"
            ),
        ),
    ];
    for (arguments, stdout, error) in cases {
        let answer = asked(&mut server, "cli_mine", arguments);
        assert_eq!((&answer["stdout"], &answer["error"]), (&stdout, &error), "{answer}");
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn tools_can_be_disabled_and_typos_are_reported() {
    let directory = own("off = [\"bash\", \"set_precision\"]", "");
    std::fs::remove_dir_all(directory.path().join("policies")).expect("removed");
    let mut server = serving(directory.path(), None);
    assert_eq!(names(&mut server), ["calculate", "calculate_advanced", "sandbox_rules"]);
    for tool in ["bash", "set_precision"] {
        let result = server.result(tool, json!({}));
        assert_eq!(
            (&result["content"][0]["text"], &result["isError"]),
            (
                &json!(format!(
                    "[`{tool}` is switched off]\n\
                     hint: it is under `[tools] off` in the operator's cofferdam.toml"
                )),
                &json!(true)
            )
        );
    }
    let result = server.result("calculate", json!({"expression": "6*7"}));
    assert_eq!(result["structuredContent"]["result"], "42", "the others work: {result}");
    assert_eq!(server.close(), Some(0));
    for (tools, message) in [
        ("off = [\"bsah\"]", "`tools.off`: no tool `bsah`\nhint: did you mean `bash`?\n"),
        ("on = [\"cli_jqq\"]", "`tools.on`: no tool `cli_jqq`\nhint: did you mean `cli_jq`?\n"),
    ] {
        let directory = own(tools, "");
        let mut command = std::process::Command::new(PROGRAM);
        let command = command.arg("--config").arg(directory.path()).arg("serve");
        let output = command.stdin(std::process::Stdio::null()).output().expect("it starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{error}");
        assert!(error.ends_with(message), "{error}");
    }
}

#[test]
fn duplicate_tool_and_field_names_are_refused() {
    let policy = mine("wc", "timeout = \"20s\"");
    let cases = [
        (policy.replace("cli_mine", "calculate"), "policies: `calculate` is a built-in tool\n"),
        (policy.replace("name = \"path\"", "name = \"stdin\""), "there are two fields `stdin`\n"),
    ];
    for (policy, message) in cases {
        let policy = policy.replace("{ with = { path = \"a\" } }", "{}");
        let directory = own("", &policy);
        let mut command = std::process::Command::new(PROGRAM);
        let command = command.arg("--config").arg(directory.path()).arg("serve");
        let output = command.stdin(std::process::Stdio::null()).output().expect("it starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{error}");
        assert!(error.contains(message), "{error}");
    }
}
