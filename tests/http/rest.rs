//! Plain requests: tools by name, and `/run`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Server, call, modern, modern_call, patience, request};
use crate::deceptive::{HOSTILE, raw, written};

const JSON: (&str, &str) = ("content-type", "application/json");

fn run(server: &Server, body: &Value) -> Value {
    let answer = server.ask("POST", "/run", &[JSON], &body.to_string());
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.message()
}

#[test]
fn a_command_runs_in_its_directory() {
    let server = Server::start(&[]);
    let done =
        run(&server, &json!({"command": "cat; echo err >&2; echo 1 > f; exit 3", "stdin": "in\n"}));
    let output = (&done["stdout"], &done["stderr"], &done["exit_code"], &done["timeout_seconds"]);
    assert_eq!(output, (&json!("in\n"), &json!("err\n"), &json!(3), &json!(5.0)));
    assert!(done["duration_ms"].is_u64(), "{done}");
    let other = run(&server, &json!({"command": "ls; echo $?"}));
    assert_eq!(other["stdout"], "0\n", "nothing is left of the first");
    let bad = server.ask("POST", "/run", &[JSON], "{\"command\": \"true\", \"comand\": 1}");
    assert_eq!(bad.status, 400, "{bad:?}");
}

#[test]
fn a_host_and_a_call_that_are_refused_are_noted_with_the_grant() {
    let server = Server::start(&[]);
    let script =
        "python3 -c 'import socket; socket.getaddrinfo(\"pypi.org\", 443)'; unshare -Ur true";
    let done = run(&server, &json!({ "command": script }));
    let host = "denied: connect pypi.org, once: the cell has no network; the operator can grant it: --egress python, or \
                [[egress]] hosts = [\"pypi.org\"], ports = [443]";
    let call = "denied: system call unshare, once; nothing grants it";
    assert_eq!(done["notes"], json!([call, host]), "{done}");
    let done = run(&server, &json!({ "command": "head -c 200M /dev/zero > /tmp/f" }));
    assert!(done["notes"][0].as_str().is_some_and(|it| it.starts_with("/tmp is full: ")), "{done}");
    let done = run(&server, &json!({ "command": "false" }));
    assert_eq!((&done["exit_code"], &done["notes"]), (&json!(1), &Value::Null), "{done}");
}

#[test]
fn floods_and_fork_bombs_are_contained() {
    let server = Server::start(&[]);
    let late = run(&server, &json!({"command": "yes > /dev/null", "timeout_seconds": 1}));
    assert_eq!((&late["exit_code"], &late["outcome"]), (&json!(124), &json!("timeout")));
    run(&server, &json!({"command": ":(){ :|:& };:", "timeout_seconds": 2}));
    run(&server, &json!({"command": "rm -rf --no-preserve-root /", "timeout_seconds": 5}));
    assert!(std::path::Path::new("/etc/passwd").exists());
    assert_eq!(run(&server, &json!({"command": "echo there"}))["stdout"], "there\n");
}

#[test]
fn the_operator_sets_the_rate_of_calls() {
    let server = Server::prepared("[http]\nrate = 2\n", &[], |_, _| ());
    let execute = || {
        server.ask("POST", "/tools/calculate/execute", &[JSON], "{\"expression\": \"1\"}").status
    };
    assert_eq!([execute(), execute(), execute()], [200, 200, 429]);
}

