//! Isolation of clients: no token reaches the jobs, files, history or outputs of another, even by guessing names.

use serde_json::{Value, json};

use crate::client::{
    ALICE, Answer, BOB, Server, bearer, call, initialize, modern, modern_call, with_tokens,
};

fn ask(server: &Server, token: &str, tool: &str, arguments: Value) -> Answer {
    let headers = modern(tool);
    let mut headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    headers.push(("authorization", token));
    server.mcp(&headers, &modern_call(tool, arguments))
}

fn result(answer: &Answer) -> Value {
    answer.message()["result"]["structuredContent"].clone()
}

#[test]
fn jobs_files_and_history_are_private_to_a_token() {
    let server = with_tokens(&["--tools", "calc,shell,exec,history,files"]);
    let alice = bearer(ALICE);
    let bob = bearer(BOB);
    let job = ask(
        &server,
        &alice,
        "bash",
        json!({"command": "echo mine; sleep 300", "background": true}),
    );
    let job = result(&job)["job"].as_str().expect("a job").to_owned();
    let number: u32 = job.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(1);
    ask(&server, &alice, "bash", json!({"command": "echo secret > /tmp/f; echo secret > f"}));
    let long = ask(&server, &alice, "bash_exec", json!({"command": "seq 1 100000"}));
    let output = result(&long)["output_id"].clone();
    // Each id that there could be, and the right ones.
    let prefix = job.trim_end_matches(|c: char| c.is_ascii_digit());
    let mut ids: Vec<Value> = (0..number + 20).map(|id| json!(format!("{prefix}{id}"))).collect();
    ids.extend([json!(job), output.clone()]);
    for id in ids.iter().filter(|id| id.is_string()) {
        for (tool, arguments) in [
            ("bash_output", json!({"job": id})),
            ("bash_input", json!({"job": id, "text": "x"})),
            ("bash_kill", json!({"job": id})),
        ] {
            let answer = ask(&server, &bob, tool, arguments);
            assert_ne!(
                answer.message()["result"]["isError"],
                json!(false),
                "{tool} {id}: {answer:?}"
            );
            assert!(!answer.body.contains("mine"), "{answer:?}");
        }
    }
    for path in ["/tmp/f", "/workspace/f"] {
        let seen = ask(&server, &bob, "bash", json!({"command": format!("cat {path}; echo end")}));
        assert_eq!(seen.stdout(), "end\n", "{seen:?}");
    }
    let own = ask(&server, &alice, "bash", json!({"command": "cat /tmp/f f"}));
    assert_eq!(own.stdout(), "secret\nsecret\n", "they are there: {own:?}");
    let own = ask(&server, &alice, "bash_output", json!({"job": job}));
    assert!(own.body.contains("mine"), "{own:?}");
}

#[test]
fn cached_results_are_private_to_a_token() {
    let server = with_tokens(&[]);
    let alice = bearer(ALICE);
    let bob = bearer(BOB);
    let receipt = |token: &str| {
        let answer = ask(&server, token, "calculate", json!({"expression": "123456789*987654321"}));
        assert!(answer.body.contains("121932631112635269"), "{answer:?}");
        answer.message()["result"]["_meta"]["cofferdam/receipt"].clone()
    };
    let is_kept = |token: &str| receipt(token)["cached"] == json!(true);
    assert!(!is_kept(&alice), "a cell runs");
    assert!(is_kept(&alice), "it is remembered");
    assert!(!is_kept(&bob), "not for another token: timing would reveal the other's calls");
}

#[test]
fn the_stream_of_one_token_is_not_taken_up_by_another() {
    let server = with_tokens(&[]);
    let alice = bearer(ALICE);
    let bob = bearer(BOB);
    let id = server.session(&[("authorization", &alice)]);
    let stream = ("accept", "text/event-stream");
    for event in ["0", "0/0", "1/0", "0/1"] {
        let take = [
            ("authorization", bob.as_str()),
            ("mcp-session-id", &id),
            stream,
            ("last-event-id", event),
        ];
        assert_eq!(server.ask("GET", "/mcp", &take, "").status, 404, "{event}");
    }
    // Neither by a client that opened a session itself.
    let own = server.session(&[("authorization", &bob)]);
    assert_ne!(own, id);
    let both = [("authorization", bob.as_str()), ("mcp-session-id", &id), ("mcp-session-id", &own)];
    let answer = server.mcp(&both, &call("bash", json!({"command": "echo"})));
    assert_ne!(answer.status, 200, "{answer:?}");
    assert_eq!(server.mcp(&[("authorization", &alice)], &initialize()).status, 200);
}

