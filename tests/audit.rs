//! The audit log through the real server: what is recorded, what never is, and that a change shows.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_cofferdam");
const SECRET: &str = "hunter2-must-not-be-written";

struct Recorded {
    _directory: tempfile::TempDir,
    config: PathBuf,
    log: PathBuf,
}

impl Recorded {
    fn new(more: &str) -> std::io::Result<Self> {
        let directory = tempfile::tempdir()?;
        let config = directory.path().join("config");
        let log = directory.path().join("log/audit.jsonl");
        std::fs::create_dir(&config)?;
        std::fs::set_permissions(&config, PermissionsExt::from_mode(0o700))?;
        let text = format!("schema = 1\n[audit]\nfile = \"{}\"\n{more}", log.display());
        std::fs::write(config.join("cofferdam.toml"), text)?;
        Ok(Self { _directory: directory, config, log })
    }

    fn cofferdam(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("--config").arg(&self.config).args(arguments);
        command
    }

    fn serve(&self, calls: &[serde_json::Value]) -> std::io::Result<Output> {
        let mut child = self
            .cofferdam(&["serve"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stdin = child.stdin.take().ok_or_else(|| std::io::Error::other("no pipe"))?;
        let hello = serde_json::json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"}}});
        writeln!(stdin, "{hello}")?;
        writeln!(stdin, r#"{{"jsonrpc":"2.0","method":"notifications/initialized"}}"#)?;
        for (id, params) in (1..).zip(calls) {
            let call = serde_json::json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
                                          "params": params});
            writeln!(stdin, "{call}")?;
        }
        drop(stdin);
        child.wait_with_output()
    }

    fn lines(&self) -> std::io::Result<String> {
        std::fs::read_to_string(&self.log)
    }

    fn verify(&self) -> std::io::Result<(Option<i32>, String)> {
        let told = self.cofferdam(&["audit", "verify"]).output()?;
        let text = [told.stdout, told.stderr].concat();
        Ok((told.status.code(), String::from_utf8_lossy(&text).into_owned()))
    }
}

fn bash(command: &str) -> serde_json::Value {
    serde_json::json!({"name": "bash", "arguments": {"command": command, "env": {"KEY": SECRET}}})
}

#[test]
fn calls_are_recorded_with_their_end_and_without_their_secrets() -> std::io::Result<()> {
    let recorded = Recorded::new("")?;
    let told = recorded.serve(&[bash("exit 3")])?;
    let answers = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(answers.contains("\"exit_code\":3"), "{answers}");
    let lines = recorded.lines()?;
    assert!(lines.contains("\"tool\":\"bash\"") && lines.contains("\"exit_code\":3"), "{lines}");
    assert!(lines.contains("KEY"), "names are kept: {lines}");
    assert!(!lines.contains(SECRET), "values are not: {lines}");
    assert_eq!(recorded.verify()?.0, Some(0));
    Ok(())
}

#[test]
fn a_command_line_run_is_recorded_too() -> std::io::Result<()> {
    let recorded = Recorded::new("")?;
    let pair = format!("KEY={SECRET}");
    let told = recorded.cofferdam(&["run", "--env", &pair, "--", "true"]).output()?;
    assert_eq!(told.status.code(), Some(0), "{}", String::from_utf8_lossy(&told.stderr));
    let lines = recorded.lines()?;
    assert!(lines.contains("\"tool\":\"run\"") && !lines.contains(SECRET), "{lines}");
    Ok(())
}

#[test]
fn a_line_that_was_changed_is_found() -> std::io::Result<()> {
    let recorded = Recorded::new("")?;
    recorded.serve(&[bash("exit 3"), bash("exit 4")])?;
    assert_eq!(recorded.verify()?.0, Some(0), "whole before");
    let changed = recorded.lines()?.replacen("\"exit_code\":3", "\"exit_code\":0", 1);
    std::fs::write(&recorded.log, changed)?;
    let (code, text) = recorded.verify()?;
    assert_eq!(code, Some(1), "{text}");
    Ok(())
}

#[test]
fn the_log_is_its_owners_alone() -> std::io::Result<()> {
    let recorded = Recorded::new("")?;
    recorded.serve(&[bash("true")])?;
    let mode = |path: &Path| Ok::<_, std::io::Error>(path.metadata()?.permissions().mode() & 0o777);
    assert_eq!(mode(&recorded.log)?, 0o600);
    let directory = recorded.log.parent().unwrap_or(Path::new("/"));
    assert_eq!(mode(directory)?, 0o700);
    Ok(())
}
