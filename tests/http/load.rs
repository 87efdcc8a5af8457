//! Many clients at once: each call is answered, and with its own answer.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::client::{Server, modern, modern_call};

/// Clients at once.
const CLIENTS: usize = 64;

/// Returns the number of calls: few, or as many as COFFERDAM_SOAK_HTTP says.
fn calls() -> usize {
    let request = std::env::var("COFFERDAM_SOAK_HTTP").ok().and_then(|text| text.parse().ok());
    request.unwrap_or(CLIENTS * 4)
}

#[test]
fn no_answer_is_lost_or_wrong_under_load() {
    let server = Server::start(&["--tools", "calc,exec,shell"]);
    let calls = calls();
    let next = AtomicUsize::new(0);
    let right = AtomicUsize::new(0);
    let busy = AtomicUsize::new(0);
    let ask = |number: usize| {
        let (tool, arguments, expected) = match number % 2 {
            0 => ("bash_exec", json!({"command": format!("echo {number}")}), format!("{number}\n")),
            _ => (
                "calculate",
                json!({"expression": format!("{number}+1")}),
                (number + 1).to_string(),
            ),
        };
        let headers = modern(tool);
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        // A server that is busy says so, and is asked again.
        for _ in 0..1000 {
            let answer = server.mcp(&headers, &modern_call(tool, arguments.clone()));
            if answer.status == 503 || answer.body.contains("queue is full") {
                busy.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(50));
                continue;
            }
            let content = &answer.message()["result"]["structuredContent"];
            let output = content["stdout"].as_str().or(content["result"].as_str());
            assert_eq!(output, Some(&*expected), "call {number}: {answer:?}");
            right.fetch_add(1, Ordering::Relaxed);
            return;
        }
        panic!("call {number} was never served");
    };
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= calls {
                        return;
                    }
                    ask(number);
                }
            });
        }
    });
    assert_eq!(right.load(Ordering::Relaxed), calls, "refused meanwhile: {busy:?}");
}
