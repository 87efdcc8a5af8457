//! Tasks over the listener: their commands run on without a request, and only their client sees them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{
    ALICE, Answer, BOB, Server, TOKENS, bearer, call, initialize, modern, modern_call, patience,
    secret,
};
use crate::reach::family;
use crate::reload::READ_AGAIN;

const TASKS: &str = "io.modelcontextprotocol/tasks";
/// A server whose calls become tasks soon.
const SHORT: &str = "[sessions]\nyield = \"1s\"\n";

fn server(arguments: &[&str]) -> Server {
    Server::prepared(&format!("{SHORT}{TOKENS}"), arguments, |home, _| {
        secret(&home.join("alice"), ALICE);
        secret(&home.join("bob"), BOB);
    })
}

fn knowing(mut message: Value) -> Value {
    message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
        json!({ "extensions": { TASKS: {} } });
    message
}

fn send(server: &Server, token: Option<&str>, headers: &[(&str, String)], body: &Value) -> Answer {
    let mut all: Vec<(&str, &str)> =
        headers.iter().map(|(name, it)| (*name, it.as_str())).collect();
    all.extend(token.map(|token| ("authorization", token)));
    server.mcp(&all, body)
}

/// Calls bash, of a client that knows tasks.
fn bash(server: &Server, token: Option<&str>, command: &str) -> Answer {
    let body = knowing(modern_call("bash", json!({ "command": command })));
    send(server, token, &modern("bash"), &body)
}

fn begun(server: &Server, token: &str, command: &str) -> String {
    let answer = bash(server, Some(token), command);
    let message = answer.message();
    assert_eq!(message["result"]["resultType"], "task", "{answer:?}");
    message["result"]["taskId"].as_str().expect("an id").to_owned()
}

