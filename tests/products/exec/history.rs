//! Commands that have run are found in the history, and run again.

use serde_json::{Value, json};

use super::{ALL, fields, names, refusal};
use crate::server::Server;

fn commands(server: &mut Server, query: &str) -> Vec<Value> {
    let found = fields(server, "history_search", json!({"query": query}));
    found["matches"].as_array().cloned().unwrap_or_default()
}

#[test]
fn commands_in_the_history_can_be_replayed() {
    let mut server = Server::start(ALL);
    let first =
        json!({"command": "echo first $A; exit 4", "env": {"A": "given"}, "working_dir": "/tmp"});
    assert_eq!(fields(&mut server, "bash_exec", first)["exit_code"], 4);
    server.result("bash", json!({"command": "echo second"}));
    let all = commands(&mut server, "");
    let shown: Vec<Value> = all.iter().map(|one| json!([one["id"], one["command"]])).collect();
    assert_eq!(shown, [json!([2, "echo second"]), json!([1, "echo first $A; exit 4"])]);
    let found = commands(&mut server, "first");
    let Some(one) = found.first() else { panic!("nothing was found") };
    assert_eq!(
        (&one["exit_code"], &one["working_dir"], &one["output_size_bytes"], found.len()),
        (&json!(4), &json!("/tmp"), &json!(12), 1)
    );
    assert!(one["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{one}");
    let again = fields(&mut server, "history_replay", json!({"id": 1}));
    assert_eq!(
        (&again["stdout"], &again["exit_code"], &again["working_dir"]),
        (&json!("first given\n"), &json!(4), &json!("/tmp"))
    );
    assert_eq!(commands(&mut server, "").len(), 3, "what is run again is remembered too");
    let absent = refusal(&mut server, "history_replay", json!({"id": 99}));
    assert_eq!(absent, "history_replay: no command 99 is kept\nhint: history_search tells the ids");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_replay_needs_bash_exec() {
    let mut server = Server::start(&["--tools", "history"]);
    let macros = ["macro_save", "macro_run", "macro_list", "macro_delete"];
    let all = [&["sandbox_rules", "history_search", "history_replay"][..], &macros].concat();
    assert_eq!(names(&mut server), all);
    assert_eq!(server.close(), Some(0));
    let config = tempfile::tempdir().expect("a directory");
    let text = "schema = 1\n[tools]\ngroups = [\"shell\", \"history\"]\noff = [\"bash_exec\"]\n";
    std::fs::write(config.path().join("cofferdam.toml"), text).expect("written");
    let path = config.path().to_str().expect("plain");
    let mut server = Server::start(&["--config", path]);
    let by_exec = |name: &String| name == "history_replay" || name.starts_with("macro_");
    assert!(!names(&mut server).iter().any(by_exec));
    server.result("bash", json!({"command": "true"}));
    assert_eq!(commands(&mut server, "").len(), 1);
    assert_eq!(
        refusal(&mut server, "history_replay", json!({"id": 1})),
        "[`history_replay` is switched off]\n\
         hint: it is under `[tools] off` in the operator's cofferdam.toml"
    );
    assert_eq!(server.close(), Some(0));
}

#[test]
fn the_history_has_the_size_it_is_given() {
    let mut server = Server::start(&["--tools", "exec,history", "--history-size", "1"]);
    for command in ["echo 1", "echo 2"] {
        server.result("bash_exec", json!({"command": command}));
    }
    let kept = commands(&mut server, "");
    assert_eq!(kept.len(), 1);
    assert_eq!(kept.first().map(|one| &one["command"]), Some(&json!("echo 2")));
    refusal(&mut server, "history_replay", json!({"id": 1}));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_session_command_is_replayed_in_its_directory() {
    let mut server = Server::start(ALL);
    let first = json!({"command": "echo $A $PWD", "env": {"A": "1"}, "cwd": "/tmp"});
    server.result("bash", first);
    let again = fields(&mut server, "history_replay", json!({"id": 1}));
    assert_eq!(again["stdout"], "1 /tmp\n");
    // A directory that a shell made is absent from another cell.
    server.result("bash", json!({"command": "mkdir -p sub && cd sub && pwd"}));
    let again = fields(&mut server, "history_replay", json!({"id": 3}));
    assert_eq!(again["stdout"], "/workspace/sub\n");
    server.result("bash", json!({"command": "cat", "stdin": "given"}));
    let again = fields(&mut server, "history_replay", json!({"id": 5}));
    assert_eq!(again["stdout"], "given", "a replay has the input that the command had");
    // A replay of the replay has it too.
    let again = fields(&mut server, "history_replay", json!({"id": 6}));
    assert_eq!(again["stdout"], "given");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn an_entry_is_replayed_in_its_directory() {
    let mut server = Server::start(ALL);
    let bash = |server: &mut Server, arguments: Value| {
        server.result("bash", arguments);
        commands(server, "")[0]["working_dir"].clone()
    };
    assert_eq!(bash(&mut server, json!({"command": "mkdir -p sub; cd sub"})), "/workspace");
    assert_eq!(bash(&mut server, json!({"command": "pwd; cd /usr/share"})), "/workspace/sub");
    assert_eq!(bash(&mut server, json!({"command": "pwd # there"})), "/usr/share");
    assert_eq!(bash(&mut server, json!({"command": "pwd", "cwd": "/tmp"})), "/tmp");
    assert_eq!(bash(&mut server, json!({"command": "exit 3"})), "/usr/share");
    assert_eq!(bash(&mut server, json!({"command": "cd sub"})), "/workspace", "a new shell");
    assert_eq!(bash(&mut server, json!({"command": "pwd", "restart": true})), "/workspace");
    for (id, directory) in [(2, "/workspace/sub\n"), (3, "/usr/share\n"), (4, "/tmp\n")] {
        let again = fields(&mut server, "history_replay", json!({"id": id}));
        assert_eq!((&again["stdout"], &again["exit_code"]), (&json!(directory), &json!(0)));
    }
    assert_eq!(server.close(), Some(0));
}

/// The entry with this id, once it has ended.
fn ended(server: &mut Server, id: u64) -> Value {
    loop {
        let entry = commands(server, "").into_iter().find(|one| one["id"] == id);
        let entry = entry.expect("it is remembered");
        if entry.get("exit_code").is_some() {
            return entry;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn jobs_are_in_the_history_while_running_and_after() {
    let config = tempfile::tempdir().expect("a directory");
    let text = "schema = 1\n[tools]\ngroups = [\"shell\", \"exec\", \"info\", \"history\"]\n\
                [sessions]\nyield = \"1s\"\n";
    std::fs::write(config.path().join("cofferdam.toml"), text).expect("written");
    let mut server = Server::start(&["--config", config.path().to_str().expect("plain")]);
    let background = json!({
        "command": "sleep 2; echo four; exit 4", "background": true, "session": "a", "cwd": "/tmp"
    });
    let job = fields(&mut server, "bash", background)["job"].clone();
    let mut entry = commands(&mut server, "four")[0].clone();
    assert!(entry["timestamp"].take().is_string());
    let running = json!({
        "id": 1, "timestamp": null, "command": "sleep 2; echo four; exit 4",
        "working_dir": "/tmp", "job": job
    });
    assert_eq!(entry, running);
    // One that is waited for until it is left to run.
    let left = fields(&mut server, "bash", json!({"command": "sleep 1.5; echo x; echo yy >&2"}));
    assert_eq!(left["outcome"], "running");
    let first = ended(&mut server, 1);
    assert_eq!((&first["exit_code"], &first["output_size_bytes"]), (&json!(4), &json!(5)));
    assert!(first["duration_ms"].as_u64().is_some_and(|took| took >= 2000), "{first}");
    assert_eq!(first.get("job"), None);
    let second = ended(&mut server, 2);
    assert_eq!((&second["exit_code"], &second["output_size_bytes"]), (&json!(0), &json!(5)));
    let again = fields(&mut server, "history_replay", json!({"id": 1}));
    assert_eq!((&again["stdout"], &again["working_dir"]), (&json!("four\n"), &json!("/tmp")));
    // A killed command has its end too.
    let killed = json!({"command": "sleep 600", "background": true});
    let job = fields(&mut server, "bash", killed)["job"].clone();
    server.result("bash_kill", json!({"job": job, "signal": "KILL"}));
    assert_eq!(ended(&mut server, 4)["exit_code"], 137);
    let job = fields(&mut server, "bash", json!({"command": "cat", "input": true}))["job"].clone();
    server.result("bash_input", json!({"job": job, "text": "given "}));
    server.result("bash_input", json!({"job": job, "text": "twice", "eof": true}));
    ended(&mut server, 5);
    let again = fields(&mut server, "history_replay", json!({"id": 5}));
    assert_eq!(again["stdout"], "given twice", "all that a job was given is its input again");
    // Keys of a terminal are no input that another program could be given.
    let at_terminal = json!({"command": "cat", "tty": true, "background": true});
    let job = fields(&mut server, "bash", at_terminal)["job"].clone();
    server.result("bash_input", json!({"job": job, "text": "keys\n", "eof": true}));
    ended(&mut server, 7);
    let refused = refusal(&mut server, "history_replay", json!({"id": 7}));
    assert_eq!(refused, "history_replay: not all of this command is kept");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_command_that_is_not_all_kept_is_not_run_again() {
    let mut server = Server::start(ALL);
    let long = format!("echo {}", "é".repeat(9000));
    assert_eq!(fields(&mut server, "bash_exec", json!({"command": long}))["exit_code"], 0);
    let whole = json!({"command": "wc -c", "stdin": "x".repeat(64 << 10)});
    assert_eq!(fields(&mut server, "bash", whole)["stdout"], "65536\n");
    assert_eq!(fields(&mut server, "history_replay", json!({"id": 2}))["stdout"], "65536\n");
    let longer = json!({"command": "wc -c", "stdin": "x".repeat((64 << 10) + 1)});
    assert_eq!(fields(&mut server, "bash", longer)["stdout"], "65537\n");
    for id in [1, 4] {
        let refused = refusal(&mut server, "history_replay", json!({"id": id}));
        assert_eq!(refused, "history_replay: not all of this command is kept", "{id}");
    }
    assert_eq!(server.close(), Some(0));
}
