//! Requests of a hostile cell: paths as servers may read them, and bytes on a connection that is intercepted.

use std::sync::Arc;

use gateway::intercept::{
    InterceptAuthority, Intercepted, Interception, PinnedRule, RequestEvents, RequestRule,
};
use gateway::refusal::NetworkRefusal;
use model::egress::{EgressRule, HostPattern, HttpRule, PathPattern, Protocols, RequestPath};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::blocking;

/// A path that a rule for one directory takes stays in it, on a server that decodes, merges slashes and follows dots.
pub fn paths(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (glob, path) = text.split_once('\n').unwrap_or(("/ok/**", text));
    if let (Ok(glob), Ok(path)) = (PathPattern::parse(glob), RequestPath::parse(path)) {
        path.is_taken_by(&[glob]);
    }
    let granted = [PathPattern::parse("/ok/**").expect("a glob")];
    if RequestPath::parse(path).is_ok_and(|path| path.is_taken_by(&granted)) {
        assert_eq!(resolved(path).first().map(String::as_str), Some("ok"), "{path}");
    }
}

/// Resolves a path as a lenient server would.
fn resolved(path: &str) -> Vec<String> {
    let mut decoded = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                decoded.push(*first);
                rest = after;
            }
        }
    }
    let mut stack: Vec<String> = Vec::new();
    for segment in String::from_utf8_lossy(&decoded).split(['/', '\\']) {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => drop(stack.pop()),
            name => stack.push(name.to_owned()),
        }
    }
    stack
}

/// Discards all notifications.
struct Untold;

impl RequestEvents for Untold {
    fn denied(&self, _: &str, _: NetworkRefusal) {}
    fn answered(&self, _: &str, _: u16) {}
}

/// The only host that the rule of [`requests`] has.
const HOST: &str = "h.example.test";

/// Bytes on a connection: all that reaches the server is requests with one framing each, for the one host and
/// the granted directory.
pub fn requests(bytes: &[u8]) {
    let hosts: [HostPattern; 1] = [HOST.parse().expect("a host")];
    let authority = InterceptAuthority::generate(&hosts).expect("an authority");
    let root = gateway::intercept::trust::TrustFiles::new(b"", authority.certificate());
    let interception = Interception::new(authority, &root.bundle).expect("a root");
    let rule = EgressRule {
        id: "r".into(),
        hosts: hosts.to_vec(),
        nets: Vec::new(),
        ports: Vec::new(),
        protocols: Protocols::TCP,
        http: vec![HttpRule {
            methods: vec!["GET".into(), "POST".into()],
            paths: vec!["/ok/**".into()],
        }],
        secret: None,
        why: String::new(),
    };
    let rule = RequestRule::new(&rule, None).expect("a rule");
    let rules = vec![PinnedRule { rule, names: vec![HOST.into()] }];
    let to = Intercepted { port: 80, rules };
    blocking(async move {
        let (mut client, near) = tokio::io::duplex(4096);
        let (server, far) = tokio::io::duplex(4096);
        let cell = interception.for_cell([7; 16]);
        let sends = async {
            // A connection that ends early takes no more.
            drop(client.write_all(bytes).await);
            drop(client.shutdown().await);
            drop(client.read_to_end(&mut Vec::new()).await);
        };
        let serves = async { drop(cell.serve(to, near, server, Arc::new(Untold)).await) };
        tokio::join!(sends, serves, strict(far));
    });
}

/// A server that takes no request but a plain one.
async fn strict(stream: tokio::io::DuplexStream) {
    let mut stream = tokio::io::BufReader::new(stream);
    while let Some(head) = head(&mut stream).await {
        let mut lines = head.split("\r\n");
        let line = lines.next().unwrap_or_default();
        let words: Vec<_> = line.split(' ').collect();
        let [method @ ("GET" | "POST"), target, "HTTP/1.1"] = words.as_slice() else {
            panic!("a line of another form: {line}")
        };
        assert!(target.starts_with("/ok"), "{method} {target}");
        let fields: Vec<_> = lines.filter_map(|line| line.split_once(": ")).collect();
        let of = |name: &str| {
            let all = fields.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
            all.map(|(_, value)| *value).collect::<Vec<_>>()
        };
        assert_eq!(of("host"), [HOST], "{head}");
        match (of("content-length").as_slice(), of("transfer-encoding").as_slice()) {
            ([], []) => {}
            ([length], []) => drop(exactly(&mut stream, length.parse().expect("a length")).await),
            ([], ["chunked"]) => chunks(&mut stream).await,
            other => panic!("framings {other:?}"),
        }
        if stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.is_err() {
            return;
        }
    }
}

/// Reads up to an empty line; nothing where the connection ended before it.
async fn head(stream: &mut (impl AsyncReadExt + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8_lossy(&head).trim_end().to_owned())
}

async fn exactly(stream: &mut (impl AsyncReadExt + Unpin), length: u64) -> Option<()> {
    for _ in 0..length {
        stream.read_u8().await.ok()?;
    }
    Some(())
}

async fn chunks(stream: &mut (impl AsyncReadExt + Unpin)) {
    loop {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let Ok(byte) = stream.read_u8().await else { return };
            line.push(byte);
        }
        let line = String::from_utf8_lossy(&line);
        let length = u64::from_str_radix(line.trim_end(), 16).expect("a chunk's length");
        if exactly(stream, length + 2).await.is_none() || length == 0 {
            return;
        }
    }
}
