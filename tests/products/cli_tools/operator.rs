//! The operator's view and controls while tools are called: events in the log, figures and a reset by signals.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::asked;
use super::conduct::mine;
use super::own::own;
use crate::server::patience::patience;
use crate::server::{PROGRAM, Server};

/// A server of `cli_mine` whose log comes as values, in the order of its lines.
struct Logged {
    server: Server,
    log: Receiver<Value>,
    _configuration: tempfile::TempDir,
}

impl Logged {
    fn start(program: &str, conduct: &str) -> Self {
        let configuration = own("on = [\"cli_mine\"]", &mine(program, conduct));
        let mut command = Command::new(PROGRAM);
        command.arg("--config").arg(configuration.path()).arg("serve").stderr(Stdio::piped());
        command.env("COFFERDAM_LOG", "info").env("COFFERDAM_LOG_FORMAT", "json");
        let mut server = Server::of(command);
        let stderr = BufReader::new(server.child.stderr.take().expect("a pipe"));
        let (sender, log) = channel();
        std::thread::spawn(move || {
            let lines = stderr.lines().map_while(Result::ok);
            for line in lines.filter_map(|line| serde_json::from_str(&line).ok()) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { server, log, _configuration: configuration }
    }

    /// The next line that has this key, and at `event` this value if one is given.
    fn line(&self, key: &str, event: Option<&str>) -> Value {
        let end = Instant::now() + patience();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.log.recv_timeout(left).expect("a line in time");
            if !line[key].is_null() && event.is_none_or(|event| line["event"] == event) {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.server.child.id()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("it lives");
    }
}

#[test]
fn each_call_logs_events_with_id_and_duration() {
    let mut logged = Logged::start("sleep", "");
    asked(&mut logged.server, "cli_mine", json!({"word": ["0.05"], "correlation_id": "a-1"}));
    let start = logged.line("correlation_id", Some("tool.start"));
    assert_eq!((&start["tool"], &start["correlation_id"]), (&json!("cli_mine"), &json!("a-1")));
    let end = logged.line("correlation_id", Some("tool.end"));
    assert_eq!(
        (&end["correlation_id"], &end["returncode"], &end["error_type"], &end["truncated"]),
        (&json!("a-1"), &json!(0), &json!(null), &json!(false)),
        "{end}"
    );
    assert!(end["duration_ms"].as_u64().is_some_and(|took| took >= 50), "{end}");
    let arguments = json!({"word": ["x"], "timeout_sec": 5, "correlation_id": "a-2"});
    asked(&mut logged.server, "cli_mine", arguments);
    let end = logged.line("correlation_id", Some("tool.end"));
    assert_eq!(
        (&end["correlation_id"], &end["returncode"], &end["error_type"]),
        (&json!("a-2"), &json!(1), &json!("execution_error"))
    );
    // The words of a call are in the audit log alone.
    asked(
        &mut logged.server,
        "cli_mine",
        json!({"extra_args": "--secret", "correlation_id": "a-3"}),
    );
    let invalid = logged.line("correlation_id", Some("tool.invalid"));
    assert_eq!(invalid["correlation_id"], "a-3");
    assert!(!invalid.to_string().contains("secret"), "{invalid}");
    assert_eq!(logged.server.close(), Some(0));
}

#[test]
fn health_shows_missing_programs_and_open_breakers() {
    let logged = Logged::start("no-such-program", "");
    logged.signal(Signal::SIGUSR1);
    let output = logged.line("cofferdam_tools", None);
    let figures = &output["cofferdam_tools"]["cli_mine"];
    assert_eq!(
        (&figures["health"], &figures["calls"]),
        (&json!("unhealthy"), &json!(0)),
        "{output}"
    );
    assert_eq!(logged.server.close(), Some(0));

    let mut logged = Logged::start("sleep", "breaker = { failures = 1, recovery = \"1h\" }");
    let slow = json!({"word": ["60"], "timeout_sec": 0.05});
    let output = asked(&mut logged.server, "cli_mine", slow);
    assert_eq!(output["error_type"], "timeout", "{output}");
    let changed = logged.line("old", Some("circuit_breaker.state_changed"));
    assert_eq!(
        (&changed["tool"], &changed["old"], &changed["new"]),
        (&json!("cli_mine"), &json!("closed"), &json!("open"))
    );
    logged.signal(Signal::SIGUSR1);
    let figures = logged.line("cofferdam_tools", None)["cofferdam_tools"]["cli_mine"].clone();
    assert_eq!(
        (&figures["health"], &figures["breaker"], &figures["errors"]),
        (&json!("degraded"), &json!("open"), &json!({"timeout": 1})),
        "{figures}"
    );
    let quick = json!({"word": ["0"]});
    let refused = asked(&mut logged.server, "cli_mine", quick.clone());
    assert_eq!(refused["error_type"], "circuit_breaker_open", "{refused}");
    logged.signal(Signal::SIGUSR2);
    let output = logged.line("cofferdam_reset", None);
    assert_eq!(output["cofferdam_reset"]["breakers_closed"], 1, "{output}");
    let done = asked(&mut logged.server, "cli_mine", quick);
    assert_eq!(done["error"], json!(null), "{done}");
    assert_eq!(logged.server.close(), Some(0));
}
