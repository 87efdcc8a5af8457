//! Mounts of grants that cannot be made for root's cells: a refusal of the start, or of each call.

use std::process::Command;

use crate::client::Client;
use crate::support::{Caller, Check, Failed, Finished, holds, patience};

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

/// Each process counts its own calls: `main` makes one, and its child fails at the second.
pub fn refuse_each_call(caller: &Caller) -> Check {
    for fault in ["error=EINVAL:when=2+", "signal=KILL:when=2"] {
        let mut client = Client::start(failing(caller, fault)?)?;
        for _ in 0..2 {
            let told = client.text("true")?;
            let step = "step mounting the grants for each cell";
            holds(fault, &told, told.contains(step))?;
        }
        client.close()?;
    }
    Ok(())
}