#[test]
fn tools_are_called_by_name_within_their_rate() {
    let server = Server::start(&[]);
    let listed = server.ask("GET", "/tools", &[], "").message();
    assert!(listed["tools"].to_string().contains("\"calculate\""), "{listed}");
    let execute = |tool: &str, body: &str| {
        server.ask("POST", &format!("/tools/{tool}/execute"), &[JSON], body)
    };
    let done = execute("calculate", "{\"expression\": \"6*7\"}");
    assert_eq!((done.status, &done.message()["result"]), (200, &json!("42")), "{done:?}");
    assert_eq!(execute("nothing", "{}").status, 404);
    for odd in ["%FF", "%C3%A9", "%0A", "a%20b", &"x".repeat(129)] {
        let unknown = execute(odd, "{}");
        assert_eq!(
            (unknown.status, &unknown.message()["error"]),
            (404, &json!("not_found")),
            "{odd}"
        );
    }
    let hidden = execute("bash_exec", "{\"command\": \"id\"}");
    let text = hidden.message();
    let message = "`bash_exec` is switched off; hint: ";
    assert_eq!((hidden.status, &text["error"]), (403, &json!("denied")), "{hidden:?}");
    assert!(text["message"].as_str().is_some_and(|it| it.starts_with(message)), "{text}");
    assert_eq!(execute("calculate", "[]").status, 400);
    let statuses: Vec<u16> =
        (0..12).map(|_| execute("calculate", "{\"expression\": \"1\"}").status).collect();
    assert_eq!(statuses.last(), Some(&429), "{statuses:?}");
    let refused = execute("calculate", "{\"expression\": \"1\"}");
    assert!(refused.header("retry-after").is_some() && refused.message()["retry_after"].is_u64());
    assert_eq!(
        run(&server, &json!({"command": "echo on"}))["stdout"],
        "on\n",
        "others are not concerned"
    );
}

#[test]
fn a_form_of_a_page_reaches_no_command() {
    let server = Server::start(&[]);
    for kind in ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"] {
        let form = [("content-type", kind), ("origin", "http://evil.example")];
        let refused = server.ask("POST", "/run", &form, "{\"command\": \"id\"}");
        assert_eq!(refused.status, 403, "{refused:?}");
    }
}

#[test]
fn files_pass_through_a_commands_directory() {
    let server = Server::start(&[]);
    let done = run(
        &server,
        &json!({
            "command": "pwd; cat; cat in/a.txt; od -An -tx1 b.bin; tr a-z A-Z <in/a.txt >out.txt; ln -s /etc/passwd link; exit 3",
            "stdin": "from stdin\n",
            "files": [{"path": "in/a.txt", "content": "it's a\n"}, {"path": "b.bin", "content_base64": "AAr/"}],
            "outputs": ["out.txt", "b.bin", "absent", "in", "it's"],
        }),
    );
    let stdout = "/workspace\nfrom stdin\nit's a\n 00 0a ff\n";
    assert_eq!((&done["stdout"], &done["exit_code"]), (&json!(stdout), &json!(3)), "{done}");
    let absent = "it is no regular file that can be read";
    let files = json!([
        {"path": "out.txt", "content_base64": "SVQnUyBBCg=="}, {"path": "b.bin", "content_base64": "AAr/"},
        {"path": "absent", "error": absent}, {"path": "in", "error": absent}, {"path": "it's", "error": absent},
    ]);
    assert_eq!(done["files"], files);
    let late = json!({"command": "echo x >f; sleep 60", "timeout_seconds": 0.3, "outputs": ["f"]});
    let late = run(&server, &late);
    assert_eq!(late["outcome"], "timeout");
    assert!(
        late["files"][0]["error"].as_str().is_some_and(|reason| reason.contains("did not end")),
        "{late}"
    );
    let large = json!({"command": "head -c 5M /dev/zero >a; echo b >b", "outputs": ["a", "b"]});
    let large = run(&server, &large);
    assert!(
        large["files"][0]["error"].as_str().is_some_and(|reason| reason.contains("more than")),
        "{large}"
    );
    assert_eq!(large["files"][1]["content_base64"], "Ygo=");
    let most =
        json!({"command": "head -c 4M /dev/zero >a; head -c 2M /dev/zero", "outputs": ["a"]});
    let most = run(&server, &most);
    let length = most["files"][0]["content_base64"].as_str().map(str::len);
    assert_eq!(length, Some((4_usize << 20).div_ceil(3) * 4), "{:?}", most["files"][0]["error"]);
    assert!(!most["stdout"].as_str().unwrap_or_default().contains("cofferdam-"));
    for bad in ["../a", "/etc/passwd", "a/../../b", ""] {
        for body in [
            json!({"command": "true", "outputs": [bad]}),
            json!({"command": "true", "files": [{"path": bad, "content": ""}]}),
        ] {
            let refused = server.ask("POST", "/run", &[JSON], &body.to_string());
            assert_eq!(refused.status, 400, "{refused:?}");
        }
    }
}

