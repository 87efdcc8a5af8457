//! A server under strace(1), whose system calls are counted between two messages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::LOOK;
use crate::client::Client;
use crate::support::{Caller, Failed, Finished, children, patience};

/// A server that is traced, and its client.
pub struct Traced {
    pub client: Client,
    trace: PathBuf,
}

impl Traced {
    pub fn start(caller: &Caller, groups: &str) -> Result<Self, Failed> {
        Self::serving(caller, &caller.home, &["serve", "--tools", groups])
    }

    /// Starts a server with these arguments and this home.
    pub fn serving(caller: &Caller, home: &Path, arguments: &[&str]) -> Result<Self, Failed> {
        let trace = caller.home.join("trace");
        let mut command = caller.outside("strace");
        command.args(["-f", "-q", "-s", "48", "-o"]).arg(&trace).arg(caller.binary());
        command.args(arguments).env("HOME", home);
        Ok(Self { client: Client::start(command)?, trace })
    }

    /// Counts the calls by these names that all processes have made when the supervisor is ready. Those that make a thread
    /// are not counted.
    pub fn count_until_ready(&self, names: &[&str]) -> Result<usize, Failed> {
        let supervisor = self.supervisor()?.to_string();
        // The last step of its start: a filter. Short pids are padded.
        let is_ready = |line: &str| {
            line.split_once(' ').is_some_and(|(pid, call)| {
                pid == supervisor && call.trim_start().starts_with("seccomp(SECCOMP_SET_MODE")
            })
        };
        let end = Instant::now() + patience();
        let mut text = fs::read_to_string(&self.trace)?;
        while !text.lines().any(is_ready) {
            if Instant::now() > end {
                return Err("the supervisor does not become ready".into());
            }
            std::thread::sleep(LOOK);
            text = fs::read_to_string(&self.trace)?;
        }
        let is_named = |line: &&str| {
            let call = line.split_once(' ').and_then(|(_, call)| call.trim_start().split_once('('));
            let is_thread = line.contains("CLONE_THREAD");
            is_call(line) && !is_thread && call.is_some_and(|(name, _)| names.contains(&name))
        };
        Ok(text.lines().filter(is_named).count())
    }

    /// Returns the process that strace started.
    pub fn front_end(&self) -> Result<u32, Failed> {
        Ok(*children(self.client.child.id()).first().ok_or("strace has started nothing")?)
    }

    pub fn supervisor(&self) -> Result<u32, Failed> {
        let front_end = self.front_end()?;
        Ok(*children(front_end).first().ok_or("the server has no supervisor")?)
    }

    /// Counts the calls of these processes, all their threads together, from the answer to the request
    /// numbered `after`, or from the start, to the answer to the request numbered `last`.
    pub fn count(&self, processes: &[u32], after: Option<u64>, last: u64) -> Result<usize, Failed> {
        let threads = threads(processes)?;
        let answered = |id: u64| format!("\\\"id\\\":{id},");
        // strace writes a line when the call has returned, which may be after the client has read.
        let end = Instant::now() + patience();
        let wanted = answered(last);
        let mut text = fs::read_to_string(&self.trace)?;
        while !text.lines().any(|line| is_answer(line, &wanted)) {
            if Instant::now() > end {
                return Err(format!("the trace has no answer {last}").into());
            }
            std::thread::sleep(LOOK);
            text = fs::read_to_string(&self.trace)?;
        }
        let mut counted = after.is_none().then_some(0);
        for line in text.lines() {
            let pid = line.split(' ').next().and_then(|pid| pid.parse().ok());
            let is_counted = pid.is_some_and(|pid| threads.contains(&pid)) && is_call(line);
            if let Some(counted) = counted.as_mut().filter(|_| is_counted) {
                *counted += 1;
            }
            if after.is_some_and(|after| is_answer(line, &answered(after))) {
                counted = Some(0);
            }
            if is_answer(line, &wanted) {
                break;
            }
        }
        counted.ok_or_else(|| "the trace has no such answer".into())
    }
}

/// System calls of a run.
pub struct RunCalls {
    /// Calls of all processes but the one that makes late files.
    pub others: usize,
    /// Calls of that process for each file that it makes, rounded up.
    pub for_each_file: usize,
}

/// Runs a command in a cell, and counts the calls of all processes. How many files a template gets
/// late depends on the packages of the machine.
pub fn run(caller: &Caller) -> Result<RunCalls, Failed> {
    let trace = caller.home.join("trace");
    let mut command = caller.outside("strace");
    command.args(["-f", "-q", "-o"]).arg(&trace).arg(caller.binary());
    command.args(["run", "--", "/bin/true"]);
    let output = Finished::run(command, patience())?;
    if output.code != 0 {
        return Err(format!("{output:?}").into());
    }
    let text = fs::read_to_string(&trace)?;
    let pid = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    let of = |call: &str| -> BTreeSet<String> {
        text.lines().filter(|line| line.contains(call)).map(pid).collect()
    };
    // The supervisor changes to a held directory too, when it changes the root.
    let changed = of(" fchdir(");
    let maker = changed.difference(&of(" pivot_root(")).next().cloned();
    let maker = maker.ok_or("nothing makes late files")?;
    let calls = || text.lines().filter(|line| is_call(line));
    let made = calls().filter(|line| pid(line) == maker);
    // strace(1) cannot read paths and flags of a process that is not dumpable.
    let is_file = |line: &&str| line.contains(" write(") || line.contains(" symlinkat(");
    let files = made.clone().filter(is_file).count();
    let made = made.count();
    Ok(RunCalls { others: calls().count() - made, for_each_file: made.div_ceil(files.max(1)) })
}

/// Returns true for the line with which a message with this id is written.
fn is_answer(line: &str, id: &str) -> bool {
    line.contains(" write(") && line.contains("jsonrpc") && line.contains(id)
}

/// Returns true for a line that begins a call: not for a signal, an end, or the return of a call that
/// another line begins.
fn is_call(line: &str) -> bool {
    !["+++ ", "--- ", " resumed>"].iter().any(|other| line.contains(other))
}

fn threads(processes: &[u32]) -> Result<BTreeSet<u32>, Failed> {
    let mut all = BTreeSet::new();
    for pid in processes {
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            all.extend(thread?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
    }
    Ok(all)
}
