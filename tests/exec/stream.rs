//! Output is heard while the command runs.

use serde_json::{Value, json};

use super::refusal;
use super::server::{PATIENCE, Server};

fn stream(server: &mut Server, command: &str, size: u32) -> u64 {
    let arguments = json!({"command": command, "buffer_size": size});
    let params = json!({
        "name": "bash_exec_stream", "arguments": arguments, "_meta": {"progressToken": "live"}
    });
    server.request("tools/call", params)
}

fn hear(server: &Server) -> Value {
    server.lines.recv_timeout(PATIENCE).expect("something is told")
}

#[test]
fn output_is_told_while_the_command_runs_and_all_of_it_in_the_result() {
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
    // It waits for this, so that what was heard was heard while it ran.
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
fn no_character_is_cut_and_no_notification_is_longer_than_asked() {
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
    let told = refusal(&mut server, "bash_exec_stream", small);
    assert_eq!(told, "bash_exec_stream: `buffer_size`: expected 16 to 65536");
    assert_eq!(server.close(), Some(0));
}
