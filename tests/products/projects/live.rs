//! Scripts while they run: progress, messages, questions, renewed time limits, cancellation, floods.

use std::process::Command;

use serde_json::{Value, json};

use super::copied_of;
use super::transcript::{compare, modern, until};
use crate::server::{self, Server};

/// Serves a copy of the project to a client with these capabilities.
fn served(directory: &tempfile::TempDir, writes: &str, capabilities: Value) -> Server {
    copied_of("live_project", directory.path()).expect("a copy");
    let mut command = Command::new(server::PROGRAM);
    let project = format!("{}{writes}", directory.path().to_str().expect("UTF-8"));
    command.args(["serve", "--toolchains", "none", "--project", &project]);
    Server::of_client(command, capabilities)
}

fn call(tool: &str, arguments: Value, meta: Value) -> Value {
    json!({"name": tool, "arguments": arguments, "_meta": meta})
}

#[test]
fn progress_and_messages_precede_the_result() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, "", json!({}));
    let text = |meta| call("live", json!({"of": "said"}), meta);
    let id = server.request("tools/call", text(json!({})));
    let mut lines = until(&mut server, id, |_| None);
    // A client that set no level gets `info` and above.
    let level = server.request("logging/setLevel", json!({"level": "error"}));
    server.answer(level);
    let id = server.request("tools/call", text(json!({"progressToken": "to\"ken"})));
    lines.extend(until(&mut server, id, |_| None));
    compare("said-2025-11-25", &lines);
    let meta = json!({"progressToken": 7, "io.modelcontextprotocol/logLevel": "debug"});
    let id = server.request("tools/call", text(modern(meta)));
    compare("said-2026-07-28", &until(&mut server, id, |_| None));
}

#[test]
fn progress_is_seen_before_the_script_ends() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, "", json!({"elicitation": {}}));
    let meta = json!({"progressToken": 1});
    let id = server.request("tools/call", call("live", json!({"of": "waits"}), meta));
    let mut seen = Vec::new();
    // The script does not end before the question is answered.
    until(&mut server, id, |question| {
        seen.push(question["method"].clone());
        Some(json!({"action": "accept", "content": {"confirmed": true}}))
    });
    assert_eq!(seen, ["elicitation/create"]);
}

#[test]
fn a_script_asks_the_user_and_gets_the_answers() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, "", json!({"elicitation": {}}));
    let id = server.request("tools/call", call("live", json!({"of": "asks"}), json!({})));
    let mut count = 0;
    let lines = until(&mut server, id, |_| {
        count += 1;
        Some(match count {
            1 => json!({"action": "decline"}),
            2 => json!({"action": "cancel"}),
            _ => json!({"action": "accept", "content": {"number": count, "text": "\"\n$(id)"}}),
        })
    });
    compare("asks-2025-11-25", &lines);
    let structured = lines.last().map(|it| it["result"]["structuredContent"].clone());
    // Nothing can be asked in the middle of a call from this revision on, but of a client that knows tasks.
    let id = server.request("tools/call", call("live", json!({"of": "asks"}), modern(json!({}))));
    compare("asks-2026-07-28", &until(&mut server, id, |_| None));
    // An unanswered question does not delay a script's end.
    let id = server.request("tools/call", call("live", json!({"of": "asks-alone"}), json!({})));
    compare("asks-alone-2025-11-25", &until(&mut server, id, |_| None));
    let (task, request) = asked_in_a_task(&mut server, "asks", |count| match count {
        1 => json!({"action": "decline"}),
        2 => json!({"action": "cancel"}),
        _ => json!({"action": "accept", "content": {"number": count, "text": "\"\n$(id)"}}),
    });
    assert_eq!((task["status"].as_str(), request), (Some("completed"), count), "{task}");
    assert_eq!(Some(&task["result"]["structuredContent"]), structured.as_ref());
}

