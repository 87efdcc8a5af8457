//! Clients that take what they can get, while others are served and memory stays flat.

use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{
    ALICE, Answer, BOB, Connection, Server, bearer, call, initialize, modern, modern_call,
    patience, request, with_tokens,
};

const JSON: (&str, &str) = ("content-type", "application/json");

/// Returns the resident memory of a process in bytes.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id()));
    let status = status.expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib * 1024
}

/// Has a client call a tool by the revision without sessions.
fn ask(server: &Server, token: &str, tool: &str, arguments: Value) -> Answer {
    let headers = modern(tool);
    let mut headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    headers.push(("authorization", token));
    server.mcp(&headers, &modern_call(tool, arguments))
}

#[test]
fn bodies_that_never_end_keep_no_client_out() {
    let server = Server::start(&[]);
    let slow: Vec<Connection> = (0..700)
        .map(|_| {
            let mut connection = server.connect();
            connection.send(
                "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                 content-length: 1000\r\n\r\n{",
            );
            connection
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(server.mcp(&[], &initialize()).status, 200);
    }
    drop(slow);
}

#[test]
fn large_bodies_of_one_client_leave_room_for_another() {
    let server = with_tokens(&[]);
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nauthorization: {}\r\n\
         content-type: application/json\r\ncontent-length: 16000000\r\n\r\n",
        bearer(ALICE)
    );
    // Sixteen of nearly 16 MB each, without an end.
    let piece = " ".repeat(1 << 20);
    let slow: Vec<Connection> = (0..16)
        .map(|_| {
            let mut connection = server.connect();
            connection.send(&head);
            (0..15).for_each(|_| connection.send(&piece));
            connection
        })
        .collect();
    let bob = bearer(BOB);
    let large = json!({"command": "wc -c", "stdin": "x".repeat(4 << 20)});
    let answer = ask(&server, &bob, "bash", large);
    assert_eq!(answer.stdout(), format!("{}\n", 4 << 20), "{}", answer.status);
    assert!(resident(&server) < 200 << 20, "{} bytes", resident(&server));
    drop(slow);
}

#[test]
fn texts_of_very_many_values_take_no_memory() {
    let server = Server::start(&[]);
    let before = resident(&server);
    let many = "[],".repeat(5_000_000);
    let body =
        format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\",\"params\":{{\"a\":[{many}0]}}}}");
    let both = ("accept", "application/json, text/event-stream");
    for _ in 0..4 {
        let refused = server.ask("POST", "/mcp", &[JSON, both], &body);
        assert!([413, 0].contains(&refused.status), "{}", refused.status);
    }
    let deep = format!("{}{}", "[".repeat(90_000), "]".repeat(90_000));
    for path in ["/mcp", "/run", "/tools/calculate/execute"] {
        let refused = server.ask("POST", path, &[JSON, both], &deep);
        assert!((400..500).contains(&refused.status), "{path}: {refused:?}");
    }
    let more = resident(&server).saturating_sub(before);
    assert!(more < 64 << 20, "{more} bytes more");
    assert_eq!(server.mcp(&[], &initialize()).status, 200);
}

#[test]
fn calls_of_one_client_leave_turns_and_places_for_another() {
    let server = with_tokens(&["--tools", "exec,shell"]);
    let alice = bearer(ALICE);
    let bob = bearer(BOB);
    let headers = modern("bash_exec");
    let mut headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    headers.extend([("authorization", alice.as_str()), JSON]);
    headers.push(("accept", "application/json, text/event-stream"));
    let message = modern_call("bash_exec", json!({"command": "sleep 200", "timeout": 250}));
    let text = request("POST", "/mcp", &headers, &message.to_string());
    // More than run and wait: some are refused, and the others run for long.
    let greedy: Vec<Connection> = (0..200)
        .map(|_| {
            let mut connection = server.connect();
            connection.send(&text);
            connection
        })
        .collect();
    // Until the queue has as many as it takes of one client: half of its places, or more.
    let figure = |name: &str| {
        let figures = server.ask("GET", "/metrics", &[("authorization", &bob)], "");
        let value = figures.body.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        value.unwrap_or(0.0_f64)
    };
    let end = Instant::now() + patience();
    while figure("cofferdam_pending ") < figure("cofferdam_places ") / 2.5 {
        assert!(Instant::now() < end, "{} wait", figure("cofferdam_pending "));
        std::thread::sleep(Duration::from_millis(50));
    }
    let begun = Instant::now();
    for _ in 0..3 {
        let answer = ask(&server, &bob, "bash_exec", json!({"command": "echo mine"}));
        assert_eq!(answer.stdout(), "mine\n", "{answer:?}");
    }
    assert!(begun.elapsed() < Duration::from_secs(190), "before any of the others had ended");
    drop(greedy);
}

