//! Declared commands over the real server: what they read, what they cannot, and how they end.
#![expect(clippy::indexing_slicing, reason = "a JSON value without the key is null")]

mod conduct;
mod errors;
mod examples;
mod hooks;
mod operator;
mod own;
mod reach;
mod seed;
mod settings;
mod shipped;
mod short;

use std::path::Path;

use serde_json::{Value, json};

use crate::server::Server;

/// The fields of one call's result.
fn asked(server: &mut Server, tool: &str, arguments: Value) -> Value {
    server.result(tool, arguments)["structuredContent"].clone()
}

/// A configuration directory that switches both commands on, and nothing else.
fn configuration() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let text = "schema = 1\n[tools]\non = [\"cli_jq\", \"cli_file\"]\n";
    std::fs::write(directory.path().join("cofferdam.toml"), text).expect("written");
    directory
}

fn serving(configuration: &Path, workspace: Option<&Path>) -> Server {
    let configuration = configuration.display().to_string();
    let workspace = workspace.map(|path| path.display().to_string());
    let mut arguments = vec!["--config", &configuration];
    if let Some(path) = &workspace {
        arguments.extend(["--workspace", path]);
    }
    Server::start(&arguments)
}

/// Returns true if this host has the program; a host without it has nothing to test here.
fn has(program: &str) -> bool {
    let has = Path::new(program).exists();
    assert!(has || std::env::var_os("COFFERDAM_MUST_RUN").is_none(), "{program} is not here");
    has
}

fn names(server: &mut Server) -> Vec<String> {
    let id = server.request("tools/list", json!({}));
    let tools = server.answer(id)["result"]["tools"].as_array().cloned().unwrap_or_default();
    tools.iter().filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect()
}
