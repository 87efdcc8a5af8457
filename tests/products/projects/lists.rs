//! Lists of a project in pages, the members that its framework adds to requests, and the order of requests.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::hooks::project;
use super::transcript::{compare, modern};
use crate::server::patience::patience;
use crate::server::{PROGRAM, Server};

fn command(directory: &tempfile::TempDir, env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--toolchains", "none", "--project"]).arg(directory.path());
    command.envs(env.iter().copied());
    command
}

/// Makes a project with so many tools, and prompts.
fn many(count: usize) -> tempfile::TempDir {
    let tools =
        (0..count).map(|number| (format!("tools/g/t{number:04}.sh"), format!("echo {number}\n")));
    let prompts = (0..3).map(|number| (format!("prompts/p{number}.txt"), String::new()));
    let files: Vec<(String, String)> = tools.chain(prompts).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (&**path, &**text)).collect();
    project(&files)
}

fn ask(server: &mut Server, method: &str, params: Value) -> Value {
    let id = server.request(method, params);
    server.answer(id)
}

#[test]
fn lists_are_paged_with_separate_cursors() {
    let directory = many(120);
    let mut server = Server::of(command(&directory, &[]));
    let mut names = Vec::new();
    let mut params = json!({});
    let mut lengths = Vec::new();
    loop {
        let result = ask(&mut server, "tools/list", params)["result"].clone();
        // One more tool is that of each such project.
        assert_eq!(result["_meta"]["mcpbash/total"], 121);
        let tools = result["tools"].as_array().cloned().unwrap_or_default();
        lengths.push(tools.len());
        names.extend(tools.iter().map(|tool| tool["name"].to_string()));
        match result.get("nextCursor") {
            Some(cursor) => params = json!({"cursor": cursor}),
            None => break,
        }
    }
    assert_eq!(lengths, [50, 50, 21]);
    assert_eq!((names.len(), names.is_sorted()), (121, true));
    let first = ask(&mut server, "tools/list", json!({"limit": 7}))["result"].clone();
    assert_eq!(first["tools"].as_array().map(Vec::len), Some(7));
    let most = ask(&mut server, "tools/list", json!({"limit": 5000}))["result"].clone();
    assert_eq!(most["tools"].as_array().map(Vec::len), Some(121));
    let meta = &most["tools"][0]["_meta"];
    assert_eq!(
        (&meta["mcpbash/path"], &meta["mcpbash/timeoutSecs"]),
        (&json!("t/tool.sh"), &Value::Null)
    );
    let invalid = json!({"code": -32602, "message": "Invalid cursor"});
    let cursor = first["nextCursor"].clone();
    assert_eq!(ask(&mut server, "prompts/list", json!({"cursor": cursor}))["error"], invalid);
    assert_eq!(ask(&mut server, "tools/list", json!({"cursor": "none"}))["error"], invalid);
    let prompts = ask(&mut server, "prompts/list", json!({"limit": 2}))["result"].clone();
    assert_eq!(
        (&prompts["_meta"]["mcpbash/total"], prompts["prompts"].as_array().map(Vec::len)),
        (&json!(3), Some(2))
    );
    // A cursor of the list as it was before is refused.
    std::fs::remove_file(directory.path().join("tools/g/t0100.sh")).expect("removed");
    let mut server = Server::of(command(&directory, &[]));
    assert_eq!(ask(&mut server, "tools/list", json!({"cursor": cursor}))["error"], invalid);
}

#[test]
fn timeouts_in_parameters_are_capped() {
    let directory = project(&[("tools/s/s.sh", "sleep 30\n")]);
    let env = [("MCPBASH_MAX_TIMEOUT_SECS", "2"), ("MCPBASH_DEFAULT_TOOL_TIMEOUT", "2")];
    let mut server = Server::of(command(&directory, &env));
    for (request, given) in [(1, 1), (100, 2)] {
        let result =
            ask(&mut server, "tools/call", json!({"name": "s", "timeoutSecs": request}))["result"]
                .clone();
        assert_eq!(result["structuredContent"]["error"]["timeoutSecs"], given, "{result}");
    }
}

