//! A client of MCP that calls one tool: over streamable HTTP, or over the standard streams of a
//! command (modelcontextprotocol.io, revision 2025-06-18).
//!
//! Each call has a separate session, as attacks must not meet what others have left. All sizes and
//! times are bounded: the server is what is tested.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode, Uri, body::Incoming, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

const REVISION: &str = "2025-06-18";
const SESSION: &str = "mcp-session-id";
/// Maximum bytes of an answer that are read.
const MAX_ANSWER: usize = 8 * 1024 * 1024;
/// Time for the steps before and after a call.
const MAX_SETUP_TIME: Duration = Duration::from_secs(20);
/// How often a request is sent again if the server is busy (429, 503), and the pause between.
const MAX_RETRIES: u32 = 20;
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Where distributions keep the roots of certificates.
const ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// A tool of a server, and the way to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolClient {
    pub address: ServerAddress,
    /// Name of the tool.
    pub tool: String,
    /// The argument that takes the command.
    pub argument: String,
    /// Further arguments of each call.
    pub arguments: Map<String, Value>,
}

/// The way to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAddress {
    Http(HttpAddress),
    /// Words of the command that serves on its standard streams.
    Command(Vec<String>),
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(address) => write!(formatter, "{address:?}"),
            Self::Command(words) => formatter.write_str(&words.join(" ")),
        }
    }
}

/// The address of a server.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpAddress {
    host: String,
    port: u16,
    /// Path and query.
    path: String,
    token: Option<String>,
    tls: Option<Tls>,
}

/// Without the token, which must not be in any message.
impl fmt::Debug for HttpAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}{}", self.host, self.port, self.path)
    }
}

#[derive(Debug, Clone)]
struct Tls(Arc<ClientConfig>);

impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Tls {}

impl HttpAddress {
    /// Parses an address. A token is sent as `Authorization: Bearer`.
    ///
    /// # Errors
    /// The address is not one of HTTP, or the host's roots of certificates cannot be read.
    pub fn parse(url: &str, token: Option<String>) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
        let tls = match uri.scheme_str() {
            Some("http") => None,
            Some("https") => Some(Tls(Arc::new(client_config()?))),
            Some(_) | None => return Err(format!("{url}: it must begin with http:// or https://")),
        };
        let host = uri.host().ok_or_else(|| format!("{url}: it has no host"))?;
        let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err("the token has characters that no header may have".to_owned());
        }
        Ok(Self { host: host.to_owned(), port, path, token, tls })
    }
}

fn client_config() -> Result<ClientConfig, String> {
    let mut store = RootCertStore::empty();
    for path in ROOTS.map(Path::new).into_iter().filter(|path| path.exists()) {
        let pem = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        // A bundle may hold certificates that rustls rejects; the others count.
        store.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).flatten());
    }
    if store.is_empty() {
        return Err("this machine has no roots of certificates (ca-certificates)".to_owned());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(store).with_no_client_auth())
}

/// What a server that is started for a call gets from the test.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    pub directory: &'a Path,
    /// Value of `COFFERDAM_SELFTEST_SECRET` in its environment.
    pub secret: &'a str,
}

/// An answer to a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolReply {
    /// Standard output if the server separates it, else all text.
    pub text: String,
    /// True if `text` is standard output alone.
    pub is_separate: bool,
    /// Exit code of the command, if the server reports it.
    pub code: Option<i32>,
}

impl ToolReply {
    /// Reads the result of `tools/call`: structured content as shells report it, else its texts.
    fn parse(result: &Value) -> Self {
        let structured = |field: &str| result.pointer(&format!("/structuredContent/{field}"));
        let code = ["exit_code", "exitCode", "returncode"].iter().find_map(|name| {
            structured(name).and_then(Value::as_i64).and_then(|code| i32::try_from(code).ok())
        });
        if let Some(stdout) = structured("stdout").and_then(Value::as_str) {
            return Self { text: stdout.to_owned(), is_separate: true, code };
        }
        let content = result.get("content").and_then(Value::as_array);
        let texts = content.into_iter().flatten().filter_map(|one| one.get("text")?.as_str());
        Self { text: texts.collect::<Vec<_>>().join("\n"), is_separate: false, code }
    }
}

impl ToolClient {
    /// Calls the tool with a command. An error of kind `TimedOut` means that the call did not end
    /// in its time.
    ///
    /// # Errors
    /// The server cannot be reached, refuses the call, or does not speak MCP.
    pub fn call(
        &self,
        command: &str,
        within: Duration,
        surroundings: Surroundings<'_>,
    ) -> io::Result<ToolReply> {
        let mut arguments = self.arguments.clone();
        arguments.insert(self.argument.clone(), Value::from(command));
        let request = json!({ "name": self.tool, "arguments": arguments });
        let result = self.requested("tools/call", request, within, surroundings)?;
        Ok(ToolReply::parse(&result))
    }

