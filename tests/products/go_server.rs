//! The examples of the Go server's design for `bash`: its request and answer, its session, its time, its nested server
//! and its network. The file `config.json` has tests in `config_json`, and a nested server with its socket in
//! `grants/nested`.
#![expect(clippy::indexing_slicing, reason = "a JSON value without the key is null")]

use std::io;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::server::{PROGRAM, Server};

fn bash(server: &mut Server, arguments: Value) -> (String, Value) {
    let result = server.result("bash", arguments);
    let text = result["content"][0]["text"].as_str().unwrap_or_default().to_owned();
    assert_eq!(result["content"][0]["type"], "text", "{result}");
    (text, result["structuredContent"].clone())
}

/// "Normal Command Execution": `{"name": "bash", "arguments": {"command": "ls"}}` is answered with the names.
#[test]
fn a_normal_command_is_answered_with_its_output() {
    let mut server = Server::start(&[]);
    bash(&mut server, json!({"command": "touch file1 file2"}));
    let (text, fields) = bash(&mut server, json!({"command": "ls"}));
    assert!(text.starts_with("file1\nfile2\n"), "{text}");
    assert_eq!(fields["stdout"], "file1\nfile2\n");
    assert_eq!(server.close(), Some(0));
}

/// "Session Management" and "Session Persistence": one process of bash, whose state stays until `restart`.
#[test]
fn the_session_keeps_its_state_until_it_is_restarted() {
    let mut server = Server::start(&[]);
    bash(&mut server, json!({"command": "export STATE=kept; mkdir d; cd d"}));
    let look = "echo $STATE $PWD; echo error >&2; exit_with() { return $1; }; exit_with 3";
    let (_, fields) = bash(&mut server, json!({"command": look}));
    let found = (&fields["stdout"], &fields["stderr"], &fields["exit_code"]);
    assert_eq!(found, (&json!("kept /workspace/d\n"), &json!("error\n"), &json!(3)));
    bash(&mut server, json!({"restart": true}));
    let (_, fields) = bash(&mut server, json!({"command": "echo [$STATE] $PWD"}));
    assert_eq!(fields["stdout"], "[] /workspace\n");
    // Without a nested server there is nothing of one, and nothing to detect.
    let nested = "echo \"[$MCP_NESTED$MCP_SOCKET_DIR$MCP_SKILLS_SOCKET]\"; ls -d /tmp/mcp-sockets";
    let (_, fields) = bash(&mut server, json!({"command": nested}));
    assert_eq!((&fields["stdout"], &fields["exit_code"]), (&json!("[]\n"), &json!(2)));
    assert_eq!(server.close(), Some(0));
}

/// "Timeout Handling": 600 seconds by default, and an endless loop does not hang the server.
#[test]
fn an_endless_loop_ends_at_its_time() {
    let mut server = Server::start(&[]);
    let id = server.request("tools/list", json!({}));
    let tools = server.answer(id)["result"]["tools"].as_array().cloned().unwrap_or_default();
    let bash_tool = tools.iter().find(|tool| tool["name"] == "bash").cloned().unwrap_or_default();
    let schema = &bash_tool["inputSchema"]["properties"]["timeout"];
    assert_eq!(schema["default"], 600, "{bash_tool}");
    let (_, fields) = bash(&mut server, json!({"command": "while :; do :; done", "timeout": 1}));
    assert_eq!(fields["outcome"], "timeout", "{fields}");
    let (_, fields) = bash(&mut server, json!({"command": "echo again"}));
    assert_eq!(fields["stdout"], "again\n");
    assert_eq!(server.close(), Some(0));
}

/// "Network Mode" has no authentication. Here raw TCP stays on loopback, and the answer names the way out.
#[test]
fn a_network_without_authentication_is_refused_beyond_loopback() -> io::Result<()> {
    for address in ["0.0.0.0:3000", "[::]:3000", "192.0.2.1:3000"] {
        let mut command = Command::new(PROGRAM);
        let output = command.args(["serve", "--tcp", address]).stdin(Stdio::null()).output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        let expected = format!(
            "cofferdam: --tcp: `{address}` can be reached from elsewhere, and raw TCP has no token\n\
             hint: use --http with a token and TLS, or a tunnel: ssh -L 3000:127.0.0.1:3000 HOST\n"
        );
        assert_eq!((output.status.code(), error.as_ref()), (Some(125), expected.as_str()));
    }
    Ok(())
}
