//! A fuzzer of system calls in a cell: the host and the server keep working.

use serde_json::json;

use crate::client::Client;
use crate::host::{Host, Seen};
use crate::support::{Caller, Check, equal, holds};

/// Seconds of each fuzzer.
const TIME: u32 = 8;

pub fn fuzzed(caller: &Caller) -> Check {
    let before = Host::now(caller)?;
    let mut seen = Seen::default();
    let mut client = Client::start(caller.cofferdam(&["serve", "--tools", "exec"]))?;
    client.served()?;
    let supervisor = client.supervisor()?;
    for stressor in ["--sysbadaddr", "--enosys"] {
        let command = format!(
            "stress-ng {stressor} 2 --timeout {TIME}s --temp-path /tmp --metrics-brief 2>&1 | tail -20"
        );
        let result = client.call(json!({"command": command, "timeout": 60}))?;
        let stdout = result.pointer("/structuredContent/stdout").cloned().unwrap_or_default();
        let stdout = stdout.as_str().unwrap_or_default();
        let name = stressor.trim_start_matches('-');
        // The stressor ran: its line has a number of operations above zero.
        let operations =
            stdout.lines().filter(|line| line.contains("metrc") || line.contains("info"));
        let made = operations.filter_map(|line| {
            let (_, after) = line.split_once(&format!(" {name} "))?;
            after.split_whitespace().next()?.parse::<u64>().ok()
        });
        holds(stressor, &result, made.max().is_some_and(|made| made > 0))?;
        client.served()?;
        equal("the same supervisor", client.supervisor()?, supervisor)?;
        seen.look(client.child.id());
    }
    client.close()?;
    seen.gone()?;
    seen.groups_gone(caller)?;
    equal("left on the host", Host::now(caller)?, before)
}
