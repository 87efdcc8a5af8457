//! The tier `landlock+seccomp`: asked for by name where user namespaces are refused, and what it holds
//! without them. A sentinel, a file and a socket of the same uid stand outside; they are what a cell
//! without namespaces could reach, and each attack on them is shown to work without the tier.

mod corpus;
mod ends;
mod outside;

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use crate::support::{
    CALLS, Caller, Check, Claim, Failed, Finished, For, Need, Who, claim, denials, equal, holds,
    patience, text,
};
use serde_json::{Value, json};

const TIER: &str = "landlock+seccomp";

pub fn claims() -> Vec<Claim> {
    const SCOPE: &[Need] = &[Need::LandlockScope];
    const PYTHON: &[Need] = &[Need::LandlockScope, Need::Python];
    const OUTER: &[Need] = &[Need::LandlockScope, Need::Unshare, Need::Bc];
    vec![
        claim("it_is_never_taken_by_itself", not_by_itself).needs(SCOPE),
        claim("where_a_filter_refuses_user_namespaces_it_runs", filtered).needs(PYTHON),
        claim("where_a_sysctl_refuses_user_namespaces_it_runs", forbidden).needs(OUTER),
        claim("the_receipt_lists_the_missing_layers", receipt).needs(SCOPE),
        claim("without_signals_held_it_is_refused", old_landlock).needs(&[Need::Python]),
        claim("what_takes_mounts_is_refused_with_the_way_out", no_mounts).needs(SCOPE),
        claim("files_outside_are_neither_read_nor_changed", outside::files).needs(PYTHON),
        claim("read_grants_are_not_writable", outside::granted).needs(SCOPE),
        claim("processes_outside_are_not_hurt", outside::processes).needs(PYTHON),
        claim("sockets_outside_are_not_reached", outside::sockets).needs(PYTHON),
        claim("objects_outside_are_not_reached", outside::objects).needs(PYTHON),
        claim("what_leaves_its_parent_ends_with_the_call", ends::strays).needs(SCOPE),
        claim("what_leaves_its_parent_ends_with_the_server", ends::orphans).needs(SCOPE),
        claim("what_leaves_its_parent_ends_with_its_init", ends::bereft)
            .needs(SCOPE)
            .only(For::Root),
        claim("memory_is_watched_over_all_its_processes", ends::memory).needs(PYTHON),
        claim("nothing_of_a_cell_is_left_on_the_disk", ends::swept).needs(SCOPE),
        claim("the_corpus_is_held_except_documented_attacks", corpus::corpus_is_held)
            .needs(OUTER)
            .thorough_as_root(),
        claim("an_mcp_server_runs_in_it_and_refuses_sessions", served).needs(SCOPE),
    ]
}

fn line(caller: &Caller, line: &str) -> Result<Finished, Failed> {
    let mut command = caller.outside("/bin/bash");
    command.args(["-c", line]);
    Finished::run(command, patience())
}

/// A program that loads a system call filter of these steps, and becomes the one it is given. Numbers of calls that
/// aarch64 has elsewhere are `native(number)` in them.
fn kernel(steps: &str) -> String {
    format!(
        r#"{CALLS}
ours = libc.syscall(native(444), None, 0, 1)
assert ours >= 0
NEW = 0x7e020000
def refuse(errno): return (0x06, 0, 0, 0x00050000 | errno)
code = [(0x20, 0, 0, 0), {steps}, (0x06, 0, 0, 0x7fff0000)]
program = b"".join(struct.pack("HBBI", *step) for step in code)
held = ctypes.create_string_buffer(program)
libc.prctl(38, 1, 0, 0, 0)
assert libc.syscall(native(317), 1, 0, struct.pack("HxxxxxxP", len(code), ctypes.addressof(held))) == 0
os.execv(sys.argv[1], sys.argv[1:])
"#
    )
}

