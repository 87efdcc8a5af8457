//! Requests of a hostile client of the listener: bodies of `/run`, tokens, heads of requests, and lines over raw TCP.

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Extension, Request};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::routing::any;
use axum::{Router, middleware};
use config::policy::Principal;
use http::ListenerLimits;
use http::access::browser::{ListenerReach, ServedNames};
use http::access::tokens::{Token, bearer};
use http::access::{AccessRules, Client, CredentialStore, Credentials, WithoutToken};
use http::door::MakeHandler;
use http::serve::{Front, Listener, serve};
use mcp::lines::{Ends, Lines, SharedBounds};
use mcp::server::Continuity;
use rmcp::ServerHandler;
use rmcp::transport::Transport;
use service::apart::FILES;

use super::blocking;

/// A body of `/run`, behind a line with its type: its files stay in the command's directory, and are so many.
pub fn run_bodies(bytes: &[u8]) {
    let middle = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (kind, body) = bytes.split_at(middle);
    let Ok(kind) = HeaderValue::from_bytes(kind) else { return };
    let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, kind)]);
    let body = Bytes::copy_from_slice(body.get(1..).unwrap_or_default());
    blocking(async {
        match http::run::checked(&headers, body).await {
            Ok(run) => {
                let mut given = 0;
                let mut named = 0;
                for path in run.given() {
                    given += 1;
                    assert!(stays(path), "{path:?}");
                }
                for path in run.named() {
                    named += 1;
                    assert!(stays(path), "{path:?}");
                }
                assert!(given <= FILES && named <= FILES);
            }
            Err(status) => assert_eq!(status, 400),
        }
    });
}

/// Returns true for a path that stays below where it is opened, component by component as the kernel walks it.
fn stays(path: &str) -> bool {
    let mut components = std::path::Path::new(path).components().peekable();
    components.peek().is_some()
        && components.all(|one| matches!(one, std::path::Component::Normal(_)))
        && !path.contains(['\0', '\n'])
}

/// The token of the client `known`.
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A token as an operator wrote it, and a header as a client sent it: only the whole token is one.
pub fn tokens(bytes: &[u8]) {
    let middle = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (written, header) = bytes.split_at(middle);
    let header = header.get(1..).unwrap_or_default();
    if let Ok(text) = std::str::from_utf8(written)
        && let Ok(token) = Token::new(text, Principal::named("x"))
    {
        assert!((32..=1024).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_graphic()));
        let sent = format!("Bearer {text}");
        assert_eq!(bearer(sent.as_bytes()), Some(text.as_bytes()));
        assert!(!format!("{token:?}").contains(text));
    }
    if let Some(secret) = bearer(header) {
        assert!(!secret.is_empty());
        assert!(header.ends_with(secret) || header.trim_ascii_end().ends_with(secret));
    }
}

/// Handler of a server that has nothing.
#[derive(Clone)]
struct Nothing;

impl ServerHandler for Nothing {}

/// Doors to no server, with a route that counts the requests that came through.
struct Probe;

impl MakeHandler for Probe {
    type Handler = Nothing;

    fn handler(&self, _: &Principal, _: Continuity) -> Nothing {
        Nothing
    }

    fn more(self: &Arc<Self>, _: &http::ListenerLimits) -> Router {
        let judged = middleware::from_fn(async |request: Request, next: middleware::Next| {
            judge(&request);
            next.run(request).await
        });
        Router::new().route("/probe", any(probe)).route("/probe/{*rest}", any(probe)).layer(judged)
    }
}

async fn probe(Extension(client): Extension<Client>, body: Bytes) -> String {
    assert_eq!(client.principal.name(), "known");
    SERVED.fetch_add(1, Ordering::Relaxed);
    body.len().to_string()
}

/// Requests that came through.
static SERVED: AtomicU64 = AtomicU64::new(0);
/// Reason why one of them should not have.
static WRONG: Mutex<Option<String>> = Mutex::new(None);

/// Checks a request that passed every check of the listener.
fn judge(request: &Request) {
    let all = |name: header::HeaderName| request.headers().get_all(name).iter().collect::<Vec<_>>();
    let hosts = all(header::HOST);
    let host = hosts.first().map(|host| host.as_bytes()).unwrap_or_default();
    let name = host.split(|byte| *byte == b':').next().unwrap_or_default();
    // On a socket, an address and a word without a dot are names of the server.
    let is_ours = host.starts_with(b"[") || !name.contains(&b'.') || is_address(name);
    let framed = all(header::CONTENT_LENGTH).len() + all(header::TRANSFER_ENCODING).len();
    let tokens = all(header::AUTHORIZATION);
    let is_known = |value: &&HeaderValue| {
        let value = value.as_bytes();
        value.len() > 7 && value.split_at(7).1.trim_ascii() == SECRET.as_bytes()
    };
    let is_right = hosts.len() == 1 && is_ours && framed <= 1;
    if !is_right || tokens.len() != 1 || !tokens.iter().all(is_known) {
        let mut wrong = WRONG.lock().unwrap_or_else(PoisonError::into_inner);
        *wrong = Some(format!("{:?} {:?}", request.uri(), request.headers()));
    }
}

