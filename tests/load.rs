//! Load: a flood of calls at once, and many in a row. Everything that could grow is counted before
//! and after.
//!
//! `COFFERDAM_SOAK=134000` makes the row longer, so that it has 100,000 fresh cells, and prints the counts (`make soak`).
#![expect(
    clippy::indexing_slicing,
    reason = "a missing field of an answer fails the test either way"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

#[path = "support/patience.rs"]
mod patience;
use patience::soon;

/// Calls at once: far more than may run and wait.
const FLOOD: u64 = 2000;
/// Calls that may run or wait whatever the machine: four and 256 (rulings R1).
const MIN_TAKEN: usize = 260;
/// Calls in a row where nothing else is asked for.
const ROW: u64 = 1500;
/// Calls after which everything that is allocated once has been.
const WARM: u64 = 200;

struct Server {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Server {
    fn start() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
        command.args(["serve", "--tools", "shell,exec"]).env("RUST_LOG", "off");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut server = Self { child, input, output };
        server.say(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "load", "version": "1"}}}));
        server.hear();
        server.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        server
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.input, "{message}").expect("the server reads");
    }

    fn hear(&mut self) -> Value {
        let line = self.output.next().expect("the server is still running").expect("a line");
        serde_json::from_str(&line).expect("every line is JSON")
    }

    /// Ends the input and waits: the exit code.
    fn close(self) -> Option<i32> {
        let Self { mut child, input, output } = self;
        drop((input, output));
        child.wait().expect("ours").code()
    }
}

fn call(tool: &str, id: u64, command: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
           "params": {"name": tool, "arguments": {"command": command}}})
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_default()
}

#[test]
fn two_thousand_concurrent_calls_get_one_answer_each() {
    let server = Server::start();
    let Server { child, mut input, output } = server;
    let writer = std::thread::spawn(move || {
        for id in 1..=FLOOD {
            writeln!(input, "{}", call("bash_exec", id, &format!("sleep 0.05; echo {id}")))
                .expect("it reads");
        }
        input
    });
    let mut ran = 0;
    let mut busy = 0;
    let mut last_busy = 0;
    let mut seen = BTreeSet::new();
    let answers = output.map(|line| line.expect("a line"));
    for (place, line) in answers.take(2000).enumerate() {
        let answer: Value = serde_json::from_str(&line).expect("every line is JSON");
        let id = answer["id"].as_u64().expect("an id");
        assert!(seen.insert(id), "{id} was answered twice");
        if answer["result"]["isError"] == json!(true) {
            let text = text(&answer);
            let full = "calls run and 256 wait\nhint: call again when one has ended";
            assert!(text.starts_with("the queue is full: ") && text.ends_with(full), "{text}");
            (busy, last_busy) = (busy + 1, place);
        } else {
            assert_eq!(answer["result"]["structuredContent"]["stdout"], format!("{id}\n"));
            ran += 1;
        }
    }
    assert_eq!(seen.len(), 2000);
    assert!(ran >= MIN_TAKEN && busy > 1000, "{ran} ran, {busy} were refused");
    // At once: most of what was taken still waits when the last of the others is refused.
    assert!(last_busy < busy + ran / 2, "the last refusal came as answer {last_busy}");
    drop(writer.join().expect("all was written"));
    let mut child = child;
    assert_eq!(child.wait().expect("ours").code(), Some(0));
}

/// Resources of a server at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    /// Resident kilobytes of front end and supervisor.
    resident: [u64; 2],
    counted: Counted,
}

/// Counts that must be the same after any number of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Counted {
    /// Open descriptors of front end and supervisor, if this user may count them.
    descriptors: [Option<usize>; 2],
    /// Mounts that the supervisor sees.
    mounts: usize,
    /// Processes below the front end, and how many of them are zombies.
    processes: usize,
    zombies: usize,
    /// Namespaces that these processes are in.
    namespaces: usize,
    /// Control groups of cells.
    groups: usize,
}

/// Fields of `/proc/PID/stat` after the name: state, parent.
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

/// Processes below `root` with their states.
fn below(root: u32) -> BTreeMap<u32, char> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: BTreeMap<u32, (char, u32)> = pids.filter_map(|pid| Some((pid, stat(pid)?))).collect();
    let descends = |mut pid: u32| {
        while let Some((_, parent)) = all.get(&pid) {
            if *parent == root {
                return true;
            }
            pid = *parent;
        }
        false
    };
    all.iter().filter(|(pid, _)| descends(**pid)).map(|(pid, (state, _))| (*pid, *state)).collect()
}

fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

/// Counts the control groups next to that of a cell.
fn groups(cell: u32) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{cell}/cgroup")).unwrap_or_default();
    let path = text.lines().find_map(|line| match line.splitn(3, ':').collect::<Vec<_>>()[..] {
        [_, "memory", path] => Some(PathBuf::from(format!("/sys/fs/cgroup/memory{path}"))),
        ["0", "", path] if path.ends_with(char::is_numeric) => {
            Some(PathBuf::from(format!("/sys/fs/cgroup{path}")))
        }
        _ => None,
    });
    let siblings = path.as_deref().and_then(|path| std::fs::read_dir(path.parent()?).ok());
    let names = siblings.into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_string_lossy().starts_with("cell-")).count()
}

fn resources(front_end: u32) -> Held {
    let processes = below(front_end);
    let child =
        |pid: u32| processes.keys().copied().find(|one| stat(*one).is_some_and(|s| s.1 == pid));
    let supervisor = child(front_end).expect("a supervisor");
    let open = |pid| std::fs::read_dir(format!("/proc/{pid}/fd")).ok().map(Iterator::count);
    let names = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
    let spaces: BTreeSet<PathBuf> = processes
        .keys()
        .flat_map(|pid| names.map(|name| std::fs::read_link(format!("/proc/{pid}/ns/{name}"))))
        .flatten()
        .collect();
    let mounts = std::fs::read_to_string(format!("/proc/{supervisor}/mountinfo"));
    Held {
        resident: [resident(front_end), resident(supervisor)],
        counted: Counted {
            descriptors: [open(front_end), open(supervisor)],
            mounts: mounts.unwrap_or_default().lines().count(),
            processes: processes.len(),
            zombies: processes.values().filter(|state| **state == 'Z').count(),
            namespaces: spaces.len(),
            groups: child(supervisor).map_or(0, groups),
        },
    }
}

/// Returns the resources once the pool is full again; a pool that fills is not growth.
fn settled(front_end: u32, like: Option<&Held>) -> Held {
    let end = Instant::now() + soon(20);
    let mut before = resources(front_end);
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let now = resources(front_end);
        let as_it_was = like.is_none_or(|like| now.counted == like.counted);
        if (now.counted == before.counted && as_it_was) || Instant::now() > end {
            return now;
        }
        before = now;
    }
}

#[test]
fn many_calls_in_a_row_leave_nothing_behind() {
    let request = std::env::var("COFFERDAM_SOAK").ok();
    let row = request.as_ref().map_or(ROW, |count| count.parse().expect("a number of calls"));
    let mut server = Server::start();
    let front_end = server.child.id();
    let mut first = None;
    let started = Instant::now();
    let output = |calls: u64, held: &Held| {
        if request.is_some() {
            let Held { resident: [front, supervisor], counted } = held;
            println!(
                "{calls:>7} calls {:>7.1?}: {front} kB, {supervisor} kB; {counted:?}",
                started.elapsed()
            );
        }
    };
    for id in 1..=row {
        // Three in fresh cells, one in the shell that stays.
        let tool = if id % 4 == 0 { "bash" } else { "bash_exec" };
        server.say(&call(tool, id, "echo $((6*7)); ls / > /tmp/f"));
        let answer = server.hear();
        let printed = &answer["result"]["structuredContent"]["stdout"];
        assert_eq!((&answer["id"], printed), (&json!(id), &json!("42\n")), "{answer}");
        if id == WARM {
            first = Some(settled(front_end, None));
        }
        if id % (row / 10) == 0 {
            output(id, &settled(front_end, first.as_ref()));
        }
    }
    let first = first.expect("more calls than warm it up");
    let last = settled(front_end, Some(&first));
    output(row, &last);
    assert_eq!(last.counted, first.counted);
    assert_eq!(last.counted.zombies, 0);
    assert!(last.counted.mounts > 0 && last.counted.processes > 1, "{last:?}");
    let grown = |index: usize| last.resident[index].saturating_sub(first.resident[index]);
    assert!(grown(0) < 2048 && grown(1) < 512, "{first:?}\n{last:?}");
    assert_eq!(server.close(), Some(0));
}
