//! The operator's token: what it alone may do, and what it sees of the configuration.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::client::{ALICE, Answer, BOB, Server, call, initialize, request};

const JSON: (&str, &str) = ("content-type", "application/json");

/// A server with a token of a client and one of the operator.
fn server() -> Server {
    let toml = "[http]\nsessions = 7\n\
                [[http.tokens]]\nclient = \"alice\"\nfile = \"HOME/alice\"\n\
                [[http.tokens]]\nclient = \"ops\"\nfile = \"HOME/ops\"\noperator = true\n";
    Server::prepared(toml, &[], |home, _| {
        for (name, token) in [("alice", ALICE), ("ops", BOB)] {
            std::fs::write(home.join(name), token).expect("written");
            let mode = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(home.join(name), mode).expect("ours");
        }
    })
}

fn ask(server: &Server, token: &str, method: &str, path: &str, body: &str) -> Answer {
    let bearer = format!("Bearer {token}");
    server.ask(method, path, &[JSON, ("authorization", &bearer)], body)
}

#[test]
fn only_an_operator_can_switch_a_tool() {
    let server = server();
    let calculate = || {
        let body = "{\"expression\": \"6*7\"}";
        ask(&server, ALICE, "POST", "/tools/calculate/execute", body)
    };
    let switch = |token: &str, tool: &str, to: &str| {
        ask(&server, token, "POST", &format!("/tools/{tool}/{to}"), "")
    };
    assert_eq!(calculate().message()["result"], "42");
    for to in ["disable", "enable", "reset"] {
        let refused = switch(ALICE, "calculate", to);
        assert_eq!((refused.status, &refused.message()["error"]), (403, &json!("forbidden")));
    }
    let off = switch(BOB, "calculate", "disable");
    let output = json!({"tool": "calculate", "enabled": false, "changed": true});
    assert_eq!((off.status, off.message()), (200, output), "{off:?}");
    assert_eq!(calculate().status, 403);
    let listed = ask(&server, ALICE, "GET", "/tools", "").message();
    let is_listed = |listed: &Value| {
        listed["tools"].as_array().is_some_and(|all| all.iter().any(|it| it["name"] == "calculate"))
    };
    assert!(listed["tools"].is_array() && !is_listed(&listed), "{listed}");
    assert_eq!(switch(BOB, "calculate", "enable").message()["changed"], json!(true));
    assert_eq!(switch(BOB, "calculate", "enable").message()["changed"], json!(false));
    assert_eq!(calculate().message()["result"], "42");
    assert!(is_listed(&ask(&server, ALICE, "GET", "/tools", "").message()));
    assert_eq!(switch(BOB, "nothing", "disable").status, 404);
    assert_eq!(switch(BOB, "bash_exec", "enable").status, 403, "its group is not shown");
    assert_eq!(switch(BOB, "calculate", "reset").status, 409, "it has no breaker");
    assert_eq!(ask(&server, BOB, "GET", "/tools/calculate/disable", "").status, 405);
}

#[test]
fn an_operators_token_runs_nothing() {
    let server = server();
    for (path, body) in [
        ("/run", json!({"command": "id"})),
        ("/tools/calculate/execute", json!({"expression": "1"})),
        ("/mcp", initialize()),
        ("/mcp", call("bash", json!({"command": "id"}))),
    ] {
        let refused = ask(&server, BOB, "POST", path, &body.to_string());
        assert_eq!(refused.status, 403, "{path} {refused:?}");
        let allowed = ask(&server, ALICE, "POST", path, &body.to_string());
        assert_ne!(allowed.status, 403, "{path} {allowed:?}");
    }
}

#[test]
fn the_operator_sees_the_configuration_redacted() {
    let server = server();
    assert_eq!(ask(&server, ALICE, "GET", "/config", "").status, 403);
    assert_eq!(server.ask("GET", "/config", &[], "").status, 401);
    let shown = ask(&server, BOB, "GET", "/config", "");
    assert_eq!(shown.status, 200, "{shown:?}");
    let values = shown.message();
    let of = |key: &str| {
        let found =
            values["values"].as_array().and_then(|all| all.iter().find(|it| it["key"] == key));
        found.cloned().unwrap_or_default()
    };
    assert_eq!(
        of("http.sessions"),
        json!({"key": "http.sessions", "value": "7", "source": "file"})
    );
    assert_eq!(of("http.tokens")["value"], "***");
    assert_eq!(of("exec.working_dir")["value"], "/workspace");
    for secret in [ALICE, BOB, "/alice", "/ops", "cofferdam-test-", "cofferdam.toml"] {
        assert!(!shown.body.contains(secret), "{secret}: {}", shown.body);
    }
}

#[test]
fn events_report_health_until_the_server_ends() {
    let mut server = server();
    let bearer = format!("Bearer {ALICE}");
    let mut connection = server.connect();
    connection.send(&request("GET", "/events", &[("authorization", &bearer)], ""));
    let mut text = String::new();
    let mut piece = [0; 4096];
    while !text.contains("\"type\":\"metrics\"") {
        let length = connection.0.read(&mut piece).expect("more of the stream");
        assert_ne!(length, 0, "{text}");
        text.push_str(&String::from_utf8_lossy(piece.get(..length).unwrap_or_default()));
    }
    assert!(text.contains("content-type: text/event-stream"), "{text}");
    let events: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
        .collect();
    assert_eq!(events.first(), Some(&json!({"type": "health", "data": {"status": "healthy"}})));
    server.terminate();
    let mut rest = Vec::new();
    connection.0.read_to_end(&mut rest).expect("the stream ends");
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn the_openapi_document_lists_exactly_the_routes() {
    let server = server();
    let document = ask(&server, ALICE, "GET", "/openapi.json", "").message();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().expect("paths");
    let about = ask(&server, ALICE, "GET", "/", "").message();
    let named = about["endpoints"].as_array().expect("a list").len();
    assert_eq!(named, paths.len() + 1, "/mcp is the one that it has not");
    for (path, methods) in paths {
        let path = path.replace("{name}", "calculate");
        for method in methods.as_object().expect("methods").keys() {
            let token = if path == "/config" || method == "post" { BOB } else { ALICE };
            if path == "/events" {
                continue;
            }
            let status = ask(&server, token, &method.to_uppercase(), &path, "").status;
            assert!(status != 404 && status != 405, "{method} {path}: {status}");
        }
        let other = ask(&server, ALICE, "PATCH", &path, "").status;
        assert!(other == 405 || other == 403, "{path}: {other}");
    }
}