fn is_address(name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok_and(|name| name.parse::<std::net::Ipv4Addr>().is_ok())
}

/// Returns a connection to a listener with one token, which there is one of for all runs.
fn connected() -> UnixStream {
    static AT: OnceLock<std::path::PathBuf> = OnceLock::new();
    let at = AT.get_or_init(|| {
        let at = std::env::temp_dir().join(format!("cofferdam-fuzz-{}.sock", std::process::id()));
        drop(std::fs::remove_file(&at));
        let listener = UnixListener::bind(&at).expect("a socket");
        std::thread::spawn(move || served(listener));
        at
    });
    let stream = UnixStream::connect(at).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
    stream
}

fn own_uid() -> u32 {
    std::fs::metadata("/proc/self").expect("a process").uid()
}

fn served(listener: UnixListener) {
    let names =
        ServedNames { reach: ListenerReach::Socket, hosts: Vec::new(), origins: Vec::new() };
    let known = Token::new(SECRET, Principal::named("known")).expect("a token");
    let store = CredentialStore::new(Credentials::new(vec![known], None, None, None));
    let front = Front {
        handlers: Probe,
        access: AccessRules::new(names, &store, WithoutToken::Refused),
        listener: Listener::Unix { socket: listener, owner: own_uid() },
        limits: ListenerLimits::default(),
    };
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    runtime.block_on(serve(front, Ends::default())).expect("it serves");
}

/// Bytes on a connection to the listener: what comes through has one name of the server, one framing and the right
/// token, and no answer is a fault. `TOKEN` in them is the right token.
pub fn heads(bytes: &[u8]) {
    let bytes = replaced(bytes, b"TOKEN", SECRET.as_bytes());
    let mut stream = connected();
    // A connection that ends early takes no more.
    drop(stream.write_all(&bytes));
    drop(stream.shutdown(std::net::Shutdown::Write));
    let mut output = Vec::new();
    drop(stream.read_to_end(&mut output));
    let wrong = WRONG.lock().unwrap_or_else(PoisonError::into_inner).take();
    assert_eq!(wrong, None);
    // Each answer begins behind the body of the one before; a body of ours holds no such line.
    for (at, _) in output.windows(9).enumerate().filter(|(_, it)| *it == b"HTTP/1.1 ") {
        let status = output.get(at + 9..at + 12).unwrap_or_default();
        assert_ne!(status, b"500", "{}", output.escape_ascii());
    }
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut made = Vec::new();
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        match rest.strip_prefix(from) {
            Some(behind) => {
                made.extend(to);
                rest = behind;
            }
            None => {
                made.push(*first);
                rest = after;
            }
        }
    }
    made
}

/// Bytes of a connection over raw TCP, in pieces: input that starts with no message gets no answer, and each message
/// that was accepted or refused gets one line of JSON. No memory is held once the input has ended.
pub fn tcp_lines(bytes: &[u8]) {
    if !bytes.first().is_some_and(|first| http::tcp::begins_a_message(*first)) {
        return;
    }
    let most = bytes.split(|byte| *byte == b'\n').count();
    let size = 1 + bytes.len() % 7;
    let input = bytes.to_vec();
    blocking(async move {
        let room = SharedBounds::room(1 << 16);
        let own = Principal::named("tcp-1");
        let bounds = SharedBounds::new(Arc::clone(&room), own, || Box::new(()));
        let (mut client, reader) = tokio::io::duplex(size);
        let (writer, mut answers) = tokio::io::duplex(1 << 20);
        let mut lines = Lines::shared(reader, writer, Ends::default(), bounds);
        let sends = async {
            drop(tokio::io::AsyncWriteExt::write_all(&mut client, &input).await);
            drop(client);
        };
        let takes = async {
            let mut messages = 0;
            while lines.receive().await.is_some() {
                messages += 1;
            }
            drop(lines);
            messages
        };
        let reads = async {
            let mut text = String::new();
            drop(tokio::io::AsyncReadExt::read_to_string(&mut answers, &mut text).await);
            text
        };
        let ((), messages, text) = tokio::join!(sends, takes, reads);
        assert!(messages <= most, "{messages} of {most} lines");
        for line in text.lines() {
            let answer: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let code = answer.pointer("/error/code");
            assert!(code.is_some_and(serde_json::Value::is_i64), "{answer}");
        }
        assert_eq!(room.taken(), 0);
    });
}
