//! Declared commands over the real server: what they read, what they cannot, and how they end.

#![expect(clippy::indexing_slicing, reason = "a JSON value without the key is null")]

#[path = "support/server.rs"]
mod server;

use std::path::Path;

use serde_json::{Value, json};

use server::Server;

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

/// Whether these hosts have the programs; a host without them has nothing to test here.
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

#[test]
fn commands_are_offered_only_where_they_are_switched_on() {
    let mut server = Server::start(&[]);
    assert!(!names(&mut server).iter().any(|name| name.starts_with("cli_")));
    let id = server.call("cli_jq", json!({"filter": "."}));
    assert_eq!(
        server.answer(id)["result"]["content"][0]["text"],
        "[`cli_jq` is switched off]\n\
         hint: the operator can switch it on with `[tools] on` in cofferdam.toml"
    );
    assert_eq!(server.close(), Some(0));
    let configuration = configuration();
    let mut server = serving(configuration.path(), None);
    let names = names(&mut server);
    assert!(names.ends_with(&["cli_jq".to_owned(), "cli_file".to_owned()]), "{names:?}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn jq_reads_standard_input_and_echoes_the_correlation_id() {
    if !has("/usr/bin/jq") {
        return;
    }
    let configuration = configuration();
    let mut server = serving(configuration.path(), None);
    let arguments = json!({"filter": ".a[]", "extra_args": ["-c"], "correlation_id": "mine",
                           "stdin": "{\"a\":[1,{\"b\": 2}]}"});
    let fields = asked(&mut server, "cli_jq", arguments);
    let told = (&fields["stdout"], &fields["returncode"], &fields["correlation_id"]);
    assert_eq!(told, (&json!("1\n{\"b\":2}\n"), &json!(0), &json!("mine")), "{fields}");
    assert_eq!(fields.get("error"), None);
    let fields = asked(&mut server, "cli_jq", json!({"filter": "nope", "stdin": "1"}));
    let told = (&fields["returncode"], &fields["error_type"]);
    assert_eq!(told, (&json!(3), &json!("execution_error")), "{fields}");
    // The language can ask for the environment; there is nothing of the caller's in it.
    let fields = asked(&mut server, "cli_jq", json!({"filter": "env", "extra_args": "-n -c"}));
    let text = fields["stdout"].as_str().unwrap_or_default();
    assert!(text.contains("/tmp/home") && !text.contains("do-not-show"), "{fields}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn jq_reads_a_granted_file_and_no_other() {
    if !has("/usr/bin/jq") {
        return;
    }
    let (configuration, workspace) = (configuration(), tempfile::tempdir().expect("a directory"));
    std::fs::write(workspace.path().join("a.json"), "{\"x\": \"inside\"}").expect("written");
    let mut server = serving(configuration.path(), Some(workspace.path()));
    let arguments = json!({"filter": ".x", "extra_args": ["-r"], "path": "a.json"});
    assert_eq!(asked(&mut server, "cli_jq", arguments)["stdout"], "inside\n");
    let fields = asked(&mut server, "cli_jq", json!({"filter": ".", "path": "../etc/passwd"}));
    let told = (&fields["error_type"], &fields["error"]);
    let text = "cli_jq: path `../etc/passwd` is not inside /workspace";
    assert_eq!(told, (&json!("validation_error"), &json!(text)));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_planted_link_shows_nothing_of_the_host() {
    if !has("/usr/bin/file") {
        return;
    }
    let (configuration, workspace) = (configuration(), tempfile::tempdir().expect("a directory"));
    let (inside, outside) = (workspace.path(), tempfile::tempdir().expect("a directory"));
    let secret = outside.path().join("secret.json");
    std::fs::write(&secret, "\"host secret\"").expect("written");
    std::fs::write(inside.join("a.bin"), b"%PDF-1.4\n").expect("written");
    std::os::unix::fs::symlink(&secret, inside.join("link")).expect("a link");
    let mut server = serving(configuration.path(), Some(inside));
    let arguments = json!({"path": "a.bin", "extra_args": ["-b", "--mime-type"]});
    let fields = asked(&mut server, "cli_file", arguments);
    assert_eq!(fields["stdout"], "application/pdf\n", "{fields}");
    let fields = asked(&mut server, "cli_file", json!({"path": "link", "extra_args": ["-b"]}));
    let text = fields["stdout"].as_str().unwrap_or_default();
    assert!(text.starts_with("broken symbolic link to"), "{fields}");
    if has("/usr/bin/jq") {
        let fields = asked(&mut server, "cli_jq", json!({"filter": ".", "path": "link"}));
        assert_eq!((&fields["stdout"], &fields["returncode"]), (&json!(""), &json!(2)), "{fields}");
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn long_output_is_cut_and_a_long_run_is_ended() {
    if !has("/usr/bin/jq") {
        return;
    }
    let configuration = configuration();
    let mut server = serving(configuration.path(), None);
    let arguments = json!({"filter": "\"x\" * 2000000", "extra_args": ["-n", "-r"]});
    let fields = asked(&mut server, "cli_jq", arguments);
    let told = (&fields["truncated_stdout"], &fields["truncated_stderr"], &fields["returncode"]);
    assert_eq!(told, (&json!(true), &json!(false), &json!(0)));
    assert!(fields["stdout"].as_str().is_some_and(|text| text.len() <= 1 << 20));
    let arguments =
        json!({"filter": "range(1000) | \"e\" * 1000 | stderr | empty", "extra_args": ["-n"]});
    let fields = asked(&mut server, "cli_jq", arguments);
    let told = (&fields["truncated_stdout"], &fields["truncated_stderr"]);
    assert_eq!(told, (&json!(false), &json!(true)));
    assert!(fields["stderr"].as_str().is_some_and(|text| text.len() <= 256 << 10));
    let arguments =
        json!({"filter": "last(range(1e18))", "extra_args": ["-n"], "timeout_sec": 0.5});
    let fields = asked(&mut server, "cli_jq", arguments);
    let told = (&fields["returncode"], &fields["timed_out"], &fields["error_type"]);
    assert_eq!(told, (&json!(124), &json!(true), &json!("timeout")), "{fields}");
    assert_eq!(server.close(), Some(0));
}
