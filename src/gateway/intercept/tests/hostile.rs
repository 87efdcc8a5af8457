//! Tests of requests that are built to be read in two ways, or to reach what no rule grants.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use model::egress::SecretForm;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::lab::{HOST, Lab, SECRET, all, placeholder, rule};

fn open() -> Lab {
    Lab::plain(vec![rule(&[(&["GET", "POST"], &["/ok/**"])], None)])
}

#[tokio::test]
async fn granted_requests_pass_and_others_are_answered_403() {
    let lab = open();
    let answer = lab
        .raw(&format!(
            "GET /ok/a?b=c HTTP/1.1\r\nHost: {HOST}\r\n\r\nGET /no HTTP/1.1\r\nHost: {HOST}\r\n\r\n\
         DELETE /ok/a?secret=query HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"
        ))
        .await;
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1, "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 403 Forbidden").count(), 2, "{answer}");
    assert!(answer.contains("rule api takes GET for other paths"), "{answer}");
    assert!(
        answer.contains(r#"grant it: http = [{ methods = ["DELETE"], paths = ["/ok/a"] }]"#),
        "{answer}"
    );
    let lines: Vec<_> = lab.seen().into_iter().map(|seen| seen.line).collect();
    assert_eq!(lines, ["GET /ok/a?b=c HTTP/1.1"]);
    assert_eq!(
        lab.events(),
        [
            format!("GET http://{HOST}/ok/a 200"),
            format!("GET http://{HOST}/no; rule api takes GET for other paths"),
            format!("DELETE http://{HOST}/ok/a; rule api takes GET, POST"),
        ]
    );
}

#[tokio::test]
async fn a_path_with_a_text_direction_override_is_shown_encoded() {
    let lab = open();
    let answer = lab
        .raw(&format!("GET /no\u{202e}gpj HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"))
        .await;
    assert!(answer.contains(" 403 ") && answer.contains("/no%E2%80%AEgpj"), "{answer}");
    assert!(
        !answer.contains('\u{202e}') && lab.events().iter().all(|event| event.is_ascii()),
        "{answer}"
    );
}

/// Two hosts share an address and have a rule each.
#[tokio::test]
async fn a_request_is_judged_by_the_rules_of_its_own_host() {
    let lab = Lab::plain(vec![
        rule(&[(&["GET"], &["/one"])], None),
        rule(&[(&["GET"], &["/two"])], None),
    ])
    .pinned(&[&["one.example.test"], &["two.example.test"]]);
    for (host, path, is_granted) in [
        ("one.example.test", "/one", true),
        ("two.example.test", "/two", true),
        ("one.example.test", "/two", false),
        ("two.example.test", "/one", false),
        (HOST, "/one", false),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let status = if is_granted { "HTTP/1.1 200" } else { "HTTP/1.1 403" };
        let answer = lab.raw(&request).await;
        assert!(answer.starts_with(status), "{host} {path}: {answer}");
    }
    assert_eq!(lab.seen().len(), 2);
}

