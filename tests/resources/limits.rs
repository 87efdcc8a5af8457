//! Limits: each is enforced at its value, and each that ends a call has a distinct outcome.

use std::time::Duration;

use crate::server::Server;
use crate::support::{
    Caller, Check, Claim, Failed, Finished, For, Need, claim, equal, gone, holds, patience, soon,
};
use serde_json::{Value, json};

const PYTHON: &[Need] = &[Need::Python];

pub const CLAIMS: &[Claim] = &[
    claim("time_ends_a_call_and_what_it_printed_is_kept", wall),
    claim("a_program_ignoring_term_is_killed", ignores_term),
    claim("a_program_may_tidy_up_within_the_grace", tidies_up),
    claim("daemons_end_with_the_time", daemons),
    claim("processes_end_at_their_figure", processes).needs(PYTHON),
    claim("threads_count_as_processes", threads).needs(PYTHON),
    claim("open_files_end_at_their_figure", open_files).needs(PYTHON),
    claim("open_files_of_many_processes_end_the_call", open_files_of_all).needs(PYTHON),
    claim("a_file_that_grows_too_large_ends_the_call", file_size).needs(PYTHON),
    claim("a_program_that_handles_sigxfsz_meets_efbig", file_size_handled).needs(PYTHON),
    claim("memory_that_is_touched_ends_the_call", memory).needs(PYTHON),
    claim("memory_of_many_processes_ends_the_call", shared_memory).needs(PYTHON),
    claim("rereading_its_own_pages_cannot_evade_the_limit", crawl)
        .needs(&[Need::Python, Need::MemoryCgroup])
        .only(For::Root),
    claim("a_large_program_may_start_children", children).needs(PYTHON),
    claim("processor_time_ends_the_call", cpu).needs(&[Need::Bc]),
    claim("output_past_its_cap_ends_the_call", output),
    claim("three_hundred_megabytes_are_carried_whole", flood)
        .needs(&[Need::Python, Need::FullSpeed]),
    claim("a_crash_leaves_no_core", core),
    claim("locked_memory_and_queues_end_at_their_figures", locked).needs(PYTHON),
    claim("limits_cannot_be_raised_from_inside", raised).needs(PYTHON),
    claim("a_fork_bomb_ends_while_another_call_answers", fork_bomb),
    claim("a_limit_may_only_be_lowered", only_lower),
    claim("programs_give_way_to_what_holds_them", nice),
    claim("less_memory_than_a_cell_can_start_with_is_refused", too_small),
];

fn text<'a>(report: &'a Value, field: &str) -> &'a str {
    report.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the outcome and the limit of a call that ended by one.
fn ended(report: &Value) -> (&str, &str) {
    (text(report, "outcome"), text(report, "limit"))
}

fn wall(caller: &Caller) -> Check {
    let output = caller
        .run(&["--timeout", "1500ms"], &["bash", "-c", "echo before; sleep 60; echo after"])?;
    equal("code and output", (output.code, output.stdout.as_str()), (124, "before\n"))?;
    let message = &output.stderr;
    holds("the message", message, message.starts_with("cofferdam: timed out after "))?;
    let took = output.took;
    holds("neither early nor late", took, took >= Duration::from_millis(1500) && took < soon(20))?;
    let output = caller.json(&["--timeout", "1500ms"], &["bash", "-c", "echo before; sleep 60"])?;
    equal("as JSON", (text(&output, "outcome"), text(&output, "stdout")), ("timeout", "before\n"))?;
    let output = caller.run(&["--timeout", "20s"], &["sleep", "1.6"])?;
    equal("the same within its time", output.code, 0)
}

fn ignores_term(caller: &Caller) -> Check {
    let script = "trap '' TERM HUP INT QUIT; echo ready; while :; do sleep 0.1; done";
    let output = caller.run(&["--timeout", "1500ms"], &["bash", "-c", script])?;
    equal("killed", (output.code, output.trimmed()), (124, "ready"))?;
    holds(
        "after a grace of one second",
        output.took,
        output.took >= Duration::from_millis(2400) && output.took < soon(20),
    )
}

