//! Claims about a supervisor whose front end is the test: it starts only from a process with one thread, so this program,
//! started again for each caller, checks all of them one after the other, and a test is the verdict on its claim.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::json;
use sys::process;

use crate::support::{Caller, Check, Failed, Finished, patience};

/// The verdicts of one run by the names of their claims: the reason where one does not hold.
type Verdicts = Result<BTreeMap<String, Option<String>>, String>;

/// The runs by their flags and the callers' user ids.
type Runs = Mutex<BTreeMap<(&'static str, u32), Arc<OnceLock<Verdicts>>>>;

/// Prints the verdict on each claim, a line each, and ends the process.
pub fn judge<C: Copy>(
    claims: &[(&'static str, C)],
    mut check: impl FnMut(C) -> Result<(), String>,
) -> ! {
    for (name, claim) in claims {
        println!("{}", json!([name, check(*claim).err()]));
    }
    process::exit_now(0)
}

/// Returns the verdict on one of the claims that this program checks where it is started with `flag`.
pub fn verdict(flag: &'static str, caller: &Caller, name: &str) -> Check {
    static RUNS: Runs = Mutex::new(BTreeMap::new());
    let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    let run = Arc::clone(runs.entry((flag, caller.uid())).or_default());
    drop(runs);
    let run = run.get_or_init(|| {
        verdicts(flag, caller).map_err(|failed| failed.message().unwrap_or("no reason").to_owned())
    });
    match run.as_ref().map_err(String::as_str)?.get(name).ok_or("no verdict")? {
        Some(reason) => Err(reason.into()),
        None => Ok(()),
    }
}

fn verdicts(flag: &str, caller: &Caller) -> Result<BTreeMap<String, Option<String>>, Failed> {
    let mut command = caller.outside(caller.this_program()?);
    command.arg(flag);
    let output = Finished::run(command, 3 * patience())?;
    let lines = output.stdout.lines().map(serde_json::from_str::<(String, Option<String>)>);
    let verdicts = lines.collect::<Result<_, _>>();
    match verdicts {
        Ok(verdicts) if output.code == 0 => Ok(verdicts),
        Ok(_) | Err(_) => Err(format!("not to its end: {output:?}").into()),
    }
}
