//! Settings of command-line tools: of cofferdam.toml, and of the reference implementation's variables and YAML.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::conduct::mine;
use super::own::own;
use super::{asked, names};
use crate::server::{PROGRAM, Server};

/// A configuration of `cli_mine`, with `more` in its cofferdam.toml.
fn configured(conduct: &str, more: &str) -> tempfile::TempDir {
    let directory = own("", &mine("echo", conduct));
    let text = format!("schema = 1\n{more}\n");
    std::fs::write(directory.path().join("cofferdam.toml"), text).expect("written");
    directory
}

fn command(directory: &Path, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("--config").arg(directory).arg("serve").envs(variables.iter().copied());
    command
}

fn info(server: &mut Server) -> Value {
    asked(server, "get_tool_info", json!({"tool": "cli_mine"}))
}

const ON: &str = "[tools]\non = [\"cli_mine\"]\n";

#[test]
fn settings_precedence() {
    let time = |server: &mut Server, more: Value| {
        let mut arguments = json!({"dry_run": true});
        arguments
            .as_object_mut()
            .expect("an object")
            .extend(more.as_object().cloned().unwrap_or_default());
        let answer = asked(server, "cli_mine", arguments);
        (answer["metadata"]["timeout_sec"].clone(), answer["metadata"]["clamped"].clone())
    };
    let cases = [
        ("", ON.to_owned(), 20.0),
        ("", format!("{ON}[commands]\ntimeout = \"9s\""), 9.0),
        ("timeout = \"7s\"", format!("{ON}[commands]\ntimeout = \"9s\""), 7.0),
    ];
    for (conduct, more, seconds) in cases {
        let directory = configured(conduct, &more);
        let mut server = Server::of(command(directory.path(), &[]));
        assert_eq!(
            time(&mut server, json!({})),
            (json!(seconds), json!(false)),
            "{conduct} {more}"
        );
        assert_eq!(time(&mut server, json!({"timeout_sec": 3})), (json!(3.0), json!(false)));
        // The rule's bound is the end of it, and the reply says so.
        assert_eq!(time(&mut server, json!({"timeout_sec": 300})), (json!(20.0), json!(true)));
        assert_eq!(info(&mut server)["performance"]["default_timeout"], seconds);
        assert_eq!(server.close(), Some(0));
    }
}

#[test]
fn configured_bounds_apply() {
    let more = "[commands]\nmax_stdout = \"1K\"\nmax_args = 40\nmemory = \"64M\"\nfailures = 3\n\
        recovery = \"2m\"\nconcurrency = 4\n";
    let directory = configured("", &format!("{ON}{more}"));
    let mut server = Server::of(command(directory.path(), &[]));
    let about = info(&mut server);
    let limits = json!({"max_arg_length": 40, "max_output": 1024, "max_memory": 64 << 20});
    assert_eq!(about["safety_limits"], limits);
    assert_eq!(
        (&about["circuit_breaker"]["failure_threshold"], &about["performance"]["concurrency"]),
        (&json!(3), &json!(4))
    );
    assert_eq!(about["circuit_breaker"]["recovery_timeout"], 120.0);
    for (length, cut) in [(1023, false), (1024, true)] {
        let answer = asked(&mut server, "cli_mine", json!({"word": ["x".repeat(length)]}));
        assert_eq!(
            (&answer["truncated_stdout"], &answer["truncated_stderr"]),
            (&json!(cut), &json!(false))
        );
        assert!(answer["stdout"].as_str().is_some_and(|text| text.chars().count() <= 1024));
    }
    for flags in
        [json!("--text 12345678901234567890123456789012345"), json!(["--text", "x".repeat(40)])]
    {
        let answer = asked(&mut server, "cli_mine", json!({"extra_args": flags}));
        assert_eq!(answer["error_type"], "validation_error", "{answer}");
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn yaml_and_reference_variables_are_read() {
    let directory = configured("", "");
    let file = directory.path().join("reference.yaml");
    let yaml = "tool:\n  default_timeout: 61\n  include_patterns: ['cli_mine']\n\
        circuit_breaker:\n  failure_threshold: 4\nsecurity:\n  allow_intrusive: false\n";
    std::fs::write(&file, yaml).expect("written");
    let path = file.display().to_string();
    let mut server = Server::of(command(directory.path(), &[("MCP_CONFIG_FILE", &path)]));
    assert!(names(&mut server).contains(&"cli_mine".to_owned()));
    let about = info(&mut server);
    // The rule leaves 20 s.
    assert_eq!(about["performance"]["default_timeout"], 20.0);
    assert_eq!(about["circuit_breaker"]["failure_threshold"], 4);
    assert_eq!(server.close(), Some(0));

    let variables = [
        ("MCP_CONFIG_FILE", &*path),
        ("MCP_CIRCUIT_BREAKER_FAILURE_THRESHOLD", "2"),
        ("MCP_DEFAULT_CONCURRENCY", "7"),
        ("TOOL_INCLUDE", "MineTool"),
    ];
    let mut server = Server::of(command(directory.path(), &variables));
    let about = info(&mut server);
    assert_eq!(about["circuit_breaker"]["failure_threshold"], 2);
    assert_eq!(about["performance"]["concurrency"], 7);
    assert_eq!(server.close(), Some(0));

    let excluded = [("TOOL_INCLUDE", "*"), ("TOOL_EXCLUDE", "MineTool,TestTool")];
    let mut server = Server::of(command(directory.path(), &excluded));
    assert!(!names(&mut server).contains(&"cli_mine".to_owned()));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn invalid_settings_stop_the_start() {
    let directory = configured("", ON);
    let printed = |variables: &[(&str, &str)]| {
        let mut command = command(directory.path(), variables);
        let output = command.stdin(Stdio::null()).output().expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, error) = printed(&[("TOOL_EXCLUDE", "MinTool")]);
    assert_eq!(code, Some(125), "{error}");
    assert!(
        error.contains("TOOL_EXCLUDE: no tool is named `MinTool`\nhint: the tools are"),
        "{error}"
    );
    // An address that others reach needs what --http needs.
    let (code, error) =
        printed(&[("MCP_SERVER_TRANSPORT", "http"), ("MCP_SERVER_HOST", "0.0.0.0")]);
    assert_eq!(code, Some(125), "{error}");
    assert!(error.contains("and no token is configured"), "{error}");
    let (code, error) = printed(&[("MCP_DEFAULT_TIMEOUT_SEC", "1")]);
    assert_eq!(code, Some(0), "{error}");
    assert!(error.contains("event=config.clamped"), "{error}");
    assert!(error.contains("MCP_DEFAULT_TIMEOUT_SEC is out of its range: 60 is used"), "{error}");
}
