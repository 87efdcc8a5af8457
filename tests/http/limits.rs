//! Bounds: what is too large, too slow, too many or unclear, while others are served.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{Server, call, initialize, patience, request};

#[test]
fn a_body_that_is_too_large_is_refused_unread() {
    let server = Server::start(&[]);
    let mut connection = server.connect();
    connection.send("POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 67108864\r\n\r\n");
    assert_eq!(connection.answer().status, 413, "no byte of the body was sent");
    // The same without a length, as far as it is taken: the answer is lost where it is cut off while this sends.
    let mut connection = server.connect();
    connection.send("POST /mcp HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunk = format!("100000\r\n{}\r\n", "x".repeat(1 << 20));
    let begun = Instant::now();
    for _ in 0..64 {
        connection.send(&chunk);
    }
    assert!([413, 0].contains(&connection.answer().status), "refused, or cut off meanwhile");
    assert!(begun.elapsed() < patience(), "it waits for the end of the body");
    let headers: Vec<(String, String)> =
        (0..20_000).map(|number| (format!("x-{number}"), "y".to_owned())).collect();
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let many = server.ask("GET", "/health", &headers, "");
    assert!([431, 0].contains(&many.status), "{many:?}");
    assert_eq!(server.ask("GET", "/health", &[], "").status, 200);
}

#[test]
fn a_body_whose_length_is_unclear_is_refused() {
    let server = Server::start(&[]);
    let smuggled = "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    // A request that is served whatever its body is, so that only the form of that can be refused.
    let sent = |head: &str| {
        let mut connection = server.connect();
        let first = format!("GET /tools HTTP/1.1\r\nhost: localhost\r\n{head}\r\n0\r\n\r\n");
        connection.send(&(first + smuggled));
        let mut all = String::new();
        connection.0.read_to_string(&mut all).map(|_| ()).unwrap_or_default();
        all
    };
    for clear in ["content-length: 5\r\n", "transfer-encoding: chunked\r\n"] {
        let all = sent(clear);
        let both = all.matches("HTTP/1.1 200 ").count() == 2 && all.contains("healthy");
        assert!(both, "two requests behind each other: {clear:?}: {all}");
    }
    for unclear in [
        "content-length: 5\r\ncontent-length: 6\r\n",
        "transfer-encoding: identity, chunked\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "transfer-encoding: xchunked\r\n",
        "transfer-encoding : chunked\r\n",
        "content-length: +5\r\n",
        "content-length: 0x5\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        " folded: 1\r\n",
    ] {
        let all = sent(unclear);
        let answers: Vec<&str> = all.split("HTTP/1.1 ").skip(1).collect();
        // One answer, which serves nothing; what follows is not taken for a request.
        assert!(answers.len() == 1 && !all.contains("healthy"), "{unclear:?}: {all}");
        assert!(answers.iter().all(|answer| answer.starts_with("400")), "{unclear:?}: {all}");
    }
    // With both headers the coding counts, and no request is taken after this one (RFC 9112, section 6.1).
    for both in [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "content-length: 60\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 60\r\n",
    ] {
        let all = sent(both);
        let count = all.matches("HTTP/1.1 ").count();
        assert!(count == 1 && !all.contains("healthy"), "{both:?}: {count} answers");
    }
}

#[test]
fn slow_heads_are_cut_off_while_others_are_served() {
    let server = Server::start(&[]);
    let mut slow: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(&server.at).expect("it listens");
            stream.set_nonblocking(true).expect("a mode");
            let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\nx-a: ";
            stream.write_all(head.as_bytes()).expect("there is room");
            stream
        })
        .collect();
    let end = Instant::now() + Duration::from_secs(10) + patience();
    let begun = Instant::now();
    // The clients send a byte at a time until each is closed: no byte gives them more time.
    while !slow.is_empty() {
        assert_eq!(server.ask("GET", "/health", &[], "").status, 200);
        slow.retain_mut(|stream| {
            let is_open = match stream.read(&mut [0; 1024]) {
                Ok(length) => length > 0,
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            };
            is_open && stream.write_all(b"y").is_ok()
        });
        let is_early = begun.elapsed() < Duration::from_secs(5);
        assert!(!is_early || slow.len() == 200, "{} are open: they have some time", slow.len());
        assert!(Instant::now() < end, "{} are open", slow.len());
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn more_connections_than_there_may_be_close_the_longest_idle_one() {
    let server = Server::start(&[]);
    let mut idle: Vec<_> = (0..600).map(|_| server.connect()).collect();
    for _ in 0..5 {
        assert_eq!(server.ask("GET", "/health", &[], "").status, 200);
    }
    let first = idle.first_mut().expect("600");
    assert_eq!(first.0.read(&mut [0; 1]).map_err(|error| error.kind()), Ok(0), "it is closed");
    let last = idle.last_mut().expect("600");
    last.send(&request("GET", "/health", &[], ""));
    assert_eq!(last.answer().status, 200, "it was not idle for the longest time");
}

#[test]
fn a_client_over_its_sessions_or_streams_gets_an_error() {
    let server = Server::configured("[http]\nsessions = 3\nstreams = 2\n", &[]);
    let ids: Vec<String> = (0..3).map(|_| server.session(&[])).collect();
    // A session with a job is not ended for a new one.
    for id in &ids {
        let job = json!({"command": "sleep 600", "background": true});
        let started = server.mcp(&[("mcp-session-id", id.as_str())], &call("bash", job));
        assert_eq!(started.status, 200, "{started:?}");
    }
    let refused = server.mcp(&[], &initialize());
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.header("retry-after").is_some());
    let of = [("mcp-session-id", ids[0].as_str())];
    assert_eq!(server.mcp(&of, &call("bash", json!({"command": "echo on"}))).stdout(), "on\n");
    assert_eq!(server.ask("DELETE", "/mcp", &of, "").status, 202);
    assert_eq!(server.mcp(&[], &initialize()).status, 200, "one has made room");
    let stream = |id: &str| {
        let mut connection = server.connect();
        let headers = [("mcp-session-id", id), ("accept", "text/event-stream")];
        connection.send(&request("GET", "/mcp", &headers, ""));
        let mut first = [0; 12];
        connection.0.read_exact(&mut first).expect("an answer");
        (connection, String::from_utf8_lossy(&first).into_owned())
    };
    let open = [stream(&ids[1]), stream(&ids[2])];
    assert!(open.iter().all(|(_, first)| first.ends_with("200")), "{:?}", open[0].1);
    assert!(stream(&ids[1]).1.ends_with("503"), "a third is refused");
    drop(open);
    let end = Instant::now() + patience();
    while !stream(&ids[1]).1.ends_with("200") {
        assert!(Instant::now() < end, "a stream that was closed makes room");
        std::thread::sleep(Duration::from_millis(50));
    }
}