fn not_by_itself(caller: &Caller) -> Check {
    let report = caller.json(&[], &["true"])?;
    let receipt = report.get("receipt").ok_or("no receipt")?;
    equal("the tier", text(receipt, "tier"), "namespaces+landlock+seccomp")?;
    equal("it lacks nothing", receipt.get("lacks"), None)?;
    let report = caller.run(&["--tier", "landlock"], &["true"])?;
    holds(
        "another name",
        &report,
        report.code == 125 && report.stderr.contains("no tier `landlock`; there are"),
    )
}

fn filtered(caller: &Caller) -> Check {
    // Container engines do the same: no namespaces by clone(2) and unshare(2), and no clone3(2).
    let steps = "(0x15, 0, 1, 435), refuse(38), (0x15, 1, 0, native(56)), \
                 (0x15, 0, 3, native(272)), (0x20, 0, 0, 16), (0x45, 0, 1, NEW), refuse(1)";
    let filter = caller.file("filter.py", &kernel(steps))?;
    let binary = caller.binary().display().to_string();
    let under = |words: &str| {
        line(caller, &format!("/usr/bin/python3 {} {binary} {words}", filter.display()))
    };
    let output = under("run -- touch ran")?;
    equal("the default", (output.code, output.stdout.as_str()), (125, ""))?;
    let way_out = "--tier landlock+seccomp";
    holds("names the way out", &output.stderr, output.stderr.contains(way_out))?;
    let output = under(&format!("run --tier {TIER} -- bash -c 'echo ran | cat'"))?;
    equal("with the tier", (output.code, output.trimmed()), (0, "ran"))?;
    let output = under(&format!("calc --tier {TIER} 2^70"))?;
    equal("and calc", (output.code, output.trimmed()), (0, "1180591620717411303424"))
}

/// In a user namespace that allows no further one. The host's own setting stays as it is.
fn forbidden(caller: &Caller) -> Check {
    let binary = caller.binary().display().to_string();
    let inside = |line: &str| {
        let set = |most: u8| format!("echo {most} > /proc/sys/user/max_user_namespaces");
        let mut command = caller.outside("unshare");
        command.args(["--user", "--map-root-user", "bash", "-c"]);
        match caller.who {
            Who::Root => command.arg(format!("{}; {line}", set(0))),
            Who::User => {
                let uid = caller.uid();
                let gid = caller.gid();
                let own = format!(
                    "exec unshare --user --map-user={uid} --map-group={gid} bash -c '{line}'"
                );
                command.arg(format!("{}; {own}", set(1)))
            }
        };
        Finished::run(command, patience())
    };
    let output = inside(&format!("{binary} run -- touch ran"))?;
    equal("the default", (output.code, output.stdout.as_str()), (125, ""))?;
    holds("names the way out", &output.stderr, output.stderr.contains("--tier landlock+seccomp"))?;
    let output = inside(&format!("{binary} run --tier {TIER} -- echo ran"))?;
    match caller.who {
        Who::User => equal("with the tier", (output.code, output.trimmed()), (0, "ran")),
        // The only id there is that of the host's root, which no cell may have.
        Who::Root => {
            equal("refused", (output.code, output.trimmed()), (125, ""))?;
            let reason = "the payload has host id 0";
            holds("with the reason", &output.stderr, output.stderr.contains(reason))
        }
    }
}

fn receipt(caller: &Caller) -> Check {
    let report = caller.json(&["--tier", TIER], &["bash", "-c", "chmod 700 . 2>/dev/null; pwd"])?;
    let receipt = report.get("receipt").ok_or("no receipt")?;
    equal("the tier", text(receipt, "tier"), TIER)?;
    let measured = |name: &str| receipt.pointer(&format!("/measured/{name}")).cloned();
    equal("no namespaces", measured("namespaces"), Some(json!([])))?;
    equal("no_new_privs", measured("no_new_privs"), Some(json!(true)))?;
    let uid = measured("host_uid").and_then(|uid| uid.as_u64()).unwrap_or_default();
    match caller.who {
        Who::Root => holds("an unused id", uid, uid >= 2_000_000_000)?,
        Who::User => equal("the caller's id", uid, u64::from(caller.uid()))?,
    }
    let probed = receipt.pointer("/probed/landlock_path").cloned();
    equal("Landlock, tried", probed, Some(json!("EACCES")))?;
    let lacks = receipt.get("lacks").and_then(Value::as_array).map_or(0, Vec::len);
    equal("a line for each namespace, and three", lacks, 11)?;
    let workspace = receipt.pointer("/configured/workspace").and_then(Value::as_str);
    let expected_place = format!("fresh, at {}", text(&report, "stdout").trim());
    equal("where it works", workspace, Some(expected_place.as_str()))?;
    let call = denials(&report);
    equal("what is refused is counted", call, vec![("fchmodat".to_owned(), 1)])
}