/// Rules by which alice has no shell, and bob a short one and no calculator.
const RULES: &str = r#"schema = 1
extends = "shipped"

[[rule]]
id = "no-shell"
tools = ["bash"]
clients = ["alice"]
action = "deny"
why = "alice computes"
matches = [{ tool = "bash", client = "alice" }]
not_matches = [{ tool = "bash", client = "bob" }]

[[rule]]
id = "quick"
tools = ["bash"]
clients = ["bob"]
action = "allow"
profile = "bash"
limits = { timeout = "2s" }
why = "bob is quick"
matches = [{ tool = "bash" }]

[[rule]]
id = "no-sums"
tools = ["calculate"]
clients = ["bob"]
action = "deny"
why = "bob runs commands"
matches = [{ tool = "calculate" }]
"#;

#[test]
fn two_tokens_have_two_sets_of_tools_and_limits() {
    let server = crate::client::with_tokens_and(&[], |home| {
        std::fs::create_dir(home.join("config/policies")).expect("a directory");
        std::fs::write(home.join("config/policies/mine.toml"), RULES).expect("written");
    });
    let alice = bearer(ALICE);
    let bob = bearer(BOB);
    let listed = |token: &str| {
        let answer = server.ask("GET", "/tools", &[("authorization", token)], "").message();
        let tools = answer["tools"].as_array().cloned().unwrap_or_default();
        let has = |name: &str| tools.iter().any(|tool| tool["name"] == name);
        (has("bash"), has("calculate"))
    };
    assert_eq!((listed(&alice), listed(&bob)), ((false, true), (true, false)));
    let sum = |token: &str| ask(&server, token, "calculate", json!({"expression": "6*7"}));
    assert!(sum(&alice).body.contains("42"));
    assert!(sum(&bob).body.contains("denied by rule `no-sums`"), "{:?}", sum(&bob));
    let shell = |token: &str| ask(&server, token, "bash", json!({"command": "echo on"}));
    assert!(shell(&alice).body.contains("denied by rule `no-shell`"), "{:?}", shell(&alice));
    assert_eq!(shell(&bob).stdout(), "on\n");
    let run = |token: &str| {
        let headers = [("authorization", token), ("content-type", "application/json")];
        server.ask("POST", "/run", &headers, "{\"command\": \"echo ran\"}")
    };
    // A rule of the one shell that is offered binds `/run` too.
    assert_eq!((run(&alice).status, run(&bob).status), (403, 200));
    let headers = [("authorization", bob.as_str()), ("content-type", "application/json")];
    let body = "{\"command\": \"sleep 100\", \"timeout_seconds\": 50}";
    let run = server.ask("POST", "/run", &headers, body).message();
    assert_eq!(
        (&run["outcome"], &run["timeout_seconds"]),
        (&json!("timeout"), &json!(2.0)),
        "{run}"
    );
    // The limit is enforced and reported.
    let long = ask(&server, &bob, "bash", json!({"command": "sleep 100", "timeout": 50}));
    assert_eq!(result(&long)["outcome"], "timeout", "{long:?}");
    let rules = ask(&server, &bob, "sandbox_rules", json!({}));
    assert!(rules.body.contains("\"timeout_s\":2"), "{rules:?}");
    // Within a session it is the same.
    let id = server.session(&[("authorization", &alice)]);
    let of = [("authorization", alice.as_str()), ("mcp-session-id", id.as_str())];
    let denied = server.mcp(&of, &call("bash", json!({"command": "echo"})));
    assert!(denied.body.contains("no-shell"), "{denied:?}");
}