#[test]
fn a_directory_for_commands_is_private_to_each_cell() {
    let server = Server::start(&["--workdir", "/tmp/root"]);
    let pwd = || {
        run(&server, &json!({"command": "pwd; ls /tmp/root"}))["stdout"].as_str().map(str::to_owned)
    };
    let first = pwd().expect("text");
    let second = pwd().expect("text");
    assert!(first.starts_with("/tmp/root/bash-") && first != second, "{first}{second}");
    assert_eq!(first.lines().count(), 2, "no other's is there: {first}");
    let by_variable = Server::prepared("", &[], |_, command| {
        command.env("MCP_BASH_ROOT_DIR", "/workspace/r");
    });
    let done = run(&by_variable, &json!({"command": "pwd"}));
    assert!(
        done["stdout"].as_str().is_some_and(|it| it.starts_with("/workspace/r/bash-")),
        "{done}"
    );
    let granted = tempfile::tempdir().expect("a directory");
    std::fs::write(granted.path().join("mine"), "granted").expect("written");
    let socket = granted.path().with_extension("sock");
    let workspace = granted.path().display().to_string();
    let at = format!("unix:{}", socket.display());
    let server = Server::start(&["--workspace", &workspace, "--http", &at]);
    let done = run(
        &server,
        &json!({"command": "pwd; ls; cat /workspace/mine; echo x >y", "outputs": ["y"]}),
    );
    let stdout = done["stdout"].as_str().unwrap_or_default();
    assert!(stdout.starts_with("/tmp/mcp/bash/bash-") && stdout.ends_with("\ngranted"), "{done}");
    assert_eq!(done["files"][0]["content_base64"], "eAo=");
    assert!(!granted.path().join("y").exists(), "what it leaves is gone with its cell");
    std::fs::remove_file(socket).expect("it was made");
}

#[test]
fn a_call_of_a_tool_ends_when_its_client_leaves() {
    let granted = tempfile::tempdir().expect("a directory");
    let workspace = granted.path().join("w");
    std::fs::create_dir(&workspace).expect("made");
    let at = format!("unix:{}", granted.path().join("socket").display());
    let server = Server::start(&["--workspace", &workspace.display().to_string(), "--http", &at]);
    let path = "/tools/bash/execute";
    let body = |name: &str| {
        let command = format!("echo >{name}.began; sleep 2; echo >{name}.ended");
        json!({ "command": command, "session": name }).to_string()
    };
    let is_there = |file: &str| workspace.join(file).exists();
    let mut leaving = server.connect();
    leaving.send(&request("POST", path, &[JSON], &body("left")));
    let end = Instant::now() + patience();
    while !is_there("left.began") && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(is_there("left.began"));
    drop(leaving);
    // The control, which takes as long.
    let waited = server.ask("POST", path, &[JSON], &body("waited"));
    assert!(waited.status == 200 && is_there("waited.ended"), "{waited:?}");
    assert!(!is_there("left.ended"), "the call of a client that left ran to its end");
}

#[test]
fn a_host_directory_is_no_directory_for_commands() {
    let refused = std::process::Command::new(crate::client::PROGRAM)
        .args(["serve", "--http", "127.0.0.1:0", "--workdir", "/srv/mcp"])
        .stdin(std::process::Stdio::null())
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(125), "{text}");
    assert!(text.contains("/srv/mcp") && text.contains("--workspace"), "{text}");
}