/// A kernel that says it has Landlock ABI 5: signals are not held there.
fn old_landlock(caller: &Caller) -> Check {
    // Nothing can be answered but errors without a listener: no version at all is below 6 as well.
    let steps = "(0x15, 0, 1, 444), refuse(38)";
    let kernel = caller.file("kernel.py", &kernel(steps))?;
    let kernel = kernel.display();
    let binary = caller.binary();
    let words = format!("run --tier {TIER} -- touch ran");
    let output = line(caller, &format!("/usr/bin/python3 {kernel} {} {words}", binary.display()))?;
    equal("refused", (output.code, output.stdout.as_str()), (125, ""))?;
    let reason = "Landlock ABI 6 is required by the tier landlock+seccomp, this kernel has 0";
    holds("with the reason", &output.stderr, output.stderr.contains(reason))
}

fn no_mounts(caller: &Caller) -> Check {
    let directory = caller.directory("work")?;
    let path = directory.display().to_string();
    let cases: [(&[&str], &str); 2] = [
        (&["--rw", &path], "--rw: what the host obeys in a grant is guarded by mounts"),
        (&["--ro", &format!("{path}:/models")], "--ro: another path in the cell takes a mount"),
    ];
    for (options, reason) in cases {
        let options: Vec<&str> = ["--tier", TIER].iter().chain(options).copied().collect();
        let output = caller.run(&options, &["true"])?;
        let expected =
            format!("cofferdam: {reason}, and the tier landlock+seccomp has none\nhint: ");
        holds(reason, &output, output.code == 125 && output.stderr.starts_with(&expected))?;
    }
    let serve = caller.cofferdam(&["serve", "--tier", TIER, "--workspace", &path]);
    let output = Finished::run(serve, patience())?;
    let reason = "cofferdam: --workspace: a grant at /workspace takes a mount";
    holds("serve", &output, output.code == 125 && output.stderr.starts_with(reason))
}

fn served(caller: &Caller) -> Check {
    let mut command = caller.cofferdam(&["serve", "--tier", TIER, "--tools", "calc,exec,shell"]);
    let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut answers = BufReader::new(server.stdout.take().ok_or("no output")?).lines();
    let mut input = server.stdin.take().ok_or("no input")?;
    let mut request = |message: Value| -> Result<Value, Failed> {
        writeln!(input, "{message}")?;
        if message.get("id").is_none() {
            return Ok(Value::Null);
        }
        let answer = answers.next().ok_or("no answer")??;
        Ok(serde_json::from_str(&answer)?)
    };
    request(json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "tiers", "version": "1"}}}))?;
    request(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
    let mut call = |id: u64, tool: &str, arguments: Value| {
        request(json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": tool, "arguments": arguments}}))
    };
    let done = call(2, "bash_exec", json!({"command": "echo $((6 * 7))"}))?;
    let shown = done.to_string();
    holds("bash_exec", &shown, shown.contains("42") && shown.contains(TIER))?;
    let done = call(3, "calculate", json!({"expression": "6*7"}))?;
    let tier = done.pointer("/result/_meta/cofferdam~1receipt/tier").cloned();
    equal("calculate", tier, Some(json!(TIER)))?;
    let done = call(4, "bash", json!({"command": "echo ran > /dev/stderr"}))?.to_string();
    let reason = "a session needs mounts of its own";
    holds("bash", &done, done.contains(reason) && done.contains("bash_exec"))?;
    drop(input);
    let ended = server.wait()?;
    equal("its end", ended.code(), Some(0))
}