    /// Returns the names of the server's tools.
    ///
    /// # Errors
    /// The server cannot be reached or does not speak MCP.
    pub fn tools(&self, surroundings: Surroundings<'_>) -> io::Result<Vec<String>> {
        let result = self.requested("tools/list", json!({}), MAX_SETUP_TIME, surroundings)?;
        let tools = result.get("tools").and_then(Value::as_array);
        let names = tools.into_iter().flatten().filter_map(|tool| tool.get("name")?.as_str());
        Ok(names.map(str::to_owned).collect())
    }

    /// Sends one request in a new session.
    fn requested(
        &self,
        method: &str,
        parameters: Value,
        within: Duration,
        surroundings: Surroundings<'_>,
    ) -> io::Result<Value> {
        match &self.address {
            ServerAddress::Http(address) => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(address.requested(method, parameters, within))
            }
            ServerAddress::Command(words) => {
                StdioSession::start(words, surroundings)?.requested(method, parameters, within)
            }
        }
    }
}

fn initialize() -> Value {
    json!({
        "protocolVersion": REVISION, "capabilities": {},
        "clientInfo": { "name": "cofferdam-selftest", "version": env!("CARGO_PKG_VERSION") },
    })
}

fn request(id: u64, method: &str, parameters: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": parameters })
}

fn initialized() -> Value {
    json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })
}

/// Returns the result if this message is the response to a request.
fn result_of(message: &Value, id: u64) -> Option<io::Result<Value>> {
    if message.get("id").and_then(Value::as_u64) != Some(id) || message.get("method").is_some() {
        return None;
    }
    if let Some(result) = message.get("result") {
        return Some(Ok(result.clone()));
    }
    let reason = message.pointer("/error/message").and_then(Value::as_str);
    let reason = reason.unwrap_or("a response without result and error");
    Some(Err(io::Error::other(format!("the server answers: {reason}"))))
}

fn overdue() -> io::Error {
    io::Error::from(io::ErrorKind::TimedOut)
}

/// A session of HTTP, and the protocol that was agreed on.
#[derive(Debug, Default)]
struct HttpSession {
    id: Option<String>,
    revision: Option<String>,
}

trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

impl HttpAddress {
    async fn requested(
        &self,
        method: &str,
        parameters: Value,
        within: Duration,
    ) -> io::Result<Value> {
        let session = tokio::time::timeout(MAX_SETUP_TIME, self.opened())
            .await
            .map_err(|_| io::Error::other("the server does not answer `initialize`"))??;
        let message = request(2, method, &parameters);
        let exchange = self.answered(&session, 2, &message);
        let result =
            tokio::time::timeout(within, exchange).await.unwrap_or_else(|_| Err(overdue()));
        if session.id.is_some() {
            // Not every server lets clients end sessions.
            let closing = self.send(Method::DELETE, &session, None);
            tokio::time::timeout(MAX_SETUP_TIME, closing).await.map(drop).unwrap_or_default();
        }
        result
    }

    async fn opened(&self) -> io::Result<HttpSession> {
        let mut session = HttpSession::default();
        let message = request(1, "initialize", &initialize());
        let response = self.send(Method::POST, &session, Some(&message)).await?;
        let id = response.headers().get(SESSION);
        session.id = id.and_then(|id| id.to_str().ok()).map(str::to_owned);
        let result = response_of(response, 1).await?;
        let revision = result.get("protocolVersion").and_then(Value::as_str);
        session.revision = revision.map(str::to_owned);
        self.send(Method::POST, &session, Some(&initialized())).await?;
        Ok(session)
    }

    async fn answered(&self, session: &HttpSession, id: u64, message: &Value) -> io::Result<Value> {
        response_of(self.send(Method::POST, session, Some(message)).await?, id).await
    }

    /// Sends a message and returns the head of a successful response. Sends it again if the server
    /// is busy.
    async fn send(
        &self,
        method: Method,
        session: &HttpSession,
        message: Option<&Value>,
    ) -> io::Result<Response<Incoming>> {
        let mut retries = 0;
        loop {
            let response = self.sent(&method, session, message).await?;
            let status = response.status();
            let is_busy = status == StatusCode::TOO_MANY_REQUESTS
                || status == StatusCode::SERVICE_UNAVAILABLE;
            if is_busy && retries < MAX_RETRIES {
                retries += 1;
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            }
            if status.is_success() {
                return Ok(response);
            }
            let body = text_of(response).await.unwrap_or_default();
            let start: String = body.chars().take(200).collect();
            return Err(io::Error::other(format!("the server answers {status}: {start}")));
        }
    }

