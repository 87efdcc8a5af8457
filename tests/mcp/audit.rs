//! The audit log through the real server: what is recorded, what never is, and that a change shows.

use std::io::{BufRead, BufReader, Write};
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

    /// cofferdam where no file may be larger than this many kilobytes: a disk that is full.
    fn on_a_full_disk(&self, kilobytes: u32, arguments: &[&str]) -> Command {
        let mut command = Command::new("/bin/bash");
        command.args(["-c", &format!("ulimit -f {kilobytes}; exec \"$@\""), "bash", PROGRAM]);
        command.arg("--config").arg(&self.config).args(arguments);
        command
    }

    fn serve(&self, calls: &[serde_json::Value]) -> std::io::Result<Output> {
        Self::converse(self.cofferdam(&["serve"]), calls)
    }

    fn converse(mut server: Command, calls: &[serde_json::Value]) -> std::io::Result<Output> {
        let mut child =
            server.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
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
        // The end of input ends calls that still wait: it comes when all are answered.
        let output = child.stdout.take().ok_or_else(|| std::io::Error::other("no pipe"))?;
        let lines = BufReader::new(output).lines().take(calls.len() + 1);
        let answers = lines.collect::<std::io::Result<Vec<String>>>()?.join("\n");
        drop(stdin);
        Ok(Output { stdout: answers.into_bytes(), ..child.wait_with_output()? })
    }

    fn lines(&self) -> std::io::Result<String> {
        std::fs::read_to_string(&self.log)
    }

    fn verify(&self) -> std::io::Result<(Option<i32>, String)> {
        let output = self.cofferdam(&["audit", "verify"]).output()?;
        let text = [output.stdout, output.stderr].concat();
        Ok((output.status.code(), String::from_utf8_lossy(&text).into_owned()))
    }
}

/// The answers to calls, by their number.
fn answers(output: &Output) -> Vec<serde_json::Value> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let parsed = text.lines().map_while(|line| serde_json::from_str(line).ok());
    let mut all: Vec<serde_json::Value> = parsed.collect();
    all.sort_by_key(|answer| answer.get("id").and_then(serde_json::Value::as_u64));
    all.into_iter().skip(1).collect()
}

fn bash(command: &str) -> serde_json::Value {
    serde_json::json!({"name": "bash", "arguments": {"command": command, "env": {"KEY": SECRET}}})
}

#[test]
fn calls_are_recorded_without_their_secrets() -> std::io::Result<()> {
    let recorded = Recorded::new("")?;
    let output = recorded.serve(&[bash("exit 3")])?;
    let answers = String::from_utf8_lossy(&output.stdout).into_owned();
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
    let output = recorded.cofferdam(&["run", "--env", &pair, "--", "true"]).output()?;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = recorded.lines()?;
    assert!(lines.contains("\"tool\":\"run\"") && !lines.contains(SECRET), "{lines}");
    assert!(lines.contains("\"principal\":\"local\""), "{lines}");
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

#[test]
fn arguments_that_were_not_taken_are_recorded_as_such() -> std::io::Result<()> {
    let recorded = Recorded::new("[tools]\non = [\"cli_file\"]\n")?;
    let misspelt = serde_json::json!({"name": "bash", "arguments": {"comand": "true"}});
    let outside =
        serde_json::json!({"name": "bash", "arguments": {"command": "true", "cwd": "/etc"}});
    let system =
        serde_json::json!({"name": "calculate", "arguments": {"expression": "system('ls')"}});
    let file = serde_json::json!({"name": "cli_file", "arguments": {"path": "../etc/passwd"}});
    recorded.serve(&[misspelt, outside, system, file])?;
    let lines = recorded.lines()?;
    let mut output: Vec<(String, String)> = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|line| line.get("event").and_then(|event| event.as_str()) == Some("invalid"))
        .filter_map(|line| {
            let field = |name| Some(line.get(name)?.as_str()?.to_owned());
            Some((field("tool")?, field("why")?))
        })
        .collect();
    output.sort_unstable();
    let tools: Vec<&str> = output.iter().map(|(tool, _)| tool.as_str()).collect();
    assert_eq!(tools, ["bash", "bash", "calculate", "cli_file"], "{lines}");
    assert!(
        output.iter().any(|(_, reason)| reason == "bash: unknown field `comand`"),
        "{output:?}"
    );
    assert_eq!(lines.matches("\"event\":\"decision\"").count(), 0, "nothing was decided: {lines}");
    assert_eq!(
        lines.matches("\"principal\":\"local\"").count(),
        4,
        "each names its client: {lines}"
    );
    assert_eq!(recorded.verify()?.0, Some(0));
    Ok(())
}