fn tidies_up(caller: &Caller) -> Check {
    let script = "trap 'echo tidied; exit 3' TERM; sleep 60 & wait";
    let output = caller.run(&["--timeout", "1500ms"], &["bash", "-c", script])?;
    equal("its last words", (output.code, output.trimmed()), (124, "tidied"))?;
    holds("no longer than it needs", output.took, output.took < soon(4))
}

/// Returns a number of seconds that no other test sleeps, by which this test's processes are found.
fn sentinel(caller: &Caller, kind: u32) -> String {
    format!("{}{}.{kind}", 7_000_000 + std::process::id(), caller.uid())
}

fn daemons(caller: &Caller) -> Check {
    let seconds = sentinel(caller, 1);
    let script = format!(
        "(setsid sleep {seconds} &) ; (trap '' TERM HUP; setsid setsid sleep {seconds} &); sleep 60"
    );
    let output = caller.run(&["--timeout", "1s"], &["bash", "-c", &script])?;
    equal("the call", output.code, 124)?;
    equal("from outside", gone(&seconds, patience()), Vec::<u32>::new())
}

const FORKS: &str = "import os, errno, signal
n = 0
while True:
    try: pid = os.fork()
    except OSError as error: print(n, errno.errorcode[error.errno], flush=True); break
    if pid == 0: signal.pause()
    n += 1
";

fn processes(caller: &Caller) -> Check {
    // The figure counts the program itself, and not init.
    let output = caller.run(&["--processes", "20"], &["/usr/bin/python3", "-c", FORKS])?;
    equal("--processes 20", output.trimmed(), "19 EAGAIN")?;
    equal("the profile's", caller.python(FORKS)?.trimmed(), "255 EAGAIN")?;
    // Building a cell takes more.
    let config = caller.directory("config")?.display().to_string();
    caller.directory("config/sandbox-profiles")?;
    let alone = "schema = 1\nname = \"alone\"\nextends = \"bash\"\ndescription = \"1\"\nlimits = { processes = 1 }\n";
    caller.file("config/sandbox-profiles/alone.toml", alone)?;
    let own = ["--config", &config, "--profile", "alone"];
    let output = caller.run(&own, &["/usr/bin/python3", "-c", FORKS])?;
    equal("a profile of one process", output.trimmed(), "0 EAGAIN")
}

fn threads(caller: &Caller) -> Check {
    let script = "import threading, time
n = 0
while True:
    try: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    except RuntimeError as error: print(n, error, flush=True); break
    n += 1
import os; os._exit(0)";
    let output = caller.run(&["--processes", "20"], &["/usr/bin/python3", "-c", script])?;
    equal("--processes 20", output.trimmed(), "19 can't start new thread")
}

fn open_files(caller: &Caller) -> Check {
    let script = "import os, errno
n = 0
try:
    while True: os.open('/dev/null', 0); n += 1
except OSError as error: print(n + 3, errno.errorcode[error.errno])";
    equal("with the three", caller.python(script)?.trimmed(), "1024 EMFILE")
}

/// Twelve processes with 900 files each, whose cell may have 6,000; and with 400 each. A bound of the machine's that no number
/// of cells divides into so few ends neither call.
fn open_files_of_all(caller: &Caller) -> Check {
    const SHARE: u64 = 6000;
    let file_max = std::fs::read_to_string("/proc/sys/fs/file-max")?;
    let machine: u64 = file_max.trim().parse().unwrap_or(u64::MAX);
    let cells = (machine / 4 / SHARE).clamp(1, 65_535);
    let is_reached = machine / 4 / cells < 10_000;
    let script = "import ctypes, os, signal, sys, threading
files, kind = int(sys.argv[1]), sys.argv[2]
def hold():
    kept = [os.open('/dev/null', 0) for _ in range(files)]
    os.write(1, b'x'); signal.pause() if kind == 'processes' else threading.Event().wait()
def own_table():
    if ctypes.CDLL(None).unshare(0x400) == 0: hold()
for _ in range(12):
    if kind == 'threads': threading.Thread(target=own_table, daemon=True).start()
    elif os.fork() == 0: hold()
signal.pause()
";
    let mut server = Server::start(caller, &format!("[limits]\ncells = {cells}\n"))?;
    let by_limit = if is_reached { ("limit", "open_files") } else { ("timeout", "") };
    for (files, kind, wanted) in [
        (900, "processes", by_limit),
        (900, "threads", by_limit),
        (400, "processes", ("timeout", "")),
    ] {
        let command = format!("exec /usr/bin/python3 -c \"{script}\" {files} {kind}");
        let answer = server.tool("bash", &json!({ "command": command, "timeout": 4 }))?;
        let output = answer.get("structuredContent").ok_or("no fields")?;
        equal(&format!("{files} files in {kind}"), ended(output), wanted)?;
        // Where the limit ends the call, the last holders may not have written yet.
        if wanted == ("timeout", "") {
            equal("all were made", text(output, "stdout"), "xxxxxxxxxxxx")?;
        }
    }
    Ok(())
}

