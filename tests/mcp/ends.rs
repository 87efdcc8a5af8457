//! How a connection ends: running calls finish or are killed, and every answer is delivered.

use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

use crate::client::{Client, initialize, script, text};

#[tokio::test(start_paused = true)]
async fn requests_are_answered_after_the_end_of_input() {
    let mut client = Client::start();
    let lines = [initialize("2025-11-25"), script(1, "sleep 500"), script(2, "two")];
    let input = lines.map(|line| line.to_string()).join("\n");
    // Like output of `printf`: no newline at the end.
    client.raw(input.as_bytes()).await;
    client.end_input().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(client.hear().await["id"].clone());
    }
    assert_eq!(ids, [json!("init"), json!(2), json!(1)]);
    assert_eq!(client.hear().await, Value::Null);
    assert!(client.server.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_long_call_is_killed_after_the_end_of_input() {
    let mut client = Client::opened("2025-11-25").await;
    client.say(script(1, "wait")).await;
    let start = Instant::now();
    client.end_input().await;
    let answer = client.hear().await;
    assert_eq!(text(&answer), "partial");
    assert_eq!(start.elapsed().as_secs(), 1);
    assert!(client.server.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_stop_lets_calls_finish_for_five_seconds() {
    let mut client = Client::opened("2025-11-25").await;
    client.say(script(1, "sleep 4000")).await;
    client.say(script(2, "wait")).await;
    client.ask(json!({ "jsonrpc": "2.0", "id": 3, "method": "ping" })).await;
    let start = Instant::now();
    client.ends.stop.cancel();
    tokio::task::yield_now().await;
    client.say(script(4, "late")).await;
    let late = client.hear().await;
    assert_eq!((&late["id"], &late["error"]["code"]), (&json!(4), &json!(-32600)), "{late}");
    let finished = client.hear().await;
    assert_eq!(finished["result"]["structuredContent"]["stdout"], json!("slept"));
    let killed = client.hear().await;
    assert_eq!(text(&killed), "partial");
    assert_eq!(start.elapsed().as_secs(), 5);
    assert_eq!(client.hear().await, Value::Null);
    assert!(client.server.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_kill_does_not_wait_for_the_five_seconds() {
    let mut client = Client::opened("2025-11-25").await;
    client.say(script(1, "wait")).await;
    client.ask(json!({ "jsonrpc": "2.0", "id": 2, "method": "ping" })).await;
    let start = Instant::now();
    client.ends.stop.cancel();
    client.ends.kill.cancel();
    assert_eq!(client.hear().await["id"], json!(1));
    assert!(start.elapsed() < Duration::from_secs(1));
    assert!(client.server.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_will_not_end_does_not_hold_the_server() {
    let mut client = Client::opened("2025-11-25").await;
    client.say(script(1, "stuck")).await;
    let start = Instant::now();
    client.end_input().await;
    assert!(client.server.await.unwrap().is_ok());
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_not_an_error() {
    let mut client = Client::start();
    client.end_input().await;
    assert!(client.server.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_gone_ends_its_calls() {
    let mut client = Client::opened("2025-11-25").await;
    client.say(script(1, "wait")).await;
    client.ask(json!({ "jsonrpc": "2.0", "id": 2, "method": "ping" })).await;
    let kill = client.ends.kill.clone();
    let server = client.leave();
    let start = Instant::now();
    assert!(server.await.unwrap().is_ok());
    assert!(kill.is_cancelled());
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}
