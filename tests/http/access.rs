//! Access to the listener: tokens, names, origins, sockets, and what one client sees of another.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::{
    ALICE, BOB, PROGRAM, Server, bearer, call, initialize, modern, modern_call, with_tokens,
};

#[test]
fn a_host_grant_requires_a_token_for_each_request() {
    let work = tempfile::tempdir().expect("a directory");
    let work = work.path().display().to_string();
    let server = Server::start(&["--workspace", &work, "--toolchains", "none"]);
    let file = server.said("clients need the token in ");
    let file = file.rsplit(' ').next().unwrap_or_default();
    let mode = std::fs::metadata(file).expect("a file").permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let token = std::fs::read_to_string(file).expect("a token");
    assert!(token.trim().len() >= 64, "{token}");
    let refused = server.mcp(&[], &initialize());
    assert_eq!(refused.status, 401, "{refused:?}");
    assert!(refused.header("www-authenticate").is_some_and(|it| it.starts_with("Bearer")));
    // Neither does it say what there is.
    assert_eq!(server.ask("GET", "/nothing", &[], "").status, 401);
    let bearer = bearer(token.trim());
    let own = [("authorization", bearer.as_str())];
    assert_eq!(server.mcp(&own, &initialize()).status, 200);
    assert_eq!(server.ask("GET", "/nothing", &own, "").status, 404);
    // For what has no secrets: a load balancer.
    let health = server.ask("GET", "/health", &[], "");
    assert_eq!((health.status, health.body.as_str()), (200, "{\"status\":\"healthy\"}"));
}

#[test]
fn a_wrong_token_is_throttled_and_a_right_one_passes() {
    let server = with_tokens(&[]);
    let wrong = bearer(&ALICE.to_uppercase());
    let statuses: Vec<u16> =
        (0..15).map(|_| server.mcp(&[("authorization", &wrong)], &initialize()).status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 10, "{statuses:?}");
    let throttled = server.mcp(&[("authorization", &wrong)], &initialize());
    assert_eq!(throttled.status, 429);
    assert!(throttled.header("retry-after").is_some(), "{throttled:?}");
    assert_eq!(server.mcp(&[("authorization", &bearer(ALICE))], &initialize()).status, 200);
    let twice = [("authorization", &*bearer(ALICE)), ("authorization", &*bearer(BOB))];
    assert_eq!(server.mcp(&twice, &initialize()).status, 429, "two tokens are no client");
}

#[test]
fn nothing_of_one_client_is_seen_by_another() {
    let server = with_tokens(&["--tools", "calc,shell,exec,history"]);
    let alice = bearer(ALICE);
    let bob = bearer(BOB);
    let id = server.session(&[("authorization", &alice)]);
    let of_alice = [("authorization", alice.as_str()), ("mcp-session-id", id.as_str())];
    let set = call("bash", json!({"command": "secret=7; echo set"}));
    assert_eq!(server.mcp(&of_alice, &set).stdout(), "set\n");
    // With the right id of the other's session, each way in.
    let of_bob = [("authorization", bob.as_str()), ("mcp-session-id", id.as_str())];
    let stream = [of_bob[0], of_bob[1], ("accept", "text/event-stream")];
    assert_eq!(server.mcp(&of_bob, &call("bash", json!({"command": "echo $secret"}))).status, 404);
    assert_eq!(server.ask("GET", "/mcp", &stream, "").status, 404);
    assert_eq!(server.ask("DELETE", "/mcp", &of_bob, "").status, 404);
    let there = call("bash", json!({"command": "echo $secret"}));
    assert_eq!(server.mcp(&of_alice, &there).stdout(), "7\n", "it is there still");
    // Without sessions, a client has its own shell, jobs and history.
    let ask = |token: &str, tool: &str, arguments: Value| {
        let headers = modern(tool);
        let mut headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        headers.push(("authorization", token));
        server.mcp(&headers, &modern_call(tool, arguments))
    };
    ask(&alice, "bash", json!({"command": "mine=3"}));
    let own = ask(&alice, "bash", json!({"command": "echo \"<$mine>\""}));
    assert_eq!(own.stdout(), "<3>\n", "{own:?}");
    let other = ask(&bob, "bash", json!({"command": "echo \"<$mine>\""}));
    assert_eq!(other.stdout(), "<>\n", "{other:?}");
    let job = ask(&alice, "bash", json!({"command": "sleep 300", "background": true}));
    let job = job.message()["result"]["structuredContent"]["job"].clone();
    assert!(job.is_string(), "{job}");
    let own = ask(&alice, "bash_output", json!({"job": job}));
    assert_eq!(own.message()["result"]["isError"], false, "{own:?}");
    let other = ask(&bob, "bash_output", json!({"job": job}));
    assert_eq!(other.message()["result"]["isError"], true, "{other:?}");
    let history = ask(&bob, "history_search", json!({"query": "mine=3"}));
    let found = &history.message()["result"]["structuredContent"];
    assert!(!found.to_string().contains("mine=3\\\""), "{found}");
}

