//! Two servers behind a proxy that gives each request to the next one: a session is answered by its own server, or not
//! at all.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::client::{
    Answer, Connection, Server, call, initialize, modern, modern_call, patience, request,
};

/// Passes each connection on to the next of these addresses. Returns the proxy's own address.
fn round_robin(servers: Arc<Mutex<Vec<String>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address").to_string();
    let next = AtomicUsize::new(0);
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let servers = servers.lock().expect("no panic").clone();
            let Some(server) = servers.get(next.fetch_add(1, Ordering::Relaxed) % servers.len())
            else {
                continue;
            };
            let Ok(server) = TcpStream::connect(server) else { continue };
            let copies = [(&client, &server), (&server, &client)].map(|(from, to)| {
                (from.try_clone().expect("a copy"), to.try_clone().expect("a copy"))
            });
            for (mut from, mut to) in copies {
                std::thread::spawn(move || {
                    let mut piece = [0; 4096];
                    while let Ok(length @ 1..) = from.read(&mut piece) {
                        if to.write_all(piece.get(..length).unwrap_or_default()).is_err() {
                            break;
                        }
                    }
                    to.shutdown(std::net::Shutdown::Write).unwrap_or_default();
                });
            }
        }
    });
    at
}

fn ask(at: &str, headers: &[(&str, &str)], message: &serde_json::Value) -> Answer {
    let stream = TcpStream::connect(at).expect("the proxy listens");
    stream.set_read_timeout(Some(patience())).expect("a time");
    let mut connection = Connection(Box::new(stream));
    let mut all = vec![
        ("accept", "application/json, text/event-stream"),
        ("content-type", "application/json"),
    ];
    all.extend(headers);
    connection.send(&request("POST", "/mcp", &all, &message.to_string()));
    connection.answer()
}

#[test]
fn a_session_is_answered_only_by_its_server() {
    let mut servers = [Server::start(&[]), Server::start(&[])];
    let at = Arc::new(Mutex::new(servers.iter().map(|server| server.at.clone()).collect()));
    let proxy = round_robin(Arc::clone(&at));
    let opened = ask(&proxy, &[], &initialize());
    let id = opened.header("mcp-session-id").expect("an id").to_owned();
    let of = [("mcp-session-id", id.as_str())];
    let statuses: Vec<u16> = (0..8)
        .map(|number| {
            let command = format!("x=$((x+1)); echo {number}:$x");
            let answer = ask(&proxy, &of, &call("bash", json!({"command": command})));
            if answer.status == 200 {
                let seen = (number + 1) / 2;
                assert_eq!(answer.stdout(), format!("{number}:{seen}\n"), "its own state");
            }
            answer.status
        })
        .collect();
    assert_eq!(statuses, [404, 200, 404, 200, 404, 200, 404, 200]);
    // Requests that stand alone are answered by either.
    let headers = modern("calculate");
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    for _ in 0..4 {
        let answer = ask(&proxy, &headers, &modern_call("calculate", json!({"expression": "6*7"})));
        assert!(answer.status == 200 && answer.body.contains("42"), "{answer:?}");
    }
    // When its server stops, no other server takes over the session.
    servers[0].terminate();
    assert_eq!(servers[0].ended(), Some(0));
    at.lock().expect("no panic").remove(0);
    for _ in 0..3 {
        assert_eq!(ask(&proxy, &of, &call("bash", json!({"command": "echo"}))).status, 404);
    }
    std::thread::sleep(Duration::from_millis(10));
}
