//! Mounts of grants that cannot be made for root's cells: a refusal of the start, or of each call.

use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::client::Client;
use crate::support::{Caller, Check, Failed, Finished, children, holds, kill, patience, status};

/// The remedy where a filesystem refuses mounts with the ids of cells.
const REMEDY: &str = "start cofferdam as an ordinary user";

/// Starts a server with a granted directory, in which mount_setattr(2) fails as this says. Its cells have four slots.
fn failing(caller: &Caller, fault: &str) -> Result<Command, Failed> {
    let granted = caller.home.join("granted");
    let config = caller.home.join("config");
    if !granted.exists() {
        caller.directory("granted")?;
        caller.directory("config")?;
        caller.file("config/cofferdam.toml", "schema = 1\n[limits]\ncells = 4\n")?;
    }
    let mut command = caller.outside("strace");
    command
        .args(["-f", "-q", "-o", "/dev/null", "-e"])
        .arg(format!("inject=mount_setattr:{fault}"));
    command.arg(caller.binary()).arg("--config").arg(config);
    command.args(["serve", "--tools", "exec", "--toolchains", "none", "--workspace"]).arg(granted);
    Ok(command)
}

/// The first mount shows at the start whether the filesystem permits such mounts.
pub fn refuse_the_start(caller: &Caller) -> Check {
    let ended = Finished::run(failing(caller, "error=EINVAL:when=1+")?, patience())?;
    holds("a refusal", &ended, ended.code != 0 && ended.stderr.contains(REMEDY))
}

/// Each process counts its own calls: `main` makes one and the supervisor two, and a child fails at the third.
pub fn refuse_each_call(caller: &Caller) -> Check {
    for fault in ["error=EINVAL:when=3+", "signal=KILL:when=3"] {
        let mut client = Client::start(failing(caller, fault)?)?;
        for _ in 0..2 {
            let answer = client.text("true")?;
            let step = "step mounting the grants for each cell";
            holds(fault, &answer, answer.contains(step))?;
        }
        client.close()?;
    }
    Ok(())
}

/// The supervisor is killed while the child is held before the second mount. The mounts that follow are more than the
/// socket to the supervisor has room for, so the child ends only if it learns that no process reads them.
pub fn end_with_the_supervisor(caller: &Caller) -> Check {
    let mut command = failing(caller, "delay_enter=2000000:when=2")?;
    caller.file("config/cofferdam.toml", "schema = 1\n[limits]\ncells = 64\n")?;
    for number in 0..60 {
        command.arg("--ro").arg(caller.directory(&format!("granted-{number}"))?);
    }
    let client = Client::start(command)?;
    let server = *children(client.child.id()).first().ok_or("no server")?;
    let deadline = Instant::now() + patience();
    // The supervisor is the first process of another namespace.
    let is_supervisor =
        |pid: &u32| status(*pid).is_ok_and(|now| now.get("NSpid").split_whitespace().count() > 1);
    let (supervisors, others) = loop {
        let (supervisors, others): (Vec<u32>, Vec<u32>) =
            children(server).into_iter().partition(is_supervisor);
        if supervisors.len() == 1 && others.len() == 1 {
            break (supervisors, others);
        }
        holds("supervisor and child run", &others, Instant::now() < deadline)?;
        std::thread::sleep(Duration::from_millis(10));
    };
    for supervisor in supervisors {
        kill(supervisor, Signal::SIGKILL)?;
    }
    let runs = |pid: &u32| status(*pid).is_ok_and(|now| !now.get("State").starts_with('Z'));
    while others.iter().any(runs) {
        holds("the child ends", &others, Instant::now() < deadline)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
