//! Output of a shell's commands as progress, for clients that gave a token.

use serde_json::{Value, json};

use crate::server::{Server, story};
use crate::support::{Caller, Check, Failed, equal, holds};

fn ask(server: &mut Server, arguments: &Value) -> Result<u64, Failed> {
    let meta = json!({ "progressToken": "live" });
    let params = json!({ "name": "bash", "arguments": arguments, "_meta": meta });
    server.request("tools/call", &params)
}

/// Reads the next piece of output, or the answer to `id`; skips reports that the call still runs.
fn piece(server: &mut Server, id: u64) -> Result<Result<String, Value>, Failed> {
    loop {
        let line = server.hear()?;
        if line["id"] == json!(id) {
            return Ok(Err(line["result"].clone()));
        }
        let params = &line["params"];
        let message = params["message"].as_str().unwrap_or_default();
        if params["progressToken"] == json!("live") && !message.starts_with("running for") {
            return Ok(Ok(message.to_owned()));
        }
    }
}

pub fn while_it_runs(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    // Not with a `read`: waiting for input would end the call, before or after the progress.
    let command = "printf '\\033[31mone\\033[0m\\n'; sleep 1; echo two >&2";
    let id = ask(&mut server, &json!({ "command": command }))?;
    equal("while it runs, and harmless", piece(&mut server, id)?, Ok("one\n".to_owned()))?;
    equal("the other stream", piece(&mut server, id)?, Ok("[stderr] two\n".to_owned()))?;
    match piece(&mut server, id)? {
        Err(answer) => equal("all of it", story(&answer), (Some(0), "one\n".to_owned()))?,
        Ok(more) => return Err(format!("more than it printed: {more:?}").into()),
    }
    // Bounded: most of a flood is omitted, and the omission is reported.
    let id = ask(&mut server, &json!({ "command": "seq 1000000; sleep 1" }))?;
    let mut heard = 0;
    let mut output = Vec::new();
    let answer = loop {
        match piece(&mut server, id)? {
            Ok(piece) => {
                heard += piece.len();
                // It may come with numbers before it.
                output.extend(piece.contains('[').then_some(piece));
            }
            Err(answer) => break answer,
        }
    };
    equal("it is counted", &answer["structuredContent"]["stdout_bytes"], &json!(6_888_896))?;
    // What is kept of an output, and the notes between its pieces.
    holds("bounded", heard, (1..=(1 << 20) + 1_000).contains(&heard))?;
    holds("reported", &output, !output.is_empty())
}

pub fn until_it_is_a_job(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "[sessions]\nyield = \"1s\"\n")?;
    let id = ask(&mut server, &json!({ "command": "echo one; sleep 600" }))?;
    equal("reported", piece(&mut server, id)?, Ok("one\n".to_owned()))?;
    let answer = piece(&mut server, id)?.err().ok_or("no answer")?;
    equal("a job", &answer["structuredContent"]["outcome"], &json!("running"))
}
