//! Deceptive text in the output of a cell: bidi controls, invisible characters and terminal escapes reach no reply.

use serde_json::{Value, json};

use super::names;
use crate::deceptive::{HOSTILE, raw, written};
use crate::server::Server;

/// Arguments of each tool that has the hostile text shown: by its output, a name, or what its arguments are.
fn calls() -> Vec<(&'static str, Value)> {
    let print = format!("printf '{0}'; printf '{0}' >&2", written());
    let file = format!("/workspace/{HOSTILE}");
    let named = format!("printf '{0}' > hostile; touch \"$(printf '{0}')\"", written());
    vec![
        ("bash", json!({"command": print})),
        ("bash", json!({"command": named})),
        ("bash", json!({"command": "true", "cwd": file})),
        ("bash", json!({"command": print, "session": "a"})),
        (
            "bash",
            json!({"command": format!("cd \"$(mktemp -d)\"; mkdir \"$(printf '{0}')\"; cd ./*", written()), "session": "a"}),
        ),
        ("bash", json!({"command": format!("{print}; sleep 60"), "session": "b", "wait": 0})),
        ("bash_output", json!({"job": HOSTILE})),
        ("bash_input", json!({"job": HOSTILE, "text": HOSTILE})),
        ("bash_jobs", json!({})),
        ("bash_kill", json!({"job": HOSTILE})),
        ("bash_exec", json!({"command": print})),
        ("bash_exec", json!({"command": format!("echo '{HOSTILE}'")})),
        ("bash_exec", json!({"command": "true", "shell": HOSTILE})),
        ("bash_exec_stream", json!({"command": print})),
        ("pipeline", json!({"steps": [{"command": print}, {"command": "cat"}]})),
        ("set_working_dir", json!({"directory": file})),
        ("get_working_dir", json!({})),
        ("get_env", json!({"variable": HOSTILE})),
        ("get_env", json!({"all": true})),
        ("system_info", json!({})),
    ]
}

/// The same of tools that look something up, calculate or remember.
fn further_calls() -> Vec<(&'static str, Value)> {
    let print = format!("printf '{0}'; printf '{0}' >&2", written());
    vec![
        ("process_info", json!({"filter": HOSTILE})),
        ("which_command", json!({"command": HOSTILE})),
        ("command_help", json!({"command": HOSTILE})),
        ("man_page", json!({"command": HOSTILE})),
        ("history_search", json!({"query": "printf"})),
        ("history_search", json!({"query": HOSTILE})),
        ("history_replay", json!({"id": 1})),
        ("macro_save", json!({"name": HOSTILE, "commands": ["true"]})),
        ("macro_save", json!({"name": "m", "commands": [format!("{print}; echo '{HOSTILE}'")]})),
        ("macro_list", json!({})),
        ("macro_run", json!({"name": "m", "arguments": [HOSTILE]})),
        ("macro_delete", json!({"name": HOSTILE})),
        ("calculate", json!({"expression": HOSTILE})),
        ("calculate_advanced", json!({"script": format!("print \"{HOSTILE}\"")})),
        ("calculate_batch", json!({"expressions": [HOSTILE, "1"]})),
        ("calculate_plot", json!({"expression": HOSTILE, "from": 0, "to": 1})),
        ("calculate_functions", json!({"filter": HOSTILE})),
        ("calculate_stats", json!({"values": HOSTILE})),
        ("calculate_history", json!({"query": HOSTILE})),
        ("set_precision", json!({"precision": HOSTILE})),
        ("sandbox_rules", json!({})),
    ]
}

/// The same of tools for files.
fn file_calls() -> Vec<(&'static str, Value)> {
    let file = format!("/workspace/{HOSTILE}");
    vec![
        ("put_file", json!({"path": file, "content": HOSTILE})),
        ("put_file", json!({"path": "/workspace/g", "content": HOSTILE})),
        ("edit", json!({"command": "view", "path": "/workspace/hostile"})),
        ("edit", json!({"command": "view", "path": "/workspace"})),
        ("edit", json!({"command": "view", "path": file})),
        ("edit", json!({"command": "create", "path": "/workspace/h", "file_text": HOSTILE})),
        ("get_file", json!({"path": "/workspace/hostile"})),
        ("get_file", json!({"path": file})),
        ("get_file", json!({"path": format!("/workspace/no{HOSTILE}")})),
        (HOSTILE, json!({})),
    ]
}

#[test]
fn deceptive_text_is_escaped_by_every_tool() {
    let directory = tempfile::tempdir().expect("a directory");
    let workspace = directory.path().display().to_string();
    let groups = "calc,math,shell,exec,info,history,files";
    let grant = ["--workspace", &workspace, "--toolchains", "none"];
    let mut server = Server::start(&[&["--tools", groups][..], &grant].concat());
    let level = server.request("logging/setLevel", json!({"level": "debug"}));
    server.answer(level);
    let calls = [calls(), further_calls(), file_calls()].concat();
    let missing: Vec<String> = names(&mut server)
        .into_iter()
        .filter(|name| !calls.iter().any(|(tool, _)| tool == name))
        .collect();
    assert_eq!(missing, Vec::<String>::new(), "tools without a row");
    let mut shown = 0;
    for (tool, arguments) in calls {
        let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": 1}});
        let id = server.request("tools/call", params);
        // Messages on the way are looked at like the answer.
        loop {
            let message =
                server.message(std::time::Instant::now() + crate::server::patience::patience());
            assert_eq!(raw(&message), Vec::<char>::new(), "{tool} {arguments}: {message:?}");
            shown += usize::from(message.to_string().contains("<U+202E>"));
            if message["id"] == id {
                break;
            }
        }
    }
    // The control: the text did come through, as escapes.
    assert!(shown > 15, "{shown} replies with the text");
    for uri in ["bash://help/%1B%E2%80%AE", "bash://history/recent", "bash://env/all"] {
        let id = server.request("resources/read", json!({"uri": uri}));
        let answer = server.answer(id);
        assert_eq!(raw(&answer), Vec::<char>::new(), "{answer:?}");
    }
}

#[test]
fn an_escaped_file_comes_with_its_bytes() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("hostile"), HOSTILE).expect("written");
    std::fs::write(directory.path().join("plain"), "a\tb\r\ncaf\u{e9}\n").expect("written");
    let workspace = directory.path().display().to_string();
    let mut server =
        Server::start(&["--tools", "files", "--workspace", &workspace, "--toolchains", "none"]);
    let result = server.result("get_file", json!({"path": "/workspace/hostile"}));
    let fields = &result["structuredContent"];
    let file = directory.path().join("hostile");
    let coded =
        std::process::Command::new("base64").arg("-w0").arg(file).output().expect("it runs");
    assert_eq!(fields["content_base64"], *String::from_utf8_lossy(&coded.stdout), "{result}");
    let content = fields["content"].as_str().unwrap_or_default();
    assert!(content.starts_with("\u{241b}[2J\u{2407}") && content.contains("<U+202E><U+2066>"));
    assert_eq!(result["content"][0]["text"], content);
    let note = fields["notes"][0].as_str().unwrap_or_default();
    assert!(note.contains("content_base64"), "{result}");
    let result = server.result("get_file", json!({"path": "/workspace/plain"}));
    let fields = &result["structuredContent"];
    assert_eq!(fields["content"], "a\tb\r\ncaf\u{e9}\n");
    assert_eq!((fields.get("content_base64"), fields.get("notes")), (None, None), "{result}");
}
