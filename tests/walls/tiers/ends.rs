//! The end of a cell that has no pid namespace: all of its processes go with it, and all of its files.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::SIGKILL;

use super::TIER;
use crate::support::{
    Caller, Check, Failed, Finished, Live, Who, children, equal, holds, kill, patience,
    with_argument,
};

fn run(caller: &Caller, script: &str) -> Result<Finished, Failed> {
    caller.run(&["--tier", TIER], &["bash", "-c", script])
}

/// A line that leaves a process behind which no wait, no session and no signal but KILL finds.
fn stray(seconds: &str) -> String {
    format!("(setsid bash -c 'trap \"\" TERM HUP INT; sleep {seconds}; :' >/dev/null 2>&1 &) ; ")
}

/// Seconds that nothing else sleeps.
fn unique(number: u32) -> String {
    format!("{}{:06}", 2000 + number, std::process::id() % 1_000_000)
}

fn waits_until(what: &str, condition: impl Fn() -> bool) -> Check {
    let until = Instant::now() + patience();
    while !condition() {
        holds(what, "not in time", Instant::now() < until)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

pub fn strays(caller: &Caller) -> Check {
    let seconds = unique(if caller.who == Who::Root { 1 } else { 2 });
    let output = run(caller, &format!("{} sleep 0.3; echo done", stray(&seconds)))?;
    equal("the call", (output.code, output.trimmed()), (0, "done"))?;
    waits_until("it is gone with the call", || with_argument(&seconds).is_empty())?;
    let output = caller.run(
        &["--tier", TIER, "--timeout", "1s"],
        &["bash", "-c", &format!("{} trap '' TERM; sleep {seconds}; :", stray(&seconds))],
    )?;
    equal("past its time", output.code, 124)?;
    waits_until("and then", || with_argument(&seconds).is_empty())?;
    // The control: outside such a process outlives its shell.
    let output = caller.bash_outside(&format!("{} sleep 0.3", stray(&seconds)))?;
    equal("outside", output.code, 0)?;
    let left = with_argument(&seconds);
    holds("it is left", &left, !left.is_empty())?;
    Ok(left.into_iter().try_for_each(|pid| kill(pid, SIGKILL))?)
}

/// A cell of the tier that has a stray and says `ready`.
fn living(caller: &Caller, seconds: &str) -> Result<Live, Failed> {
    let live = caller.live(&["--tier", TIER], &format!("{} sleep {seconds}", stray(seconds)))?;
    waits_until("it runs", || with_argument(seconds).len() >= 2)?;
    Ok(live)
}

pub fn orphans(caller: &Caller) -> Check {
    let seconds = unique(if caller.who == Who::Root { 3 } else { 4 });
    let live = living(caller, &seconds)?;
    kill(live.pid(), SIGKILL)?;
    waits_until("all is gone with the front end", || with_argument(&seconds).is_empty())?;
    let live = living(caller, &seconds)?;
    let [supervisor] = children(live.pid())[..] else { return Err("one child".into()) };
    kill(supervisor, SIGKILL)?;
    waits_until("and with the supervisor", || with_argument(&seconds).is_empty())
}

pub fn bereft(caller: &Caller) -> Check {
    let seconds = unique(5);
    let live = living(caller, &seconds)?;
    let [supervisor] = children(live.pid())[..] else { return Err("one child".into()) };
    // The sweeper is its first child, and init the other.
    let inits = children(supervisor);
    let init = inits.iter().copied().find(|pid| !children(*pid).is_empty());
    kill(init.ok_or("no init")?, SIGKILL)?;
    waits_until("nothing is left", || with_argument(&seconds).is_empty())
}

pub fn memory(caller: &Caller) -> Check {
    // Each below what a process may have, together above what the cell may.
    const EATERS: &str = r#"
import mmap, os, time
for _ in range(4):
    if os.fork() == 0:
        held = mmap.mmap(-1, 40 << 20, mmap.MAP_PRIVATE)
        for at in range(0, 40 << 20, 4096): held[at] = 1
        time.sleep(60)
time.sleep(60)
"#;
    let output = caller.run(
        &["--tier", TIER, "--memory", "96M", "--timeout", "30s"],
        &["/usr/bin/python3", "-c", EATERS],
    )?;
    let expected = "cofferdam: limit reached: memory\n";
    equal("ended", (output.code, output.stderr.as_str()), (123, expected))?;
    let output = caller.run(
        &["--tier", TIER, "--memory", "512M"],
        &["/usr/bin/python3", "-c", &EATERS.replace("time.sleep(60)", "time.sleep(0.5)")],
    )?;
    equal("the control", output.code, 0)
}

pub fn swept(caller: &Caller) -> Check {
    let script = "pwd; mkdir -p a/b/c; mkdir -m 0 a/b/closed; echo x > a/b/c/f; ln -s /etc a/link; \
        d=.; for i in $(seq 300); do mkdir $d/deep; d=$d/deep; done; mkfifo a/fifo; echo y > $TMPDIR/f";
    let output = run(caller, script)?;
    equal("made", (output.code, output.stderr.as_str()), (0, ""))?;
    let workspace = PathBuf::from(output.trimmed());
    let store = workspace.ancestors().nth(2).ok_or("no store")?;
    waits_until("all of it is gone", || !store.exists())?;
    holds("and nothing that a link led to", "/etc", Path::new("/etc/hosts").exists())
}
