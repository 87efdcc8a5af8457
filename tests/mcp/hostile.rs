//! Lines that are no requests: each is answered, and the next request still works.

use mcp::lines::LINE_BYTES;
use serde_json::{Value, json};

use crate::client::{Client, script};

async fn still_works(client: &mut Client) {
    assert_eq!(client.ask(script(99, "on")).await["id"], json!(99));
}

#[tokio::test(start_paused = true)]
async fn malformed_lines_get_a_parse_error_with_a_null_id() {
    let mut client = Client::opened("2025-11-25").await;
    for line in [&b"{\"jsonrpc\":\n"[..], b"\xff\xfe\n", b"{\0}\n", b"nonsense\n"] {
        client.raw(line).await;
        let answer = client.hear().await;
        assert!(answer.as_object().unwrap().contains_key("id"), "{answer}");
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(-32700)));
    }
    client.raw(b"\n  \r\n\xEF\xBB\xBF").await;
    still_works(&mut client).await;
}

#[tokio::test(start_paused = true)]
async fn malformed_lines_before_initialize_are_answered() {
    let mut client = Client::start();
    client.raw(b"{]\n").await;
    assert_eq!(client.hear().await["error"]["code"], json!(-32700));
    let early = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    client.say(early).await;
    client.say(json!({ "jsonrpc": "2.0", "id": 5, "result": {} })).await;
    let answer = client.ask(script(1, "early")).await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32602)));
    client.ask(crate::client::initialize("2025-06-18")).await;
    still_works(&mut client).await;
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_too_long_is_refused_and_skipped() {
    let mut client = Client::opened("2025-11-25").await;
    let piece = vec![b'x'; 1 << 15];
    let pieces = LINE_BYTES / piece.len() + 1;
    for _ in 0..pieces {
        client.raw(&piece).await;
    }
    client.raw(b"\n").await;
    let answer = client.hear().await;
    assert_eq!(
        answer,
        json!({
            "jsonrpc": "2.0", "id": null,
            "error": { "code": -32600, "message": "a line is at most 16777216 bytes" }
        })
    );
    still_works(&mut client).await;
}

#[tokio::test(start_paused = true)]
async fn batches_work_only_in_revisions_that_have_them() {
    let batch = json!([script(1, "a"), { "jsonrpc": "2.0", "method": "x" }, script(2, "b"), 7]);
    let mut client = Client::opened("2025-06-18").await;
    let answer = client.ask(batch.clone()).await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(-32600)));
    still_works(&mut client).await;

    let mut client = Client::opened("2025-03-26").await;
    client.say(batch).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(client.hear().await["id"].to_string());
    }
    ids.sort();
    assert_eq!(ids, ["1", "2", "null"]);
    still_works(&mut client).await;
}

#[tokio::test(start_paused = true)]
async fn an_id_in_use_is_refused() {
    let mut client = Client::opened("2025-11-25").await;
    client.say(script(1, "sleep 1000")).await;
    let answer = client.ask(script(1, "second")).await;
    assert_eq!(answer["error"], json!({ "code": -32600, "message": "this id is in use" }));
    let first = client.hear().await;
    assert_eq!(first["result"]["structuredContent"]["stdout"], json!("slept"));
}

#[tokio::test(start_paused = true)]
async fn parameters_that_do_not_fit_are_refused_with_the_id() {
    let mut client = Client::opened("2025-11-25").await;
    let shapeless =
        json!({ "jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": { "name": 5 } });
    let answer = client.ask(shapeless).await;
    assert_eq!(answer["id"], json!(4));
    assert!(answer["error"]["code"].is_i64(), "{answer}");
    let unknown = json!({ "jsonrpc": "2.0", "id": 5, "method": "tools/frobnicate" });
    assert_eq!(client.ask(unknown).await["error"]["code"], json!(-32601));
    still_works(&mut client).await;
}
