//! The same exchanges over HTTP: what a client gets is what it gets over standard input and output, line by line.

use std::io::ErrorKind;
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::{Value, json};

use super::transcript::{compare, modern, plain, transcript};
use crate::client::{ALICE, Connection, bearer, patience, request, with_tokens};

/// A server with a listener, and a session of its client with the stream that it opens for what is of no request of its
/// own.
struct Session {
    server: crate::client::Server,
    id: String,
    next: u64,
    /// Messages, each with where it came.
    coming: Receiver<(Way, Value)>,
    sender: Sender<(Way, Value)>,
    /// Messages of the session's stream that no transcript was compared with.
    streamed: Vec<Value>,
}

/// Ways of a message to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Behind the request that it belongs to.
    Answer,
    Stream,
}

/// Passes the messages of an answer on as they come, until its end.
fn pass(mut connection: Connection, way: Way, to: Sender<(Way, Value)>) {
    std::thread::spawn(move || {
        let mut raw = Vec::new();
        let mut taken = 0;
        let mut piece = [0; 4096];
        loop {
            match connection.0.read(&mut piece) {
                Ok(0) => return,
                Ok(length) => raw.extend_from_slice(piece.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
            for message in messages(&body(&raw)).into_iter().skip(taken) {
                taken += 1;
                if to.send((way, plain(message))).is_err() {
                    return;
                }
            }
        }
    });
}

/// Returns the received part of the body, without the lengths of its chunks.
fn body(raw: &[u8]) -> String {
    let text = String::from_utf8_lossy(raw).into_owned();
    let Some((head, mut rest)) = text.split_once("\r\n\r\n") else { return String::new() };
    if !head.to_lowercase().contains("transfer-encoding: chunked") {
        return rest.to_owned();
    }
    let mut whole = String::new();
    while let Some((size, more)) = rest.split_once("\r\n") {
        let Some(piece) = usize::from_str_radix(size, 16).ok().and_then(|size| more.get(..size))
        else {
            break;
        };
        whole.push_str(piece);
        rest = more.get(piece.len() + 2..).unwrap_or_default();
    }
    whole
}

/// Whole messages: events of a stream, or the one text.
fn messages(body: &str) -> Vec<Value> {
    if let Ok(message) = serde_json::from_str(body) {
        return vec![message];
    }
    let lines = body.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let data = lines.filter_map(|line| line.strip_prefix("data:"));
    data.filter_map(|data| serde_json::from_str(data.trim()).ok()).collect()
}

impl Session {
    fn open(project: &std::path::Path, capabilities: &Value) -> Self {
        let project = project.to_str().expect("UTF-8");
        let server = with_tokens(&["--toolchains", "none", "--project", project]);
        let (sender, coming) = channel();
        let (id, streamed) = Default::default();
        let mut session = Self { server, id, next: 1, coming, sender, streamed };
        let hello = json!({
            "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "clientInfo": {"name": "test", "version": "1"},
        });
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello});
        let bearer = bearer(ALICE);
        let answer = session.server.mcp(&[("authorization", &bearer)], &hello);
        session.id = answer.header("mcp-session-id").expect("an id").to_owned();
        session.notify(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        let mut connection = session.server.connect();
        let headers = [
            ("authorization", bearer.as_str()),
            ("mcp-session-id", session.id.as_str()),
            ("accept", "text/event-stream"),
        ];
        connection.send(&request("GET", "/mcp", &headers, ""));
        pass(connection, Way::Stream, session.sender.clone());
        session
    }

    /// The next message, whichever way it comes.
    fn next(&mut self) -> (Way, Value) {
        let next = self.coming.recv_timeout(patience()).expect("a message in time");
        if next.0 == Way::Stream {
            self.streamed.push(next.1.clone());
        }
        next
    }

    /// Compares what came behind requests, and what came by the stream, with a transcript of standard output. The order
    /// is that of the transcript for each way.
    fn compare(&mut self, name: &str, answered: &[Value]) {
        let is_streamed = |line: &Value| {
            let method = line["method"].as_str().unwrap_or_default();
            !method.is_empty() && method != "notifications/progress"
        };
        let (streamed, behind): (Vec<Value>, Vec<Value>) =
            transcript(name).into_iter().partition(is_streamed);
        assert_eq!(answered, behind, "{name}");
        while self.streamed.len() < streamed.len() {
            self.next();
        }
        assert_eq!(std::mem::take(&mut self.streamed), streamed, "{name}");
    }

    /// Sends a message that has no answer.
    fn notify(&self, message: &Value) {
        let bearer = bearer(ALICE);
        let headers = [("authorization", &*bearer), ("mcp-session-id", &*self.id)];
        let answer = self.server.mcp(&headers, message);
        assert_eq!(answer.status, 202, "{message}: {answer:?}");
    }

    /// Sends a request; every message that comes behind it, up to its answer. `respond` answers the server's own requests.
    fn exchange(
        &mut self,
        method: &str,
        params: Value,
        mut respond: impl FnMut(&Value) -> Option<Value>,
    ) -> Vec<Value> {
        self.next += 1;
        let id = self.next;
        let version = params.pointer("/_meta/io.modelcontextprotocol~1protocolVersion").cloned();
        let name = params.get("name").or_else(|| params.get("uri")).cloned();
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let bearer = bearer(ALICE);
        let mut headers = vec![
            ("authorization", bearer.as_str()),
            ("accept", "application/json, text/event-stream"),
            ("content-type", "application/json"),
        ];
        match version.as_ref().and_then(Value::as_str) {
            Some(version) => {
                headers.extend([("mcp-protocol-version", version), ("mcp-method", method)]);
                headers.extend(name.as_ref().and_then(Value::as_str).map(|it| ("mcp-name", it)));
            }
            None => headers.push(("mcp-session-id", &self.id)),
        }
        let mut connection = self.server.connect();
        connection.send(&request("POST", "/mcp", &headers, &message.to_string()));
        pass(connection, Way::Answer, self.sender.clone());
        let mut lines = Vec::new();
        loop {
            let (way, line) = self.next();
            let is_request = line.get("method").is_some() && line.get("id").is_some();
            if is_request && let Some(result) = respond(&line) {
                self.notify(&json!({"jsonrpc": "2.0", "id": line["id"], "result": result}));
            }
            if way == Way::Answer {
                lines.push(line.clone());
            }
            if line.get("method").is_none() && line["id"] == id {
                return lines;
            }
        }
    }
}

fn call(of: &str, meta: Value) -> Value {
    json!({"name": "live", "arguments": {"of": of}, "_meta": meta})
}

#[test]
fn progress_and_messages_are_as_over_standard_output() {
    let directory = tempfile::tempdir().expect("a directory");
    super::copied_of("live_project", directory.path()).expect("a copy");
    let mut session = Session::open(directory.path(), &json!({}));
    let mut lines = session.exchange("tools/call", call("said", json!({})), |_| None);
    session.exchange("logging/setLevel", json!({"level": "error"}), |_| None);
    let token = json!({"progressToken": "to\"ken"});
    lines.extend(session.exchange("tools/call", call("said", token), |_| None));
    session.compare("said-2025-11-25", &lines);
    let meta = json!({"progressToken": 7, "io.modelcontextprotocol/logLevel": "debug"});
    let lines = session.exchange("tools/call", call("said", modern(meta)), |_| None);
    compare("said-2026-07-28", &lines);
}

#[test]
fn questions_are_as_over_standard_output() {
    let directory = tempfile::tempdir().expect("a directory");
    super::copied_of("live_project", directory.path()).expect("a copy");
    let mut session = Session::open(directory.path(), &json!({"elicitation": {}}));
    let mut count = 0;
    let lines = session.exchange("tools/call", call("asks", json!({})), |_| {
        count += 1;
        Some(match count {
            1 => json!({"action": "decline"}),
            2 => json!({"action": "cancel"}),
            _ => json!({"action": "accept", "content": {"number": count, "text": "\"\n$(id)"}}),
        })
    });
    session.compare("asks-2025-11-25", &lines);
    let lines = session.exchange("tools/call", call("asks", modern(json!({}))), |_| None);
    compare("asks-2026-07-28", &lines);
    let lines = session.exchange("tools/call", call("asks-alone", json!({})), |_| None);
    session.compare("asks-alone-2025-11-25", &lines);
}

#[test]
fn lists_and_resources_are_the_same_as_over_stdio() {
    let directory = tempfile::tempdir().expect("a directory");
    super::copied(directory.path()).expect("a copy");
    let mut session = Session::open(directory.path(), &json!({}));
    for (name, meta) in [("lists-2025-11-25", json!({})), ("lists-2026-07-28", modern(json!({})))] {
        let mut lines = Vec::new();
        for (method, params) in super::lists::questions(&meta) {
            // Members that the protocol does not have stand in `_meta` here.
            let mut params = params;
            if let Some(limit) = params.as_object_mut().and_then(|params| params.remove("limit")) {
                params["_meta"]["mcpbash/limit"] = limit;
            }
            let arguments = params["arguments"].clone();
            let mut answers = session.exchange(method, params, |_| None);
            if method == "prompts/get" {
                // Standard output alone has the framework's members of a prompt.
                let result = &mut answers[0]["result"];
                assert_eq!(result.get("text"), None, "{result}");
                result["text"] = result["messages"][0]["content"]["text"].clone();
                result["arguments"] = arguments;
            }
            lines.extend(answers);
        }
        compare(name, &super::lists::without_places(lines));
    }
}