#[test]
fn shells_of_one_client_leave_room_for_another() {
    let server = with_tokens(&[]);
    let alice = bearer(ALICE);
    let bob = bearer(BOB);
    let own = [("authorization", alice.as_str())];
    // Each session of MCP has a separate shell, and there are eight of those.
    for number in 0..10 {
        let id = server.session(&own);
        let of = [own[0], ("mcp-session-id", id.as_str())];
        let command = format!("x={number}; echo up");
        let answer = server.mcp(&of, &call("bash", json!({"command": command})));
        assert_eq!(answer.stdout(), "up\n", "session {number}: {answer:?}");
    }
    let answer = ask(&server, &bob, "bash", json!({"command": "echo mine"}));
    assert_eq!(answer.stdout(), "mine\n", "{answer:?}");
}

#[test]
fn three_hundred_sessions_and_streams_of_one_client_leave_room_for_another() {
    let server = with_tokens(&[]);
    let alice = bearer(ALICE);
    let bob = bearer(BOB);
    let own = [("authorization", alice.as_str())];
    let before = resident(&server);
    let opened: Vec<Answer> =
        (0..300).map(|_| server.mcp(&own, &initialize())).filter(|it| it.status == 200).collect();
    assert_eq!(opened.len(), 300, "each makes room for itself");
    let there = |answer: &&Answer| {
        let id = answer.header("mcp-session-id").expect("an id");
        server.mcp(&[own[0], ("mcp-session-id", id)], &call("bash_jobs", json!({}))).status == 200
    };
    let opened: Vec<&Answer> = opened.iter().filter(there).collect();
    assert_eq!(opened.len(), 64, "the others have ended");
    // A session ends its oldest streams when it has too many, so each has a few.
    let streams: Vec<(Connection, bool)> = (0..300)
        .map(|number: usize| {
            let id = opened[number % 64].header("mcp-session-id").expect("an id");
            let headers = [own[0], ("mcp-session-id", id), ("accept", "text/event-stream")];
            let mut connection = server.connect();
            connection.send(&request("GET", "/mcp", &headers, ""));
            let mut first = [0; 12];
            let is_open = connection.0.read_exact(&mut first).is_ok() && first.ends_with(b"200");
            (connection, is_open)
        })
        .collect();
    let open = streams.iter().filter(|(_, is_open)| *is_open).count();
    assert_eq!(open, 64, "the others are refused");
    // Streams are no requests: the client's own requests are served meanwhile.
    assert_eq!(server.ask("GET", "/tools", &own, "").status, 200);
    let of_bob = [("authorization", bob.as_str())];
    let id = server.session(&of_bob);
    let of = [of_bob[0], ("mcp-session-id", id.as_str())];
    assert_eq!(server.mcp(&of, &call("bash", json!({"command": "echo on"}))).stdout(), "on\n");
    let more = resident(&server).saturating_sub(before);
    assert!(more < 100 << 20, "{more} bytes more");
    drop(streams);
}

