//! One call at a time: arguments, errors, precision, progress, cancellation.

use serde_json::{Value, json};

use crate::client::{Client, call, script, text};

fn ping(id: i64) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "ping" })
}

#[tokio::test(start_paused = true)]
async fn an_unknown_tool_is_a_protocol_error() {
    let mut client = Client::built_in("2025-11-25").await;
    let answer = client.ask(call(1, "bsh", json!({}))).await;
    let message = "unknown tool `bsh`; did you mean `bash`?";
    assert_eq!(answer["error"], json!({ "code": -32602, "message": message }));
}

#[tokio::test(start_paused = true)]
async fn bad_arguments_are_a_result_that_names_the_field() {
    let mut client = Client::built_in("2025-11-25").await;
    let answer = client.ask(call(1, "bash", json!({ "comand": "ls" }))).await;
    let known = "command, stdin, cwd, env, timeout, session, shell, restart, end, background, input, tty, \
                 max_output, head, tail, detail, description";
    let error = "bash: unknown field `comand`";
    let hint = format!("did you mean `command`? it takes {known}");
    assert_eq!(
        answer["result"],
        json!({
            "content": [{ "type": "text", "text": format!("{error}\nhint: {hint}") }],
            "structuredContent": { "outcome": "invalid", "error": error, "hint": hint },
            "isError": true
        })
    );
    let answer = client.ask(call(2, "calculate", json!({ "expression": "1", "precision": 101 })));
    let answer = answer.await;
    let error = "calculate: `precision`: invalid value: integer `101`, expected a whole number from 0 to 100";
    assert_eq!(text(&answer), error);
    assert_eq!(answer["result"]["structuredContent"], json!({ "error": error }));
    let answer = client.ask(call(3, "bash_kill", json!({ "jobs": "1" }))).await;
    let fields = json!({
        "error": "bash_kill: unknown field `jobs`",
        "hint": "did you mean `job`? it takes job, signal"
    });
    assert_eq!(answer["result"]["structuredContent"], fields);
}

#[tokio::test(start_paused = true)]
async fn a_denied_call_is_an_error_with_its_rule() {
    let mut client = Client::opened("2025-11-25").await;
    let answer = client.ask(script(1, "deny")).await;
    assert_eq!(text(&answer), "[denied by rule `none`: no rule allows it]");
    assert_eq!(answer["result"]["isError"], json!(true));
    let fields = json!({ "error": "denied by rule `none`: no rule allows it" });
    assert_eq!(answer["result"]["structuredContent"], fields);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_an_internal_error() {
    let mut client = Client::opened("2025-11-25").await;
    let answer = client.ask(script(1, "panic")).await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32603)));
    assert_eq!(client.ask(script(2, "on")).await["result"]["isError"], json!(false));
}

#[tokio::test(start_paused = true)]
async fn sandbox_rules_lists_profile_and_limits() {
    let mut client = Client::built_in("2025-11-25").await;
    let answer = client.ask(call(1, "sandbox_rules", json!({}))).await;
    let rules = &answer["result"]["structuredContent"];
    assert_eq!(
        (&rules["profile"], &rules["memory_held_by"], &rules["limits"]["timeout_s"]),
        (&json!("bash"), &json!("best-effort"), &json!(600))
    );
    let lines: Vec<&str> = text(&answer).lines().collect();
    for line in [
        "- profile: bash (a shell with the host's programs, a workspace, and its own loopback network)",
        "- network: its own loopback; nothing outside the cell",
        "- programs: any program in the cell",
        "- socket families: unix, inet, inet6",
        "- memory is held by: a watchdog, best-effort",
        "Limits of one call:",
        "- time: 600 s; less can be asked for",
        "- memory: 1 GiB",
        "- files and directories in each: 100000",
        "- command: 1 MiB",
        "- output at which a call is ended: 256 MiB",
    ] {
        assert!(lines.contains(&line), "{line} is not in {lines:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn ping_is_answered_during_a_long_call() {
    let mut client = Client::opened("2025-11-25").await;
    client.say(script(1, "sleep 60000")).await;
    let answer = client.ask(ping(2)).await;
    assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": 2, "result": {} }));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_frees_its_slot_but_not_its_id() {
    let mut client = Client::opened("2025-11-25").await;
    let cancel = |id: i64| {
        json!({
            "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id }
        })
    };
    // Four run at once: if a cancelled call kept its turn, the fifth would wait for ever.
    for id in 1..=4 {
        client.say(script(id, "wait")).await;
        client.say(cancel(id)).await;
    }
    let answer = client.ask(script(5, "fifth")).await;
    assert_eq!(text(&answer), "fifth");
    let answer = client.ask(script(1, "again")).await;
    assert_eq!(answer["error"], json!({ "code": -32600, "message": "this id is in use" }));
}

#[tokio::test(start_paused = true)]
async fn progress_is_sent_only_on_request() {
    let mut client = Client::opened("2025-11-25").await;
    let mut request = script(1, "sleep 1500");
    request["params"]["_meta"] = json!({ "progressToken": "p" });
    let note = client.ask(request).await;
    assert_eq!(
        (&note["method"], &note["params"]),
        (
            &json!("notifications/progress"),
            &json!({
                "progressToken": "p", "progress": 1.0,
                "message": "running for 1 s, 0 bytes of output so far"
            })
        )
    );
    assert_eq!(client.hear().await["id"], json!(1));
    assert_eq!(client.ask(script(2, "sleep 1500")).await["id"], json!(2));
}
