//! The seven kinds of errors of a command-line tool, each over the real server, with the way out that its result names.

use std::time::Instant;

use serde_json::{Value, json};

use super::asked;
use super::conduct::mine;
use super::own::own;
use super::serving;
use crate::server::Server;
use crate::server::patience::patience;

fn with(program: &str, conduct: &str) -> (tempfile::TempDir, Server) {
    let directory = own("on = [\"cli_mine\"]", &mine(program, conduct));
    let server = serving(directory.path(), None);
    (directory, server)
}

/// Checks kind, exit code and way out of a result, and that its context agrees with it.
fn is(report: &Value, kind: &str, returncode: i32, suggestion: &str) {
    let context = &report["metadata"]["error_context"];
    assert_eq!(
        (&report["error_type"], &report["returncode"], &context["recovery_suggestion"]),
        (&json!(kind), &json!(returncode), &json!(suggestion)),
        "{report}"
    );
    assert_eq!(
        (&context["error_type"], &context["message"], &context["tool_name"]),
        (&report["error_type"], &report["error"], &json!("cli_mine")),
        "{report}"
    );
    assert!(context["timestamp"].is_string() && context["metadata"].is_object(), "{report}");
}

#[test]
fn validation_error_for_a_refused_argument() {
    let (_directory, mut server) = with("echo", "");
    let answer = asked(&mut server, "cli_mine", json!({"extra_args": "--evil"}));
    is(&answer, "validation_error", 1, "Check argument format. Use get_tool_info for syntax.");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn timeout_for_a_program_over_its_limit() {
    let (_directory, mut server) = with("sleep", "");
    let arguments = json!({"word": ["1000"], "timeout_sec": 0.1});
    let answer = asked(&mut server, "cli_mine", arguments);
    is(&answer, "timeout", 124, "Increase timeout_sec or reduce operation scope.");
    assert_eq!(answer["timed_out"], true);
    assert_eq!(server.close(), Some(0));
}

#[test]
fn not_found_is_a_program_that_the_cell_has_not() {
    let (_directory, mut server) = with("no-such-program", "");
    let answer = asked(&mut server, "cli_mine", json!({}));
    is(&answer, "not_found", 127, "Install no-such-program or add to PATH.");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn execution_error_is_a_program_that_failed_by_itself() {
    let (_directory, mut server) = with("false", "");
    let answer = asked(&mut server, "cli_mine", json!({}));
    let read = "Read stderr: the program's own message says what it lacks.";
    is(&answer, "execution_error", 1, read);
    assert_eq!(server.close(), Some(0));
}

#[test]
fn execution_error_names_the_missing_grant() {
    // unshare(1) asks for a namespace, which no profile can grant; renice(1) for a call that one can.
    let (_directory, mut server) = with("unshare", "always = [\"-U\", \"true\"]");
    let answer = asked(&mut server, "cli_mine", json!({}));
    is(&answer, "execution_error", 1, "Run with appropriate permissions or adjust policy.");
    assert_eq!(answer["denials"][0]["syscall"], "unshare", "{answer}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_denied_host_has_its_grant_in_the_error() {
    let script = "(: </dev/tcp/10.0.0.9/8443) 2>/dev/null";
    let conduct = format!("always = [\"-c\", \"{script}\"]");
    let directory = own("on = [\"cli_mine\"]", &mine("bash", &conduct));
    let path = directory.path().display().to_string();
    let mut server = Server::start(&["--config", &path, "--egress", "10.0.0.8:80"]);
    let answer = asked(&mut server, "cli_mine", json!({}));
    is(&answer, "execution_error", 1, "Check network connectivity and firewall rules.");
    let grants = &answer["metadata"]["error_context"]["metadata"]["grants"];
    assert_eq!(grants, &json!(["[[egress]] nets = [\"10.0.0.9\"], ports = [8443]"]), "{answer}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn resource_exhausted_is_a_program_that_met_a_limit() {
    let policy =
        mine("yes", "").replace("timeout = \"20s\"", "timeout = \"20s\", output = \"64K\"");
    let directory = own("on = [\"cli_mine\"]", &policy);
    let mut server = serving(directory.path(), None);
    let answer = asked(&mut server, "cli_mine", json!({}));
    let way = "Reduce operation scope, or call again when others have ended.";
    is(&answer, "resource_exhausted", 137, way);
    assert_eq!(server.close(), Some(0));
}

#[test]
fn circuit_breaker_open_after_failures() {
    let (_directory, mut server) = with("no-such-program", "breaker = { failures = 1 }");
    let answer = asked(&mut server, "cli_mine", json!({}));
    assert_eq!(answer["error_type"], "not_found", "{answer}");
    let answer = asked(&mut server, "cli_mine", json!({}));
    let way = "Wait for the recovery time; the calls before this one failed.";
    is(&answer, "circuit_breaker_open", 1, way);
    assert_eq!(server.close(), Some(0));
}

#[test]
fn unknown_is_a_call_that_lost_its_supervisor() {
    let (_directory, mut server) = with("sleep", "");
    let id = server.call("cli_mine", json!({"word": ["1000"]}));
    let end = Instant::now() + patience();
    // The first process below the server that has others below it, once the program runs.
    let supervisor = loop {
        assert!(Instant::now() < end, "the program never ran");
        let below = children(server.child.id());
        let runs = |pid: &u32| names_below(*pid).iter().any(|name| name == "sleep");
        if let Some(pid) = below.into_iter().find(runs) {
            break pid;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    let pid = nix::unistd::Pid::from_raw(i32::try_from(supervisor).expect("a pid"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("it lives");
    let answer = server.answer(id)["result"]["structuredContent"].clone();
    is(&answer, "unknown", 126, "Call again; the server's log has the cause.");
    assert_eq!(answer["error"], "supervisor failure");
}

/// Returns the processes that this one has started (proc(5), `children`).
fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let all: Vec<String> = lists.collect();
    all.iter().flat_map(|list| list.split_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
}

fn names_below(pid: u32) -> Vec<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let below = children(pid).into_iter().flat_map(names_below);
    [name.trim().to_owned()].into_iter().chain(below).collect()
}
