//! Groups of tools, `bash_exec`, and the questions about a cell, over the real server.
#![expect(
    clippy::indexing_slicing,
    reason = "a missing field of an answer fails the test either way"
)]

mod design;
mod harmless;
mod history;
mod log;
mod profiles;
mod resources;
mod shells;
mod steps;
mod stream;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::server::{PROGRAM, Server};

const ALL: &[&str] = &["--tools", "calc,math,shell,exec,info,history"];

fn names(server: &mut Server) -> Vec<String> {
    let id = server.request("tools/list", json!({}));
    let answer = server.answer(id);
    let tools = answer["result"]["tools"].as_array().cloned().unwrap_or_default();
    tools.iter().map(|tool| tool["name"].as_str().unwrap_or_default().to_owned()).collect()
}

fn fields(server: &mut Server, tool: &str, arguments: Value) -> Value {
    server.result(tool, arguments)["structuredContent"].clone()
}

fn refusal(server: &mut Server, tool: &str, arguments: Value) -> String {
    let result = server.result(tool, arguments);
    assert_eq!(result["isError"], true, "{result}");
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    let fields = &result["structuredContent"];
    let error = fields["error"].as_str();
    let hint = fields["hint"].as_str();
    assert!(error.is_some_and(|error| !error.is_empty() && text.contains(error)), "{result}");
    assert_eq!(text.split_once("\nhint: ").map(|(_, hint)| hint), hint, "{result}");
    text.to_owned()
}

#[test]
fn a_server_lists_the_chosen_groups() {
    let exec = [
        "sandbox_rules",
        "bash_exec",
        "bash_exec_stream",
        "pipeline",
        "get_working_dir",
        "set_working_dir",
    ];
    let mut server = Server::start(&["--tools", "exec"]);
    assert_eq!(names(&mut server), exec);
    assert_eq!(
        refusal(&mut server, "bash", json!({"command": "true"})),
        "[`bash` is switched off]\nhint: the operator can show it with `cofferdam serve --tools shell,exec`"
    );
    assert_eq!(server.close(), Some(0));
    let config = tempfile::tempdir().expect("a directory");
    let text = "schema = 1\n[tools]\ngroups = [\"exec\"]\noff = [\"set_working_dir\"]\n";
    std::fs::write(config.path().join("cofferdam.toml"), text).expect("written");
    let path = config.path().to_str().expect("plain");
    let mut server = Server::start(&["--config", path]);
    assert_eq!(
        names(&mut server),
        ["sandbox_rules", "bash_exec", "bash_exec_stream", "pipeline", "get_working_dir"]
    );
    assert_eq!(server.close(), Some(0));
    // The command line is before the file.
    let mut server = Server::start(&["--config", path, "--tools", "calc"]);
    let calc = names(&mut server);
    assert!(calc.contains(&"calculate".to_owned()), "{calc:?}");
    let others = |name: &&String| !name.starts_with("calculate") && *name != "set_precision";
    assert_eq!(calc.iter().filter(others).collect::<Vec<_>>(), ["sandbox_rules"]);
    assert_eq!(server.close(), Some(0));
}

#[test]
fn an_unknown_group_is_refused_with_the_known_ones() {
    let output = Command::new(PROGRAM).args(["serve", "--tools", "exec,inof"]).output();
    let output = output.expect("it ran");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(
        text.contains("the groups are calc, math, shell, exec, info, history, files"),
        "{text}"
    );
}