#[test]
fn completions_have_pages() {
    let script =
        "printf '[\"a\",\"b\",\"c\",\"d %s\"]' \"$MCP_COMPLETION_LIMIT $MCP_COMPLETION_OFFSET\"\n";
    let directory = project(&[("prompts/p.txt", ""), ("prompts/p.completion.sh", script)]);
    let mut server = Server::of(command(&directory, &[]));
    let params = |value: &str, more: Value| {
        let mut params = json!({
            "ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": value}, "limit": 3,
        });
        params
            .as_object_mut()
            .expect("an object")
            .extend(more.as_object().cloned().unwrap_or_default());
        params
    };
    let first = ask(&mut server, "completion/complete", params("", json!({})))["result"].clone();
    assert_eq!(first["completion"], json!({"values": ["a", "b", "c"], "hasMore": true}));
    let cursor = first["_meta"]["mcpbash/nextCursor"].clone();
    let second =
        ask(&mut server, "completion/complete", params("", json!({"cursor": cursor})))["result"]
            .clone();
    assert_eq!(second["completion"], json!({"values": ["d 3 3"], "hasMore": false, "total": 4}));
    let other = ask(&mut server, "completion/complete", params("x", json!({"cursor": cursor})));
    assert_eq!(other["error"]["message"], "Invalid cursor");
}

#[test]
fn scripts_work_in_the_projects_roots_only() {
    let roots = r#"{"roots": [{"path": "./data", "name": "Data"}, {"path": "/etc"}, {"path": "../x"}, {"path": "none"}, {"path": "data/"}]}"#;
    let script = "source \"$MCP_SDK/tool-sdk.sh\"\necho \"$MCP_ROOTS_JSON $MCP_ROOTS_COUNT\"
        for path in data/f tools/t/tool.sh /etc/passwd data/../tools; do mcp_roots_contains \"$path\" && echo \"$path\"; done; :\n";
    let directory =
        project(&[("config/roots.json", roots), ("data/f", ""), ("tools/r/r.sh", script)]);
    let mut server = Server::of(command(&directory, &[]));
    let text = ask(&mut server, "tools/call", json!({"name": "r"}))["result"]["content"][0]["text"]
        .clone();
    let expected = "[{\"uri\":\"file:///workspace/data\",\"name\":\"Data\",\"path\":\"/workspace/data\"}] 1\ndata/f\n";
    assert_eq!(text, expected);
}