/// Sparse, so that the size and not the space of the workspace is what is met.
const GROW: &str = "import os, errno
fd = os.open('/workspace/f', os.O_CREAT | os.O_WRONLY)
os.ftruncate(fd, 512 << 20)
os.lseek(fd, 0, 2)
print('before', flush=True)
";

fn file_size(caller: &Caller) -> Check {
    // Python ignores the signal; bash's children do not.
    let script = format!(
        "{GROW}import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL); os.write(fd, b'x'); print('after')"
    );
    let report = caller.json(&[], &["/usr/bin/python3", "-c", &script])?;
    equal(
        "ended",
        (ended(&report), text(&report, "stdout")),
        (("limit", "file_size"), "before\n"),
    )?;
    let report = caller.run(&[], &["/usr/bin/python3", "-c", &script])?;
    equal(
        "code",
        (report.code, report.stderr.as_str()),
        (123, "cofferdam: limit reached: file size\n"),
    )
}

fn file_size_handled(caller: &Caller) -> Check {
    let script = format!(
        "{GROW}
try: os.write(fd, b'x')
except OSError as error: print(errno.errorcode[error.errno])
os.lseek(fd, -1, 2); print(os.write(fd, b'xy'))"
    );
    let output = caller.python(&script)?;
    equal("ignored", (output.code, output.trimmed()), (0, "before\nEFBIG\n1"))
}

fn memory(caller: &Caller) -> Check {
    let touch = |mebibytes: u32| format!("x = bytearray({mebibytes} << 20); print(len(x) >> 20)");
    let fits = touch(40);
    let report = caller.json(&["--memory", "128M"], &["/usr/bin/python3", "-c", &fits])?;
    equal("what fits", (text(&report, "outcome"), text(&report, "stdout")), ("exited", "40\n"))?;
    // In pieces: a single request past RLIMIT_DATA fails, and the program may continue.
    let grow = "l = []
while True: l.append(bytes(1 << 20) + b'x')";
    let report = caller
        .json(&["--memory", "128M", "--timeout", "30s"], &["/usr/bin/python3", "-c", grow])?;
    let best_effort = report.pointer("/receipt/configured/memory") == Some(&json!("best-effort"));
    if best_effort && text(&report, "outcome") == "exited" {
        // RLIMIT_DATA came first: the program met ENOMEM and ended by itself.
        let stderr = text(&report, "stderr");
        return holds("MemoryError", stderr, stderr.contains("MemoryError"));
    }
    equal("ended", ended(&report), ("limit", "memory"))
}

/// Memory no single process has much of: only a sum finds it.
fn shared_memory(caller: &Caller) -> Check {
    let script = "import os, time
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(40 << 20); time.sleep(20); os._exit(0)
time.sleep(20); print('after')";
    let options = ["--memory", "128M", "--timeout", "30s"];
    let report = caller.json(&options, &["/usr/bin/python3", "-c", script])?;
    if ended(&report) != ("limit", "memory") && text(&report, "stdout") == "after\n" {
        // A cgroup may kill single children while the program continues: the cell stayed within its
        // memory all the same.
        let peak = report.pointer("/usage/peak_memory_bytes").and_then(Value::as_u64);
        return holds("within the limit", peak, peak.is_some_and(|peak| peak <= 128 << 20));
    }
    equal("ended", ended(&report), ("limit", "memory"))
}

