//! The design of a server that runs commands, in its own words: its tools with their arguments, its answers, its resources,
//! its settings, and its examples of use.

use std::process::Command;

use serde_json::{Value, json};

use super::{ALL, fields};
use crate::server::{PROGRAM, Server};

/// A tool: its name, the arguments with their types, and those that are required.
type DesignedTool =
    (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str]);

const TOOLS: [DesignedTool; 10] = [
    (
        "bash_exec",
        &[
            ("command", "string"),
            ("working_dir", "string"),
            ("timeout", "number"),
            ("capture_stderr", "boolean"),
            ("env", "object"),
        ],
        &["command"],
    ),
    (
        "bash_exec_stream",
        &[
            ("command", "string"),
            ("working_dir", "string"),
            ("timeout", "number"),
            // Bytes, of which there are no halves.
            ("buffer_size", "integer"),
        ],
        &["command"],
    ),
    ("man_page", &[("command", "string"), ("section", "string")], &["command"]),
    ("which_command", &[("command", "string")], &["command"]),
    ("command_help", &[("command", "string")], &["command"]),
    ("get_env", &[("variable", "string"), ("all", "boolean")], &[]),
    ("get_working_dir", &[], &[]),
    ("set_working_dir", &[("directory", "string")], &["directory"]),
    ("system_info", &[], &[]),
    ("process_info", &[("format", "string"), ("filter", "string")], &[]),
];

fn names(value: &Value) -> Vec<&str> {
    let fields = value.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    fields.collect()
}

