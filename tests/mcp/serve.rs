//! The real server over real pipes: what a client sees, and what is left on the host afterwards.
#![expect(
    clippy::indexing_slicing,
    reason = "a missing field of an answer fails the test either way"
)]

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rmcp::ServiceExt;
use rmcp::model::CallToolRequestParams;
use serde_json::{Value, json};

use crate::server::{
    PROGRAM, Server,
    patience::{patience, soon},
};

/// The result of a command in a shell.
fn run(server: &mut Server, command: &str) -> Value {
    server.result("bash", json!({"command": command}))
}

/// Returns true if a process with `word` in its arguments is on this host.
fn is_running(word: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("procfs").flatten();
    processes
        .filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok())
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .any(|arguments| arguments.split(|byte| *byte == 0).any(|one| one == word.as_bytes()))
}

fn within(time: Duration, what: impl Fn() -> bool) -> bool {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if what() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    what()
}

/// A number of seconds that no other test sleeps, to find its process by.
fn unique(number: u32) -> String {
    format!("{}{:06}", 1000 + number, std::process::id() % 1_000_000)
}

#[test]
fn a_reply_has_output_exit_code_and_receipt() {
    let mut server = Server::start(&[]);
    let result = run(&mut server, "echo out; echo err >&2; exit 3");
    let content = &result["structuredContent"];
    assert_eq!(
        (&content["outcome"], &content["exit_code"], &content["stdout"], &content["stderr"]),
        (&json!("exited"), &json!(3), &json!("out\n"), &json!("err\n"))
    );
    assert_eq!(result["isError"], false, "a non-zero exit is data");
    let receipt = &result["_meta"]["cofferdam/receipt"];
    assert_eq!(receipt["measured"]["no_new_privs"], true);
    assert_eq!(receipt["probed"]["landlock_path"], "EACCES");
    assert_ne!(receipt["measured"]["host_uid"], 0);
    let timings = &receipt["timings_us"];
    let taken = |phase: &str| timings[phase].as_u64().unwrap_or_default();
    // The first call finds no cell ready: building one is the queue.
    assert!(taken("queue") > 0 && taken("hand_over") > 0 && taken("run") > 0, "{timings}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn options_grant_paths_variables_and_memory() {
    let directory = tempfile::tempdir().expect("a directory");
    let [work, models, out] = ["work", "models", "out"].map(|name| {
        let path = directory.path().join(name);
        std::fs::create_dir(&path).expect("a new directory");
        path.display().to_string()
    });
    std::fs::write(format!("{models}/m"), "weights\n").expect("a file");
    let out_at = format!("{out}:/mnt/results");
    let options = [
        "--workspace",
        &work,
        "--ro",
        &models,
        "--rw",
        &out_at,
        "--env",
        "RUST_LOG=debug",
        "--memory",
        "2G",
        "--tools",
        "shell,exec",
    ];
    let mut server = Server::start(&options);
    let command = "cat /mnt/models/m; echo $RUST_LOG; echo 1 > /mnt/results/r && echo 2 > w; \
                   echo 3 2>&1 > /mnt/models/n";
    let result = run(&mut server, command);
    let printed = result["structuredContent"]["stdout"].as_str().unwrap_or_default();
    assert!(printed.starts_with("weights\ndebug\n"), "{result}");
    assert!(printed.contains("/mnt/models/n: Read-only file system"), "{result}");
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!((read(format!("{out}/r")), read(format!("{work}/w"))), ("1\n".into(), "2\n".into()));
    let configured = &result["_meta"]["cofferdam/receipt"]["configured"];
    assert_eq!(configured["memory_bytes"], json!(2_u64 << 30), "more than the profile has");
    // A call without a shell has them too.
    let result =
        server.result("bash_exec", json!({"command": "cat /mnt/models/m; echo $RUST_LOG"}));
    assert!(result.to_string().contains("weights\\ndebug"), "{result}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_command_missing_in_the_cell_is_located() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("hosts-own-tool");
    std::fs::write(&program, "#!/bin/sh\necho ran\n").expect("a program");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("its mode");
    let path = format!("{}:/usr/bin:/bin", directory.path().display());
    let mut command = std::process::Command::new(PROGRAM);
    command.env("PATH", &path).args(["serve", "--tools", "shell,exec"]);
    let mut server = Server::of(command);
    let expected = format!("the host has `hosts-own-tool` in {}", directory.path().display());
    let absent = run(&mut server, "nobodys-tool");
    assert!(!absent.to_string().contains("the host has"), "{absent}");
    let result = run(&mut server, "hosts-own-tool --version");
    assert!(result["content"].to_string().contains(&expected), "{result}");
    assert!(result["structuredContent"]["notes"].to_string().contains(&expected), "{result}");
    let result = server.result("bash_exec", json!({"command": "hosts-own-tool --version"}));
    assert!(result["structuredContent"]["notes"].to_string().contains(&expected), "{result}");
    assert_eq!(server.close(), Some(0));
    let mut command = std::process::Command::new(PROGRAM);
    let output = command.env("PATH", &path).args(["run", "--", "hosts-own-tool"]).output();
    let output = output.expect("the program");
    assert_eq!(output.status.code(), Some(127));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(&expected), "{text}");
}

/// Returns what `serve` says when it refuses these options.
fn refusal(options: &[&str]) -> String {
    let mut command = std::process::Command::new(PROGRAM);
    let output = command.arg("serve").args(options).stdin(Stdio::null()).output();
    let output = output.expect("the program");
    assert_eq!(output.status.code(), Some(125), "{options:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_directory_for_reading_alone_is_beside_a_private_workspace() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("f"), "of the host\n").expect("a file");
    let ask = format!("{}:/mnt/reference", directory.path().display());
    let mut server = Server::start(&["--tools", "shell,exec,files,info", "--ro", &ask]);
    let rules = server.result("sandbox_rules", json!({}))["structuredContent"].clone();
    let text = "/workspace is private to a session and lasts as long as it does; granted for reading: /mnt/reference";
    assert_eq!(rules["workspace"], text, "{rules}");
    assert!(rules["read_only_paths"].to_string().contains("\"/mnt/reference\""), "{rules}");
    let command = "pwd; echo kept > kept; cat /mnt/reference/f; touch /mnt/reference/g";
    let done = run(&mut server, command)["structuredContent"].clone();
    assert_eq!(done["stdout"], "/workspace\nof the host\n", "{done}");
    let read_only = "touch: cannot touch '/mnt/reference/g': Read-only file system\n";
    assert_eq!(done["stderr"], read_only, "{done}");
    let restarted = server.result("bash", json!({"command": "cat kept", "restart": true}));
    assert_eq!(restarted["structuredContent"]["stdout"], "kept\n", "{restarted}");
    for command in ["cat /mnt/reference/f; ls /workspace", "cat /mnt/reference/f; ls -d kept"] {
        let fresh = server.result("bash_exec", json!({ "command": command }));
        let stdout = &fresh["structuredContent"]["stdout"];
        assert_eq!(stdout, "of the host\nkept\n", "the session's workspace: {fresh}");
    }
    let viewed = server.result("get_file", json!({"path": "/workspace/kept"}));
    assert!(viewed["content"].to_string().contains("kept"), "{viewed}");
    let other = server.result("bash", json!({"command": "ls", "session": "other"}));
    assert_eq!(other["structuredContent"]["stdout"], "", "another session has another: {other}");
    assert!(!directory.path().join("g").exists());
    assert_eq!(server.close(), Some(0));
}

#[test]
fn grants_that_cannot_be_are_refused_with_the_way_out() {
    let alone = refusal(&["--ro", "/usr/share", "--rw", "/usr/lib:/data"]);
    assert!(alone.contains("--rw: no directory is granted as the workspace"), "{alone}");
    let twice = refusal(&["--workspace", "/usr/share:ro", "--ro", "/usr/lib:/workspace"]);
    assert!(twice.contains("two host paths are granted at /workspace"), "{twice}");
    let tiny = refusal(&["--memory", "1"]);
    assert!(tiny.contains("less than a cell can start with") && tiny.contains("8M"), "{tiny}");
    let loader = refusal(&["--env", "LD_PRELOAD=/x"]);
    assert!(loader.contains("LD_PRELOAD"), "{loader}");
}

#[test]
fn a_call_gets_a_cell_from_the_pool() {
    let mut server = Server::start(&[]);
    run(&mut server, "true");
    let queue = |result: &Value| {
        result["_meta"]["cofferdam/receipt"]["timings_us"]["queue"].as_u64().unwrap_or(u64::MAX)
    };
    let warm = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        queue(&run(&mut server, "true")) == 0
    });
    assert!(warm, "every call waited for a cell");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn repeated_calculations_come_from_the_cache() {
    let mut server = Server::start(&[]);
    let mut ask = |arguments: Value| {
        let id = server.call("calculate", arguments);
        server.answer(id)["result"].clone()
    };
    let again = json!({"expression": "2/3", "precision": 7});
    let first = ask(again.clone());
    let second = ask(again);
    let receipt = |result: &Value| result["_meta"]["cofferdam/receipt"].clone();
    assert_eq!(receipt(&first)["profile"], "bc");
    assert_eq!(receipt(&second), json!({"cached": true, "cell": "none ran"}));
    for result in [&first, &second] {
        assert_eq!(result["structuredContent"]["result"], "0.6666667");
    }
    // Another precision is another question, and errors are no values.
    let other = ask(json!({"expression": "2/3", "precision": 3}));
    assert_eq!(
        (receipt(&other)["profile"].clone(), other["isError"].clone()),
        (json!("bc"), json!(false))
    );
    for _ in 0..2 {
        let failed = ask(json!({"expression": "2/0"}));
        assert_eq!(
            (receipt(&failed)["profile"].clone(), failed["isError"].clone()),
            (json!("bc"), json!(true))
        );
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn nothing_of_the_caller_reaches_a_cell() {
    let mut server = Server::start(&[]);
    let result =
        run(&mut server, "env; cat /proc/self/environ | tr '\\0' '\\n'; cat /proc/1/environ");
    let text = result["structuredContent"]["stdout"].as_str().unwrap_or_default();
    assert!(text.contains("HOME=/tmp/home"), "{text}");
    assert!(!text.contains("do-not-show"), "{text}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_private_workspace_ends_with_its_server() {
    let mut server = Server::start(&[]);
    assert_eq!(run(&mut server, "echo x > f; cat f")["structuredContent"]["stdout"], "x\n");
    assert_eq!(run(&mut server, "cat f")["structuredContent"]["stdout"], "x\n");
    assert_eq!(server.close(), Some(0));
    let mut server = Server::start(&[]);
    assert_eq!(run(&mut server, "ls /workspace /tmp/home")["structuredContent"]["exit_code"], 0);
    assert_eq!(run(&mut server, "cat f")["structuredContent"]["exit_code"], 1);
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_granted_workspace_persists() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().display().to_string();
    let mut server = Server::start(&["--workspace", &path]);
    assert_eq!(run(&mut server, "echo kept > f")["structuredContent"]["exit_code"], 0);
    assert_eq!(run(&mut server, "cat f")["structuredContent"]["stdout"], "kept\n");
    assert_eq!(server.close(), Some(0));
    let file = directory.path().join("f");
    assert_eq!(std::fs::read_to_string(&file).ok().as_deref(), Some("kept\n"));
    let mut server = Server::start(&["--workspace", &format!("{path}:ro")]);
    let result = run(&mut server, "cat f; echo more >> f");
    let content = &result["structuredContent"];
    assert_eq!((&content["stdout"], &content["exit_code"]), (&json!("kept\n"), &json!(1)));
    assert!(content["stderr"].as_str().unwrap_or_default().contains("Read-only file system"));
    assert_eq!(server.close(), Some(0));
    assert_eq!(std::fs::read_to_string(file).ok().as_deref(), Some("kept\n"));
}

#[test]
fn a_cancelled_call_leaves_no_process() {
    let mut server = Server::start(&[]);
    let seconds = unique(1);
    // A cell that ignores INT is killed with all its processes.
    let command = format!("trap '' INT TERM; sleep {seconds} & sleep {seconds}; sleep {seconds}");
    let id = server.call("bash", json!({"command": command}));
    assert!(within(patience(), || is_running(&seconds)), "the command runs");
    let ping = server.request("ping", json!({}));
    assert_eq!(server.answer(ping)["result"], json!({}), "answered while a call runs");
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
                        "params": {"requestId": id}});
    server.send(&cancel);
    assert!(within(soon(10), || !is_running(&seconds)), "the cell is killed");
    assert_eq!(server.close(), Some(0));
}

/// With all cells in use or of another profile, the first waiting call gets the next cell.
#[test]
fn calls_of_two_profiles_share_one_cell() {
    let config = tempfile::tempdir().expect("a directory");
    // The session has one of the two for itself.
    let text = "schema = 1\n[server]\nconcurrency = 2\n[limits]\ncells = 2\n\
                [tools]\non = [\"cli_jq\"]\n";
    std::fs::write(config.path().join("cofferdam.toml"), text).expect("written");
    let path = config.path().to_str().expect("plain");
    let mut server = Server::start(&["--config", path]);
    let mut calls = vec![server.call("bash", json!({"command": "sleep 0.4"}))];
    for number in 0..3 {
        calls.push(server.call("cli_jq", json!({"filter": ".", "stdin": "1"})));
        calls.push(server.call("calculate", json!({"expression": format!("2^{number}")})));
        calls.push(server.call("bash", json!({"command": "true"})));
    }
    for _ in 0..calls.len() {
        let line = server.lines.recv_timeout(patience()).expect("every call is answered");
        assert!(line["id"].as_u64().is_some_and(|id| calls.contains(&id)), "{line}");
        assert_eq!(line["result"]["isError"], false, "{line}");
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_full_queue_refuses_and_a_queued_call_cancels() {
    let config = tempfile::tempdir().expect("a directory");
    let text = "schema = 1\n[server]\nconcurrency = 1\nqueue = 1\n";
    std::fs::write(config.path().join("cofferdam.toml"), text).expect("written");
    let path = config.path().to_str().expect("plain");
    let mut server = Server::start(&["--config", path]);
    let seconds = unique(4);
    let runs = server.call("bash", json!({"command": format!("sleep {seconds}")}));
    assert!(within(patience(), || is_running(&seconds)), "the first call runs");
    let waits = server.call("bash", json!({"command": "echo second"}));
    let full = run(&mut server, "echo third");
    assert_eq!(full["isError"], true);
    assert_eq!(
        full["content"][0]["text"],
        "the queue is full: 1 calls run and 1 wait\nhint: call again when one has ended"
    );
    let cancel = |id: u64| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    server.send(&cancel(waits));
    server.send(&cancel(runs));
    // Both places come free, and soon.
    let end = Instant::now() + patience();
    let mut next = run(&mut server, "echo fourth");
    while next["isError"] == true && Instant::now() < end {
        next = run(&mut server, "echo fourth");
    }
    assert_eq!(next["structuredContent"]["stdout"], "fourth\n", "{next}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn the_end_of_input_ends_the_server_and_its_cells() {
    let mut server = Server::start(&[]);
    let seconds = unique(2);
    server.call("bash", json!({"command": format!("sleep {seconds}")}));
    assert!(within(patience(), || is_running(&seconds)));
    assert_eq!(server.close(), Some(0));
    assert!(within(soon(5), || !is_running(&seconds)));
}

#[test]
fn a_killed_server_leaves_nothing() {
    let mut server = Server::start(&[]);
    let seconds = unique(3);
    server.call("bash", json!({"command": format!("setsid sleep {seconds} & sleep {seconds}")}));
    assert!(within(patience(), || is_running(&seconds)));
    server.child.kill().expect("ours");
    server.child.wait().expect("ours");
    assert!(within(soon(5), || !is_running(&seconds)));
}

#[test]
fn bad_arguments_name_their_field() {
    let mut server = Server::start(&[]);
    let cases = [
        (json!({"command": ""}), "command is empty"),
        (json!({"command": "a\u{0}b"}), "command contains a NUL byte at offset 1"),
        (
            json!({"command": "x".repeat(10 << 20)}),
            "command is 10485760 bytes; at most 1048576 are taken",
        ),
        (
            json!({"command": "ls", "cwd": "/workspace/../etc"}),
            "cwd `/workspace/../etc` is not inside /workspace or /tmp",
        ),
        (
            json!({"command": "ls", "env": {"LD_PRELOAD": "x"}}),
            "env `LD_PRELOAD` is refused: it changes what programs load or run",
        ),
    ];
    for (arguments, message) in cases {
        let id = server.call("bash", arguments);
        let result = &server.answer(id)["result"];
        assert_eq!(result["isError"], true, "{message}");
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        assert!(text.starts_with(message), "{text}");
    }
    let id = server.call("nope", json!({}));
    assert_eq!(server.answer(id)["error"]["code"], -32602);
    assert_eq!(run(&mut server, "echo fine")["structuredContent"]["stdout"], "fine\n");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_huge_timeout_is_clamped_and_the_reply_says_so() {
    let mut server = Server::start(&[]);
    let id = server.call("bash", json!({"command": "true", "timeout": 1e12}));
    let result = &server.answer(id)["result"];
    let timeout = &result["_meta"]["cofferdam/timeout"];
    assert_eq!(timeout, &json!({"timeout_s": 600, "clamped": true}));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_flood_of_output_keeps_its_head_and_tail() {
    let mut server = Server::start(&[]);
    let result =
        run(&mut server, "echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last");
    let content = &result["structuredContent"];
    let text = content["stdout"].as_str().unwrap_or_default();
    assert!(text.starts_with("first\n") && text.ends_with("last\n"));
    assert!(text.chars().count() <= 30_000, "{}", text.chars().count());
    assert_eq!(
        (&content["stdout_bytes"], &content["truncated"]),
        (&json!(5_000_012), &json!(true))
    );
    assert_eq!(server.close(), Some(0));
}

#[test]
fn calculations_have_the_digits_of_the_seed() {
    let mut server = Server::start(&[]);
    let cases = [
        (json!({"expression": "2+2"}), json!("4")),
        (json!({"expression": "355/113", "precision": 10}), json!("3.1415929204")),
        (json!({"expression": "sqrt(2)", "precision": 15}), json!("1.414213562373095")),
        (json!({"expression": "s(3.14159/2)", "precision": 10}), json!("1.0000000000")),
        (json!({"expression": "7%3"}), json!("1")),
        (json!({"expression": "4/2"}), json!("2")),
        (json!({"expression": "-2^2"}), json!("4")),
        (
            json!({"expression": "2^300"}),
            json!(
                "2037035976334486086268445688409378161051468393665936250636140449354381299763336706183397376"
            ),
        ),
    ];
    for (arguments, digits) in cases {
        let id = server.call("calculate", arguments);
        let result = server.answer(id)["result"].clone();
        assert_eq!(result["structuredContent"]["result"], digits);
    }
    let cases =
        [("2/0", "BC error: Divide by zero", true), ("system('ls')", "Invalid expression:", false)];
    for (expression, message, ran) in cases {
        let id = server.call("calculate", json!({"expression": expression}));
        let result = server.answer(id)["result"].clone();
        assert_eq!(result["isError"], true);
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        assert!(text.starts_with(message), "{text}");
        // A cell ran only where bc was asked.
        let receipt = result["_meta"].get("cofferdam/receipt");
        assert_eq!(receipt.map(|it| &it["profile"]), ran.then_some(&json!("bc")), "{result}");
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn set_precision_is_a_default_for_calculations() {
    let mut server = Server::start(&[]);
    let mut ask = |tool: &str, arguments: Value| server.result(tool, arguments);
    let two_thirds = json!({"expression": "2/3"});
    let digits = |result: Value| result["structuredContent"]["result"].clone();
    assert_eq!(digits(ask("calculate", two_thirds.clone())), "0.66666666666666666667");
    ask("set_precision", json!({"precision": 5}));
    assert_eq!(digits(ask("calculate", two_thirds)), "0.66667");
    let own = json!({"expression": "2/3", "precision": 7});
    assert_eq!(digits(ask("calculate", own)), "0.6666667");
    let script = ask("calculate_advanced", json!({"script": "2/3"}));
    assert!(digits(script).as_str().is_some_and(|text| text.contains(".66666")), "five places");
    let failed = ask("calculate", json!({"expression": "2/0"}));
    let error = "BC error: Divide by zero";
    let hint = "a divisor is 0, or so near to 0 that it cannot be told from it";
    assert_eq!(failed["structuredContent"], json!({"error": error, "hint": hint}));
    let text = format!("{error}\nhint: {hint}");
    assert_eq!(failed["content"], json!([{"type": "text", "text": text}]));
    assert_eq!(server.close(), Some(0));
}

#[tokio::test]
async fn the_official_client_can_use_it() {
    let mut command = tokio::process::Command::new(Path::new(PROGRAM));
    command.arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut server = command.spawn().expect("the server starts");
    let replies = server.stdout.take().expect("its output");
    let requests = server.stdin.take().expect("its input");
    let client = ().serve((replies, requests)).await.expect("a session");
    let tools = client.list_all_tools().await.expect("tools");
    let mut names: Vec<_> = tools.iter().map(|tool| tool.name.to_string()).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "bash",
            "bash_input",
            "bash_jobs",
            "bash_kill",
            "bash_output",
            "calculate",
            "calculate_advanced",
            "sandbox_rules",
            "set_precision"
        ]
    );
    let arguments = json!({"command": "echo $((6*7))"}).as_object().cloned();
    let request = CallToolRequestParams::new("bash").with_arguments(arguments.unwrap_or_default());
    let result = client.call_tool(request).await.expect("an answer");
    let content = result.structured_content.expect("structured content");
    assert_eq!(content["stdout"], "42\n");
    client.cancel().await.expect("an orderly end");
    assert!(server.wait().await.expect("its end").success());
}

#[test]
fn newly_installed_programs_are_found_by_later_calls() {
    let folder = tempfile::tempdir().expect("a directory");
    let tools = folder.path().join("tools");
    std::fs::create_dir(&tools).expect("tools");
    let profiles = folder.path().join("config/sandbox-profiles");
    std::fs::create_dir_all(&profiles).expect("config");
    let shipped = include_str!("../../sandbox-profiles/bash.toml");
    let path = format!("[[path]]\nhost = {tools:?}\ncell = \"/tools\"\nwhy = \"tools\"\n");
    std::fs::write(profiles.join("bash.toml"), format!("{shipped}\n{path}")).expect("a profile");
    for directory in [&tools, &profiles, &folder.path().join("config")] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(directory, mode).expect("its mode");
    }
    let config = folder.path().join("config").display().to_string();
    let mut server = Server::start(&["--config", &config]);
    let mut listed = || {
        let result = run(&mut server, "ls /tools /tools/new 2>/dev/null; cat /tools/old 2>&1");
        result["structuredContent"]["stdout"].as_str().expect("text").to_owned()
    };
    std::fs::write(tools.join("old"), "one\n").expect("a file");
    assert_eq!(listed(), "/tools:\nold\none\n");
    std::fs::write(tools.join("new"), "").expect("a file");
    std::fs::write(tools.join("other"), "two\n").expect("a file");
    std::fs::rename(tools.join("other"), tools.join("old")).expect("another in its place");
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(listed(), "/tools/new\n\n/tools:\nnew\nold\ntwo\n");
    std::fs::remove_file(tools.join("new")).expect("removed");
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(listed(), "/tools:\nold\ntwo\n");
    assert_eq!(server.close(), Some(0));
}
