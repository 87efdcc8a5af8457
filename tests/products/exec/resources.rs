//! Resources: read, subscribed to, completed.

use serde_json::{Value, json};

use super::{ALL, fields};
use crate::server::{Server, patience::patience};

fn uris(server: &mut Server) -> Vec<String> {
    let id = server.request("resources/list", json!({}));
    let answer = server.answer(id);
    let listed = answer["result"]["resources"].as_array().cloned().unwrap_or_default();
    listed.iter().map(|one| one["uri"].as_str().unwrap_or_default().to_owned()).collect()
}

fn read(server: &mut Server, uri: &str) -> Value {
    let id = server.request("resources/read", json!({"uri": uri}));
    let answer = server.answer(id);
    let content = &answer["result"]["contents"][0];
    assert_eq!((&content["uri"], &content["mimeType"]), (&json!(uri), &json!("application/json")));
    serde_json::from_str(content["text"].as_str().unwrap_or_default()).unwrap_or_default()
}

#[test]
fn resources_describe_the_cell_not_the_server() {
    let mut server = Server::start(ALL);
    let all = ["bash://system/info", "bash://env/all", "bash://history/recent"];
    assert_eq!(uris(&mut server), all);
    assert_eq!(read(&mut server, "bash://system/info")["hostname"], "cofferdam");
    let environment = read(&mut server, "bash://env/all");
    assert_eq!(environment["HOME"], "/tmp/home");
    assert_eq!(environment.get("SECRET_OF_THE_CALLER"), None);
    assert_eq!(read(&mut server, "bash://history/recent"), json!([]));
    fields(&mut server, "bash_exec", json!({"command": "echo x"}));
    let mut history = read(&mut server, "bash://history/recent");
    for field in ["timestamp", "duration_ms"] {
        assert_ne!(history[0][field], Value::Null);
        history[0][field] = json!(0);
    }
    let record = json!({
        "timestamp": 0, "command": "echo x", "working_dir": "/workspace", "exit_code": 0,
        "duration_ms": 0, "output_size_bytes": 2
    });
    assert_eq!(history, json!([record]));
    let id = server.request("resources/read", json!({"uri": "bash://none"}));
    assert_eq!(server.answer(id)["error"]["code"], -32002);
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_server_without_their_tools_has_no_resources() {
    let mut server = Server::start(&[]);
    assert_eq!(uris(&mut server), [""; 0]);
    let id = server.request("resources/read", json!({"uri": "bash://env/all"}));
    assert_eq!(server.answer(id)["error"]["code"], -32002);
    assert_eq!(server.close(), Some(0));
}

#[test]
fn history_subscribers_hear_of_each_command() {
    let mut server = Server::start(ALL);
    let uri = json!({"uri": "bash://history/recent"});
    let id = server.request("resources/subscribe", uri.clone());
    assert_eq!(server.answer(id)["result"], json!({}));
    let call = server.call("bash_exec", json!({"command": "true"}));
    let mut heard = [server.lines.recv_timeout(patience()), server.lines.recv_timeout(patience())]
        .map(|line| line.expect("an answer and a notification"));
    heard.sort_by_key(|line| line["id"] == call);
    let [note, answer] = heard;
    assert_eq!(note["method"], "notifications/resources/updated");
    assert_eq!((&note["params"], &answer["id"]), (&uri, &json!(call)));
    let id = server.request("resources/unsubscribe", uri);
    assert_eq!(server.answer(id)["result"], json!({}));
    let call = server.call("bash_exec", json!({"command": "true"}));
    let ping = server.answer(call);
    assert_eq!(ping["id"], call);
    let id = server.request("ping", json!({}));
    let next = server.lines.recv_timeout(patience()).expect("an answer");
    assert_eq!(next["id"], id, "no other notification");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn every_resource_can_be_subscribed_to() {
    let mut server = Server::start(ALL);
    let mut request = |method: &str, uri: &str| {
        let id = server.request(method, json!({"uri": uri}));
        server.answer(id)
    };
    for uri in ["bash://history/recent", "bash://env/all", "bash://system/info"] {
        assert_eq!(request("resources/subscribe", uri)["result"], json!({}), "{uri}");
    }
    assert_eq!(request("resources/unsubscribe", "bash://env/all")["result"], json!({}));
    assert_eq!(request("resources/subscribe", "bash://none")["error"]["code"], -32002);
    let call = server.call("bash_exec", json!({"command": "true"}));
    let mut heard = [server.lines.recv_timeout(patience()), server.lines.recv_timeout(patience())]
        .map(|line| line.expect("an answer and a notification"));
    heard.sort_by_key(|line| line["id"] == call);
    assert_eq!(heard[0]["params"], json!({"uri": "bash://history/recent"}));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn command_descriptions_are_read_by_name() {
    let mut server = Server::start(ALL);
    let id = server.request("resources/templates/list", json!({}));
    let listed = server.answer(id)["result"]["resourceTemplates"].clone();
    let uris = ["bash://man/{command}", "bash://help/{command}", "bash://which/{command}"];
    let report: Vec<&Value> =
        listed.as_array().into_iter().flatten().map(|one| &one["uriTemplate"]).collect();
    assert_eq!(report, uris);
    let located = read(&mut server, "bash://which/cd");
    assert_eq!(located, json!({"command": "cd", "found": true, "kind": "builtin", "paths": []}));
    let id = server.request("resources/read", json!({"uri": "bash://help/env"}));
    let help = server.answer(id)["result"]["contents"][0].clone();
    assert_eq!(help["mimeType"], "text/plain");
    assert!(help["text"].as_str().unwrap_or_default().contains("--ignore-environment"), "{help}");
    let id = server.request("resources/read", json!({"uri": "bash://help/no-such"}));
    let absent = server.answer(id)["error"].clone();
    assert_eq!(
        (&absent["code"], &absent["message"]),
        (&json!(-32002), &json!("no resource `bash://help/no-such`"))
    );
    let encoded = read(&mut server, "bash://which/%5B");
    assert_eq!((&encoded["command"], &encoded["kind"]), (&json!("["), &json!("builtin")));
    assert_eq!(read(&mut server, "bash://which/no%2Bsuch")["command"], "no+such");
    // Names that no resource has, in any spelling.
    let names = ["man/no-such", "man/%2Fetc%2Fpasswd", "man/", "man/-k", "which/%0a", "help/%2D-x"];
    for name in names.into_iter().chain(["which/%zz", "which/%ff", "which/", "which/%00", "none/x"])
    {
        let id = server.request("resources/read", json!({"uri": format!("bash://{name}")}));
        assert_eq!(server.answer(id)["error"]["code"], -32002, "{name}");
    }
    // Without the tool that answers there is nothing to read.
    let mut server = Server::start(&["--tools", "history"]);
    let id = server.request("resources/read", json!({"uri": "bash://which/cd"}));
    assert_eq!(server.answer(id)["error"]["code"], -32002);
    assert_eq!(server.close(), Some(0));
}

#[test]
fn names_of_commands_are_completed_for_the_manual() {
    let mut server = Server::start(ALL);
    let arguments = json!({
        "ref": {"type": "ref/resource", "uri": "bash://man/{command}"},
        "argument": {"name": "command", "value": "mkdi"}
    });
    let mut completed = |request: &Value| {
        let id = server.request("completion/complete", request.clone());
        server.answer(id)
    };
    let all = ["bash://man/{command}", "bash://help/{command}", "bash://which/{command}"];
    for uri in all {
        let mut arguments = arguments.clone();
        arguments["ref"]["uri"] = json!(uri);
        let values = completed(&arguments)["result"]["completion"]["values"].clone();
        assert!(values.as_array().is_some_and(|all| all.contains(&json!("mkdir"))), "{values}");
    }
    let mut other = arguments;
    other["argument"]["name"] = json!("section");
    let refused = completed(&other)["error"].clone();
    let reason = format!("what is completed is `command` of {}", all.join(", "));
    assert_eq!((&refused["code"], &refused["message"]), (&json!(-32602), &json!(reason)));
    let every = json!({
        "ref": {"type": "ref/resource", "uri": "bash://man/{command}"},
        "argument": {"name": "command", "value": ""}
    });
    let id = server.request("completion/complete", every);
    let completion = server.answer(id)["result"]["completion"].clone();
    let count = completion["values"].as_array().map(Vec::len);
    assert_eq!((count, &completion["hasMore"]), (Some(100), &json!(true)));
    assert_eq!(server.close(), Some(0));
}
