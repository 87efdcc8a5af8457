//! Transcripts: every line that a client gets, compared with a file. `UPDATE_SNAPSHOTS=1` writes the file.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::server::{self, Server};

/// Fields of `_meta` that a client of the newest revision sends with each request.
pub(crate) fn modern(more: Value) -> Value {
    let mut meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    });
    if let (Some(meta), Value::Object(more)) = (meta.as_object_mut(), more) {
        meta.extend(more);
    }
    meta
}

/// Takes lines up to the answer of `id`; `respond` answers the server's own requests.
pub(crate) fn until(
    server: &mut Server,
    id: u64,
    mut respond: impl FnMut(&Value) -> Option<Value>,
) -> Vec<Value> {
    let mut lines = Vec::new();
    loop {
        let line = server.lines.recv_timeout(server::patience::patience()).expect("a line in time");
        if line.get("method").is_some()
            && line.get("id").is_some()
            && let Some(result) = respond(&line)
        {
            server.send(&json!({"jsonrpc": "2.0", "id": line["id"], "result": result}));
        }
        let is_answer = line.get("method").is_none() && line["id"] == id;
        lines.push(plain(line));
        if is_answer {
            return lines;
        }
    }
}

/// Removes what differs from run to run.
pub(crate) fn plain(mut line: Value) -> Value {
    if let Some(meta) = line.pointer_mut("/result/_meta").and_then(Value::as_object_mut) {
        meta.retain(|key, _| !key.starts_with("cofferdam/") && !key.starts_with("io."));
    }
    if let Some(id) = line.pointer_mut("/params/elicitationId") {
        *id = json!("…");
    }
    line
}

fn transcript_path(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/products/projects/transcripts");
    folder.join(format!("{name}.jsonl"))
}

/// The lines of a transcript.
pub(crate) fn transcript(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(transcript_path(name)).expect("a transcript");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Compares lines with `tests/products/projects/transcripts/NAME.jsonl`.
pub(crate) fn compare(name: &str, lines: &[Value]) {
    let path = transcript_path(name);
    let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).expect("written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{}: UPDATE_SNAPSHOTS=1 writes it again", path.display());
}