#[test]
fn sessions_that_are_opened_at_once_are_no_more_than_there_may_be() {
    let server = Server::configured("[http]\nsessions = 5\n", &[]);
    let opened: Vec<Answer> = std::thread::scope(|scope| {
        // A session's name that is no text names no session either.
        let ask = |odd: bool| {
            let headers: &[(&str, &str)] = if odd { &[("mcp-session-id", "\u{e9}")] } else { &[] };
            server.mcp(headers, &initialize())
        };
        let all: Vec<_> = (0..60).map(|number| scope.spawn(move || ask(number % 3 == 0))).collect();
        all.into_iter().map(|one| one.join().expect("answered")).collect()
    });
    let there = |answer: &&Answer| {
        let Some(id) = answer.header("mcp-session-id") else { return false };
        server.mcp(&[("mcp-session-id", id)], &call("bash_jobs", json!({}))).status == 200
    };
    assert_eq!(opened.iter().filter(there).count(), 5, "{opened:?}");
}

#[test]
fn requests_that_two_readers_take_for_different_ones_are_refused() {
    let server = Server::start(&[]);
    for head in [
        // The target names another server than `Host` does.
        "GET http://evil.example/tools HTTP/1.1\r\nhost: localhost\r\n",
        "GET http://localhost/tools HTTP/1.1\r\nhost: evil.example\r\n",
        "GET http://evil.example@localhost/tools HTTP/1.1\r\nhost: localhost\r\n",
        "GET http://localhost:1/tools HTTP/1.1\r\nhost: localhost:2\r\n",
        // Names that lead here by DNS, in each way to write them.
        "GET /tools HTTP/1.1\r\nhost: localhost.\r\n",
        "GET /tools HTTP/1.1\r\nhost: localhost.evil.example\r\n",
        "GET /tools HTTP/1.1\r\nhost: 127.0.0.1.evil.example\r\n",
        "GET /tools HTTP/1.1\r\nhost: 127.0.0.1.\r\n",
        "GET /tools HTTP/1.1\r\nhost: 2130706433\r\n",
        "GET /tools HTTP/1.1\r\nhost: 0x7f.1\r\n",
        "GET /tools HTTP/1.1\r\nhost: 0.0.0.0\r\n",
        "GET /tools HTTP/1.1\r\nhost: [::]\r\n",
        "GET /tools HTTP/1.1\r\nhost: evil.example@localhost\r\n",
        "GET /tools HTTP/1.1\r\nhost: localhost, evil.example\r\n",
        "GET /tools HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n",
        "GET /tools HTTP/1.1\r\nhost:\r\n",
        "GET /tools HTTP/1.1\r\n",
        "GET /tools HTTP/1.0\r\n",
        // Lines that end in different ways.
        "GET /tools HTTP/1.1\r\nhost: localhost\r\nx: a\rcontent-length: 1\r\n",
        "GET /tools HTTP/1.1\r\nhost: localhost\r\nx: a\0b\r\n",
        "GET /tools HTTP/1.1\r\nhost : localhost\r\n",
        "GET /tools  HTTP/1.1\r\nhost: localhost\r\n",
        "GET /tools HTTP/9.9\r\nhost: localhost\r\n",
        "PRI * HTTP/2.0\r\n",
    ] {
        let mut connection = server.connect();
        connection.send(&format!("{head}connection: close\r\n\r\n"));
        let answer = connection.answer();
        assert!([0, 400, 403].contains(&answer.status), "{head:?}: {answer:?}");
    }
    let whole =
        "GET http://localhost/tools HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let mut connection = server.connect();
    connection.send(whole);
    assert_eq!(connection.answer().status, 200, "both name this server");
}

#[test]
fn clients_that_read_no_answer_keep_no_client_out() {
    let server = Server::start(&["--tools", "exec,shell"]);
    let headers = modern("bash_exec");
    let mut headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    headers.extend([JSON, ("accept", "application/json, text/event-stream")]);
    let message =
        modern_call("bash_exec", json!({"command": "head -c 28000 /dev/zero | tr '\\0' x"}));
    let text = request("POST", "/mcp", &headers, &message.to_string());
    let unread: Vec<Connection> = (0..40)
        .map(|_| {
            let mut connection = server.connect();
            connection.send(&text);
            connection
        })
        .collect();
    for _ in 0..10 {
        assert_eq!(server.ask("GET", "/tools", &[], "").status, 200);
    }
    drop(unread);
}

