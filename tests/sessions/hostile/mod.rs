//! A front end that was taken over: this program becomes one as `serve` does, behind the same walls,
//! and then does what an attacker would. It gets no more than any caller gets.

mod acts;
mod allowed;
mod calls;
mod frames;
pub mod front;
mod link;
mod raw;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::dice;
use crate::support::{self, Caller, Check, Claim, Failed, Finished, Need, claim, equal, holds};

pub fn claims() -> Vec<Claim> {
    vec![
        claim("acts_that_work_unconfined_are_refused_confined", acts),
        claim("every_call_outside_the_list_is_refused", sweep).needs(&[Need::X86_64]),
        claim("random_calls_reach_nothing_and_leave_nothing", calls),
        claim("random_frames_and_descriptors_end_no_supervisor", frames),
    ]
}

/// This program as a front end of the caller's.
fn front(caller: &Caller, role: &str, seed: u64) -> Result<Command, Failed> {
    let config = caller.home.join("config");
    if !config.exists() {
        caller.directory("config")?;
        caller.file("config/cofferdam.toml", "schema = 1\n[limits]\ncells = 6\n")?;
    }
    let mut command = caller.outside(caller.this_program()?);
    let home = caller.home.display().to_string();
    let other = std::process::id().to_string();
    let seed = seed.to_string();
    command.args([front::FLAG, role, &home, &other, &seed]);
    Ok(command)
}

/// `name: result` for each act.
fn results_of(caller: &Caller, role: &str) -> Result<Vec<String>, Failed> {
    let output = Finished::run(front(caller, role, 0)?, support::patience())?;
    holds("it ended well", &output, output.code == 0)?;
    Ok(output.stdout.lines().map(str::to_owned).collect())
}

fn acts(caller: &Caller) -> Check {
    let inbox = UnixDatagram::bind(caller.home.join("inbox"))?;
    inbox.set_nonblocking(true)?;
    let _service = UnixListener::bind(caller.home.join("service"))?;
    for name in ["inbox", "service"] {
        support::mode(&caller.home.join(name), 0o777)?;
    }
    let arrived = || {
        let mut buffer = [0; 16];
        std::iter::from_fn(|| inbox.recv(&mut buffer).ok()).count()
    };
    // This test has another uid, so the kernel decides which acts on it a process of the operator's
    // may do.
    let others = ["signalling another process", "the limits of another process"];
    let stranger = caller.uid() != nix::unistd::geteuid().as_raw();
    let free: Vec<String> = acts::ACTS
        .iter()
        .filter(|act| !(stranger && others.contains(&act.name)))
        .map(|act| format!("{}: ok", act.name))
        .collect();
    let mut bare = results_of(caller, "bare")?;
    bare.retain(|line| !(stranger && others.iter().any(|other| line.starts_with(other))));
    equal("without walls", bare, free)?;
    equal("datagrams", arrived(), 1)?;
    let refused: Vec<String> =
        acts::ACTS.iter().map(|act| format!("{}: {}", act.name, act.refused)).collect();
    std::fs::remove_file(caller.home.join("made"))?;
    equal("behind them", results_of(caller, "acts")?, refused)?;
    equal("datagrams", arrived(), 0)?;
    holds("no file was made", (), !caller.home.join("made").exists())
}

fn sweep(caller: &Caller) -> Check {
    let output = results_of(caller, "sweep")?;
    let [swept] = output.as_slice() else {
        return Err(format!("not refused as it should be: {output:?}").into());
    };
    // 1024 numbers of each table, but for those that are allowed.
    let count = swept.strip_prefix("swept ").and_then(|count| count.parse::<u32>().ok());
    holds("calls were tried", swept, count.is_some_and(|count| count > 1900))
}

