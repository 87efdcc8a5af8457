//! Tests of placeholders and secrets in requests and answers.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use model::egress::SecretForm;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::lab::{HOST, Lab, SECRET, Seen, placeholder, rule};

const ALL: &[(&[&str], &[&str])] = &[(&["GET", "POST"], &["/**"])];

/// Makes a lab whose server returns the received authorization in a header and in the body.
fn echoing(form: SecretForm) -> Lab {
    Lab::tls(vec![rule(ALL, Some(form))], &["http/1.1"], HOST).answering(|seen: &Seen| {
        let value = seen.headers.get("authorization").cloned();
        let text = value.as_ref().map_or("none", |value| value.to_str().expect("text")).to_owned();
        let mut answer = Response::new(Full::from(format!("you said {text}\n")));
        answer.headers_mut().extend(value.map(|value| (hyper::header::ETAG, value)));
        answer
    })
}

async fn get(lab: &Lab, target: &str, headers: &str, body: &str) -> String {
    let method = if body.is_empty() { "GET" } else { "POST" };
    let length =
        if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n{length}{headers}\r\n{body}"
    );
    lab.raw_tls(&request).await
}

#[tokio::test]
async fn a_secret_reaches_the_server_and_no_part_of_an_answer() {
    let lab = echoing(SecretForm::Bearer);
    let headers = format!(
        "Authorization: Bearer {}\r\nAccept-Encoding: gzip\r\nRange: bytes=0-9\r\n",
        placeholder()
    );
    let answer = get(&lab, "/a", &headers, "").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let seen = lab.seen();
    let seen = seen.first().expect("a request");
    assert_eq!(seen.headers.get("authorization").expect("it"), &format!("Bearer {SECRET}"));
    assert_eq!(seen.headers.get("accept-encoding").expect("it"), "identity");
    assert_eq!(seen.headers.get("range"), None);
    assert!(!answer.contains(SECRET), "{answer}");
    let stars = "*".repeat(SECRET.len());
    assert_eq!(answer.matches(&format!("Bearer {stars}")).count(), 2, "{answer}");
    assert_eq!(lab.events(), [format!("GET https://{HOST}/a 200")]);
}

#[tokio::test]
async fn a_password_is_replaced_inside_of_its_encoding() {
    let lab = echoing(SecretForm::Basic);
    let basic = |password: &str| STANDARD.encode(format!("x-access-token:{password}"));
    let headers = format!("Authorization: Basic {}\r\n", basic(&placeholder()));
    let answer = get(&lab, "/a", &headers, "").await;
    assert_eq!(lab.seen()[0].headers["authorization"], format!("Basic {}", basic(SECRET)));
    // At most the encoded letters at the seam remain.
    assert!(answer.contains("****************") && !answer.contains(&basic(SECRET)), "{answer}");
    assert!(!answer.contains(&basic(SECRET)[24..]), "{answer}");
}

#[tokio::test]
async fn nothing_is_added_where_the_cell_sent_nothing() {
    let lab = echoing(SecretForm::Bearer);
    let answer = get(&lab, "/a", "", "").await;
    assert!(answer.contains("you said none"), "{answer}");
    assert!(
        get(&lab, "/a", "Authorization: Bearer own-token\r\n", "")
            .await
            .contains("you said Bearer own-token")
    );
    assert!(lab.seen().iter().all(|seen| !format!("{seen:?}").contains(SECRET)));
}

#[tokio::test]
async fn a_placeholder_anywhere_else_is_refused() {
    let mark = placeholder();
    let encoded: String = mark.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let basic = STANDARD.encode(format!("a:{mark}"));
    for (target, headers, body) in [
        (format!("/a?token={mark}"), String::new(), String::new()),
        (format!("/a?token={encoded}"), String::new(), String::new()),
        (format!("/{mark}"), String::new(), String::new()),
        (
            format!("/a?t={}", STANDARD.encode(&mark).trim_end_matches('=')),
            String::new(),
            String::new(),
        ),
        ("/a".into(), format!("X-Token: {mark}\r\n"), String::new()),
        ("/a".into(), format!("Cookie: a=b; t={encoded}\r\n"), String::new()),
        ("/a".into(), format!("{mark}: x\r\n"), String::new()),
        ("/a".into(), format!("Authorization: Basic {basic}\r\n"), String::new()),
        (
            "/a".into(),
            format!("Authorization: Bearer {mark}\r\nAuthorization: Bearer {mark}\r\n"),
            String::new(),
        ),
        ("/a".into(), format!("Authorization: Bearer {mark} \tx\r\n"), String::new()),
        ("/a".into(), format!("Proxy-Authorization: Bearer {mark}\r\n"), String::new()),
        ("/a".into(), String::new(), format!("{{\"token\": \"{mark}\"}}")),
        ("/a".into(), String::new(), format!("x{basic}")),
        ("/a".into(), format!("Authorization: Bearer {mark}\r\n"), format!("token={mark}")),
    ] {
        let lab = echoing(SecretForm::Bearer);
        let answer = get(&lab, &target, &headers, &body).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{target} {headers} {body}: {answer}");
        assert!(lab.seen().is_empty(), "{target} {headers} {body}: {:?}", lab.seen());
        assert_eq!(lab.events().len(), 1, "{:?}", lab.events());
        assert!(
            lab.events()[0].contains("placeholder") || lab.events()[0].contains("more than once"),
            "{:?}",
            lab.events()
        );
    }
    // A rule without the secret, or a connection without TLS, refuses a placeholder everywhere.
    let header = format!("Authorization: Bearer {mark}\r\n");
    let without = Lab::tls(vec![rule(ALL, None)], &["http/1.1"], HOST);
    assert!(get(&without, "/a", &header, "").await.starts_with("HTTP/1.1 403"));
    let plain = Lab::plain(vec![rule(ALL, Some(SecretForm::Bearer))]);
    let answer = plain
        .raw(&format!("GET /a HTTP/1.1\r\nHost: {HOST}\r\n{header}Connection: close\r\n\r\n"))
        .await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(without.seen().is_empty() && plain.seen().is_empty());
}

