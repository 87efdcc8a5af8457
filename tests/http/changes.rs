//! Notifications of changed lists: after the operator has switched a tool, and after a project has changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{ALICE, Connection, Server, bearer, patience, request, secret};

const OPERATOR: &str = "ops-0123456789abcdef0123456789abcdef00";
const CAROL: &str = "carol-0123456789abcdef0123456789abcdef";
const TOOLS: &str = "notifications/tools/list_changed";
const RESOURCES: &str = "notifications/resources/list_changed";
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// A stream of events.
struct Events {
    connection: Connection,
    text: String,
}

impl Events {
    /// The messages up to the first for which `is_last` holds.
    fn until(&mut self, is_last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut found = Vec::new();
        loop {
            while let Some(at) = self.text.find('\n') {
                let line: String = self.text.drain(..=at).collect();
                let Some(data) = line.trim().strip_prefix("data:") else { continue };
                let Ok(message) = serde_json::from_str::<Value>(data) else { continue };
                let is_end = is_last(&message);
                found.push(message);
                if is_end {
                    return found;
                }
            }
            let mut piece = [0; 4096];
            let length = self.connection.0.read(&mut piece).expect("more of the stream");
            assert_ne!(length, 0, "the stream ended: {found:?} {}", self.text);
            self.text.push_str(&String::from_utf8_lossy(piece.get(..length).unwrap_or_default()));
        }
    }

    /// Names and addresses of the notifications up to one of this name.
    fn notifications_until(&mut self, last: &str) -> Vec<Value> {
        let output = self.until(|message| message["method"] == last).into_iter();
        output.map(|one| json!([one["method"], one["params"]["uri"]])).collect()
    }
}

/// Opens a session, and the stream of its notifications.
fn listening(server: &Server, token: &str) -> (String, Events) {
    let bearer = bearer(token);
    let id = server.session(&[("authorization", &bearer)]);
    let mut connection = server.connect();
    let headers = [
        ("authorization", bearer.as_str()),
        ("mcp-session-id", id.as_str()),
        ("accept", "text/event-stream"),
    ];
    connection.send(&request("GET", "/mcp", &headers, ""));
    (id, Events { connection, text: String::new() })
}

/// Opens a stream of the revision without sessions.
fn subscribed(server: &Server, token: &str, wanted: &Value) -> Events {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    });
    let params = json!({"notifications": wanted, "_meta": meta});
    let message =
        json!({"jsonrpc": "2.0", "id": 9, "method": "subscriptions/listen", "params": params});
    let headers = [
        ("authorization", &*bearer(token)),
        ("accept", "application/json, text/event-stream"),
        ("content-type", "application/json"),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "subscriptions/listen"),
    ];
    let mut connection = server.connect();
    connection.send(&request("POST", "/mcp", &headers, &message.to_string()));
    let mut events = Events { connection, text: String::new() };
    let acknowledged = "notifications/subscriptions/acknowledged";
    let first = events.until(|message| message["method"] == acknowledged);
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(&first[0]["params"]["notifications"], wanted, "{first:?}");
    assert_eq!(first[0]["params"]["_meta"][SUBSCRIPTION], 9, "{first:?}");
    events
}

const POLICY: &str = "schema = 1
extends = \"shipped\"

