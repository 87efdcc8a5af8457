//! Calls that become tasks: their states, their bounds, and what others can do with their ids.

use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Client, initialize, modern, script, text};

const TASKS: &str = "io.modelcontextprotocol/tasks";
/// Calls of a client that are tasks or may become one.
const MAX_TASKS: i64 = 64;
/// Time in which any call has ended, and is forgotten.
const LONGEST: Duration = Duration::from_secs(4200 + 600 + 60);

/// `_meta` of a request whose client knows tasks.
fn knowing(message: Value) -> Value {
    let mut message = modern(message);
    message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
        json!({ "extensions": { TASKS: {} } });
    message
}

fn about(method: &str, id: &str) -> Value {
    let mut params = json!({ "taskId": id });
    if method == "tasks/update" {
        params["inputResponses"] = json!({ "question-1": { "action": "accept" } });
    }
    knowing(json!({ "jsonrpc": "2.0", "id": "about", "method": method, "params": params }))
}

/// Calls bash, which must answer with a task; the task's id.
async fn begun(client: &mut Client, id: i64, command: &str) -> String {
    let answer = client.ask(knowing(script(id, command))).await;
    assert_eq!(answer["result"]["resultType"], "task", "{answer}");
    answer["result"]["taskId"].as_str().unwrap().to_owned()
}