/// bc's profile has 30 s; a profile of the operator with less shows the same sooner.
fn cpu(caller: &Caller) -> Check {
    let config = caller.directory("config")?;
    let profiles = caller.directory("config/sandbox-profiles")?;
    caller.file(
        "config/sandbox-profiles/brief.toml",
        "schema = 1\nname = \"brief\"\nextends = \"bash\"\ndescription = \"two seconds\"\n\n[limits]\ncpu = \"2s\"\n",
    )?;
    holds("written", &profiles, profiles.exists())?;
    let config = config.display().to_string();
    let mut command = caller.cofferdam(&[
        "--config",
        &config,
        "run",
        "--json",
        "--profile",
        "brief",
        "--timeout",
        "60s",
        "--",
        "bash",
        "-c",
    ]);
    command.arg("echo before; while :; do :; done");
    let output = Finished::run(command, patience())?;
    let parsed: Value = serde_json::from_str(&output.stdout).map_err(|_| format!("{output:?}"))?;
    equal("ended", (ended(&parsed), text(&parsed, "stdout")), (("limit", "cpu"), "before\n"))?;
    // Not by the time on the wall: two seconds of a processor may take many on a busy machine.
    equal("code", output.code, 123)
}

fn output(caller: &Caller) -> Check {
    let argv = ["bash", "-c", "head -c 5000 /dev/zero | tr '\\0' x; sleep 60"];
    let printed = caller.run(&["--output", "4K"], &argv)?;
    equal("code", (printed.code, printed.stdout.len()), (123, 4096))?;
    equal("message", printed.stderr.as_str(), "cofferdam: limit reached: output\n")?;
    holds("at once", printed.took, printed.took < soon(5))?;
    let printed = caller.run(&["--output", "8K"], &["bash", "-c", "head -c 5000 /dev/zero"])?;
    equal("below it", (printed.code, printed.stdout.len()), (0, 5000))?;
    let both = ["bash", "-c", "while :; do echo out; echo err >&2; done"];
    let printed = caller.run(&["--output", "1M"], &both)?;
    holds(
        "both streams count together",
        printed.stdout.len() + printed.stderr.len(),
        printed.code == 123 && printed.stdout.len() + printed.stderr.len() < (1 << 20) + 100,
    )
}

fn flood(caller: &Caller) -> Check {
    let script = "import os, threading
def pour(fd):
    block = bytes(1 << 20)
    for _ in range(150):
        rest = memoryview(block)
        while rest: rest = rest[os.write(fd, rest):]
threads = [threading.Thread(target=pour, args=(fd,)) for fd in (1, 2)]
[t.start() for t in threads]; [t.join() for t in threads]";
    let binary = caller.binary().display().to_string();
    caller.file("flood.py", script)?;
    let line = format!(
        "{binary} run --ro flood.py:/mnt/f.py -- /usr/bin/python3 /mnt/f.py 2> >(wc -c >&2) | wc -c; exit ${{PIPESTATUS[0]}}"
    );
    let output = caller.bash_outside(&line)?;
    equal(
        "bytes counted outside",
        (output.code, output.trimmed(), output.stderr.trim()),
        (0, "157286400", "157286400"),
    )?;
    let line = format!(
        "{binary} run --output 256M --ro flood.py:/mnt/f.py -- /usr/bin/python3 /mnt/f.py 2>&1 | wc -c; exit ${{PIPESTATUS[0]}}"
    );
    let output = caller.bash_outside(&line)?;
    let bytes: u64 = output.trimmed().parse()?;
    equal("ended at 256 MiB", output.code, 123)?;
    holds("and no more was carried", bytes, (268_435_456..268_435_600).contains(&bytes))
}

fn core(caller: &Caller) -> Check {
    let granted = caller.directory("granted")?;
    let ask = granted.display().to_string();
    let output = caller
        .run(&["--rw", &ask], &["bash", "-c", "ulimit -Hc; ulimit -c unlimited; kill -SEGV $$"])?;
    equal("the limit and the end", (output.code, output.trimmed()), (139, "0"))?;
    equal("from outside", std::fs::read_dir(&granted)?.count(), 0)
}