#[tokio::test]
async fn a_placeholder_is_found_across_the_parts_of_a_body_and_in_trailers() {
    let mark = placeholder();
    let (first, second) = mark.split_at(mark.len() - 9);
    for body in [
        format!("{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n", first.len(), second.len()),
        format!("1\r\na\r\n0\r\nX: {mark}\r\n\r\n"),
    ] {
        let lab = echoing(SecretForm::Bearer);
        let mut stream = lab.open_tls(HOST, &["http/1.1"]).await.expect("a handshake");
        let head =
            format!("POST /a HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n");
        stream.write_all(head.as_bytes()).await.expect("it is read");
        for part in body.as_bytes().chunks(7) {
            // The answer may arrive, and the connection close, before everything is sent.
            if stream.write_all(part).await.is_err() || stream.flush().await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 403", "{body}");
        assert!(lab.seen().is_empty());
    }
}

/// The server's bytes are cut at each position within the secret, and each piece is a separate
/// write.
#[tokio::test]
async fn a_secret_in_an_answer_is_scrubbed_wherever_it_is_cut() {
    let text = format!("a{SECRET}b");
    for cut in 1..text.len() {
        let lab = Lab::tls(vec![rule(ALL, Some(SecretForm::Plain))], &["http/1.1"], HOST);
        let (first, second) = text.split_at(cut);
        let first = first.to_owned();
        let second = second.to_owned();
        let chunks = [first, second].map(|part| format!("{:x}\r\n{part}\r\n", part.len()));
        let answer = exchange(&lab, chunks).await;
        assert!(!answer.contains(SECRET), "{cut}: {answer}");
        // The letters around the secret remain; the chunk lengths are hexadecimal.
        let stars = answer.matches('*').count();
        assert!(stars == SECRET.len(), "{cut}: {answer}");
    }
}

/// Answers one request with these chunks, flushing after each.
async fn exchange(lab: &Lab, chunks: [String; 2]) -> String {
    let origin = lab.origin.clone();
    let (server, far) = tokio::io::duplex(64 * 1024);
    let acceptor = origin.acceptor();
    tokio::spawn(async move {
        let mut stream = acceptor.accept(far).await.expect("a handshake");
        let mut part = [0; 4096];
        assert!(stream.read(&mut part).await.expect("a request") > 0);
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
        for text in [head, &chunks[0], &chunks[1], "0\r\n\r\n"] {
            stream.write_all(text.as_bytes()).await.expect("it is read");
            stream.flush().await.expect("it is read");
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        }
    });
    let stream = lab.tls_over(lab.open_to(443, server)).await;
    super::lab::all(stream, format!("GET /a HTTP/1.1\r\nHost: {HOST}\r\n\r\n").as_bytes()).await
}

#[tokio::test]
async fn an_answer_that_cannot_be_searched_is_not_passed_on() {
    let lab =
        Lab::tls(vec![rule(ALL, Some(SecretForm::Bearer))], &["http/1.1"], HOST).answering(|_| {
            let mut answer = Response::new(Full::new(Bytes::from_static(b"\x1f\x8b compressed")));
            answer.headers_mut().insert("content-encoding", "gzip".parse().expect("a value"));
            answer
        });
    let answer = get(&lab, "/a", "", "").await;
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("compressed"), "{answer}");
}

#[tokio::test]
async fn no_form_of_debug_shows_a_secret() {
    let rules = vec![rule(ALL, Some(SecretForm::Bearer))];
    let shown = format!("{rules:?}");
    assert!(shown.contains("hidden") && !shown.contains(SECRET), "{shown}");
    let lab = echoing(SecretForm::Bearer);
    let shown = format!("{:?}", Arc::clone(&lab.events));
    assert!(!format!("{:?}{shown}", lab.cell).contains("PRIVATE"));
}