#[test]
fn a_rotated_log_continues_its_chain() -> std::io::Result<()> {
    let recorded = Recorded::new("max_bytes = \"64K\"\nkeep = 1\n")?;
    let calls: Vec<serde_json::Value> = (0..100).map(|n| bash(&format!("exit {n}"))).collect();
    let output = recorded.serve(&calls)?;
    assert_eq!(answers(&output).len(), 100);
    let size = |name: &str| recorded.log.with_file_name(name).metadata().map(|file| file.len());
    assert!((1..=64 << 10).contains(&size("audit.jsonl.1")?) && size("audit.jsonl")? > 0);
    assert!(size("audit.jsonl.2").is_err(), "one is kept");
    let (code, text) = recorded.verify()?;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(" in 2 files, ") && text.contains(" to 200"), "{text}");
    Ok(())
}

#[test]
fn calls_succeed_with_a_notice_when_the_log_is_full() -> std::io::Result<()> {
    let recorded = Recorded::new("")?;
    let calls: Vec<serde_json::Value> = (0..160).map(|_| bash("echo ran")).collect();
    let report = Recorded::converse(recorded.on_a_full_disk(64, &["serve"]), &calls)?;
    let answers = answers(&report);
    let ran = |answer: &&serde_json::Value| {
        answer.pointer("/result/structuredContent/stdout").and_then(|out| out.as_str())
            == Some("ran\n")
    };
    assert_eq!(answers.iter().filter(ran).count(), 160, "{answers:?}");
    let last = answers.last().and_then(|answer| answer.pointer("/result/_meta/cofferdam~1audit"));
    let reason = last.and_then(|audit| audit.get("why")).and_then(|reason| reason.as_str());
    assert_eq!(reason, Some("file too large (EFBIG)"), "{last:?}");
    assert!(String::from_utf8_lossy(&report.stderr).contains("the audit log cannot be written"));
    // And by the command line.
    let report = recorded.on_a_full_disk(64, &["run", "--json", "--", "true"]).output()?;
    let report: serde_json::Value = serde_json::from_slice(&report.stdout)?;
    let reason = report.pointer("/audit/why").and_then(|reason| reason.as_str());
    assert_eq!(
        (report.get("exit_code"), reason),
        (Some(&0.into()), Some("file too large (EFBIG)"))
    );
    let lost = report.pointer("/audit/lost").and_then(serde_json::Value::as_u64);
    assert!(lost.is_some_and(|lost| (1..=2).contains(&lost)), "{report}");
    // With room again, the gap is recorded and the chain is whole.
    recorded.serve(&[bash("true")])?;
    assert_eq!(recorded.verify()?.0, Some(0));
    Ok(())
}

#[test]
fn a_required_audit_log_blocks_calls_when_full() -> std::io::Result<()> {
    let recorded = Recorded::new("on_error = \"stop\"\n")?;
    let calls: Vec<serde_json::Value> = (0..160).map(|_| bash("echo ran")).collect();
    let output = Recorded::converse(recorded.on_a_full_disk(64, &["serve"]), &calls)?;
    let texts: Vec<String> = answers(&output)
        .iter()
        .filter_map(|answer| Some(answer.pointer("/result/content/0/text")?.as_str()?.to_owned()))
        .collect();
    let expected = "the audit log cannot be written: file too large (EFBIG)\nhint: the operator's \
                    `[audit] on_error = \"stop\"` refuses calls until it can be";
    let refused = texts.iter().filter(|text| *text == expected).count();
    let ran = texts.iter().filter(|text| text.starts_with("ran\n")).count();
    assert!(ran > 0 && refused > 0 && ran + refused == 160, "{texts:?}");
    let output = recorded.on_a_full_disk(64, &["run", "--", "echo", "ran"]).output()?;
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(125), b"".as_slice()));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("file too large (EFBIG)") && !text.contains("os error"), "{text}");
    Ok(())
}