fn locked(caller: &Caller) -> Check {
    let script = format!(
        "{}
import resource
def hard(name): return resource.getrlimit(name)
print(hard(resource.RLIMIT_MEMLOCK), hard(resource.RLIMIT_MSGQUEUE), hard(resource.RLIMIT_SIGPENDING), hard(resource.RLIMIT_RTPRIO), hard(resource.RLIMIT_NICE))
import mmap
m = mmap.mmap(-1, 1 << 20)
a = ctypes.addressof(ctypes.c_char.from_buffer(m))
print(call(149, a, 1 << 12), call(149, a, 1 << 20), call(151, 3))",
        crate::support::CALLS
    );
    let output = caller.python(&script)?;
    let expected = "(65536, 65536) (0, 0) (1024, 1024) (0, 0) (0, 0)\n0 ENOMEM ENOMEM";
    equal("figures; mlock of 4 KiB, of 1 MiB, mlockall", output.trimmed(), expected)
}

fn raised(caller: &Caller) -> Check {
    let script = "import resource
def up(name):
    try: resource.setrlimit(name, (resource.RLIM_INFINITY,) * 2); return 'raised'
    except (ValueError, OSError) as error: return 'refused'
print([up(n) for n in (resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU, resource.RLIMIT_MEMLOCK)])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); print(resource.getrlimit(resource.RLIMIT_NOFILE))";
    let list = ["'refused'"; 5].join(", ");
    equal("up and down", caller.python(script)?.trimmed(), format!("[{list}]\n(64, 64)"))
}

/// Pages of a file that is mapped, more than there is room for, in any order: as a program's code is read when the rest of
/// the memory is full.
const CRAWL: &str = r#"
import mmap, os, random
with open("data", "wb") as f:
    for _ in range(48): f.write(os.urandom(1 << 20))
    f.flush(); os.fsync(f.fileno())
