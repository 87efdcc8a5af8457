//! Budgets for what everyone pays: a change that makes a start, a call or the program heavier fails here.
//!
//! Nothing is timed: instructions, system calls, page faults, descriptors, bytes and crates are counted, which no load of the
//! machine changes. `budgets.toml` has each figure with the reason for its last change; `cargo bench` has times.

mod budgets;
pub mod front;
mod traced;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use elf::ElfBytes;
use elf::endian::AnyEndian;
use serde_json::{Value, json};

use crate::client::Client;
use crate::support::{Caller, Check, Claim, Failed, For, Need, Who, children, claim, patience};
use budgets::keeps;
use traced::Traced;

/// Calls that are counted together, after some that are not.
const CALLS: u64 = 10;
const WARM_UP: u64 = 4;
/// Rows of so many calls.
const ROWS: u64 = 3;
/// Calls whose instructions are counted, beyond those of a start.
const CALLS_MORE: usize = 5;
/// Cells of a full pool: `[pool] warm` of the built-in configuration.
const POOL: usize = 8;
/// Time between two looks at a process that is waited for.
const LOOK: Duration = Duration::from_millis(20);

pub fn claims() -> Vec<Claim> {
    let traced: &[Need] = &[Need::Strace];
    vec![
        claim("the_crates_keep_their_budget", crates).only(For::User),
        claim("the_code_keeps_its_budget", code).only(For::User),
        claim("a_start_keeps_its_budgets", start).only(For::User).needs(traced),
        claim("a_start_with_tool_chains_keeps_its_budgets", start_with_tool_chains).needs(traced),
        claim("a_call_of_a_session_keeps_its_budget", session_call).only(For::User).needs(traced),
        claim("a_fresh_cell_keeps_its_budget", fresh_cell).only(For::User).needs(traced),
        claim("a_calculation_keeps_its_budget", calculation).only(For::User).needs(traced),
        claim("a_front_end_keeps_its_budgets_of_instructions", instructions)
            .only(For::User)
            .needs(&[Need::Valgrind]),
        claim("a_cold_run_keeps_its_budget", cold_run).only(For::User).needs(traced),
        claim("an_idle_server_keeps_its_budgets", idle).only(For::User).needs(&[Need::RootLooks]),
        claim("a_count_over_its_budget_fails", |_| budgets::over_is_an_error()).only(For::User),
    ]
}

/// Counts the crates that a build downloads or has in this repository.
fn crates(_: &Caller) -> Check {
    let lock = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.lock"))?;
    keeps("crates", lock.matches("[[package]]").count())
}

/// Counts the bytes of code and constants of the program that the tests run. It is not optimised, so
/// that this needs no release build; what it grows by, the release grows by too.
fn code(caller: &Caller) -> Check {
    let program = fs::read(caller.binary())?;
    let file = ElfBytes::<AnyEndian>::minimal_parse(&program).map_err(|error| error.to_string())?;
    let (headers, names) = file.section_headers_with_strtab().map_err(|error| error.to_string())?;
    let (headers, names) = headers.zip(names).ok_or("the program has no sections")?;
    let counted = |index: u32| {
        let name = names.get(usize::try_from(index).unwrap_or_default()).unwrap_or_default();
        matches!(name, ".text" | ".rodata")
    };
    let bytes: u64 = headers
        .iter()
        .filter(|section| counted(section.sh_name))
        .map(|section| section.sh_size)
        .sum();
    keeps("code", usize::try_from(bytes)? >> 10)
}

/// Counts what the front end does until it has answered `initialize`.
fn start(caller: &Caller) -> Check {
    let traced = Traced::start(caller, "shell,calc")?;
    let counted = traced.count(&[traced.front_end()?], None, 0)?;
    traced.client.close()?;
    keeps("start: system calls", counted)?;
    let started = server(caller)?;
    let faults = minor_faults(started.child.id())?;
    started.close()?;
    keeps("start: page faults", faults)
}

/// Slots of the server whose start with tool chains is counted: for root each has its own mounts.
const SLOTS: u16 = 8;

/// Counts the processes and mounts that a start makes where a repository and tool chains are granted, and the system
/// calls before it answers.
fn start_with_tool_chains(caller: &Caller) -> Check {
    // Not below /tmp, which cells do not see.
    let home = tempfile::Builder::new().prefix("home").tempdir_in("/var/tmp")?;
    let directories = [
        "",
        ".cargo",
        ".cargo/bin",
        ".cargo/registry",
        ".cargo/registry/cache",
        ".cargo/registry/src",
        ".nvm",
        ".nvm/versions",
        ".rustup",
        ".rustup/toolchains",
        "project",
        "project/.git",
        "project/.git/hooks",
        "project/.git/objects",
        "project/.git/refs",
    ];
    for name in directories.map(|name| home.path().join(name)) {
        fs::create_dir(&name).or_else(|error| if name.is_dir() { Ok(()) } else { Err(error) })?;
        caller.own(&name)?;
    }
    let head = home.path().join("project/.git/HEAD");
    fs::write(&head, "ref: refs/heads/main\n")?;
    caller.own(&head)?;
    let config = caller.directory("config")?;
    caller.file("config/cofferdam.toml", &format!("schema = 1\n[limits]\ncells = {SLOTS}\n"))?;
    let project = home.path().join("project");
    let arguments = ["--config", &config.to_string_lossy(), "serve", "--workspace"];
    let traced = Traced::serving(
        caller,
        home.path(),
        &[&arguments[..], &[&project.to_string_lossy()]].concat(),
    )?;
    let processes = traced.count_until_ready(&["clone", "clone3", "fork", "vfork"])?;
    let mounts = traced.count_until_ready(&["mount", "move_mount"])?;
    let calls = traced.count(&[traced.front_end()?], None, 0)?;
    traced.client.close()?;
    let who = match caller.who {
        Who::Root => "root",
        Who::User => "a user",
    };
    keeps(&format!("start of {who} with tool chains: processes"), processes)?;
    keeps(&format!("start of {who} with tool chains: mounts"), mounts)?;
    keeps(&format!("start of {who} with tool chains: system calls"), calls)
}

