//! Output streaming: a client gets output of a command while it runs.

use serde_json::{Value, json};

use super::refusal;
use crate::server::{Server, patience::patience};

fn stream(server: &mut Server, command: &str, size: u32) -> u64 {
    let arguments = json!({"command": command, "buffer_size": size});
    let params = json!({
        "name": "bash_exec_stream", "arguments": arguments, "_meta": {"progressToken": "live"}
    });
    server.request("tools/call", params)
}

fn hear(server: &Server) -> Value {
    server.lines.recv_timeout(patience()).expect("a notification")
}

#[test]
fn output_is_streamed_while_the_command_runs() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().display().to_string();
    let mut server = Server::start(&["--workspace", &path, "--tools", "exec"]);
    let command = "echo one; until [ -e go ]; do sleep 0.05; done; echo two >&2";
    let call = stream(&mut server, command, 4096);
    let first = hear(&server);
    assert_eq!(
        (&first["method"], &first["params"]["progressToken"], &first["params"]["message"]),
        (&json!("notifications/progress"), &json!("live"), &json!("one\n"))
    );
    // The command waits for this, so the output before it came while it ran.
    std::fs::write(directory.path().join("go"), "").expect("written");
    assert_eq!(hear(&server)["params"]["message"], "[stderr] two\n");
    let answer = hear(&server);
    assert_eq!(answer["id"], call);
    let content = &answer["result"]["structuredContent"];
    assert_eq!(
        (&content["stdout"], &content["stderr"], &content["exit_code"]),
        (&json!("one\n"), &json!("two\n"), &json!(0))
    );
    assert_eq!(server.close(), Some(0));
}

#[test]
fn log_messages_carry_output_at_a_set_level() {
    let mut server = Server::start(&["--tools", "exec"]);
    let mut set = |level: &str| {
        let id = server.request("logging/setLevel", json!({"level": level}));
        server.answer(id)
    };
    let bad = set("loud");
    assert_eq!((&bad["error"]["code"], bad.get("result")), (&json!(-32602), None), "{bad}");
    assert_eq!(set("info")["result"], json!({}));
    let run = json!({"command": "echo one; sleep 0.2; echo two >&2"});
    let call = server.call("bash_exec_stream", run.clone());
    let output = |stream: &str, text: &str| json!({"level": "info", "logger": "bash_exec_stream", "data": {"request": call, stream: text}});
    for expected in [output("stdout", "one\n"), output("stderr", "two\n")] {
        let line = hear(&server);
        assert_eq!(
            (&line["method"], &line["params"]),
            (&json!("notifications/message"), &expected)
        );
    }
    assert_eq!(hear(&server)["id"], call, "before the result, and none after it");
    let id = server.request("logging/setLevel", json!({"level": "warning"}));
    assert_eq!(server.answer(id)["result"], json!({}));
    let call = server.call("bash_exec_stream", run);
    assert_eq!(hear(&server)["id"], call, "output is no warning");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn log_messages_have_a_bound_and_the_result_has_all() {
    let mut server = Server::start(&["--tools", "exec"]);
    let id = server.request("logging/setLevel", json!({"level": "debug"}));
    server.answer(id);
    // 200 chunks.
    let run = json!({"command": "printf 'x%.0s' {1..3200}", "buffer_size": 16});
    let call = server.call("bash_exec_stream", run);
    let mut heard = 0;
    let answer = loop {
        let line = hear(&server);
        if line["id"] == call {
            break line;
        }
        heard += 1;
    };
    assert_eq!(heard, 100);
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "x".repeat(3200));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn notifications_are_bounded_and_cut_no_character() {
    let mut server = Server::start(&["--tools", "exec"]);
    let call = stream(&mut server, "printf 'é%.0s' {1..20}", 17);
    let mut heard = Vec::new();
    let answer = loop {
        let line = hear(&server);
        if line["id"] == call {
            break line;
        }
        heard.push(line["params"]["message"].as_str().unwrap_or_default().to_owned());
    };
    assert!(heard.iter().all(|text| text.len() <= 17), "{heard:?}");
    assert_eq!(heard.concat(), "é".repeat(20));
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "é".repeat(20));
    let small = json!({"command": "true", "buffer_size": 1});
    let reply = refusal(&mut server, "bash_exec_stream", small);
    assert_eq!(reply, "bash_exec_stream: `buffer_size`: expected 16 to 65536");
    assert_eq!(server.close(), Some(0));
}
