//! Processes as the tests see them from outside: started, awaited, looked at in /proc.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Failed, soon};

/// How a process ended and what it printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// The exit code, or 1000 and the signal that ended it.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Finished {
    /// Runs a command to its end, within `patience`.
    pub fn run(mut command: Command, patience: Duration) -> Result<Self, Failed> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = command.spawn()?;
        let stdout = collect(child.stdout.take());
        let stderr = collect(child.stderr.take());
        let code = wait(&mut child, patience)?;
        let took = started.elapsed();
        Ok(Self { code, stdout: text(stdout), stderr: text(stderr), took })
    }

    /// Returns standard output without the white space around it.
    pub fn trimmed(&self) -> &str {
        self.stdout.trim()
    }
}

fn collect<R: Read + Send + 'static>(stream: Option<R>) -> Option<JoinHandle<Vec<u8>>> {
    let mut stream = stream?;
    Some(std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // The bytes read before an error are the result.
        stream.read_to_end(&mut bytes).unwrap_or_default();
        bytes
    }))
}

fn text(stream: Option<JoinHandle<Vec<u8>>>) -> String {
    let bytes = stream.and_then(|thread| thread.join().ok()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits for the end; past `patience` the process is killed and the test has failed.
fn wait(child: &mut Child, patience: Duration) -> Result<i32, Failed> {
    let end = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait()? {
            let signal = status.signal().map(|signal| 1000 + signal);
            return Ok(status.code().or(signal).unwrap_or(-1));
        }
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            return Err(format!("did not end within {patience:?}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A call that is under way. Killed when it is let go.
#[derive(Debug)]
pub struct Live {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Live {
    /// Starts a command and waits until it has said `ready`.
    pub fn start(mut command: Command) -> Result<Self, Failed> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let stderr = collect(child.stderr.take());
        let stdout = child.stdout.take().ok_or("no standard output")?;
        let mut live = Self { child, stdout: BufReader::new(stdout), stderr };
        let line = live.line()?;
        if line == "ready" {
            return Ok(live);
        }
        live.child.kill()?;
        live.child.wait()?;
        Err(format!("not ready: {line:?} {}", text(live.stderr.take())).into())
    }

    /// The next line of standard output.
    pub fn line(&mut self) -> Result<String, Failed> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// The front end.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The supervisor: the front end's only child.
    pub fn supervisor(&self) -> Result<u32, Failed> {
        only_child(self.pid(), "supervisor")
    }

    /// The cell's init: the supervisor's child with number 1 in the cell. Another child writes files of the cell's root, and
    /// may be there for a moment.
    pub fn init(&self) -> Result<u32, Failed> {
        child_numbered(self.supervisor()?, "1", "init")
    }

    /// Returns the program: init's child of this number in the cell. The one before it makes the cell, and may be there for a
    /// moment still.
    pub fn payload(&self) -> Result<u32, Failed> {
        child_numbered(self.init()?, "3", "program")
    }

    /// Sends a signal to the front end.
    pub fn signal(&self, signal: nix::sys::signal::Signal) -> Result<(), Failed> {
        Ok(kill(self.pid(), signal)?)
    }

    /// Waits for the end and returns how it came.
    pub fn finish(mut self, patience: Duration) -> Result<Finished, Failed> {
        let started = Instant::now();
        let code = wait(&mut self.child, patience)?;
        let took = started.elapsed();
        let mut stdout = Vec::new();
        self.stdout.read_to_end(&mut stdout)?;
        let stdout = String::from_utf8_lossy(&stdout).into_owned();
        Ok(Finished { code, stdout, stderr: text(self.stderr.take()), took })
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // It may have ended already: then there is nothing to kill.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

/// Waits until a process has one child. A front end has others for a moment, such as the one that parses git's
/// configuration.
fn only_child(pid: u32, role: &str) -> Result<u32, Failed> {
    let until = Instant::now() + soon(5);
    loop {
        match children(pid).as_slice() {
            [one] => return Ok(*one),
            other if Instant::now() >= until => {
                let text = format!("{pid} should have one child, the {role}, and has {other:?}");
                return Err(text.into());
            }
            _ => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Returns the child with this number in its innermost process namespace.
fn child_numbered(pid: u32, number: &str, role: &str) -> Result<u32, Failed> {
    let is_it = |pid: &u32| {
        field(*pid, "NSpid").is_some_and(|all| all.split_whitespace().last() == Some(number))
    };
    let child = children(pid).into_iter().find(is_it);
    child.ok_or_else(|| format!("{pid} has no {role}: {:?}", children(pid)).into())
}

/// Sends a signal to one process.
pub fn kill(pid: u32, signal: nix::sys::signal::Signal) -> nix::Result<()> {
    let pid = i32::try_from(pid).map_err(|_| nix::errno::Errno::ESRCH)?;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal)
}

/// Every process id of the host.
fn all() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The children of a process, over all its threads.
pub fn children(pid: u32) -> Vec<u32> {
    let parent = pid.to_string();
    all().into_iter().filter(|pid| field(*pid, "PPid").as_ref() == Some(&parent)).collect()
}

fn field(pid: u32, name: &str) -> Option<String> {
    status(pid).ok()?.0.remove(name)
}

/// `/proc/PID/status`, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status(pub BTreeMap<String, String>);

impl Status {
    /// Returns one field, or an empty string.
    pub fn get(&self, name: &str) -> &str {
        self.0.get(name).map(String::as_str).unwrap_or_default()
    }

    /// The four ids of `Uid` or `Gid`.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.get(name).split_whitespace().filter_map(|id| id.parse().ok()).collect()
    }
}

/// Reads `/proc/PID/status`.
pub fn status(pid: u32) -> std::io::Result<Status> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    Ok(Status(fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()))
}

/// A file of a process, as bytes.
pub fn proc_file(pid: u32, name: &str) -> std::io::Result<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/{name}"))
}

/// Processes of the host that have `argument` as one of their arguments.
pub fn with_argument(argument: &str) -> Vec<u32> {
    let has = |pid: &u32| {
        proc_file(*pid, "cmdline")
            .is_ok_and(|line| line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes()))
    };
    all().into_iter().filter(has).collect()
}

/// Waits until `count` processes have `argument`; how many had it last. Looked at once more they may be
/// fewer: a process in the middle of execve(2) shows no arguments.
pub fn present(argument: &str, count: usize, patience: Duration) -> usize {
    let end = Instant::now() + patience;
    loop {
        let seen = with_argument(argument).len();
        if seen == count || Instant::now() > end {
            return seen;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until no process has `argument`; what is left after `patience` otherwise.
pub fn gone(argument: &str, patience: Duration) -> Vec<u32> {
    let end = Instant::now() + patience;
    loop {
        let left = with_argument(argument);
        if left.is_empty() || Instant::now() > end {
            return left;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