#[test]
fn bash_exec_has_exactly_the_reference_fields() {
    let mut server = Server::start(ALL);
    let result = server.result("bash_exec", json!({"command": "echo out; echo err >&2; exit 3"}));
    let mut content = result["structuredContent"].clone();
    assert!(content["execution_time_ms"].is_u64(), "{content}");
    content["execution_time_ms"] = json!(1);
    assert_eq!(
        content,
        json!({
            "stdout": "out\n", "stderr": "err\n", "exit_code": 3, "execution_time_ms": 1,
            "working_dir": "/workspace", "command": "echo out; echo err >&2; exit 3"
        })
    );
    assert_eq!(result["isError"], false, "a non-zero exit is data");
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    assert_eq!(serde_json::from_str::<Value>(text).ok().as_ref(), result.get("structuredContent"));
    assert_eq!(result["_meta"]["cofferdam/receipt"]["measured"]["no_new_privs"], true);
    let quiet = json!({"command": "echo out; echo err >&2", "capture_stderr": false});
    let content = fields(&mut server, "bash_exec", quiet);
    assert_eq!((&content["stdout"], &content["stderr"]), (&json!("out\n"), &json!("")));
    let shell = json!({"command": "echo \"it's $0\"", "shell": "sh"});
    assert_eq!(fields(&mut server, "bash_exec", shell)["stdout"], "it's sh\n");
    let env = json!({"command": "echo $A", "env": {"A": "given"}});
    assert_eq!(fields(&mut server, "bash_exec", env)["stdout"], "given\n");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn cut_output_is_counted_and_read_by_its_id() {
    let mut server = Server::start(ALL);
    let long = "seq 100000; echo last >&2; exit 3";
    let content = fields(&mut server, "bash_exec", json!({"command": long}));
    assert_eq!(
        (&content["stdout_bytes"], &content["stderr_bytes"], &content["truncated"]),
        (&json!(588_895), &json!(5), &json!(true))
    );
    let id = content["output_id"].clone();
    let found = fields(&mut server, "bash_output", json!({"output_id": id, "grep": "^4242[0-9]$"}));
    let lines: Vec<&str> = found["stdout"].as_str().unwrap_or_default().lines().collect();
    assert_eq!(lines.len(), 10, "{found}");
    assert_eq!((&found["outcome"], &found["exit_code"]), (&json!("exited"), &json!(3)));
    assert_eq!((found.get("session"), &found["cwd"]), (None, &json!("/workspace")));
    // The call is no job: its output can be read, and nothing else.
    assert_eq!(fields(&mut server, "bash_jobs", json!({}))["jobs"], json!([]));
    let killed = server.result("bash_kill", json!({"job": id}));
    assert!(killed["content"].to_string().contains("it had ended before"), "{killed}");
    let steps = json!({"steps": [{"command": "echo x"}, {"command": long}], "keep_going": true});
    let steps = fields(&mut server, "pipeline", steps)["steps"].clone();
    assert_eq!((steps[0].get("truncated"), &steps[1]["truncated"]), (None, &json!(true)));
    assert_ne!(steps[1]["output_id"], id);
    assert_eq!(server.close(), Some(0));
    // Without the tool that reads it there is no handle.
    let mut server = Server::start(&["--tools", "exec"]);
    let content = fields(&mut server, "bash_exec", json!({"command": long}));
    assert_eq!((&content["truncated"], content.get("output_id")), (&json!(true), None));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_calls_path_applies_to_the_command_only() {
    let mut server = Server::start(ALL);
    for path in ["/none", "", "/workspace"] {
        for shell in ["bash", "sh"] {
            let command = r#"echo "$0:$PATH"; ls"#;
            let arguments = json!({"command": command, "env": {"PATH": path}, "shell": shell});
            let content = fields(&mut server, "bash_exec", arguments);
            let output = (&content["exit_code"], &content["stdout"]);
            assert_eq!(output, (&json!(127), &json!(format!("{shell}:{path}\n"))), "{content}");
        }
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn the_rules_have_the_environment_of_a_cell() {
    let of_shell = |name: &String| ["_", "OLDPWD", "PWD", "SHLVL"].contains(&name.as_str());
    let mut server = Server::start(ALL);
    let rules = server.result("sandbox_rules", json!({}));
    for tool in ["bash", "bash_exec"] {
        let printed = fields(&mut server, tool, json!({"command": "env"}))["stdout"].clone();
        let mut variables: BTreeMap<String, String> = printed
            .as_str()
            .unwrap_or_default()
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        variables.retain(|name, _| !of_shell(name));
        assert!(variables.contains_key("PATH"), "{printed}");
        assert_eq!(rules["structuredContent"]["env"], json!(variables));
    }
    let text = rules["content"][0]["text"].as_str().unwrap_or_default();
    assert!(
        text.contains("- environment: CARGO_NET_RETRY=0, GOTOOLCHAIN=local, HOME=/tmp/home, "),
        "{text}"
    );
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_manual_page_is_asked_for_by_its_name_alone() {
    let mut server = Server::start(ALL);
    let names =
        ["/etc/passwd", "/usr/share/man/man1/ls.1.gz", "./ls", "../ls", "-l", "--help", "-k"];
    for name in names.into_iter().chain(["ls(1)", "git commit", "l*", "ls;id", ".."]) {
        let refused = refusal(&mut server, "man_page", json!({"command": name}));
        assert!(refused.starts_with("command must be "), "{name}: {refused}");
    }
    for name in ["[", "g++", "File::Basename", "x.service", "_exit", "user@.service"] {
        let result = server.result("man_page", json!({"command": name}));
        let text = result["content"][0]["text"].as_str().unwrap_or_default();
        assert!(!text.contains("must be"), "{name}: {text}");
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn each_bash_exec_has_a_separate_cell() {
    let mut server = Server::start(ALL);
    let left = "A=1; export A; cd /tmp; echo x > /tmp/left; sleep 1000 & echo $A $PWD";
    assert_eq!(fields(&mut server, "bash_exec", json!({"command": left}))["stdout"], "1 /tmp\n");
    let look = "echo ${A-none} $PWD; ls /tmp/left 2>&1; ps -eo comm= | grep -c sleep";
    assert_eq!(
        fields(&mut server, "bash_exec", json!({"command": look}))["stdout"],
        "none /workspace\nls: cannot access '/tmp/left': No such file or directory\n0\n"
    );
    assert_eq!(server.close(), Some(0));
}

#[test]
fn bash_exec_timeout_is_capped_by_the_operator() {
    let mut server = Server::start(&["--tools", "exec", "--default-timeout", "1"]);
    let result = server.result("bash_exec", json!({"command": "echo first; sleep 1000"}));
    let content = &result["structuredContent"];
    assert_eq!(
        (&result["isError"], &content["exit_code"], &content["stdout"]),
        (&json!(true), &json!(124), &json!("first\n"))
    );
    let output = result["content"][1]["text"].as_str().unwrap_or_default();
    assert!(output.starts_with("[timed out after 1 s; the cell was killed;"), "{output}");
    assert_eq!(content["error"], "timed out after 1 s; the cell was killed");
    let long = server.result("bash_exec", json!({"command": "true", "timeout": 1000}));
    let timeout = &long["_meta"]["cofferdam/timeout"];
    assert_eq!(timeout, &json!({"timeout_s": 300, "clamped": true}));
    let lowered = json!(["time limit 300 s, which is less than was asked for"]);
    assert_eq!(long["structuredContent"]["notes"], lowered);
    let denied = fields(&mut server, "bash_exec", json!({"command": "unshare -Ur true"}));
    assert_eq!(denied["denials"][0]["syscall"], "unshare", "{denied}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn set_working_dir_applies_to_later_commands() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(directory.path().join("sub")).expect("made");
    let path = directory.path().display().to_string();
    let mut server = Server::start(&["--workspace", &path, "--tools", "exec"]);
    let output = |server: &mut Server| fields(server, "get_working_dir", json!({}));
    assert_eq!(output(&mut server), json!({"working_dir": "/workspace"}));
    let set = fields(&mut server, "set_working_dir", json!({"directory": "sub"}));
    assert_eq!(set, json!({"working_dir": "/workspace/sub"}));
    // A command's own changes of directory do not outlive it.
    let moved = fields(&mut server, "bash_exec", json!({"command": "pwd; cd /tmp"}));
    assert_eq!(moved["stdout"], "/workspace/sub\n");
    assert_eq!(output(&mut server), json!({"working_dir": "/workspace/sub"}));
    let other = json!({"command": "pwd", "working_dir": "/tmp"});
    assert_eq!(fields(&mut server, "bash_exec", other)["working_dir"], "/tmp");
    let none = refusal(&mut server, "set_working_dir", json!({"directory": "/workspace/none"}));
    assert!(none.starts_with("`/workspace/none` is no directory that can be entered"), "{none}");
    let outside = refusal(&mut server, "set_working_dir", json!({"directory": "/etc"}));
    assert_eq!(outside, "directory `/etc` is not inside /workspace or /tmp");
    assert_eq!(output(&mut server), json!({"working_dir": "/workspace/sub"}));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn get_env_and_system_info_describe_the_cell() {
    let mut server = Server::start(ALL);
    let all = fields(&mut server, "get_env", json!({"all": true}));
    assert_eq!(all["variables"]["HOME"], "/tmp/home");
    assert_eq!(all["variables"].get("SECRET_OF_THE_CALLER"), None);
    let home = json!({"variable": "HOME", "found": true, "value": "/tmp/home"});
    assert_eq!(fields(&mut server, "get_env", json!({"variable": "HOME"})), home);
    let secret = "SECRET_OF_THE_CALLER";
    let hidden = fields(&mut server, "get_env", json!({"variable": secret}));
    assert_eq!(hidden, json!({"variable": secret, "found": false}));
    let system = fields(&mut server, "system_info", json!({}));
    assert_eq!(
        (&system["hostname"], &system["os"], &system["user"], &system["home"]),
        (&json!("cofferdam"), &json!("Linux"), &json!("agent"), &json!("/tmp/home"))
    );
    assert_eq!(system["architecture"], std::env::consts::ARCH);
    let format = json!({"format": "-eo pid,comm", "filter": "ps"});
    let processes = fields(&mut server, "process_info", format);
    let lines = processes["processes"].as_str().unwrap_or_default().lines().count();
    assert_eq!(lines, 2, "the header and ps itself: {processes}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn commands_are_found_and_explained_by_the_cell() {
    let mut server = Server::start(ALL);
    let found = fields(&mut server, "which_command", json!({"command": "env"}));
    let path = found["path"].as_str().unwrap_or_default();
    assert!(path.ends_with("/bin/env") && Path::new(path).exists(), "{found}");
    let builtin = json!({"command": "cd", "found": true, "kind": "builtin", "paths": []});
    assert_eq!(fields(&mut server, "which_command", json!({"command": "cd"})), builtin);
    let none = json!({"command": "no-such", "found": false, "kind": "none", "paths": []});
    assert_eq!(fields(&mut server, "which_command", json!({"command": "no-such"})), none);
    let help = fields(&mut server, "command_help", json!({"command": "env"}));
    assert_eq!(help["exit_code"], 0);
    assert!(help["help"].as_str().unwrap_or_default().contains("--ignore-environment"), "{help}");
    let absent = refusal(&mut server, "command_help", json!({"command": "no-such"}));
    assert_eq!(absent, "no command of that name is in this cell");
    // A name is a word: nothing in it is read by a shell.
    let odd = json!({"command": "$(id)"});
    assert_eq!(fields(&mut server, "which_command", odd)["found"], false);
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_missing_manual_page_is_reported() {
    let mut server = Server::start(ALL);
    let pages = ["/usr/share/man/man1/ls.1.gz", "/usr/share/man/man1/ls.1"];
    let arguments = json!({"command": "ls", "section": "1"});
    if pages.iter().any(|page| Path::new(page).exists()) {
        let page = fields(&mut server, "man_page", arguments);
        let text = page["page"].as_str().unwrap_or_default();
        assert!(text.contains("list directory contents"), "{page}");
        assert_eq!(page["section"], "1");
        let numbered = json!({"command": "ls", "section": 1});
        assert_eq!(fields(&mut server, "man_page", numbered)["section"], "1");
        let none = refusal(&mut server, "man_page", json!({"command": "ls", "section": 9}));
        assert!(none.contains("expected a section from 1 to 8"), "{none}");
        let absent = refusal(&mut server, "man_page", json!({"command": "no-such"}));
        assert_eq!(absent, "no manual page of that name is on this machine");
    } else {
        let absent = refusal(&mut server, "man_page", arguments);
        assert!(absent.starts_with("no manual page"), "{absent}");
    }
    assert_eq!(server.close(), Some(0));
}