/// Asks for a task until it has ended.
async fn ended(client: &mut Client, id: &str) -> Value {
    loop {
        let answer = client.ask(about("tasks/get", id)).await;
        let status = answer["result"]["status"].as_str().unwrap_or_else(|| panic!("{answer}"));
        if !["working", "input_required"].contains(&status) {
            return answer["result"].clone();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn keys(object: &Value) -> Vec<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

fn unknown() -> Value {
    json!({ "code": -32602, "message": "there is no task of this id, or its time is over" })
}

#[tokio::test(start_paused = true)]
async fn a_long_call_becomes_a_task() {
    let mut client = Client::start();
    let answer = client.ask(knowing(script(1, "sleep 300"))).await;
    let mut task = answer["result"].clone();
    let id = task["taskId"].as_str().unwrap().to_owned();
    assert_eq!(id.len(), 32);
    assert!(task["createdAt"].is_string() && task["lastUpdatedAt"].is_string(), "{task}");
    for unlike in ["taskId", "createdAt", "lastUpdatedAt"] {
        task.as_object_mut().unwrap().remove(unlike);
    }
    let as_made = json!({
        "resultType": "task", "status": "working", "ttlMs": 4_200_000, "pollIntervalMs": 1000,
        "statusMessage": "running for 0 s, 0 bytes of output so far"
    });
    assert_eq!(task, as_made);
    let task = ended(&mut client, &id).await;
    assert_eq!((&task["status"], &task["resultType"]), (&json!("completed"), &json!("complete")));
    let plain = client.ask(modern(script(1, "sleep 300"))).await;
    assert_eq!(task["result"], plain["result"]);
    assert_eq!(task["result"]["structuredContent"]["stdout"], "slept");
    // A delivered result is kept for a while, and the client learns for how long.
    let ttl = task["ttlMs"].as_u64().unwrap();
    assert!((300_000..400_000).contains(&ttl), "{ttl}");
    assert_eq!(client.ask(about("tasks/get", &id)).await["result"]["result"], plain["result"]);
}

#[tokio::test(start_paused = true)]
async fn what_ends_soon_is_answered_at_once() {
    let mut client = Client::start();
    for command in ["hello", "deny", "panic"] {
        let own = client.ask(knowing(script(1, command))).await;
        let plain = client.ask(modern(script(1, command))).await;
        assert_eq!(own, plain);
        assert_ne!(own["result"]["resultType"], "task");
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_client_with_the_capability_gets_a_task() {
    let mut client = Client::start();
    let discover = json!({ "jsonrpc": "2.0", "id": 0, "method": "server/discover", "params": {} });
    let answer = client.ask(modern(discover)).await;
    assert_eq!(answer["result"]["capabilities"]["extensions"], json!({ TASKS: {} }));
    let plain = client.ask(modern(script(1, "sleep 300"))).await;
    assert_eq!(plain["result"]["structuredContent"]["stdout"], "slept");
    let id = begun(&mut client, 2, "sleep 300").await;
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let mut message = about(method, &id);
        message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
        let error = client.ask(message).await["error"].clone();
        let needed = json!({ "requiredCapabilities": { "extensions": { TASKS: {} } } });
        assert_eq!((&error["code"], &error["data"]), (&json!(-32021), &needed), "{method}");
    }
    // The methods of the earlier tasks extension are unknown here.
    for method in ["tasks/list", "tasks/result"] {
        assert_eq!(client.ask(about(method, &id)).await["error"]["code"], -32601, "{method}");
    }
    for params in [json!({}), json!({ "taskId": 7 }), json!({ "taskId": [id] })] {
        let message = json!({ "jsonrpc": "2.0", "id": 9, "method": "tasks/get", "params": params });
        assert_eq!(client.ask(knowing(message)).await["error"]["code"], -32602, "{params}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_older_revision_has_no_tasks() {
    let mut client = Client::start();
    let mut hello = initialize("2025-11-25");
    hello["params"]["capabilities"] = json!({ "extensions": { TASKS: {} } });
    let reply = client.ask(hello).await;
    assert!(reply["result"]["capabilities"]["tools"].is_object(), "{reply}");
    assert_eq!(reply["result"]["capabilities"].get("extensions"), None, "{reply}");
    client.say(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
    let answer = client.ask(script(1, "sleep 300")).await;
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "slept");
    let get =
        json!({ "jsonrpc": "2.0", "id": 2, "method": "tasks/get", "params": { "taskId": "a" } });
    assert_eq!(client.ask(get).await["error"]["code"], -32601);
}

#[tokio::test(start_paused = true)]
async fn a_finished_task_cannot_be_cancelled() {
    let mut client = Client::start();
    let waits = begun(&mut client, 1, "wait").await;
    let sleeps = begun(&mut client, 2, "sleep 100").await;
    let running = client.ask(about("tasks/get", &waits)).await;
    assert_eq!(running["result"]["statusMessage"], "running for 0 s, 7 bytes of output so far");
    for _ in 0..2 {
        let acknowledged = client.ask(about("tasks/cancel", &waits)).await;
        assert_eq!(acknowledged["result"], json!({ "resultType": "complete" }));
        let task = ended(&mut client, &waits).await;
        assert_eq!((&task["status"], task.get("result")), (&json!("cancelled"), None), "{task}");
    }
    let before = ended(&mut client, &sleeps).await;
    assert_eq!(before["status"], "completed");
    for method in ["tasks/cancel", "tasks/update"] {
        let acknowledged = client.ask(about(method, &sleeps)).await;
        assert_eq!(acknowledged["result"], json!({ "resultType": "complete" }), "{method}");
    }
    let after = ended(&mut client, &sleeps).await;
    assert_eq!((&after["status"], &after["result"]), (&before["status"], &before["result"]));
}

#[tokio::test(start_paused = true)]
async fn an_invalid_id_is_refused_and_not_echoed() {
    let mut client = Client::start();
    let id = begun(&mut client, 1, "wait").await;
    let upper = id.to_uppercase();
    let most = id.get(..31).unwrap().to_owned();
    let long = "x".repeat(1 << 20);
    let odd = [
        "",
        " ",
        "1",
        "c1",
        "*",
        "../../etc/passwd",
        "/tmp/a",
        "file:///a",
        "%2e%2e",
        "\0",
        "\u{202e}",
    ];
    for other in odd.into_iter().chain([upper.as_str(), &most, &long, &format!("{id} ")]) {
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            assert_eq!(
                client.ask(about(method, other)).await["error"],
                unknown(),
                "{method} {other}"
            );
        }
    }
    assert_eq!(client.ask(about("tasks/get", &id)).await["result"]["status"], "working");
}

#[tokio::test(start_paused = true)]
async fn the_task_of_another_connection_is_unknown() {
    let mut owner = Client::start();
    let mut other = Client::start();
    let id = begun(&mut owner, 1, "wait").await;
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        assert_eq!(other.ask(about(method, &id)).await["error"], unknown(), "{method}");
    }
    assert_eq!(owner.ask(about("tasks/get", &id)).await["result"]["status"], "working");
}

#[tokio::test(start_paused = true)]
async fn a_fault_in_a_task_is_a_failed_task() {
    let mut client = Client::start();
    let id = begun(&mut client, 1, "fault 100").await;
    let task = ended(&mut client, &id).await;
    let fault = "the call ended by a fault in cofferdam";
    assert_eq!(task["status"], "failed");
    assert_eq!(task["error"], json!({ "code": -32603, "message": fault }));
    assert_eq!((task.get("result"), &task["statusMessage"]), (None, &json!(fault)));
}

#[tokio::test(start_paused = true)]
async fn a_client_has_so_many_tasks_and_then_plain_calls() {
    let mut client = Client::start();
    let mut ids = Vec::new();
    for id in 0..MAX_TASKS {
        ids.push(begun(&mut client, id, "wait").await);
    }
    let plain = client.ask(knowing(script(100, "sleep 300"))).await;
    assert_eq!(plain["result"]["structuredContent"]["stdout"], "slept", "{plain}");
    // One that has ended has its place until its result was asked for, and for a while longer.
    client.ask(about("tasks/cancel", &ids[0])).await;
    ended(&mut client, &ids[0]).await;
    let plain = client.ask(knowing(script(101, "sleep 300"))).await;
    assert_eq!(plain["result"]["structuredContent"]["stdout"], "slept", "{plain}");
    tokio::time::sleep(Duration::from_secs(301)).await;
    assert_eq!(client.ask(about("tasks/get", &ids[0])).await["error"], unknown());
    begun(&mut client, 102, "wait").await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_end_soon_leave_no_places_taken() {
    let mut client = Client::start();
    for id in 0..3 * MAX_TASKS {
        let answer = client.ask(knowing(script(id, "hello"))).await;
        assert_eq!(text(&answer).lines().next(), Some("hello"), "{answer}");
    }
    begun(&mut client, 1000, "wait").await;
}

#[tokio::test(start_paused = true)]
async fn an_unclaimed_result_expires() {
    let mut client = Client::start();
    let id = begun(&mut client, 1, "sleep 300").await;
    // Ten minutes from its end, and no longer for the time that it could have run.
    tokio::time::sleep(Duration::from_secs(590)).await;
    let task = client.ask(about("tasks/get", &id)).await;
    assert_eq!(task["result"]["status"], "completed", "{task}");
    let id = begun(&mut client, 2, "sleep 300").await;
    tokio::time::sleep(Duration::from_secs(610)).await;
    assert_eq!(client.ask(about("tasks/get", &id)).await["error"], unknown());
}

#[tokio::test(start_paused = true)]
async fn a_call_without_end_is_ended_and_forgotten() {
    let mut client = Client::start();
    let waits = begun(&mut client, 1, "wait").await;
    let stuck = begun(&mut client, 2, "stuck").await;
    tokio::time::sleep(Duration::from_secs(4190)).await;
    for id in [&waits, &stuck] {
        assert_eq!(client.ask(about("tasks/get", id)).await["result"]["status"], "working");
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(client.ask(about("tasks/get", &waits)).await["result"]["status"], "cancelled");
    // The task did not end when cancelled: its client gets no more messages about it.
    assert_eq!(client.ask(about("tasks/get", &stuck)).await["error"], unknown());
    tokio::time::sleep(LONGEST).await;
    assert_eq!(client.ask(about("tasks/get", &waits)).await["error"], unknown());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_said_for_a_request_that_has_its_answer() {
    let mut client = Client::start();
    let mut plain = modern(script(1, "sleep 3500"));
    plain["params"]["_meta"]["progressToken"] = json!("plain");
    let mut output = vec![client.ask(plain).await];
    while output.last().is_some_and(|line| line.get("method").is_some()) {
        output.push(client.hear().await);
    }
    assert_eq!(output.len(), 4, "three of progress, and the answer: {output:?}");
    let mut call = knowing(script(2, "sleep 3500"));
    call["params"]["_meta"]["progressToken"] = json!("task");
    assert_eq!(client.ask(call).await["result"]["resultType"], "task");
    tokio::time::sleep(Duration::from_secs(10)).await;
    let next = client.ask(modern(script(3, "hello"))).await;
    assert_eq!(next["id"], 3, "{next}");
}

#[tokio::test(start_paused = true)]
async fn a_call_cancelled_early_becomes_no_task() {
    let mut client = Client::start();
    client.say(knowing(script(1, "wait"))).await;
    let taken_back = json!({ "requestId": 1 });
    client
        .say(json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": taken_back }))
        .await;
    // The first is not answered, as it was taken back.
    let answer = client.ask(modern(script(2, "sleep 300"))).await;
    assert_eq!(answer["id"], 2, "{answer}");
}

#[tokio::test(start_paused = true)]
async fn tasks_of_a_client_that_left_are_ended() {
    let mut client = Client::start();
    begun(&mut client, 1, "wait").await;
    let history = client.history.clone();
    assert!(history.upgrade().is_some());
    let server = client.leave();
    server.await.unwrap().unwrap();
    let gone = async {
        while history.upgrade().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.expect("its call holds the server");
}

#[tokio::test(start_paused = true)]
async fn the_tool_list_is_the_same_for_task_clients() {
    let mut client = Client::start();
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {} });
    let plain = client.ask(modern(list.clone())).await;
    assert_eq!(client.ask(knowing(list)).await, plain);
    assert!(keys(&plain["result"]).contains(&"tools"));
    assert!(!plain.to_string().contains("taskSupport"));
}
