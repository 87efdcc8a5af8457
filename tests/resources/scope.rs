//! A systemd scope with delegation: the kernel limits an ordinary user's cells, and nothing of the scope remains.
//!
//! Needs a service manager of the tests' user, as `tests/systemd` boots one in a virtual machine.
//! The claims are checked in the files of the groups, and with systemd itself.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    CGROUPS, Caller, Check, Claim, Failed, Finished, For, Live, Need, claim, equal, holds,
    patience, text,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const HERE: &[Need] = &[Need::UserManager, Need::RootLooks];
const PYTHON: &[Need] = &[Need::UserManager, Need::RootLooks, Need::Python];

pub const CLAIMS: &[Claim] = &[
    claim("doctor_reports_the_scopes_memory_limit", doctor).only(For::User).needs(HERE),
    claim("a_scope_is_asked_for_by_need_and_by_configuration", scope_options)
        .only(For::User)
        .needs(HERE),
    claim("the_scope_holds_the_supervisor_and_its_cells", groups).only(For::User).needs(HERE),
    claim("buffers_of_loopback_connections_end_at_the_limit", tcp).only(For::User).needs(PYTHON),
    claim("pairs_of_unix_sockets_end_at_the_limit", pairs).only(For::User).needs(PYTHON),
    claim("mappings_end_at_the_limit", mappings).only(For::User).needs(PYTHON),
    claim("in_a_delegated_group_nothing_is_asked", delegated).only(For::User).needs(HERE),
    claim("limits_of_the_unit_go_with_its_cells", narrowed).only(For::User).needs(HERE),
    claim("a_server_ends_with_the_parent_that_started_it", parent).only(For::User).needs(PYTHON),
    claim("a_server_ends_with_its_unit", unit).only(For::User).needs(PYTHON),
    claim("stopping_the_scope_ends_the_call", stopped).only(For::User).needs(HERE),
    claim("a_killed_front_end_leaves_nothing", killed).only(For::User).needs(HERE),
    claim("a_start_that_fails_leaves_nothing", failed).only(For::User).needs(HERE),
    claim("the_price_of_a_scope", price).only(For::User).needs(HERE),
];

/// Runs a program of systemd's for the user's own manager.
fn systemd(caller: &Caller, program: &str, arguments: &[&str]) -> Command {
    let mut command = caller.outside(program);
    command.env("XDG_RUNTIME_DIR", format!("/run/user/{}", caller.uid()));
    command.arg("--user").args(arguments);
    command
}

/// Scopes of cofferdam's that the manager knows.
fn units(caller: &Caller) -> Result<Vec<String>, Failed> {
    let arguments = ["list-units", "--all", "--plain", "--no-legend", "cofferdam-*.scope"];
    let output = Finished::run(systemd(caller, "systemctl", &arguments), patience())?;
    equal("systemctl", (output.code, output.stderr.as_str()), (0, ""))?;
    let names = output.stdout.lines().filter_map(|line| line.split_whitespace().next());
    Ok(names.map(str::to_owned).collect())
}

/// Groups of the user's with such a name.
fn directories(caller: &Caller) -> Vec<PathBuf> {
    let uid = caller.uid();
    let top = Path::new(CGROUPS).join(format!("user.slice/user-{uid}.slice/user@{uid}.service"));
    let mut found = Vec::new();
    let mut left = vec![top];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.starts_with("cofferdam-") && name.ends_with(".scope") {
                    found.push(entry.path());
                } else {
                    left.push(entry.path());
                }
            }
        }
    }
    found
}