[[rule]]
id = \"no-sums\"
tools = [\"calculate\"]
action = \"deny\"
clients = [\"carol\"]
why = \"no sums here\"
matches = [{ tool = \"calculate\", client = \"carol\" }]
not_matches = [{ tool = \"calculate\", client = \"alice\" }]
";

/// A server with tokens of two clients and of the operator.
fn server(arguments: &[&str]) -> Server {
    let token = |client: &str, more: &str| {
        format!("[[http.tokens]]\nclient = \"{client}\"\nfile = \"HOME/{client}\"\n{more}")
    };
    let toml = token("alice", "") + &token("carol", "") + &token("ops", "operator = true\n");
    Server::prepared(&toml, arguments, |home, _| {
        for (name, text) in [("alice", ALICE), ("carol", CAROL), ("ops", OPERATOR)] {
            secret(&home.join(name), text);
        }
        let policies = home.join("config/policies");
        fs::create_dir(&policies).expect("a folder");
        fs::write(policies.join("clients.toml"), POLICY).expect("written");
    })
}

fn switch(server: &Server, tool: &str, to: &str) -> Value {
    let path = format!("/tools/{tool}/{to}");
    let bearer = bearer(OPERATOR);
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    server.ask("POST", &path, &headers, "").message()
}

#[test]
fn clients_are_notified_of_a_switched_tool() {
    let server = server(&[]);
    let (_, mut alice) = listening(&server, ALICE);
    let (_, mut carol) = listening(&server, CAROL);
    let mut stream = subscribed(&server, ALICE, &json!({"toolsListChanged": true}));
    assert_eq!(switch(&server, "calculate", "disable")["changed"], true);
    assert_eq!(alice.notifications_until(TOOLS), [json!([TOOLS, null])]);
    let output = stream.until(|message| message["method"] == TOOLS);
    assert_eq!(output.len(), 1, "{output:?}");
    assert_eq!(output[0]["params"]["_meta"][SUBSCRIPTION], 9);
    // The tool is off already: no list changes.
    assert_eq!(switch(&server, "calculate", "disable")["changed"], false);
    assert_eq!(switch(&server, "calculate", "enable")["changed"], true);
    assert_eq!(alice.notifications_until(TOOLS), [json!([TOOLS, null])]);
    assert_eq!(stream.until(|message| message["method"] == TOOLS).len(), 1);
    // The one whose rules leave out what was switched heard nothing until now.
    assert_eq!(switch(&server, "bash", "disable")["changed"], true);
    assert_eq!(alice.notifications_until(TOOLS), [json!([TOOLS, null])]);
    assert_eq!(carol.notifications_until(TOOLS), [json!([TOOLS, null])]);
    assert_eq!(switch(&server, "bash", "enable")["changed"], true);
    assert_eq!(carol.notifications_until(TOOLS), [json!([TOOLS, null])]);
}

fn put(directory: &Path, path: &str, text: &str) {
    let target = directory.join(path);
    let parent = target.parent().expect("a folder");
    fs::create_dir_all(parent).expect("made");
    for folder in parent.ancestors().take_while(|folder| *folder != directory) {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    fs::write(&target, text).expect("written");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o644)).expect("a mode");
}

#[test]
fn clients_of_both_eras_hear_of_changes_of_a_project() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    put(directory.path(), "tools/a/a.sh", "echo one\n");
    put(directory.path(), "resources/r.txt", "one");
    let server = server(&["--project", directory.path().to_str().expect("UTF-8")]);
    let (id, mut session) = listening(&server, ALICE);
    let bearer = bearer(ALICE);
    let of = [("authorization", bearer.as_str()), ("mcp-session-id", id.as_str())];
    let uri = "file://./resources/r.txt";
    let ask = |method: &str, params: Value| {
        let message = json!({"jsonrpc": "2.0", "id": 3, "method": method, "params": params});
        server.mcp(&of, &message).message()
    };
    assert_eq!(ask("resources/subscribe", json!({ "uri": uri }))["result"], json!({}));
    let wanted = json!({"resourcesListChanged": true, "resourceSubscriptions": [uri]});
    let mut stream = subscribed(&server, ALICE, &wanted);
    put(directory.path(), "tools/b/b.sh", "echo two\n");
    assert_eq!(session.notifications_until(TOOLS), [json!([TOOLS, null])]);
    let listed = ask("tools/list", json!({}))["result"]["tools"].clone();
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed}");
    let updated = "notifications/resources/updated";
    put(directory.path(), "resources/r.txt", "two");
    assert_eq!(session.notifications_until(updated), [json!([updated, uri])]);
    // The stream did not subscribe to tools, and each of its messages has its number.
    let output = stream.until(|message| message["method"] == updated);
    let params = json!({"uri": uri, "_meta": {SUBSCRIPTION: 9}});
    assert_eq!(output, [json!({"jsonrpc": "2.0", "method": updated, "params": params})]);
    // The same content and another time, and then a change of a list.
    put(directory.path(), "resources/r.txt", "two");
    put(directory.path(), "tools/b/b.sh", "echo two\n");
    put(directory.path(), "resources/s.txt", "one");
    assert_eq!(session.notifications_until(RESOURCES), [json!([RESOURCES, null])]);
    assert_eq!(stream.notifications_until(RESOURCES), [json!([RESOURCES, null])]);
}

#[test]
fn watches_of_one_client_leave_room_for_others() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let template = r#"{"name": "any", "uriTemplate": "file:///workspace/{path}"}"#;
    put(directory.path(), "resources/any.meta.json", template);
    let server = server(&["--project", directory.path().to_str().expect("UTF-8")]);
    let subscribe = |token: &str, session: &str, number: usize| {
        let bearer = bearer(token);
        let of = [("authorization", bearer.as_str()), ("mcp-session-id", session)];
        let params = json!({"uri": format!("file:///workspace/{number}")});
        let message =
            json!({"jsonrpc": "2.0", "id": 3, "method": "resources/subscribe", "params": params});
        server.mcp(&of, &message).message()["error"]["message"].clone()
    };
    let session = |token: &str| server.session(&[("authorization", &bearer(token))]);
    let sessions: Vec<String> = (0..5).map(|_| session(ALICE)).collect();
    let refused = "too many files are watched already";
    // Each session has so many, and all of a client together.
    for number in 0..256 {
        let of = &sessions[number / 64];
        assert_eq!(subscribe(ALICE, of, number), Value::Null, "{number}");
        if number == 63 {
            assert_eq!(subscribe(ALICE, of, 1000), refused);
        }
    }
    assert_eq!(subscribe(ALICE, &sessions[4], 1000), refused);
    let theirs = session(CAROL);
    assert_eq!(subscribe(CAROL, &theirs, 1000), Value::Null);
    // An ended session frees what it held.
    let headers = [("authorization", &*bearer(ALICE)), ("mcp-session-id", &*sessions[0])];
    assert!(server.ask("DELETE", "/mcp", &headers, "").status < 300);
    let end = Instant::now() + patience();
    while subscribe(ALICE, &sessions[4], 1000) == refused {
        assert!(Instant::now() < end, "its files are counted still");
        std::thread::sleep(Duration::from_millis(20));
    }
}
