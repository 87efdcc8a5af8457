//! Files of a granted directory: written by a cell, owned by the caller, guarded where the host obeys.

use serde_json::{Value, json};

use super::{CONFIG, asked, edit, granted_server};
use crate::server::Server;
use crate::support::{Caller, Check, equal, holds};

fn put(server: &mut Server, path: &str) -> Result<Value, crate::support::Failed> {
    asked(server, "put_file", json!({ "path": path, "content": "x\n", "overwrite": true }))
}

pub fn guarded(caller: &Caller) -> Check {
    let directory = caller.directory("granted")?;
    caller.directory("granted/.vscode")?;
    caller.file("granted/.vscode/tasks.json", "{}")?;
    caller.file("granted/f", "one\n")?;
    let path = directory.display().to_string();
    let mut server = granted_server(caller, &path)?;
    equal("made", &put(&mut server, "new/g")?["done"], &json!("created"))?;
    let line = json!({ "command": "insert", "path": "f", "insert_line": 1, "insert_text": "two" });
    equal("edited", &edit(&mut server, line)?["lines"], &json!(2))?;
    equal("on the host", std::fs::read_to_string(directory.join("f"))?, "one\ntwo\n".to_owned())?;
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(directory.join("new/g"))?);
    equal("it belongs to who grants", owner, caller.uid())?;
    let hint = "a cell cannot make or change what the host obeys";
    for name in [".envrc", ".vscode/tasks.json", ".vscode/new", ".mcp.json", "sub/.git/config"] {
        let answer = put(&mut server, name)?;
        holds(name, &answer, answer.as_str().is_some_and(|answer| answer.contains(hint)))?;
    }
    equal("as it was", std::fs::read(directory.join(".vscode/tasks.json"))?, b"{}".to_vec())?;
    let left: Vec<String> = std::fs::read_dir(&directory)?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(".cofferdam-"))
        .collect();
    equal("nothing is left", left, Vec::<String>::new())?;
    // A running command in a session delays no other call.
    server.ask(&json!({ "command": "sleep 1000" }))?;
    let read = asked(&mut server, "get_file", json!({ "path": "f" }))?;
    equal("read meanwhile", &read["content"], &json!("one\ntwo\n"))
}

pub fn read_only(caller: &Caller) -> Check {
    let directory = caller.directory("granted")?;
    caller.file("granted/f", "one\n")?;
    let path = format!("{}:ro", directory.display());
    let mut server = granted_server(caller, &path)?;
    let read = asked(&mut server, "get_file", json!({ "path": "f" }))?;
    equal("read", &read["content"], &json!("one\n"))?;
    let output = "hint: the operator granted /workspace for reading only";
    for name in ["f", "new", "sub/new"] {
        let refused = put(&mut server, name)?;
        holds(name, &refused, refused.as_str().is_some_and(|refused| refused.ends_with(output)))?;
    }
    equal("as it was", std::fs::read_to_string(directory.join("f"))?, "one\n".to_owned())
}

pub fn recorded(caller: &Caller) -> Check {
    let log = caller.directory("log")?;
    crate::support::mode(&log, 0o700)?;
    let file = log.join("audit.jsonl");
    let config = format!("{CONFIG}[audit]\nfile = \"{}\"\n", file.display());
    let mut server = Server::start(caller, &config)?;
    put(&mut server, "it's here")?;
    asked(&mut server, "get_file", json!({ "path": "../out" }))?;
    drop(server);
    let text = std::fs::read_to_string(&file)?;
    let lines: Vec<Value> = text.lines().flat_map(serde_json::from_str).collect();
    let events: Vec<(&Value, &Value)> =
        lines.iter().map(|line| (&line["event"], &line["tool"])).collect();
    let expected = [("decision", "put_file"), ("outcome", "put_file"), ("invalid", "get_file")];
    let expected: Vec<(Value, Value)> =
        expected.iter().map(|(event, tool)| (json!(event), json!(tool))).collect();
    equal("lines", events, expected.iter().map(|(event, tool)| (event, tool)).collect::<Vec<_>>())?;
    equal("its rule", &lines[0]["rule"], &json!("shell"))?;
    let start = lines[0]["command"]["start"].as_str().unwrap_or_default().to_owned();
    holds("the path is in it", &start, start.contains("/.cofferdam/clerk"))
}