/// Headers and message of a request about a task.
fn about(method: &str, id: &str) -> (Vec<(&'static str, String)>, Value) {
    let mut message = knowing(modern_call("", json!({})));
    message["method"] = json!(method);
    message["params"]["taskId"] = json!(id);
    message["params"]["inputResponses"] = json!({});
    let headers = vec![
        ("mcp-protocol-version", "2026-07-28".to_owned()),
        ("mcp-method", method.to_owned()),
        ("mcp-name", id.to_owned()),
    ];
    (headers, message)
}

fn ask(server: &Server, token: &str, method: &str, id: &str) -> Value {
    let (headers, message) = about(method, id);
    send(server, Some(token), &headers, &message).message()
}

fn ended(server: &Server, token: &str, id: &str) -> Value {
    let end = Instant::now() + patience();
    loop {
        let task = ask(server, token, "tasks/get", id);
        if task["result"]["status"] != "working" {
            return task["result"].clone();
        }
        assert!(Instant::now() < end, "{task}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_task_outlives_its_request() {
    let directory = tempfile::tempdir().expect("a workspace");
    let server = server(&["--workspace", directory.path().to_str().expect("UTF-8")]);
    let alice = bearer(ALICE);
    let command =
        "echo begun; cd /tmp; until [ -e /workspace/go ]; do sleep 0.1; done; echo done; (exit 3)";
    let id = begun(&server, &alice, command);
    // The call is a job by now, which holds the shell of its session.
    let list = || {
        let body = modern_call("bash_jobs", json!({}));
        let output = send(&server, Some(&alice), &modern("bash_jobs"), &body).message();
        output["result"]["structuredContent"]["jobs"].clone()
    };
    let end = Instant::now() + patience();
    let jobs = loop {
        match list() {
            jobs if jobs.get(0).is_some() => break jobs,
            jobs => assert!(Instant::now() < end, "{jobs}"),
        }
    };
    assert_eq!((&jobs[0]["job"], jobs.get(1)), (&json!("c1"), None), "{jobs}");
    let body = modern_call("bash", json!({ "command": "pwd" }));
    let refused = send(&server, Some(&alice), &modern("bash"), &body).message();
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    std::fs::write(directory.path().join("go"), "").expect("a file");
    let task = ended(&server, &alice, &id);
    assert_eq!(task["status"], "completed", "{task}");
    let done = &task["result"]["structuredContent"];
    assert_eq!(
        (&done["stdout"], &done["exit_code"]),
        (&json!("begun\ndone\n"), &json!(3)),
        "{task}"
    );
    assert_eq!(task["result"]["isError"], false);
    // The shell is the same, as after any command.
    assert_eq!(bash(&server, Some(&alice), "pwd").stdout(), "/tmp\n");
}

#[test]
fn a_cancelled_task_keeps_the_shell() {
    let server = server(&[]);
    let alice = bearer(ALICE);
    bash(&server, Some(&alice), "kept=yes");
    let id = begun(&server, &alice, "echo $BASHPID >/tmp/pid; exec 9>/tmp/held; sleep 500");
    let output = ask(&server, &alice, "tasks/cancel", &id);
    assert_eq!(output["result"], json!({ "resultType": "complete" }), "{output}");
    let task = ended(&server, &alice, &id);
    assert_eq!((&task["status"], task.get("result")), (&json!("cancelled"), None), "{task}");
    let after = bash(&server, Some(&alice), "pgrep -x sleep; echo $kept");
    assert_eq!(after.stdout(), "yes\n", "{after:?}");
}

#[test]
fn a_task_has_the_memory_of_its_request_until_it_ends() {
    let server = server(&["--tools", "exec"]);
    let alice = bearer(ALICE);
    let bob = bearer(BOB);
    let large = |token: &str| {
        let arguments = json!({ "command": "sleep 200", "timeout": 250 });
        let mut body = knowing(modern_call("bash_exec", arguments));
        body["params"]["_meta"]["pad"] = json!("x".repeat(12 << 20));
        send(&server, Some(token), &modern("bash_exec"), &body)
    };
    let tasks: Vec<Value> =
        (0..2).map(|_| large(&alice).message()["result"]["taskId"].clone()).collect();
    assert!(tasks.iter().all(Value::is_string), "{tasks:?}");
    let refused = large(&alice);
    assert_eq!(refused.status, 503, "half of 64 MiB is a client's: {refused:?}");
    assert_eq!(large(&bob).message()["result"]["resultType"], "task", "another finds room");
    let first = tasks[0].as_str().expect("an id");
    ask(&server, &alice, "tasks/cancel", first);
    assert_eq!(ended(&server, &alice, first)["status"], "cancelled");
    let taken = large(&alice);
    assert_eq!(taken.message()["result"]["resultType"], "task", "{taken:?}");
}

#[test]
fn the_task_of_one_token_is_unknown_to_another() {
    let server = server(&[]);
    let alice = bearer(ALICE);
    let bob = bearer(BOB);
    let id = begun(&server, &alice, "sleep 3; echo mine");
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let own = ask(&server, &bob, method, &id);
        let none = ask(&server, &bob, method, &"0".repeat(32));
        assert_eq!((&own["error"]["code"], &own), (&json!(-32602), &none), "{method}");
    }
    let task = ended(&server, &alice, &id);
    assert_eq!(task["result"]["structuredContent"]["stdout"], "mine\n", "not cancelled: {task}");
    assert_eq!(ask(&server, &bob, "tasks/get", &id)["error"]["code"], -32602);
}

#[test]
fn a_removed_clients_tasks_end_and_those_of_a_client_that_stays_do_not() {
    let toml = format!("{SHORT}[http]\ntoken_list = \"HOME/list\"\n");
    let arguments = ["--tools", "shell,exec"];
    let both = format!("alice {ALICE}\nbob {BOB}\n");
    let server = Server::prepared(&toml, &arguments, |home, _| secret(&home.join("list"), &both));
    let alice = bearer(ALICE);
    let bob = bearer(BOB);
    let fresh = |token: &str| {
        let arguments = json!({ "command": "exec sleep 301", "timeout": 300 });
        let body = knowing(modern_call("bash_exec", arguments));
        let answer = send(&server, Some(token), &modern("bash_exec"), &body).message();
        answer["result"]["taskId"].as_str().expect("a task").to_owned()
    };
    let stays = fresh(&alice);
    let of_bob = [fresh(&bob), begun(&server, &bob, "sleep 302")];
    let sleepers = || {
        let all = family(server.child.id());
        let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
        all.iter().filter_map(name).filter(|name| name == "sleep\n").count()
    };
    assert_eq!(sleepers(), 3);
    server.rewritten("list", &format!("alice {ALICE}\n"), READ_AGAIN);
    let end = Instant::now() + patience();
    while sleepers() > 1 {
        assert!(Instant::now() < end, "two tasks have ended: {}", sleepers());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(ask(&server, &alice, "tasks/get", &stays)["result"]["status"], "working");
    // A client of the same name that comes later has none of them.
    server.rewritten("list", &both, READ_AGAIN);
    for id in &of_bob {
        assert_eq!(ask(&server, &bob, "tasks/get", id)["error"]["code"], -32602);
    }
    ask(&server, &alice, "tasks/cancel", &stays);
    assert_eq!(ended(&server, &alice, &stays)["status"], "cancelled");
}

#[test]
fn anonymous_clients_have_no_tasks() {
    let server = Server::configured(SHORT, &[]);
    let mut discover = knowing(modern_call("", json!({})));
    discover["method"] = json!("server/discover");
    let headers = [
        ("mcp-protocol-version", "2026-07-28".to_owned()),
        ("mcp-method", "server/discover".to_owned()),
    ];
    let output = send(&server, None, &headers, &discover).message();
    assert!(output["result"]["capabilities"]["tools"].is_object(), "{output}");
    assert_eq!(output["result"]["capabilities"].get("extensions"), None, "{output}");
    let answer = bash(&server, None, "sleep 3; echo late").message();
    // Nor has it a job that it could ask for: the call is answered at the command's end.
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "late\n", "{answer}");
    let (headers, message) = about("tasks/get", "0");
    assert_eq!(send(&server, None, &headers, &message).message()["error"]["code"], -32601);
}

#[test]
fn headers_name_the_task_that_the_message_is_about() {
    let server = server(&[]);
    let alice = bearer(ALICE);
    let id = begun(&server, &alice, "sleep 2");
    let (headers, message) = about("tasks/get", &id);
    assert_eq!(send(&server, Some(&alice), &headers, &message).status, 200);
    for other in ["0".repeat(32), "../../etc/passwd".to_owned(), String::new()] {
        let mut headers = headers.clone();
        headers[2].1 = other;
        let answer = send(&server, Some(&alice), &headers, &message);
        assert_eq!((answer.status, &answer.message()["error"]["code"]), (400, &json!(-32020)));
    }
    // An id is no path: neither of this server, nor of a file.
    for path in [format!("/tasks/{id}"), format!("/mcp/{id}"), format!("/mcp/../tasks/{id}")] {
        let answer = server.ask("GET", &path, &[("authorization", &alice)], "");
        assert_eq!(answer.status, 404, "{path}: {answer:?}");
    }
}

#[test]
fn sessions_have_no_tasks_at_any_revision() {
    let server = server(&[]);
    let alice = bearer(ALICE);
    let session = server.session(&[("authorization", &alice)]);
    let headers = [("authorization", alice.as_str()), ("mcp-session-id", session.as_str())];
    let mut again = initialize();
    again["params"]["protocolVersion"] = json!("2026-07-28");
    again["params"]["capabilities"] = json!({ "extensions": { TASKS: {} } });
    let refused = server.mcp(&headers, &again).message();
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    let lasts = call("bash", json!({ "command": "sleep 3" }));
    let knowing = knowing(modern_call("bash", json!({ "command": "sleep 3" })));
    for message in [lasts, knowing] {
        let answer = server.mcp(&headers, &message).message();
        assert_ne!(answer["result"]["resultType"], "task", "{answer}");
    }
}
