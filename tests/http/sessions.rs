//! MCP over HTTP in both eras, and the end of the server.

use std::time::{Duration, Instant};

use serde_json::json;

use std::io::Read;

use crate::client::{Connection, Server, call, initialize, modern, modern_call, patience, request};

fn borrowed<'h>(headers: &'h [(&'static str, String)]) -> Vec<(&'h str, &'h str)> {
    headers.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

#[test]
fn a_session_keeps_its_shell_until_deleted() {
    let server = Server::start(&[]);
    let one = server.session(&[]);
    let two = server.session(&[]);
    let of_one = [("mcp-session-id", one.as_str())];
    let set = server.mcp(&of_one, &call("bash", json!({"command": "x=5; echo set"})));
    assert_eq!(set.stdout(), "set\n", "{set:?}");
    let kept = server.mcp(&of_one, &call("bash", json!({"command": "echo \"<$x>\""})));
    assert_eq!(kept.stdout(), "<5>\n");
    let of_two = [("mcp-session-id", two.as_str())];
    let other = server.mcp(&of_two, &call("bash", json!({"command": "echo \"<$x>\""})));
    assert_eq!(other.stdout(), "<>\n", "another session has another shell");
    assert_eq!(server.ask("DELETE", "/mcp", &of_one, "").status, 202);
    for _ in 0..2 {
        assert_eq!(server.ask("DELETE", "/mcp", &of_one, "").status, 404);
        assert_eq!(server.mcp(&of_one, &call("bash", json!({"command": "echo"}))).status, 404);
    }
    let left = server.mcp(&of_two, &call("bash", json!({"command": "echo there"})));
    assert_eq!(left.stdout(), "there\n");
}

#[test]
fn anonymous_requests_share_nothing() {
    let server = Server::start(&[]);
    let headers = modern("bash");
    let run = |command: &str| {
        let message = modern_call("bash", json!({"command": command}));
        server.mcp(&borrowed(&headers), &message)
    };
    let first = run("echo one > /tmp/f; cat /tmp/f");
    assert_eq!(first.stdout(), "one\n", "{first:?}");
    assert_eq!(first.header("content-type"), Some("application/json"));
    assert_eq!(run("cat /tmp/f 2>/dev/null; echo none").stdout(), "none\n");
    let precision = modern("set_precision");
    let message = modern_call("set_precision", json!({"precision": 3}));
    let refused = server.mcp(&borrowed(&precision), &message);
    assert_eq!(refused.message()["result"]["isError"], true, "{refused:?}");
    assert!(refused.body.contains("pass precision per call"), "{refused:?}");
}

#[test]
fn a_stateful_call_without_a_session_is_refused() {
    let server = Server::start(&["--tools", "shell,exec,files,history"]);
    let ask = |tool: &str, arguments: serde_json::Value| {
        server.mcp(&borrowed(&modern(tool)), &modern_call(tool, arguments))
    };
    for (tool, arguments, way_out) in [
        ("set_working_dir", json!({"directory": "/tmp"}), "pass working_dir per call"),
        ("macro_save", json!({"name": "m", "commands": ["true"]}), "pass the commands per call"),
        ("put_file", json!({"path": "f", "content": "x"}), "write the file by the command"),
        ("bash", json!({"command": "sleep 9", "background": true}), "would end with this one"),
        ("bash", json!({"command": "cat", "input": true}), "pass stdin"),
    ] {
        let refused = ask(tool, arguments.clone());
        let result = &refused.message()["result"];
        assert_eq!(result["isError"], true, "{refused:?}");
        let output = result.to_string();
        assert!(output.contains("requests of this client stand alone"), "{output}");
        assert!(output.contains(way_out), "{output}");
        // The control: in a session the same call is done.
        let id = server.session(&[]);
        let done = server.mcp(&[("mcp-session-id", id.as_str())], &call(tool, arguments));
        assert_ne!(done.message()["result"]["isError"], true, "{done:?}");
    }
    // A command that takes long becomes no job, which no later request could find.
    let server = Server::configured("[sessions]\nyield = \"1s\"\n", &["--tools", "shell"]);
    let message = modern_call("bash", json!({"command": "sleep 2; echo done"}));
    let waited = server.mcp(&borrowed(&modern("bash")), &message);
    assert_eq!(waited.stdout(), "done\n", "{waited:?}");
}

#[test]
fn at_the_cap_the_session_ends_that_was_unused_for_longest() {
    let server = Server::configured("[http]\nsessions = 3\n", &[]);
    let [streaming, running, unused] = std::array::from_fn(|_| server.session(&[]));
    let stream = open_stream(&server, &streaming);
    let job = json!({"command": "sleep 600", "background": true});
    let started = server.mcp(&[("mcp-session-id", running.as_str())], &call("bash", job));
    assert_eq!(started.status, 200, "{started:?}");
    let answers = |id: &str| {
        let headers = [("mcp-session-id", id)];
        server.mcp(&headers, &call("bash", json!({"command": "echo on"}))).status
    };
    // The one without a call, a stream or a job, although the others were used before it.
    let new = server.session(&[]);
    assert_eq!(answers(&unused), 404, "it has ended");
    assert_eq!([&streaming, &running, &new].map(|id| answers(id)), [200, 200, 200]);
    let newer = server.session(&[]);
    assert_eq!(answers(&new), 404, "the only one that could end");
    let newest_stream = open_stream(&server, &newer);
    let refused = server.mcp(&[], &initialize());
    assert_eq!(refused.status, 503, "each serves something: {refused:?}");
    assert!(refused.header("retry-after").is_some());
    drop((stream, newest_stream));
}

/// Opens the stream of a session; it is open as long as the connection.
fn open_stream(server: &Server, id: &str) -> Connection {
    let mut connection = server.connect();
    let headers = [("mcp-session-id", id), ("accept", "text/event-stream")];
    connection.send(&request("GET", "/mcp", &headers, ""));
    let mut first = [0; 12];
    connection.0.read_exact(&mut first).expect("an answer");
    assert!(first.ends_with(b"200"), "{}", String::from_utf8_lossy(&first));
    connection
}

#[test]
fn closing_stdin_does_not_stop_the_listener() {
    let mut server = Server::start(&[]);
    drop(server.child.stdin.take());
    std::thread::sleep(Duration::from_millis(1500));
    let id = server.session(&[]);
    let of = [("mcp-session-id", id.as_str())];
    assert_eq!(server.mcp(&of, &call("bash", json!({"command": "echo on"}))).stdout(), "on\n");
    server.terminate();
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn a_signal_lets_running_calls_finish() {
    let mut server = Server::start(&[]);
    let id = server.session(&[]);
    let of = [("mcp-session-id", id.as_str())];
    // The shell is up, so the call below runs at once.
    assert_eq!(server.mcp(&of, &call("bash", json!({"command": "echo up"}))).stdout(), "up\n");
    let message = call("bash", json!({"command": "echo begun; sleep 2; echo done"}));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| server.mcp(&of, &message));
        std::thread::sleep(Duration::from_millis(800));
        server.terminate();
        assert_eq!(running.join().expect("answered").stdout(), "begun\ndone\n");
    });
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn pre_stop_still_accepts_requests() {
    let mut server = Server::configured("[http]\npre_stop = \"600s\"\n", &[]);
    let run = || {
        let json = ("content-type", "application/json");
        server.ask("POST", "/run", &[json], "{\"command\": \"echo on\"}")
    };
    assert_eq!((server.ask("GET", "/health", &[], "").status, run().status), (200, 200));
    let mut kept = server.connect();
    let again = "GET /tools HTTP/1.1\r\nhost: localhost\r\n\r\n";
    kept.send(again);
    let mut first = [0; 4096];
    let length = kept.0.read(&mut first).expect("an answer");
    let head = String::from_utf8_lossy(&first[..length]).to_lowercase();
    assert!(head.starts_with("http/1.1 200") && !head.contains("connection: close"), "{head}");
    server.terminate();
    let end = Instant::now() + patience();
    while server.ask("GET", "/health", &[], "").status != 503 {
        assert!(Instant::now() < end, "health reports the shutdown");
        std::thread::sleep(Duration::from_millis(20));
    }
    let served = run();
    assert_eq!((served.status, &served.message()["stdout"]), (200, &json!("on\n")), "{served:?}");
    // A client that keeps its connection is made to open another one, which a load balancer gives to another server.
    kept.send(again);
    let last = kept.answer();
    assert_eq!(last.header("connection"), Some("close"), "{last:?}");
    // A second signal skips the wait.
    server.terminate();
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn a_signal_kills_calls_that_outlast_the_grace() {
    let mut server = Server::configured("[http]\ndrain = \"1s\"\n", &[]);
    let id = server.session(&[]);
    let of = [("mcp-session-id", id.as_str())];
    assert_eq!(server.mcp(&of, &call("bash", json!({"command": "echo up"}))).stdout(), "up\n");
    let message = call("bash", json!({"command": "echo begun; sleep 600"}));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| server.mcp(&of, &message));
        std::thread::sleep(Duration::from_millis(800));
        server.terminate();
        let answer = running.join().expect("answered");
        assert_eq!(
            answer.message()["result"]["structuredContent"]["outcome"],
            "cancelled",
            "{answer:?}"
        );
    });
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn a_client_that_prefers_streams_gets_one() {
    let server = Server::start(&[]);
    let headers = modern("calculate");
    let mut all = borrowed(&headers);
    all.push(("content-type", "application/json"));
    let call = modern_call("calculate", json!({"expression": "6*7"})).to_string();
    for (accept, kind) in [
        ("application/json, text/event-stream", "application/json"),
        ("text/event-stream, application/json", "text/event-stream"),
    ] {
        let mut headers = all.clone();
        headers.push(("accept", accept));
        let answer = server.ask("POST", "/mcp", &headers, &call);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{answer:?}");
        let result = answer.message()["result"]["structuredContent"]["result"].clone();
        assert_eq!(result, "42", "{answer:?}");
    }
}