/// Checks that no unit and no group of `ours` is left: other tests run at the same time.
fn nothing_left(caller: &Caller, ours: &[PathBuf]) -> Check {
    let end = Instant::now() + patience();
    let is_ours = |name: &str| {
        ours.iter().any(|path| path.file_name().is_some_and(|own| own.to_string_lossy() == name))
    };
    loop {
        let units: Vec<String> = units(caller)?.into_iter().filter(|name| is_ours(name)).collect();
        let groups: Vec<&PathBuf> = ours.iter().filter(|path| path.exists()).collect();
        if units.is_empty() && groups.is_empty() {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("left: {units:?} {groups:?}").into());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Returns the group of a process (cgroup v2).
fn group_of(pid: u32) -> Result<PathBuf, Failed> {
    let table = String::from_utf8(crate::support::proc_file(pid, "cgroup")?)?;
    let own = table.lines().find_map(|line| line.strip_prefix("0::/"));
    own.map(|path| Path::new(CGROUPS).join(path)).ok_or_else(|| table.clone().into())
}

/// Returns the scope that a live call's supervisor is in.
fn scope_of(live: &Live) -> Result<PathBuf, Failed> {
    scope_of_supervisor(live.supervisor()?)
}

fn scope_of_supervisor(supervisor: u32) -> Result<PathBuf, Failed> {
    let leaf = group_of(supervisor)?;
    equal("its leaf", leaf.file_name().and_then(|name| name.to_str()), Some("supervisor"))?;
    let scope = leaf.parent().ok_or("no parent")?.to_owned();
    let name =
        scope.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    holds("a scope of ours", &name, name.starts_with("cofferdam-") && name.ends_with(".scope"))?;
    Ok(scope)
}

fn read(group: &Path, file: &str) -> Result<String, Failed> {
    let path = group.join(file);
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(text.trim().to_owned())
}

fn memory(report: &Value) -> Option<&str> {
    report.pointer("/receipt/configured/memory").and_then(Value::as_str)
}

const HELD: Option<&str> = Some("cgroup v2");
const WATCHED: Option<&str> = Some("best-effort");

fn doctor(caller: &Caller) -> Check {
    let output = Finished::run(caller.cofferdam(&["doctor"]), patience())?;
    let line = output.stdout.lines().find(|line| line.contains("memory limit")).unwrap_or_default();
    let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let begin = "ok memory limit cells are held by cgroup v2: in a scope of systemd, made in ";
    println!("{words}");
    holds("doctor", &output, words.starts_with(begin))?;
    equal("as run says", memory(&caller.json(&["--memory", "64M"], &["true"])?), HELD)
}

/// Writes a configuration with this rule, and returns its options.
fn configured(caller: &Caller, name: &str, rule: &str) -> Result<String, Failed> {
    let directory = caller.directory(name)?;
    let text = format!("schema = 1\n[limits]\nscope = \"{rule}\"\n");
    caller.file(&format!("{name}/cofferdam.toml"), &text)?;
    Ok(directory.display().to_string())
}

fn scope_options(caller: &Caller) -> Check {
    let run = |options: &[&str]| caller.json(options, &["true"]);
    equal("without a need", memory(&run(&[])?), WATCHED)?;
    equal("with --memory", memory(&run(&["--memory", "64M"])?), HELD)?;
    let always = configured(caller, "always", "always")?;
    let off = configured(caller, "off", "off")?;
    let with = |directory: &str, options: &[&str]| -> Result<Value, Failed> {
        let mut command = caller.cofferdam(&["--config", directory, "run", "--json"]);
        command.args(options).args(["--", "true"]);
        let output = Finished::run(command, patience())?;
        serde_json::from_str(&output.stdout).map_err(|_| format!("no JSON: {output:?}").into())
    };
    equal("always", memory(&with(&always, &[])?), HELD)?;
    equal("off", memory(&with(&off, &["--memory", "64M"])?), WATCHED)?;
    caller.directory("always/sandbox-profiles")?;
    let requires = "schema = 1\nname = \"own\"\nextends = \"bash\"\ndescription = \"of this test\"\n\n\
         [requires]\nmemory_cgroup = true\n";
    caller.file("always/sandbox-profiles/own.toml", requires)?;
    caller.file("always/cofferdam.toml", "schema = 1\n")?;
    equal("required", memory(&with(&always, &["--profile", "own"])?), HELD)
}

fn groups(caller: &Caller) -> Check {
    let live = caller.live(&["--memory", "128M", "--processes", "20"], "sleep 60")?;
    let scope = scope_of(&live)?;
    let cell = group_of(live.payload()?)?;
    equal("below the scope", cell.parent(), Some(scope.as_path()))?;
    let names = ["memory.max", "memory.swap.max", "memory.oom.group", "pids.max"];
    let found = names.iter().map(|name| read(&cell, name)).collect::<Result<Vec<_>, _>>()?;
    equal("limits", found, ["134217728", "0", "1", "21"])?;
    let front_end = group_of(live.pid())?;
    holds("the front end is where it was", &front_end, !front_end.starts_with(&scope))?;
    equal("as the test", front_end, group_of(std::process::id())?)?;
    let unit = scope.file_name().ok_or("no name")?.to_string_lossy().into_owned();
    let arguments = ["show", &unit, "-p", "Delegate", "-p", "KillSignal", "-p", "CollectMode"];
    let output = Finished::run(systemd(caller, "systemctl", &arguments), patience())?;
    let mut shown: Vec<&str> = output.stdout.lines().collect();
    shown.sort_unstable();
    equal("unit", shown, ["CollectMode=inactive-or-failed", "Delegate=yes", "KillSignal=9"])?;
    drop(live);
    nothing_left(caller, &[scope])
}

/// Returns the result of an attack: its outcome, its output, and the peak memory of its cell.
fn attacked(caller: &Caller, script: &str) -> Result<(String, u64, u64), Failed> {
    let options = ["--memory", "64M", "--timeout", "170s", "--processes", "200"];
    let report = caller.json(&options, &["/usr/bin/python3", "-c", script])?;
    equal("held", memory(&report), HELD)?;
    let ended = format!("{} {}", text(&report, "outcome"), text(&report, "limit"));
    let peak = report.pointer("/usage/peak_memory_bytes").and_then(Value::as_u64);
    let peak = peak.ok_or("the report has no peak")?;
    let last = text(&report, "stdout").lines().last().and_then(|line| line.parse().ok());
    println!("{ended}: {last:?} bytes queued, {peak} bytes at most\n{}", text(&report, "stderr"));
    Ok((ended, last.unwrap_or_default(), peak))
}

const LIMIT: u64 = 64 << 20;

/// Buffers count in the cell's group, and no process maps them: sending stops, or the cell ends.
fn tcp(caller: &Caller) -> Check {
    let script = "import socket
server = socket.socket(); server.bind(('127.0.0.1', 0)); server.listen(400)
kept, sent, chunk = [], 0, bytes(1 << 16)
for _ in range(150):
    one = socket.socket(); one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
    one.connect(server.getsockname()); other, _ = server.accept()
    one.setblocking(False); kept += [one, other]
    try:
        while True: sent += one.send(chunk)
    except BlockingIOError: pass
    print(sent, flush=True)";
    let (ended, sent, peak) = attacked(caller, script)?;
    holds("it got that far", (&ended, sent), sent > 8 << 20)?;
    holds("no more than the limit is queued", (&ended, sent, peak), sent <= 3 * LIMIT)?;
    // The kernel may exceed the limit by a segment under way.
    holds("no more than the limit is held", (ended, sent, peak), peak <= LIMIT + (8 << 20))
}

fn pairs(caller: &Caller) -> Check {
    let script = "import socket
kept, sent, chunk = [], 0, bytes(1 << 16)
for _ in range(2000):
    one, other = socket.socketpair(); one.setblocking(False); kept += [one, other]
    try:
        while True: sent += one.send(chunk)
    except BlockingIOError: pass
    print(sent, flush=True)";
    let (ended, sent, peak) = attacked(caller, script)?;
    equal("the cell is ended", ended.as_str(), "limit memory")?;
    holds("at its limit", (sent, peak), sent > 8 << 20 && sent <= LIMIT && peak <= LIMIT)
}

fn mappings(caller: &Caller) -> Check {
    let script = "import mmap, os, time
for child in range(60):
    if os.fork() == 0:
        kept = []
        try:
            while len(kept) < 60000:
                kept.append(mmap.mmap(-1, 4096, prot=mmap.PROT_READ if len(kept) % 2 else mmap.PROT_WRITE))
        except OSError: pass
        time.sleep(300)
time.sleep(160)";
    let (ended, _, peak) = attacked(caller, script)?;
    equal("the cell is ended", ended.as_str(), "limit memory")?;
    holds("at its limit", peak, peak > LIMIT / 2 && peak <= LIMIT)
}

/// Runs a command in a unit of the user's own, to its end.
fn in_unit(caller: &Caller, properties: &[&str], argv: &[&str]) -> Command {
    let mut command = systemd(caller, "systemd-run", &["--quiet"]);
    for property in properties {
        command.args(["-p", property]);
    }
    command.args(["--wait", "--pipe", "--collect", "--"]).args(argv);
    command
}

fn delegated(caller: &Caller) -> Check {
    let binary = caller.binary().display().to_string();
    let mut command = systemd(caller, "systemd-run", &["--quiet", "--scope", "-p", "Delegate=yes"]);
    command.args([
        "--",
        &binary,
        "run",
        "--memory",
        "64M",
        "--",
        "bash",
        "-c",
        "echo ready; sleep 60",
    ]);
    let live = Live::start(command)?;
    let front_end = group_of(live.pid())?;
    let supervisor = group_of(live.supervisor()?)?;
    equal("one group", &supervisor, &front_end)?;
    let cell = group_of(live.payload()?)?;
    let name = cell.display().to_string();
    holds(
        "the cell is in the delegated scope",
        &name,
        name.contains("/run-") && !name.contains("/cofferdam-"),
    )
}

fn narrowed(caller: &Caller) -> Check {
    // With a shell in the same unit, as an agent has: alone in its unit cofferdam would take the unit's own group.
    let binary = caller.binary().display().to_string();
    let script = format!("{binary} run --memory 64M -- bash -c 'echo ready; sleep 60'; true");
    let properties = ["MemoryMax=300M", "TasksMax=90", "CPUQuota=150%"];
    let live = Live::start(in_unit(caller, &properties, &["bash", "-c", &script]))?;
    let ours = directories(caller);
    let limits = |group: &PathBuf| {
        let files = ["memory.max", "pids.max", "cpu.max"];
        files.map(|file| read(group, file).unwrap_or_default())
    };
    let found: Vec<_> = ours.iter().map(limits).collect();
    let expected = ["314572800", "90", "150000 100000"].map(str::to_owned);
    holds("a scope with the limits of the unit", &found, found.contains(&expected))?;
    drop(live);
    Ok(())
}

/// A parent that starts a server and a call of it, says the server's pid, and stays.
const PARENT: &str = "import json, subprocess, sys, time
server = subprocess.Popen([sys.argv[1], 'serve'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def say(**message):
    server.stdin.write(json.dumps({'jsonrpc': '2.0', **message}) + chr(10)); server.stdin.flush()
say(id=1, method='initialize', params={'protocolVersion': '2025-11-25', 'capabilities': {},
    'clientInfo': {'name': 'test', 'version': '1'}})
server.stdout.readline()
say(method='notifications/initialized')
time.sleep(float(sys.argv[2]))
say(id=2, method='tools/call', params={'name': 'bash', 'arguments': {'command': 'echo called'}})
server.stdout.readline()
say(id=3, method='tools/call', params={'name': 'bash', 'arguments': {'command': 'sleep 500'}})
time.sleep(4)
print('ready', flush=True)
print(server.pid, flush=True)
time.sleep(500)";

fn children_gone(pids: &[u32]) -> Check {
    let end = Instant::now() + patience();
    loop {
        let alive = |pid: &&u32| {
            crate::support::proc_file(**pid, "cmdline").is_ok_and(|line| !line.is_empty())
        };
        let left: Vec<&u32> = pids.iter().filter(alive).collect();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("processes left: {left:?}").into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Reads from [`PARENT`] the server's front end, supervisor and scope.
fn server(live: &mut Live) -> Result<(u32, u32, PathBuf), Failed> {
    let front_end: u32 = live.line()?.parse()?;
    let supervisor = *crate::support::children(front_end).first().ok_or("no supervisor")?;
    let scope = scope_of_supervisor(supervisor)?;
    let init = *crate::support::children(supervisor).first().ok_or("no cell")?;
    let cell = group_of(init)?;
    holds(
        "its calls are held",
        &cell,
        cell.starts_with(&scope) && cell.join("memory.max").exists(),
    )?;
    Ok((front_end, supervisor, scope))
}

fn parent(caller: &Caller) -> Check {
    let mut command = caller.outside("/usr/bin/python3");
    command.args(["-c", PARENT]).arg(caller.binary()).arg("6");
    let mut live = Live::start(command)?;
    let (front_end, supervisor, scope) = server(&mut live)?;
    live.signal(Signal::SIGKILL)?;
    children_gone(&[front_end, supervisor])?;
    nothing_left(caller, &[scope])
}

fn unit(caller: &Caller) -> Check {
    let binary = caller.binary().display().to_string();
    let unit = format!("agent-{}.service", std::process::id());
    let name = format!("--unit={unit}");
    let mut command =
        systemd(caller, "systemd-run", &["--quiet", &name, "--wait", "--pipe", "--collect"]);
    command.args(["--", "/usr/bin/python3", "-c", PARENT, &binary, "6"]);
    let mut live = Live::start(command)?;
    let (front_end, supervisor, scope) = server(&mut live)?;
    let inside = group_of(front_end)?;
    holds("the front end is in its unit", &inside, inside.ends_with(&unit))?;
    let output = Finished::run(systemd(caller, "systemctl", &["stop", &unit]), patience())?;
    equal("stopped", output.code, 0)?;
    children_gone(&[front_end, supervisor])?;
    nothing_left(caller, &[scope])
}

fn stopped(caller: &Caller) -> Check {
    let live = caller.live(&["--memory", "64M"], "sleep 60")?;
    let scope = scope_of(&live)?;
    let unit = scope.file_name().ok_or("no name")?.to_string_lossy().into_owned();
    let begun = Instant::now();
    let output = Finished::run(systemd(caller, "systemctl", &["stop", &unit]), patience())?;
    equal("stopped", output.code, 0)?;
    let took = begun.elapsed();
    holds(
        "without waiting for a signal that an init ignores",
        took,
        took < Duration::from_secs(60),
    )?;
    let output = live.finish(patience())?;
    equal("reported as a failure of cofferdam", output.code, 125)?;
    nothing_left(caller, &[scope])
}

fn killed(caller: &Caller) -> Check {
    let live = caller.live(&["--memory", "64M"], "sleep 60")?;
    let supervisor = live.supervisor()?;
    let scope = scope_of(&live)?;
    live.signal(Signal::SIGKILL)?;
    children_gone(&[supervisor])?;
    nothing_left(caller, &[scope])
}

fn failed(caller: &Caller) -> Check {
    let output = caller.run(&["--memory", "64M"], &["/nonexistent"])?;
    equal("not found", output.code, 127)?;
    let output = caller.run(&["--memory", "64M", "--cwd", "/workspace/none"], &["true"])?;
    equal("no directory", output.code, 125)?;
    // Scopes of other tests have processes in them; a leftover one is empty.
    let mut left = units(caller)?;
    let end = Instant::now() + patience();
    loop {
        let there = units(caller)?;
        let groups = directories(caller);
        let is_used = |name: &String| {
            let own = groups.iter().filter(|path| path.ends_with(name));
            let events =
                own.filter_map(|path| std::fs::read_to_string(path.join("cgroup.events")).ok());
            events.into_iter().any(|events| events.contains("populated 1"))
        };
        left.retain(|name| there.contains(name) && !is_used(name));
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("left: {left:?}").into());
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// Prints the figures; emulated, only their ratio means something.
fn price(caller: &Caller) -> Check {
    let cold = |options: &[&str]| -> Result<Duration, Failed> {
        let mut times = Vec::new();
        for _ in 0..9 {
            let output = caller.run(options, &["true"])?;
            equal("ran", (output.code, output.stderr.as_str()), (0, ""))?;
            times.push(output.took);
        }
        times.sort_unstable();
        times.get(4).copied().ok_or_else(|| "no times".into())
    };
    let off = configured(caller, "off", "off")?;
    let initialize = |before: &[&str]| -> Result<Duration, Failed> {
        let mut times = Vec::new();
        for _ in 0..9 {
            let arguments: Vec<&str> = before.iter().chain(&["serve"]).copied().collect();
            let mut command = caller.cofferdam(&arguments);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let begun = Instant::now();
            let mut child = command.spawn()?;
            let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
                "protocolVersion": "2025-11-25", "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"}}});
            let mut stdin = child.stdin.take().ok_or("no stdin")?;
            writeln!(stdin, "{hello}")?;
            let mut line = String::new();
            let stdout = child.stdout.take().ok_or("no stdout")?;
            std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)?;
            times.push(begun.elapsed());
            holds("an answer", &line, line.contains("serverInfo"))?;
            drop(stdin);
            child.wait()?;
        }
        times.sort_unstable();
        times.get(4).copied().ok_or_else(|| "no times".into())
    };
    let without = cold(&[])?;
    let with = cold(&["--memory", "64M"])?;
    println!("price: run -- true: {without:?} without a scope, {with:?} with one");
    let without = initialize(&["--config", &off])?;
    let with = initialize(&[])?;
    println!("price: initialize: {without:?} without a scope, {with:?} with one");
    Ok(())
}
