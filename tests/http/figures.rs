//! Health and metrics of a server at work, with a missing tool, and while it shuts down.

use serde_json::{Value, json};

use crate::client::{ALICE, Answer, Server};

const JSON: (&str, &str) = ("content-type", "application/json");
/// A policy with one command-line tool, whose program the caller fills in, and the shipped rules.
const POLICY: &str = r#"
schema = 1
extends = "shipped"

[[tool]]
name = "cli_mine"
program = "PROGRAM"
why = "this test calls it"
accepts = [{ args = [] }]
refuses = [{ args = ["--help"] }]
breaker = { failures = 1, recovery = "600s" }
[[tool.positional]]
name = "word"
kind = "text"
min = 0
max = 1
why = "a word"

[[rule]]
id = "mine"
tools = ["cli_mine"]
action = "allow"
profile = "bash"
limits = { timeout = "1s" }
why = "this test calls it"
matches = [{ tool = "cli_mine" }]
not_matches = [{ tool = "bash" }]
"#;

/// A server that offers a tool of this program.
pub(crate) fn with_tool(program: &str, toml: &str) -> Server {
    Server::prepared(&format!("[tools]\non = [\"cli_mine\"]\n{toml}"), &[], |home, _| {
        let policies = home.join("config/policies");
        std::fs::create_dir(&policies).expect("a directory");
        let policy = POLICY.replace("PROGRAM", program);
        std::fs::write(policies.join("mine.toml"), policy).expect("written");
    })
}

fn metrics(server: &Server) -> String {
    let answer = server.ask("GET", "/metrics", &[], "");
    assert_eq!(answer.status, 200, "{answer:?}");
    let kind = answer.header("content-type").expect("a type");
    assert!(kind.starts_with("application/openmetrics-text; version=1.0.0"), "{kind}");
    assert!(answer.body.ends_with("# EOF\n"), "{}", answer.body);
    answer.body
}

/// The value of a line of metrics.
fn value(text: &str, line: &str) -> Option<f64> {
    let found = text.lines().find_map(|one| one.strip_prefix(line)?.strip_prefix(' '));
    found.and_then(|value| value.parse().ok())
}

fn health(server: &Server) -> Answer {
    server.ask("GET", "/health", &[], "")
}

#[test]
fn dashboard_and_alerts_name_metrics_that_the_server_has() {
    let text = metrics(&Server::start(&[]));
    let families: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next())
        .collect();
    let files = [
        ("packaging/monitoring/dashboard.json", 10),
        ("packaging/monitoring/alerts.yaml", 6),
        ("packaging/kubernetes/prometheus-adapter.yaml", 3),
        ("packaging/kubernetes/requests.yaml", 1),
    ];
    for (file, at_least) in files {
        let monitoring = std::fs::read_to_string(file).expect("a file of the repository");
        let is_end = |byte: char| !(byte.is_ascii_lowercase() || byte == '_');
        let named: Vec<&str> = monitoring
            .match_indices("cofferdam_")
            .filter_map(|(start, _)| monitoring.get(start..)?.split(is_end).next())
            .collect();
        assert!(named.len() >= at_least, "{file}: {named:?}");
        for name in named {
            let family = name.trim_end_matches("_total").trim_end_matches("_bucket");
            assert!(families.contains(&family), "{file}: {name}: {families:?}");
        }
    }
}