#[test]
fn each_tool_of_the_design_has_its_arguments() {
    let mut server = Server::start(ALL);
    let id = server.request("tools/list", json!({}));
    let listed = server.answer(id)["result"]["tools"].as_array().cloned().unwrap_or_default();
    for (name, arguments, required) in TOOLS {
        let tool = listed.iter().find(|tool| tool["name"] == name).unwrap_or(&Value::Null);
        let schema = &tool["inputSchema"];
        assert_eq!(schema["type"], "object", "{name}");
        for (argument, kind) in arguments {
            assert_eq!(schema["properties"][argument]["type"], *kind, "{name}: {argument}");
        }
        let needed = schema.get("required").cloned().unwrap_or(json!([]));
        assert_eq!(needed, json!(required), "{name}");
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn answers_and_resources_have_the_designs_fields() {
    let mut server = Server::start(ALL);
    let answer = fields(&mut server, "bash_exec", json!({"command": "ls -la"}));
    let expected = ["stdout", "stderr", "exit_code", "execution_time_ms", "working_dir", "command"];
    assert_eq!(names(&answer), expected, "{answer}");
    let system = fields(&mut server, "system_info", json!({}));
    let fields = ["hostname", "os", "architecture", "kernel", "shell", "user", "home", "path"];
    for field in fields {
        assert!(system[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {system}");
    }
    let id = server.request("resources/list", json!({}));
    let listed = server.answer(id)["result"]["resources"].clone();
    for uri in ["bash://system/info", "bash://history/recent", "bash://env/all"] {
        let mut all = listed.as_array().into_iter().flatten();
        let one = all.find(|one| one["uri"] == uri).unwrap_or(&Value::Null);
        assert_eq!(one["mimeType"], "application/json", "{uri}: {listed}");
        let id = server.request("resources/read", json!({"uri": uri}));
        let text = server.answer(id)["result"]["contents"][0]["text"].clone();
        let content = text.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        let content = content.unwrap_or_default();
        match uri {
            "bash://history/recent" => {
                let record = [
                    "timestamp",
                    "command",
                    "working_dir",
                    "exit_code",
                    "duration_ms",
                    "output_size_bytes",
                ];
                assert_eq!(names(&content[0]), record, "{content}");
            }
            "bash://system/info" => {
                for field in fields {
                    assert!(content[field].is_string(), "{field}: {content}");
                }
            }
            _ => assert_eq!(content["HOME"], "/tmp/home", "{content}"),
        }
    }
    assert_eq!(server.close(), Some(0));
}

/// Serves with these variables and flags.
fn served(variables: &[(&str, &str)], flags: &[&str]) -> Server {
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--toolchains", "none"]).args(ALL).args(flags);
    command.envs(variables.iter().copied());
    Server::of(command)
}

#[test]
fn the_designs_variables_and_flags_are_those_of_the_server() {
    let variables = [
        ("BASH_MCP_DEFAULT_TIMEOUT", "1"),
        ("BASH_MCP_MAX_TIMEOUT", "2"),
        ("BASH_MCP_MAX_HISTORY", "1"),
        ("BASH_MCP_WORKING_DIR", "/tmp"),
    ];
    let flags = [
        "--default-timeout",
        "2",
        "--max-timeout",
        "3",
        "--history-size",
        "2",
        "--working-dir",
        "/workspace",
    ];
    for (flags, default, longest, records, directory) in
        [(&[][..], 1, 2, 1, "/tmp"), (&flags[..], 2, 3, 2, "/workspace")]
    {
        let mut server = served(&variables, flags);
        let at = fields(&mut server, "get_working_dir", json!({}));
        assert_eq!(at, json!({"working_dir": directory}));
        let slow = server.result("bash_exec", json!({"command": "sleep 100"}));
        let said = format!("timed out after {default} s; the cell was killed");
        assert_eq!(slow["structuredContent"]["error"], said);
        let long = server.result("bash_exec", json!({"command": "true", "timeout": 300}));
        let timeout = json!({"timeout_s": longest, "clamped": true});
        assert_eq!(long["_meta"]["cofferdam/timeout"], timeout);
        server.result("bash_exec", json!({"command": "true"}));
        let kept = fields(&mut server, "history_search", json!({}));
        assert_eq!(kept["matches"].as_array().map(Vec::len), Some(records), "{kept}");
        assert_eq!(server.close(), Some(0));
    }
}

/// Commands of the design's examples of use: the exit code, and a part of the output or of the error. Those that
/// administrate a machine find a cell's own: no other process, service, socket or log.
const USES: [(&str, i64, &str); 8] = [
    ("make build", 0, "built\n"),
    ("ps aux | grep nginx | grep -v grep", 1, ""),
    ("tail -f /var/log/nginx/error.log", 1, "No such file or directory"),
    ("grep \"ERROR\" /var/log/app/*.log", 2, "No such file or directory"),
    ("find . -name \"*.log\" -mtime +7 -delete; ls *.log", 0, "new.log\n"),
    (
        "tar -czf backup.tar.gz --exclude='node_modules' .; tar -tzf backup.tar.gz | grep -c node_modules",
        1,
        "0\n",
    ),
    ("git clone https://github.com/user/project.git", 128, "Could not resolve host: github.com"),
    ("(ss -tln || netstat -tln) 2>&1 | grep -c :22", 1, "0\n"),
];

#[test]
fn the_designs_examples_of_use_run_in_cells() {
    let mut server = Server::start(&["--tools", "exec"]);
    let files = "mkdir node_modules && touch new.log node_modules/a && touch -d '10 days ago' old.log && \
                 printf 'build:\\n\\t@echo built\\n' > Makefile";
    assert_eq!(fields(&mut server, "bash_exec", json!({"command": files}))["exit_code"], 0);
    for (command, code, part) in USES {
        let answer = fields(&mut server, "bash_exec", json!({"command": command}));
        assert_eq!(answer["exit_code"], code, "{command}: {answer}");
        let said = format!("{}{}", answer["stdout"], answer["stderr"]).replace("\\n", "\n");
        assert!(said.contains(part), "{command}: {answer}");
    }
    // The reply to a command that needs a network has what would grant it.
    let clone = json!({"command": "git clone https://github.com/user/project.git"});
    let denied = fields(&mut server, "bash_exec", clone)["network"]["denied"].clone();
    assert_eq!(
        (&denied[0]["to"], &denied[0]["why"]),
        (&json!("github.com"), &json!("the cell has no network"))
    );
    let grant = denied[0]["grant"].as_str().unwrap_or_default();
    assert!(grant.starts_with("--egress git-https"), "{denied}");
    assert_eq!(server.close(), Some(0));
}
