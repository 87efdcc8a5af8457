//! Plain requests: tools by name, and `/run`.

use serde_json::{Value, json};

use crate::client::Server;

const JSON: (&str, &str) = ("content-type", "application/json");

fn run(server: &Server, body: &Value) -> Value {
    let answer = server.ask("POST", "/run", &[JSON], &body.to_string());
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.message()
}

#[test]
fn a_command_has_a_directory_of_its_own_and_the_fields_of_the_older_design() {
    let server = Server::start(&[]);
    let done =
        run(&server, &json!({"command": "cat; echo err >&2; echo 1 > f; exit 3", "stdin": "in\n"}));
    let told = (&done["stdout"], &done["stderr"], &done["exit_code"], &done["timeout_seconds"]);
    assert_eq!(told, (&json!("in\n"), &json!("err\n"), &json!(3), &json!(5.0)));
    assert!(done["duration_ms"].is_u64(), "{done}");
    let other = run(&server, &json!({"command": "ls; echo $?"}));
    assert_eq!(other["stdout"], "0\n", "nothing is left of the first");
    let bad = server.ask("POST", "/run", &[JSON], "{\"command\": \"true\", \"comand\": 1}");
    assert_eq!(bad.status, 400, "{bad:?}");
}

#[test]
fn floods_bombs_and_the_removal_of_everything_are_contained() {
    let server = Server::start(&[]);
    let late = run(&server, &json!({"command": "yes > /dev/null", "timeout_seconds": 1}));
    assert_eq!((&late["exit_code"], &late["outcome"]), (&json!(124), &json!("timeout")));
    run(&server, &json!({"command": ":(){ :|:& };:", "timeout_seconds": 2}));
    run(&server, &json!({"command": "rm -rf --no-preserve-root /", "timeout_seconds": 5}));
    assert!(std::path::Path::new("/etc/passwd").exists());
    assert_eq!(run(&server, &json!({"command": "echo there"}))["stdout"], "there\n");
}

#[test]
fn tools_are_listed_and_called_by_name_within_their_rate() {
    let server = Server::start(&[]);
    let listed = server.ask("GET", "/tools", &[], "").message();
    assert!(listed["tools"].to_string().contains("\"calculate\""), "{listed}");
    let execute = |tool: &str, body: &str| {
        server.ask("POST", &format!("/tools/{tool}/execute"), &[JSON], body)
    };
    let done = execute("calculate", "{\"expression\": \"6*7\"}");
    assert_eq!((done.status, &done.message()["result"]), (200, &json!("42")), "{done:?}");
    assert_eq!(execute("nothing", "{}").status, 404);
    assert_eq!(execute("bash_exec", "{\"command\": \"id\"}").status, 403, "its group is not shown");
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