/// Every word of a client's that the audit log has, by tool.
fn correlations(log: &std::path::Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(log).expect("a log");
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of = |line: Value| {
        let word = |key: &str| line[key].as_str().map(str::to_owned);
        (line["event"] == "decision").then(|| Some((word("tool")?, word("correlation_id")?)))
    };
    lines.filter_map(of).flatten().collect()
}

#[test]
fn request_ids_are_echoed_and_audited() {
    let toml = "[audit]\nfile = \"HOME/log/audit.jsonl\"\n";
    let server = Server::configured(toml, &["--tools", "calc,shell,exec"]);
    let named = |id| ("x-correlation-id", id);
    let run = server.ask("POST", "/run", &[JSON, named("run-1")], "{\"command\": \"true\"}");
    assert_eq!((run.status, run.header("x-correlation-id")), (200, Some("run-1")), "{run:?}");
    let sum = "{\"expression\": \"6*7\"}";
    for id in ["sum-1", "sum-2"] {
        let done = server.ask("POST", "/tools/calculate/execute", &[JSON, named(id)], sum);
        assert_eq!((done.status, done.header("x-correlation-id")), (200, Some(id)), "{done:?}");
    }
    let session = server.session(&[]);
    for id in ["shell-1", "shell-2"] {
        let of = [("mcp-session-id", session.as_str()), ("x-request-id", id)];
        let done = server.mcp(&of, &call("bash", json!({"command": "echo on"})));
        assert_eq!((done.stdout().as_str(), done.header("x-request-id")), ("on\n", Some(id)));
    }
    let headers = modern("bash_exec");
    let mut headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    headers.push(named("exec-1"));
    assert_eq!(
        server.mcp(&headers, &modern_call("bash_exec", json!({"command": "echo on"}))).status,
        200
    );
    // An id that is no word, or too long, is in neither.
    let long = "x".repeat(129);
    for odd in ["two words", "\"q\",\u{e9}", &long, ""] {
        let done = server.ask("POST", "/run", &[JSON, named(odd)], "{\"command\": \"true\"}");
        assert_eq!((done.status, done.header("x-correlation-id")), (200, None), "{odd:?}");
    }
    let expected = [
        ("bash_exec", "run-1"),
        ("calculate", "sum-1"),
        // The result was remembered, and the decision is still recorded.
        ("calculate", "sum-2"),
        ("bash", "shell-1"),
        ("bash", "shell-2"),
        ("bash_exec", "exec-1"),
    ];
    let expected: Vec<(String, String)> =
        expected.iter().map(|(tool, id)| ((*tool).to_owned(), (*id).to_owned())).collect();
    let mut seen = correlations(&server.home.path().join("log/audit.jsonl"));
    // Each evaluation of a sum is a separate call.
    seen.dedup();
    assert_eq!(seen, expected);
}

#[test]
fn deceptive_text_is_escaped_in_every_answer() {
    let server = Server::start(&[]);
    let print = format!("printf '{0}'; printf '{0}' >&2", written());
    let mut shown = 0;
    for (path, body) in [
        ("/run", json!({"command": print})),
        (
            "/run",
            json!({"command": format!("printf '{}' >f", written()), "outputs": ["f", HOSTILE]}),
        ),
        (
            "/run",
            json!({"command": "true", "files": [{"path": format!("../{HOSTILE}"), "content": ""}]}),
        ),
        ("/run", json!({"command": HOSTILE})),
        ("/run", json!({"command": "true", HOSTILE: 1})),
        ("/tools/bash/execute", json!({"command": print})),
        ("/tools/calculate/execute", json!({"expression": HOSTILE})),
    ] {
        let answer = server.ask("POST", path, &[JSON], &body.to_string()).message();
        assert_eq!(raw(&answer), Vec::<char>::new(), "{path} {body}: {answer}");
        shown += usize::from(answer.to_string().contains("<U+202E>"));
    }
    // The control: the text did come through, as escapes.
    assert!(shown >= 5, "{shown} answers with the text");
}
