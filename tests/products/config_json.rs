//! A `config.json` of the older server is read where it is named, and nowhere else.
#![expect(
    clippy::indexing_slicing,
    reason = "a missing field of an answer fails the test either way"
)]

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use crate::server::{PROGRAM, Server};

/// A directory with such a file.
fn with(text: &str) -> io::Result<(tempfile::TempDir, PathBuf)> {
    let directory = tempfile::tempdir()?;
    let file = fs::canonicalize(directory.path())?.join("config.json");
    fs::write(&file, text)?;
    fs::set_permissions(&file, Permissions::from_mode(0o600))?;
    Ok((directory, file))
}

/// `cofferdam serve` at the end of its input: the exit code, and what it says.
fn served(directory: &Path, arguments: &[&str]) -> io::Result<(Option<i32>, String)> {
    let mut command = Command::new(PROGRAM);
    command.arg("serve").args(arguments).current_dir(directory).stdin(Stdio::null());
    let output = command.output()?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

#[test]
fn command_timeout_is_the_default_for_bash() -> io::Result<()> {
    let (_held, file) = with(r#"{ "commandTimeout": 1, "network": { "enabled": false } }"#)?;
    let mut server = Server::start(&["--config-json", file.to_str().unwrap_or_default()]);
    let late = server.result("bash", json!({ "command": "echo first; sleep 30" }));
    let content = &late["structuredContent"];
    assert_eq!((&content["outcome"], &content["stdout"]), (&json!("timeout"), &json!("first\n")));
    let request =
        server.result("bash", json!({ "command": "sleep 1.2; echo done", "timeout": 60 }));
    assert_eq!(request["structuredContent"]["stdout"], "done\n", "{request}");
    let rules = server.result("sandbox_rules", json!({}));
    let text = rules["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.contains("- time: 1 s; up to 600 s can be asked for\n"), "{text}");
    let list = server.request("tools/list", json!({}));
    let tools = server.answer(list)["result"]["tools"].clone();
    let tools = tools.as_array().cloned().unwrap_or_default();
    let bash = tools.iter().find(|tool| tool["name"] == "bash");
    let default = bash.map(|bash| bash["inputSchema"]["properties"]["timeout"]["default"].clone());
    assert_eq!(default, Some(json!(1)));
    assert_eq!(server.close(), Some(0));
    Ok(())
}

#[test]
fn a_file_in_the_current_directory_is_not_read() -> io::Result<()> {
    let (directory, file) = with(r#"{ "enabled": false }"#)?;
    assert_eq!(served(directory.path(), &[])?.0, Some(0));
    // Named, the same file keeps the server from starting.
    let output = format!(
        "cofferdam: --config-json: {}: `enabled` is false\n\
         hint: set it to true, or start without this file\n",
        file.display()
    );
    assert_eq!(served(directory.path(), &["--config-json", "config.json"])?, (Some(125), output));
    Ok(())
}

#[test]
fn the_file_of_the_configuration_directory_is_read_unless_another_is_named() -> io::Result<()> {
    let (directory, file) = with(r#"{ "commandTimeout": 7 }"#)?;
    let path = directory.path().display().to_string();
    let default = |arguments: &[&str]| {
        let mut server = Server::start(arguments);
        let id = server.request("tools/list", json!({}));
        let tools = server.answer(id)["result"]["tools"].clone();
        let tools = tools.as_array().cloned().unwrap_or_default();
        let bash = tools.iter().find(|tool| tool["name"] == "bash").cloned().unwrap_or_default();
        assert_eq!(server.close(), Some(0));
        bash["inputSchema"]["properties"]["timeout"]["default"].clone()
    };
    assert_eq!(default(&["--config", &path]), json!(7));
    let (_other, named) = with(r#"{ "commandTimeout": 9 }"#)?;
    let named = named.display().to_string();
    assert_eq!(default(&["--config", &path, "--config-json", &named]), json!(9));
    fs::write(&file, r#"{ "enabled": false }"#)?;
    let output = format!(
        "cofferdam: {}: `enabled` is false\nhint: set it to true, or start without this file\n",
        file.display()
    );
    let there = Path::new("/");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        let command = command.args(arguments).current_dir(there).stdin(Stdio::null());
        let output = command.output()?;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        io::Result::Ok((output.status.code(), error))
    };
    assert_eq!(run(&["--config", &path, "serve"])?, (Some(125), output));
    fs::write(&file, r#"{ "network": { "enabled": true, "host": "0.0.0.0" } }"#)?;
    let (code, output) = run(&["--config", &path, "serve"])?;
    assert_eq!(code, Some(125), "{output}");
    assert!(output.contains("can be reached from elsewhere, and raw TCP has no token"), "{output}");
    assert!(
        output.contains("\nhint: use --http with a token and TLS, or a tunnel: ssh "),
        "{output}"
    );
    fs::set_permissions(&file, Permissions::from_mode(0o666))?;
    let (code, output) = run(&["--config", &path, "serve"])?;
    assert_eq!(code, Some(125));
    assert!(output.contains("others can write "), "{output}");
    Ok(())
}

#[test]
fn what_cannot_be_kept_is_refused_at_start() -> io::Result<()> {
    let (directory, file) = with(r#"{ "commandTimeOut": 9 }"#)?;
    let output = format!(
        "cofferdam: --config-json: {}: unknown field `commandTimeOut`, expected one of `commandTimeout`, \
         `enabled`, `network` at line 1 column 18\nhint: did you mean `commandTimeout`?\n",
        file.display()
    );
    let arguments = ["--config-json", "config.json"];
    assert_eq!(served(directory.path(), &arguments)?, (Some(125), output));
    Ok(())
}

#[test]
fn a_network_that_others_reach_is_refused_at_start() -> io::Result<()> {
    let (directory, _) = with(r#"{ "network": { "enabled": true, "host": "0.0.0.0" } }"#)?;
    let (code, output) = served(directory.path(), &["--config-json", "config.json"])?;
    assert_eq!(code, Some(125), "{output}");
    assert!(output.starts_with("cofferdam: --tcp: `0.0.0.0:3000` can be reached"), "{output}");
    Ok(())
}

#[test]
fn a_file_writable_by_others_is_refused() -> io::Result<()> {
    let (directory, file) = with("{}")?;
    let named = ["--config-json", "config.json"];
    assert_eq!(served(directory.path(), &named)?.0, Some(0));
    fs::set_permissions(&file, Permissions::from_mode(0o666))?;
    let (code, output) = served(directory.path(), &named)?;
    assert_eq!(code, Some(125));
    assert!(output.contains(": others can write "), "{output}");
    fs::set_permissions(&file, Permissions::from_mode(0o600))?;
    let (code, output) = served(directory.path(), &[&named[..], &["--workspace", "."]].concat())?;
    assert_eq!(code, Some(125));
    assert!(output.contains("` holds cofferdam's own configuration\n"), "{output}");
    Ok(())
}