/// Counts what front end and supervisor do for a command in a running shell.
fn session_call(caller: &Caller) -> Check {
    keeps("session call: system calls", calls(caller, "shell", "bash", command)?)
}

/// Counts the same for a command in a cell of one call, and for the cell that replaces it in the pool.
fn fresh_cell(caller: &Caller) -> Check {
    keeps("fresh cell: system calls", calls(caller, "exec", "bash_exec", command)?)
}

/// Counts the same for a calculation that was not asked before.
fn calculation(caller: &Caller) -> Check {
    keeps("calculate: system calls", calls(caller, "calc", "calculate", expression)?)
}

fn command(_: u64) -> Value {
    json!({ "command": "true" })
}

fn expression(number: u64) -> Value {
    json!({ "expression": format!("2+{number}") })
}

fn calls(
    caller: &Caller,
    group: &str,
    tool: &str,
    arguments: fn(u64) -> Value,
) -> Result<usize, Failed> {
    let mut traced = Traced::start(caller, group)?;
    for number in 0..WARM_UP + ROWS * CALLS {
        traced.client.call_tool(tool, arguments(number))?;
    }
    let processes = [traced.front_end()?, traced.supervisor()?];
    // The least: on a busy machine more cells are built during some calls.
    let mut least = usize::MAX;
    for row in 0..ROWS {
        let from = WARM_UP + row * CALLS;
        least = least.min(traced.count(&processes, Some(from), from + CALLS)?);
    }
    traced.client.close()?;
    Ok(least / usize::try_from(CALLS)?)
}

/// Counts what all processes of `run` do, those of the cell as well. A separate process makes the late files of the
/// template meanwhile.
fn cold_run(caller: &Caller) -> Check {
    let traced::RunCalls { others, for_each_file } = traced::run(caller)?;
    keeps("cold run: system calls", others)?;
    keeps("late files: system calls for each", for_each_file)
}

/// Counts the instructions of a front end until it has answered `initialize`, and those of a call more.
fn instructions(caller: &Caller) -> Check {
    let start = weighed(caller, "start", ("bash", 0), command)?;
    keeps("start: thousands of instructions of the front end", start / 1000)?;
    let each = |all: usize| (all - start) / CALLS_MORE / 1000;
    let session = weighed(caller, "session", ("bash", CALLS_MORE), command)?;
    keeps("session call: thousands of instructions of the front end", each(session))?;
    let calculation = weighed(caller, "calc", ("calculate", CALLS_MORE), expression)?;
    keeps("calculate: thousands of instructions of the front end", each(calculation))
}

/// Returns the instructions of a front end that serves so many calls.
fn weighed(
    caller: &Caller,
    name: &str,
    (tool, count): (&str, usize),
    arguments: fn(u64) -> Value,
) -> Result<usize, Failed> {
    let config = caller.directory(name)?;
    let text = "schema = 1\n[tools]\ngroups = [\"shell\", \"calc\"]\n";
    caller.file(&format!("{name}/cofferdam.toml"), text)?;
    let counts = caller.home.join(format!("{name}.counts"));
    let mut command = caller.outside(caller.this_program()?);
    command.arg(front::FLAG).arg(&config).arg(&counts);
    let mut client = Client::start(command)?;
    for number in 0..u64::try_from(count)? {
        client.call_tool(tool, arguments(number))?;
    }
    client.close()?;
    let text = fs::read_to_string(&counts)?;
    let line = text.lines().find_map(|line| line.strip_prefix("summary: "));
    Ok(line.ok_or("no summary")?.trim().parse()?)
}

/// Counts the processes and descriptors of a server before its first call, and with a full pool.
fn idle(caller: &Caller) -> Check {
    let mut server = server(caller)?;
    let front_end = server.child.id();
    let supervisor = server.supervisor()?;
    keeps("idle, no call yet: processes", 1 + below(front_end))?;
    keeps("idle, no call yet: descriptors of the supervisor", descriptors(supervisor)?)?;
    // The first call fills the pool, and a cell of it is ready when init has its two children.
    server.served()?;
    let is_ready = |init: &u32| children(*init).len() == 2;
    let end = Instant::now() + patience();
    while children(supervisor).iter().filter(|init| is_ready(init)).count() < POOL {
        if Instant::now() > end {
            return Err("the pool is not full".into());
        }
        std::thread::sleep(LOOK);
    }
    let processes = 1 + below(front_end);
    let held = descriptors(supervisor)?;
    server.close()?;
    keeps("idle, a full pool: processes", processes)?;
    keeps("idle, a full pool: descriptors of the supervisor", held)
}

/// Counts the processes below one.
fn below(pid: u32) -> usize {
    children(pid).into_iter().map(|child| 1 + below(child)).sum()
}

fn descriptors(pid: u32) -> Result<usize, Failed> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

fn server(caller: &Caller) -> Result<Client, Failed> {
    Client::start(caller.cofferdam(&["serve", "--tools", "shell,exec"]))
}

/// Returns the page faults of a process that no disk was read for (proc_pid_stat(5), `minflt`).
fn minor_faults(pid: u32) -> Result<usize, Failed> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let behind = stat.rsplit_once(") ").ok_or("no name")?.1;
    Ok(behind.split(' ').nth(7).ok_or("no minflt")?.parse()?)
}
