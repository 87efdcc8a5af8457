//! Requests and results that the framework has in another form than MCP, on standard input and output.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use super::{copied, served};
use crate::server::{self, Server};

fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("its mode");
}

/// The result of a request, or its error.
fn answer(server: &mut Server, method: &str, params: Value) -> Value {
    let id = server.request(method, params);
    let answer = server.answer(id);
    answer.get("error").unwrap_or(&answer["result"]).clone()
}

#[test]
fn a_resource_is_read_and_watched_by_its_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, &[]);
    let uri = "file://./resources/note.txt";
    let note = json!([{"uri": uri, "mimeType": "text/plain", "text": "A note\n"}]);
    let by_uri = answer(&mut server, "resources/read", json!({"uri": uri}));
    assert_eq!(by_uri["contents"], note);
    for params in [json!({"name": "note"}), json!({"uri": "note"})] {
        assert_eq!(answer(&mut server, "resources/read", params), by_uri);
    }
    // The address counts if both are given, as in the framework.
    let both = answer(&mut server, "resources/read", json!({"uri": "said", "name": "note"}));
    assert_eq!(both["contents"][0]["text"], "as it is");
    let absent = answer(&mut server, "resources/read", json!({"name": "none"}));
    assert_eq!(absent["code"], -32002);
    for params in [json!({}), json!({"name": 1}), json!({"name": ["note"]})] {
        let error = answer(&mut server, "resources/read", params);
        assert_eq!(error["message"], "resources/read: the parameters have another form");
    }
    let subscribed = answer(&mut server, "resources/subscribe", json!({"name": "note"}));
    assert_eq!(subscribed, json!({"subscriptionId": "note"}));
    let ended = answer(&mut server, "resources/unsubscribe", subscribed);
    assert_eq!(ended, json!({}));
}

#[test]
fn a_request_by_name_needs_the_remote_token_too() {
    let directory = tempfile::tempdir().expect("a directory");
    copied(directory.path()).expect("a copy");
    let token = "0123456789abcdef0123456789abcdef";
    let mut command = std::process::Command::new(server::PROGRAM);
    command.args(["serve", "--project"]).arg(directory.path()).env("MCPBASH_REMOTE_TOKEN", token);
    let mut server = Server::of(command);
    let refused = answer(&mut server, "resources/read", json!({"name": "note"}));
    assert_eq!(
        (&refused["code"], &refused["message"]),
        (&json!(-32602), &json!("Remote token missing or invalid"))
    );
    let meta = json!({"mcpbash/remoteToken": token});
    let read = answer(&mut server, "resources/read", json!({"name": "note", "_meta": meta}));
    assert_eq!(read["contents"][0]["text"], "A note\n");
}

#[test]
fn a_prompt_has_its_text_arguments_role_and_metadata() {
    let directory = tempfile::tempdir().expect("a directory");
    copied(directory.path()).expect("a copy");
    let prompts = directory.path().join("prompts");
    for (name, role) in [("reply", "assistant"), ("rules", "system")] {
        let text = "I am {{name}}.";
        write(&prompts.join(format!("{name}.txt")), text);
        let meta = json!({"name": name, "description": "Is", "role": role, "metadata": {"a": 1}});
        write(&prompts.join(format!("{name}.meta.json")), &meta.to_string());
    }
    let mut server = Server::start(&["--project", directory.path().to_str().expect("UTF-8")]);
    let arguments = json!({"name": "$(id)", "other": "x"});
    for (name, role) in [("reply", "assistant"), ("rules", "user")] {
        let got = answer(&mut server, "prompts/get", json!({"name": name, "arguments": arguments}));
        let content = json!({"type": "text", "text": "I am $(id)."});
        let expected = json!({
            "description": "Is", "messages": [{"role": role, "content": content}], "_meta": {"a": 1},
            "text": "I am $(id).", "arguments": arguments, "metadata": {"a": 1},
        });
        assert_eq!(got, expected, "{name}");
    }
    let got = answer(
        &mut server,
        "prompts/get",
        json!({"name": "greeting", "arguments": {"name": "Ada"}}),
    );
    assert_eq!((&got["text"], got.get("metadata")), (&json!("Hello, Ada!\n"), None), "{got}");
    let missing = answer(&mut server, "prompts/get", json!({"name": "greeting"}));
    assert_eq!(missing["code"], -32602);
}