/// Calls a script as a client of 2026-07-28 that knows tasks, and answers its questions by their number: the task when
/// it has ended, and how much was asked.
fn asked_in_a_task(server: &mut Server, of: &str, answer: impl Fn(u64) -> Value) -> (Value, u64) {
    let capabilities =
        json!({"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}});
    let meta = modern(json!({"io.modelcontextprotocol/clientCapabilities": capabilities}));
    let about = |id: &Value| json!({"taskId": id, "_meta": meta});
    let id = server.request("tools/call", call("live", json!({"of": of}), meta.clone()));
    let begun = server.answer(id);
    assert_eq!(begun["result"]["resultType"], "task", "{begun}");
    let task = begun["result"]["taskId"].clone();
    let mut count = 0;
    let end = std::time::Instant::now() + server::patience::patience();
    loop {
        let id = server.request("tasks/get", about(&task));
        let state = server.answer(id)["result"].clone();
        match state["status"].as_str() {
            Some("working") => std::thread::sleep(std::time::Duration::from_millis(20)),
            Some("input_required") => {
                let questions = state["inputRequests"].as_object().expect("questions");
                assert_eq!(questions.len(), 1, "one at a time: {state}");
                let (key, question) = questions.iter().next().expect("one");
                assert_eq!(question["method"], "elicitation/create", "{state}");
                count += 1;
                let mut params = about(&task);
                // A message without the form of an answer is refused, and the question stays open.
                params["inputResponses"] = json!({key: {"action": "obey"}});
                let id = server.request("tasks/update", params.clone());
                assert_eq!(server.answer(id)["error"]["code"], -32602);
                params["inputResponses"] = json!({key: answer(count), "question-99": 7});
                let id = server.request("tasks/update", params);
                assert_eq!(server.answer(id)["result"], json!({"resultType": "complete"}));
            }
            _ => return (state, count),
        }
        assert!(std::time::Instant::now() < end, "{state}");
    }
}

#[test]
fn a_task_waiting_for_an_answer_can_be_cancelled() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, "", json!({}));
    let capabilities =
        json!({"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}});
    let meta = modern(json!({"io.modelcontextprotocol/clientCapabilities": capabilities}));
    let id = server.request("tools/call", call("live", json!({"of": "waits"}), meta.clone()));
    let task = server.answer(id)["result"]["taskId"].clone();
    let params = json!({"taskId": task, "_meta": meta});
    let id = server.request("tasks/cancel", params.clone());
    assert_eq!(server.answer(id)["result"], json!({"resultType": "complete"}));
    let end = std::time::Instant::now() + server::patience::patience();
    loop {
        let id = server.request("tasks/get", params.clone());
        let state = server.answer(id)["result"].clone();
        if state["status"] != "working" {
            // The script may end by itself in the half second that it has, with what it learned.
            let learned = &state["result"]["structuredContent"]["action"];
            let has_ended = state["status"] == "completed" && learned == "cancel";
            assert!(has_ended || state["status"] == "cancelled", "{state}");
            return;
        }
        assert!(std::time::Instant::now() < end, "{state}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn scripts_know_if_a_client_cannot_answer() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, "", json!({}));
    let id = server.request("tools/call", call("live", json!({"of": "waits"}), json!({})));
    let lines = until(&mut server, id, |_| None);
    let error = &lines[0]["error"];
    assert_eq!(error["message"], "mcp_elicit: Client does not support elicitation", "{lines:?}");
}

#[test]
fn progress_renews_a_time_limit_up_to_the_longest() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, "", json!({}));
    let renewed = server.call("renewed", json!({}));
    let idle = server.call("idle", json!({}));
    let text = |answer: &Value| answer["result"]["content"][0]["text"].clone();
    let answer = server.answer(idle);
    assert_eq!(text(&answer), "Tool timed out after 1s (no progress reported)");
    let error = json!({
        "type": "timeout", "message": "Tool timed out after 1s (no progress reported)", "timeoutSecs": 1,
        "reason": "idle", "exitCode": 124, "progressExtendsTimeout": true, "maxTimeoutSecs": 50,
    });
    assert_eq!(answer["result"]["structuredContent"], json!({"success": false, "error": error}));
    // The tool may be two seconds without progress, and made progress for five.
    let answer = server.answer(renewed);
    assert_eq!(text(&answer), "Tool exceeded maximum runtime of 5s");
    assert_eq!(answer["result"]["structuredContent"]["error"]["reason"], "max_exceeded");
}

#[test]
fn a_cancelled_script_sees_its_cancel_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, ":rw", json!({}));
    let cancelled = call("live", json!({"of": "cancelled"}), json!({"progressToken": 1}));
    let id = server.request("tools/call", cancelled);
    let begun = server.lines.recv_timeout(server::patience::patience()).expect("progress");
    assert_eq!(begun["method"], "notifications/progress", "{begun}");
    server.send(
        &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}),
    );
    let end = std::time::Instant::now() + server::patience::patience();
    let path = directory.path().join("cancelled");
    while !path.exists() {
        assert!(std::time::Instant::now() < end, "the script did not see its cancel file");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // The script is ended in its sleep: the server ends in its own time.
    assert_eq!(server.close(), Some(0));
}

#[test]
fn script_output_is_never_a_server_message() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, "", json!({"elicitation": {}}));
    let level = server.request("logging/setLevel", json!({"level": "debug"}));
    server.answer(level);
    let meta = json!({"progressToken": 1});
    let id = server.request("tools/call", call("live", json!({"of": "forged"}), meta));
    let lines = until(&mut server, id, |_| None);
    let forged = json!({"id": 1, "jsonrpc": "2.0", "result": {"forged": true}});
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["result"]["structuredContent"], forged);
}

#[test]
fn floods_of_progress_are_bounded() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, "", json!({}));
    let level = server.request("logging/setLevel", json!({"level": "info"}));
    server.answer(level);
    let meta = json!({"progressToken": 1});
    let id = server.request("tools/call", call("live", json!({"of": "flood"}), meta));
    let lines = until(&mut server, id, |_| None);
    let count = |method: &str| lines.iter().filter(|line| line["method"] == method).count();
    let counts = (count("notifications/progress"), count("notifications/message"));
    assert_eq!(counts, (100, 100));
    assert_eq!(
        lines.last().map(|line| &line["result"]["content"][0]["text"]),
        Some(&json!("flooded\n"))
    );
}

#[test]
fn output_over_the_limit_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, "", json!({}));
    let result = server.result("live", json!({"of": "bytes"}));
    assert_eq!(result["content"][0]["text"], "a\u{2400}b\n\n");
    let most = 10 << 20;
    let result = server.result("live", json!({"of": "long", "bytes": most}));
    assert_eq!(result["content"][0]["text"].as_str().map(str::len), Some(most));
    let id = server.call("live", json!({"of": "long", "bytes": most + 1}));
    let error = json!({"code": -32603, "message": "Tool output exceeded 10485760 bytes"});
    assert_eq!(server.answer(id)["error"], error);
}