/// Starts a server without opening a session, and sends these lines. Returns its answers and its exit code.
fn converse(
    directory: &tempfile::TempDir,
    env: &[(&str, &str)],
    lines: &[Value],
) -> (Vec<Value>, Option<i32>) {
    use std::io::Write;
    let mut child = command(directory, env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the server starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    for line in lines {
        writeln!(stdin, "{line}").expect("written");
        std::thread::sleep(Duration::from_millis(100));
    }
    // The server's input stays open: it ends by itself or at the end of the test's patience.
    let end = std::time::Instant::now() + patience();
    let mut code = None;
    while code.is_none() && std::time::Instant::now() < end {
        code = child.try_wait().expect("ours");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let answers = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    (answers, code.and_then(|code| code.code()))
}

fn request(id: u64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

#[test]
fn requests_keep_their_order_and_exit_ends_the_server() {
    let directory = project(&[]);
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let lines = [
        request(1, "tools/list", json!({})),
        request(2, "ping", json!({})),
        request(3, "exit", json!({})),
        request(5, "initialize", hello),
        request(6, "tools/list", json!({})),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "method": "exit"}),
        request(7, "tools/call", json!({"name": "t"})),
        request(8, "shutdown", json!({})),
        request(9, "tools/list", json!({})),
        request(10, "exit", json!({})),
    ];
    let (mut answers, code) = converse(&directory, &[], &lines);
    assert_eq!(code, Some(0));
    answers.sort_by_key(|answer| answer["id"].as_u64());
    let report: Vec<Value> = answers
        .iter()
        .map(|answer| json!([answer["id"], answer["error"]["code"], answer["error"]["message"]]))
        .collect();
    let closed = "Server not initialized";
    // A request that stands alone opens what it needs itself.
    let alone = request(1, "tools/call", json!({"name": "t", "_meta": modern(json!({}))}));
    let (answers, _) = converse(
        &directory,
        &[],
        &[alone, request(2, "shutdown", json!({"_meta": modern(json!({}))}))],
    );
    let codes: Vec<&Value> = answers.iter().map(|answer| &answer["error"]["code"]).collect();
    assert_eq!(codes, [&Value::Null; 2], "{answers:?}");
    assert_eq!(
        report,
        [
            json!([1, -32000, closed]),
            json!([2, null, null]),
            json!([3, -32005, "Shutdown not requested"]),
            json!([5, null, null]),
            json!([6, -32000, closed]),
            json!([7, null, null]),
            json!([8, null, null]),
            json!([9, -32003, "Server shutting down"]),
            json!([10, null, null]),
        ]
    );
}

#[test]
fn shutdown_and_batches_follow_the_framework() {
    let directory = project(&[]);
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let lines = [
        request(1, "initialize", hello),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!([request(2, "ping", json!({})), request(3, "ping", json!({}))]),
        request(4, "shutdown", json!({})),
    ];
    for (env, ids) in
        [(&[("MCPBASH_COMPAT_BATCHES", "true")][..], vec![1, 2, 3, 4]), (&[], vec![1, 4])]
    {
        let (answers, code) = converse(&directory, env, &lines);
        assert_eq!(code, Some(0));
        let mut found: Vec<u64> =
            answers.iter().filter_map(|answer| answer["id"].as_u64()).collect();
        found.sort_unstable();
        assert_eq!(found, ids);
    }
}

#[test]
fn an_idle_server_ends_but_not_during_work() {
    let directory = project(&[("tools/s/s.sh", "sleep 2.5; echo slept\n")]);
    let mut server = Server::of(command(&directory, &[("MCPBASH_IDLE_TIMEOUT", "1")]));
    assert_eq!(server.result("s", json!({}))["content"][0]["text"], "slept\n");
    let end = std::time::Instant::now() + patience();
    // The server's input stays open.
    let code = loop {
        if let Some(status) = server.child.try_wait().expect("ours") {
            break status.code();
        }
        assert!(std::time::Instant::now() < end, "it did not end");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(code, Some(0));
    let mut server = Server::of(command(&directory, &[]));
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(server.result("s", json!({}))["content"][0]["text"], "slept\n");
}

#[test]
fn framework_variables_set_project_and_level() {
    let script = "source \"$MCP_SDK/tool-sdk.sh\"\nmcp_log_info x said\nmcp_log_error x failed\n";
    let directory = project(&[("tools/l/l.sh", script)]);
    let root = directory.path().to_str().expect("UTF-8");
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--toolchains", "none"]);
    command.envs([("MCPBASH_PROJECT_ROOT", root), ("MCPBASH_LOG_LEVEL", "error")]);
    command.env("MCPBASH_TOOLS_DIR", directory.path().join("tools"));
    let mut server = Server::of(command);
    let id = server.call("l", json!({}));
    let lines = super::transcript::until(&mut server, id, |_| None);
    let text: Vec<&Value> = lines.iter().map(|line| &line["params"]["data"]).collect();
    assert_eq!(text, [&json!("failed"), &Value::Null]);
    // Other tools than were meant are not served.
    let mut command = self::command(&directory, &[("MCPBASH_TOOLS_DIR", "/usr/bin")]);
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{error}");
    let reason = "MCPBASH_TOOLS_DIR: `/usr/bin` is no folder within the project";
    assert!(error.contains(reason), "{error}");
}

/// Requests whose answers are compared with transcripts: each list, a prompt, a resource, and unknown names.
pub(crate) fn questions(meta: &Value) -> Vec<(&'static str, Value)> {
    let lists = ["tools/list", "resources/list", "resources/templates/list", "prompts/list"];
    let lists = lists.map(|method| (method, json!({"limit": 2, "_meta": meta})));
    let get = json!({"name": "greeting", "arguments": {"name": "Ada"}, "_meta": meta});
    let read = json!({"uri": "file://./resources/note.txt", "_meta": meta});
    let nothing = ("nothing", json!({"_meta": meta}));
    [&lists[..], &[("prompts/get", get), ("resources/read", read), nothing]].concat()
}

/// Takes out of answers what depends on the place of the project's files.
pub(crate) fn without_places(mut lines: Vec<Value>) -> Vec<Value> {
    for line in &mut lines {
        // The hash in a cursor depends on the place of the project's files alone, and its length does not.
        if let Some(cursor) = line.pointer_mut("/result/nextCursor") {
            *cursor = json!("…");
        }
        line["id"] = json!("…");
    }
    lines
}

#[test]
fn lists_are_as_their_transcripts_in_both_eras() {
    let directory = tempfile::tempdir().expect("a directory");
    super::copied(directory.path()).expect("a copy");
    let mut server = Server::of(command(&directory, &[]));
    for (name, meta) in [("lists-2025-11-25", json!({})), ("lists-2026-07-28", modern(json!({})))] {
        let mut lines = Vec::new();
        for (method, params) in questions(&meta) {
            let id = server.request(method, params);
            lines.extend(super::transcript::until(&mut server, id, |_| None));
        }
        compare(name, &without_places(lines));
    }
}

#[test]
fn granted_client_roots_are_passed_and_refreshed() {
    let script = "printf '%s|%s' \"${MCP_ROOTS_PATHS//$'\\n'/ }\" \"$(cat /mnt/*/key 2>&1)\"\n";
    let directory = project(&[("tools/r/r.sh", script)]);
    let data = tempfile::Builder::new().prefix("data").tempdir().expect("a directory");
    std::fs::write(data.path().join("key"), "granted").expect("written");
    for path in [data.path().to_owned(), data.path().join("key")] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, mode).expect("a mode");
    }
    let granted = data.path().canonicalize().expect("a path");
    let own = directory.path().canonicalize().expect("a path");
    let request = |more: &[&str], env: &[(&str, &str)], capabilities: Value, uris: &[String]| {
        let mut command = command(&directory, env);
        command.args(more);
        let mut server = Server::of_client(command, capabilities);
        let mut texts = Vec::new();
        for uri in uris {
            let id = server.call("r", json!({}));
            let lines = super::transcript::until(&mut server, id, |question| {
                assert_eq!(question["method"], "roots/list");
                Some(json!({"roots": [{"uri": uri}, {"uri": "file:///etc"}]}))
            });
            texts.push(lines.last().map(|line| line["result"]["content"][0]["text"].clone()));
            let changed = "notifications/roots/list_changed";
            server.send(&json!({"jsonrpc": "2.0", "method": changed}));
        }
        json!(texts)
    };
    let target = granted.display().to_string();
    let cell = format!("{target}:/mnt/data");
    let uris = [
        format!("file://{target}"),
        format!("file://{}", own.display()),
        "file:///root".to_owned(),
    ];
    let roots = json!({"roots": {"listChanged": true}});
    let output = request(&["--ro", &cell], &[], roots.clone(), &uris);
    assert_eq!(output, json!(["/mnt/data|granted", "/workspace|granted", "/workspace|granted"]));
    // A root that is not granted is neither reported nor mounted.
    let output = request(&[], &[], roots, &uris[..1]);
    assert_eq!(output, json!(["/workspace|cat: '/mnt/*/key': No such file or directory"]));
    // The operator's own are granted for reading.
    let output = request(&[], &[("MCPBASH_ROOTS", &target)], json!({}), &uris[..1]);
    let name = granted.file_name().and_then(|name| name.to_str()).expect("a name");
    assert_eq!(output, json!([format!("/mnt/{name}|granted")]));
}