#[test]
fn a_socket_is_its_owners_and_needs_no_token() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("s");
    let at = format!("unix:{}", path.display());
    let work = directory.path().join("work");
    std::fs::create_dir(&work).expect("a directory");
    let work = work.display().to_string();
    let arguments = ["--http", &*at, "--workspace", &*work, "--toolchains", "none"];
    for _ in 0..2 {
        // The second start finds the stale socket of the first.
        let server = Server::start(&arguments);
        let mode = std::fs::symlink_metadata(&path).expect("a socket").permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(server.at, path.display().to_string());
        let id = server.session(&[]);
        let of = [("mcp-session-id", id.as_str())];
        assert_eq!(server.mcp(&of, &call("bash", json!({"command": "echo in"}))).stdout(), "in\n");
        // A socket in use is not taken over.
        let second = Command::new(PROGRAM).arg("serve").args(arguments).output().expect("it runs");
        assert_eq!(second.status.code(), Some(125));
        assert!(String::from_utf8_lossy(&second.stderr).contains("in use"), "{second:?}");
    }
}

#[test]
fn web_pages_and_rebound_names_are_refused_first() {
    let server = Server::start(&[]);
    assert_eq!(server.mcp(&[], &initialize()).status, 200);
    let port = server.at.rsplit(':').next().unwrap_or_default().to_owned();
    let rebound = format!("evil.example:{port}");
    assert_eq!(server.mcp(&[("host", &rebound)], &initialize()).status, 403);
    for origin in ["http://evil.example", "null", "http://localhost:3000"] {
        let refused = server.mcp(&[("origin", origin)], &initialize());
        assert_eq!(refused.status, 403, "{origin}");
        assert_eq!(refused.header("access-control-allow-origin"), None);
    }
    // Requests that a form or an image of a page can send.
    let form = [("origin", "http://evil.example"), ("content-type", "text/plain")];
    assert_eq!(server.ask("POST", "/mcp", &form, "{}").status, 403);
    assert_eq!(server.ask("GET", "/health", &[("sec-fetch-site", "cross-site")], "").status, 403);
    let question = [("origin", "http://evil.example"), ("access-control-request-method", "POST")];
    assert_eq!(server.ask("OPTIONS", "/mcp", &question, "").status, 403);
}

#[test]
fn pages_of_a_listed_origin_may_ask_and_read() {
    let server = Server::configured("[http]\norigins = [\"https://app.example\"]\n", &[]);
    let question = [("origin", "https://app.example"), ("access-control-request-method", "POST")];
    let allowed = server.ask("OPTIONS", "/mcp", &question, "");
    assert_eq!(allowed.status, 204);
    assert_eq!(allowed.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(allowed.header("access-control-allow-credentials"), None);
    let answer = server.mcp(&[("origin", "https://app.example")], &initialize());
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
}

#[test]
fn an_address_that_is_not_allowed_gets_no_answer() {
    let server = Server::configured("[http]\nallowed = [\"10.99.0.0/16\"]\n", &[]);
    assert_eq!(server.mcp(&[], &initialize()).status, 0, "closed without a word");
    let server = Server::configured("[http]\nallowed = [\"127.0.0.0/8\"]\n", &[]);
    assert_eq!(server.mcp(&[], &initialize()).status, 200);
}

#[test]
fn public_listeners_require_a_token_and_tls() {
    let home = tempfile::tempdir().expect("a home");
    let start = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.arg("serve").args(arguments).env("HOME", home.path());
        let ended = command.stdin(std::process::Stdio::null()).output().expect("it runs");
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    };
    let (code, text) = start(&["--http", "0.0.0.0:0"]);
    assert_eq!(code, Some(125), "{text}");
    assert!(text.contains("no token is configured") && text.contains("hint: "), "{text}");
    let (code, text) = start(&["--http", "example.com:80"]);
    assert_eq!(code, Some(125), "{text}");
    let (code, text) = start(&["--behind-proxy", "10.0.0.1"]);
    assert_eq!(code, Some(125), "{text}");
}

#[test]
fn a_readable_or_short_token_is_refused_at_start() {
    let start = |text: &str, mode: u32| {
        let home = tempfile::tempdir().expect("a home");
        let config = home.path().join("c");
        let token = home.path().join("t");
        std::fs::create_dir(&config).expect("a directory");
        std::fs::write(&token, text).expect("written");
        std::fs::set_permissions(&token, PermissionsExt::from_mode(mode)).expect("its mode");
        let toml = format!(
            "schema = 1\n[[http.tokens]]\nclient = \"ci\"\nfile = \"{}\"\n",
            token.display()
        );
        std::fs::write(config.join("cofferdam.toml"), toml).expect("written");
        let mut command = Command::new(PROGRAM);
        command.arg("--config").arg(&config).args(["serve", "--http", "127.0.0.1:0"]);
        let ended = command.stdin(std::process::Stdio::null()).output().expect("it runs");
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    };
    let (code, printed) = start(ALICE, 0o644);
    assert!(code == Some(125) && printed.contains("others can read"), "{printed}");
    let (code, printed) = start("short", 0o600);
    assert!(code == Some(125) && printed.contains("32 characters at least"), "{printed}");
    assert!(!printed.contains("short\n"), "the token is not shown: {printed}");
}