fn calls(caller: &Caller) -> Check {
    let seed = dice::seed();
    // The first makes the configuration.
    drop(front(caller, "calls", seed)?);
    let before = listing(caller)?;
    let mut made = 0;
    for turn in 0..3_u64 {
        let mut child = front(caller, "calls", seed + turn * 1000)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut output = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let mut text = String::new();
        output.read_line(&mut text)?;
        equal("first", text.as_str(), "ready\n")?;
        let supervisor = support::children(child.id());
        writeln!(child.stdin.take().ok_or("no pipe")?, "go")?;
        ended(&mut child, support::soon(20))?;
        // Bytes that are not text were written by a random call.
        let mut bytes = Vec::new();
        output.read_to_end(&mut bytes)?;
        text.push_str(&String::from_utf8_lossy(&bytes));
        let counts =
            text.lines().filter_map(|line| line.strip_prefix("made ")?.parse::<u64>().ok());
        made += counts.max().unwrap_or_default();
        gone(&supervisor)?;
    }
    holds("calls were made", (seed, made), made > 1000)?;
    equal(&format!("files (seed {seed})"), listing(caller)?, before)?;
    equal("a call afterwards", caller.bash("echo alive")?.trimmed(), "alive")
}

fn listing(caller: &Caller) -> Result<Vec<PathBuf>, Failed> {
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(&caller.home)?.flatten().map(|entry| entry.path()).collect();
    all.sort();
    Ok(all)
}

/// Waits for the end of a front end, kills it when it does not come.
fn ended(child: &mut Child, patience: Duration) -> Check {
    let end = Instant::now() + patience;
    while child.try_wait()?.is_none() {
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The supervisor dies with its front end, whatever that did.
fn gone(supervisors: &[u32]) -> Check {
    holds("a supervisor was seen", supervisors, !supervisors.is_empty())?;
    let end = Instant::now() + support::patience();
    let is_there =
        |pid: &u32| support::status(*pid).is_ok_and(|status| !status.get("State").starts_with('Z'));
    while supervisors.iter().any(is_there) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    let left: Vec<&u32> = supervisors.iter().filter(|pid| is_there(pid)).collect();
    equal("supervisors that are left", left, Vec::<&u32>::new())
}

/// Returns the value of `held` once the supervisor has no children and twenty readings are the
/// same.
fn still(supervisor: u32, held: &dyn Fn() -> Result<usize, Failed>) -> Result<usize, Failed> {
    let end = Instant::now() + support::patience();
    let mut last = held()?;
    let mut same = 0;
    while same < 20 {
        if Instant::now() > end {
            return Err(format!("a supervisor without rest: {last} descriptors").into());
        }
        std::thread::sleep(Duration::from_millis(10));
        let now = held()?;
        same = match now == last && support::children(supervisor).is_empty() {
            true => same + 1,
            false => 0,
        };
        last = now;
    }
    Ok(last)
}

fn frames(caller: &Caller) -> Check {
    let seed = dice::seed();
    let mut child =
        front(caller, "frames", seed)?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no pipe")?).lines();
    let mut line = || lines.next().and_then(Result::ok).unwrap_or_default();
    equal("first", line(), "ready")?;
    let supervisor = support::children(child.id());
    let [supervisor] = supervisor.as_slice() else {
        return Err(format!("one supervisor: {supervisor:?}").into());
    };
    // A process that is not dumpable shows its descriptors to root alone.
    let held = || {
        Ok::<_, Failed>(match nix::unistd::geteuid().is_root() {
            true => std::fs::read_dir(format!("/proc/{supervisor}/fd"))?.count(),
            false => 0,
        })
    };
    // The cell of the first job was ending when its end was reported.
    let before = still(*supervisor, &held)?;
    let mut stdin = child.stdin.take().ok_or("no pipe")?;
    writeln!(stdin, "go")?;
    equal("the storm", line(), "done")?;
    let end = Instant::now() + support::patience();
    while (!support::children(*supervisor).is_empty() || held()? != before) && Instant::now() < end
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    equal(&format!("cells left (seed {seed})"), support::children(*supervisor), Vec::<u32>::new())?;
    equal(&format!("descriptors of the supervisor (seed {seed})"), held()?, before)?;
    drop(stdin);
    equal("its end", child.wait()?.code(), Some(0))?;
    gone(&[*supervisor])
}
