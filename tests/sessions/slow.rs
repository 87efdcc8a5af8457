//! A session whose cell is slow to die: its call is answered in time, and nobody else waits for it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::server::{Server, text};
use crate::support::{Caller, Check, PATIENCE, equal, holds};

/// The most time from a call's limit to its answer: two seconds, and a moment on a busy machine.
const LATEST: Duration = Duration::from_millis(2500);
const LIMIT: Duration = Duration::from_secs(6);

/// Makes itself of 50,000 mappings, then copies of itself for four seconds, none of which heeds signals.
const SLOW: &str = "
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
base = libc.mmap(None, 50000 * 4096, 0, 0x4022, -1, 0)
for page in range(0, 50000, 2):
    assert libc.mprotect(base + page * 4096, 4096, 1) == 0
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
libc.prctl(15, sys.argv[1].encode(), 0, 0, 0)
end = time.monotonic() + 4
while time.monotonic() < end:
    if os.fork() == 0:
        while True: time.sleep(9)
print('all', flush=True)
while True: time.sleep(9)";

const POLICY: &str = r#"schema = 1

[[rule]]
id = "shell"
tools = ["bash"]
action = "allow"
profile = "own"
why = "this test"
matches = [{ tool = "bash" }]
not_matches = [{ tool = "calculate" }]

[[rule]]
id = "calculator"
tools = ["calculate"]
action = "allow"
profile = "bc"
why = "this test"
matches = [{ tool = "calculate" }]
not_matches = [{ tool = "bash" }]
"#;

/// How many processes of the host have this name.
fn named(name: &str) -> usize {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let comm = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("comm"));
    all.filter_map(|entry| comm(entry).ok()).filter(|comm| comm.trim_end() == name).count()
}

pub fn in_time(caller: &Caller) -> Check {
    // Each mapping is charged, and the shipped profile lets no call raise its limit so far.
    let profile = "schema = 1\nname = \"own\"\nextends = \"bash\"\ndescription = \"of this test\"\n\n\
                   [limits]\nmemory = \"8G\"\n";
    let files = [("sandbox-profiles", profile), ("policies", POLICY)];
    let mut server = Server::with_files(caller, "[limits]\nmemory = \"64G\"\n", &files)?;
    // Both have a shell.
    for session in ["slow", "other"] {
        server.with(&json!({ "command": "true", "session": session }))?;
    }
    let name = format!("late{}{:?}", std::process::id(), caller.who);
    server.with(
        &json!({ "command": format!("cat > slow.py <<'END'\n{SLOW}\nEND"), "session": "slow" }),
    )?;
    let began = Instant::now();
    let command = format!("exec python3 slow.py {name}");
    let limit = LIMIT.as_secs();
    let told = server.with(&json!({ "command": command, "session": "slow", "timeout": limit }))?;
    let took = began.elapsed();
    let content = &told["structuredContent"];
    holds("it timed out", text(&told), content["outcome"] == "timeout")?;
    holds("all of them had been made", text(&told), content["stdout"] == "all\n")?;
    holds("in time", took, took < LIMIT + LATEST)?;
    // The session's next call waits for the slot, and the call of another does not wait for that.
    let next = server.ask(&json!({ "command": "echo next", "session": "slow" }))?;
    let began = Instant::now();
    let other = server.with(&json!({ "command": "echo other", "session": "other" }))?;
    let fresh = server.tool("calculate", &json!({ "expression": "6 * 7" }))?;
    let (took, left) = (began.elapsed(), named(&name));
    holds("the control: the cell is still on its way out", left, left > 0)?;
    equal("another session", &other["structuredContent"]["stdout"], &json!("other\n"))?;
    holds("a call of its own", text(&fresh), text(&fresh).contains("42"))?;
    holds("at once", took, took < Duration::from_secs(2))?;
    let next = server.answer(next)?;
    equal("then it has a new shell", &next["structuredContent"]["stdout"], &json!("next\n"))?;
    let end = Instant::now() + PATIENCE;
    while named(&name) > 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    equal("and nothing is left", named(&name), 0)
}