    async fn sent(
        &self,
        method: &Method,
        session: &HttpSession,
        message: Option<&Value>,
    ) -> io::Result<Response<Incoming>> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, self.port)).await?;
        let stream: Box<dyn ByteStream> = match &self.tls {
            None => Box::new(stream),
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
                let connector = tokio_rustls::TlsConnector::from(Arc::clone(&tls.0));
                Box::new(connector.connect(name, stream).await?)
            }
        };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        // Ends with the connection; an error of it is also one of the request.
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(&self.path)
            .header(header::HOST, format!("{}:{}", self.host, self.port))
            .header(header::ACCEPT, "application/json, text/event-stream")
            .header(header::CONTENT_TYPE, "application/json");
        let bearer = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let optional = [
            ("authorization", &bearer),
            (SESSION, &session.id),
            ("mcp-protocol-version", &session.revision),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        let body = message.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body))).map_err(io::Error::other)?;
        sender.send_request(request).await.map_err(io::Error::other)
    }
}

/// Reads the whole body of a response.
async fn text_of(mut response: Response<Incoming>) -> io::Result<String> {
    let mut bytes = Vec::new();
    while let Some(more) = next_part(&mut response).await? {
        bytes.extend_from_slice(&more);
        if bytes.len() > MAX_ANSWER {
            return Err(io::Error::other("the server's answer is too long"));
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

async fn next_part(response: &mut Response<Incoming>) -> io::Result<Option<Bytes>> {
    loop {
        match response.body_mut().frame().await {
            None => return Ok(None),
            Some(Err(error)) => return Err(io::Error::other(error)),
            // Trailers are skipped.
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

/// Reads the response to a request: one JSON object, or a stream of events that has it.
async fn response_of(mut response: Response<Incoming>, id: u64) -> io::Result<Value> {
    let missing = || io::Error::other("the server's answer has no response");
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if !is_stream {
        let message = serde_json::from_str(&text_of(response).await?)?;
        return result_of(&message, id).unwrap_or_else(|| Err(missing()));
    }
    let mut unread = Vec::new();
    // A server may keep the stream open after its response.
    while let Some(more) = next_part(&mut response).await? {
        unread.extend_from_slice(&more);
        for event in events(&mut unread) {
            if let Some(result) = result_of(&event, id) {
                return result;
            }
        }
        if unread.len() > MAX_ANSWER {
            return Err(io::Error::other("the server's answer is too long"));
        }
    }
    Err(missing())
}

/// Takes complete events from a stream and returns their data, as far as they are JSON (WHATWG
/// HTML, server-sent events).
fn events(unread: &mut Vec<u8>) -> Vec<Value> {
    let mut messages = Vec::new();
    let mut data = String::new();
    let mut taken = 0;
    let mut at = 0;
    for line in unread.split_inclusive(|byte| *byte == b'\n') {
        at += line.len();
        let Some(line) = line.strip_suffix(b"\n") else { break };
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned();
        if line.is_empty() {
            messages.extend(serde_json::from_str(&data).ok());
            data.clear();
            taken = at;
        } else if let Some(more) = line.strip_prefix("data:") {
            data.push_str(more.strip_prefix(' ').unwrap_or(more));
            data.push('\n');
        }
    }
    unread.drain(..taken);
    messages
}

/// A server on the standard streams of a process, killed when this is dropped.
#[derive(Debug)]
struct StdioSession {
    child: Child,
    lines: Receiver<String>,
}

impl StdioSession {
    fn start(words: &[String], surroundings: Surroundings<'_>) -> io::Result<Self> {
        let missing = || io::Error::from(io::ErrorKind::InvalidInput);
        let (program, rest) = words.split_first().ok_or_else(missing)?;
        let mut command = Command::new(program);
        command.args(rest).current_dir(surroundings.directory);
        command.env("COFFERDAM_SELFTEST_SECRET", surroundings.secret);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let (sender, lines) = sync_channel(16);
        std::thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            let mut line = Vec::new();
            while let Ok(length @ 1..) = limited_line(&mut stdout, &mut line) {
                let text = String::from_utf8_lossy(line.get(..length).unwrap_or_default());
                if sender.send(text.into_owned()).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, lines })
    }

    fn requested(mut self, method: &str, parameters: Value, within: Duration) -> io::Result<Value> {
        self.write(&request(1, "initialize", &initialize()))?;
        let opened = self.response(1, MAX_SETUP_TIME);
        opened.map_err(|error| match error.kind() == io::ErrorKind::TimedOut {
            true => io::Error::other("the server does not answer `initialize`"),
            false => error,
        })?;
        self.write(&initialized())?;
        self.write(&request(2, method, &parameters))?;
        self.response(2, within)
    }

    fn write(&mut self, message: &Value) -> io::Result<()> {
        let stdin = self.child.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        stdin.write_all(format!("{message}\n").as_bytes())
    }

    fn response(&self, id: u64, within: Duration) -> io::Result<Value> {
        let end = Instant::now() + within;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).map_err(|error| match error {
                RecvTimeoutError::Timeout => overdue(),
                RecvTimeoutError::Disconnected => io::Error::other("the server has ended"),
            })?;
            // A line that is not JSON is no message.
            let message = serde_json::from_str(&line).unwrap_or_default();
            if let Some(result) = result_of(&message, id) {
                return result;
            }
        }
    }
}

/// Reads a line of bounded length. Returns its length, 0 at the end or if it is longer.
fn limited_line(stdout: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    line.clear();
    let limit = u64::try_from(MAX_ANSWER).unwrap_or(u64::MAX);
    let length = io::Read::take(stdout, limit).read_until(b'\n', line)?;
    Ok(if line.ends_with(b"\n") { length } else { 0 })
}

impl Drop for StdioSession {
    fn drop(&mut self) {
        // A server ends with its standard input; one that does not is killed.
        drop(self.child.stdin.take());
        let end = Instant::now() + Duration::from_secs(2);
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > end {
                // Fails if it has ended meanwhile.
                self.child.kill().unwrap_or_default();
                self.child.wait().map(drop).unwrap_or_default();
                return;
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_taken_once_they_are_complete() {
        let mut unread =
            b": hello\r\nevent: message\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\ndata: {\"b\"".to_vec();
        assert_eq!(events(&mut unread), [json!({ "a": 1 })]);
        assert_eq!(unread, b"data: {\"b\"");
        unread.extend_from_slice(b": 2}\n\ndata: no JSON\n\n");
        assert_eq!(events(&mut unread), [json!({ "b": 2 })]);
        assert!(unread.is_empty());
    }

    #[test]
    fn a_response_is_recognized_by_its_id() {
        let response = json!({ "jsonrpc": "2.0", "id": 2, "result": { "x": 1 } });
        let result = |message: &Value, id| result_of(message, id).map(|result| result.ok());
        assert_eq!(result(&response, 2), Some(Some(json!({ "x": 1 }))));
        assert_eq!(result(&response, 3), None);
        // A request of the server may have the same id.
        assert_eq!(result(&json!({ "id": 2, "method": "ping" }), 2), None);
        let refused = json!({ "id": 2, "error": { "message": "no such tool" } });
        let refused = result_of(&refused, 2).and_then(Result::err).map(|error| error.to_string());
        assert_eq!(refused.as_deref(), Some("the server answers: no such tool"));
    }

    #[test]
    fn standard_output_is_preferred_to_all_text() {
        let separate = json!({
            "structuredContent": { "stdout": "a", "stderr": "b", "exit_code": 3 },
            "content": [{ "type": "text", "text": "a\nb" }],
        });
        let expected = ToolReply { text: "a".to_owned(), is_separate: true, code: Some(3) };
        assert_eq!(ToolReply::parse(&separate), expected);
        let mixed = json!({ "content": [{ "text": "a" }, { "type": "image" }, { "text": "b" }] });
        let expected = ToolReply { text: "a\nb".to_owned(), is_separate: false, code: None };
        assert_eq!(ToolReply::parse(&mixed), expected);
    }

    #[test]
    fn an_address_is_one_of_http_and_its_token_is_not_shown() {
        let address =
            HttpAddress::parse("http://127.0.0.1:8080/mcp?a=b", Some("s3cret".to_owned()));
        let address = address.expect("well-formed");
        assert_eq!(format!("{address:?}"), "127.0.0.1:8080/mcp?a=b");
        let port = |url: &str| HttpAddress::parse(url, None).map(|address| address.port);
        assert_eq!(port("http://[::1]/mcp"), Ok(80));
        assert!(port("ftp://a/mcp").is_err() && port("/mcp").is_err());
        assert!(HttpAddress::parse("http://a/mcp", Some("a\nb".to_owned())).is_err());
    }
}