own = bytearray(53 << 20)
for at in range(0, len(own), 4096): own[at] = 1
with open("data", "rb") as f:
    m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); m.madvise(mmap.MADV_RANDOM)
    print("began", flush=True)
    while True: m[random.randrange(len(m) // 4096) * 4096]
"#;

fn crawl(caller: &Caller) -> Check {
    // On a disk: pages of a tmpfs are never taken away.
    let directory = tempfile::tempdir_in("/var/tmp")?;
    caller.own(directory.path())?;
    let path = directory.path().display().to_string();
    // An emulated machine takes minutes to come near the limit.
    let options = ["--memory", "64M", "--timeout", "600s", "--rw", &path];
    let report = caller.json(&options, &["python3", "-c", CRAWL])?;
    equal("began", text(&report, "stdout"), "began\n")?;
    equal("ended", ended(&report), ("limit", "memory"))?;
    // Not by the kernel, which ends a cell at once that it has no page for.
    let took = report.get("duration_ms").and_then(Value::as_u64);
    holds("after a while", took, took.is_some_and(|took| took > 10_000))
}

fn fork_bomb(caller: &Caller) -> Check {
    let seconds = sentinel(caller, 2);
    let script = format!("sleep {seconds} & b() {{ b | b & b; }}; b; wait");
    let options = ["--processes", "64", "--timeout", "3s"];
    let bomb = caller.live(&options, &format!("exec 2>/dev/null; {script}"))?;
    let other = caller.bash("echo answered")?;
    equal("a second call", (other.code, other.trimmed()), (0, "answered"))?;
    holds("soon", other.took, other.took < soon(10))?;
    let output = bomb.finish(patience())?;
    holds("124, or its own end", output.code, output.code == 124 || output.code < 123)?;
    equal("from outside", gone(&seconds, patience()), Vec::<u32>::new())
}

fn only_lower(caller: &Caller) -> Check {
    let report = caller.json(&["--timeout", "2h"], &["bash", "-c", "ulimit -u"])?;
    equal("clamped to an hour at most", report.get("clamped"), Some(&json!(true)))?;
    for (option, more, least, name) in
        [("--memory", "9G", "64M", "1G"), ("--processes", "9999", "9", "256")]
    {
        let clamped = |value| {
            Ok::<_, crate::support::Failed>(
                caller.json(&[option, value], &["true"])?.get("clamped").cloned(),
            )
        };
        equal(option, (clamped(more)?, clamped(least)?), (Some(json!(true)), Some(json!(false))))?;
        let report = caller.run(&[option, more], &["true"])?;
        let expected =
            format!("cofferdam: {option} is lowered to {name}, the most the profile allows\n");
        equal(option, report.stderr.as_str(), expected.as_str())?;
    }
    let seconds = report.get("timeout_s").and_then(Value::as_f64).unwrap_or_default();
    holds("reported", seconds, seconds <= 3600.0)?;
    let report = caller.json(&["--processes", "100000"], &["bash", "-c", "ulimit -u"])?;
    equal("the profile's, and init", text(&report, "stdout"), "257\n")
}

/// Init's watch and the supervisor must have their turn next to a program that spins.
fn nice(caller: &Caller) -> Check {
    let own: i32 = caller.bash_outside("nice")?.trimmed().parse()?;
    let live = caller.live(&[], "sleep 60")?;
    let of = |pid: u32| -> Result<i32, crate::support::Failed> {
        let stat = String::from_utf8_lossy(&crate::support::proc_file(pid, "stat")?).into_owned();
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.to_owned());
        Ok(fields.and_then(|f| f.split(' ').nth(16)?.parse().ok()).ok_or("no nice value")?)
    };
    let seen = [of(live.supervisor()?)?, of(live.init()?)?, of(live.payload()?)?];
    equal("supervisor, init, program", seen, [own, own, (own + 5).min(19)])?;
    let output = caller.bash("nice; nice -n -1 nice")?;
    equal("nothing takes it back", output.trimmed(), format!("{0}\n{0}", (own + 5).min(19)))?;
    holds("for want of permission", &output.stderr, output.stderr.contains("Permission denied"))
}

/// Version 1 reports it by an event, which comes before there is a job.
/// Stays above half of the limit: a child shares its parent's memory until it executes or ends, and is measured then.
const STARTS_CHILDREN: &str = "
import os, subprocess, sys, time
held = bytearray(140 << 20)
for page in range(0, len(held), 4096): held[page] = 1
end, made = time.time() + 2, 0
while time.time() < end or made < 100:
    if sys.argv[1] == 'fork':
        child = os.fork()
        if child == 0: os._exit(0)
        os.waitpid(child, 0)
    else:
        subprocess.run(['/bin/true'], check=True)
    made += 1
print('made enough')";

fn children(caller: &Caller) -> Check {
    for way in ["fork", "vfork"] {
        let argv = ["/usr/bin/python3", "-c", STARTS_CHILDREN, way];
        let output = caller.run(&["--memory", "256M"], &argv)?;
        equal(way, (output.code, output.stdout.as_str()), (0, "made enough\n"))?;
    }
    Ok(())
}

fn too_small(caller: &Caller) -> Check {
    let config = caller.directory("config")?;
    std::fs::create_dir(config.join("sandbox-profiles"))?;
    let run = |memory: &str| -> Result<Finished, Failed> {
        let profile = format!(
            "schema = 1\nname = \"tiny\"\nextends = \"bash\"\ndescription = \"too small\"\n\
             [limits]\nmemory = \"{memory}\"\nworkspace = \"1M\"\ntmp = \"1M\"\nshm = \"1M\"\n"
        );
        std::fs::write(config.join("sandbox-profiles/tiny.toml"), profile)?;
        let config = config.display().to_string();
        let words = ["--config", &config, "run", "--profile", "tiny", "--", "sh", "-c", "echo ran"];
        Finished::run(caller.cofferdam(&words), patience())
    };
    let least = run("8M")?;
    equal("the least that can be asked for", (least.code, least.stdout.as_str()), (0, "ran\n"))?;
    let output = run("8191K")?;
    equal("less", output.code, 125)?;
    let expected = "`memory` of 8191K is less than a cell can start with\n\
        hint: 8M is the least; most programs need more\n";
    holds("the reason", &output.stderr, output.stderr.ends_with(expected))
}