#[test]
fn metrics_count_calls_and_refusals() {
    let server = Server::start(&[]);
    let run = |body: &Value| {
        let answer = server.ask("POST", "/run", &[JSON], &body.to_string());
        assert_eq!(answer.status, 200, "{answer:?}");
    };
    run(&json!({"command": "exit 3"}));
    run(&json!({"command": "unshare -U true"}));
    run(&json!({"command": "sleep 60", "timeout_seconds": 0.2}));
    let text = metrics(&server);
    let counted = |line: &str| value(&text, &format!("cofferdam_{line}"));
    assert_eq!(counted(r#"calls_total{tool="bash",outcome="exited"}"#), Some(2.0), "{text}");
    assert_eq!(counted(r#"calls_total{tool="bash",outcome="timeout"}"#), Some(1.0));
    assert_eq!(counted(r#"denied_system_calls_total{tool="bash"}"#), Some(1.0));
    let bucket =
        |le: &str| counted(&format!(r#"call_duration_seconds_bucket{{le="{le}",tool="bash"}}"#));
    // The call that met its time limit took longer than the first of these; the others may not have.
    assert!(bucket("0.1").is_some_and(|calls| calls <= 2.0), "{text}");
    assert_eq!(bucket("+Inf"), Some(3.0), "{text}");
    assert_eq!(counted(r#"call_duration_seconds_count{tool="bash"}"#), Some(3.0));
    assert_eq!(
        (counted("pending"), counted("places").is_some_and(|it| it > 256.0)),
        (Some(0.0), true)
    );
    assert!(counted("resident_memory_bytes").is_some_and(|bytes| bytes > 1e6), "{text}");
    let made: f64 = ["warm", "cold"]
        .iter()
        .filter_map(|fate| counted(&format!(r#"cells_total{{fate="{fate}"}}"#)))
        .sum();
    assert_eq!(made, 3.0, "{text}");
}

#[test]
fn health_details_are_for_clients_only() {
    let toml = "[[http.tokens]]\nclient = \"alice\"\nfile = \"HOME/alice\"\n";
    let server = Server::prepared(toml, &[], |home, _| {
        std::fs::write(home.join("alice"), ALICE).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(home.join("alice"), mode).expect("ours");
    });
    let bearer = format!("Bearer {ALICE}");
    // The check says more once the supervisor has greeted; this call waits for it.
    let all = [JSON, ("authorization", bearer.as_str())];
    assert_eq!(server.ask("POST", "/run", &all, "{\"command\": \"true\"}").status, 200);
    let known = server.ask("GET", "/health", &[("authorization", &bearer)], "");
    let output = known.message();
    assert_eq!((known.status, &output["status"]), (200, &json!("healthy")), "{known:?}");
    let supervisor =
        json!({"status": "healthy", "priority": "critical", "message": "cells can be made"});
    assert_eq!(output["checks"]["supervisor"], supervisor);
    let summary = json!({"total_checks": 3, "healthy": 3, "degraded": 0, "unhealthy": 0});
    assert_eq!((&output["summary"], &output["transport"]), (&summary, &json!("http")));
    assert!(output["timestamp"].is_string(), "{output}");
    for wrong in [&[][..], &[("authorization", "Bearer wrong")]] {
        let answer = server.ask("GET", "/health", wrong, "");
        assert_eq!((answer.status, answer.message()), (200, json!({"status": "healthy"})));
    }
    assert_eq!(server.ask("GET", "/metrics", &[], "").status, 401);
}

#[test]
fn a_missing_program_or_open_breaker_is_degraded() {
    let missing = with_tool("no-such-program-anywhere", "");
    let answer = health(&missing);
    let tool = &answer.message()["checks"]["tool_cli_mine"];
    let output = (&tool["status"], &tool["priority"]);
    assert_eq!(output, (&json!("unhealthy"), &json!("informational")), "{answer:?}");
    assert_eq!((answer.status, &answer.message()["status"]), (207, &json!("degraded")));

    // The breaker opens at the first call that runs into its time.
    let failing = with_tool("sleep", "");
    let before = health(&failing).message();
    assert_eq!(before["checks"]["tool_cli_mine"]["status"], "healthy", "{before}");
    let done = failing.ask("POST", "/tools/cli_mine/execute", &[JSON], "{\"word\": \"60\"}");
    assert_eq!(done.message()["error_type"], "timeout", "{done:?}");
    let answer = health(&failing);
    assert_eq!(answer.message()["checks"]["tool_cli_mine"]["status"], "degraded", "{answer:?}");
    assert_eq!(answer.status, 207);
    let text = metrics(&failing);
    let kept = |line: &str| value(&text, &format!("cofferdam_{line}"));
    assert_eq!(kept(r#"tool_errors_total{tool="cli_mine",error="timeout"}"#), Some(1.0), "{text}");
    assert_eq!(kept(r#"tool_health{tool="cli_mine",health="degraded"}"#), Some(1.0), "{text}");
}

/// A tool that prints what it is sent, with readers for metrics and for its health.
const FIGURES: &str = r#"
schema = 1
extends = "shipped"

[[tool]]
command = "cat"
why = "this test calls it"
[[tool.read]]
name = "scanned"
pattern = "^scanned ([0-9.-]+)$"
metric = "counter"
why = "hosts that were scanned"
[[tool.read]]
name = "found"
pattern = "^found (?<what>.*)$"
all = true
metric = "counter"
why = "what was found"
[[tool.read]]
name = "left"
pattern = "^left ([0-9.]+)$"
metric = "gauge"
why = "licences that are left"
[[tool.read]]
name = "expiring"
pattern = "expires soon"
health = "degraded"
why = "the licence expires soon"
[[tool.read]]
name = "expired"
pattern = "is expired"
health = "unhealthy"
why = "the licence is expired"
"#;

#[test]
fn readers_of_output_add_metrics_and_decide_the_health_of_their_tool() {
    let server = Server::prepared("", &[], |home, _| {
        let policies = home.join("config/policies");
        std::fs::create_dir(&policies).expect("a directory");
        std::fs::write(policies.join("mine.toml"), FIGURES).expect("written");
    });
    let text = metrics(&server);
    assert!(!text.contains("cofferdam_tool_reading"), "nothing was read yet: {text}");
    let printed = |stdin: &str| {
        let body = json!({ "stdin": stdin }).to_string();
        let answer = server.ask("POST", "/tools/CatTool/execute", &[JSON], &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        let tool = health(&server).message()["checks"]["tool_cli_cat"].clone();
        let fields = ["status", "message"].map(|name| tool[name].as_str().unwrap_or("").to_owned());
        fields.join(": ")
    };
    let well = "healthy: it can be called";
    assert_eq!(printed("scanned 12\nfound a\nfound b\nleft 3.5\n"), well);
    assert_eq!(printed("it expires soon\nleft 2\nfound c\n"), "degraded: the licence expires soon");
    // The worst line counts, and a number below zero does not lower a sum.
    let worst = "it expires soon\nit is expired\nscanned -5\n";
    assert_eq!(printed(worst), "unhealthy: the licence is expired");
    let text = metrics(&server);
    let read = |line: &str| value(&text, line);
    let sum = |name: &str| {
        read(&format!(r#"cofferdam_tool_readings_total{{tool="cli_cat",reader="{name}"}}"#))
    };
    assert_eq!((sum("scanned"), sum("found")), (Some(12.0), Some(3.0)), "{text}");
    let left = read(r#"cofferdam_tool_reading{tool="cli_cat",reader="left"}"#);
    assert_eq!(left, Some(2.0), "{text}");
    // A tool cannot make the whole server unhealthy.
    let whole = health(&server);
    assert_eq!((whole.status, &whole.message()["status"]), (207, &json!("degraded")));
    // The next call that ran decides again.
    assert_eq!(printed("scanned 1\n"), well);
}