/// Whatever is sent, the server gets requests with one framing and one target.
#[tokio::test]
async fn no_request_is_smuggled_in_another() {
    let smuggled = format!("GET /no HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    let chunked = "Transfer-Encoding: chunked";
    for (name, head) in [
        ("CL.TE", format!("Content-Length: 4\r\n{chunked}")),
        ("TE.CL", format!("{chunked}\r\nContent-Length: 4")),
        ("two lengths", "Content-Length: 0\r\nContent-Length: 60".to_owned()),
        ("a list of lengths", "Content-Length: 0, 60".to_owned()),
        ("a signed length", "Content-Length: +0".to_owned()),
        ("a length with a blank", "Content-Length : 0".to_owned()),
        ("another coding", "Transfer-Encoding: xchunked".to_owned()),
        ("a coding after chunked", "Transfer-Encoding: chunked, identity".to_owned()),
        ("two codings", format!("{chunked}\r\nTransfer-Encoding: identity")),
        ("a coding with a tab", "Transfer-Encoding:\tchunked".to_owned()),
        ("obs-fold", "X: a\r\n Transfer-Encoding: chunked".to_owned()),
        ("a folded coding", "Transfer-Encoding:\r\n chunked".to_owned()),
        ("a bare carriage return", "X: a\rTransfer-Encoding: chunked".to_owned()),
        ("a nul", "X: a\0b".to_owned()),
        ("a lone line feed", "X: a\nTransfer-Encoding: chunked".to_owned()),
    ] {
        let lab = open();
        let request =
            format!("POST /ok/a HTTP/1.1\r\nHost: {HOST}\r\n{head}\r\n\r\n0\r\n\r\n{smuggled}");
        // Recorded as bytes: how a server would parse them does not matter.
        let (server, mut far) = tokio::io::duplex(64 * 1024);
        let client = lab.open_to(80, server);
        let record = tokio::spawn(async move {
            let mut sent = Vec::new();
            let mut part = [0; 4096];
            while let Ok(length @ 1..) = far.read(&mut part).await {
                sent.extend_from_slice(&part[..length]);
                // Ends the exchange, so that the next request must be judged again.
                far.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    .await
                    .expect("it is read");
            }
            String::from_utf8_lossy(&sent).to_ascii_lowercase()
        });
        let answer = tokio::time::timeout(
            std::time::Duration::from_secs(20),
            all(client, request.as_bytes()),
        )
        .await;
        answer.unwrap_or_else(|_| panic!("{name}: no answer"));
        let sent = tokio::time::timeout(std::time::Duration::from_secs(20), record).await;
        let sent = sent.unwrap_or_else(|_| panic!("{name}: no end")).expect("no panic");
        assert!(!sent.contains("/no"), "{name}: {sent}");
        let framings =
            sent.matches("content-length:").count() + sent.matches("transfer-encoding:").count();
        let requests = sent.matches(" http/1.1\r\n").count();
        assert!(framings <= requests && requests <= 1, "{name}: {sent}");
    }
}

#[tokio::test]
async fn a_request_for_another_host_is_refused() {
    let fine = format!("Host: {HOST}");
    for (line, headers) in [
        ("GET /ok/a", "Host: other.example.test".to_owned()),
        ("GET /ok/a", format!("{fine}:81")),
        ("GET /ok/a", format!("Host: user@{HOST}")),
        ("GET /ok/a", format!("{fine}:")),
        ("GET /ok/a", format!("{fine}.")),
        ("GET /ok/a", format!("{fine}\r\nHost: other.example.test")),
        ("GET /ok/a", format!("{fine}\r\n{fine}")),
        ("GET /ok/a", "Host:".to_owned()),
        ("GET /ok/a", "X: y".to_owned()),
        ("GET http://other.example.test/ok/a", fine.clone()),
        (&*format!("GET http://{HOST}/ok/a"), "Host: other.example.test".to_owned()),
        (&*format!("GET https://{HOST}/ok/a"), fine.clone()),
        (&*format!("GET http://other.example.test@{HOST}/ok/a"), fine.clone()),
        ("CONNECT other.example.test:443", fine.clone()),
        (&*format!("CONNECT {HOST}:80"), fine.clone()),
        ("OPTIONS *", fine.clone()),
        ("TRACE /ok/a", fine.clone()),
        ("GET /ok/../no", fine.clone()),
        ("GET /ok/%2e%2e/no", fine.clone()),
        ("GET /ok/a", format!("{fine}\r\nX-Original-URL: /no")),
        ("GET /ok/a", format!("{fine}\r\nX_Rewrite_Url: /no")),
        ("GET /ok/a", format!("{fine}\r\nX-Forwarded-Host: other.example.test")),
        ("POST /ok/a", format!("{fine}\r\nX-HTTP-Method-Override: DELETE")),
        ("POST /ok/a", format!("{fine}\r\nX_Http_Method_Override: delete")),
        ("POST /ok/a?x=y&_method=delete", fine.clone()),
        ("POST /ok/a?%5Fmethod=%44ELETE", fine.clone()),
        ("GET /ok/a", format!("{fine}\r\nConnection: Upgrade\r\nUpgrade: websocket")),
        ("PRI *", fine.clone()),
    ] {
        let lab = open();
        let answer = lab.raw(&format!("{line} HTTP/1.1\r\n{headers}\r\n\r\n")).await;
        let is_refused = answer.starts_with("HTTP/1.1 403") || answer.starts_with("HTTP/1.1 400");
        assert!(is_refused, "{line} {headers}: {answer}");
        assert!(lab.seen().is_empty(), "{line} {headers}: {:?}", lab.seen());
    }
}

#[tokio::test]
async fn a_query_may_name_a_method_that_is_granted() {
    for query in [
        "_method=get&method=card",
        "_method=POST&_HttpMethod=get",
        "name=_method&x=DELETE",
        "_method",
    ] {
        let lab = open();
        let line = format!("POST /ok/a?{query} HTTP/1.1");
        let request = format!("{line}\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
        let answer = lab.raw(&request).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{query}: {answer}");
        assert_eq!(lab.seen().first().map(|seen| seen.line.clone()), Some(line));
    }
}

/// Makes a rule with a secret for GET and a rule without one for DELETE, for the same host.
fn two_rules() -> Lab {
    let read = rule(&[(&["GET", "COPY"], &["/ok/**"])], Some(SecretForm::Bearer));
    let delete = rule(&[(&["DELETE"], &["/**"]), (&["COPY"], &["/no/**"])], None);
    Lab::tls(vec![read, delete], &["http/1.1"], HOST)
}

#[tokio::test]
async fn a_secret_is_put_only_into_what_its_own_rule_grants_in_every_reading() {
    let token = format!("Authorization: Bearer {}\r\n", placeholder());
    // Positive controls: each rule takes its own methods, and requests of the first get its secret.
    let lab = two_rules();
    let ask = async |lab: &Lab, line: &str, headers: &str| {
        let head = format!("{line} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n{headers}\r\n");
        lab.raw_tls(&head).await
    };
    for (line, headers) in [
        ("GET /ok/a", token.clone()),
        ("GET /ok/a?_method=GET", token.clone()),
        ("GET /ok/a", format!("{token}X-HTTP-Method-Override: get\r\n")),
        ("COPY /ok/a", format!("{token}Destination: https://{HOST}/ok/b\r\n")),
        ("DELETE /ok/a", String::new()),
    ] {
        let answer = ask(&lab, line, &headers).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{line} {headers}: {answer}");
    }
    assert_eq!(lab.seen().len(), 5);
    assert!(
        lab.seen()[..4]
            .iter()
            .all(|seen| seen.headers["authorization"] == format!("Bearer {SECRET}"))
    );
    assert!(ask(&lab, "DELETE /ok/a", &token).await.starts_with("HTTP/1.1 403"));
    for (line, headers) in [
        ("GET /ok/a", "X-HTTP-Method-Override: DELETE\r\n"),
        ("GET /ok/a", "x-http-method-override: delete\r\n"),
        ("GET /ok/a", "X_HTTP_METHOD_OVERRIDE: DELETE\r\n"),
        ("GET /ok/a", "X.HTTP.Method.Override: DELETE\r\n"),
        ("GET /ok/a", "X-HTTP-Method: DELETE\r\n"),
        ("GET /ok/a", "X-Method-Override: GET, DELETE\r\n"),
        ("GET /ok/a", "X-Method-Override: GET\r\nX-Method-Override: DELETE\r\n"),
        ("GET /ok/a", "X-HTTP-Method-Override: GET\r\nX-Forwarded-Method: DELETE\r\n"),
        ("GET /ok/a?_method=DELETE", ""),
        ("GET /ok/a?_method=GET&_method=delete", ""),
        ("GET /ok/a?x;_method=DELETE", ""),
        ("GET /ok/a?%5f%4dethod=%44elete", ""),
        ("GET /ok/a?%255fmethod=%2544elete", ""),
        ("GET /ok/a?+_method=+DELETE", ""),
        ("GET /ok/a?.method=DELETE", ""),
        ("GET /ok/a?_method[]=DELETE", ""),
        ("GET /ok/a?_method%00x=DELETE", ""),
        ("GET /ok/a?_HttpMethod=DELETE", ""),
        ("GET /ok/a?X-HTTP-Method-Override=DELETE", ""),
        ("GET /ok/a?method=delete", ""),
        ("GET /ok/a?_method=TRACE", ""),
        ("GET /ok/a", "X-Original-URI: /no\r\n"),
        ("GET /ok/a", "X.Rewrite.URL: /no\r\n"),
        ("GET /ok/a", "X-Envoy-Original-Path: /no\r\n"),
        ("COPY /ok/a", "Destination: /no/a\r\n"),
        ("COPY /ok/a", "Destination: https://other.example.test/ok/a\r\n"),
    ] {
        let lab = two_rules();
        let answer = ask(&lab, line, &format!("{token}{headers}")).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{line} {headers}: {answer}");
        assert!(lab.seen().is_empty(), "{line} {headers}: {:?}", lab.seen());
    }
}

#[tokio::test]
async fn a_request_for_the_host_in_any_spelling_is_passed_on() {
    let fine = format!("Host: {HOST}");
    for (line, headers) in [
        ("GET /ok/a", fine.clone()),
        ("GET /ok/a", format!("Host: {}:80", HOST.to_ascii_uppercase())),
        (&*format!("GET http://{HOST}/ok/a"), fine.clone()),
        ("POST /ok/a", format!("{fine}\r\nX-HTTP-Method-Override: GET")),
        (
            "GET /ok/a",
            format!(
                "{fine}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk"
            ),
        ),
    ] {
        let lab = open();
        let answer = lab.raw(&format!("{line} HTTP/1.1\r\n{headers}\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{line} {headers}: {answer}");
        let seen = lab.seen();
        let seen = seen.first().expect("a request");
        assert!(seen.line.ends_with(" /ok/a HTTP/1.1"), "{seen:?}");
        assert_eq!(seen.headers.get("host").expect("a host"), HOST);
        for name in ["upgrade", "connection", "http2-settings"] {
            assert!(!seen.headers.contains_key(name), "{seen:?}");
        }
    }
}

#[tokio::test]
async fn a_head_beyond_bounds_is_refused_and_reaches_no_server() {
    let lab = open();
    let long =
        format!("GET /ok/a HTTP/1.1\r\nHost: {HOST}\r\nX: {}\r\n\r\n", "a".repeat(200 * 1024));
    let many = format!("GET /ok/a HTTP/1.1\r\nHost: {HOST}\r\n{}\r\n", "X: y\r\n".repeat(500));
    let target = format!(
        "GET /ok/{} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n",
        "a".repeat(9000)
    );
    for request in [long, many, target] {
        let mut stream = lab.open(80);
        let (mut reading, mut writing) = tokio::io::split(&mut stream);
        let mut answer = Vec::new();
        // The answer comes before everything is read, so the write may fail.
        let (_, read) =
            tokio::join!(writing.write_all(request.as_bytes()), reading.read_to_end(&mut answer));
        read.expect("an answer");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    assert!(lab.seen().is_empty());
}

#[tokio::test]
async fn a_handshake_must_name_the_pinned_host() {
    let lab = Lab::tls(vec![rule(&[(&["GET"], &["/**"])], None)], &["h2", "http/1.1"], HOST);
    for name in ["other.example.test", "127.0.0.1"] {
        assert!(lab.open_tls(name, &["http/1.1"]).await.is_err(), "{name}");
    }
    assert_eq!(lab.events().len(), 2, "{:?}", lab.events());
    assert!(
        lab.events()[0].starts_with("TLS for other.example.test; the address was resolved for"),
        "{:?}",
        lab.events()
    );
    // Domain fronting: the handshake names one host and the request another.
    let answer = lab
        .raw_tls("GET / HTTP/1.1\r\nHost: other.example.test\r\nConnection: close\r\n\r\n")
        .await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(lab.seen().is_empty());
    let answer =
        lab.raw_tls(&format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n")).await;
    assert!(answer.ends_with("hello\n"), "{answer}");
}

#[tokio::test]
async fn a_server_that_cannot_be_verified_gets_no_request() {
    for certified in ["other.example.test", "example.test"] {
        let lab = Lab::tls(vec![rule(&[(&["GET"], &["/**"])], None)], &["http/1.1"], certified);
        let answer = lab
            .raw_tls(&format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"))
            .await;
        assert!(
            answer.starts_with("HTTP/1.1 502") && answer.contains("cannot be trusted"),
            "{answer}"
        );
        assert!(lab.seen().is_empty());
    }
}

#[tokio::test]
async fn http2_is_judged_stream_by_stream() {
    let lab = Lab::tls(vec![rule(&[(&["GET"], &["/ok/**"])], None)], &["h2", "http/1.1"], HOST);
    let stream = lab.open_tls(HOST, &["h2", "http/1.1"]).await.expect("a handshake");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = handshake.expect("HTTP/2");
    tokio::spawn(connection);
    let ask = async |method: &str, uri: &str, host: Option<&str>| {
        let mut request = Request::builder().method(method).uri(uri);
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let request = request.body(Empty::<Bytes>::new()).expect("a request");
        let answer = sender.clone().send_request(request).await.expect("an answer");
        let status = answer.status();
        let text = answer.into_body().collect().await.expect("a body").to_bytes();
        (status, String::from_utf8_lossy(&text).into_owned())
    };
    assert_eq!(
        ask("GET", &format!("https://{HOST}/ok/a"), None).await,
        (StatusCode::OK, "hello\n".into())
    );
    assert_eq!(ask("GET", &format!("https://{HOST}/ok/b"), Some(HOST)).await.0, StatusCode::OK);
    for (method, uri, host) in [
        ("GET", format!("https://{HOST}/no"), None),
        ("POST", format!("https://{HOST}/ok/a"), None),
        ("GET", "https://other.example.test/ok/a".to_owned(), None),
        ("GET", "https://other.example.test/ok/a".to_owned(), Some(HOST)),
        ("GET", format!("https://{HOST}/ok/a"), Some("other.example.test")),
        ("GET", format!("http://{HOST}/ok/a"), None),
        ("GET", format!("https://{HOST}:444/ok/a"), None),
        ("GET", format!("https://{HOST}./ok/a"), None),
        ("GET", format!("https://{HOST}/ok/a?_method=DELETE"), None),
    ] {
        assert_eq!(
            ask(method, &uri, host).await.0,
            StatusCode::FORBIDDEN,
            "{method} {uri} {host:?}"
        );
    }
    let seen: Vec<_> = lab.seen().into_iter().map(|seen| seen.line).collect();
    assert_eq!(
        seen,
        [format!("GET https://{HOST}/ok/a HTTP/2.0"), format!("GET https://{HOST}/ok/b HTTP/2.0")]
    );
}

#[tokio::test]
async fn a_client_is_offered_the_version_that_its_server_speaks() {
    for (server, chosen) in
        [(&["h2", "http/1.1"][..], "h2"), (&["http/1.1"], "http/1.1"), (&[], "http/1.1")]
    {
        let lab = Lab::tls(vec![rule(&[(&["GET"], &["/**"])], None)], server, HOST);
        let stream = lab.open_tls(HOST, &["h2", "http/1.1"]).await.expect("a handshake");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(chosen.as_bytes()));
    }
}

#[tokio::test]
async fn trailers_of_a_request_are_left_out() {
    let lab = open();
    let answer = lab.raw(&format!(
        "POST /ok/a HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\nConnection: close\r\n\r\n\
         3\r\nabc\r\n0\r\nHost: other.example.test\r\nContent-Length: 5\r\n\r\n"
    ))
    .await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let seen = lab.seen();
    let seen = seen.first().expect("a request");
    assert_eq!((&seen.body[..], seen.headers.get("trailer")), (&b"abc"[..], None));
}
