//! MCP over HTTP in both eras, and the end of the server.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Server, call, modern, modern_call, patience};

fn borrowed<'h>(headers: &'h [(&'static str, String)]) -> Vec<(&'h str, &'h str)> {
    headers.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

#[test]
fn a_session_keeps_its_shell_until_it_is_deleted_and_is_unknown_then() {
    let server = Server::start(&[]);
    let (one, two) = (server.session(&[]), server.session(&[]));
    let of_one = [("mcp-session-id", one.as_str())];
    let set = server.mcp(&of_one, &call("bash", json!({"command": "x=5; echo set"})));
    assert_eq!(set.stdout(), "set\n", "{set:?}");
    let kept = server.mcp(&of_one, &call("bash", json!({"command": "echo \"<$x>\""})));
    assert_eq!(kept.stdout(), "<5>\n");
    let of_two = [("mcp-session-id", two.as_str())];
    let other = server.mcp(&of_two, &call("bash", json!({"command": "echo \"<$x>\""})));
    assert_eq!(other.stdout(), "<>\n", "another session has a shell of its own");
    assert_eq!(server.ask("DELETE", "/mcp", &of_one, "").status, 202);
    for _ in 0..2 {
        assert_eq!(server.ask("DELETE", "/mcp", &of_one, "").status, 404);
        assert_eq!(server.mcp(&of_one, &call("bash", json!({"command": "echo"}))).status, 404);
    }
    let left = server.mcp(&of_two, &call("bash", json!({"command": "echo there"})));
    assert_eq!(left.stdout(), "there\n");
}

#[test]
fn requests_of_strangers_without_a_session_share_nothing() {
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
fn the_end_of_standard_input_ends_its_own_door_only() {
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
fn a_signal_lets_calls_in_flight_finish_and_takes_no_more() {
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
fn requests_are_taken_between_a_signal_and_the_end_of_pre_stop_while_health_says_none_are() {
    let mut server = Server::configured("[http]\npre_stop = \"600s\"\n", &[]);
    let run = || {
        let json = ("content-type", "application/json");
        server.ask("POST", "/run", &[json], "{\"command\": \"echo on\"}")
    };
    assert_eq!((server.ask("GET", "/health", &[], "").status, run().status), (200, 200));
    server.terminate();
    let end = Instant::now() + patience();
    while server.ask("GET", "/health", &[], "").status != 503 {
        assert!(Instant::now() < end, "a load balancer is told");
        std::thread::sleep(Duration::from_millis(20));
    }
    let served = run();
    assert_eq!((served.status, &served.message()["stdout"]), (200, &json!("on\n")), "{served:?}");
    // Who does not want to wait says so again.
    server.terminate();
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn a_signal_kills_what_takes_longer_than_the_time_for_it() {
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
fn a_client_that_names_streams_first_is_answered_by_one() {
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