#[test]
fn a_client_that_hangs_up_ends_its_call_in_the_newer_revision() {
    let server = Server::configured("[server]\nconcurrency = 1\nqueue = 8\n", &["--tools", "exec"]);
    let headers = modern("bash_exec");
    let mut headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    headers.extend([JSON, ("accept", "application/json, text/event-stream")]);
    let long = modern_call("bash_exec", json!({"command": "sleep 250", "timeout": 280}));
    let mut connection = server.connect();
    connection.send(&request("POST", "/mcp", &headers, &long.to_string()));
    std::thread::sleep(Duration::from_millis(1000));
    drop(connection);
    // The only turn comes free long before the command would have ended.
    let end = Instant::now() + patience().min(Duration::from_secs(200));
    let answer =
        server.mcp(&headers[..3], &modern_call("bash_exec", json!({"command": "echo on"})));
    assert_eq!(answer.stdout(), "on\n", "{answer:?}");
    assert!(Instant::now() < end);
}

#[test]
fn unread_answers_are_charged_and_leave_other_clients_their_memory() {
    let server = with_tokens(&["--tools", "exec,shell"]);
    let alice = bearer(ALICE);
    let bob = bearer(BOB);
    let body =
        json!({"command": "head -c 4M /dev/zero >f", "outputs": ["f"], "timeout_seconds": 200});
    let text = request("POST", "/run", &[JSON, ("authorization", &alice)], &body.to_string());
    let unread: Vec<Connection> = (0..9)
        .map(|_| {
            let mut connection = server.connect();
            connection.send(&text);
            connection
        })
        .collect();
    let ended = || {
        let figures = server.ask("GET", "/metrics", &[("authorization", &bob)], "");
        let line = "cofferdam_calls_total{tool=\"bash_exec\",outcome=\"exited\"} ";
        let count = figures.body.lines().find_map(|it| it.strip_prefix(line)?.parse::<f64>().ok());
        count.unwrap_or_default()
    };
    let end = Instant::now() + patience();
    while ended() < 9.0 {
        assert!(Instant::now() < end, "{} ended", ended());
        std::thread::sleep(Duration::from_millis(50));
    }
    let own = server.ask("POST", "/run", &[JSON, ("authorization", &bob)], &body.to_string());
    assert_eq!(own.status, 200, "{own:?}");
    assert!(
        own.message()["files"][0]["content_base64"].is_string(),
        "another has its answer whole"
    );
    let answers: Vec<Answer> = unread.into_iter().map(|mut it| it.answer()).collect();
    assert!(answers.iter().all(|answer| answer.status == 200));
    let left_out = answers.iter().filter(|it| it.body.contains("leaves unread have it")).count();
    // Half of 64 MiB are five of them; the command ran for each, and its end is reported.
    assert!((1..=4).contains(&left_out), "{left_out}");
}

#[test]
fn large_bodies_and_very_many_headers_leave_memory_flat() {
    let server = Server::start(&[]);
    assert_eq!(server.mcp(&[], &initialize()).status, 200);
    let before = resident(&server);
    let headers: Vec<(String, String)> =
        (0..20_000).map(|number| (format!("x-{number}"), "y".repeat(50))).collect();
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let many = request("GET", "/health", &headers, "");
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
    let mut open = Vec::new();
    for _ in 0..8 {
        let mut connection = server.connect();
        connection.send(&many);
        open.push(connection);
        let mut connection = server.connect();
        connection
            .send("POST /run HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n");
        (0..64).for_each(|_| connection.send(&chunk));
        open.push(connection);
    }
    assert_eq!(server.ask("GET", "/health", &[], "").status, 200);
    let more = resident(&server).saturating_sub(before);
    assert!(more < 64 << 20, "{more} bytes more");
    for mut connection in open {
        // Refused, or cut off while it was sending.
        let status = connection.answer().status;
        assert!([413, 431, 0, 503].contains(&status), "{status}");
    }
}
